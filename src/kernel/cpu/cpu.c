/* The CPU backend: weights served where they lie, products, MLP, head, and its memory. */
#include "kernel/cpu/internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"

/* ---- instruction sets ---------------------------------------------------------------------------------------- */

static bool has_avx2(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); // F16C came with AVX; clang 14 has no name for it
#else
    return false;
#endif
}

const struct cpu_kernels *cpu_kernels_find(const char *name)
{
#if defined(__x86_64__)
    if (has_avx2() && (!name || !strcmp(name, "avx2")))
        return &cpu_kernels_avx2;
#endif
    return !name || !strcmp(name, "scalar") ? &cpu_kernels_scalar : NULL;
}

/* ---- placement ------------------------------------------------------------------------------------------------ */

void *cpu_alloc(struct cpu *c, size_t bytes)
{
    void *p = c->n_alloc < (int)(sizeof c->alloc / sizeof *c->alloc) ? mem_big(bytes) : NULL;
    if (p) {
        c->alloc[c->n_alloc] = p;
        c->alloc_bytes[c->n_alloc++] = bytes;
    }
    return p;
}

static bool is_float(enum wfmt f) { return f == WF_F32 || f == WF_F16 || f == WF_BF16; }

static bool has_kernel(const struct weight *w) { return w->fmt < WF_OTHER && w->fmt != WF_E8M0 && w->fmt != WF_E4M3; }

static struct bweight *keep_weight(struct cpu *c, struct bweight w)
{
    c->weights = xrealloc(c->weights, (size_t)(c->n_weights + 1) * sizeof *c->weights);
    struct bweight *p = xmalloc(sizeof *p);
    *p = w;
    c->weights[c->n_weights++] = p;
    return p;
}

int cpu_act_index(const struct cpu *c, const struct bweight *w)
{
    for (int i = 0; w->quantized && i < c->n_acts; i++)
        if (c->acts[i].group == w->q.group && c->acts[i].order == w->q.order)
            return i;
    return -1;
}

static int cpu_weight(struct backend *b, const struct weight *w, struct bweight **out, struct err *e)
{
    struct cpu *c = (struct cpu *)b;
    if (!has_kernel(w))
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s is stored as %s, a format that is unsupported so far", w->file, w->name, w->type);
    int64_t rows = 1; // of all experts, where there are several
    for (int i = 0; i < w->ndim - 1; i++)
        rows *= w->ne[i];
    struct bweight bw = {.w = w, .out = rows, .in = w->ne[w->ndim - 1], .quantized = !b->float_mode && !is_float(w->fmt) && w->fmt != WF_MLX_FP8};
    if (bw.quantized) {
        bw.q = (struct qfmt){w->group, w->fmt == WF_MLX && w->bits == 4 ? ORDER_EVEN_ODD : ORDER_NATURAL};
        if (cpu_act_index(c, &bw) < 0)
            c->acts[c->n_acts++] = (struct qact){.group = bw.q.group, .order = bw.q.order};
    }
    if (bw.in > c->max_in)
        c->max_in = bw.in;
    *out = keep_weight(c, bw);
    return 0;
}

static int cpu_rows(struct backend *b, const struct bweight *w, const int32_t *ids, struct bweight **out, struct err *e)
{
    struct bweight bw = *w;
    (void)e;
    bw.ids = ids;
    bw.out = 0;
    *out = keep_weight((struct cpu *)b, bw);
    return 0;
}

static void cpu_rows_set(struct backend *b, struct bweight *w, int n)
{
    (void)b;
    w->out = n;
}

static int cpu_vec(struct backend *b, const double *x, int n, struct bvec **out, struct err *e)
{
    struct cpu *c = (struct cpu *)b;
    (void)e;
    struct bvec *v = xmalloc(sizeof *v);
    v->n = n;
    v->d = xmalloc((size_t)n * sizeof *v->d);
    v->f = xcalloc((size_t)n + 16, sizeof *v->f);
    for (int i = 0; i < n; i++) {
        v->d[i] = x[i];
        v->f[i] = (float)x[i];
    }
    c->vecs = xrealloc(c->vecs, (size_t)(c->n_vecs + 1) * sizeof *c->vecs);
    c->vecs[c->n_vecs++] = v;
    *out = v;
    return 0;
}

static void cpu_bias(struct backend *b, struct bweight *w, const struct bvec *v)
{
    (void)b;
    w->bias = v->f;
}

