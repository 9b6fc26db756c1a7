/* The sampler against a plain second writing of its definition (sort everything, long double sums), bitwise
 * repeatability, history, settings, and no allocation after setup. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "infer/sampler.h"

static uint32_t test_counter;
static double frand(void)
{
    uint32_t key[2] = {31, 41}, ctr[4] = {test_counter++, 0, 0, 0}, out[4];
    philox4x32(key, ctr, out);
    return rng_unit(out[0], out[1]);
}

/* ---- the definition, written plainly ------------------------------------------------------------------ */

static const double *order_by;
static int by_rank(const void *a, const void *b)
{
    int i = *(const int *)a, j = *(const int *)b;
    if (order_by[i] != order_by[j])
        return order_by[i] > order_by[j] ? -1 : 1;
    return i - j;
}

/* Returns 1 where rounding of the mass decides a cut, so that two right programs may differ. */
static int plain(double *p, const float *logits, int n, const struct sampling *set, const int *history,
                 int n_history)
{
    double *x = malloc((size_t)n * sizeof *x);
    int *count = calloc((size_t)n, sizeof *count), *order = malloc((size_t)n * sizeof *order);
    int kept = n, is_close = 0;
    for (int i = 0; i < n_history; i++)
        count[history[i]]++;
    for (int i = 0; i < n; i++) {
        x[i] = logits[i];
        order[i] = i;
        p[i] = 0;
        if (count[i]) {
            x[i] = x[i] > 0 ? x[i] / set->repetition_penalty : x[i] * set->repetition_penalty;
            x[i] -= set->presence_penalty + set->frequency_penalty * count[i];
        }
    }
    for (int i = 0; i < set->n_bias; i++)
        x[set->bias[i].id] += set->bias[i].bias;
    order_by = x;
    qsort(order, (size_t)n, sizeof *order, by_rank);
    if (set->temperature == 0) {
        p[order[0]] = 1;
        kept = 0;
    } else if (set->top_k > 0 && set->top_k < n) {
        kept = set->top_k;
    }
    long double sum = 0, before = 0;
    for (int i = 0; i < kept; i++)
        sum += p[order[i]] = exp((x[order[i]] - x[order[0]]) / set->temperature);
    if (set->top_p < 1) {
        int m = 0;
        for (; m < kept && (!m || (double)(before / sum) < set->top_p); m++) {
            before += p[order[m]];
            is_close |= fabsl(before / sum - set->top_p) < 1e-15L;
        }
        for (int i = m; i < kept; i++)
            p[order[i]] = 0;
        kept = m;
        sum = before;
    }
    for (int i = 1; i < kept; i++)
        if (p[order[i]] < set->min_p) {
            sum -= p[order[i]];
            p[order[i]] = 0;
        }
    for (int i = 0; i < kept; i++)
        p[order[i]] /= (double)sum;
    free(x);
    free(count);
    free(order);
    return is_close;
}

static void check_order(const struct dist *d)
{
    double sum = 0;
    for (int i = 0; i < d->n; i++) {
        assert_true(d->p[i] > 0);
        assert_true(!i || d->p[i] < d->p[i - 1] || (d->p[i] == d->p[i - 1] && d->id[i] > d->id[i - 1]));
        sum += d->p[i];
    }
    assert_true(fabs(sum - 1) < 1e-10);
}

enum { BIG = 6000 };

struct fixture {
    struct sampler *s;
    struct history *h;
    struct dist d;
    float logits[BIG];
    int history[64];
    double p[BIG];
};

static void check_case(struct fixture *f, int n, const struct sampling *set, int n_history)
{
    static double got[BIG];
    history_clear(f->h);
    for (int i = 0; i < n_history; i++)
        history_push(f->h, f->history[i]);
    assert_int_equal(dist_build(f->s, &f->d, f->logits, n, set, f->h), 0);
    check_order(&f->d);
    if (plain(f->p, f->logits, n, set, f->history, n_history))
        return;
    memset(got, 0, sizeof got);
    for (int i = 0; i < f->d.n; i++)
        got[f->d.id[i]] = f->d.p[i];
    for (int i = 0; i < n; i++)
        if (!(fabs(got[i] - f->p[i]) < 1e-11))
            fail_msg("n %d T %g k %d p %g m %g: token %d is %.17g, want %.17g", n, set->temperature, set->top_k,
                     set->top_p, set->min_p, i, got[i], f->p[i]);
    if (set->temperature == 0)
        assert_int_equal(sampler_argmax(f->s, f->logits, n, set, f->h), f->d.id[0]);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->s = sampler_new(BIG);
    f->h = history_new(BIG);
    dist_init(&f->d, BIG);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    sampler_free(f->s);
    history_free(f->h);
    dist_free(&f->d);
    free(f);
    return 0;
}

