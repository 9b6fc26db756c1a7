/* See law.h. A node of the tree stands for a prompt and up to MAX_PATH tokens after it; its rows are computed when a
 * draw first comes by, the trunk's in one step over the path as a round of verification does it, the head's by
 * recursion on its own output as a round of drafting does it. */
#include "measure/law.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "measure/stats.h"

enum { MAX_PATH = 3, N_TEMPERATURES = 2, TOP_MAX = 16, PREFILL = 256 };
static const double temperatures[N_TEMPERATURES] = {0.7, 1.0};

enum rule { EXACT_MTP, EXACT_COPY, SEEDED_MTP, WRONG_MTP, WRONG_COPY };
static const char *const rule_names[] = {"exact, mtp", "exact, copy", "seeded, mtp", "planted, mtp", "planted, copy"};
static bool copies(enum rule r) { return r == EXACT_COPY || r == WRONG_COPY; }

struct node {
    int32_t path[MAX_PATH];
    int n_path, parent_next, first_child; // children form a list by index, -1: end
    bool has_p, has_q;
    struct dist p[N_TEMPERATURES], q[N_TEMPERATURES], copy[N_TEMPERATURES];
};

struct tree {
    struct engine *g;
    const struct instance *in;
    const struct law_options *o;
    struct law_result *r;
    struct sampler *samp;
    struct dist whole; // workspace of dist_build
    struct accept_scratch scratch;
    const struct text_prompt *prompt;
    float *last_hidden; // the head's last pair is (this, last token)
    int seq;
    struct node *nodes;
    int n, cap;
    struct err *e;
    int rc;
};

/* ---- rows ------------------------------------------------------------------------------------------------------------ */

static void small_init(struct dist *d, int k)
{
    *d = (struct dist){.cap = k};
    d->id = xcalloc((size_t)k, sizeof *d->id);
    d->p = xcalloc((size_t)k, sizeof *d->p);
}

static int build(struct tree *t, struct dist *out, const float *logits)
{
    for (int i = 0; i < N_TEMPERATURES; i++) {
        struct sampling s = sampling_neutral();
        s.temperature = temperatures[i];
        s.top_k = t->o->top_k;
        if (dist_build(t->samp, &t->whole, logits, t->in->n_valid, &s, NULL))
            return err_set(t->e, ERR_NUMERIC, "logits that are not numbers");
        out[i].n = t->whole.n;
        memcpy(out[i].id, t->whole.id, (size_t)t->whole.n * sizeof *out[i].id);
        memcpy(out[i].p, t->whole.p, (size_t)t->whole.n * sizeof *out[i].p);
    }
    t->r->rows++;
    return 0;
}

static int new_node(struct tree *t, const int32_t *path, int n)
{
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 256;
        t->nodes = xrealloc(t->nodes, (size_t)t->cap * sizeof *t->nodes);
    }
    struct node *x = &t->nodes[t->n];
    *x = (struct node){.n_path = n, .parent_next = -1, .first_child = -1};
    if (n)
        memcpy(x->path, path, (size_t)n * sizeof *path);
    for (int i = 0; i < N_TEMPERATURES; i++) {
        small_init(&x->p[i], t->o->top_k);
        small_init(&x->q[i], t->o->top_k);
        small_init(&x->copy[i], 1);
    }
    return t->n++;
}

static void free_nodes(struct tree *t)
{
    for (int k = 0; k < t->n; k++)
        for (int i = 0; i < N_TEMPERATURES; i++) {
            dist_free(&t->nodes[k].p[i]);
            dist_free(&t->nodes[k].q[i]);
            dist_free(&t->nodes[k].copy[i]);
        }
    t->n = 0;
}

static int child(struct tree *t, int at, int32_t tok)
{
    int32_t path[MAX_PATH + 1];
    for (int k = t->nodes[at].first_child; k >= 0; k = t->nodes[k].parent_next)
        if (t->nodes[k].path[t->nodes[k].n_path - 1] == tok)
            return k;
    memcpy(path, t->nodes[at].path, sizeof t->nodes[at].path);
    path[t->nodes[at].n_path] = tok;
    int k = new_node(t, path, t->nodes[at].n_path + 1);
    t->nodes[k].parent_next = t->nodes[at].first_child;
    t->nodes[at].first_child = k;
    return k;
}

