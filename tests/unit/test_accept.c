/* Acceptance of drafts. The law of the emitted text is computed, not sampled: an enumerating source of
 * randomness walks every outcome of accept_exact with its weight, drafts included, and the result is
 * compared with the target's law. Faulty variants must be seen. Seeded acceptance must give the plain
 * draw's text. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/math64.h"
#include "base/rng.h"
#include "infer/accept.h"
#include "measure/stats.h"

enum { V_MAX = 4, D_MAX = 3, PREFIXES = 1 + 4 + 16 + 64, SEQUENCES = 256 };

/* ---- deterministic random numbers of the tests -------------------------------------------------------- */

static uint32_t test_counter;
static double frand(void)
{
    uint32_t key[2] = {2024, 7}, ctr[4] = {test_counter++, 0, 0, 0}, out[4];
    philox4x32(key, ctr, out);
    return rng_unit(out[0], out[1]);
}

/* ---- enumerating source ------------------------------------------------------------------------------- */

struct enumerator {
    int choice[32], n_opt[32];
    double w[32][V_MAX]; // normalized weights of the options at each call
    int len, at;         // decisions recorded, replayed so far
    double weight;
};

static int decide(struct enumerator *e, const double *w, int n)
{
    if (e->at == e->len) {
        double sum = 0;
        int first = -1;
        assert_true(e->len < 32 && n <= V_MAX);
        for (int i = 0; i < n; i++)
            sum += w[i];
        assert_true(sum > 0);
        for (int i = 0; i < n; i++) {
            e->w[e->len][i] = w[i] / sum;
            if (first < 0 && w[i] > 0)
                first = i;
        }
        e->choice[e->len] = first;
        e->n_opt[e->len++] = n;
    }
    int c = e->choice[e->at];
    e->weight *= e->w[e->at][c];
    e->at++;
    return c;
}

static int enum_bernoulli(void *ud, double prob)
{
    assert_true(prob >= 0 && prob <= 1);
    double w[2] = {prob, 1 - prob};
    return decide(ud, w, 2) == 0;
}

static int enum_categorical(void *ud, const double *w, int n) { return decide(ud, w, n); }

/* Moves to the next outcome; 0 when all were seen. */
static int advance(struct enumerator *e)
{
    for (; e->len > 0; e->len--) {
        int k = e->len - 1;
        while (++e->choice[k] < e->n_opt[k])
            if (e->w[k][e->choice[k]] > 0)
                return 1;
    }
    return 0;
}

/* ---- families of distributions over every prefix ------------------------------------------------------ */

enum kind { DENSE, ZEROS, ONE_HOT_Q, SAME, DISJOINT, ONE_HOT_P, N_KIND };

struct family {
    int v, d;
    double p[PREFIXES][V_MAX], q[PREFIXES][V_MAX];
    double missing[PREFIXES][V_MAX]; // p without the last token of the prefix in the penalty's history
    double sharp[PREFIXES][V_MAX];   // q at a lower temperature
};

static int prefix_child(const struct family *f, int prefix, int tok) { return prefix * f->v + 1 + tok; }

static void normalize(double *w, int n)
{
    double s = 0;
    for (int i = 0; i < n; i++)
        s += w[i];
    for (int i = 0; i < n; i++)
        w[i] /= s;
}

static void fill_row(double *w, int v, int zeros)
{
    int keep = (int)(frand() * v);
    for (int i = 0; i < v; i++)
        w[i] = zeros && i != keep && frand() < 0.4 ? 0 : pow(frand(), 3) + 1e-3;
}

static void fill_prefix(struct family *f, enum kind kind, int prefix, int len, const int *toks)
{
    double *p = f->p[prefix], *q = f->q[prefix];
    fill_row(p, f->v, kind == ZEROS);
    fill_row(q, f->v, kind == ZEROS);
    int hot = (int)(frand() * f->v);
    for (int i = 0; i < f->v; i++) {
        if (kind == ONE_HOT_Q)
            q[i] = i == hot;
        if (kind == ONE_HOT_P)
            p[i] = i == hot;
        if (kind == DISJOINT)
            *(i <= hot % (f->v - 1) ? &p[i] : &q[i]) = 0;
        f->missing[prefix][i] = p[i];
    }
    for (int k = 0; k < len; k++) { // a penalty on what the prefix holds
        p[toks[k]] *= 0.4;
        if (k < len - 1)
            f->missing[prefix][toks[k]] *= 0.4;
    }
    normalize(p, f->v);
    normalize(q, f->v);
    normalize(f->missing[prefix], f->v);
    for (int i = 0; i < f->v; i++) {
        if (kind == SAME)
            q[i] = p[i];
        f->sharp[prefix][i] = q[i] * q[i];
    }
    normalize(f->sharp[prefix], f->v);
    if (len == f->d)
        return;
    for (int t = 0; t < f->v; t++) {
        int next[D_MAX];
        memcpy(next, toks, (size_t)len * sizeof *next);
        next[len] = t;
        fill_prefix(f, kind, prefix_child(f, prefix, t), len + 1, next);
    }
}

