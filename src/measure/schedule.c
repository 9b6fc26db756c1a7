/* Core of the schedule fuzzer, see schedule.h.
 *
 * Texts form a tree of depth one: a long random text, and branches that leave it at page and segment borders and
 * elsewhere. A text's row at a position is a pure function of its tokens so far, so rows before the branch point
 * are the long text's. The reference keeps a hash of each row, the hidden rows themselves (pairs of the MTP head
 * need them), and a hash of the recurrent state, which may differ where no logit shows it yet. */
#include "measure/schedule.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "infer/engine.h"

enum {
    MAX_TEXTS = 16, N_SEQS = 6, N_BLOBS = 6, MAX_STEP_ROWS = 512, MAX_WANTED = 64, MAX_DEPTH = 4, REF_DEPTH = 2, MTP_ROWS = 64,
    TRACE_LINES = 60, TRACE_WIDTH = 200, SCALAR_TOKENS = 140, SCALAR_ROWS = 12,
};

struct ref_row {
    XXH128_hash_t logits, hidden, state, mtp, draft[MAX_DEPTH];
    int32_t mtp_best;
    uint8_t drafts_seen; // bit d: draft[d] is known
};

struct text {
    int32_t *tok;
    int len, shared; // tokens shared with text 0
    struct ref_row *ref;
    float *hidden; // [len, ld]
};

struct model_set {
    struct backend *be;
    struct model *m;
    struct mtp_head head;
    struct engine *g;
    float *state; // one layer's recurrent state, for hashing
    size_t n_state;
};

struct live {
    bool used;
    int text, len;
    int mtp;       // the head's rows 1..mtp-1 are the text's
    bool has_tail; // and draft rows lie behind them
};

struct blob {
    void *p;
    size_t n;
    int text, len, mtp;
};

struct fuzz {
    const struct schedule_options *o;
    struct schedule_result *r;
    struct text text[MAX_TEXTS];
    int n_texts;
    struct model_set s;
    int ld, vocab, max_pos; // max_pos: texts aren't followed beyond it in this round
    struct live live[N_SEQS];
    struct blob blob[N_BLOBS];
    uint32_t key[2];
    uint64_t counter;
    char trace[TRACE_LINES][TRACE_WIDTH];
    int n_trace;
    const char *isa;
    int threads, round, max_rows; // max_rows: of a step
    double row_cost;              // products of a row, in units of the scalar kernels' second
    bool failed, stopped;
    double ref_done, ref_all; // tokens of the reference
};

/* ---- small things -------------------------------------------------------------------------------------------- */

static uint32_t rnd(struct fuzz *f, uint32_t n) // in [0, n)
{
    uint32_t ctr[4] = {(uint32_t)f->counter, (uint32_t)(f->counter >> 32), 0, 0}, out[4];
    f->counter++;
    philox4x32(f->key, ctr, out);
    return n ? (uint32_t)(((uint64_t)out[0] * n) >> 32) : 0;
}

static bool chance(struct fuzz *f, uint32_t percent) { return rnd(f, 100) < percent; }
static int min_int(int a, int b) { return a < b ? a : b; }
static XXH128_hash_t hash(const void *p, size_t n) { return XXH3_128bits(p, n); }

/* To the caller, or to standard error. */
__attribute__((format(printf, 2, 3))) static void say(const struct schedule_options *o, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (o->say)
        o->say(o->ud, line);
    else
        fputs(line, stderr);
}

__attribute__((format(printf, 2, 3))) static void trace(struct fuzz *f, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f->trace[f->n_trace++ % TRACE_LINES], TRACE_WIDTH, fmt, ap);
    va_end(ap);
}

/* The text that owns a row. */
static int owner(const struct fuzz *f, int text, int pos) { return pos < f->text[text].shared ? 0 : text; }
static struct ref_row *ref_at(const struct fuzz *f, int text, int pos) { return &f->text[owner(f, text, pos)].ref[pos]; }
static const float *hidden_at(const struct fuzz *f, int text, int pos)
{
    return f->text[owner(f, text, pos)].hidden + (int64_t)pos * f->ld;
}

/* Tokens two texts have in common. */
static int common(const struct fuzz *f, int a, int b)
{
    int sa = a ? f->text[a].shared : f->text[0].len, sb = b ? f->text[b].shared : f->text[0].len;
    return a == b ? f->text[a].len : min_int(sa, sb);
}

static int end_of(const struct fuzz *f, int text) { return min_int(f->text[text].len, f->max_pos); }