static size_t align64(size_t n) { return (n + 63) & ~(size_t)63; }

static void place_state(struct cpu *c, const struct state_spec *specs, int n)
{
    size_t slot = 0;
    c->kv = xcalloc((size_t)n + 1, sizeof *c->kv);
    c->rec = xcalloc((size_t)n + 1, sizeof *c->rec);
    for (int i = 0; i < n; i++) {
        const struct state_spec *s = &specs[i];
        if (s->kind == STATE_KV) {
            struct kv_place *kv = &c->kv[c->n_kv++];
            size_t *page = &c->base.page_bytes[s->page_class];
            *kv = (struct kv_place){.heads = s->heads, .dk = s->dk, .dv = s->dv, .page_class = s->page_class, .k = *page};
            kv->v = align64(*page + (size_t)s->heads * PAGE_TOKENS * (size_t)s->dk * 2);
            *page = align64(kv->v + (size_t)s->heads * PAGE_TOKENS * (size_t)s->dv * 2);
            continue;
        }
        struct rec_place *r = &c->rec[c->n_rec++];
        *r = (struct rec_place){.heads = s->heads, .k_heads = s->k_heads, .dk = s->dk, .dv = s->dv, .channels = s->conv, .state = slot};
        r->ring = align64(slot + (size_t)s->heads * (size_t)s->dk * (size_t)s->dv * 4);
        r->tape_k = align64(r->ring + (size_t)c->ring * (size_t)s->conv * 4);
        r->tape_u = align64(r->tape_k + (size_t)c->tape * (size_t)(s->k_heads * s->dk) * 4);
        r->tape_e = align64(r->tape_u + (size_t)c->tape * (size_t)(s->heads * s->dv) * 4);
        slot = align64(r->tape_e + (size_t)c->tape * (size_t)s->heads * 4);
    }
    c->base.slot_bytes = slot;
}

bool cpu_alloc_act(struct cpu *c, struct qact *a, size_t rows, int64_t max_in)
{
    size_t groups = (size_t)((max_in + a->group - 1) / a->group), ld = (size_t)((max_in + 127) & ~(int64_t)127);
    return (a->code = cpu_alloc(c, rows * ld)) && (a->scale = cpu_alloc(c, rows * groups * 4)) && (a->isum = cpu_alloc(c, rows * groups * 4)) &&
           (a->group != 256 || (a->sum16 = cpu_alloc(c, rows * ld / 16 * 4)));
}

