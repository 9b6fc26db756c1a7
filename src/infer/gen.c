/* Lifetime of an answer: prompt, kept prefix, emission of tokens and text. */
#include "infer/gen_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

const char *const drafter_names[N_DRAFTERS] = {"mtp", "copy"};

enum { TEXT_MAX = 64 << 20, TEXT_RESERVED = 1 << 20, TOKEN_BYTES = 16 }; // an answer of the usual tokens never allocates

const char *stop_reason_name(enum stop_reason r)
{
    static const char *const names[] = {"running", "end of text", "stop string", "max tokens", "context limit", "cancelled"};
    return names[r];
}

/* Seconds of a step of n rows on the empty sequence; nothing of it is kept. */
static double time_rows(struct gen *q, int n, struct err *e)
{
    struct row rows[16];
    struct out out;
    for (int i = 0; i < n; i++)
        rows[i] = (struct row){q->seq, i % q->in->n_valid, WANT_LOGITS | WANT_HIDDEN};
    int64_t t0 = clock_ns();
    if (engine_step(q->g, rows, n, &out, e))
        return -1;
    seq_commit(q->g, q->seq, 0);
    return (double)(clock_ns() - t0) * 1e-9;
}

/* What rows and drafts cost here, so that the first depth rests on measurement. A handful of steps; large
 * models, where they would be felt, learn it while they answer. */
static int measure_costs(struct gen *q, struct err *e)
{
    static const int rows[N_COSTS] = {1, 2, 4, 16};
    double first = time_rows(q, 1, e);
    if (first < 0)
        return e->code;
    q->cost_verify[0] = first;
    for (int i = 0; i < N_COSTS && first < 0.25; i++)
        for (int k = 0; k < 2; k++) {
            double t = time_rows(q, rows[i], e);
            if (t < 0)
                return e->code;
            if (!k || t < q->cost_verify[i])
                q->cost_verify[i] = t;
        }
    if (first < 0.25 && engine_has_mtp(q->g)) {
        for (int k = 0; k < 3; k++) {
            struct mtp_out mo;
            struct mtp_row row = {q->seq, 0, NULL, WANT_LOGITS};
            int64_t t0 = clock_ns();
            if (mtp_step(q->g, &row, 1, engine_draft_subset(q->g), false, &mo, e))
                return e->code;
            double t = (double)(clock_ns() - t0) * 1e-9;
            if (k == 1 || (k > 1 && t < q->cost_draft))
                q->cost_draft = t;
        }
        mtp_cut(q->g, q->seq, 1);
    }
    seq_reset(q->g, q->seq);
    return 0;
}

int gen_new(struct gen **out, struct engine *g, const struct instance *in, struct err *e)
{
    struct gen *q = xcalloc(1, sizeof *q);
    int V = in->m->n_vocab, max = engine_max_tokens(g);
    size_t ld = (size_t)engine_hidden_ld(g);
    q->g = g;
    q->in = in;
    q->base = -1;
    q->seq = seq_new(g);
    q->max_tokens_total = max;
    q->tokens = xcalloc((size_t)max + 2, sizeof *q->tokens);
    q->pend = xcalloc(PEND_MAX * ld, sizeof *q->pend);
    q->base_pend = xcalloc(ld, sizeof *q->base_pend);
    q->hist = history_new(V);
    q->samp = sampler_new(V);
    for (int i = 0; i <= COPY_MAX; i++)
        dist_init(&q->p[i], V);
    for (int i = 0; i < COPY_MAX; i++)
        dist_init(&q->q[i], V);
    accept_scratch_init(&q->scratch, V);
    q->draft_logits = xmalloc((size_t)V * sizeof *q->draft_logits);
    for (int i = 0; i < V; i++)
        q->draft_logits[i] = -INFINITY;
    q->suffix = suffix_new(max + 2);
    if (!q->suffix) {
        gen_free(q);
        return err_set(e, ERR_NOMEM, "no memory to index %d tokens", max);
    }
    buf_init(&q->text, TEXT_MAX);
    if (q->seq < 0) {
        gen_free(q);
        return err_set(e, ERR_LIMIT, "no sequence is free for another answer");
    }
    draft_vocabulary(q, NULL, 0);
    if (measure_costs(q, e)) {
        gen_free(q);
        return e->code;
    }
    *out = q;
    return 0;
}