static void family_make(struct family *f, enum kind kind, int v, int d)
{
    static const int none[D_MAX];
    memset(f, 0, sizeof *f);
    f->v = v;
    f->d = d;
    fill_prefix(f, kind, 0, 0, none);
}

struct small {
    struct dist d;
    int32_t id[V_MAX];
    double p[V_MAX];
};

static void small_set(struct small *s, const double *w, int v)
{
    s->d = (struct dist){0, V_MAX, s->id, s->p};
    for (int i = 0; i < v; i++) {
        int j = s->d.n;
        if (!(w[i] > 0))
            continue;
        for (; j > 0 && s->p[j - 1] < w[i]; j--)
            s->p[j] = s->p[j - 1], s->id[j] = s->id[j - 1];
        s->p[j] = w[i], s->id[j] = i;
        s->d.n++;
    }
}

/* ---- verifiers: the product's, token-level, and faulty ones ------------------------------------------- */

enum fault {
    NONE,
    RESIDUAL_FROM_P, // instead of max(b p - q, 0)
    RESIDUAL_NO_B,   // max(p - q, 0)
    BONUS_FROM_Q,
    H_WITHOUT_B,     // R of p - q in place of b p - q
    SHARED_UNIFORM,  // the residual reuses the uniform that rejected
    Q_NOT_TEMPERED,  // drafts drawn at a lower temperature than the q that is passed
    DROPPED_TOKEN,   // a drawn draft is dropped because its q is small
    HISTORY_SHORT,   // rows built without the last token in the penalty's history
    N_FAULT
};
static const char *const fault_names[N_FAULT] = {
    "none", "residual from p", "residual without b", "bonus from q", "h without b", "shared uniform",
    "q not tempered", "decision on a dropped token", "history misses the last token",
};

typedef int verify_fn(const struct dist *p, const struct dist *q, const int32_t *x, int d, struct rnd *rnd,
                      struct accept_scratch *s, int32_t *next);

static int token_level(const struct dist *p, const struct dist *q, const int32_t *x, int d, struct rnd *rnd,
                       struct accept_scratch *s, int32_t *next)
{
    (void)s;
    for (int i = 0; i < d; i++) {
        double r = dist_p(&p[i], x[i]) / dist_p(&q[i], x[i]), w[V_MAX];
        if (rnd->bernoulli(rnd->ud, r < 1 ? r : 1))
            continue;
        for (int j = 0; j < p[i].n; j++)
            w[j] = fmax(p[i].p[j] - dist_p(&q[i], p[i].id[j]), 0);
        *next = p[i].id[rnd->categorical(rnd->ud, w, p[i].n)];
        return i;
    }
    *next = dist_draw(&p[d], rnd);
    return d;
}

static enum fault planted;