static int cpu_setup(struct backend *b, const struct state_spec *specs, int n_specs, const int *widths, int max_rows,
                     const int *n_pages, int n_slots, int tape_rows, struct err *e)
{
    struct cpu *c = (struct cpu *)b;
    int channels = 0, v_heads = 0, heads_dim = 0, dim = 16, most_pages = 0;
    size_t page_bytes = 0;
    bool ok = true;
    c->max_rows = max_rows;
    c->tape = 2 * tape_rows; // rows waiting to be replayed, and as many new ones
    c->ring = tape_rows + 8; // a convolution looks back over at most 7 rows
    place_state(c, specs, n_specs);
    for (int i = 0; i < BUF_COUNT; i++) {
        c->width[i] = (widths[i] + 15) & ~15;
        if (widths[i])
            ok = ok && (c->buf[i] = cpu_alloc(c, (size_t)max_rows * (size_t)c->width[i] * 4 + 64));
    }
    for (int i = 0; i < c->n_acts; i++)
        ok = ok && cpu_alloc_act(c, &c->acts[i], (size_t)max_rows, c->max_in);
    ok = ok && cpu_moe_setup(c);
    for (int i = 0; i < c->n_kv; i++)
        dim = c->kv[i].dk > dim ? c->kv[i].dk : dim;
    for (int i = 0; i < c->n_rec; i++) {
        channels = c->rec[i].channels > channels ? c->rec[i].channels : channels;
        v_heads = c->rec[i].heads > v_heads ? c->rec[i].heads : v_heads;
        dim = c->rec[i].dk > dim ? c->rec[i].dk : dim;
    }
    heads_dim = widths[BUF_Q]; // at least heads * dim
    int group = c->n_kv ? heads_dim / (c->kv[0].heads * c->kv[0].dk) + 1 : 1;
    for (int i = 1; i < c->n_kv; i++) {
        int g = heads_dim / (c->kv[i].heads * c->kv[i].dk) + 1;
        group = g > group ? g : group;
    }
    size_t nq = (size_t)(DECODE_ROWS * group);
    c->local_floats = 2 * PAGE_TOKENS * (size_t)dim + 2 * nq * (size_t)dim + 4 * nq;
    size_t tile = (size_t)2 * TILE_OUT * ROWS_MAX;
    c->local_floats = c->local_floats > tile ? c->local_floats : tile;
    c->local_floats = (c->local_floats + (size_t)c->max_in + 31) & ~(size_t)15;
    for (int i = 0; i < PAGE_CLASSES; i++) {
        size_t bytes = (size_t)n_pages[i] * c->base.page_bytes[i];
        ok = ok && (c->pages[i] = cpu_alloc(c, bytes + 64));
        page_bytes += bytes;
        most_pages = n_pages[i] > most_pages ? n_pages[i] : most_pages;
    }
    size_t segments = ((size_t)most_pages * PAGE_TOKENS + SEGMENT_TOKENS - 1) / SEGMENT_TOKENS;
    c->partial_floats = (size_t)DECODE_ROWS * (size_t)heads_dim * 2 * (segments < 160 ? segments : 160);
    ok = ok && (c->q = cpu_alloc(c, (size_t)max_rows * (size_t)heads_dim * 4 + 64)) &&
         (c->conv_out = cpu_alloc(c, (size_t)max_rows * (size_t)(channels + 16) * 4)) &&
         (c->gate_decay = cpu_alloc(c, (size_t)max_rows * (size_t)(2 * v_heads + 2) * 4)) &&
         (c->partial = cpu_alloc(c, c->partial_floats * 4)) && (c->cs = cpu_alloc(c, (size_t)max_rows * (size_t)dim * 4)) &&
         (c->cs_pos = cpu_alloc(c, (size_t)max_rows * 4)) && (c->local = cpu_alloc(c, (size_t)c->threads * c->local_floats * 4)) &&
         (c->best_value = cpu_alloc(c, (size_t)c->threads * ROWS_MAX * 4)) && (c->best = cpu_alloc(c, (size_t)c->threads * ROWS_MAX * 4)) &&
         (c->zeros = cpu_alloc(c, (size_t)(channels + 16) * 4)) &&
         (c->slots = cpu_alloc(c, (size_t)n_slots * c->base.slot_bytes + 64));
    if (!ok)
        return err_set(e, ERR_NOMEM, "no memory for %zu bytes of keys and values, %d states of %zu bytes and %d rows", page_bytes, n_slots,
                       c->base.slot_bytes, max_rows);
    return 0;
}

static void cpu_close(struct backend *b)
{
    struct cpu *c = (struct cpu *)b;
    pool_free(c->pool);
    for (int i = 0; i < c->n_alloc; i++)
        mem_big_free(c->alloc[i], c->alloc_bytes[i]);
    for (int i = 0; i < c->n_weights; i++)
        free(c->weights[i]);
    for (int i = 0; i < c->n_vecs; i++) {
        free(c->vecs[i]->d);
        free(c->vecs[i]->f);
        free(c->vecs[i]);
    }
    free(c->weights);
    free(c->vecs);
    free(c->kv);
    free(c->rec);
    free(c->moe);
    free(c);
}

/* ---- products --------------------------------------------------------------------------------------------------- */

enum sink { SINK_STORE, SINK_ADD, SINK_GLU, SINK_LOGITS, SINK_BEST };

/* One product job: output rows of one or several weights in tiles of TILE_OUT. */
struct mm_job {
    struct cpu *c;
    const struct step *s;
    enum buffer src;
    const struct product *prod; // several weights over one source
    int n_prod;
    const struct bvec *norm;
    float eps;
    const int32_t *sel;         // rows of the source, NULL: all
    int n;                      // rows
    bool from_norm;             // source rows were normed into BUF_NORM
    const struct bweight *up;   // SINK_GLU: second factor
    enum activation act;        // of the first
    enum sink sink;
    const struct head_out *head;
    unsigned need;              // activation sets to fill
};

unsigned cpu_acts_of(const struct cpu *c, const struct bweight *w)
{
    int i = cpu_act_index(c, w);
    return i < 0 ? 0 : 1u << i;
}