void gen_free(struct gen *q)
{
    if (!q)
        return;
    if (q->seq >= 0)
        seq_free(q->g, q->seq);
    if (q->base >= 0)
        seq_free(q->g, q->base);
    free(q->tokens);
    free(q->pend);
    free(q->base_pend);
    history_free(q->hist);
    sampler_free(q->samp);
    for (int i = 0; i <= COPY_MAX; i++)
        dist_free(&q->p[i]);
    for (int i = 0; i < COPY_MAX; i++)
        dist_free(&q->q[i]);
    accept_scratch_free(&q->scratch);
    free(q->draft_logits);
    suffix_free(q->suffix);
    buf_free(&q->text);
    free(q);
}

enum stop_reason gen_stop_reason(const struct gen *q) { return q->why; }
const struct gen_stats *gen_stats(const struct gen *q) { return &q->st; }
uint64_t gen_seed(const struct gen *q) { return q->seed; }
uint64_t gen_logits_hash(const struct gen *q) { return q->hash; }
const struct buf *gen_text(const struct gen *q) { return &q->text; }

double gen_decode_rate(const struct gen_stats *st)
{
    return st->emitted > 1 && st->last_ns > st->first_ns ? (double)(st->emitted - 1) * 1e9 / (double)(st->last_ns - st->first_ns) : 0;
}

double gen_prefill_rate(const struct gen_stats *st)
{
    return st->prefill_ns > 0 ? (double)st->computed_tokens * 1e9 / (double)st->prefill_ns : 0;
}

const int32_t *gen_output(const struct gen *q, int *n)
{
    *n = q->n_tokens - q->n_prompt;
    return q->tokens + q->n_prompt;
}

int gen_context(const struct gen *q, int *max)
{
    *max = q->max_tokens_total;
    return q->n_tokens;
}

struct gen_forecast gen_forecast(const struct gen *q)
{
    struct gen_forecast f = {0};
    /* a slow model was timed with one row only: rows in company cost about a third */
    double per_row = q->cost_verify[3] > 0 ? q->cost_verify[3] / 16 : q->cost_verify[0] / 3;
    f.prefill_s = (double)(q->n_prompt - q->st.cached_tokens) * per_row;
    f.plain_rate = f.decode_rate = q->cost_verify[0] > 0 ? 1 / q->cost_verify[0] : 0;
    for (int d = 1; d <= DEPTH_MAX && q->uses_mtp; d++) {
        double rate = depth_expect(&q->depth, (struct depth_plan){DRAFTER_MTP, d});
        bool considered = q->r.depth < 0 || q->r.depth == d;
        if (considered && (rate > f.decode_rate || q->r.depth == d))
            f.decode_rate = rate;
    }
    return f;
}

/* ---- prompt ----------------------------------------------------------------------------------------------------- */

static void drop_base(struct gen *q)
{
    if (q->base >= 0)
        seq_free(q->g, q->base);
    q->base = -1;
}

void gen_forget(struct gen *q)
{
    seq_reset(q->g, q->seq);
    drop_base(q);
    q->n_tokens = q->n_pend = 0;
    q->mtp_ready = true;
}

/* Keeps as much of the sequence as the new prompt shares: all of it, or the copy made at the last prompt's end.
 * At least one token is left to read, since its logits decide the first new one. */
static void keep_prefix(struct gen *q, const struct gen_request *r)
{
    int len = seq_len(q->g, q->seq), same = 0;
    while (same < r->n_prompt - 1 && same < q->n_tokens && q->tokens[same] == r->prompt[same])
        same++;
    q->st.reread_at = -1;
    bool usable = q->mtp_ready || !q->uses_mtp;
    if (usable && same >= len) {
        mtp_cut(q->g, q->seq, len); // a prompt cut short may have left the row of a token that isn't there now
        return;
    }
    q->st.reread_at = same;
    if (usable && q->base >= 0 && same >= q->n_base) {
        seq_free(q->g, q->seq);
        q->seq = seq_fork(q->g, q->base);
        memcpy(q->pend, q->base_pend, (size_t)engine_hidden_ld(q->g) * sizeof *q->pend);
        q->n_pend = 1;
        return;
    }
    gen_forget(q);
}

