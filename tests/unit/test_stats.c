/* Statistical helpers against known values. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "measure/stats.h"

static void near(double got, double want, double rel)
{
    if (!(fabs(got - want) <= rel * fabs(want)))
        fail_msg("%.17g, want %.17g", got, want);
}

static void test_gamma(void **state)
{
    (void)state;
    near(stats_log_gamma(0.5), 0.57236494292470008707, 1e-13); // log(sqrt(pi))
    near(stats_log_gamma(5), 3.17805383034794561965, 1e-14);   // log(24)
    near(stats_log_gamma(100), 359.13420536957539878, 1e-14);
    near(stats_gamma_q(1, 2), exp(-2), 1e-14);
    near(stats_gamma_q(3, 2.5), exp(-2.5) * (1 + 2.5 + 2.5 * 2.5 / 2), 1e-13);
    near(stats_gamma_q(0.5, 2), erfc(sqrt(2.0)), 1e-13);
    near(stats_gamma_q(0.5, 0.01), erfc(0.1), 1e-13);
    assert_true(stats_gamma_q(2, 0) == 1 && stats_gamma_q(2, INFINITY) == 0);
}

/* Table values of the chi-square distribution. */
static void test_chi2(void **state)
{
    (void)state;
    near(stats_chi2_sf(3.841458820694124, 1), 0.05, 1e-12);
    near(stats_chi2_sf(10.827566170662733, 1), 0.001, 1e-12);
    near(stats_chi2_sf(18.307038053275146, 10), 0.05, 1e-12);
    near(stats_chi2_sf(61.098306081058110, 31), 0.001, 1e-12);
    near(stats_chi2_sf(124.34211340400408, 100), 0.05, 1e-12);
    near(stats_chi2_sf(200, 2), exp(-100), 1e-12);
    assert_true(stats_chi2_sf(1, 0) == 1);
}

static void test_gtest(void **state)
{
    (void)state;
    const double prob[4] = {0.5, 0.25, 0.25, 0};
    const int64_t same[4] = {500, 250, 250, 0}, off[4] = {560, 220, 220, 0};
    const int64_t impossible[4] = {500, 250, 249, 1};
    struct gtest t = stats_gtest(same, prob, 4, 5);
    assert_true(t.g < 1e-9 && t.df == 2 && t.cells == 3 && t.p > 0.999);
    t = stats_gtest(off, prob, 4, 5);
    near(t.g, 2 * (560 * log(1.12) + 440 * log(0.88)), 1e-12);
    near(t.p, exp(-t.g / 2), 1e-12); // df 2
    t = stats_gtest(impossible, prob, 4, 5);
    assert_true(t.p == 0 && isinf(t.g));
    // small cells are pooled: 0.002 + 0.003 of 1,000 makes one cell of 5
    const double small[4] = {0.595, 0.4, 0.003, 0.002};
    const int64_t seen[4] = {600, 391, 6, 3};
    t = stats_gtest(seen, small, 4, 4.9);
    assert_true(t.cells == 3 && t.df == 2);
    near(t.g, 2 * (600 * log(600 / 595.0) + 391 * log(391 / 400.0) + 9 * log(9 / 5.0)), 1e-9);
    t = stats_gtest(seen, small, 4, 10); // the pool itself is too small: it joins the smallest cell
    assert_true(t.cells == 2);
    near(t.g, 2 * (600 * log(600 / 595.0) + 400 * log(400 / 405.0)), 1e-9);
}

static void test_holm(void **state)
{
    (void)state;
    double p[4] = {0.01, 0.04, 0.03, 0.005}, q[3] = {0, 1, 0.5}, one[1] = {0.2};
    stats_holm(p, 4);
    near(p[3], 0.02, 1e-12);
    near(p[0], 0.03, 1e-12);
    near(p[2], 0.06, 1e-12);
    near(p[1], 0.06, 1e-12);
    stats_holm(q, 3);
    assert_true(q[0] == 0 && q[1] == 1 && q[2] == 1);
    stats_holm(one, 1);
    near(one[0], 0.2, 1e-12);
}

/* Two samples of a fair and an unfair coin: G = 2 sum O ln(O / E), by hand. */
static void test_gtest2(void **state)
{
    (void)state;
    const int64_t a[4] = {50, 50, 0, 0}, b[4] = {30, 70, 0, 0};
    struct gtest t = stats_gtest2(a, b, 4, 10);
    double want = 2 * (50 * log(50 / 40.0) + 50 * log(50 / 60.0) + 30 * log(30 / 40.0) + 70 * log(70 / 60.0));
    near(t.g, want, 1e-13);
    assert_true(t.df == 1 && t.cells == 2);
    near(t.p, stats_chi2_sf(want, 1), 1e-13);
    const int64_t c[5] = {100, 100, 4, 4, 4}, d[5] = {200, 200, 8, 8, 8}; // rare cells are pooled, sizes differ
    t = stats_gtest2(c, d, 5, 10);
    assert_true(t.cells == 3 && t.g < 1e-9 && t.p > 0.999);
    t = stats_gtest2(c, d, 5, 15); // the pool is too small itself and joins another cell
    assert_int_equal(t.cells, 2);
    const int64_t none[2] = {0, 0};
    t = stats_gtest2(none, a, 2, 10);
    assert_true(t.p == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gamma),
        cmocka_unit_test(test_chi2),
        cmocka_unit_test(test_gtest),
        cmocka_unit_test(test_holm),
        cmocka_unit_test(test_gtest2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