static const float *source_row(const struct mm_job *j, int r)
{
    return buf_row(j->c, j->from_norm ? BUF_NORM : j->src, j->sel && !j->from_norm ? j->sel[r] : r);
}

/* Item: one row. Norm, then the activation codes that the products need. */
static void prepare_rows(void *ud, int first, int last, int thread)
{
    struct mm_job *j = ud;
    struct cpu *c = j->c;
    (void)thread;
    for (int r = first; r < last; r++) {
        if (j->norm)
            c->k->rms(buf_row(c, j->src, r), j->norm->f, j->norm->n, j->eps, buf_row(c, BUF_NORM, r));
        for (int i = 0; i < c->n_acts; i++)
            if (j->need & 1u << i)
                c->k->quantize(source_row(j, r), (int)j->prod[0].w->in, &c->acts[i], r);
    }
}

void cpu_set_widths(struct qact *acts, int n, int64_t in)
{
    for (int i = 0; i < n; i++) {
        struct qact *a = &acts[i];
        a->in = (int)in;
        a->n_groups = a->group ? (int)((in + a->group - 1) / a->group) : 0;
        a->ld = (in + 127) & ~(int64_t)127;
    }
}

/* y [n, TILE_OUT]: outputs [o0, o1) of rows [r0, r0+n). */
static void product_tile(const struct mm_job *j, const struct bweight *w, int64_t o0, int64_t o1, int r0, int n, float *y)
{
    struct cpu *c = j->c;
    int a = cpu_act_index(c, w);
    if (a >= 0) {
        c->k->qmm(w, &c->acts[a], o0, o1, r0, n, y - o0, TILE_OUT);
    } else if (j->sel && !j->from_norm) {
        for (int r = 0; r < n; r++)
            c->k->fmm(w, source_row(j, r0 + r), 0, o0, o1, 1, y + r * TILE_OUT - o0, TILE_OUT);
    } else {
        c->k->fmm(w, source_row(j, r0), c->width[j->from_norm ? BUF_NORM : j->src], o0, o1, n, y - o0, TILE_OUT);
    }
    for (int r = 0; w->bias && r < n; r++)
        for (int64_t o = o0; o < o1; o++)
            y[r * TILE_OUT + o - o0] += w->bias[w->ids ? w->ids[o] : o];
}

static void sink_tile(const struct mm_job *j, enum buffer dst, int64_t o0, int n_out, int r0, int n, float *y, float *up, int thread)
{
    struct cpu *c = j->c;
    for (int r = 0; r < n; r++) {
        float *v = y + r * TILE_OUT;
        if (j->head && j->head->softcap != 0)
            c->k->softcap(v, j->head->softcap, n_out);
        switch (j->sink) {
        case SINK_STORE:
            memcpy(buf_row(c, dst, r0 + r) + o0, v, (size_t)n_out * sizeof *v);
            break;
        case SINK_ADD:
            c->k->add(buf_row(c, dst, r0 + r) + o0, v, n_out);
            break;
        case SINK_GLU:
            c->k->act_mul(j->act, v, up + r * TILE_OUT, n_out, v);
            memcpy(buf_row(c, dst, r0 + r) + o0, v, (size_t)n_out * sizeof *v);
            break;
        case SINK_LOGITS:
            memcpy(j->head->logits + (r0 + r) * j->head->ld + o0, v, (size_t)n_out * sizeof *v);
            break;
        case SINK_BEST: {
            float *bv = c->best_value + thread * ROWS_MAX + r0 + r;
            int32_t *bi = c->best + thread * ROWS_MAX + r0 + r;
            for (int i = 0; i < n_out; i++)
                if (*bi < 0 || v[i] > *bv || (v[i] == *bv && o0 + i < *bi)) {
                    *bv = v[i];
                    *bi = (int32_t)(o0 + i);
                }
        }
        }
    }
}