/* Block verification written a second time, with places for faults. */
static int block_again(const struct dist *p, const struct dist *q, const int32_t *x, int d, struct rnd *rnd,
                       struct accept_scratch *s, int32_t *next)
{
    double b[D_MAX + 1] = {1}, w[V_MAX], failed = 0;
    (void)s;
    for (int i = 0; i < d; i++)
        b[i + 1] = fmin(1, b[i] * dist_p(&p[i], x[i]) / dist_p(&q[i], x[i]));
    for (int i = d; i >= 0; i--) {
        double r = 0, h = b[i];
        for (int j = 0; i < d && j < p[i].n; j++)
            r += fmax((planted == H_WITHOUT_B ? 1 : b[i]) * p[i].p[j] - dist_p(&q[i], p[i].id[j]), 0);
        if (i < d)
            h = r + (1 - b[i]) > 0 ? r / (r + (1 - b[i])) : 1;
        if (i > 0 && !rnd->bernoulli(rnd->ud, h)) {
            failed = h;
            continue;
        }
        if (i == d) {
            *next = dist_draw(planted == BONUS_FROM_Q && d ? &q[d - 1] : &p[d], rnd);
            return i;
        }
        double sum = 0, run = 0;
        for (int j = 0; j < p[i].n; j++) {
            double bj = planted == RESIDUAL_NO_B ? 1 : b[i], pj = p[i].p[j];
            w[j] = planted == RESIDUAL_FROM_P ? pj : fmax(bj * pj - dist_p(&q[i], p[i].id[j]), 0);
            sum += w[j];
        }
        for (int j = 0; planted == SHARED_UNIFORM && sum > 0 && j < p[i].n; j++) { // overlap with [failed, 1)
            double lo = run / sum, hi = (run + w[j]) / sum;
            run += w[j];
            w[j] = fmax(hi - fmax(lo, failed), 0);
        }
        *next = sum > 0 ? p[i].id[rnd->categorical(rnd->ud, w, p[i].n)] : dist_draw(&p[i], rnd);
        return i;
    }
    return -1;
}

/* ---- the law of the output ---------------------------------------------------------------------------- */

/* Adds weight * p(continuation) for all sequences of length d + 1 that start with the prefix. */
static void complete(const struct family *f, int prefix, int len, int index, double weight, double *out)
{
    if (len == f->d + 1) {
        out[index] += weight;
        return;
    }
    for (int t = 0; t < f->v; t++)
        complete(f, prefix_child(f, prefix, t), len + 1, index * f->v + t, weight * f->p[prefix][t], out);
}

/* Enumerates drafts and verification. Returns max |P_out - P_target|, *length: expected tokens emitted. */
static double law_error(const struct family *f, verify_fn *verify, enum fault fault, double *length)
{
    static struct small p[D_MAX + 1], q[D_MAX], drawn;
    static double out[SEQUENCES], want[SEQUENCES];
    struct enumerator e = {.len = 0};
    struct rnd rnd = {&e, enum_bernoulli, enum_categorical};
    struct accept_scratch s;
    double worst = 0, total = 0;
    accept_scratch_init(&s, f->v);
    memset(out, 0, sizeof out);
    memset(want, 0, sizeof want);
    *length = 0;
    do {
        struct dist pd[D_MAX + 1], qd[D_MAX];
        int32_t x[D_MAX], next;
        int prefix = 0, d = 0, index = 0;
        e.at = 0;
        e.weight = 1;
        small_set(&p[0], f->p[0], f->v);
        for (; d < f->d; d++) {
            small_set(&q[d], f->q[prefix], f->v);
            small_set(&drawn, fault == Q_NOT_TEMPERED ? f->sharp[prefix] : f->q[prefix], f->v);
            x[d] = dist_draw(&drawn.d, &rnd);
            if (fault == DROPPED_TOKEN && f->q[prefix][x[d]] < 0.3)
                break;
            prefix = prefix_child(f, prefix, x[d]);
            small_set(&p[d + 1], fault == HISTORY_SHORT ? f->missing[prefix] : f->p[prefix], f->v);
        }
        for (int i = 0; i <= d; i++)
            pd[i] = p[i].d;
        for (int i = 0; i < d; i++)
            qd[i] = q[i].d;
        int a = verify(pd, qd, x, d, &rnd, &s, &next);
        assert_in_range(a, 0, d);
        prefix = 0;
        for (int i = 0; i <= a; i++) {
            int t = i < a ? x[i] : next;
            index = index * f->v + t;
            if (a + 1 <= f->d || i < a)
                prefix = prefix_child(f, prefix, t);
        }
        complete(f, prefix, a + 1, index, e.weight, out);
        *length += e.weight * (a + 1);
        total += e.weight;
    } while (advance(&e));
    assert_true(fabs(total - 1) < 1e-12);
    complete(f, 0, 0, 0, 1, want);
    for (int i = 0; i < SEQUENCES; i++)
        worst = fmax(worst, fabs(out[i] - want[i]));
    for (int i = 0; i < f->v; i++)
        assert_true(s.q[i] == 0); // the scratch is clean again
    accept_scratch_free(&s);
    return worst;
}

