/* The drafters. The MTP head: pairs of true hidden and token first, then recursion on its own output. The copy
 * drafter: the continuation of the longest earlier occurrence of the current suffix. */
#include "infer/gen_internal.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"

enum { PRIOR_ROWS = 64 };

/* The draft head reads only some rows of a large vocabulary: a base of the lowest ids (byte-pair vocabularies
 * number tokens by frequency), the added ones, and every id that prompts and answers have shown. A draft outside is
 * impossible, which costs acceptance, never correctness. How large a base pays depends on the language: the lowest
 * 32K ids of Qwen3.5 hold 93 % of the tokens of English and code, but 34 % of Chinese; 128K hold 98 % of it
 * (docs/draft-vocabulary.md). So the prompt chooses the base, and an answer that keeps leaving it enlarges it. */
static const int bases[] = {32768, 65536, 131072, 1 << 24};
static const double COVERED = 0.9, MISSED = 0.1;
enum { N_BASES = sizeof bases / sizeof *bases, COVER_TOKENS = 2048, MISS_WINDOW = 64 };

static void grow_base(struct gen *q, struct subset *s, int level)
{
    for (int32_t id = 0; id < bases[level] && id < q->in->n_valid; id++)
        subset_add(q->g, s, id);
    q->base_level = level;
}

void draft_vocabulary(struct gen *q, const int32_t *ids, int n)
{
    struct subset *s = engine_draft_subset(q->g);
    if (!s)
        return;
    if (!subset_size(s)) {
        grow_base(q, s, 0);
        for (int32_t id = bases[0]; q->in->tok && id < q->in->n_valid; id++)
            if (tokenizer_is_added(q->in->tok, id))
                subset_add(q->g, s, id);
    }
    int from = n > COVER_TOKENS ? n - COVER_TOKENS : 0, level = 0;
    for (; level < N_BASES - 1; level++) {
        int inside = 0;
        for (int i = from; i < n; i++)
            inside += ids[i] < bases[level];
        if (inside >= COVERED * (n - from))
            break;
    }
    if (n >= MISS_WINDOW && level > q->base_level)
        grow_base(q, s, level);
    for (int i = 0; i < n; i++)
        subset_add(q->g, s, ids[i]);
}

/* One emitted token: counted if it could not have been drafted. */
void draft_vocabulary_emitted(struct gen *q, int32_t id)
{
    struct subset *s = engine_draft_subset(q->g);
    if (!s)
        return;
    bool missed = !subset_has(s, id);
    q->st.undraftable += missed;
    q->n_missed += missed;
    subset_add(q->g, s, id);
    if (q->st.emitted % MISS_WINDOW)
        return;
    if (q->n_missed > MISSED * MISS_WINDOW && q->base_level < N_BASES - 1)
        grow_base(q, s, q->base_level + 1);
    q->n_missed = 0;
}

int draft_available(struct gen *q, int drafter)
{
    if (drafter == DRAFTER_MTP)
        return q->uses_mtp && q->n_pend > 0 ? DEPTH_MAX : 0;
    struct suffix_rule rule = suffix_rule_default();
    q->n_copy = q->uses_copy ? suffix_propose(q->suffix, &rule, q->copy, COPY_MAX) : 0;
    return q->n_copy;
}

void draft_copy(struct gen *q)
{
    q->has_q = false;
    for (q->n_x = 0; q->n_x < q->plan.depth && q->n_x < q->n_copy;) {
        int32_t id = q->copy[q->n_x];
        q->x[q->n_x++] = id;
        if (!q->r.ignore_eos && instance_is_eos(q->in, id))
            break;
    }
}

/* Rows for the n oldest pairs that wait; the last one may ask for logits. */
static int pending_rows(const struct gen *q, int n, struct mtp_row *rows, bool want)
{
    int first = seq_mtp_len(q->g, q->seq), ld = engine_hidden_ld(q->g);
    for (int i = 0; i < n; i++)
        rows[i] = (struct mtp_row){q->seq, q->tokens[first + i], q->pend + (size_t)i * (size_t)ld, want && i == n - 1 ? WANT_LOGITS : 0};
    return n;
}

