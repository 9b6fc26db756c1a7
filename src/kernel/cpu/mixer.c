/* Token mixers of the CPU backend: attention over pages, Gated DeltaNet over slots. Work is cut into items
 * that are independent of each other, so any thread may take any of them. */
#include <math.h>
#include <string.h>

#include "base/math64.h"
#include "base/trig64.h"
#include "kernel/cpu/internal.h"

/* ---- attention ------------------------------------------------------------------------------------------- */

struct attn_job {
    struct cpu *c;
    const struct step *s;
    const struct attn_params *p;
    enum buffer dst;
    int group;      // query heads of one KV head
    int n_tiles;    // row tiles of all runs (prefill)
    int n_segments; // most segments that a run sees (decode)
};

/* The page that holds token t of a piece. */
static uint8_t *page_at(const struct cpu *c, const struct kv_place *kv, const struct run *run, int t)
{
    return c->pages[kv->page_class] + (size_t)run->pages[kv->page_class][t / PAGE_TOKENS] * c->base.page_bytes[kv->page_class];
}

/* First segment with keys that the row at pos sees. */
static int first_segment(const struct attn_params *p, int pos)
{
    return p->window && pos >= p->window ? (pos - p->window + 1) / SEGMENT_TOKENS : 0;
}

/* Cosines and sines of the rows' positions; kept while neither rows nor frequencies change. */
static void angles(struct cpu *c, const struct step *s, const struct attn_params *p)
{
    int half = p->rot_dim / 2;
    bool same = c->cs_freq == p->freq && c->cs_rows == s->n_rows;
    for (int r = 0; same && r < s->n_rows; r++)
        same = c->cs_pos[r] == s->pos[r] + p->pos_shift;
    if (same)
        return;
    for (int r = 0; r < s->n_rows; r++) {
        c->cs_pos[r] = s->pos[r] + p->pos_shift;
        float *cs = c->cs + (int64_t)r * p->rot_dim;
        for (int i = 0; i < half; i++) {
            double sn, cn;
            sincos64(c->cs_pos[r] * p->freq->d[i], &sn, &cn);
            cs[i] = (float)cn;
            cs[half + i] = (float)sn;
        }
    }
    c->cs_freq = p->freq;
    c->cs_rows = s->n_rows;
}

static int heads_prepared(const struct attn_params *p) { return p->heads + (p->shared ? 0 : 2 * p->kv_heads); }

/* Item: one head of one row. Query heads go to c->q, keys and values to their page in final form. */
static void prepare_heads(void *ud, int first, int last, int thread)
{
    struct attn_job *j = ud;
    struct cpu *c = j->c;
    const struct attn_params *p = j->p;
    const struct kv_place *kv = &c->kv[p->kv];
    int per_row = heads_prepared(p), half = p->rot_dim / 2;
    float *tmp = local_of(c, thread);
    for (int i = first; i < last; i++) {
        int r = i / per_row, h = i % per_row;
        const float *cs = c->cs + (int64_t)r * p->rot_dim;
        if (h < p->heads) {
            int kvh = h / j->group, g = h % j->group, stride = p->gated ? 2 * p->dim : p->dim;
            float *q = c->q + (((int64_t)kvh * c->max_rows + r) * j->group + g) * p->dim;
            memcpy(q, buf_row(c, BUF_Q, r) + h * stride, (size_t)p->dim * sizeof *q);
            if (p->q_norm)
                c->k->rms(q, p->q_norm->f, p->dim, p->eps, q);
            c->k->rotate(q, cs, half, p->pairs_adjacent);
            c->k->scale(q, p->scale, p->dim);
            continue;
        }
        const struct run *run = &j->s->runs[j->s->run_of[r]];
        int t = j->s->pos[r], kh = (h - p->heads) % p->kv_heads;
        uint8_t *page = page_at(c, kv, run, t);
        if (h < p->heads + p->kv_heads) {
            memcpy(tmp, buf_row(c, BUF_K, r) + kh * p->dim, (size_t)p->dim * sizeof *tmp);
            if (p->k_norm)
                c->k->rms(tmp, p->k_norm->f, p->dim, p->eps, tmp);
            c->k->rotate(tmp, cs, half, p->pairs_adjacent);
            c->k->to_f16(tmp, p->dim, (uint16_t *)(page + kv->k) + ((int64_t)kh * PAGE_TOKENS + t % PAGE_TOKENS) * p->dim);
        } else {
            const float *v = buf_row(c, p->v_from_k ? BUF_K : BUF_V, r) + kh * p->dim;
            if (p->v_norm)
                c->k->rms(v, p->v_norm->f, p->dim, p->eps, tmp);
            c->k->to_f16(p->v_norm ? tmp : v, p->dim, (uint16_t *)(page + kv->v) + ((int64_t)kh * PAGE_TOKENS + t % PAGE_TOKENS) * p->dim);
        }
    }
}

