/* One round: plan, draft, verify, accept, commit. */
#include "infer/gen_internal.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/clock.h"

enum { ROUND_MAX = 60, LOGIT_ROWS_MAX = 60 };

static void chain_hash(struct gen *q, const float *row)
{
    if (q->r.want_hash)
        q->hash = XXH3_64bits_withSeed(row, (size_t)q->in->m->n_vocab * sizeof *row, q->hash);
}

/* NaN or infinity among the logits: name the tensor it comes from, if the weights hold it. */
static int not_numbers(struct gen *q, struct err *e)
{
    if (weights_check_finite(q->in->m->pkg->weights, e))
        return e->code;
    return err_set(e, ERR_NUMERIC, "%s: the forward pass gave logits that are not numbers, though all weights are finite",
                   q->in->m->pkg->path);
}

/* Row by row: the target's own token, greedy or seeded, for as long as it is the drafted one. */
static int decide_own(struct gen *q, const float *logits, int n_rows, struct err *e)
{
    size_t V = (size_t)q->in->m->n_vocab;
    for (int i = 0; i < n_rows && !q->why; i++) {
        const float *row = logits + (size_t)i * V;
        struct noise at = {q->seed, q->r.choice, (uint64_t)q->n_tokens};
        int32_t id = -1;
        if (q->greedy) {
            id = sampler_argmax(q->samp, row, q->in->n_valid, &q->r.sampling, q->hist);
        } else {
            if (dist_build(q->samp, &q->p[0], row, q->in->n_valid, &q->r.sampling, q->hist))
                return not_numbers(q, e);
            id = noise_pick(&q->p[0], &at);
        }
        if (id < 0)
            return not_numbers(q, e);
        bool accepted = i < n_rows - 1 && id == q->x[i];
        chain_hash(q, row);
        gen_emit(q, id, accepted ? i + 1 : 0, accepted ? q->plan.drafter : -1);
        if (!accepted)
            break;
    }
    return 0;
}

/* All rows at once: the longest lossless acceptance. */
static int decide_exact(struct gen *q, const float *logits, int n_rows, struct err *e)
{
    size_t V = (size_t)q->in->m->n_vocab;
    int d = n_rows - 1, rc = 0, pushed = 0;
    int32_t next;
    for (int i = 0; i < n_rows && !rc; i++) {
        rc = dist_build(q->samp, &q->p[i], logits + (size_t)i * V, q->in->n_valid, &q->r.sampling, q->hist);
        if (i < d) {
            history_push(q->hist, q->x[i]);
            pushed++;
        }
    }
    while (pushed > 0)
        history_pop(q->hist, q->x[--pushed]);
    if (rc)
        return not_numbers(q, e);
    for (int i = 0; i < d && !q->has_q; i++) { // a copied draft is certain
        q->q[i].n = 1;
        q->q[i].id[0] = q->x[i];
        q->q[i].p[0] = 1;
    }
    struct rnd_counter c = {{q->seed, q->r.choice, (uint64_t)q->n_tokens}, PURPOSE_ACCEPT, 0};
    struct rnd rnd = rnd_of(&c);
    int a = accept_exact(q->p, q->q, q->x, d, &rnd, &q->scratch, &next);
    for (int i = 0; i <= a && !q->why; i++) {
        chain_hash(q, logits + (size_t)i * V);
        gen_emit(q, i < a ? q->x[i] : next, i < a ? i + 1 : 0, i < a ? q->plan.drafter : -1);
    }
    return 0;
}

int gen_decide(struct gen *q, const float *logits, int n_rows, struct err *e)
{
    return q->greedy || q->r.acceptance == ACCEPT_SEEDED ? decide_own(q, logits, n_rows, e) : decide_exact(q, logits, n_rows, e);
}

int gen_left(const struct gen *q)
{
    int left = q->max_tokens_total - q->n_tokens;
    if (q->r.max_tokens > 0 && q->r.max_tokens - (q->n_tokens - q->n_prompt) < left)
        left = q->r.max_tokens - (q->n_tokens - q->n_prompt);
    return left;
}

static int plan_round(struct gen *q, struct err *e)
{
    int available[N_DRAFTERS] = {draft_available(q, DRAFTER_MTP), draft_available(q, DRAFTER_COPY)};
    int limit = gen_left(q) - 1; // less the target's own token
    q->plan = depth_choose(&q->depth, available, limit > 0 ? limit : 0);
    q->n_x = q->n_kept = 0;
    q->draft_ns = 0;
    if (q->plan.drafter == DRAFTER_COPY)
        draft_copy(q);
    bool asked = q->plan.drafter == DRAFTER_MTP;
    if (q->uses_mtp && q->n_pend > (asked ? PEND_ASK : PEND_MAX - COPY_MAX - 1)) {
        struct err why = {0};
        int rc = draft_observe(q, asked, &why);
        if (rc == ERR_NOMEM && asked)
            q->plan = (struct depth_plan){-1, 0};
        return rc && rc != ERR_NOMEM ? err_set(e, rc, "%s", why.msg) : 0;
    }
    return 0;
}