/* A copied draft is certain; this one is the target's second choice, so that it is accepted and rejected often. */
static void copy_of(struct node *x)
{
    for (int i = 0; i < N_TEMPERATURES; i++) {
        x->copy[i].n = 1;
        x->copy[i].id[0] = x->p[i].id[x->p[i].n > 1];
        x->copy[i].p[0] = 1;
    }
}

static int need_p(struct tree *t, int at)
{
    struct node *x = &t->nodes[at];
    struct row rows[MAX_PATH];
    struct out out;
    if (x->has_p || t->rc)
        return t->rc;
    if (engine_has_mtp(t->g))
        mtp_cut(t->g, t->seq, t->prompt->n);
    for (int i = 0; i < x->n_path; i++)
        rows[i] = (struct row){t->seq, x->path[i], i == x->n_path - 1 ? WANT_LOGITS : 0};
    t->rc = engine_step(t->g, rows, x->n_path, &out, t->e);
    if (!t->rc)
        t->rc = build(t, x->p, out.logits);
    seq_commit(t->g, t->seq, 0);
    if (!t->rc)
        copy_of(x);
    x->has_p = true;
    return t->rc;
}

static int need_q(struct tree *t, int at)
{
    struct node *x = &t->nodes[at];
    struct mtp_out out;
    int n = t->prompt->n;
    if (x->has_q || t->rc)
        return t->rc;
    mtp_cut(t->g, t->seq, n - 1);
    struct mtp_row row = {t->seq, t->prompt->ids[n - 1], t->last_hidden, WANT_LOGITS};
    t->rc = mtp_step(t->g, &row, 1, NULL, true, &out, t->e);
    for (int i = 0; i < x->n_path && !t->rc; i++) {
        row = (struct mtp_row){t->seq, x->path[i], NULL, WANT_LOGITS};
        t->rc = mtp_step(t->g, &row, 1, NULL, true, &out, t->e);
    }
    if (!t->rc)
        t->rc = build(t, x->q, out.logits);
    x->has_q = true;
    return t->rc;
}

/* Reads the prompt and makes the root. */
static int plant(struct tree *t)
{
    const struct text_prompt *p = t->prompt;
    size_t ld = (size_t)engine_hidden_ld(t->g);
    float *hidden = xcalloc(PREFILL * ld, sizeof *hidden), *before = t->last_hidden;
    struct row rows[PREFILL];
    int root = new_node(t, NULL, 0), most = engine_max_rows(t->g) < PREFILL ? engine_max_rows(t->g) : PREFILL;
    seq_reset(t->g, t->seq);
    for (int at = 0; at < p->n && !t->rc;) {
        struct out out;
        int n = p->n - at < most ? p->n - at : most;
        for (int i = 0; i < n; i++)
            rows[i] = (struct row){t->seq, p->ids[at + i], (uint8_t)(ROW_FINAL | WANT_HIDDEN | (at + i == p->n - 1 ? WANT_LOGITS : 0))};
        if ((t->rc = engine_step(t->g, rows, n, &out, t->e)))
            break;
        seq_commit(t->g, t->seq, n);
        if (out.n_logits)
            t->rc = build(t, t->nodes[root].p, out.logits);
        memcpy(hidden, out.hidden, (size_t)n * ld * sizeof *hidden);
        for (int i = at ? 0 : 1; i < n && !t->rc && engine_has_mtp(t->g); i++) {
            struct mtp_row row = {t->seq, p->ids[at + i], i ? hidden + (size_t)(i - 1) * ld : before, 0};
            struct mtp_out mo;
            if (at + i < p->n - 1) // the last pair is drafted from
                t->rc = mtp_step(t->g, &row, 1, NULL, false, &mo, t->e);
        }
        at += n;
        memcpy(before, hidden + (size_t)(at == p->n && n > 1 ? n - 2 : n - 1) * ld, (at < p->n || n > 1) ? ld * sizeof *before : 0);
    }
    copy_of(&t->nodes[root]);
    t->nodes[root].has_p = true;
    free(hidden);
    return t->rc;
}