struct block_source {
    const struct cpu *c;
    const struct run *run;
    const struct kv_place *kv;
    int kvh;
};

static const uint16_t *block_of(const void *ud, int block, const uint16_t **v)
{
    const struct block_source *b = ud;
    const uint8_t *page = page_at(b->c, b->kv, b->run, block * PAGE_TOKENS);
    *v = (const uint16_t *)(page + b->kv->v) + (int64_t)b->kvh * PAGE_TOKENS * b->kv->dv;
    return (const uint16_t *)(page + b->kv->k) + (int64_t)b->kvh * PAGE_TOKENS * b->kv->dk;
}

/* Queries of rows [row, row+n) of a run for one KV head. pos has n * group entries. */
static struct attn_work work_of(const struct attn_job *j, const struct block_source *src, int row, int n, int32_t *pos, float *scratch)
{
    const struct attn_params *p = j->p;
    for (int i = 0; i < n * j->group; i++)
        pos[i] = j->s->pos[row + i / j->group];
    return (struct attn_work){
        .q = j->c->q + ((int64_t)src->kvh * j->c->max_rows + row) * j->group * p->dim, .pos = pos, .n_q = n * j->group,
        .dim = p->dim, .first_key = p->first_key, .window = p->window, .block = block_of, .ud = src, .scratch = scratch,
    };
}

/* Turns one head's (max, sum, out) into the mixer's output. */
static void emit(const struct attn_job *j, int row, int head, const float *ms, float *o)
{
    struct cpu *c = j->c;
    const struct attn_params *p = j->p;
    c->k->finish(ms, o, p->dim);
    if (p->gated)
        c->k->sigmoid_mul(o, buf_row(c, BUF_Q, row) + (2 * head + 1) * p->dim, p->dim);
    memcpy(buf_row(c, j->dst, row) + head * p->dim, o, (size_t)p->dim * sizeof *o);
}

/* Prefill item: a tile of up to DECODE_ROWS rows of one run and one KV head, all segments in order. */
static void attn_tile(void *ud, int first, int last, int thread)
{
    struct attn_job *j = ud;
    struct cpu *c = j->c;
    const struct attn_params *p = j->p;
    for (int i = first; i < last; i++) {
        int tile = i / p->kv_heads, kvh = i % p->kv_heads, run = 0, row = 0;
        for (;; run++) { // the run that holds this tile
            int n_tiles = (j->s->runs[run].n + DECODE_ROWS - 1) / DECODE_ROWS;
            if (tile < n_tiles)
                break;
            tile -= n_tiles;
        }
        const struct run *rn = &j->s->runs[run];
        row = rn->row0 + tile * DECODE_ROWS;
        int n = rn->row0 + rn->n - row < DECODE_ROWS ? rn->row0 + rn->n - row : DECODE_ROWS, nq = n * j->group;
        int32_t pos[DECODE_ROWS * 64];
        struct block_source src = {c, rn, &c->kv[p->kv], kvh};
        float *scratch = local_of(c, thread), *o = scratch + 2 * PAGE_TOKENS * p->dim, *o2 = o + nq * p->dim;
        float *ms = o2 + nq * p->dim, *ms2 = ms + 2 * nq;
        struct attn_work w = work_of(j, &src, row, n, pos, scratch);
        int sg = first_segment(p, pos[0]);
        c->k->segment(&w, sg, ms, o);
        for (sg++; sg * SEGMENT_TOKENS <= pos[nq - 1]; sg++) {
            c->k->segment(&w, sg, ms2, o2);
            for (int q = 0; q < nq; q++)
                if (ms2[2 * q] > -INFINITY) {
                    if (ms[2 * q] > -INFINITY) {
                        c->k->merge(ms + 2 * q, o + q * p->dim, ms2 + 2 * q, o2 + q * p->dim, p->dim);
                    } else {
                        memcpy(ms + 2 * q, ms2 + 2 * q, 2 * sizeof *ms);
                        memcpy(o + q * p->dim, o2 + q * p->dim, (size_t)p->dim * sizeof *o);
                    }
                }
        }
        for (int q = 0; q < nq; q++)
            emit(j, row + q / j->group, kvh * j->group + q % j->group, ms + 2 * q, o + q * p->dim);
    }
}