/* 60 families a depth: 6 kinds, vocabularies of 3 and 4, 5 of each. */
static int each_family(struct family *f, int *state)
{
    int i = (*state)++;
    if (i >= 3 * N_KIND * 2 * 5)
        return 0;
    family_make(f, (enum kind)(i % N_KIND), 3 + i / N_KIND % 2, 1 + i / (N_KIND * 10));
    return 1;
}

static void test_exact_law(void **state)
{
    static struct family f;
    double worst = 0, worst_token = 0, gain = 0, length, length_token;
    int at = 0, n = 0;
    (void)state;
    test_counter = 0;
    while (each_family(&f, &at)) {
        double e = law_error(&f, accept_exact, NONE, &length);
        worst_token = fmax(worst_token, law_error(&f, token_level, NONE, &length_token));
        worst = fmax(worst, e);
        assert_true(e < 1e-12);
        assert_true(length >= length_token - 1e-12); // block verification is never behind
        gain = fmax(gain, length / length_token);
        n++;
    }
    print_message("%d families: exact law to %.1e, token-level to %.1e; block emits up to %.3fx\n", n, worst,
                  worst_token, gain);
    assert_true(worst_token < 1e-12 && gain > 1.01);
}

static void test_faults_are_seen(void **state)
{
    static struct family f;
    (void)state;
    for (int fault = NONE; fault < N_FAULT; fault++) {
        double worst = 0, length;
        int at = 0;
        test_counter = 0;
        planted = (enum fault)fault;
        while (each_family(&f, &at))
            worst = fmax(worst, law_error(&f, fault < Q_NOT_TEMPERED ? block_again : accept_exact, planted,
                                          &length));
        planted = NONE;
        print_message("fault \"%s\": error %.1e\n", fault_names[fault], worst);
        if (fault == NONE)
            assert_true(worst < 1e-12);
        else
            assert_true(worst > 1e-3);
    }
}

/* The binary example of the paper: p = (1/3, 2/3), q = (2/3, 1/3) twice: 11/9 drafts kept against 10/9. */
static void test_paper_example(void **state)
{
    static struct family f;
    double length;
    (void)state;
    memset(&f, 0, sizeof f);
    f.v = 2, f.d = 2;
    for (int i = 0; i < 7; i++) {
        f.p[i][0] = f.q[i][1] = 1.0 / 3;
        f.p[i][1] = f.q[i][0] = 2.0 / 3;
    }
    assert_true(law_error(&f, accept_exact, NONE, &length) < 1e-12);
    assert_true(fabs(length - 1 - 11.0 / 9) < 1e-12);
    assert_true(law_error(&f, token_level, NONE, &length) < 1e-12);
    assert_true(fabs(length - 1 - 10.0 / 9) < 1e-12);
}

/* ---- seeded ------------------------------------------------------------------------------------------- */

enum { WIDE = 200 };

/* A distribution that depends on the text so far. */
static void wide_set(struct dist *d, uint64_t context)
{
    uint32_t key[2] = {(uint32_t)context, (uint32_t)(context >> 32)}, out[4];
    double sum = 0;
    d->n = 1 + (int)(context >> 40) % WIDE;
    for (int i = 0; i < d->n; i++) {
        philox4x32(key, (uint32_t[4]){(uint32_t)i, 1, 0, 0}, out);
        d->id[i] = (int32_t)((uint32_t)i * 37u % WIDE);
        d->p[i] = exp(-0.3 * i - rng_unit(out[0], out[1]) * 0.2);
        sum += d->p[i];
    }
    for (int i = 0; i < d->n; i++)
        d->p[i] /= sum;
}

static uint64_t mix(uint64_t context, int32_t tok)
{
    context = (context ^ (uint64_t)(uint32_t)(tok + 1)) * 0x9E3779B97F4A7C15u;
    return context ^ context >> 31;
}