/* Random rows: normal-like, integer (many ties), equal, with masks, of sizes around the blocks. */
static void fill_logits(struct fixture *f, int n, int shape)
{
    for (int i = 0; i < n; i++) {
        double g = frand() + frand() + frand() + frand() - 2;
        f->logits[i] = shape == 0   ? (float)(g * 6)
                       : shape == 1 ? (float)floor(g * 3)
                       : shape == 2 ? -1.5f
                       : shape == 3 ? (frand() < 0.5 ? -INFINITY : (float)(g * 10))
                       : shape == 4 ? (float)(g * 1e-4)
                                    : (float)(g * 600 + 1e4);
    }
    if (shape == 3)
        f->logits[n / 2] = 1;
}

static void test_against_definition(void **state)
{
    static const int sizes[] = {1, 2, 15, 16, 17, 33, 64, 257, 3000, BIG};
    static const int ks[] = {0, 0, 1, 2, 5, 20, 1024, 1025, 2500, BIG};
    static const double temps[] = {0, 0.1, 0.7, 1, 1, 1.3, 5}, top_ps[] = {1, 1, 0.95, 0.5, 1e-9, 0.999};
    struct fixture *f = *state;
    test_counter = 0;
    for (int round = 0; round < 4000; round++) {
        struct sampling set = sampling_neutral();
        struct logit_bias bias[3];
        int n = sizes[(int)(frand() * (round % 8 ? 8 : 10))], n_history = 0;
        fill_logits(f, n, (int)(frand() * 6));
        set.temperature = temps[(int)(frand() * 7)];
        set.top_k = ks[(int)(frand() * 10)];
        set.top_p = top_ps[(int)(frand() * 6)];
        set.min_p = frand() < 0.7 ? 0 : frand() * 0.5;
        if (frand() < 0.5) {
            n_history = (int)(frand() * 64);
            for (int i = 0; i < n_history; i++)
                f->history[i] = (int)(frand() * n);
            set.repetition_penalty = frand() < 0.5 ? 1 : 0.5 + frand();
            set.presence_penalty = frand() < 0.5 ? 0 : frand() * 4 - 2;
            set.frequency_penalty = frand() < 0.5 ? 0 : frand() * 2 - 1;
        }
        if (frand() < 0.3) {
            set.bias = bias;
            set.n_bias = 3;
            for (int i = 0; i < 3; i++)
                bias[i] = (struct logit_bias){(int)(frand() * n), floor(frand() * 20 - 10)};
        }
        check_case(f, n, &set, n_history);
    }
}

/* top_p where the mass before a token equals it exactly, in values that binary can't hold. */
static void test_exact_borders(void **state)
{
    struct fixture *f = *state;
    struct sampling set = sampling_neutral();
    for (int n = 2; n <= 20; n++)
        for (int m = 1; m < n; m++) {
            fill_logits(f, n, 2);
            set.top_p = (double)m / n;
            assert_int_equal(dist_build(f->s, &f->d, f->logits, n, &set, NULL), 0);
            assert_int_equal(f->d.n, m);
            for (int i = 0; i < m; i++)
                assert_int_equal(f->d.id[i], i);
        }
}

/* Values that differ only beyond fp32, through bias: rank and cut see the difference. */
static void test_fine_differences(void **state)
{
    struct fixture *f = *state;
    struct sampling set = sampling_neutral();
    enum { N = 2000 };
    struct logit_bias *bias = malloc(N * sizeof *bias);
    for (int i = 0; i < N; i++) {
        f->logits[i] = 1;
        bias[i] = (struct logit_bias){i, (i * 7919 % N) * 1e-12};
    }
    set.bias = bias;
    set.n_bias = N;
    for (int k = 1; k < N; k += 333) {
        set.top_k = k;
        assert_int_equal(dist_build(f->s, &f->d, f->logits, N, &set, NULL), 0);
        assert_int_equal(f->d.n, k);
        check_order(&f->d);
        int is_best = 0;
        for (int i = 0; i < k; i++)
            is_best += f->d.id[i] * 7919 % N >= N - k;
        assert_int_equal(is_best, k);
    }
    free(bias);
}