/* Item: one tile of outputs, counted over all weights of the job, all rows. */
static void product_tiles(void *ud, int first, int last, int thread)
{
    struct mm_job *j = ud;
    struct cpu *c = j->c;
    float *y = local_of(c, thread), *up = y + TILE_OUT * ROWS_MAX;
    for (int i = first; i < last; i++) {
        int64_t tile = i;
        int p = 0;
        while (tile >= (j->prod[p].w->out + TILE_OUT - 1) / TILE_OUT)
            tile -= (j->prod[p++].w->out + TILE_OUT - 1) / TILE_OUT;
        const struct bweight *w = j->prod[p].w;
        int64_t o0 = tile * TILE_OUT, o1 = o0 + TILE_OUT < w->out ? o0 + TILE_OUT : w->out;
        for (int r0 = 0; r0 < j->n; r0 += ROWS_MAX) {
            int n = j->n - r0 < ROWS_MAX ? j->n - r0 : ROWS_MAX;
            product_tile(j, w, o0, o1, r0, n, y);
            if (j->sink == SINK_GLU)
                product_tile(j, j->up, o0, o1, r0, n, up);
            sink_tile(j, j->prod[p].dst, o0, (int)(o1 - o0), r0, n, y, up, thread);
        }
    }
}

static void run_products(struct mm_job *j)
{
    struct cpu *c = j->c;
    int tiles = 0;
    for (int i = 0; i < j->n_prod; i++) {
        tiles += (int)((j->prod[i].w->out + TILE_OUT - 1) / TILE_OUT);
        j->need |= cpu_acts_of(c, j->prod[i].w);
    }
    if (j->up)
        j->need |= cpu_acts_of(c, j->up);
    cpu_set_widths(c->acts, c->n_acts, j->prod[0].w->in);
    if (j->norm || j->need)
        pool_run(c->pool, prepare_rows, j, j->n, 1);
    j->from_norm = j->norm != NULL;
    pool_run(c->pool, product_tiles, j, tiles, tiles / (16 * c->threads) + 1);
}

static void cpu_norm_mm(struct backend *b, const struct step *s, enum buffer src, const struct bvec *w, float eps, const struct product *p, int n)
{
    struct mm_job j = {.c = (struct cpu *)b, .s = s, .src = src, .norm = w, .eps = eps, .prod = p, .n_prod = n, .n = s->n_rows, .from_norm = true};
    run_products(&j);
}

static void cpu_mm(struct backend *b, const struct step *s, enum buffer src, const struct bweight *w, enum buffer dst)
{
    struct product p = {w, dst};
    struct mm_job j = {.c = (struct cpu *)b, .s = s, .src = src, .prod = &p, .n_prod = 1, .n = s->n_rows};
    run_products(&j);
}

static void cpu_mm_add(struct backend *b, const struct step *s, enum buffer src, const struct bweight *w, enum buffer dst)
{
    struct product p = {w, dst};
    struct mm_job j = {.c = (struct cpu *)b, .s = s, .src = src, .prod = &p, .n_prod = 1, .n = s->n_rows, .sink = SINK_ADD};
    run_products(&j);
}

static void cpu_mlp(struct backend *b, const struct step *s, const struct bvec *norm, float eps, const struct bweight *gate,
                    const struct bweight *up, const struct bweight *down, enum activation act, enum buffer dst)
{
    struct product p = {gate, BUF_GATE};
    struct mm_job j = {.c = (struct cpu *)b, .s = s, .src = BUF_X, .norm = norm, .eps = eps, .prod = &p, .n_prod = 1, .n = s->n_rows,
                       .from_norm = true, .up = up, .act = act, .sink = SINK_GLU};
    run_products(&j);
    dst == BUF_X ? cpu_mm_add(b, s, BUF_GATE, down, dst) : cpu_mm(b, s, BUF_GATE, down, dst);
}

static void cpu_head(struct backend *b, const struct step *s, enum buffer src, const int32_t *sel, int n, const struct bweight *w,
                     const struct head_out *out)
{
    struct cpu *c = (struct cpu *)b;
    struct product p = {w, BUF_X};
    for (int r0 = 0; r0 < n; r0 += ROWS_MAX) { // a block of rows per pass over the head
        int nr = n - r0 < ROWS_MAX ? n - r0 : ROWS_MAX;
        struct head_out part = {.logits = out->logits ? out->logits + r0 * out->ld : NULL, .ld = out->ld, .softcap = out->softcap};
        struct mm_job j = {.c = c, .s = s, .src = src, .sel = sel + r0, .prod = &p, .n_prod = 1, .n = nr, .head = &part,
                           .sink = out->logits ? SINK_LOGITS : SINK_BEST};
        for (int i = 0; i < c->threads * ROWS_MAX; i++)
            c->best[i] = -1;
        run_products(&j);
        for (int r = 0; r < nr && out->best && out->logits; r++) { // both asked for: from the stored row
            const float *l = part.logits + r * part.ld;
            int best = 0;
            for (int64_t i = 1; i < w->out; i++)
                best = l[i] > l[best] ? (int)i : best;
            out->best[r0 + r] = best;
            if (out->best_value)
                out->best_value[r0 + r] = l[best];
        }
        for (int r = 0; r < nr && out->best && !out->logits; r++) {
            int32_t best = -1;
            float v = 0;
            for (int t = 0; t < c->threads; t++) {
                int32_t i = c->best[t * ROWS_MAX + r];
                float x = c->best_value[t * ROWS_MAX + r];
                if (i >= 0 && (best < 0 || x > v || (x == v && i < best))) {
                    best = i;
                    v = x;
                }
            }
            out->best[r0 + r] = best;
            if (out->best_value)
                out->best_value[r0 + r] = v;
        }
    }
}