static void test_seeded_text(void **state)
{
    enum { N = 400 };
    struct dist p[9];
    int kept = 0, rounds = 0;
    (void)state;
    test_counter = 5000000;
    for (int i = 0; i < 9; i++)
        dist_init(&p[i], WIDE);
    for (uint32_t seed = 0; seed < 50; seed++) {
        struct noise at = {.seed = seed * 0x123456789abcdefu, .choice = seed % 3};
        int32_t plain[N];
        uint64_t context = seed;
        for (int i = 0; i < N; i++) {
            wide_set(&p[0], context);
            at.index = (uint64_t)i + 1000;
            plain[i] = noise_pick(&p[0], &at);
            context = mix(context, plain[i]);
        }
        context = seed;
        for (int n = 0; n < N; rounds++) {
            int d = (int)(frand() * 9), a;
            int32_t x[8], next;
            uint64_t c = context;
            d = d > N - n - 1 ? N - n - 1 : d;
            for (int i = 0; i <= d; i++) { // drafts right or wrong at random
                wide_set(&p[i], c);
                if (i < d) {
                    x[i] = frand() < 0.7 ? plain[n + i] : (int32_t)(frand() * WIDE);
                    c = mix(c, x[i]);
                }
            }
            at.index = (uint64_t)n + 1000;
            a = accept_seeded(p, x, d, &at, &next);
            for (int i = 0; i <= a; i++) {
                int32_t t = i < a ? x[i] : next;
                assert_int_equal(t, plain[n + i]);
                context = mix(context, t);
            }
            n += a + 1;
            kept += a;
        }
    }
    print_message("seeded: %d drafts kept in %d rounds, text always the plain one\n", kept, rounds);
    assert_true(kept > 1000);
    for (int i = 0; i < 9; i++)
        dist_free(&p[i]);
}

/* The definition, without skipping anything. */
static int32_t pick_slowly(const struct dist *p, const struct noise *at)
{
    double best = 0;
    int32_t pick = -1;
    for (int i = 0; i < p->n; i++) {
        uint32_t key[2] = {(uint32_t)at->seed, (uint32_t)(at->seed >> 32)}, out[4];
        uint32_t ctr[4] = {(uint32_t)p->id[i], (uint32_t)at->index, (uint32_t)(at->index >> 32), at->choice};
        philox4x32(key, ctr, out);
        double v = -log64(rng_unit(out[0], out[1])) / p->p[i];
        if (pick < 0 || v < best || (v == best && p->id[i] < pick))
            best = v, pick = p->id[i];
    }
    return pick;
}

static void test_pick_skips_nothing_that_wins(void **state)
{
    struct dist p;
    (void)state;
    dist_init(&p, 3000);
    for (int shape = 0; shape < 4; shape++) {
        double sum = 0;
        p.n = 3000;
        for (int i = 0; i < p.n; i++) {
            p.id[i] = i * 7 % 3000;
            p.p[i] = shape == 3 ? pow(i + 1, -1.1) : exp(-0.1 * shape * shape * i);
            sum += p.p[i];
        }
        for (int i = 0; i < p.n; i++)
            p.p[i] /= sum;
        for (uint64_t k = 0; k < 1500; k++) {
            struct noise at = {.seed = 99, .choice = 1, .index = k << 31};
            assert_int_equal(noise_pick(&p, &at), pick_slowly(&p, &at));
        }
    }
    dist_free(&p);
}

/* ---- laws of the sources, by G-test with fixed seeds -------------------------------------------------- */

enum { CELLS = 12, DRAWS = 300000 };
static const double law[CELLS] = {0.31, 0.2, 0.15, 0.1, 0.08, 0.06, 0.04, 0.03, 0.015, 0.009, 0.005, 0.001};

static void test_noise_law(void **state)
{
    int64_t right[CELLS] = {0}, wrong[CELLS] = {0}, drawn[CELLS] = {0};
    int32_t id[CELLS];
    double w[CELLS];
    struct dist p = {CELLS, CELLS, id, w};
    (void)state;
    for (int i = 0; i < CELLS; i++)
        id[i] = i, w[i] = law[i];
    for (uint64_t k = 0; k < DRAWS; k++) {
        struct noise at = {.seed = 0xfeedfacecafebeefu, .choice = 2, .index = k};
        struct rnd_counter c = {at, PURPOSE_SAMPLE, 0};
        struct rnd rnd = rnd_of(&c);
        right[noise_pick(&p, &at)]++;
        drawn[dist_draw(&p, &rnd)]++;
        int bad = 0;
        double best = -1e9;
        for (int i = 0; i < CELLS; i++) { // the planted rule: uniform noise in place of Gumbel noise
            double v = log(law[i]) + 4 * frand();
            if (v > best)
                best = v, bad = i;
        }
        wrong[bad]++;
    }
    struct gtest a = stats_gtest(right, law, CELLS, 10), b = stats_gtest(drawn, law, CELLS, 10);
    struct gtest c = stats_gtest(wrong, law, CELLS, 10);
    print_message("G-tests: noise_pick p = %.4f, dist_draw p = %.4f, planted rule p = %.1e\n", a.p, b.p, c.p);
    assert_true(a.p > 1e-3 && b.p > 1e-3);
    assert_true(c.p < 1e-3);
}

