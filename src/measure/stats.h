/* Statistics for claims about distributions: G-test of observed counts against exact probabilities, and
 * Holm's correction when many tests are read at once. Not used in any decision about tokens. */
#ifndef MEASURE_STATS_H
#define MEASURE_STATS_H

#include <stdint.h>

double stats_log_gamma(double x);            // x > 0
double stats_gamma_q(double a, double x);    // regularized upper incomplete gamma, a > 0, x >= 0
double stats_chi2_sf(double x, double df);   // P(chi-square with df > x)

struct gtest {
    double g;   // 2 sum O log(O / E)
    int df;     // cells - 1
    int cells;  // after pooling
    double p;   // survival function of chi-square at g
};

/* Cells with an expected count below min_expected are pooled into one (which joins the smallest other
 * cell if it is still below). An observation in a cell of probability 0 gives g = infinity, p = 0. prob
 * sums to 1. */
struct gtest stats_gtest(const int64_t *observed, const double *prob, int n, double min_expected);

/* Two samples over the same n cells: do they come from one law? Cells whose smaller expected count is below
 * min_expected are pooled as above. */
struct gtest stats_gtest2(const int64_t *a, const int64_t *b, int n, double min_expected);

/* Holm 1979: replaces n p-values by adjusted ones; reject at family level alpha where adjusted < alpha. */
void stats_holm(double *p, int n);

#endif