/* ---- rows ---------------------------------------------------------------------------------------------------------- */

struct row_job {
    struct cpu *c;
    const struct step *s;
    const struct bweight *w;
    const struct bvec *norm;
    float eps;
    enum buffer src, dst;
    int dst_col, src_col, n; // n: parts of a norm, elements of a row
    float factor;
    enum activation act;
};

static void embed_rows(void *ud, int first, int last, int thread)
{
    struct row_job *j = ud;
    (void)thread;
    for (int r = first; r < last; r++)
        weight_row(j->w->w, j->s->token[r], buf_row(j->c, j->dst, r));
}

static void cpu_embed(struct backend *b, const struct step *s, const struct bweight *w, enum buffer dst)
{
    struct row_job j = {.c = (struct cpu *)b, .s = s, .w = w, .dst = dst};
    pool_run(j.c->pool, embed_rows, &j, s->n_rows, 4);
}

static void norm_rows(void *ud, int first, int last, int thread)
{
    struct row_job *j = ud;
    (void)thread;
    for (int r = first; r < last; r++)
        j->c->k->rms(buf_row(j->c, j->src, r), j->norm->f, j->norm->n, j->eps, buf_row(j->c, j->dst, r) + j->dst_col);
}

static void cpu_norm(struct backend *b, const struct step *s, enum buffer src, const struct bvec *w, float eps, enum buffer dst, int dst_col)
{
    struct row_job j = {.c = (struct cpu *)b, .s = s, .norm = w, .eps = eps, .src = src, .dst = dst, .dst_col = dst_col};
    pool_run(j.c->pool, norm_rows, &j, s->n_rows, 4);
}

static void norm_add_rows(void *ud, int first, int last, int thread)
{
    struct row_job *j = ud;
    struct cpu *c = j->c;
    int width = j->norm->n;
    float *y = local_of(c, thread);
    for (int r = first; r < last; r++)
        for (int i = 0; i < j->n; i++) {
            c->k->rms(buf_row(c, j->src, r) + i * width, j->norm->f, width, j->eps, y);
            c->k->add(buf_row(c, j->dst, r) + i * width, y, width);
        }
}

static void cpu_norm_add(struct backend *b, const struct step *s, enum buffer src, const struct bvec *w, float eps, int n_parts, enum buffer dst)
{
    struct row_job j = {.c = (struct cpu *)b, .s = s, .norm = w, .eps = eps, .src = src, .dst = dst, .n = n_parts};
    pool_run(j.c->pool, norm_add_rows, &j, s->n_rows, 4);
}

static void scale_rows(void *ud, int first, int last, int thread)
{
    struct row_job *j = ud;
    (void)thread;
    for (int r = first; r < last; r++)
        j->c->k->scale(buf_row(j->c, j->dst, r), j->factor, j->n);
}

static void cpu_scale(struct backend *b, const struct step *s, enum buffer dst, int n, float factor)
{
    struct row_job j = {.c = (struct cpu *)b, .s = s, .dst = dst, .n = n, .factor = factor};
    pool_run(j.c->pool, scale_rows, &j, s->n_rows, 4);
}

static void act_mul_rows(void *ud, int first, int last, int thread)
{
    struct row_job *j = ud;
    (void)thread;
    for (int r = first; r < last; r++) {
        float *y = buf_row(j->c, j->dst, r);
        j->c->k->act_mul(j->act, y, buf_row(j->c, j->src, r) + j->src_col, j->n, y);
    }
}