/* Drafts and acceptance with the serving source: joint law of three tokens. */
static void test_exact_with_counters(void **state)
{
    static struct family f;
    static struct small p[3], q[2];
    int64_t seen[27] = {0};
    double want[SEQUENCES] = {0};
    struct accept_scratch s;
    (void)state;
    test_counter = 77;
    family_make(&f, DENSE, 3, 2);
    complete(&f, 0, 0, 0, 1, want);
    accept_scratch_init(&s, 3);
    for (uint64_t k = 0; k < 200000; k++) {
        struct dist pd[3], qd[2];
        int32_t x[2], t[3];
        int prefix = 0, n;
        small_set(&p[0], f.p[0], 3);
        for (int i = 0; i < 2; i++) {
            struct rnd_counter c = {{k, 0, (uint64_t)i}, PURPOSE_DRAFT, 0};
            struct rnd rnd = rnd_of(&c);
            small_set(&q[i], f.q[prefix], 3);
            x[i] = dist_draw(&q[i].d, &rnd);
            prefix = prefix_child(&f, prefix, x[i]);
            small_set(&p[i + 1], f.p[prefix], 3);
        }
        for (int i = 0; i < 3; i++)
            pd[i] = p[i].d;
        for (int i = 0; i < 2; i++)
            qd[i] = q[i].d;
        struct rnd_counter c = {{k, 0, 0}, PURPOSE_ACCEPT, 0};
        struct rnd rnd = rnd_of(&c);
        n = accept_exact(pd, qd, x, 2, &rnd, &s, &t[2]);
        int32_t last = t[2];
        for (int i = 0; i < n; i++)
            t[i] = x[i];
        t[n++] = last;
        prefix = 0;
        for (int i = 0; i < 3; i++) {
            if (i >= n) { // plain draws complete the text
                struct rnd_counter cc = {{k, 0, (uint64_t)i}, PURPOSE_SAMPLE, 0};
                struct rnd r2 = rnd_of(&cc);
                struct small row;
                small_set(&row, f.p[prefix], 3);
                t[i] = dist_draw(&row.d, &r2);
            }
            prefix = prefix_child(&f, prefix, t[i]);
        }
        seen[t[0] * 9 + t[1] * 3 + t[2]]++;
    }
    struct gtest g = stats_gtest(seen, want, 27, 10);
    print_message("exact acceptance with counters: G = %.1f, df %d, p = %.4f\n", g.g, g.df, g.p);
    assert_true(g.p > 1e-3);
    accept_scratch_free(&s);
}

static void test_no_drafts(void **state)
{
    struct small p;
    struct rnd_counter c = {{1, 0, 5}, PURPOSE_ACCEPT, 0};
    struct rnd rnd = rnd_of(&c);
    struct accept_scratch s;
    int32_t next = -1;
    (void)state;
    accept_scratch_init(&s, 4);
    small_set(&p, (double[4]){0, 0, 1, 0}, 4);
    assert_int_equal(accept_exact(&p.d, NULL, NULL, 0, &rnd, &s, &next), 0);
    assert_int_equal(next, 2);
    assert_int_equal(accept_seeded(&p.d, NULL, 0, &c.noise, &next), 0);
    assert_int_equal(next, 2);
    // a draft that its own distribution excludes is a caller's mistake: never kept
    struct dist pd[2] = {p.d, p.d};
    int32_t x = 1;
    assert_int_equal(accept_exact(pd, &p.d, &x, 1, &rnd, &s, &next), 0);
    assert_int_equal(next, 2);
    accept_scratch_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_law),       cmocka_unit_test(test_faults_are_seen),
        cmocka_unit_test(test_paper_example),   cmocka_unit_test(test_seeded_text),
        cmocka_unit_test(test_pick_skips_nothing_that_wins), cmocka_unit_test(test_noise_law),
        cmocka_unit_test(test_exact_with_counters), cmocka_unit_test(test_no_drafts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