static void test_bad_logits(void **state)
{
    static const float bad[] = {NAN, INFINITY, -NAN};
    struct fixture *f = *state;
    struct sampling sets[4];
    for (int i = 0; i < 4; i++)
        sets[i] = sampling_neutral();
    sets[0].temperature = 0;
    sets[1].top_k = 5;
    sets[2].top_p = 0.9;
    for (int i = 0; i < 4; i++) {
        for (int at = 0; at < 100; at += 7)
            for (int b = 0; b < 3; b++) {
                fill_logits(f, 100, 0);
                f->logits[at] = bad[b];
                assert_int_equal(dist_build(f->s, &f->d, f->logits, 100, &sets[i], NULL), ERR_NUMERIC);
                assert_int_equal(sampler_argmax(f->s, f->logits, 100, &sets[i], NULL), -1);
                int before = dist_build(f->s, &f->d, f->logits, at ? at : 1, &sets[i], NULL);
                assert_int_equal(before, at ? 0 : ERR_NUMERIC);
            }
        for (int j = 0; j < 100; j++)
            f->logits[j] = -INFINITY;
        assert_int_equal(dist_build(f->s, &f->d, f->logits, 100, &sets[i], NULL), ERR_NUMERIC);
    }
    // padding rows are never looked at
    fill_logits(f, 100, 0);
    f->logits[100] = NAN;
    f->logits[101] = 1e30f;
    assert_int_equal(dist_build(f->s, &f->d, f->logits, 100, &sets[3], NULL), 0);
    assert_true(dist_p(&f->d, 101) == 0);
    assert_int_equal(dist_build(f->s, &f->d, f->logits, BIG + 1, &sets[3], NULL), ERR_ARG);
}

static void test_extremes(void **state)
{
    struct fixture *f = *state;
    struct sampling set = sampling_neutral();
    struct logit_bias bias = {1, 1e308};
    fill_logits(f, 10, 0);
    f->history[0] = 0;
    history_clear(f->h);
    history_push(f->h, 0);
    for (int i = 0; i < 6; i++) {
        set = sampling_neutral();
        set.temperature = i == 0 ? 1e-300 : i == 1 ? 1e300 : 1;
        set.repetition_penalty = i == 2 ? 1e-300 : i == 3 ? 1e300 : 1;
        set.frequency_penalty = i == 4 ? 1.7e308 : 0;
        set.presence_penalty = i == 4 ? -1.7e308 : 0;
        set.bias = i == 5 ? &bias : NULL;
        set.n_bias = i == 5;
        for (int k = 0; k < 20; k += 4) {
            set.top_k = k;
            assert_int_equal(dist_build(f->s, &f->d, f->logits, 10, &set, f->h), 0);
            check_order(&f->d);
        }
    }
    // a token at minus infinity can't come back by a bias
    f->logits[1] = -INFINITY;
    set.bias = &bias, set.n_bias = 1;
    assert_int_equal(dist_build(f->s, &f->d, f->logits, 10, &set, NULL), 0);
    assert_true(dist_p(&f->d, 1) == 0 && f->d.n == 9);
    // zero and minus zero are equal
    f->logits[0] = 0.0f, f->logits[1] = -0.0f, f->logits[2] = 0.0f;
    set = sampling_neutral();
    assert_int_equal(dist_build(f->s, &f->d, f->logits, 3, &set, NULL), 0);
    assert_true(f->d.id[0] == 0 && f->d.id[1] == 1 && f->d.id[2] == 2);
}

/* The same row gives the same bits whatever was built before. */
static void test_no_memory_of_calls(void **state)
{
    struct fixture *f = *state;
    struct sampling set = sampling_neutral();
    struct dist first;
    float row[500];
    dist_init(&first, BIG);
    test_counter = 12345;
    fill_logits(f, 500, 0);
    memcpy(row, f->logits, sizeof row);
    set.presence_penalty = 0.5;
    history_clear(f->h);
    for (int i = 0; i < 30; i++)
        history_push(f->h, i * 11);
    assert_int_equal(dist_build(f->s, &first, row, 500, &set, f->h), 0);
    for (int i = 0; i < 50; i++) {
        struct sampling other = sampling_neutral();
        other.top_k = i * 50;
        other.top_p = 0.1 + i * 0.01;
        fill_logits(f, 3000, i % 6);
        assert_int_equal(dist_build(f->s, &f->d, f->logits, 3000, &other, f->h), 0);
        history_push(f->h, 7 + i);
        history_push(f->h, 7 + i);
        assert_int_equal(dist_build(f->s, &f->d, row, 500, &set, f->h), 0);
        history_pop(f->h, 7 + i);
        history_pop(f->h, 7 + i);
        assert_int_equal(dist_build(f->s, &f->d, row, 500, &set, f->h), 0);
        assert_int_equal(f->d.n, first.n);
        assert_memory_equal(f->d.id, first.id, (size_t)first.n * sizeof *first.id);
        assert_memory_equal(f->d.p, first.p, (size_t)first.n * sizeof *first.p);
    }
    dist_free(&first);
}