static void cpu_act_mul(struct backend *b, const struct step *s, enum activation act, enum buffer gate, enum buffer up, int up_col, int n)
{
    struct row_job j = {.c = (struct cpu *)b, .s = s, .dst = gate, .src = up, .src_col = up_col, .n = n, .act = act};
    pool_run(j.c->pool, act_mul_rows, &j, s->n_rows, 4);
}

static void cpu_read(struct backend *b, enum buffer buf, int row, int n, float *dst)
{
    struct cpu *c = (struct cpu *)b;
    memcpy(dst, buf_row(c, buf, row), (size_t)n * (size_t)c->width[buf] * sizeof *dst);
}

static void cpu_write(struct backend *b, enum buffer buf, int row, int n, const float *src)
{
    struct cpu *c = (struct cpu *)b;
    memcpy(buf_row(c, buf, row), src, (size_t)n * (size_t)c->width[buf] * sizeof *src);
}

/* ---- state ----------------------------------------------------------------------------------------------------------- */

static uint8_t *page(struct backend *b, int cls, int i) { return ((struct cpu *)b)->pages[cls] + (size_t)i * b->page_bytes[cls]; }
static uint8_t *slot(struct backend *b, int i) { return ((struct cpu *)b)->slots + (size_t)i * b->slot_bytes; }
static void cpu_slot_clear(struct backend *b, int i) { memset(slot(b, i), 0, b->slot_bytes); }
static void cpu_slot_copy(struct backend *b, int dst, int src) { memcpy(slot(b, dst), slot(b, src), b->slot_bytes); }

static void cpu_page_copy(struct backend *b, int cls, int dst, int src)
{
    memcpy(page(b, cls, dst), page(b, cls, src), b->page_bytes[cls]);
}

static void cpu_page_io(struct backend *b, int cls, int i, void *p, bool save)
{
    save ? memcpy(p, page(b, cls, i), b->page_bytes[cls]) : memcpy(page(b, cls, i), p, b->page_bytes[cls]);
}

static void cpu_slot_io(struct backend *b, int i, void *p, bool save)
{
    save ? memcpy(p, slot(b, i), b->slot_bytes) : memcpy(slot(b, i), p, b->slot_bytes);
}

static void cpu_rec_read(struct backend *b, int i, int rec, float *dst)
{
    const struct rec_place *r = &((struct cpu *)b)->rec[rec];
    memcpy(dst, slot(b, i) + r->state, (size_t)r->heads * (size_t)r->dk * (size_t)r->dv * sizeof *dst);
}

static const struct backend_ops cpu_ops = {
    .name = "cpu", .close = cpu_close, .weight = cpu_weight, .rows = cpu_rows, .rows_set = cpu_rows_set, .vec = cpu_vec, .bias = cpu_bias, .setup = cpu_setup,
    .embed = cpu_embed, .norm = cpu_norm, .norm_add = cpu_norm_add, .scale = cpu_scale, .act_mul = cpu_act_mul, .norm_mm = cpu_norm_mm, .mm = cpu_mm, .mm_add = cpu_mm_add, .attn = cpu_attn,
    .gdn = cpu_gdn, .mlp = cpu_mlp, .moe_declare = cpu_moe_declare, .moe = cpu_moe, .head = cpu_head, .read = cpu_read, .write = cpu_write, .page_copy = cpu_page_copy,
    .slot_clear = cpu_slot_clear, .slot_copy = cpu_slot_copy, .page_io = cpu_page_io, .slot_io = cpu_slot_io, .rec_read = cpu_rec_read,
};

int backend_cpu_open(struct backend **b, const struct backend_options *o, struct err *e)
{
    const struct cpu_kernels *k = cpu_kernels_find(o->isa);
    if (!k)
        return err_set(e, ERR_ARG, "instruction set \"%s\" is unknown or absent on this machine (here: %s)", o->isa,
                       has_avx2() ? "scalar, avx2" : "scalar");
    struct cpu *c = xcalloc(1, sizeof *c);
    c->k = k;
    c->pool = pool_new(o->threads > 0 ? o->threads : os_cpu_count());
    c->threads = pool_threads(c->pool);
    c->base = (struct backend){.ops = &cpu_ops, .domain = o->float_mode ? "f0x" : "f0", .isa = k->name, .threads = c->threads,
                               .float_mode = o->float_mode};
    *b = &c->base;
    return 0;
}