static bool goes_on(struct fuzz *f, double done)
{
    f->stopped = f->stopped || (f->o->progress && !f->o->progress(f->o->ud, done));
    return !f->stopped;
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

static void close_set(struct model_set *s)
{
    engine_close(s->g);
    model_close(s->m);
    if (s->be)
        s->be->ops->close(s->be);
    free(s->state);
    *s = (struct model_set){0};
}

static int open_set(const struct schedule_options *o, struct model_set *s, const char *isa, int threads, int n_ctx, int n_seqs)
{
    struct err e = {0};
    struct package *p;
    struct backend_options bo = {.threads = threads, .isa = isa};
    struct engine_options eo = {.n_ctx = n_ctx, .n_seqs = n_seqs, .max_rows = MAX_STEP_ROWS, .with_mtp = true};
    *s = (struct model_set){0};
    int rc = package_open(&p, o->model, &e);
    if (!rc && (rc = backend_cpu_open(&s->be, &bo, &e)))
        package_close(p);
    if (!rc && !(rc = model_open(&s->m, p, s->be, &e))) {
        mtp_bind(s->m, &s->head);
        rc = engine_open(&s->g, s->m, &s->head, &eo, &e);
    }
    if (rc) {
        say(o, "schedule: %s\n", e.msg);
        close_set(s);
    }
    return rc;
}

/* Seconds that a row takes with the scalar kernels, roughly. */
static double scalar_seconds(const struct model *m)
{
    double n = 0;
    for (int i = 0; i < weights_count(m->pkg->weights); i++) {
        const struct weight *w = weights_at(m->pkg->weights, i);
        n += w->ndim == 2 ? (double)w->ne[0] * (double)w->ne[1] : 0;
    }
    return n * 1e-9;
}

/* Hash of a sequence's recurrent state, all layers. Sequences and slots have the same numbers. */
static XXH128_hash_t state_hash(struct model_set *s, int seq)
{
    XXH3_state_t x;
    XXH3_128bits_reset(&x);
    for (int i = 0, rec = 0; i < s->m->n_specs; i++) {
        const struct state_spec *p = &s->m->specs[i];
        size_t n = (size_t)p->heads * (size_t)p->dk * (size_t)p->dv;
        if (p->kind != STATE_REC)
            continue;
        if (n > s->n_state) {
            s->state = xrealloc(s->state, n * sizeof *s->state);
            s->n_state = n;
        }
        s->be->ops->rec_read(s->be, seq, rec++, s->state);
        XXH3_128bits_update(&x, s->state, n * sizeof *s->state);
    }
    return XXH3_128bits_digest(&x);
}

static int argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

static bool at_border(int len) { return len > 1 && (len + 1) % 64 < 3; }

/* ---- the reference ------------------------------------------------------------------------------------------------- */

/* Decodes a text one token at a time up to `last` and leaves the row of kind `want` there (a copy) in *row. */
enum row_kind { ROW_LOGITS, ROW_HIDDEN, ROW_MTP };

static int reference_text(struct fuzz *f, struct model_set *s, int t, int last, enum row_kind want, float *row)
{
    struct text *x = &f->text[t];
    struct err e = {0};
    int seq = seq_new(s->g);
    size_t vocab_bytes = (size_t)f->vocab * sizeof(float), hidden_bytes = (size_t)f->s.m->hidden * sizeof(float);
    for (int i = 0; i <= last; i++) {
        struct row r = {seq, x->tok[i], WANT_LOGITS | WANT_HIDDEN | ROW_FINAL};
        struct out out;
        struct ref_row *ref = ref_at(f, t, i);
        if (!row && !goes_on(f, f->ref_done++ / f->ref_all / 3))
            break;
        if (engine_step(s->g, &r, 1, &out, &e))
            goto bad;
        seq_commit(s->g, seq, 1);
        if (row && i == last && want != ROW_MTP)
            memcpy(row, want == ROW_LOGITS ? out.logits : out.hidden, want == ROW_LOGITS ? vocab_bytes : hidden_bytes);
        if (!row && i >= x->shared) {
            ref->logits = hash(out.logits, vocab_bytes);
            ref->hidden = hash(out.hidden, hidden_bytes);
            ref->state = state_hash(s, seq);
            memcpy(x->hidden + (int64_t)i * f->ld, out.hidden, (size_t)f->ld * sizeof(float));
        }
        if (!i || !engine_has_mtp(s->g))
            continue;
        struct mtp_row mr = {seq, x->tok[i], hidden_at(f, t, i - 1), WANT_LOGITS};
        struct mtp_out mo;
        if (mtp_step(s->g, &mr, 1, NULL, true, &mo, &e))
            goto bad;
        if (row && i == last && want == ROW_MTP)
            memcpy(row, mo.logits, vocab_bytes);
        if (row || i < x->shared)
            continue;
        ref->mtp = hash(mo.logits, vocab_bytes);
        ref->mtp_best = argmax(mo.logits, f->vocab);
        if (i % 4 && !at_border(i))
            continue;
        mr = (struct mtp_row){seq, ref->mtp_best, NULL, WANT_LOGITS};
        for (int d = 0; d < REF_DEPTH; d++, mr.tok = mo.best[0]) {
            if (mtp_step(s->g, &mr, 1, NULL, true, &mo, &e))
                goto bad;
            ref->draft[d] = hash(mo.logits, vocab_bytes);
        }
        ref->drafts_seen = (1 << REF_DEPTH) - 1;
        mtp_cut(s->g, seq, i + 1);
    }
    seq_free(s->g, seq);
    return 0;
bad:
    say(f->o, "schedule: reference: %s\n", e.msg);
    return e.code;
}

static int reference_all(struct fuzz *f)
{
    int64_t t0 = clock_ns();
    int rc = 0;
    for (int t = 0; t < f->n_texts; t++)
        f->ref_all += f->text[t].len;
    for (int t = 0; t < f->n_texts && !rc && !f->stopped; t++)
        rc = reference_text(f, &f->s, t, f->text[t].len - 1, ROW_LOGITS, NULL);
    f->r->ref_seconds += (double)(clock_ns() - t0) * 1e-9;
    return rc;
}

static void make_texts(struct fuzz *f)
{
    static const int borders[] = {64, 65, 63, 1024, 1025, 1023};
    int max = f->o->max_tokens, tail = max / 6 < 12 ? 12 : max / 6 > 150 ? 150 : max / 6;
    f->n_texts = 0;
    for (int i = 0; i <= f->o->branches && f->n_texts < MAX_TEXTS; i++) {
        struct text *x = &f->text[f->n_texts];
        int at = i == 0 ? 0 : i <= 6 ? borders[i - 1] : 1 + (int)rnd(f, (uint32_t)max - 2);
        bool is_taken = at >= max - 1;
        for (int k = 1; k < f->n_texts; k++)
            is_taken = is_taken || f->text[k].shared == at;
        if (is_taken)
            continue;
        *x = (struct text){.len = i ? at + tail : max, .shared = at};
        x->tok = xcalloc((size_t)x->len, sizeof *x->tok);
        x->ref = xcalloc((size_t)x->len, sizeof *x->ref);
        x->hidden = xcalloc((size_t)x->len * (size_t)f->ld, sizeof *x->hidden);
        for (int p = 0; p < x->len; p++)
            x->tok[p] = p < at ? f->text[0].tok[p] : (int32_t)rnd(f, (uint32_t)f->vocab);
        if (i && x->tok[at] == f->text[0].tok[at])
            x->tok[at] = (x->tok[at] + 1) % f->vocab;
        f->n_texts++;
    }
}

/* ---- a difference ---------------------------------------------------------------------------------------------------- */

static void report(struct fuzz *f, const char *what, int seq, int text, int pos)
{
    f->failed = true;
    say(f->o, "\nDIFFERENCE: %s of text %d at position %d (sequence %d), round %d, %d threads, %s\n", what, text, pos, seq, f->round,
            f->threads, f->isa ? f->isa : "best instruction set");
    int first = f->n_trace > TRACE_LINES ? f->n_trace - TRACE_LINES : 0;
    for (int i = first; i < f->n_trace; i++)
        say(f->o, "  %5d  %s\n", i, f->trace[i % TRACE_LINES]);
    say(f->o, "reproduce: schedule %s --seed %llu --rows %lld --tokens %d --branches %d", f->o->model, (unsigned long long)f->o->seed,
            (long long)f->o->rows, f->o->max_tokens, f->o->branches);
    if (f->o->threads)
        say(f->o, " --threads %d", f->o->threads);
    if (f->o->isa)
        say(f->o, " --isa %s", f->o->isa);
    say(f->o, "\n");
}

/* Computes the row anew and says where the two part. */
static void first_element(struct fuzz *f, enum row_kind kind, int text, int pos, const float *got)
{
    struct model_set s;
    int n = kind == ROW_HIDDEN ? f->s.m->hidden : f->vocab, differ = 0, first = -1;
    float *want = xcalloc((size_t)(n > f->ld ? n : f->ld), sizeof *want);
    if (!open_set(f->o, &s, f->o->isa, 1, f->o->max_tokens + 256, 1)) {
        if (!reference_text(f, &s, text, pos, kind, want)) {
            for (int i = 0; i < n; i++)
                if (memcmp(&want[i], &got[i], sizeof *got)) {
                    first = first < 0 ? i : first;
                    differ++;
                }
            if (differ)
                say(f->o, "%d of %d elements differ, first %d: expected %a (%g), found %a (%g)\n", differ, n, first,
                        (double)want[first], (double)want[first], (double)got[first], (double)got[first]);
            else
                say(f->o, "the reference, computed anew, agrees with the row found: it changed between its two runs\n");
        }
        close_set(&s);
    }
    free(want);
}

static void check_row(struct fuzz *f, enum row_kind kind, int seq, int text, int pos, const float *got)
{
    static const char *const names[] = {"logits", "hidden row", "MTP logits"};
    const struct ref_row *ref = ref_at(f, text, pos);
    const XXH128_hash_t want = kind == ROW_LOGITS ? ref->logits : kind == ROW_HIDDEN ? ref->hidden : ref->mtp;
    size_t n = (size_t)(kind == ROW_HIDDEN ? f->s.m->hidden : f->vocab);
    int64_t *count = kind == ROW_LOGITS ? &f->r->trunk : kind == ROW_HIDDEN ? &f->r->hidden : &f->r->mtp;
    if (f->failed)
        return;
    ++*count;
    if (XXH128_isEqual(hash(got, n * sizeof *got), want))
        return;
    float *copy = xmalloc(n * sizeof *copy); // reporting must not depend on the engine's buffers
    memcpy(copy, got, n * sizeof *copy);
    report(f, names[kind], seq, text, pos);
    first_element(f, kind, text, pos, copy);
    free(copy);
}

static void check_state(struct fuzz *f, int seq, int text, int pos)
{
    if (f->failed || pos < 0 || !f->s.be->slot_bytes)
        return;
    f->r->states++;
    if (!XXH128_isEqual(state_hash(&f->s, seq), ref_at(f, text, pos)->state))
        report(f, "recurrent state after the token", seq, text, pos);
}

/* The engine refused what must be possible. */
static void refused(struct fuzz *f, const char *what, const struct err *e)
{
    say(f->o, "schedule: %s: %s\n", what, e->msg);
    report(f, what, -1, 0, 0);
}

/* ---- sequences ----------------------------------------------------------------------------------------------------------- */

static int pick_used(struct fuzz *f)
{
    int n = 0, pick = -1;
    for (int i = 0; i < N_SEQS; i++)
        if (f->live[i].used && !rnd(f, (uint32_t)++n))
            pick = i;
    return pick;
}

static void evict(struct fuzz *f)
{
    int seq = pick_used(f);
    if (seq < 0)
        return;
    if (chance(f, 70)) {
        trace(f, "free %d", seq);
        seq_free(f->s.g, seq);
        f->live[seq].used = false;
    } else {
        trace(f, "reset %d", seq);
        seq_reset(f->s.g, seq);
        f->live[seq] = (struct live){true, (int)rnd(f, (uint32_t)f->n_texts), 0, 1, false};
    }
    f->r->evictions++;
}

static void create(struct fuzz *f)
{
    int seq = seq_new(f->s.g);
    if (seq < 0)
        return;
    f->live[seq] = (struct live){true, (int)rnd(f, (uint32_t)f->n_texts), 0, 1, false};
    trace(f, "new %d on text %d", seq, f->live[seq].text);
}

/* Drops draft rows of the head, and sometimes true ones. */
static void cut_tail(struct fuzz *f, int seq, int len)
{
    struct live *l = &f->live[seq];
    trace(f, "mtp_cut %d to %d", seq, len);
    mtp_cut(f->s.g, seq, len);
    l->mtp = len < l->mtp ? len : l->mtp;
    l->has_tail = false;
}

/* Another text that agrees with this one so far; its next token differs where the branch lies here. */
static int other_text(struct fuzz *f, int text, int len)
{
    int n = 0, pick = text, n_next = 0, next = -1;
    for (int t = 0; t < f->n_texts; t++) {
        if (common(f, text, t) < len || len >= end_of(f, t))
            continue;
        if (!rnd(f, (uint32_t)++n))
            pick = t;
        if (t != text && common(f, text, t) == len && !rnd(f, (uint32_t)++n_next))
            next = t;
    }
    return next >= 0 && chance(f, 70) ? next : pick;
}

static void fork_one(struct fuzz *f, int seq)
{
    struct live *l = &f->live[seq];
    int copy = seq_fork(f->s.g, seq);
    if (copy < 0)
        return;
    f->live[copy] = (struct live){true, other_text(f, l->text, l->len), l->len, l->mtp < l->len ? l->mtp : l->len, false};
    if (f->live[copy].mtp < 1)
        f->live[copy].mtp = 1;
    trace(f, "fork %d (text %d, len %d, mtp %d%s) to %d on text %d", seq, l->text, l->len, l->mtp, l->has_tail ? " with drafts" : "", copy,
          f->live[copy].text);
    f->r->forks++;
}

static void save_one(struct fuzz *f, int seq)
{
    struct live *l = &f->live[seq];
    struct blob *b = &f->blob[rnd(f, N_BLOBS)];
    struct err e = {0};
    free(b->p);
    *b = (struct blob){.text = l->text, .len = l->len, .mtp = l->mtp < l->len ? l->mtp : l->len > 0 ? l->len : 1};
    trace(f, "save %d (text %d, len %d, mtp %d)", seq, l->text, l->len, b->mtp);
    if (seq_save(f->s.g, seq, &b->p, &b->n, &e)) {
        b->p = NULL;
        refused(f, "seq_save", &e);
    }
}

static void restore_one(struct fuzz *f)
{
    struct blob *b = &f->blob[rnd(f, N_BLOBS)];
    struct err e = {0};
    if (!b->p || b->len > f->max_pos)
        return;
    int seq = seq_new(f->s.g);
    if (seq < 0 && (seq = pick_used(f)) < 0)
        return;
    int rc = seq_load(f->s.g, seq, b->p, b->n, &e);
    trace(f, "restore text %d, len %d, mtp %d into %d%s", b->text, b->len, b->mtp, seq, rc ? ": no memory" : "");
    if (rc && rc != ERR_NOMEM) {
        refused(f, "seq_load", &e);
    } else if (rc) { // the sequence is empty now
        f->live[seq] = (struct live){true, b->text, 0, 1, false};
    } else {
        f->live[seq] = (struct live){true, other_text(f, b->text, b->len), b->len, b->mtp, false};
        f->r->restores++;
    }
}

/* ---- steps of the trunk ------------------------------------------------------------------------------------------------------ */

struct part {
    int seq, n, n_final, n_right; // n_right: rows that follow the text, n_final among them
    int len, next;
};

/* Rows that end on or beside a border of pages or segments, if one lies near. */
static int to_border(struct fuzz *f, int len, int n)
{
    int b = (len / 64 + 1) * 64 + (int)rnd(f, 3) - 1, s = (len / 1024 + 1) * 1024 + (int)rnd(f, 3) - 1;
    int at = s - len < 300 ? s : b;
    return at > len && at - len <= 300 && chance(f, 40) ? at - len : n;
}

static struct part plan(struct fuzz *f, int seq, int room)
{
    struct live *l = &f->live[seq];
    struct part p = {.seq = seq, .len = l->len};
    int left = end_of(f, l->text) - l->len, drafts = 0;
    uint32_t mode = rnd(f, 100);
    if (left < 1)
        return p;
    if (mode < 40) { // decode, plain or with a verify
        p.n_final = (int)rnd(f, 2);
        drafts = (int)rnd(f, chance(f, 20) ? PROVISIONAL_MAX + 1 : 9);
    } else if (mode < 65) { // prompt chunk
        uint32_t size = rnd(f, 100);
        p.n_final = to_border(f, l->len, 1 + (int)(size < 40 ? rnd(f, 8) : size < 80 ? rnd(f, 70) : rnd(f, 300)));
    } else if (mode < 85) { // prompt and drafts in one
        p.n_final = (int)rnd(f, 21);
        drafts = 1 + (int)rnd(f, PROVISIONAL_MAX);
    }
    if (p.n_final + drafts == 0)
        p.n_final = 1;
    p.n_final = min_int(min_int(p.n_final, left), room);
    drafts = min_int(drafts, room - p.n_final);
    uint32_t kind = rnd(f, 3); // drafts right, right up to somewhere, wrong
    int right = kind == 0 ? drafts : kind == 1 ? (int)rnd(f, (uint32_t)drafts + 1) : 0;
    p.n = p.n_final + drafts;
    p.n_right = p.n_final + min_int(right, left - p.n_final);
    return p;
}

static int32_t token_of(struct fuzz *f, const struct part *p, int i)
{
    const struct text *x = &f->text[f->live[p->seq].text];
    int pos = p->len + i;
    if (i < p->n_right)
        return x->tok[pos];
    int32_t right = pos < x->len ? x->tok[pos] : 0;
    return (right + 1 + (int32_t)rnd(f, (uint32_t)f->vocab - 1)) % f->vocab;
}

/* Lays the parts' rows out in a random order that keeps each sequence's own. where[i]: part and row of row i. */
static int interleave(struct fuzz *f, struct part *p, int n_parts, struct row *rows, int (*where)[2])
{
    int n = 0, wanted = 0, left = 0, at = 0;
    bool is_mixed = chance(f, 60);
    for (int i = 0; i < n_parts; i++)
        left += p[i].n;
    for (; left; left--) {
        if (is_mixed || p[at].next == p[at].n)
            do
                at = (int)rnd(f, (uint32_t)n_parts);
            while (p[at].next == p[at].n);
        int i = p[at].next++;
        uint8_t want = i < p[at].n_final ? ROW_FINAL | WANT_HIDDEN : WANT_HIDDEN;
        if (wanted < MAX_WANTED && chance(f, left > 100 ? 30 : 95)) {
            want |= WANT_LOGITS;
            wanted++;
        }
        rows[n] = (struct row){p[at].seq, token_of(f, &p[at], i), want};
        where[n][0] = at;
        where[n++][1] = i;
    }
    return n;
}

static void commit(struct fuzz *f, const struct part *p)
{
    struct live *l = &f->live[p->seq];
    uint32_t kind = rnd(f, 100);
    int keep = kind < 35 ? p->n_right : kind < 55 ? p->n_final : p->n_final + (int)rnd(f, (uint32_t)(p->n_right - p->n_final) + 1);
    if (kind >= 92) { // not committed: the final rows happened, the others didn't
        trace(f, "  no commit for %d", p->seq);
        keep = p->n_final;
    } else {
        int say = keep == p->n_final && chance(f, 30) ? 0 : keep;
        trace(f, "  commit %d: %d of %d", p->seq, say, p->n);
        seq_commit(f->s.g, p->seq, say);
    }
    f->r->rejected += p->n - keep;
    l->len += keep;
}

static void trunk_step(struct fuzz *f)
{
    struct part parts[N_SEQS];
    static struct row rows[MAX_STEP_ROWS];
    static int where[MAX_STEP_ROWS][2];
    int n_parts = 0, room = min_int(chance(f, 70) ? 40 : MAX_STEP_ROWS, f->max_rows), want = 1 + (int)rnd(f, chance(f, 50) ? 2 : N_SEQS);
    for (int k = 0, seq = (int)rnd(f, N_SEQS); k < N_SEQS && n_parts < want && room; k++, seq = (seq + 1) % N_SEQS) {
        if (!f->live[seq].used)
            continue;
        parts[n_parts] = plan(f, seq, room);
        if (f->live[seq].has_tail) // tokens that come now must not find draft rows in their place
            cut_tail(f, seq, f->live[seq].mtp);
        if (parts[n_parts].n) {
            room -= parts[n_parts].n;
            n_parts++;
        } else if (chance(f, 50)) { // at its text's end
            seq_free(f->s.g, seq);
            f->live[seq].used = false;
            trace(f, "free %d at the end of its text", seq);
        }
    }
    if (!n_parts)
        return;
    int n = interleave(f, parts, n_parts, rows, where);
    struct out out;
    struct err e = {0};
    int rc = engine_step(f->s.g, rows, n, &out, &e);
    for (int i = 0; i < n_parts; i++)
        trace(f, "step of %d rows: seq %d text %d at %d: %d final, %d drafts, %d right%s", n, parts[i].seq, f->live[parts[i].seq].text,
              parts[i].len, parts[i].n_final, parts[i].n - parts[i].n_final, parts[i].n_right - parts[i].n_final, rc ? ": no memory" : "");
    if (rc == ERR_NOMEM) {
        evict(f);
        return;
    }
    if (rc) {
        refused(f, "engine_step", &e);
        return;
    }
    f->r->steps++;
    const float *logits = out.logits, *hidden = out.hidden;
    for (int i = 0; i < n; i++) {
        const struct part *p = &parts[where[i][0]];
        int row = where[i][1], text = f->live[p->seq].text;
        if (rows[i].want & WANT_LOGITS) {
            if (row < p->n_right)
                check_row(f, ROW_LOGITS, p->seq, text, p->len + row, logits);
            logits += f->vocab;
        }
        if (row < p->n_right)
            check_row(f, ROW_HIDDEN, p->seq, text, p->len + row, hidden);
        hidden += f->ld;
    }
    for (int i = 0; i < n_parts; i++) {
        check_state(f, parts[i].seq, f->live[parts[i].seq].text, parts[i].len + parts[i].n_final - 1);
        commit(f, &parts[i]);
    }
}

/* ---- rows of the head ------------------------------------------------------------------------------------------------------------ */

struct pairs {
    int seq, first, n;
    int32_t best;
};

/* Recursive drafts of the sequences whose last row is the pair of the token that comes next. */
static void draft(struct fuzz *f, const struct pairs *all, int n_all)
{
    int depth = 1 + (int)rnd(f, MAX_DEPTH), n = 0;
    struct mtp_row rows[N_SEQS];
    struct mtp_out mo;
    struct err e = {0};
    for (int i = 0; i < n_all; i++)
        if (f->live[all[i].seq].mtp == f->live[all[i].seq].len + 1)
            rows[n++] = (struct mtp_row){all[i].seq, all[i].best, NULL, WANT_LOGITS};
    for (int d = 0; d < depth && n; d++) {
        int rc = mtp_step(f->s.g, rows, n, NULL, true, &mo, &e);
        if (rc == ERR_NOMEM)
            return;
        if (rc) {
            refused(f, "mtp_step", &e);
            return;
        }
        for (int i = 0; i < n; i++) {
            struct live *l = &f->live[rows[i].seq];
            struct ref_row *ref = ref_at(f, l->text, l->len);
            XXH128_hash_t h = hash(mo.logits + (int64_t)i * f->vocab, (size_t)f->vocab * sizeof(float));
            if (d == 0)
                trace(f, "drafts of %d (text %d) behind row %d, depth %d", rows[i].seq, l->text, l->len, depth);
            l->has_tail = true;
            rows[i].tok = mo.best[i];
            if (ref->drafts_seen >> d & 1) {
                f->r->drafts++;
                if (!f->failed && !XXH128_isEqual(h, ref->draft[d]))
                    report(f, "recursive draft row", rows[i].seq, l->text, l->len + 1 + d);
            }
            ref->draft[d] = h;
            ref->drafts_seen |= (uint8_t)(1u << d);
        }
    }
}

/* A pair with a token that doesn't come: its row must be forgotten. */
static void wrong_pair(struct fuzz *f, int seq)
{
    struct live *l = &f->live[seq];
    struct mtp_out mo;
    struct err e = {0};
    struct mtp_row r = {seq, (int32_t)rnd(f, (uint32_t)f->vocab), hidden_at(f, l->text, l->len - 1), WANT_LOGITS};
    int rc = mtp_step(f->s.g, &r, 1, NULL, false, &mo, &e);
    trace(f, "wrong pair of %d at row %d%s", seq, l->len, rc ? ": no memory" : "");
    l->has_tail = l->has_tail || !rc;
    if (rc && rc != ERR_NOMEM)
        refused(f, "mtp_step", &e);
}

/* True pairs for some sequences in one batch. Returns how many sequences took part. */
static int plan_pairs(struct fuzz *f, struct pairs *all, struct mtp_row *rows, int *n_rows)
{
    int n = 0, room = min_int(MTP_ROWS, f->max_rows), want = 1 + (int)rnd(f, 3);
    *n_rows = 0;
    for (int k = 0, seq = (int)rnd(f, N_SEQS); k < N_SEQS && n < want && room; k++, seq = (seq + 1) % N_SEQS) {
        struct live *l = &f->live[seq];
        if (!l->used || l->len < 1)
            continue;
        if (chance(f, 10))
            cut_tail(f, seq, 1 + (int)rnd(f, (uint32_t)l->mtp));
        else if (l->has_tail)
            cut_tail(f, seq, l->mtp);
        int last = min_int(l->len, f->text[l->text].len - 1), left = last - l->mtp + 1;
        if (left < 1)
            continue;
        int m = min_int(min_int(left, room), chance(f, 50) ? left : 1 + (int)rnd(f, 12));
        all[n] = (struct pairs){seq, l->mtp, m, -1};
        for (int i = 0; i < m; i++) {
            int j = l->mtp + i;
            bool wanted = i == m - 1 || chance(f, 80);
            rows[(*n_rows)++] = (struct mtp_row){seq, f->text[l->text].tok[j], hidden_at(f, l->text, j - 1),
                                                 wanted ? WANT_LOGITS : 0};
        }
        room -= m;
        n++;
    }
    return n;
}

static void mtp_rows(struct fuzz *f)
{
    struct pairs all[N_SEQS];
    struct mtp_row rows[MTP_ROWS];
    struct mtp_out mo;
    struct err e = {0};
    int n_rows, at = 0, n = plan_pairs(f, all, rows, &n_rows);
    bool full = chance(f, 85);
    if (!n)
        return;
    int rc = mtp_step(f->s.g, rows, n_rows, NULL, full, &mo, &e);
    for (int i = 0; i < n; i++)
        trace(f, "pairs of %d (text %d, len %d): rows %d..%d%s", all[i].seq, f->live[all[i].seq].text, f->live[all[i].seq].len,
              all[i].first, all[i].first + all[i].n - 1, rc ? ": no memory" : "");
    if (rc == ERR_NOMEM) {
        evict(f);
        return;
    }
    if (rc) {
        refused(f, "mtp_step", &e);
        return;
    }
    for (int i = 0, r = 0; i < n; i++) {
        struct live *l = &f->live[all[i].seq];
        for (int k = 0; k < all[i].n; k++, r++) {
            if (!(rows[r].want & WANT_LOGITS))
                continue;
            if (full)
                check_row(f, ROW_MTP, all[i].seq, l->text, all[i].first + k, mo.logits + (int64_t)at * f->vocab);
            else if (!f->failed && mo.best[at] != ref_at(f, l->text, all[i].first + k)->mtp_best)
                report(f, "MTP argmax", all[i].seq, l->text, all[i].first + k);
            all[i].best = mo.best[at++];
        }
        l->mtp += all[i].n;
    }
    if (chance(f, 70))
        draft(f, all, n);
    for (int i = 0; i < n; i++) {
        struct live *l = &f->live[all[i].seq];
        if (l->mtp == l->len && !l->has_tail && chance(f, 50))
            wrong_pair(f, all[i].seq);
        if (l->has_tail && chance(f, 60))
            cut_tail(f, all[i].seq, l->mtp);
    }
}

/* ---- rounds -------------------------------------------------------------------------------------------------- */

static void one_operation(struct fuzz *f)
{
    uint32_t k = rnd(f, 100);
    int seq = pick_used(f);
    if (seq < 0 || k < 5) {
        if (!chance(f, 50))
            restore_one(f);
        else
            create(f);
        return;
    }
    if (f->live[seq].len && at_border(f->live[seq].len) && chance(f, 40)) {
        fork_one(f, seq);
        return;
    }
    if (k < 55)
        trunk_step(f);
    else if (k < 85 && engine_has_mtp(f->s.g))
        mtp_rows(f);
    else if (k < 89)
        fork_one(f, seq);
    else if (k < 92)
        save_one(f, seq);
    else if (k < 94)
        evict(f);
    else
        trunk_step(f);
}

static int64_t compared(const struct schedule_result *r) { return r->trunk + r->mtp + r->drafts; }

/* One engine from opening to closing; saved sequences outlive it. */
static int one_round(struct fuzz *f, int64_t rows)
{
    int n_ctx = f->max_pos + 2 * PAGE_TOKENS + (int)rnd(f, 3) * f->max_pos;
    int rc = open_set(f->o, &f->s, f->isa, f->threads, n_ctx, N_SEQS);
    if (rc)
        return rc;
    trace(f, "round %d: %d threads, %s, %d tokens of KV memory", f->round, f->threads, f->isa ? f->isa : "best isa", n_ctx);
    int64_t end = compared(f->r) + rows, idle = 0, before = -1;
    while (!f->failed && compared(f->r) < end && idle < 10000 && goes_on(f, (1 + 2.0 * (double)compared(f->r) / (double)f->o->rows) / 3)) {
        one_operation(f);
        idle = compared(f->r) == before ? idle + 1 : 0;
        before = compared(f->r);
    }
    if (idle >= 10000) {
        say(f->o, "schedule: no progress in round %d\n", f->round);
        f->failed = true;
    }
    for (int i = 0; i < N_SEQS; i++)
        f->live[i].used = false;
    close_set(&f->s);
    return 0;
}

static int all_rounds(struct fuzz *f)
{
    static const int threads[] = {2, 1, 3, 2};
    int64_t per_round = f->o->rows / 8 < 200 ? 200 : f->o->rows / 8;
    int rc = 0;
    for (f->round = 0; !rc && !f->failed && !f->stopped && compared(f->r) < f->o->rows; f->round++) {
        bool is_scalar = !f->o->isa && f->round % 8 == 3;
        int64_t rows = f->o->rows - compared(f->r) < per_round ? f->o->rows - compared(f->r) : per_round;
        f->isa = is_scalar ? "scalar" : f->o->isa;
        f->threads = f->o->threads ? f->o->threads : threads[f->round % 4];
        f->max_pos = is_scalar ? min_int(SCALAR_TOKENS, f->o->max_tokens) : f->o->max_tokens + 160;
        f->max_rows = is_scalar ? SCALAR_ROWS : MAX_STEP_ROWS;
        if (is_scalar) // a second or two, whatever the model's size
            rows = rows / 10 < 1 / f->row_cost ? rows / 10 + 1 : 1 + (int64_t)(1 / f->row_cost);
        rc = one_round(f, rows);
    }
    return rc;
}

int schedule_run(const struct schedule_options *o, struct schedule_result *r)
{
    struct fuzz *f = xcalloc(1, sizeof *f);
    int64_t t0 = clock_ns();
    *r = (struct schedule_result){0};
    f->o = o;
    f->r = r;
    f->key[0] = (uint32_t)o->seed;
    f->key[1] = (uint32_t)(o->seed >> 32);
    int rc = open_set(o, &f->s, o->isa, 1, o->max_tokens + 256, 1);
    if (!rc) {
        f->ld = engine_hidden_ld(f->s.g);
        f->vocab = f->s.m->n_vocab;
        f->row_cost = scalar_seconds(f->s.m);
        make_texts(f);
        rc = reference_all(f);
        close_set(&f->s);
    }
    if (!rc && !f->stopped)
        rc = all_rounds(f);
    for (int i = 0; i < N_BLOBS; i++)
        free(f->blob[i].p);
    for (int i = 0; i < f->n_texts; i++) {
        free(f->text[i].tok);
        free(f->text[i].ref);
        free(f->text[i].hidden);
    }
    r->seconds = (double)(clock_ns() - t0) * 1e-9;
    rc = rc ? rc : f->failed ? 1 : f->stopped ? ERR_CANCEL : 0;
    free(f);
    return rc;
}
