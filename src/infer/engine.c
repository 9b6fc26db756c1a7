#include "infer/engine.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Pages of one class in a sequence: page[p] holds tokens p * PAGE_TOKENS and on, for p in [first, end). */
struct table {
    int32_t *page; // [max_pages], -1 outside
    int first, end;
};

/* Rows 1..mtp_len-1 of the head's KV belong to tokens 1..mtp_len-1; row 0 doesn't exist. */
struct seq {
    bool used;
    int slot;
    struct table table[PAGE_CLASSES];
    int len, state_pos; // tokens committed; tokens folded into the recurrent state
    int step_n, step_final; // its rows in the last step, not yet committed
    int mtp_len;
};

struct subset {
    struct subset *next;
    struct bweight *w;
    int32_t *ids;   // [n_vocab]
    uint8_t *has;   // [n_vocab]
    int n;
};

/* All pages of one class. */
struct pool {
    int window; // 0: its pieces keep all tokens
    int n_pages, n_free, least_free;
    int32_t *free_pages;
    int *refs; // [n_pages]
};

struct engine {
    struct model *m;
    const struct mtp_head *head; // NULL: none
    int max_rows, max_pages, n_seqs; // max_pages: of a sequence
    struct pool pool[PAGE_CLASSES];
    int n_pools;
    struct seq *seqs;
    /* one step */
    int32_t *token, *pos, *run_of, *sel, *from; // [max_rows]; from: the caller's row index of a step row
    struct run *runs;
    int32_t *best;
    float *logits, *hidden, *pair_hidden; // [logit_rows, vocab], [max_rows, ld], [n_seqs, ld]
    int logit_rows, ld;
    int *seq_rows; // [n_seqs] rows of each sequence while a step is laid out
    struct subset *subsets, *draft;
};

enum { LOGIT_ROWS = 64, VOCAB_WHOLE = 65536 }; // a vocabulary up to this size is drafted from whole

/* Pages that a class needs. What keeps all tokens has n_ctx of them, and every sequence may hold one partly filled
 * page. A windowed class can't need more than window - 1 tokens, a step's rows and two torn pages a sequence. */
static int pool_pages(const struct engine *g, int window)
{
    int whole = g->max_pages + g->n_seqs;
    int64_t most = (int64_t)g->n_seqs * ((window + PAGE_TOKENS - 3) / PAGE_TOKENS + 2) + g->max_rows / PAGE_TOKENS;
    return window && most < whole ? (int)most : whole;
}

static int open_pools(struct engine *g, struct err *e)
{
    const struct model *m = g->m;
    int n_pages[PAGE_CLASSES] = {0};
    for (int i = 0; i < m->n_specs; i++)
        if (m->specs[i].page_class >= PAGE_CLASSES)
            return err_set(e, ERR_UNSUPPORTED, "%s: unsupported: layers with more than %d different windows", m->pkg->path, PAGE_CLASSES);
    g->n_pools = m->n_windows;
    for (int c = 0; c < g->n_pools; c++) {
        struct pool *p = &g->pool[c];
        *p = (struct pool){.window = m->windows[c], .n_pages = pool_pages(g, m->windows[c])};
        n_pages[c] = p->n_pages;
        p->refs = xcalloc((size_t)p->n_pages, sizeof *p->refs);
        p->free_pages = xcalloc((size_t)p->n_pages, sizeof *p->free_pages);
        while (p->n_free < p->n_pages) {
            p->free_pages[p->n_free] = p->n_pages - 1 - p->n_free;
            p->n_free++;
        }
        p->least_free = p->n_free;
    }
    return m->be->ops->setup(m->be, m->specs, m->n_specs, m->widths, g->max_rows, n_pages, g->n_seqs, PROVISIONAL_MAX, e);
}

