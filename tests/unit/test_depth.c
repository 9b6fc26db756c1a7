/* The depth controller in simulated decoding: never slower than plain, close to the best fixed depth. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "infer/depth.h"

static uint32_t test_counter;
static double frand(void)
{
    uint32_t key[2] = {5, 55}, ctr[4] = {test_counter++, 0, 0, 0}, out[4];
    philox4x32(key, ctr, out);
    return rng_unit(out[0], out[1]);
}

/* A machine: verification of k rows takes base + row * k, a draft draft each, with noise and spikes. */
struct machine {
    const char *name;
    double base, row, draft;
};
static const struct machine cheap = {"cheap", 1, 0.1, 0.06}, dear = {"dear", 0, 0.5, 0.36},
                            middle = {"middle", 0.9, 0.2, 0.1};

enum knowledge { NOTHING, COSTS, COSTS_AND_PRIOR, COSTS_AND_WRONG_PRIOR, N_KNOWLEDGE };
static const char *const knowledge_names[] = {"nothing", "costs", "costs, prior", "costs, wrong prior"};

/* Conditional acceptance by position: first, then each the given share of the one before. */
struct text {
    double first, fall;
};

struct scenario {
    const struct machine *m;
    struct text text, later; // later: from token switch_at on, if that isn't 0
    int switch_at, tokens;
    enum knowledge knows;
    double noise;            // relative jitter; if any, a spike of 4x every 200 rounds as well
};

static double verify_time(const struct machine *m, int rows) { return m->base + m->row * rows; }

static double fixed_tokens(const struct text *t, int k)
{
    double e = 1, reach = 1, a = t->first;
    for (int i = 0; i < k; i++, a *= t->fall)
        e += reach *= a;
    return e;
}

static double fixed_rate(const struct machine *m, const struct text *t, int k)
{
    return fixed_tokens(t, k) / (verify_time(m, k + 1) + k * m->draft);
}

static double best_rate(const struct machine *m, const struct text *t)
{
    double best = 0;
    for (int k = 0; k <= DEPTH_MAX; k++)
        best = fmax(best, fixed_rate(m, t, k));
    return best;
}

struct result {
    double vs_plain; // time by plain decoding's time
    double vs_best;  // after 200 tokens: time by that of the best fixed depth, in expectation
    double early;    // time of the first 64 tokens by plain's
    double second;   // time after the switch by plain's
};

static void know(struct depth_ctl *c, const struct scenario *s)
{
    for (int k = 1; s->knows >= COSTS && k <= 4; k++)
        depth_cost(c, k, verify_time(s->m, k), 0, 1, s->m->draft);
    if (s->knows == COSTS_AND_PRIOR)
        depth_prior(c, 0, (int)(128 * s->text.first), 128);
    if (s->knows == COSTS_AND_WRONG_PRIOR)
        depth_prior(c, 0, s->text.first > 0.5 ? 0 : 128, 128);
}

static struct result simulate(const struct scenario *s, uint32_t seed)
{
    static const int max_depth[1] = {DEPTH_MAX};
    struct depth_ctl c;
    struct result r = {0, 0, 0, 0};
    double time = 0, plain = 0, late = 0, late_best = 0, second = 0, second_plain = 0;
    int tokens = 0;
    test_counter = seed * 100000;
    depth_init(&c, 1, max_depth, -1);
    know(&c, s);
    while (tokens < s->tokens) {
        bool is_second = s->switch_at && tokens >= s->switch_at;
        const struct text *text = is_second ? &s->later : &s->text;
        int available = DEPTH_MAX, kept = 0;
        struct depth_plan p = depth_choose(&c, &available, s->tokens - tokens - 1);
        double jitter = 1 + s->noise * (2 * frand() - 1) + (s->noise > 0 && frand() < 0.005 ? 3 : 0);
        // noise would hit plain decoding as well
        double took = verify_time(s->m, p.depth + 1) + p.depth * s->m->draft;
        for (double a = text->first; kept < p.depth && frand() < a; a *= text->fall)
            kept++;
        depth_report(&c, p, p.depth, kept, kept + 1, p.depth * s->m->draft * jitter,
                     verify_time(s->m, p.depth + 1) * jitter);
        time += took;
        plain += (kept + 1) * verify_time(s->m, 1);
        second += is_second ? took : 0;
        second_plain += is_second ? (kept + 1) * verify_time(s->m, 1) : 0;
        if (tokens >= 200) {
            late += took;
            late_best += fixed_tokens(text, p.depth) / best_rate(s->m, text);
        }
        tokens += kept + 1;
        if (tokens <= 64)
            r.early = time / plain;
    }
    r.vs_plain = time / plain;
    r.vs_best = late / late_best;
    r.second = second_plain > 0 ? second / second_plain : 0;
    return r;
}