/* After verification: keep what was emitted, remember the true hiddens for the head, learn. */
static void settle_round(struct gen *q, int before, const float *hidden, int64_t verify_ns)
{
    size_t ld = (size_t)engine_hidden_ld(q->g);
    int emitted = q->n_tokens - before;
    seq_commit(q->g, q->seq, emitted);
    if (q->uses_mtp && q->n_pend + emitted > PEND_MAX) // no memory for the head's rows for so long: go on without it
        q->uses_mtp = q->mtp_ready = false;
    if (q->uses_mtp) {
        mtp_cut(q->g, q->seq, before - q->n_pend);
        memcpy(q->pend + (size_t)q->n_pend * ld, hidden, (size_t)emitted * ld * sizeof *hidden);
        q->n_pend += emitted;
    }
    q->st.rounds++;
    for (int i = 0; i < q->n_x; i++) {
        if (i <= q->n_kept)
            q->st.proposed[i]++;
        if (i < q->n_kept)
            q->st.accepted[i]++;
    }
    if (q->plan.drafter >= 0) {
        q->st.drafted_by[q->plan.drafter] += q->n_x;
        q->st.kept_from[q->plan.drafter] += q->n_kept;
    }
    q->st.draft_ns += q->draft_ns;
    q->st.verify_ns += verify_ns;
    depth_report(&q->depth, q->plan, q->n_x, q->n_kept, emitted, (double)q->draft_ns * 1e-9, (double)verify_ns * 1e-9);
}

/* Each answer's newest token and its drafts. */
static int put_rows(struct gen **q, int n, struct row *rows)
{
    int n_rows = 0;
    for (int i = 0; i < n; i++) {
        rows[n_rows++] = (struct row){q[i]->seq, q[i]->tokens[q[i]->n_tokens - 1], ROW_FINAL | WANT_LOGITS | WANT_HIDDEN};
        for (int d = 0; d < q[i]->n_x; d++)
            rows[n_rows++] = (struct row){q[i]->seq, q[i]->x[d], WANT_LOGITS | WANT_HIDDEN};
    }
    return n_rows;
}

static int verify(struct gen **q, int n, struct err *e)
{
    struct row rows[LOGIT_ROWS_MAX];
    struct err why = {0};
    struct out out;
    int n_rows = put_rows(q, n, rows), at = 0;
    int64_t t0 = clock_ns();
    int rc = engine_step(q[0]->g, rows, n_rows, &out, &why);
    if (rc == ERR_NOMEM && n_rows > n) { // drafts must not cost an answer its last page
        for (int i = 0; i < n; i++)
            q[i]->n_x = 0;
        why = (struct err){0};
        rc = engine_step(q[0]->g, rows, put_rows(q, n, rows), &out, &why);
    }
    int64_t step_ns = clock_ns() - t0;
    if (rc)
        return err_set(e, rc, "%s", why.msg);
    for (int i = 0; i < n; i++) { // what happened in the step is settled for all, whoever fails
        int before = q[i]->n_tokens, k = 1 + q[i]->n_x;
        int64_t t1 = clock_ns();
        int failed = gen_decide(q[i], out.logits + (size_t)at * (size_t)q[i]->in->m->n_vocab, k, e);
        if (failed) {
            gen_cancel(q[i]);
            rc = rc ? rc : failed;
        }
        int64_t decide_ns = clock_ns() - t1;
        q[i]->st.decide_ns += decide_ns;
        settle_round(q[i], before, out.hidden + (size_t)at * (size_t)engine_hidden_ld(q[i]->g), step_ns / n + decide_ns);
        at += k;
    }
    return rc;
}

int gen_round(struct gen **q, int n, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < n && !rc; i++)
        rc = plan_round(q[i], e);
    int n_mtp = 0;
    for (int i = 0; i < n; i++)
        n_mtp += q[i]->plan.drafter == DRAFTER_MTP;
    if (n_mtp && !rc) {
        int64_t t0 = clock_ns();
        rc = draft_mtp(q, n, e);
        int64_t ns = (clock_ns() - t0) / n_mtp;
        for (int i = 0; i < n; i++)
            q[i]->draft_ns = q[i]->plan.drafter == DRAFTER_MTP ? ns : 0;
    }
    for (int first = 0; first < n && !rc;) { // as many answers a step as its logits rows allow
        int k = 0, rows = 0;
        while (first + k < n && k < ROUND_MAX && rows + 1 + q[first + k]->n_x <= LOGIT_ROWS_MAX)
            rows += 1 + q[first + k++]->n_x;
        rc = verify(q + first, k, e);
        first += k;
    }
    for (int i = 0; i < n && rc; i++)
        q[i]->mtp_ready = false; // the head's rows may lag behind: the next answer reads the prompt again
    return rc;
}