/* Layout of c->partial in a decode step: [row][head][segment] of (max, sum, pad.., out[dim]); segments count from
 * the first that the run sees. */
static float *partial_at(const struct attn_job *j, int row, int head, int segment)
{
    segment -= first_segment(j->p, j->s->runs[j->s->run_of[row]].pos0);
    return j->c->partial + (((int64_t)row * j->p->heads + head) * j->n_segments + segment) * (j->p->dim + 2);
}

/* Decode item: all rows of one run, one KV head, one segment. */
static void attn_part(void *ud, int first, int last, int thread)
{
    struct attn_job *j = ud;
    struct cpu *c = j->c;
    const struct attn_params *p = j->p;
    for (int i = first; i < last; i++) {
        int kvh = i / j->n_segments % p->kv_heads;
        const struct run *rn = &j->s->runs[i / j->n_segments / p->kv_heads];
        int sg = first_segment(p, rn->pos0) + i % j->n_segments;
        if (sg * SEGMENT_TOKENS > rn->pos0 + rn->n - 1)
            continue;
        int32_t pos[DECODE_ROWS * 64];
        struct block_source src = {c, rn, &c->kv[p->kv], kvh};
        float *scratch = local_of(c, thread), *o = scratch + 2 * PAGE_TOKENS * p->dim;
        float *ms = o + (int64_t)rn->n * j->group * p->dim;
        struct attn_work w = work_of(j, &src, rn->row0, rn->n, pos, scratch);
        c->k->segment(&w, sg, ms, o);
        for (int q = 0; q < w.n_q; q++) {
            float *to = partial_at(j, rn->row0 + q / j->group, kvh * j->group + q % j->group, sg);
            memcpy(to, ms + 2 * q, 2 * sizeof *ms);
            memcpy(to + 2, o + q * p->dim, (size_t)p->dim * sizeof *o);
        }
    }
}

/* Decode item: one head of one row; merges its segments in ascending order. */
static void attn_merge(void *ud, int first, int last, int thread)
{
    struct attn_job *j = ud;
    const struct attn_params *p = j->p;
    (void)thread;
    for (int i = first; i < last; i++) {
        int row = i / p->heads, head = i % p->heads, has = 0;
        float *to = NULL;
        for (int sg = first_segment(p, j->s->pos[row]); sg * SEGMENT_TOKENS <= j->s->pos[row]; sg++) {
            float *from = partial_at(j, row, head, sg);
            if (from[0] == -INFINITY)
                continue;
            if (has++)
                j->c->k->merge(to, to + 2, from, from + 2, p->dim);
            else
                to = from;
        }
        if (!to) // scores that are not numbers have no maximum; the row sees itself, so its segment is there
            to = partial_at(j, row, head, j->s->pos[row] / SEGMENT_TOKENS);
        emit(j, row, head, to, to + 2);
    }
}

void cpu_attn(struct backend *b, const struct step *s, const struct attn_params *p, enum buffer dst)
{
    struct cpu *c = (struct cpu *)b;
    struct attn_job j = {.c = c, .s = s, .p = p, .dst = dst, .group = p->heads / p->kv_heads};
    angles(c, s, p);
    pool_run(c->pool, prepare_heads, &j, s->n_rows * heads_prepared(p), 8);
    for (int r = 0; r < s->n_runs; r++) {
        int segments = (s->runs[r].pos0 + s->runs[r].n - 1) / SEGMENT_TOKENS + 1 - first_segment(p, s->runs[r].pos0);
        j.n_tiles += (s->runs[r].n + DECODE_ROWS - 1) / DECODE_ROWS;
        j.n_segments = segments > j.n_segments ? segments : j.n_segments;
    }
    size_t need = (size_t)s->n_rows * (size_t)p->heads * (size_t)j.n_segments * (size_t)(p->dim + 2);
    if (s->n_rows <= DECODE_ROWS && need <= c->partial_floats) {
        pool_run(c->pool, attn_part, &j, s->n_runs * p->kv_heads * j.n_segments, 1);
        pool_run(c->pool, attn_merge, &j, s->n_rows * p->heads, 4);
    } else {
        pool_run(c->pool, attn_tile, &j, j.n_tiles * p->kv_heads, 1);
    }
}