/* ---- draws ------------------------------------------------------------------------------------------------------------- */

/* The planted rule: a rejected draft is replaced from p instead of from what the drafts leave over. */
static int accept_wrong(const struct dist *p, const struct dist *q, const int32_t *x, int d, struct rnd *rnd, int32_t *next)
{
    int i = 0;
    for (; i < d; i++) {
        double qx = dist_p(&q[i], x[i]), r = qx > 0 ? dist_p(&p[i], x[i]) / qx : 0;
        if (!rnd->bernoulli(rnd->ud, r < 1 ? r : 1))
            break;
    }
    *next = dist_draw(&p[i], rnd);
    return i;
}

/* One round from a node: drafts, acceptance. Returns tokens emitted into out. */
static int one_round(struct tree *t, int at, enum rule rule, int depth, int temp, struct noise noise, int32_t *out)
{
    struct dist p[MAX_PATH + 1], q[MAX_PATH];
    int32_t x[MAX_PATH], next;
    int d = depth < MAX_PATH - t->nodes[at].n_path ? depth : MAX_PATH - t->nodes[at].n_path;
    for (int k = 0; k <= d && !need_p(t, at); k++) {
        p[k] = t->nodes[at].p[temp];
        if (k == d)
            break;
        if (!copies(rule) && need_q(t, at))
            break;
        q[k] = copies(rule) ? t->nodes[at].copy[temp] : t->nodes[at].q[temp];
        struct noise here = noise;
        here.index += rule == SEEDED_MTP ? (uint64_t)k : 0;
        struct rnd_counter c = {noise, PURPOSE_DRAFT, (uint32_t)k};
        struct rnd rnd = rnd_of(&c);
        x[k] = copies(rule) ? q[k].id[0] : rule == SEEDED_MTP ? noise_pick(&q[k], &here) : dist_draw(&q[k], &rnd);
        at = child(t, at, x[k]);
    }
    if (t->rc)
        return 0;
    struct rnd_counter c = {noise, PURPOSE_ACCEPT, 0};
    struct rnd rnd = rnd_of(&c);
    int a = rule == SEEDED_MTP                        ? accept_seeded(p, x, d, &noise, &next)
            : rule == EXACT_MTP || rule == EXACT_COPY ? accept_exact(p, q, x, d, &rnd, &t->scratch, &next)
                                                      : accept_wrong(p, q, x, d, &rnd, &next);
    memcpy(out, x, (size_t)a * sizeof *x);
    out[a] = next;
    return a + 1;
}

static int rank_of(const struct dist *d, int32_t id)
{
    for (int i = 0; i < d->n; i++)
        if (d->id[i] == id)
            return i;
    return -1;
}

/* The first two emitted tokens, over all draws, against their law. */
static int one_test(struct tree *t, enum rule rule, int depth, int temp, struct law_test *test)
{
    int K = t->o->top_k, cells = K * K + 1;
    int64_t *seen = xcalloc((size_t)cells, sizeof *seen);
    double *law = xcalloc((size_t)cells, sizeof *law);
    for (int i = 0; i < t->nodes[0].p[temp].n && !t->rc; i++) {
        int k = child(t, 0, t->nodes[0].p[temp].id[i]);
        if (need_p(t, k))
            break;
        for (int j = 0; j < t->nodes[k].p[temp].n; j++)
            law[i * K + j] = t->nodes[0].p[temp].p[i] * t->nodes[k].p[temp].p[j];
    }
    for (int64_t i = 0; i < t->o->draws && !t->rc; i++) {
        int32_t out[2 * MAX_PATH + 2];
        struct noise noise = {t->o->seed, (uint32_t)i, (uint64_t)t->prompt->n};
        int n = one_round(t, 0, rule, depth, temp, noise, out);
        noise.index += (uint64_t)n;
        if (n == 1 && !t->rc)
            n += one_round(t, child(t, 0, out[0]), rule, depth, temp, noise, out + 1);
        if (t->rc)
            break;
        int a = rank_of(&t->nodes[0].p[temp], out[0]), k = child(t, 0, out[0]);
        int b = a < 0 ? -1 : rank_of(&t->nodes[k].p[temp], out[1]);
        seen[b < 0 ? K * K : a * K + b]++;
    }
    struct gtest g = stats_gtest(seen, law, cells, 10);
    *test = (struct law_test){.depth = depth, .temperature = temperatures[temp], .rule = rule_names[rule], .cells = g.cells, .g = g.g,
                              .p = g.p};
    free(seen);
    free(law);
    return t->rc;
}

