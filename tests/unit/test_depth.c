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
        double took = verify_time(s->m, p.depth + 1) + p.depth * s->m->draft; // noise would hit plain decoding as well
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
    print_message("%-7s %-19s %5s %6s | time by plain: mean worst | late, by best fixed: mean worst | first 64 worst\n",
                  "machine", "known", "a", "noise");
    for (int m = 0; m < 3; m++)
        for (int k = 0; k < N_KNOWLEDGE; k++)
            for (int a = 0; a < 6; a++)
                for (int noisy = 0; noisy < 2; noisy++) {
                    struct scenario s = {machines[m], texts[a], {0, 0}, 0, 2000, (enum knowledge)k, noisy ? 0.05 : 0};
                    struct result mean, worst;
                    run(&s, &mean, &worst);
                    print_message("%-7s %-19s %5.1f %6.2f |           %.3f %.3f |                 %.3f %.3f | %.3f\n",
                                  s.m->name, knowledge_names[k], s.text.first, s.noise, mean.vs_plain, worst.vs_plain,
                                  mean.vs_best, worst.vs_best, worst.early);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stationary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