int gen_start(struct gen *q, const struct gen_request *r, gen_token_fn *fn, void *ud, struct err *e)
{
    const int max_depth[N_DRAFTERS] = {DEPTH_MAX, COPY_MAX};
    if (r->n_prompt < 1)
        return err_set(e, ERR_ARG, "the prompt is empty: it has no token to continue from");
    if (r->n_prompt >= q->max_tokens_total)
        return err_set(e, ERR_LIMIT, "the prompt has %d tokens, the context holds %d", r->n_prompt, q->max_tokens_total);
    for (int i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= q->in->n_valid)
            return err_set(e, ERR_ARG, "prompt token %d has id %d, outside the vocabulary of %d", i, (int)r->prompt[i], q->in->n_valid);
    q->r = *r;
    q->r.prompt = NULL;
    q->fn = fn;
    q->ud = ud;
    q->seed = r->has_seed ? r->seed : rng_entropy() >> 11; // 53 bits: JSON and --seed can give it back
    q->hash = 0;
    q->st = (struct gen_stats){.prompt_tokens = r->n_prompt, .start_ns = clock_ns(), .reread_at = -1};
    q->uses_mtp = r->use_mtp && engine_has_mtp(q->g) && r->depth != 0;
    q->uses_copy = r->use_copy && r->depth != 0;
    q->greedy = r->sampling.temperature == 0;
    q->plain_draft = q->greedy && r->sampling.repetition_penalty == 1 && r->sampling.presence_penalty == 0 &&
                     r->sampling.frequency_penalty == 0 && !r->sampling.n_bias;
    keep_prefix(q, r);
    memcpy(q->tokens, r->prompt, (size_t)r->n_prompt * sizeof *q->tokens);
    q->n_tokens = q->n_prompt = r->n_prompt;
    q->st.cached_tokens = seq_len(q->g, q->seq);
    if (!q->uses_mtp)
        q->mtp_ready = false;
    history_clear(q->hist);
    suffix_cut(q->suffix, 0);
    for (int i = 0; i < r->n_prompt; i++) {
        history_push(q->hist, r->prompt[i]);
        if (suffix_append(q->suffix, r->prompt[i]))
            q->uses_copy = false;
    }
    draft_vocabulary(q, r->prompt, r->n_prompt);
    depth_init(&q->depth, N_DRAFTERS, max_depth, r->depth);
    for (int i = 0; i < 3 && q->cost_verify[1] > 0; i++)
        if (q->cost_verify[i] > 0)
            depth_cost(&q->depth, 1 << i, q->cost_verify[i], -1, 0, 0);
    if (q->cost_draft > 0)
        for (int d = 1; d <= 4; d *= 2)
            depth_cost(&q->depth, 0, 0, DRAFTER_MTP, d, d * q->cost_draft);
    detok_init(&q->detok, q->in->tok, true);
    buf_clear(&q->text);
    size_t text = (size_t)gen_left(q) * TOKEN_BYTES;
    buf_reserve(&q->text, text < TEXT_RESERVED ? text : TEXT_RESERVED);
    q->shown = 0;
    q->why = STOP_NONE;
    q->n_x = 0;
    return 0;
}

/* Remembers the state at the prompt's end: the next turn's prompt usually agrees up to there even where the
 * answer is rendered differently than it was generated. */
static void keep_base(struct gen *q)
{
    drop_base(q);
    q->base = seq_fork(q->g, q->seq);
    if (q->base < 0)
        return; // no room: the next turn re-reads more
    q->n_base = seq_len(q->g, q->base);
    memcpy(q->base_pend, q->pend + (size_t)(q->n_pend ? q->n_pend - 1 : 0) * (size_t)engine_hidden_ld(q->g),
           (size_t)engine_hidden_ld(q->g) * sizeof *q->pend);
}