/* Mean and worst over seeds. */
static void run(const struct scenario *s, struct result *mean, struct result *worst)
{
    enum { SEEDS = 30 };
    memset(mean, 0, sizeof *mean);
    memset(worst, 0, sizeof *worst);
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        struct result r = simulate(s, seed);
        mean->vs_plain += r.vs_plain / SEEDS;
        mean->vs_best += r.vs_best / SEEDS;
        mean->second += r.second / SEEDS;
        worst->vs_plain = fmax(worst->vs_plain, r.vs_plain);
        worst->vs_best = fmax(worst->vs_best, r.vs_best);
        worst->early = fmax(worst->early, r.early);
        worst->second = fmax(worst->second, r.second);
    }
}

static void test_stationary(void **state)
{
    static const struct text texts[] = {{0, 1}, {0.3, 1}, {0.6, 1}, {0.9, 1}, {0.92, 0.93}, {0.85, 0.5}};
    static const struct machine *const machines[] = {&cheap, &middle, &dear};
    (void)state;
    print_message("%-7s %-19s %9s %6s | time by plain: mean worst | late, by best fixed: mean worst |"
                  " first 64 worst\n", "machine", "known", "a", "noise");
    for (int m = 0; m < 3; m++)
        for (int k = 0; k < N_KNOWLEDGE; k++)
            for (int a = 0; a < 6; a++)
                for (int noisy = 0; noisy < 2; noisy++) {
                    struct scenario s = {machines[m], texts[a], {0, 0}, 0, 2000, (enum knowledge)k, noisy * 0.05};
                    struct result mean, worst;
                    run(&s, &mean, &worst);
                    print_message("%-7s %-19s %.2f*%.2f %6.2f |           %.3f %.3f |", s.m->name,
                                  knowledge_names[k], s.text.first, s.text.fall, s.noise, mean.vs_plain,
                                  worst.vs_plain);
                    print_message("                 %.3f %.3f | %.3f\n", mean.vs_best, worst.vs_best, worst.early);
                    assert_true(worst.vs_plain <= 1 / 0.98);
                    assert_true(mean.vs_best <= 1.03);
                    if (!noisy && k != COSTS_AND_WRONG_PRIOR)
                        assert_true(worst.vs_best <= 1.03);
                    assert_true(worst.early <= (k == COSTS_AND_WRONG_PRIOR ? 1.05 : 1.03));
                }
}

/* The text changes half-way: what was learned must not cost much, and what is new must be found. */
static void test_changes(void **state)
{
    static const struct text good = {0.9, 1}, bad = {0, 1};
    (void)state;
    for (int m = 0; m < 2; m++) {
        struct scenario s = {m ? &middle : &cheap, good, bad, 1000, 2000, COSTS, 0.05};
        struct result mean, worst;
        run(&s, &mean, &worst);
        print_message("%s: 0.9 then 0: second half %.3f, worst %.3f of plain\n", s.m->name, mean.second,
                      worst.second);
        assert_true(worst.second <= 1.03 && worst.vs_plain < 0.9);
        s.text = bad, s.later = good;
        run(&s, &mean, &worst);
        print_message("%s: 0 then 0.9: second half %.3f, worst %.3f of plain\n", s.m->name, mean.second,
                      worst.second);
        assert_true(worst.second <= 0.85);
    }
}

static bool is_plan(struct depth_plan p, int drafter, int depth)
{
    return p.drafter == drafter && p.depth == depth;
}