/* ---- Gated DeltaNet ---------------------------------------------------------------------------------------- */

struct gdn_job {
    struct cpu *c;
    const struct step *s;
    const struct gdn_params *p;
    enum buffer dst;
};

static float *slot_part(const struct cpu *c, int slot, size_t offset)
{
    return (float *)(c->slots + (size_t)slot * c->base.slot_bytes + offset);
}

/* Input row of the convolution at an absolute position: of this step, of the ring, or zeros before the text. */
static const float *conv_input(const struct gdn_job *j, const struct run *run, int pos)
{
    const struct cpu *c = j->c;
    const struct rec_place *rec = &c->rec[j->p->rec];
    if (pos < 0)
        return c->zeros;
    if (pos >= run->pos0)
        return buf_row(c, BUF_Q, run->row0 + pos - run->pos0);
    return slot_part(c, run->slot, rec->ring) + (int64_t)(pos % c->ring) * rec->channels;
}

/* Item: one head (query, key or value) of one row: convolution, silu, l2 norm; for value heads beta and decay. */
static void gdn_inputs(void *ud, int first, int last, int thread)
{
    struct gdn_job *j = ud;
    struct cpu *c = j->c;
    const struct gdn_params *p = j->p;
    int channels = c->rec[p->rec].channels, per_row = 2 * p->k_heads + p->v_heads;
    (void)thread;
    for (int i = first; i < last; i++) {
        int r = i / per_row, h = i % per_row;
        const struct run *run = &j->s->runs[j->s->run_of[r]];
        const float *rows[8];
        float *y = c->conv_out + (int64_t)r * channels;
        bool is_value = h >= 2 * p->k_heads;
        int width = is_value ? p->dv : p->dk;
        int c0 = is_value ? 2 * p->k_heads * p->dk + (h - 2 * p->k_heads) * p->dv : h * p->dk;
        for (int t = 0; t < p->taps; t++)
            rows[t] = conv_input(j, run, j->s->pos[r] - p->taps + 1 + t);
        c->k->conv(p->conv->f, channels, p->taps, c0, c0 + width, rows, y);
        c->k->zero_tiny(y + c0, width); // before the norm too: squares must not underflow
        if (!is_value) {
            c->k->l2norm(y + c0, p->dk, h < p->k_heads ? (float)(1.0 / sqrt((double)p->dk)) : 1.0f);
            c->k->zero_tiny(y + c0, width);
        }
        if (is_value) {
            int vh = h - 2 * p->k_heads;
            double beta = 1.0 / (1.0 + exp64(-(double)buf_row(c, BUF_B, r)[vh]));
            double a = (double)buf_row(c, BUF_A, r)[vh] + p->dt_bias->d[vh];
            double sp = a > 20 ? a : log64(1.0 + exp64(a)), g = p->a->d[vh] * sp;
            float *gd = c->gate_decay + ((int64_t)r * p->v_heads + vh) * 2;
            gd[0] = beta < 0x1p-40 ? 0 : (float)beta;
            gd[1] = g < -27.7 ? 0 : (float)exp64(g);
        }
    }
}

/* Channels [c0, c1) of the step's last inputs into the ring: all that a later step may look back to. */
static void keep_inputs(const struct gdn_job *j, const struct run *run, int c0, int c1)
{
    const struct cpu *c = j->c;
    const struct rec_place *rec = &c->rec[j->p->rec];
    int from = run->pos0 + run->n_final - (j->p->taps - 1);
    for (int pos = from > run->pos0 ? from : run->pos0; pos < run->pos0 + run->n; pos++)
        memcpy(slot_part(c, run->slot, rec->ring) + (int64_t)(pos % c->ring) * rec->channels + c0,
               buf_row(c, BUF_Q, run->row0 + pos - run->pos0) + c0, (size_t)(c1 - c0) * sizeof(float));
}

/* Keys of a run's provisional rows onto the tape. Value heads share them, and behind final rows they may take the
 * places of rows that this step replays: only once every head has replayed. */
