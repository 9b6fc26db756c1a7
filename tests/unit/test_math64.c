/* exp64 and log64 against the C library's long double functions, in units in the last place. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/math64.h"
#include "base/rng.h"

/* Where long double is no wider than double, the reference itself is only good to an ulp. */
static const double LIMIT = LDBL_MANT_DIG > 53 ? 1.0 : 2.0;

static double rand_unit(uint32_t i)
{
    uint32_t key[2] = {7, 11}, ctr[4] = {i, 0, 0, 0}, out[4];
    philox4x32(key, ctr, out);
    return rng_unit(out[0], out[1]);
}

static double ulps(double got, long double want)
{
    int e;
    frexp((double)want, &e);
    return (double)fabsl(((long double)got - want) / ldexpl(1.0L, e - 53));
}

static void test_exp_accuracy(void **state)
{
    (void)state;
    double worst = 0;
    for (uint32_t i = 0; i < 600000; i++) {
        double u = rand_unit(i), x;
        x = i % 3 == 0 ? (u - 0.5) * 1416 : i % 3 == 1 ? -40 * u : (u - 0.5) * ldexp(1.0, -(int)(i % 60));
        double d = ulps(exp64(x), expl((long double)x));
        worst = d > worst ? d : worst;
    }
    for (int k = -1000; k <= 1000; k++) { // around the borders of the table's steps
        double x = (k + 0.5) * 0.693147180559945309 / 128;
        double d = ulps(exp64(x), expl((long double)x));
        worst = d > worst ? d : worst;
    }
    print_message("exp64: %.3f ulp at most\n", worst);
    assert_true(worst < LIMIT);
}

static void test_exp_edges(void **state)
{
    (void)state;
    assert_true(exp64(0.0) == 1.0 && exp64(-0.0) == 1.0);
    assert_true(exp64(-INFINITY) == 0.0 && exp64(-1e300) == 0.0 && exp64(-708.5) == 0.0);
    assert_true(exp64(-708.0) >= DBL_MIN);
    assert_true(isinf(exp64(INFINITY)) && isinf(exp64(710.0)));
    assert_true(isnan(exp64(NAN)));
    assert_true(ulps(exp64(709.78), expl(709.78)) < LIMIT);
    assert_true(isfinite(exp64(0x1.62e42fefa39efp+9)));
}

static void test_log_accuracy(void **state)
{
    (void)state;
    double worst = 0;
    for (uint32_t i = 0; i < 600000; i++) {
        double u = rand_unit(i), x;
        x = i % 4 == 0   ? u
            : i % 4 == 1 ? ldexp(1 + u, (int)(i / 4 % 2040) - 1020)
            : i % 4 == 2 ? 1 + (u - 0.5) * ldexp(1.0, -(int)(i / 4 % 52))
                         : 0.5 + 1.5 * u;
        if (x == 1.0)
            continue;
        double d = ulps(log64(x), logl((long double)x));
        worst = d > worst ? d : worst;
    }
    print_message("log64: %.3f ulp at most\n", worst);
    assert_true(worst < LIMIT);
}

static void test_log_edges(void **state)
{
    (void)state;
    assert_true(log64(1.0) == 0.0);
    assert_true(isinf(log64(0.0)) && log64(0.0) < 0);
    assert_true(isnan(log64(-1.0)) && isnan(log64(NAN)));
    assert_true(isinf(log64(INFINITY)));
    assert_true(ulps(log64(DBL_MAX), logl((long double)DBL_MAX)) < LIMIT);
    assert_true(ulps(log64(DBL_MIN), logl((long double)DBL_MIN)) < LIMIT);
    assert_true(ulps(log64(4.9e-324), logl(4.9406564584124654e-324L)) < LIMIT);
    // the smallest and the largest value that rng_unit returns
    assert_true(ulps(log64(0x1p-53), logl(0x1p-53L)) < LIMIT);
    assert_true(log64(1 - 0x1p-53) < 0.0 && ulps(log64(1 - 0x1p-53), logl(1 - 0x1p-53L)) < LIMIT);
}

static void test_row(void **state)
{
    double x[37], y[37];
    (void)state;
    for (int i = 0; i < 37; i++)
        x[i] = y[i] = (i - 30) * 40.7;
    exp64_row(x, 37);
    for (int i = 0; i < 37; i++)
        assert_true(x[i] == exp64(y[i]));
}

/* Bits that every platform must reproduce. */
static void test_bits(void **state)
{
    (void)state;
    uint64_t h = 0, u;
    for (uint32_t i = 0; i < 10000; i++) {
        double v[2] = {exp64((rand_unit(i) - 0.9) * 100), log64(rand_unit(i))};
        for (int k = 0; k < 2; k++) {
            memcpy(&u, &v[k], sizeof u);
            h = (h ^ u) * 0x9E3779B97F4A7C15u;
            h ^= h >> 29;
        }
    }
    assert_true(h == 0x6a4b243c5fc1759fu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp_accuracy), cmocka_unit_test(test_exp_edges),
        cmocka_unit_test(test_log_accuracy),
        cmocka_unit_test(test_log_edges),    cmocka_unit_test(test_bits), cmocka_unit_test(test_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