/* Nothing known: plain until the budget pays for a look. */
static void test_plain_until_budget(void **state)
{
    struct depth_ctl c;
    int max = 4, available = 4, first = 0;
    (void)state;
    depth_init(&c, 1, &max, -1);
    for (int t = 0; t < 400 && !first; t++) {
        struct depth_plan p = depth_choose(&c, &available, 1000);
        if (p.drafter >= 0)
            first = t;
        else
            depth_report(&c, p, 0, 0, 1, 0, 0.02);
    }
    assert_true(first >= 64 && first < 200);
    assert_true(depth_expect(&c, (struct depth_plan){-1, 0}) > 49);
    assert_true(depth_expect(&c, (struct depth_plan){0, 1}) == 0);
}

/* Known costs and a good prior: from the first round, not deeper than two at once. */
static void test_from_the_start(void **state)
{
    struct depth_ctl c;
    int max = 8, available = 8;
    (void)state;
    depth_init(&c, 1, &max, -1);
    depth_cost(&c, 1, 1.1, -1, 0, 0);
    depth_cost(&c, 2, 1.2, 0, 1, 0.06);
    depth_prior(&c, 0, 120, 128);
    assert_true(is_plan(depth_choose(&c, &available, 1000), 0, 2));
    available = 1;
    assert_true(is_plan(depth_choose(&c, &available, 1000), 0, 1));
    assert_true(is_plan(depth_choose(&c, &available, 0), -1, 0));
    available = 0;
    assert_true(is_plan(depth_choose(&c, &available, 1000), -1, 0));
    // interpolation: linear between and beyond the measured sizes
    assert_true(fabs(1 / depth_expect(&c, (struct depth_plan){-1, 0}) - 1.1) < 1e-9);
    struct depth_ctl d = c;
    memset(d.d[0].accept, 0, sizeof d.d[0].accept);
    for (int i = 0; i < 8; i++)
        d.d[0].weight[i] = 64;
    assert_true(fabs(1 / depth_expect(&d, (struct depth_plan){0, 3}) - (1.4 + 0.18)) < 1e-9);
}

static void test_fixed(void **state)
{
    struct depth_ctl c;
    int max[2] = {4, 24}, available[2] = {4, 0};
    (void)state;
    depth_init(&c, 2, max, 3);
    assert_true(is_plan(depth_choose(&c, available, 1000), 0, 3));
    assert_true(is_plan(depth_choose(&c, available, 2), 0, 2));
    assert_true(is_plan(depth_choose(&c, available, 0), -1, 0));
    available[0] = 0;
    assert_true(is_plan(depth_choose(&c, available, 9), -1, 0));
    available[1] = 10;
    assert_true(is_plan(depth_choose(&c, available, 9), 1, 3));
    depth_init(&c, 2, max, 0);
    assert_true(is_plan(depth_choose(&c, available, 9), -1, 0));
}

/* A head (drafter 0) and a copy drafter (1) that has a match in four rounds of ten. */
static double with_copy(double copy_accept, double head_accept, int *copied, int *longest,
                        struct depth_ctl *c)
{
    int max[2] = {4, 24}, tokens = 0;
    double time = 0;
    depth_init(c, 2, max, -1);
    for (int k = 1; k <= 25; k += 8)
        depth_cost(c, k, 1 + 0.1 * k, -1, 0, 0);
    depth_cost(c, 1, 1.1, 0, 1, 0.06);
    *copied = *longest = 0;
    for (int round = 0; tokens < 2000; round++) {
        int available[2] = {4, round % 10 < 4 ? 24 : 0}, kept = 0;
        struct depth_plan p = depth_choose(c, available, 1000);
        double a = p.drafter == 1 ? copy_accept : head_accept, draft = p.drafter == 0 ? 0.06 * p.depth : 0;
        while (kept < p.depth && frand() < a)
            kept++;
        depth_report(c, p, p.depth, kept, kept + 1, draft, 1 + 0.1 * (p.depth + 1));
        time += draft + 1 + 0.1 * (p.depth + 1);
        tokens += kept + 1;
        *copied += p.drafter == 1;
        *longest = p.drafter == 1 && p.depth > *longest ? p.depth : *longest;
    }
    return time / (tokens * 1.1);
}

