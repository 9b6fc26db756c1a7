/* The steps of verify, see verify.h. */
#include "measure/verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "measure/stats.h"

enum { T_WEIGHTS, T_PURITY, T_IDENTITY, T_LAW, T_AB, T_RATES };
enum { RATE_REPEATS = 3, PURITY_TEXT_MAX = 64 << 10 };
static const double ALPHA = 1e-3; // what a p-value must exceed

const char *const verify_settings[3] = {"greedy", "temperature 0.7", "temperature 1.0"};

struct verifier {
    struct engine *g;
    const struct instance *in;
    const struct verify_options *o;
    struct verify_report *r;
    struct err *e;
    const char *step; // for progress
    int64_t deadline; // of the schedules: a guard, far behind what they are meant to take
};

static double seconds_since(int64_t t0) { return (double)(clock_ns() - t0) * 1e-9; }
static double clamp(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

static bool tell(void *ud, double done)
{
    struct verifier *v = ud;
    return !v->o->progress || v->o->progress(v->o->ud, v->step, done);
}

static bool tell_schedule(void *ud, double done)
{
    struct verifier *v = ud;
    return clock_ns() < v->deadline && tell(v, done);
}

static int begin(struct verifier *v, const char *step)
{
    v->step = step;
    return tell(v, 0) ? 0 : err_set(v->e, ERR_CANCEL, "interrupted");
}

static void fail(struct verifier *v, bool holds)
{
    if (!holds && !v->r->failed)
        v->r->failed = v->step;
}

/* ---- weights, speed ---------------------------------------------------------------------------------------------------- */

static struct gen_request plain_request(const struct text_prompt *p, int tokens)
{
    struct gen_request r = {.prompt = p->ids, .n_prompt = p->n, .sampling = sampling_neutral(), .has_seed = true, .max_tokens = tokens,
                            .ignore_eos = true, .use_mtp = true, .use_copy = true};
    r.sampling.temperature = 0;
    return r;
}

static double rate_of(const struct gen_stats *st)
{
    return st->last_ns > st->first_ns ? (double)(st->emitted - 1) * 1e9 / (double)(st->last_ns - st->first_ns) : 0;
}

static int weights(struct verifier *v)
{
    struct err why = {0};
    int64_t t0 = clock_ns();
    if (begin(v, "weights"))
        return ERR_CANCEL;
    v->r->finite = weights_check_finite(v->in->m->pkg->weights, &why) == 0;
    memcpy(v->r->not_finite, why.msg, sizeof v->r->not_finite);
    fail(v, v->r->finite);
    v->r->seconds[T_WEIGHTS] = seconds_since(t0);
    return 0;
}

static int speed(struct verifier *v)
{
    struct gen *q;
    struct gen_request r = plain_request(&v->o->prompts[0], 9);
    int rc = gen_new(&q, v->g, v->in, v->e);
    if (rc)
        return rc;
    if (!(rc = gen_run(q, &r, NULL, NULL, NULL, v->e))) {
        double rate = rate_of(gen_stats(q));
        v->r->step_s = rate > 0 ? 1 / rate : 1;
    }
    gen_free(q);
    return rc;
}

/* ---- purity ------------------------------------------------------------------------------------------------------------ */

static void say(void *ud, const char *text)
{
    struct verifier *v = ud;
    buf_str(&v->r->purity_text, text);
}

/* A third of the time: the reference decodes each text from its beginning, a token at a time and with the head. */
static int purity(struct verifier *v)
{
    struct schedule_options *s = &v->r->purity_options;
    int64_t t0 = clock_ns();
    double steps = v->o->seconds / 3 / v->r->step_s;
    *s = (struct schedule_options){.model = v->o->model, .seed = v->o->seed, .threads = v->o->threads, .isa = v->o->isa, .say = say,
                                   .progress = tell_schedule, .ud = v};
    s->branches = steps > 20000 ? 9 : steps > 4000 ? 4 : 1;
    s->max_tokens = (int)clamp(steps / 4 / (1 + 0.6 * s->branches), 24, 1200);
    s->rows = v->o->rows ? v->o->rows : (int64_t)clamp(steps / 3, 60, 100000);
    v->deadline = t0 + (int64_t)(v->o->rows ? 1e17 : (v->o->seconds + 60) * 2e9);
    if (begin(v, "purity"))
        return ERR_CANCEL;
    int rc = schedule_run(s, &v->r->purity);
    v->r->seconds[T_PURITY] = seconds_since(t0);
    bool is_late = rc == ERR_CANCEL && clock_ns() >= v->deadline;
    if (rc == ERR_CANCEL && !is_late)
        return err_set(v->e, ERR_CANCEL, "interrupted");
    if (is_late)
        buf_str(&v->r->purity_text, "stopped early: the machine is much slower than it was at the beginning\n");
    v->r->is_pure = rc == 0 || is_late;
    fail(v, v->r->is_pure);
    return 0;
}

/* ---- identity ------------------------------------------------------------------------------------------------------------ */

static int identity(struct verifier *v)
{
    struct identity_setting settings[3];
    struct identity_options o = {.prompts = v->o->prompts, .settings = settings, .n_settings = 3, .slots = VERIFY_SLOTS, .seed = v->o->seed,
                                 .progress = tell, .ud = v};
    int64_t t0 = clock_ns();
    static const double temperature[3] = {0, 0.7, 1.0};
    double tokens = v->o->seconds / 3 / v->r->step_s / (3 * 12 * 0.9); // 12 ways under 3 settings
    for (int i = 0; i < 3; i++) {
        settings[i] = (struct identity_setting){verify_settings[i], sampling_neutral(), 0};
        settings[i].sampling.temperature = temperature[i];
    }
    o.quick = tokens < 4 * 24;
    if (o.quick)
        tokens *= 12.0 / 4;
    o.n_prompts = tokens > 8 * 64 ? 8 : 4;
    o.n_prompts = o.n_prompts < v->o->n_prompts ? o.n_prompts : v->o->n_prompts;
    o.tokens = (int)clamp(tokens / o.n_prompts, 12, 128);
    v->r->identity_tokens = o.tokens;
    v->r->identity_prompts = o.n_prompts;
    v->r->identity_quick = o.quick;
    if (begin(v, "identity"))
        return ERR_CANCEL;
    int rc = identity_run(v->g, v->in, &o, &v->r->identity, v->e);
    int64_t differing = 0;
    for (int k = 0; k < KINDS; k++)
        differing += v->r->identity.differing[k];
    v->r->is_identical = !rc && !differing;
    v->r->seconds[T_IDENTITY] = seconds_since(t0);
    if (!rc)
        fail(v, v->r->is_identical);
    return rc;
}

/* ---- law ------------------------------------------------------------------------------------------------------------------- */

static int law(struct verifier *v)
{
    double step = v->r->step_s;
    bool is_quick = v->o->seconds < 60;
    struct law_options o = {.prompts = v->o->prompts, .n_prompts = v->o->n_prompts < 4 ? v->o->n_prompts : 4, .seed = v->o->seed,
                            .progress = tell, .ud = v};
    int64_t t0 = clock_ns();
    o.top_k = step < 0.004 && !is_quick ? 6 : step < 0.02 ? 4 : step < 0.1 ? 3 : 2;
    o.draws = is_quick ? 10000 : 50000;
    v->r->law_draws = o.draws;
    v->r->law_top_k = o.top_k;
    if (begin(v, "law"))
        return ERR_CANCEL;
    int rc = law_run(v->g, v->in, &o, &v->r->law, v->e);
    v->r->is_lawful = !rc && v->r->law.worst > ALPHA;
    v->r->law_has_power = !rc && v->r->law.planted_best < ALPHA;
    v->r->seconds[T_LAW] = seconds_since(t0);
    if (!rc)
        fail(v, v->r->is_lawful);
    return rc;
}

/* ---- ab ---------------------------------------------------------------------------------------------------------------------- */

struct arm {
    int64_t *count[AB_TOKENS]; // by token id
    int64_t rounds, emitted;
};

/* Continuations with a seed each; prompts take turns, the same in both arms. */
static int run_arm(struct verifier *v, struct gen **q, int depth, uint64_t seed, struct arm *arm, double from)
{
    for (int done = 0; done < AB_CONTINUATIONS; done += VERIFY_SLOTS) {
        struct gen *active[VERIFY_SLOTS];
        int n = AB_CONTINUATIONS - done < VERIFY_SLOTS ? AB_CONTINUATIONS - done : VERIFY_SLOTS, n_active = n;
        for (int i = 0; i < n; i++) {
            struct gen_request r = plain_request(&v->o->prompts[(done + i) % v->o->n_prompts], AB_TOKENS);
            r.sampling.temperature = 1;
            r.acceptance = ACCEPT_EXACT;
            r.depth = depth;
            r.seed = seed + (uint64_t)(done + i);
            int rc = gen_start(q[i], &r, NULL, NULL, v->e);
            if (rc || (rc = gen_prefill(q[i], 0, NULL, v->e)))
                return rc;
            active[i] = q[i];
        }
        while (n_active) {
            int rc = gen_round(active, n_active, v->e);
            if (rc)
                return rc;
            for (int i = 0; i < n_active;)
                if (gen_stop_reason(active[i]))
                    active[i] = active[--n_active];
                else
                    i++;
        }
        for (int i = 0; i < n; i++) {
            int m;
            const int32_t *ids = gen_output(q[i], &m);
            for (int k = 0; k < m && k < AB_TOKENS; k++)
                arm->count[k][ids[k]]++;
            arm->rounds += gen_stats(q[i])->rounds;
            arm->emitted += m - 1;
        }
        if (!tell(v, from + 0.5 * (done + n) / AB_CONTINUATIONS))
            return err_set(v->e, ERR_CANCEL, "interrupted");
    }
    return 0;
}

static void compare_arms(const struct arm *a, const struct arm *b, int n_vocab, struct verify_ab *r)
{
    double p[AB_TOKENS];
    r->least = 1;
    for (int k = 0; k < AB_TOKENS; k++) {
        struct gtest t = stats_gtest2(a->count[k], b->count[k], n_vocab, 10);
        r->cells[k] = t.cells;
        p[k] = t.p;
        for (int i = 0; i < n_vocab; i++) {
            double x = (double)a->count[k][i] / AB_CONTINUATIONS, y = (double)b->count[k][i] / AB_CONTINUATIONS, m = (x + y) / 2;
            r->distance[k] += fabs(x - y) / 2;
            r->noise[k] += 0.5 * 0.7978845608028654 * sqrt(2 * m * (1 - m) / AB_CONTINUATIONS);
        }
    }
    stats_holm(p, AB_TOKENS);
    for (int k = 0; k < AB_TOKENS; k++) {
        r->p[k] = p[k];
        r->least = p[k] < r->least ? p[k] : r->least;
    }
    r->rate_ratio = b->rounds ? (double)b->emitted / (double)b->rounds : 1;
}

static int ab(struct verifier *v)
{
    struct gen *q[VERIFY_SLOTS] = {0};
    struct arm arm[2] = {0};
    size_t V = (size_t)v->in->m->n_vocab;
    int64_t t0 = clock_ns();
    int rc = begin(v, "ab");
    for (int i = 0; i < VERIFY_SLOTS && !rc; i++)
        rc = gen_new(&q[i], v->g, v->in, v->e);
    for (int k = 0; k < 2 * AB_TOKENS; k++)
        arm[k % 2].count[k / 2] = xcalloc(V, sizeof(int64_t));
    if (!rc)
        rc = run_arm(v, q, 0, v->o->seed + (1u << 20), &arm[0], 0);
    if (!rc)
        rc = run_arm(v, q, 3, v->o->seed + (2u << 20), &arm[1], 0.5);
    if (!rc) {
        compare_arms(&arm[0], &arm[1], (int)V, &v->r->ab);
        v->r->ab_done = true;
        v->r->ab_holds = v->r->ab.least > ALPHA;
        fail(v, v->r->ab_holds);
    }
    for (int k = 0; k < 2 * AB_TOKENS; k++)
        free(arm[k % 2].count[k / 2]);
    for (int i = 0; i < VERIFY_SLOTS; i++)
        gen_free(q[i]);
    v->r->seconds[T_AB] = seconds_since(t0);
    return rc;
}

/* ---- rates --------------------------------------------------------------------------------------------------------------------- */

static double median3(double *x)
{
    double low = x[0] < x[1] ? x[0] : x[1], high = x[0] < x[1] ? x[1] : x[0];
    return x[2] < low ? low : x[2] > high ? high : x[2];
}

/* One prompt of each kind, plain and auto in turn. */
static int rates(struct verifier *v)
{
    struct gen *q;
    bool seen[KINDS] = {0};
    int64_t t0 = clock_ns();
    int rc = begin(v, "rates"), tokens = (int)clamp(v->o->seconds / 8 / v->r->step_s / (KINDS * 2 * RATE_REPEATS), 16, 128);
    v->r->rate_tokens = tokens;
    if (rc || (rc = gen_new(&q, v->g, v->in, v->e)))
        return rc;
    for (int i = 0; i < v->o->n_prompts && !rc; i++) {
        const struct text_prompt *p = &v->o->prompts[i];
        double x[2][RATE_REPEATS];
        if (seen[p->kind])
            continue;
        seen[p->kind] = true;
        for (int k = 0; k < 2 * RATE_REPEATS && !rc; k++) {
            struct gen_request r = plain_request(p, tokens);
            r.depth = k % 2 ? -1 : 0;
            rc = gen_run(q, &r, NULL, NULL, NULL, v->e);
            x[k % 2][k / 2] = rate_of(gen_stats(q));
        }
        if (rc)
            break;
        v->r->plain_rate[p->kind] = median3(x[0]);
        v->r->auto_rate[p->kind] = median3(x[1]);
        if (!tell(v, (i + 1.0) / KINDS))
            rc = err_set(v->e, ERR_CANCEL, "interrupted");
    }
    gen_free(q);
    v->r->seconds[T_RATES] = seconds_since(t0);
    return rc;
}

int verify_run(struct engine *g, const struct instance *in, const struct verify_options *o, struct verify_report *r, struct err *e)
{
    struct verifier v = {.g = g, .in = in, .o = o, .r = r, .e = e};
    *r = (struct verify_report){0};
    buf_init(&r->purity_text, PURITY_TEXT_MAX);
    if (o->n_prompts < 1)
        return err_set(e, ERR_ARG, "no prompts to verify with");
    int rc = weights(&v);
    if (rc || !r->finite) // nothing else can be said about such a model
        return rc;
    rc = speed(&v);
    if (!rc)
        rc = purity(&v);
    if (!rc)
        rc = identity(&v);
    if (!rc)
        rc = law(&v);
    if (!rc && o->ab)
        rc = ab(&v);
    return rc ? rc : rates(&v);
}

void verify_free(struct verify_report *r) { buf_free(&r->purity_text); }

/* ---- the report ---------------------------------------------------------------------------------------------------------------- */

static const char *verdict(bool holds) { return holds ? "holds " : "FAILS "; }

static void text_identity(const struct verify_report *r, struct buf *out)
{
    const struct identity_result *d = &r->identity;
    int64_t answers = 0, tokens = 0, differing = 0;
    for (int k = 0; k < KINDS; k++) {
        answers += d->answers[k];
        tokens += d->tokens[k];
        differing += d->differing[k];
    }
    buf_fmt(out, "identity %s greedy, temperature 0.7 and 1.0 seeded; depths %s and auto; mtp, copy, both, in company of others: "
                 "%lld answers of up to %d tokens to %d prompts, %lld tokens, %lld differing from plain decoding (%.0f s)\n",
            verdict(r->is_identical), r->identity_quick ? "1, 3" : "0 to 4", (long long)answers, r->identity_tokens, r->identity_prompts,
            (long long)tokens, (long long)differing, r->seconds[T_IDENTITY]);
    if (d->first[0])
        buf_fmt(out, "         first: %s\n", d->first);
}

static void text_law(const struct verify_report *r, struct buf *out)
{
    const struct law_result *l = &r->law;
    buf_fmt(out, "law      %s exact acceptance at depths 1 to 3 and seeded draws on %d real rows (top-k %d, temperature 0.7 and 1.0): "
                 "%d G-tests of %lld draws, smallest p after Holm %.3g (above 0.001 holds); a planted wrong rule is %s (p = %.3g, %.0f s)\n",
            verdict(r->is_lawful), l->rows, r->law_top_k, l->n_tests, (long long)r->law_draws, l->worst,
            r->law_has_power ? "seen" : "NOT seen, so this proves little here", l->planted_best, r->seconds[T_LAW]);
    for (int i = 0; i < l->n_tests; i++) {
        const struct law_test *t = &l->test[i];
        if (!(t->p > ALPHA))
            buf_fmt(out, "         %s, depth %d, temperature %g, prompt %d: G %.1f over %d cells, p %.3g\n", t->rule, t->depth,
                    t->temperature, t->prompt, t->g, t->cells, t->p);
    }
}

static void text_kinds(const struct verify_report *r, struct buf *out)
{
    buf_str(out, "\nkind   acceptance at depth 3, greedy   tokens/round   plain tok/s   auto tok/s   ratio\n");
    for (int k = 0; k < KINDS; k++) {
        struct buf b;
        buf_init(&b, 1024);
        counts_acceptance(&r->identity.counts[0][k], &b, " ");
        buf_fmt(out, "%-6s %-32s %-14.3f %-13.1f %-12.1f %.2f\n", kind_names[k], b.n ? buf_cstr(&b) : "no drafts",
                counts_tokens_per_round(&r->identity.counts[0][k]), r->plain_rate[k], r->auto_rate[k],
                r->plain_rate[k] > 0 ? r->auto_rate[k] / r->plain_rate[k] : 0);
        buf_free(&b);
    }
    buf_fmt(out, "(rates: medians of %d alternating runs of %d tokens; a busy machine blurs them)\n", RATE_REPEATS, r->rate_tokens);
}

void verify_text(const struct verify_report *r, struct buf *out)
{
    buf_fmt(out, "weights  %s%s\n", verdict(r->finite), r->finite ? "every stored number is finite" : r->not_finite);
    if (!r->finite)
        return;
    const struct schedule_result *s = &r->purity;
    buf_fmt(out, "purity   %s %lld rows of logits (%lld trunk, %lld head, %lld recursive drafts), %lld hidden rows and %lld recurrent "
                 "states under random schedules, %d differing; texts of up to %d tokens, %lld forks, %lld restores, seed %llu (%.0f s)\n",
            verdict(r->is_pure), (long long)(s->trunk + s->mtp + s->drafts), (long long)s->trunk, (long long)s->mtp, (long long)s->drafts,
            (long long)s->hidden, (long long)s->states, !r->is_pure, r->purity_options.max_tokens, (long long)s->forks,
            (long long)s->restores,
            (unsigned long long)r->purity_options.seed, r->seconds[T_PURITY]);
    if (r->purity_text.n)
        buf_add(out, r->purity_text.p, r->purity_text.n);
    text_identity(r, out);
    text_law(r, out);
    if (r->ab_done) {
        buf_fmt(out, "ab       %s %d x %d tokens, plain and with exact acceptance at depth 3 (%.2f tokens per round), temperature 1.0:",
                verdict(r->ab_holds), AB_CONTINUATIONS, AB_TOKENS, r->ab.rate_ratio);
        for (int k = 0; k < AB_TOKENS; k++)
            buf_fmt(out, "%s token %d p %.3g, distance %.3f (%.3f by chance)", k ? ";" : "", k + 1, r->ab.p[k], r->ab.distance[k],
                    r->ab.noise[k]);
        buf_fmt(out, " (%.0f s)\n", r->seconds[T_AB]);
    }
    text_kinds(r, out);
}

void verify_json(const struct verify_report *r, struct buf *out)
{
    const struct schedule_result *s = &r->purity;
    const struct law_result *l = &r->law;
    buf_fmt(out, "\"holds\": %s, \"failed\": ", r->failed ? "false" : "true");
    if (r->failed)
        json_write_str(out, r->failed, strlen(r->failed));
    else
        buf_str(out, "null");
    buf_fmt(out, ", \"weights\": {\"finite\": %s, \"why\": ", r->finite ? "true" : "false");
    json_write_str(out, r->not_finite, strlen(r->not_finite));
    buf_fmt(out, "}, \"purity\": {\"holds\": %s, \"seed\": %llu, \"trunk_rows\": %lld, \"head_rows\": %lld, \"draft_rows\": %lld, "
                 "\"hidden_rows\": %lld, \"states\": %lld, \"forks\": %lld, \"restores\": %lld, \"seconds\": %.3f, \"text\": ",
            r->is_pure ? "true" : "false", (unsigned long long)r->purity_options.seed, (long long)s->trunk, (long long)s->mtp,
            (long long)s->drafts, (long long)s->hidden, (long long)s->states, (long long)s->forks, (long long)s->restores,
            r->seconds[T_PURITY]);
    json_write_str(out, buf_cstr(&r->purity_text), r->purity_text.n);
    buf_fmt(out, "}, \"identity\": {\"holds\": %s, \"tokens_each\": %d, \"seconds\": %.3f, \"first\": ", r->is_identical ? "true" : "false",
            r->identity_tokens, r->seconds[T_IDENTITY]);
    json_write_str(out, r->identity.first, strlen(r->identity.first));
    buf_fmt(out, "}, \"law\": {\"holds\": %s, \"tests\": %d, \"draws\": %lld, \"rows\": %d, \"top_k\": %d, \"smallest_p\": %.6g, "
                 "\"planted_p\": %.6g, \"planted_seen\": %s, \"seconds\": %.3f}",
            r->is_lawful ? "true" : "false", l->n_tests, (long long)r->law_draws, l->rows, r->law_top_k, l->worst, l->planted_best,
            r->law_has_power ? "true" : "false", r->seconds[T_LAW]);
    if (r->ab_done) {
        buf_fmt(out, ", \"ab\": {\"holds\": %s, \"p\": [", r->ab_holds ? "true" : "false");
        for (int k = 0; k < AB_TOKENS; k++)
            buf_fmt(out, "%s%.6g", k ? ", " : "", r->ab.p[k]);
        buf_str(out, "], \"distance\": [");
        for (int k = 0; k < AB_TOKENS; k++)
            buf_fmt(out, "%s%.6f", k ? ", " : "", r->ab.distance[k]);
        buf_fmt(out, "], \"seconds\": %.3f}", r->seconds[T_AB]);
    }
    buf_str(out, ", \"kinds\": {");
    for (int k = 0; k < KINDS; k++) {
        buf_fmt(out, "%s\"%s\": {\"answers\": %lld, \"differing\": %lld, \"acceptance\": [", k ? ", " : "", kind_names[k],
                (long long)r->identity.answers[k], (long long)r->identity.differing[k]);
        counts_acceptance(&r->identity.counts[0][k], out, ", ");
        buf_fmt(out, "], \"tokens_per_round\": %.4f, \"plain_tok_s\": %.3f, \"auto_tok_s\": %.3f}",
                counts_tokens_per_round(&r->identity.counts[0][k]), r->plain_rate[k], r->auto_rate[k]);
    }
    buf_str(out, "}");
}