int draft_observe(struct gen *q, int keep, struct err *e)
{
    size_t ld = (size_t)engine_hidden_ld(q->g);
    int block = engine_max_rows(q->g) < PEND_MAX ? engine_max_rows(q->g) : PEND_MAX;
    int64_t t0 = clock_ns();
    int rc = 0;
    while (q->n_pend > keep && !rc) {
        struct mtp_row rows[PEND_MAX];
        struct mtp_out out;
        int left = q->n_pend - keep, n = pending_rows(q, left < block ? left : block, rows, false);
        if ((rc = mtp_step(q->g, rows, n, NULL, false, &out, e)))
            break;
        q->n_pend -= n;
        memmove(q->pend, q->pend + (size_t)n * ld, (size_t)q->n_pend * ld * sizeof *q->pend);
    }
    q->st.draft_ns += clock_ns() - t0;
    return rc;
}

int draft_prime(struct gen *q, const float *hidden, int n, int first, struct err *e)
{
    enum { BLOCK = 128 };
    size_t ld = (size_t)engine_hidden_ld(q->g);
    struct subset *subset = engine_draft_subset(q->g);
    struct mtp_row rows[BLOCK];
    int end = first + n, last_pair = end < q->n_prompt ? end : q->n_prompt - 1; // head rows up to here can be made now
    int rc = 0, at = seq_mtp_len(q->g, q->seq), block = engine_max_rows(q->g) < BLOCK ? engine_max_rows(q->g) : BLOCK;
    while (at <= last_pair && !rc) {
        struct mtp_out out;
        int k = 0, wants[BLOCK], n_wants = 0;
        for (; at + k <= last_pair && k < block; k++) {
            int h = at + k - 1; // hidden of the token before
            const float *row = h < first ? q->pend + (size_t)(h - (seq_mtp_len(q->g, q->seq) - 1)) * ld : hidden + (size_t)(h - first) * ld;
            /* teacher forcing on the prompt's last tokens: what the head would have drafted, and what came */
            bool want = at + k + 1 < q->n_prompt && at + k + 1 >= q->n_prompt - PRIOR_ROWS && n_wants < 60;
            if (want)
                wants[n_wants++] = q->tokens[at + k + 1];
            rows[k] = (struct mtp_row){q->seq, q->tokens[at + k], row, want ? WANT_LOGITS : 0};
        }
        rc = mtp_step(q->g, rows, k, subset, false, &out, e);
        for (int i = 0; i < n_wants && !rc; i++) {
            q->st.prior_agreed += out.best[i] == wants[i];
            q->st.prior_n++;
        }
        at += k;
    }
    if (rc)
        return rc;
    memcpy(q->pend, hidden + (size_t)(n - 1) * ld, ld * sizeof *q->pend); // the newest hidden waits for its token
    q->n_pend = 1;
    q->mtp_ready = true;
    if (end == q->n_prompt && q->st.prior_n)
        depth_prior(&q->depth, DRAFTER_MTP, q->st.prior_agreed, q->st.prior_n);
    return 0;
}

/* The draft for one sequence from one row of draft logits (or its argmax), at position d of its chain. False if
 * they are not numbers: nothing can be drafted then, which is no reason to fail. */