static void test_copy_drafter(void **state)
{
    struct depth_ctl c;
    int copied, longest;
    (void)state;
    test_counter = 1;
    double t = with_copy(0.97, 0.6, &copied, &longest, &c);
    print_message("copy 0.97, head 0.6: %.3f of plain, %d copies, up to %d tokens\n", t, copied, longest);
    assert_true(t < 0.5 && copied > 50 && longest > 12);
    t = with_copy(0.1, 0.6, &copied, &longest, &c);
    print_message("copy 0.1, head 0.6: %.3f of plain, %d copies, up to %d tokens\n", t, copied, longest);
    assert_true(t < 0.72 && longest <= 8);
    t = with_copy(0.1, 0, &copied, &longest, &c);
    print_message("copy 0.1, head 0: %.3f of plain, %d copies\n", t, copied);
    assert_true(t < 1 / 0.98);
    // resting: not chosen though it would beat plain decoding by its estimate
    int max[1] = {24}, available = 24;
    depth_init(&c, 1, max, -1);
    depth_cost(&c, 1, 1, -1, 0, 0);
    depth_cost(&c, 25, 1.01, -1, 0, 0);
    for (int i = 0; i < 30; i++)
        depth_report(&c, (struct depth_plan){0, 4}, 4, i % 4 == 0, 1 + (i % 4 == 0), 0, 1);
    assert_true(is_plan(depth_choose(&c, &available, 1000), -1, 0));
}

/* All costs grow by half while the context grows: still never slower, and plain decoding is measured
 * again. */
static void test_growing_context(void **state)
{
    static const double accepts[] = {0, 0.15, 0.3, 0.6};
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct depth_ctl c;
        int max = 4, available = 4, tokens = 0;
        double time = 0, plain = 0;
        test_counter = 9;
        depth_init(&c, 1, &max, -1);
        for (int k = 1; k <= 4; k++)
            depth_cost(&c, k, 1 + 0.1 * k, 0, 1, 0.06);
        while (tokens < 4000) {
            double scale = 1 + tokens / 8000.0;
            int kept = 0;
            struct depth_plan p = depth_choose(&c, &available, 1000);
            while (kept < p.depth && frand() < accepts[i])
                kept++;
            double verify = (1 + 0.1 * (p.depth + 1)) * scale, draft = 0.06 * p.depth * scale;
            depth_report(&c, p, p.depth, kept, kept + 1, draft, verify);
            time += verify + draft;
            plain += 1.1 * scale * (kept + 1);
            tokens += kept + 1;
        }
        print_message("growing context, acceptance %.2f: %.3f of plain\n", accepts[i], time / plain);
        assert_true(time / plain <= 1 / 0.98);
        assert_true(c.t_verify[1].s > 1.4);
    }
}

/* The same calls give the same plans. */
static void test_pure(void **state)
{
    struct depth_ctl a, b;
    int max = 8, available = 8;
    (void)state;
    memset(&a, 0xAA, sizeof a);
    memset(&b, 0x55, sizeof b);
    depth_init(&a, 1, &max, -1);
    depth_init(&b, 1, &max, -1);
    test_counter = 3;
    for (int i = 0; i < 2000; i++) {
        struct depth_plan p = depth_choose(&a, &available, 100), q = depth_choose(&b, &available, 100);
        double verify = 1 + frand(), draft = 0.1 * p.depth;
        int kept = 0;
        assert_true(p.drafter == q.drafter && p.depth == q.depth);
        while (kept < p.depth && frand() < 0.7)
            kept++;
        depth_report(&a, p, p.depth, kept, kept + 1, draft, verify);
        depth_report(&b, q, q.depth, kept, kept + 1, draft, verify);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stationary),     cmocka_unit_test(test_changes),
        cmocka_unit_test(test_plain_until_budget), cmocka_unit_test(test_from_the_start),
        cmocka_unit_test(test_fixed),          cmocka_unit_test(test_copy_drafter),
        cmocka_unit_test(test_growing_context), cmocka_unit_test(test_pure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
