/* Each slot holds one answer in progress. It takes a prompt, decodes it plainly and alone under every setting, then
 * works through the ways of drafting, whose order is rotated by the prompt's number: so the answers that share a
 * step draft by different drafters to different depths. */
#include "measure/identity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

const char *const kind_names[KINDS] = {"code", "json", "en", "zh"};

/* Both drafters at a fixed depth are the head alone, since it always has something to propose. */
struct way {
    int depth; // -1: auto
    bool mtp, copy, in_quick;
};
static const struct way ways[] = {
    {0, false, false, false}, {1, true, false, true},   {2, true, false, false}, {3, true, false, true}, {4, true, false, false},
    {-1, true, false, false}, {1, false, true, false},  {2, false, true, false}, {3, false, true, true}, {4, false, true, false},
    {-1, false, true, false}, {-1, true, true, true},
};
enum { N_WAYS = sizeof ways / sizeof *ways, COUNTED_WAY = 3 };

struct answer {
    int32_t *ids;
    int n;
    uint64_t hash;
    enum stop_reason why;
};

struct slot {
    struct gen *q;
    int prompt;  // -1: idle
    int setting; // of the answer in progress
    int way, n_ways_done;
    struct answer plain[IDENTITY_SETTINGS_MAX];
};

struct run_state {
    struct engine *g;
    const struct identity_options *o;
    struct identity_result *r;
    struct slot *slots;
    int n_slots, next_prompt, n_finished;
};

static bool applies(const struct identity_options *o, int setting, int prompt)
{
    return o->settings[setting].every < 2 || prompt % o->settings[setting].every == 0;
}

static bool way_applies(const struct run_state *s, int way)
{
    return (!s->o->quick || ways[way].in_quick) && (!ways[way].mtp || ways[way].copy || engine_has_mtp(s->g));
}

static struct gen_request request_of(const struct run_state *s, int prompt, int setting, const struct way *w)
{
    const struct text_prompt *p = &s->o->prompts[prompt];
    return (struct gen_request){.prompt = p->ids, .n_prompt = p->n, .sampling = s->o->settings[setting].sampling,
                                .acceptance = ACCEPT_SEEDED, .has_seed = true, .seed = s->o->seed + (uint64_t)prompt,
                                .max_tokens = s->o->tokens, .ignore_eos = !p->ends, .depth = w->depth, .use_mtp = w->mtp,
                                .use_copy = w->copy, .want_hash = true};
}

static void keep(struct answer *a, const struct gen *q, int tokens)
{
    const int32_t *ids = gen_output(q, &a->n);
    if (!a->ids)
        a->ids = xcalloc((size_t)tokens + 1, sizeof *a->ids);
    memcpy(a->ids, ids, (size_t)a->n * sizeof *ids);
    a->hash = gen_logits_hash(q);
    a->why = gen_stop_reason(q);
}

/* Plain answers of the slot's prompt, from a cold start and without company. */
static int plain_answers(struct run_state *s, struct slot *t, struct err *e)
{
    static const struct way plain = {.depth = 0};
    int rc = 0;
    for (int i = 0; i < s->o->n_settings && !rc; i++) {
        if (!applies(s->o, i, t->prompt))
            continue;
        struct gen_request r = request_of(s, t->prompt, i, &plain);
        gen_forget(t->q);
        rc = gen_run(t->q, &r, NULL, NULL, NULL, e);
        if (!rc)
            keep(&t->plain[i], t->q, s->o->tokens);
    }
    return rc;
}

static void describe(struct run_state *s, const struct slot *t, int at, bool same_ids)
{
    const struct way *w = &ways[t->way];
    char depth[16], where[64];
    snprintf(depth, sizeof depth, w->depth < 0 ? "auto" : "%d", w->depth);
    snprintf(where, sizeof where, same_ids ? "the same tokens, other logits" : "they part at token %d", at);
    snprintf(s->r->first, sizeof s->r->first,
             "prompt %d (%s, %d tokens), %s, seed %llu: depth %s with %s%s%s drafts against plain: %s", t->prompt,
             kind_names[s->o->prompts[t->prompt].kind], s->o->prompts[t->prompt].n, s->o->settings[t->setting].name,
             (unsigned long long)(s->o->seed + (uint64_t)t->prompt), depth, w->mtp ? "mtp" : "", w->mtp && w->copy ? "+" : "",
             w->copy ? "copy" : w->mtp ? "" : "no", where);
}

static void compare(struct run_state *s, struct slot *t)
{
    int n, same = 0, kind = s->o->prompts[t->prompt].kind;
    const int32_t *ids = gen_output(t->q, &n);
    const struct answer *want = &t->plain[t->setting];
    while (same < n && same < want->n && ids[same] == want->ids[same])
        same++;
    bool same_ids = same == n && n == want->n;
    s->r->answers[kind]++;
    s->r->tokens[kind] += n;
    if (!same_ids || gen_logits_hash(t->q) != want->hash || gen_stop_reason(t->q) != want->why) {
        if (!s->r->first[0])
            describe(s, t, same, same_ids);
        s->r->differing[kind]++;
    }
    const struct gen_stats *st = gen_stats(t->q);
    s->r->copied += st->kept_from[DRAFTER_COPY];
    if (t->way != COUNTED_WAY)
        return;
    struct identity_counts *c = &s->r->counts[t->setting][kind];
    c->rounds += st->rounds;
    c->emitted += st->emitted - 1; // the first token needs no round
    for (int i = 0; i < DEPTH_MAX; i++) {
        c->proposed[i] += st->proposed[i];
        c->accepted[i] += st->accepted[i];
    }
}