static bool take_draft(struct gen *q, int d, const float *logits, int32_t best, const struct subset *subset)
{
    int32_t id = best;
    if (!q->plain_draft) {
        int n = subset ? subset_size(subset) : q->in->n_valid;
        const int32_t *ids = subset ? subset_ids(subset) : NULL;
        if (ids) {
            for (int i = 0; i < n; i++)
                q->draft_logits[ids[i]] = logits[i];
            logits = q->draft_logits;
        }
        if (q->greedy) {
            id = sampler_argmax(q->samp, logits, q->in->n_valid, &q->r.sampling, q->hist);
        } else {
            if (dist_build(q->samp, &q->q[d], logits, q->in->n_valid, &q->r.sampling, q->hist))
                return false;
            struct noise at = {q->seed, q->r.choice, (uint64_t)q->n_tokens};
            if (q->r.acceptance == ACCEPT_SEEDED) {
                at.index += (uint64_t)d; // the noise of the target's own draw there
                id = noise_pick(&q->q[d], &at);
            } else {
                /* Numbered within its round: a number that helped to decide this round (rejected drafts do)
                 * must not return in the next, whose law would depend on it. */
                struct rnd_counter c = {at, PURPOSE_DRAFT, (uint32_t)d};
                struct rnd rnd = rnd_of(&c);
                id = dist_draw(&q->q[d], &rnd);
            }
        }
    }
    if (id < 0)
        return false;
    q->x[d] = id;
    q->n_x = d + 1;
    history_push(q->hist, id); // later drafts of this chain see it; taken back by the caller
    return true;
}

/* Drafts for as many of the answers as one step of the head takes; *used: answers looked at. */
static int draft_group(struct gen **q, int n, int *used, struct err *e)
{
    enum { GROUP = 60 };
    struct mtp_row rows[512];
    struct gen *who[GROUP];
    int waited[GROUP], n_who = 0, n_rows = 0, rc = 0, room = engine_max_rows(q[0]->g) < 512 ? engine_max_rows(q[0]->g) : 512;
    struct subset *subset = engine_draft_subset(q[0]->g);
    bool need_logits = false;
    for (*used = 0; *used < n && n_who < GROUP; ++*used) {
        struct gen *w = q[*used];
        if (w->plan.drafter != DRAFTER_MTP || w->plan.depth <= 0)
            continue;
        if (n_rows + w->n_pend > room)
            break;
        waited[n_who] = w->n_pend;
        n_rows += pending_rows(w, w->n_pend, rows + n_rows, true);
        w->n_pend = 0;
        w->n_x = 0;
        w->has_q = !w->greedy;
        need_logits = need_logits || !w->plain_draft;
        who[n_who++] = w;
    }
    for (int d = 0; n_rows; d++) {
        struct mtp_out out;
        struct err why = {0};
        if ((rc = mtp_step(q[0]->g, rows, n_rows, subset, need_logits, &out, &why))) {
            for (int i = 0; i < n_who && !d; i++)
                who[i]->n_pend = waited[i]; // they still wait
            rc = rc == ERR_NOMEM ? 0 : err_set(e, rc, "%s", why.msg); // shorter drafts or none need no memory
            break;
        }
        int width = subset ? subset_size(subset) : q[0]->in->m->n_vocab, k = 0;
        struct gen *next[GROUP];
        n_rows = 0;
        for (int i = 0; i < n_who; i++) {
            struct gen *w = who[i];
            if (!take_draft(w, d, out.logits ? out.logits + (size_t)i * (size_t)width : NULL, out.best[i], subset) ||
                d + 1 == w->plan.depth || (!w->r.ignore_eos && instance_is_eos(w->in, w->x[d])))
                continue;
            next[k++] = w;
            rows[n_rows++] = (struct mtp_row){w->seq, w->x[d], NULL, WANT_LOGITS};
        }
        memcpy(who, next, (size_t)k * sizeof *who);
        n_who = k;
    }
    for (int i = 0; i < *used; i++)
        if (q[i]->plan.drafter == DRAFTER_MTP)
            for (int d = q[i]->n_x; d-- > 0;)
                history_pop(q[i]->hist, q[i]->x[d]);
    return rc;
}

int draft_mtp(struct gen **q, int n, struct err *e)
{
    int rc = 0;
    for (int first = 0, used; first < n && !rc; first += used)
        rc = draft_group(q + first, n - first, &used, e);
    return rc;
}