int engine_open(struct engine **out, struct model *m, const struct mtp_head *head, const struct engine_options *o, struct err *e)
{
    struct engine *g = xcalloc(1, sizeof *g);
    int n_ctx = o->n_ctx > 0 ? o->n_ctx : m->max_ctx;
    g->m = m;
    g->head = o->with_mtp && head && head->health == MTP_OK ? head : NULL;
    g->n_seqs = o->n_seqs > 0 ? o->n_seqs : 1;
    g->max_rows = o->max_rows > 0 ? o->max_rows : 512;
    if (g->max_rows < 2 * PROVISIONAL_MAX)
        g->max_rows = 2 * PROVISIONAL_MAX;
    g->max_pages = (n_ctx + PAGE_TOKENS - 1) / PAGE_TOKENS;
    g->ld = (m->hidden + 15) & ~15;
    g->logit_rows = g->max_rows < LOGIT_ROWS ? g->max_rows : LOGIT_ROWS;
    g->seqs = xcalloc((size_t)g->n_seqs, sizeof *g->seqs);
    int rc = open_pools(g, e);
    if (rc) {
        engine_close(g);
        return rc;
    }
    size_t rows = (size_t)g->max_rows;
    for (int i = 0; i < g->n_seqs; i++) {
        g->seqs[i].slot = i;
        for (int c = 0; c < g->n_pools; c++) {
            int32_t *page = g->seqs[i].table[c].page = xmalloc((size_t)g->max_pages * sizeof *page);
            memset(page, 0xff, (size_t)g->max_pages * sizeof *page);
        }
    }
    g->token = xcalloc(rows, sizeof *g->token);
    g->pos = xcalloc(rows, sizeof *g->pos);
    g->run_of = xcalloc(rows, sizeof *g->run_of);
    g->sel = xcalloc(rows, sizeof *g->sel);
    g->from = xcalloc(rows, sizeof *g->from);
    g->best = xcalloc(rows, sizeof *g->best);
    g->runs = xcalloc((size_t)g->n_seqs, sizeof *g->runs);
    g->seq_rows = xcalloc((size_t)g->n_seqs, sizeof *g->seq_rows);
    g->hidden = mem_big(rows * (size_t)g->ld * 4);
    g->pair_hidden = mem_big((size_t)g->n_seqs * (size_t)g->ld * 4);
    g->logits = mem_big((size_t)g->logit_rows * (size_t)m->n_vocab * 4);
    if (!g->hidden || !g->pair_hidden || !g->logits) {
        engine_close(g);
        return err_set(e, ERR_NOMEM, "no memory for %d rows of %d logits", g->logit_rows, m->n_vocab);
    }
    if (g->head && m->n_vocab > VOCAB_WHOLE && (rc = subset_new(g, &g->draft, e))) {
        engine_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

void engine_close(struct engine *g)
{
    if (!g)
        return;
    for (int c = 0; c < g->n_pools; c++) {
        for (int i = 0; i < g->n_seqs; i++)
            free(g->seqs[i].table[c].page);
        free(g->pool[c].refs);
        free(g->pool[c].free_pages);
    }
    while (g->subsets) {
        struct subset *s = g->subsets;
        g->subsets = s->next;
        free(s->ids);
        free(s->has);
        free(s);
    }
    mem_big_free(g->hidden, (size_t)g->max_rows * (size_t)g->ld * 4);
    mem_big_free(g->pair_hidden, (size_t)g->n_seqs * (size_t)g->ld * 4);
    mem_big_free(g->logits, (size_t)g->logit_rows * (size_t)g->m->n_vocab * 4);
    free(g->seqs);
    free(g->token);
    free(g->pos);
    free(g->run_of);
    free(g->sel);
    free(g->from);
    free(g->best);
    free(g->runs);
    free(g->seq_rows);
    free(g);
}

const struct model *engine_model(const struct engine *g) { return g->m; }
bool engine_has_mtp(const struct engine *g) { return g->head != NULL; }
int engine_max_rows(const struct engine *g) { return g->max_rows; }
int engine_max_tokens(const struct engine *g) { return g->max_pages * PAGE_TOKENS; }
int engine_hidden_ld(const struct engine *g) { return g->ld; }
int engine_pages_free(const struct engine *g) { return g->n_pools ? g->pool[0].n_free : 0; }
int seq_len(const struct engine *g, int seq) { return g->seqs[seq].len; }
int seq_mtp_len(const struct engine *g, int seq) { return g->seqs[seq].mtp_len; }

size_t engine_bytes(const struct engine *g)
{
    size_t bytes = (size_t)g->n_seqs * g->m->be->slot_bytes;
    for (int c = 0; c < g->n_pools; c++)
        bytes += (size_t)g->pool[c].n_pages * g->m->be->page_bytes[c];
    return bytes;
}

bool engine_pool(const struct engine *g, int i, struct pool_use *u)
{
    if (i < 0 || i >= g->n_pools)
        return false;
    const struct pool *p = &g->pool[i];
    *u = (struct pool_use){p->window, p->n_pages, p->n_free, p->n_pages - p->least_free, g->m->be->page_bytes[i]};
    return true;
}

/* ---- sequences and pages ------------------------------------------------------------------------------------------ */

static void page_put(struct pool *p, int page)
{
    if (--p->refs[page] == 0)
        p->free_pages[p->n_free++] = page;
}

static int page_get(struct pool *p)
{
    int page = p->free_pages[--p->n_free];
    p->refs[page] = 1;
    p->least_free = p->n_free < p->least_free ? p->n_free : p->least_free;
    return page;
}

static int pages_of(int tokens) { return (tokens + PAGE_TOKENS - 1) / PAGE_TOKENS; }

/* First page that rows from token len on still look at. */
static int first_page(const struct pool *p, int len)
{
    return p->window && len >= p->window ? (len - p->window + 1) / PAGE_TOKENS : 0;
}

/* Gives up the pages below number end; returns how many become free (dry) or would. */
static int drop_pages(struct pool *p, struct table *t, int end, bool dry)
{
    int n = 0;
    for (int i = t->first; i < end && i < t->end; i++) {
        n += p->refs[t->page[i]] == 1;
        if (dry)
            continue;
        page_put(p, t->page[i]);
        t->page[i] = -1;
    }
    if (!dry && end > t->first)
        t->first = end;
    if (!dry && t->end < t->first)
        t->end = t->first;
    return n;
}

int seq_new(struct engine *g)
{
    for (int i = 0; i < g->n_seqs; i++)
        if (!g->seqs[i].used) {
            g->seqs[i].used = true;
            seq_reset(g, i);
            return i;
        }
    return -1;
}

void seq_reset(struct engine *g, int seq)
{
    struct seq *s = &g->seqs[seq];
    for (int c = 0; c < g->n_pools; c++) {
        drop_pages(&g->pool[c], &s->table[c], s->table[c].end, false);
        s->table[c].first = s->table[c].end = 0;
    }
    s->len = s->state_pos = s->step_n = s->step_final = 0;
    s->mtp_len = 1;
    g->m->be->ops->slot_clear(g->m->be, s->slot);
}

void seq_free(struct engine *g, int seq)
{
    if (seq < 0 || !g->seqs[seq].used)
        return;
    seq_reset(g, seq);
    g->seqs[seq].used = false;
}

/* Settles an uncommitted step: only its final rows happened. */
static void settle(struct engine *g, struct seq *s)
{
    if (s->step_n)
        seq_commit(g, (int)(s - g->seqs), s->step_final);
}

int seq_fork(struct engine *g, int seq)
{
    int copy = seq_new(g);
    if (copy < 0)
        return -1;
    struct seq *s = &g->seqs[seq], *d = &g->seqs[copy];
    settle(g, s);
    for (int c = 0; c < g->n_pools; c++) {
        struct table *from = &s->table[c], *to = &d->table[c];
        to->first = from->first;
        to->end = pages_of(s->len);
        for (int i = to->first; i < to->end; i++) {
            to->page[i] = from->page[i];
            g->pool[c].refs[to->page[i]]++;
        }
    }
    d->len = s->len;
    d->state_pos = s->state_pos;
    d->mtp_len = s->mtp_len < s->len ? s->mtp_len : s->len; // draft rows are not part of the prefix
    if (d->mtp_len < 1)
        d->mtp_len = 1;
    g->m->be->ops->slot_copy(g->m->be, d->slot, s->slot);
    return copy;
}

/* Pages of a class for tokens [first, end) that only this sequence sees. Returns how many free pages that takes
 * (dry) or takes them. */
static int own_pages(struct engine *g, int c, struct seq *s, int first, int end, bool dry)
{
    struct pool *pool = &g->pool[c];
    struct table *t = &s->table[c];
    int need = 0;
    for (int p = first / PAGE_TOKENS; p < pages_of(end); p++) {
        bool is_new = p >= t->end;
        if (!is_new && pool->refs[t->page[p]] == 1)
            continue;
        need++;
        if (dry)
            continue;
        int page = page_get(pool);
        if (!is_new) {
            g->m->be->ops->page_copy(g->m->be, c, page, t->page[p]);
            page_put(pool, t->page[p]);
        } else {
            t->end = p + 1;
        }
        t->page[p] = page;
    }
    return need;
}

void seq_commit(struct engine *g, int seq, int n)
{
    struct seq *s = &g->seqs[seq];
    if (n < s->step_final)
        n = s->step_final;
    if (n > s->step_n)
        n = s->step_n;
    s->len += n;
    s->step_n = s->step_final = 0;
    for (int c = 0; c < g->n_pools; c++) // what lies before the window is never read again
        drop_pages(&g->pool[c], &s->table[c], first_page(&g->pool[c], s->len), false);
}

/* ---- steps ------------------------------------------------------------------------------------------------------------ */

/* A run of the sequence's rows, as yet without any. */
static struct run new_run(const struct engine *g, const struct seq *s, int row0, int pos0)
{
    struct run r = {.slot = s->slot, .row0 = row0, .pos0 = pos0, .state_pos = s->state_pos};
    for (int c = 0; c < g->n_pools; c++)
        r.pages[c] = s->table[c].page;
    return r;
}

/* Groups the rows by sequence, in order of first appearance, and checks them. Fills token, pos, runs, from.
 * Changes no sequence: a step that is refused has not happened. */
static int lay_out(struct engine *g, const struct row *rows, int n, struct step *step, struct err *e)
{
    int n_runs = 0, at = 0;
    if (n < 1 || n > g->max_rows)
        return err_set(e, ERR_ARG, "a step takes 1 to %d rows, not %d", g->max_rows, n);
    memset(g->seq_rows, 0, (size_t)g->n_seqs * sizeof *g->seq_rows);
    for (int i = 0; i < n; i++) {
        if (rows[i].seq < 0 || rows[i].seq >= g->n_seqs || !g->seqs[rows[i].seq].used)
            return err_set(e, ERR_ARG, "row %d: sequence %d does not exist", i, (int)rows[i].seq);
        if (rows[i].tok < 0 || rows[i].tok >= g->m->n_vocab)
            return err_set(e, ERR_ARG, "row %d: token id %d is outside the vocabulary of %d", i, (int)rows[i].tok, g->m->n_vocab);
        g->seq_rows[rows[i].seq]++;
    }
    int pages[PAGE_CLASSES] = {0};
    for (int i = 0; i < n; i++) {
        int id = rows[i].seq;
        if (!g->seq_rows[id])
            continue;
        struct seq *s = &g->seqs[id];
        int len = s->len + s->step_final; // as settle will leave it
        struct run *r = &g->runs[n_runs++];
        *r = new_run(g, s, at, len);
        for (int k = i; k < n; k++) {
            if (rows[k].seq != id)
                continue;
            g->token[at] = rows[k].tok;
            g->pos[at] = len + r->n;
            g->run_of[at] = n_runs - 1;
            g->from[at++] = k;
            if (rows[k].want & ROW_FINAL) {
                if (r->n_final != r->n)
                    return err_set(e, ERR_ARG, "row %d: a final row follows a provisional one", k);
                r->n_final++;
            }
            r->n++;
        }
        if (r->n - r->n_final > PROVISIONAL_MAX)
            return err_set(e, ERR_ARG, "sequence %d: more than %d provisional rows", id, PROVISIONAL_MAX);
        if (len + r->n > g->max_pages * PAGE_TOKENS)
            return err_set(e, ERR_LIMIT, "sequence %d would pass the context limit of %d tokens", id, g->max_pages * PAGE_TOKENS);
        for (int c = 0; c < g->n_pools; c++)
            pages[c] += own_pages(g, c, s, len, len + r->n, true) - drop_pages(&g->pool[c], &s->table[c], first_page(&g->pool[c], len), true);
        g->seq_rows[id] = 0;
    }
    for (int c = 0; c < g->n_pools; c++)
        if (pages[c] > g->pool[c].n_free)
            return err_set(e, ERR_NOMEM, "the step needs %d more pages of KV memory, %d are free", pages[c], g->pool[c].n_free);
    *step = (struct step){.n_rows = n, .n_runs = n_runs, .token = g->token, .pos = g->pos, .run_of = g->run_of, .runs = g->runs};
    return 0;
}

int engine_step(struct engine *g, const struct row *rows, int n, struct out *out, struct err *e)
{
    struct step step;
    int rc = lay_out(g, rows, n, &step, e), n_logits = 0;
    if (rc)
        return rc;
    for (int i = 0; i < n; i++)
        n_logits += (rows[i].want & WANT_LOGITS) != 0;
    if (n_logits > g->logit_rows)
        return err_set(e, ERR_ARG, "a step gives logits for at most %d rows, not %d", g->logit_rows, n_logits);
    for (int r = 0; r < step.n_runs; r++) {
        struct seq *s = &g->seqs[rows[g->from[g->runs[r].row0]].seq];
        settle(g, s);
        for (int c = 0; c < g->n_pools; c++)
            own_pages(g, c, s, g->runs[r].pos0, g->runs[r].pos0 + g->runs[r].n, false);
    }
    model_forward(g->m, &step);
    for (int r = 0; r < step.n_runs; r++) {
        struct seq *s = &g->seqs[rows[g->from[g->runs[r].row0]].seq];
        s->step_n = g->runs[r].n;
        s->step_final = g->runs[r].n_final;
        s->state_pos = g->runs[r].pos0 + g->runs[r].n_final;
    }
    /* results in the caller's order: sel holds, for each wanted row, where it stands in the step */
    *out = (struct out){.logits = g->logits, .hidden = g->hidden};
    for (int i = 0; i < n; i++)
        g->best[g->from[i]] = i;
    for (int i = 0; i < n; i++) {
        if (rows[i].want & WANT_LOGITS)
            g->sel[out->n_logits++] = g->best[i];
        if (rows[i].want & WANT_HIDDEN)
            g->m->be->ops->read(g->m->be, BUF_HIDDEN, g->best[i], 1, g->hidden + (size_t)out->n_hidden++ * (size_t)g->ld);
    }
    if (out->n_logits) {
        struct head_out ho = {.logits = g->logits, .ld = g->m->n_vocab, .softcap = g->m->softcap};
        g->m->be->ops->head(g->m->be, &step, BUF_HIDDEN, g->sel, out->n_logits, g->m->head, &ho);
    }
    return 0;
}

/* ---- the head ------------------------------------------------------------------------------------------------------------ */

int mtp_step(struct engine *g, const struct mtp_row *rows, int n, const struct subset *subset, bool want_logits, struct mtp_out *out,
             struct err *e)
{
    struct backend *be = g->m->be;
    int n_runs = 0, n_sel = 0, pages = 0, c = 0;
    if (!g->head || n < 1 || n > g->max_rows)
        return err_set(e, ERR_ARG, "a draft step of %d rows without a usable head or beyond %d rows", n, g->max_rows);
    memset(g->seq_rows, 0, (size_t)g->n_seqs * sizeof *g->seq_rows);
    for (int i = 0; i < n; i++) { // rows of one sequence are adjacent here
        bool starts = !i || rows[i - 1].seq != rows[i].seq;
        if (rows[i].seq < 0 || rows[i].seq >= g->n_seqs || !g->seqs[rows[i].seq].used)
            return err_set(e, ERR_ARG, "draft row %d: sequence %d does not exist", i, (int)rows[i].seq);
        if (rows[i].tok < 0 || rows[i].tok >= g->m->n_vocab)
            return err_set(e, ERR_ARG, "draft row %d: token id %d is outside the vocabulary of %d", i, (int)rows[i].tok, g->m->n_vocab);
        if (g->seq_rows[rows[i].seq]++ && (starts || !rows[i].hidden))
            return err_set(e, ERR_ARG, "draft row %d: rows of one sequence must be adjacent, only the first may continue the last step", i);
        struct seq *s = &g->seqs[rows[i].seq];
        if (starts)
            g->runs[n_runs++] = new_run(g, s, i, s->mtp_len);
        struct run *r = &g->runs[n_runs - 1];
        g->token[i] = rows[i].tok;
        g->pos[i] = r->pos0 + r->n;
        g->run_of[i] = n_runs - 1;
        r->n++;
        if (rows[i].want & WANT_LOGITS)
            g->sel[n_sel++] = i;
    }
    if (n_sel && subset && !subset->n)
        return err_set(e, ERR_ARG, "the draft vocabulary is empty");
    if (n_sel > g->logit_rows)
        return err_set(e, ERR_ARG, "a draft step gives logits for at most %d rows, not %d", g->logit_rows, n_sel);
    while (g->pool[c].window) // the head's pieces keep all tokens
        c++;
    for (int r = 0; r < n_runs; r++) {
        struct seq *s = &g->seqs[rows[g->runs[r].row0].seq];
        int end = g->runs[r].pos0 + g->runs[r].n;
        pages += own_pages(g, c, s, g->runs[r].pos0, end, true);
        if (end > g->max_pages * PAGE_TOKENS || pages > g->pool[c].n_free)
            return err_set(e, ERR_NOMEM, "no KV memory for the draft");
    }
    for (int r = 0; r < n_runs; r++)
        own_pages(g, c, &g->seqs[rows[g->runs[r].row0].seq], g->runs[r].pos0, g->runs[r].pos0 + g->runs[r].n, false);
    for (int i = 0; i < n; i++)
        be->ops->write(be, BUF_HIDDEN, i, 1, rows[i].hidden ? rows[i].hidden : g->pair_hidden + (size_t)rows[i].seq * (size_t)g->ld);
    struct step step = {.n_rows = n, .n_runs = n_runs, .token = g->token, .pos = g->pos, .run_of = g->run_of, .runs = g->runs};
    mtp_forward(g->m, g->head, &step);
    for (int r = 0; r < n_runs; r++) {
        const struct run *run = &g->runs[r];
        int seq = rows[run->row0].seq;
        g->seqs[seq].mtp_len = run->pos0 + run->n;
        be->ops->read(be, BUF_HIDDEN, run->row0 + run->n - 1, 1, g->pair_hidden + (size_t)seq * (size_t)g->ld);
    }
    *out = (struct mtp_out){.logits = want_logits ? g->logits : NULL, .best = g->best, .n = n_sel};
    if (n_sel) {
        struct head_out ho = {.logits = want_logits ? g->logits : NULL, .ld = subset ? subset->n : g->m->n_vocab, .best = g->best,
                              .softcap = g->m->softcap};
        be->ops->head(be, &step, BUF_HIDDEN, g->sel, n_sel, subset ? subset->w : g->m->head, &ho);
        for (int i = 0; subset && i < n_sel; i++)
            g->best[i] = subset->ids[g->best[i]];
    }
    return 0;
}

void mtp_cut(struct engine *g, int seq, int len)
{
    struct seq *s = &g->seqs[seq];
    if (len < s->mtp_len)
        s->mtp_len = len < 1 ? 1 : len;
}

int subset_new(struct engine *g, struct subset **out, struct err *e)
{
    struct subset *s = xcalloc(1, sizeof *s);
    s->ids = xcalloc((size_t)g->m->n_vocab, sizeof *s->ids);
    s->has = xcalloc((size_t)g->m->n_vocab, 1);
    s->next = g->subsets;
    g->subsets = s;
    *out = s;
    return g->m->be->ops->rows(g->m->be, g->m->head, s->ids, &s->w, e);
}

void subset_clear(struct subset *s)
{
    for (int i = 0; i < s->n; i++)
        s->has[s->ids[i]] = 0;
    s->n = 0;
}

void subset_add(struct engine *g, struct subset *s, int32_t id)
{
    if (s->has[id])
        return;
    s->has[id] = 1;
    s->ids[s->n++] = id;
    g->m->be->ops->rows_set(g->m->be, s->w, s->n);
}

struct subset *engine_draft_subset(struct engine *g) { return g->draft; }
bool subset_has(const struct subset *s, int32_t id) { return s->has[id]; }
int subset_size(const struct subset *s) { return s->n; }
const int32_t *subset_ids(const struct subset *s) { return s->ids; }

/* ---- state as bytes ---------------------------------------------------------------------------------------------------- */

struct saved {
    char magic[8];
    int32_t len, state_pos, mtp_len, n_pages; // n_pages: of all classes
    int32_t window[PAGE_CLASSES];
    uint64_t page_bytes[PAGE_CLASSES], slot_bytes;
};

/* Header of a sequence of len tokens, and the bytes that follow it: the slot, then the pages class by class. */
static struct saved saved_header(const struct engine *g, int len, int state_pos, int mtp_len, size_t *bytes)
{
    const struct backend *be = g->m->be;
    struct saved h = {.magic = "FSSEQ02", .len = len, .state_pos = state_pos, .mtp_len = mtp_len, .slot_bytes = be->slot_bytes};
    *bytes = be->slot_bytes;
    for (int c = 0; c < g->n_pools; c++) {
        int n = pages_of(len) - first_page(&g->pool[c], len);
        h.n_pages += n;
        h.window[c] = g->pool[c].window;
        h.page_bytes[c] = be->page_bytes[c];
        *bytes += (size_t)n * be->page_bytes[c];
    }
    return h;
}

static void pages_io(struct engine *g, struct seq *s, char *p, bool save)
{
    struct backend *be = g->m->be;
    be->ops->slot_io(be, s->slot, p, save);
    p += be->slot_bytes;
    for (int c = 0; c < g->n_pools; c++)
        for (int i = s->table[c].first; i < pages_of(s->len); i++, p += be->page_bytes[c])
            be->ops->page_io(be, c, s->table[c].page[i], p, save);
}

int seq_save(struct engine *g, int seq, void **out, size_t *n, struct err *e)
{
    struct seq *s = &g->seqs[seq];
    size_t bytes;
    settle(g, s);
    struct saved h = saved_header(g, s->len, s->state_pos, s->mtp_len < s->len ? s->mtp_len : s->len, &bytes);
    char *p = malloc(sizeof h + bytes);
    if (!p)
        return err_set(e, ERR_NOMEM, "no memory to save a sequence of %zu bytes", sizeof h + bytes);
    memcpy(p, &h, sizeof h);
    pages_io(g, s, p + sizeof h, true);
    *out = p;
    *n = sizeof h + bytes;
    return 0;
}

int seq_load(struct engine *g, int seq, const void *p, size_t n, struct err *e)
{
    struct seq *s = &g->seqs[seq];
    struct saved h, want;
    size_t bytes;
    bool fits = n >= sizeof h;
    if (fits) {
        memcpy(&h, p, sizeof h);
        fits = h.len >= 0 && h.len <= INT32_MAX - PAGE_TOKENS && h.state_pos >= 0 && h.state_pos <= h.len &&
               h.len - h.state_pos <= PROVISIONAL_MAX && h.mtp_len <= (h.len > 1 ? h.len : 1);
    }
    if (fits) {
        want = saved_header(g, h.len, h.state_pos, h.mtp_len, &bytes);
        fits = !memcmp(&h, &want, sizeof h) && n == sizeof h + bytes;
    }
    if (!fits)
        return err_set(e, ERR_FORMAT, "saved sequence does not fit this model");
    seq_reset(g, seq);
    bool has_room = pages_of(h.len) <= g->max_pages;
    for (int c = 0; c < g->n_pools; c++)
        has_room = has_room && pages_of(h.len) - first_page(&g->pool[c], h.len) <= g->pool[c].n_free;
    if (!has_room)
        return err_set(e, ERR_NOMEM, "no KV memory for a saved sequence of %d tokens", h.len);
    for (int c = 0; c < g->n_pools; c++) {
        int first = first_page(&g->pool[c], h.len);
        s->table[c].first = s->table[c].end = first;
        own_pages(g, c, s, first * PAGE_TOKENS, h.len, false);
    }
    s->len = h.len;
    s->state_pos = h.state_pos;
    s->mtp_len = h.mtp_len < 1 ? 1 : h.mtp_len;
    pages_io(g, s, (char *)(uintptr_t)p + sizeof h, false);
    return 0;
}