static int test_prompt(struct tree *t, int prompt)
{
    static const struct {
        enum rule rule;
        int depth;
    } all[] = {{EXACT_MTP, 1}, {EXACT_MTP, 2}, {EXACT_MTP, 3}, {EXACT_COPY, 2}, {SEEDED_MTP, 2}, {WRONG_MTP, 2}, {WRONG_COPY, 2}};
    enum { N = sizeof all / sizeof *all };
    struct law_result *r = t->r;
    t->prompt = &t->o->prompts[prompt];
    if (plant(t))
        return t->rc;
    for (int i = 0; i < N * N_TEMPERATURES && !t->rc; i++) {
        enum rule rule = all[i % N].rule;
        bool wrong = rule == WRONG_MTP || rule == WRONG_COPY;
        if ((!copies(rule) && !engine_has_mtp(t->g)) || (wrong ? r->n_planted : r->n_tests) == LAW_TESTS_MAX)
            continue;
        struct law_test *test = wrong ? &r->planted[r->n_planted++] : &r->test[r->n_tests++];
        if (one_test(t, rule, all[i % N].depth, i / N, test))
            break;
        test->prompt = prompt;
        if (t->o->progress && !t->o->progress(t->o->ud, (prompt + (i + 1.0) / (N * N_TEMPERATURES)) / t->o->n_prompts))
            t->rc = err_set(t->e, ERR_CANCEL, "interrupted");
    }
    free_nodes(t);
    return t->rc;
}

/* Holm over one group; returns the smallest adjusted p. */
static double adjust(struct law_test *test, int n)
{
    double p[LAW_TESTS_MAX], least = 1;
    for (int i = 0; i < n; i++)
        p[i] = test[i].p;
    stats_holm(p, n);
    for (int i = 0; i < n; i++) {
        test[i].p = p[i];
        least = p[i] < least ? p[i] : least;
    }
    return least;
}

int law_run(struct engine *g, const struct instance *in, const struct law_options *o, struct law_result *r, struct err *e)
{
    struct tree t = {.g = g, .in = in, .o = o, .r = r, .e = e};
    *r = (struct law_result){0};
    if (o->top_k < 2 || o->top_k > TOP_MAX)
        return err_set(e, ERR_ARG, "the law is tested with 2 to %d tokens a distribution", TOP_MAX);
    if ((t.seq = seq_new(g)) < 0)
        return err_set(e, ERR_LIMIT, "no sequence is free");
    t.samp = sampler_new(in->m->n_vocab);
    dist_init(&t.whole, in->m->n_vocab);
    accept_scratch_init(&t.scratch, in->m->n_vocab);
    t.last_hidden = xcalloc((size_t)engine_hidden_ld(g), sizeof *t.last_hidden);
    for (int i = 0; i < o->n_prompts && !t.rc; i++)
        if (o->prompts[i].n > 1)
            test_prompt(&t, i);
    r->worst = adjust(r->test, r->n_tests);
    r->planted_best = adjust(r->planted, r->n_planted);
    free_nodes(&t);
    free(t.nodes);
    free(t.last_hidden);
    accept_scratch_free(&t.scratch);
    dist_free(&t.whole);
    sampler_free(t.samp);
    seq_free(g, t.seq);
    return t.rc;
}