int gen_prefill(struct gen *q, int max_rows, int *done, struct err *e)
{
    struct row rows[512];
    int room = engine_max_rows(q->g) < 512 ? engine_max_rows(q->g) : 512;
    int64_t t0 = clock_ns();
    for (int read = 0; seq_len(q->g, q->seq) < q->n_prompt && (!max_rows || read < max_rows);) {
        int first = seq_len(q->g, q->seq), n = q->n_prompt - first < room ? q->n_prompt - first : room;
        if (max_rows && n > max_rows - read)
            n = max_rows - read;
        struct out out;
        for (int i = 0; i < n; i++)
            rows[i] = (struct row){q->seq, q->tokens[first + i], (uint8_t)(ROW_FINAL | (q->uses_mtp || i == n - 1 ? WANT_HIDDEN : 0))};
        bool is_last = first + n == q->n_prompt;
        if (is_last)
            rows[n - 1].want |= WANT_LOGITS;
        int rc = engine_step(q->g, rows, n, &out, e);
        if (rc)
            return rc;
        seq_commit(q->g, q->seq, n);
        q->mtp_ready = false; // until the head has seen these rows as well
        read += n;
        q->st.computed_tokens += n;
        /* the head's steps reuse the buffers behind out: decide first, from the logits */
        int32_t emitted = q->n_tokens;
        if (is_last) {
            q->st.prefill_ns += clock_ns() - t0;
            if ((rc = gen_decide(q, out.logits, 1, e))) {
                gen_cancel(q);
                return rc;
            }
            t0 = clock_ns();
        }
        if (q->uses_mtp && (rc = draft_prime(q, out.hidden, n, first, e)))
            return rc;
        if (is_last && emitted < q->n_tokens)
            keep_base(q);
    }
    if (seq_len(q->g, q->seq) < q->n_prompt || q->n_tokens == q->n_prompt)
        q->st.prefill_ns += clock_ns() - t0;
    if (done)
        *done = seq_len(q->g, q->seq);
    return seq_len(q->g, q->seq) < q->n_prompt;
}

/* ---- emission ---------------------------------------------------------------------------------------------------- */

/* Gives fn what can be shown of the text now. At the end of an answer everything can. */
static void show(struct gen *q, int32_t id, int draft, int drafter)
{
    size_t cut = q->text.n, safe = q->text.n;
    int which;
    if (q->r.stop.n && stop_find(&q->r.stop, buf_cstr(&q->text), q->shown, q->text.n, &cut, &safe, &which)) {
        q->text.n = cut;
        q->text.p[cut] = 0;
        safe = cut;
        q->why = STOP_STRING;
    } else if (q->why) {
        safe = q->text.n;
    }
    struct token_event ev = {id, buf_cstr(&q->text) + q->shown, safe > q->shown ? safe - q->shown : 0, draft, drafter};
    if (safe > q->shown)
        q->shown = safe;
    if (q->fn)
        q->fn(q->ud, &ev);
}

void gen_emit(struct gen *q, int32_t id, int draft, int drafter)
{
    bool is_eos = !q->r.ignore_eos && instance_is_eos(q->in, id);
    q->st.last_ns = clock_ns();
    if (!q->st.emitted++)
        q->st.first_ns = q->st.last_ns;
    q->tokens[q->n_tokens++] = id;
    q->n_kept += draft > 0;
    history_push(q->hist, id);
    if (suffix_append(q->suffix, id))
        q->uses_copy = false;
    draft_vocabulary_emitted(q, id);
    if (is_eos)
        q->why = STOP_EOS;
    else if (q->in->tok)
        detok_add(&q->detok, id, &q->text);
    if (!q->why && q->r.max_tokens > 0 && q->n_tokens - q->n_prompt >= q->r.max_tokens)
        q->why = STOP_MAX_TOKENS;
    if (!q->why && q->n_tokens >= q->max_tokens_total)
        q->why = STOP_CONTEXT;
    if (q->why && q->in->tok)
        detok_flush(&q->detok, &q->text);
    show(q, id, draft, drafter);
}

void gen_cancel(struct gen *q)
{
    if (!q->why)
        q->why = STOP_CANCELLED;
}

int gen_run(struct gen *q, const struct gen_request *r, gen_token_fn *fn, void *ud, atomic_int *cancel, struct err *e)
{
    int rc = gen_start(q, r, fn, ud, e);
    if (rc)
        return rc;
    do {
        if (cancel && atomic_load_explicit(cancel, memory_order_relaxed))
            gen_cancel(q);
        rc = q->why ? 0 : gen_prefill(q, 512, NULL, e);
    } while (rc == 1);
    while (!rc && !q->why) {
        rc = gen_round(&q, 1, e);
        if (!rc && cancel && atomic_load_explicit(cancel, memory_order_relaxed))
            gen_cancel(q);
    }
    return rc;
}