static void keep_keys(const struct gdn_job *j, const struct run *run)
{
    const struct cpu *c = j->c;
    const struct rec_place *rec = &c->rec[j->p->rec];
    int ld_k = j->p->k_heads * j->p->dk;
    for (int i = run->n_final; i < run->n; i++)
        memcpy(slot_part(c, run->slot, rec->tape_k) + (int64_t)((run->pos0 + i) % c->tape) * ld_k,
               c->conv_out + (int64_t)(run->row0 + i) * rec->channels + ld_k, (size_t)ld_k * sizeof(float));
}

/* One value head of one run: replays what was accepted since the state was last written, advances it over the
 * final rows, runs the provisional ones on a copy and keeps its part of them on the tape. */
static void gdn_head(const struct gdn_job *j, const struct run *run, int vh, float *copy)
{
    struct cpu *c = j->c;
    const struct gdn_params *p = j->p;
    const struct rec_place *rec = &c->rec[p->rec];
    int kh = p->tiled ? vh % p->k_heads : vh / (p->v_heads / p->k_heads);
    float *S = slot_part(c, run->slot, rec->state) + (int64_t)vh * p->dk * p->dv;
    float *tk = slot_part(c, run->slot, rec->tape_k), *tu = slot_part(c, run->slot, rec->tape_u), *te = slot_part(c, run->slot, rec->tape_e);
    int ld_k = p->k_heads * p->dk, ld_u = p->v_heads * p->dv;
    for (int j0 = 0; j0 < p->dv; j0 += 16) {
        for (int t = run->state_pos; t < run->pos0; t++) {
            int at = t % c->tape;
            c->k->gdn_replay(S + j0, p->dv, p->dk, tk + (int64_t)at * ld_k + kh * p->dk, tu + (int64_t)at * ld_u + vh * p->dv + j0,
                             te[(int64_t)at * p->v_heads + vh]);
        }
        float *state = S + j0;
        int64_t ld = p->dv;
        for (int i = 0; i < run->n; i++) {
            int row = run->row0 + i, at = (run->pos0 + i) % c->tape;
            const float *x = c->conv_out + (int64_t)row * rec->channels, *gd = c->gate_decay + ((int64_t)row * p->v_heads + vh) * 2;
            float scratch_u[16], *u = scratch_u;
            if (i == run->n_final) {
                for (int d = 0; d < p->dk; d++)
                    memcpy(copy + 16 * d, S + (int64_t)d * p->dv + j0, 16 * sizeof *copy);
                state = copy;
                ld = 16;
            }
            if (i >= run->n_final)
                u = tu + (int64_t)at * ld_u + vh * p->dv + j0;
            c->k->gdn_step(state, ld, p->dk, x + kh * p->dk, x + (p->k_heads + kh) * p->dk,
                           x + 2 * p->k_heads * p->dk + vh * p->dv + j0, gd[0], gd[1], u, buf_row(c, j->dst, row) + vh * p->dv + j0);
        }
    }
    for (int i = 0; i < run->n; i++) {
        int row = run->row0 + i, at = (run->pos0 + i) % c->tape;
        if (i >= run->n_final)
            te[(int64_t)at * p->v_heads + vh] = c->gate_decay[((int64_t)row * p->v_heads + vh) * 2 + 1];
        c->k->gated_norm(buf_row(c, j->dst, row) + vh * p->dv, p->norm->f, buf_row(c, BUF_Z, row) + vh * p->dv, p->dv, p->eps);
    }
}

static void gdn_heads(void *ud, int first, int last, int thread)
{
    struct gdn_job *j = ud;
    const struct gdn_params *p = j->p;
    int channels = j->c->rec[p->rec].channels;
    for (int i = first; i < last; i++) {
        const struct run *run = &j->s->runs[i / p->v_heads];
        int vh = i % p->v_heads;
        gdn_head(j, run, vh, local_of(j->c, thread));
        keep_inputs(j, run, (int)((int64_t)channels * vh / p->v_heads), (int)((int64_t)channels * (vh + 1) / p->v_heads));
    }
}

void cpu_gdn(struct backend *b, const struct step *s, const struct gdn_params *p, enum buffer dst)
{
    struct cpu *c = (struct cpu *)b;
    struct gdn_job j = {c, s, p, dst};
    pool_run(c->pool, gdn_inputs, &j, s->n_rows * (2 * p->k_heads + p->v_heads), 4);
    pool_run(c->pool, gdn_heads, &j, s->n_runs * p->v_heads, 1);
    for (int r = 0; r < s->n_runs; r++)
        keep_keys(&j, &s->runs[r]);
}
