#include "measure/stats.h"

#include <math.h>
#include <stdbool.h>

/* Stirling's series (Abramowitz and Stegun 6.1.40) from x >= 10, reached by the recurrence. C's lgamma
 * writes a global. */
double stats_log_gamma(double x)
{
    double shift = 1;
    for (; x < 10; x += 1)
        shift *= x;
    double r = 1 / x, r2 = r * r, series = 691.0 / 360360;
    static const double coef[5] = {1.0 / 1188, 1.0 / 1680, 1.0 / 1260, 1.0 / 360, 1.0 / 12};
    for (int i = 0; i < 5; i++)
        series = coef[i] - r2 * series;
    return (x - 0.5) * log(x) - x + 0.91893853320467274178 + r * series - log(shift);
}

/* Below a + 1 the power series of P (A&S 6.5.29), above it the continued fraction of Q (A&S 6.5.31,
 * evaluated by Lentz's method). */
double stats_gamma_q(double a, double x)
{
    if (!(x > 0))
        return 1;
    if (isinf(x))
        return 0;
    double scale = exp(a * log(x) - x - stats_log_gamma(a));
    if (x < a + 1) {
        double term = 1 / a, sum = term;
        for (double k = 1; k < 100000 && term > sum * 1e-17; k++) {
            term *= x / (a + k);
            sum += term;
        }
        double p = sum * scale;
        return p < 1 ? 1 - p : 0;
    }
    double b = x + 1 - a, c = 1e300, d = 1 / b, h = d;
    for (double k = 1; k < 100000; k++) {
        double an = -k * (k - a);
        b += 2;
        d = an * d + b;
        d = 1 / (fabs(d) < 1e-300 ? 1e-300 : d);
        c = b + an / c;
        c = fabs(c) < 1e-300 ? 1e-300 : c;
        h *= c * d;
        if (fabs(c * d - 1) < 1e-16)
            break;
    }
    return scale * h;
}

double stats_chi2_sf(double x, double df) { return df > 0 ? stats_gamma_q(df / 2, x / 2) : 1; }

static void add_cell(struct gtest *t, double observed, double expected)
{
    if (observed > 0)
        t->g += 2 * observed * log(observed / expected);
    t->cells++;
}

struct gtest stats_gtest(const int64_t *observed, const double *prob, int n, double min_expected)
{
    struct gtest t = {0, 0, 0, 1};
    double total = 0, pool_o = 0, pool_e = 0;
    int smallest = -1;
    bool impossible = false;
    for (int i = 0; i < n; i++)
        total += (double)observed[i];
    for (int i = 0; i < n; i++) { // what goes to the pool, and the smallest cell that doesn't
        if (!(prob[i] > 0) && observed[i])
            impossible = true;
        if (total * prob[i] < min_expected)
            pool_o += (double)observed[i], pool_e += total * prob[i];
        else if (smallest < 0 || prob[i] < prob[smallest])
            smallest = i;
    }
    bool joins = pool_e > 0 && pool_e < min_expected && smallest >= 0;
    for (int i = 0; i < n; i++)
        if (total * prob[i] >= min_expected && !(joins && i == smallest))
            add_cell(&t, (double)observed[i], total * prob[i]);
    if (joins)
        add_cell(&t, pool_o + (double)observed[smallest], pool_e + total * prob[smallest]);
    else if (pool_e > 0)
        add_cell(&t, pool_o, pool_e);
    t.df = t.cells > 1 ? t.cells - 1 : 0;
    if (t.g < 0)
        t.g = 0; // rounding
    t.p = stats_chi2_sf(t.g, t.df);
    if (impossible) {
        t.g = (double)INFINITY;
        t.p = 0;
    }
    return t;
}

static void add_pair(struct gtest *t, double a, double b, double na, double nb)
{
    double share = (a + b) / (na + nb);
    if (a > 0)
        t->g += 2 * a * log(a / (na * share));
    if (b > 0)
        t->g += 2 * b * log(b / (nb * share));
    t->cells++;
}

struct gtest stats_gtest2(const int64_t *a, const int64_t *b, int n, double min_expected)
{
    struct gtest t = {0, 0, 0, 1};
    double na = 0, nb = 0, pool_a = 0, pool_b = 0;
    int smallest = -1;
    for (int i = 0; i < n; i++)
        na += (double)a[i], nb += (double)b[i];
    if (!(na > 0) || !(nb > 0))
        return t;
    double least = (na < nb ? na : nb) / (na + nb); // expected count in the smaller sample per observation in both
    for (int i = 0; i < n; i++) {
        double both = (double)a[i] + (double)b[i];
        if (both * least < min_expected)
            pool_a += (double)a[i], pool_b += (double)b[i];
        else if (smallest < 0 || both < (double)a[smallest] + (double)b[smallest])
            smallest = i;
    }
    double pooled = pool_a + pool_b;
    bool joins = pooled > 0 && pooled * least < min_expected && smallest >= 0;
    for (int i = 0; i < n; i++)
        if (((double)a[i] + (double)b[i]) * least >= min_expected && !(joins && i == smallest))
            add_pair(&t, (double)a[i], (double)b[i], na, nb);
    if (joins)
        add_pair(&t, pool_a + (double)a[smallest], pool_b + (double)b[smallest], na, nb);
    else if (pooled > 0)
        add_pair(&t, pool_a, pool_b, na, nb);
    t.df = t.cells > 1 ? t.cells - 1 : 0;
    t.g = t.g < 0 ? 0 : t.g;
    t.p = stats_chi2_sf(t.g, t.df);
    return t;
}

/* adjusted p of rank k (from 0, ascending) = max over ranks j <= k of min(1, (n - j) p_j). What is done
 * is stored as -1 - adjusted, so that no memory is needed. */
void stats_holm(double *p, int n)
{
    double floor_p = 0;
    for (int k = 0; k < n; k++) {
        int at = -1;
        for (int i = 0; i < n; i++)
            if (p[i] >= 0 && (at < 0 || p[i] < p[at]))
                at = i;
        if (at < 0)
            break;
        double adj = p[at] * (double)(n - k);
        adj = adj > 1 ? 1 : adj;
        floor_p = adj > floor_p ? adj : floor_p;
        p[at] = -1 - floor_p; // done: adjusted value, stored below -1
    }
    for (int i = 0; i < n; i++)
        if (p[i] <= -1)
            p[i] = -1 - p[i];
}