/* The next setting or way of the slot's prompt, or the next prompt. */
static int advance(struct run_state *s, struct slot *t, struct err *e)
{
    for (;;) {
        if (t->prompt >= 0 && ++t->setting == s->o->n_settings) {
            t->setting = 0;
            t->way = (t->way + 1) % N_WAYS;
            if (++t->n_ways_done == N_WAYS) {
                t->prompt = -1;
                s->n_finished++;
            }
        }
        if (t->prompt < 0) {
            if (s->next_prompt == s->o->n_prompts)
                return 0;
            t->prompt = s->next_prompt++;
            t->setting = 0;
            t->n_ways_done = 0;
            t->way = t->prompt * 5 % N_WAYS;
            int rc = plain_answers(s, t, e);
            if (rc)
                return rc;
        }
        if (!applies(s->o, t->setting, t->prompt) || !way_applies(s, t->way))
            continue;
        struct gen_request r = request_of(s, t->prompt, t->setting, &ways[t->way]);
        int rc = gen_start(t->q, &r, NULL, NULL, e);
        if (!rc)
            rc = gen_prefill(t->q, 0, NULL, e);
        if (rc || !gen_stop_reason(t->q))
            return rc;
        compare(s, t); // over with its first token
    }
}

static int run_all(struct run_state *s, struct err *e)
{
    struct gen **active = xcalloc((size_t)s->n_slots, sizeof *active);
    int rc = 0;
    for (int i = 0; i < s->n_slots && !rc; i++)
        rc = advance(s, &s->slots[i], e);
    while (!rc) {
        int n = 0, told = -1;
        for (int i = 0; i < s->n_slots; i++)
            if (s->slots[i].prompt >= 0)
                active[n++] = s->slots[i].q;
        if (!n)
            break;
        rc = gen_round(active, n, e);
        for (int i = 0; i < s->n_slots && !rc; i++) {
            struct slot *t = &s->slots[i];
            if (t->prompt < 0 || !gen_stop_reason(t->q))
                continue;
            compare(s, t);
            rc = advance(s, t, e);
            told = i;
        }
        if (rc || told < 0 || !s->o->progress)
            continue;
        double done = s->n_finished;
        for (int i = 0; i < s->n_slots; i++)
            done += s->slots[i].prompt >= 0 ? (double)s->slots[i].n_ways_done / N_WAYS : 0;
        if (!s->o->progress(s->o->ud, done / s->o->n_prompts))
            rc = err_set(e, ERR_CANCEL, "interrupted");
    }
    free(active);
    return rc;
}

void identity_needs(const struct identity_options *o, int *n_ctx, int *n_seqs)
{
    int longest = 0;
    for (int i = 0; i < o->n_prompts; i++)
        longest = o->prompts[i].n > longest ? o->prompts[i].n : longest;
    *n_seqs = 2 * o->slots; // an answer, and what it keeps of its prompt
    *n_ctx = *n_seqs * (longest + o->tokens + COPY_MAX + 2 * PAGE_TOKENS);
}

int identity_run(struct engine *g, const struct instance *in, const struct identity_options *o, struct identity_result *r, struct err *e)
{
    struct run_state s = {.g = g, .o = o, .r = r, .n_slots = o->slots < o->n_prompts ? o->slots : o->n_prompts};
    int rc = 0;
    *r = (struct identity_result){0};
    if (o->n_settings > IDENTITY_SETTINGS_MAX || o->slots < 1 || o->tokens < 1)
        return err_set(e, ERR_ARG, "identity: at most %d settings, at least one slot and one token", IDENTITY_SETTINGS_MAX);
    for (int i = 0; i < o->n_prompts; i++)
        r->prompts[o->prompts[i].kind]++;
    s.slots = xcalloc((size_t)s.n_slots + 1, sizeof *s.slots);
    for (int i = 0; i < s.n_slots; i++)
        s.slots[i].prompt = -1;
    for (int i = 0; i < s.n_slots && !rc; i++)
        rc = gen_new(&s.slots[i].q, g, in, e);
    if (!rc)
        rc = run_all(&s, e);
    for (int i = 0; i < s.n_slots; i++) {
        gen_free(s.slots[i].q);
        for (int k = 0; k < IDENTITY_SETTINGS_MAX; k++)
            free(s.slots[i].plain[k].ids);
    }
    free(s.slots);
    return rc;
}

void identity_add(struct identity_result *a, const struct identity_result *b)
{
    for (int k = 0; k < KINDS; k++) {
        a->answers[k] += b->answers[k];
        a->tokens[k] += b->tokens[k];
        a->differing[k] += b->differing[k];
        a->prompts[k] += b->prompts[k];
        for (int s = 0; s < IDENTITY_SETTINGS_MAX; s++) {
            struct identity_counts *x = &a->counts[s][k];
            const struct identity_counts *y = &b->counts[s][k];
            x->rounds += y->rounds;
            x->emitted += y->emitted;
            for (int i = 0; i < DEPTH_MAX; i++) {
                x->proposed[i] += y->proposed[i];
                x->accepted[i] += y->accepted[i];
            }
        }
    }
    a->copied += b->copied;
    if (!a->first[0])
        memcpy(a->first, b->first, sizeof a->first);
}

double counts_tokens_per_round(const struct identity_counts *c) { return c->rounds ? (double)c->emitted / (double)c->rounds : 1; }

void counts_acceptance(const struct identity_counts *c, struct buf *out, const char *sep)
{
    for (int i = 0; i < DEPTH_MAX && c->proposed[i]; i++)
        buf_fmt(out, "%s%.3f", i ? sep : "", (double)c->accepted[i] / (double)c->proposed[i]);
}