/* ---- settings from JSON ------------------------------------------------------------------------------- */

static int read(struct sampling *s, const char *text, struct err *e)
{
    struct arena a = {.max_bytes = 1 << 20};
    struct json *o;
    *e = (struct err){0};
    assert_int_equal(json_parse(&o, &a, text, strlen(text), "test", e), 0);
    int rc = sampling_read(s, o, e);
    arena_free(&a);
    return rc;
}

static void test_settings(void **state)
{
    struct sampling s = sampling_neutral();
    struct err e;
    (void)state;
    static const char all[] = "{\"temperature\":0.5,\"top_k\":40,\"top_p\":0.9,\"min_p\":0.1,"
                              "\"repetition_penalty\":1.1,\"presence_penalty\":-1,\"frequency_penalty\":2,"
                              "\"logit_bias\":{\"7\":-3,\"0\":1.5},\"other\":[1]}";
    assert_int_equal(read(&s, all, &e), 0);
    assert_true(s.temperature == 0.5 && s.top_k == 40 && s.top_p == 0.9 && s.min_p == 0.1);
    assert_true(s.repetition_penalty == 1.1 && s.presence_penalty == -1 && s.frequency_penalty == 2);
    assert_true(s.n_bias == 2 && s.bias[0].id == 7 && s.bias[0].bias == -3 && s.bias[1].id == 0);
    sampling_free(&s);
    s = sampling_neutral();
    assert_int_equal(read(&s, "{\"temperature\":null,\"top_k\":-1,\"logit_bias\":{}}", &e), 0);
    assert_true(s.temperature == 1 && s.top_k == 0 && s.n_bias == 0);
    assert_int_equal(read(&s, "{\"top_k\":99999999999}", &e), 0);
    assert_int_equal(s.top_k, INT32_MAX);
}

static void test_bad_settings(void **state)
{
    static const char *const bad[][2] = {
        {"{\"temperature\":-0.1}", "temperature"},      {"{\"temperature\":\"1\"}", "temperature"},
        {"{\"temperature\":1e999}", "temperature"},     {"{\"top_k\":-2}", "top_k"},
        {"{\"top_k\":1.5}", "top_k"},                   {"{\"top_p\":0}", "top_p"},
        {"{\"top_p\":1.01}", "top_p"},                  {"{\"min_p\":-1}", "min_p"},
        {"{\"min_p\":true}", "min_p"},                  {"{\"repetition_penalty\":0}", "repetition_penalty"},
        {"{\"presence_penalty\":[]}", "presence_penalty"},
        {"{\"frequency_penalty\":{}}", "frequency_penalty"},
        {"{\"logit_bias\":[1]}", "logit_bias"},         {"{\"logit_bias\":{\"x\":1}}", "logit_bias[\"x\"]"},
        {"{\"logit_bias\":{\"1\":null}}", "logit_bias[\"1\"]"},
        {"{\"logit_bias\":{\"4294967296\":1}}", "logit_bias"},
    };
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct sampling s = sampling_neutral();
        assert_int_equal(read(&s, bad[i][0], &e), ERR_ARG);
        assert_non_null(strstr(e.msg, bad[i][1]));
        assert_true(s.temperature == 1 && s.top_k == 0 && s.top_p == 1 && s.n_bias == 0);
    }
    // one bad field leaves its neighbours, and each bad field is named
    struct sampling s = sampling_neutral();
    static const char mixed[] = "{\"top_p\":7,\"temperature\":0.2,\"top_k\":\"a\",\"logit_bias\":{\"3\":1}}";
    assert_int_equal(read(&s, mixed, &e), ERR_ARG);
    assert_true(s.temperature == 0.2 && s.n_bias == 1 && s.top_p == 1 && s.top_k == 0);
    assert_true(strstr(e.msg, "top_p") && strstr(e.msg, "top_k"));
    sampling_free(&s);
    assert_int_equal(read(&s, "[]", &e), ERR_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_against_definition, setup, teardown),
        cmocka_unit_test_setup_teardown(test_exact_borders, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fine_differences, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_logits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_extremes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_memory_of_calls, setup, teardown),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_bad_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
