/* Mixture of experts: docs/arithmetic.md §7. The rows of a step are sorted by expert, so that each chosen expert's
 * weights are read once whatever the number of rows; a row's result depends on its own experts alone, whose
 * outputs are added in ascending order. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kernel/cpu/internal.h"

enum { EXPERTS_MAX = 1024, USED_MAX = 64 };

/* An assignment is one row in the hands of one expert; they stand sorted by expert, then by row. */
struct moe_scratch {
    int n_experts, n_used;      // most of all declared mixtures
    int64_t hidden, inter;
    unsigned need_in, need_down; // activation sets
    bool is_float;              // some experts are float: their inputs are gathered as floats
    float *score;               // [max_rows, n_experts]
    int32_t *id;                // [max_rows, n_used] chosen experts, ascending
    float *weight;              // [max_rows, n_used]
    int32_t *place;             // [max_rows, n_used] assignment of the row's i-th expert
    int32_t *row;               // [assignments]
    int32_t *first;             // [n_experts + 1] assignments of each expert
    float *in, *mid, *out;      // [assignments, hidden], [.., inter], [.., hidden]
    struct qact acts[MAX_ACTS]; // of the assignments
};

struct moe_job {
    struct cpu *c;
    struct moe_scratch *m;
    const struct moe_params *p;
    int n;                      // rows of the step
    int assignments;
    enum buffer dst;
    unsigned need;
    int active[EXPERTS_MAX], n_active; // experts with assignments
};

int cpu_moe_declare(struct backend *b, const struct moe_params *p, struct err *e)
{
    struct cpu *c = (struct cpu *)b;
    if (p->n_experts > EXPERTS_MAX || p->n_used > USED_MAX)
        return err_set(e, ERR_UNSUPPORTED, "a mixture of %d experts, %d a token, is unsupported; the most are %d and %d", p->n_experts, p->n_used,
                       EXPERTS_MAX, USED_MAX);
    struct moe_scratch *m = c->moe = c->moe ? c->moe : xcalloc(1, sizeof *m);
    m->n_experts = p->n_experts > m->n_experts ? p->n_experts : m->n_experts;
    m->n_used = p->n_used > m->n_used ? p->n_used : m->n_used;
    m->hidden = p->hidden > m->hidden ? p->hidden : m->hidden;
    m->inter = p->inter > m->inter ? p->inter : m->inter;
    for (int i = 0; i < p->n_experts; i++) {
        unsigned gate = cpu_acts_of(c, p->gate[i].w), up = cpu_acts_of(c, p->up[i].w), down = cpu_acts_of(c, p->down[i].w);
        m->is_float = m->is_float || !gate || !up;
        m->need_in |= gate | up;
        m->need_down |= down;
    }
    return 0;
}

bool cpu_moe_setup(struct cpu *c)
{
    struct moe_scratch *m = c->moe;
    if (!m)
        return true;
    size_t rows = (size_t)c->max_rows, chosen = rows * (size_t)m->n_used;
    int64_t widest = m->hidden > m->inter ? m->hidden : m->inter;
    bool ok = (m->score = cpu_alloc(c, rows * (size_t)m->n_experts * 4)) && (m->id = cpu_alloc(c, chosen * 4)) &&
              (m->weight = cpu_alloc(c, chosen * 4)) && (m->place = cpu_alloc(c, chosen * 4)) && (m->row = cpu_alloc(c, chosen * 4)) &&
              (m->first = cpu_alloc(c, (size_t)(m->n_experts + 1) * 4)) && (m->mid = cpu_alloc(c, chosen * (size_t)m->inter * 4 + 64)) &&
              (m->out = cpu_alloc(c, chosen * (size_t)m->hidden * 4 + 64)) &&
              (!m->is_float || (m->in = cpu_alloc(c, chosen * (size_t)m->hidden * 4 + 64)));
    for (int i = 0; i < c->n_acts && ok; i++)
        if ((m->need_in | m->need_down) & 1u << i) {
            m->acts[i] = (struct qact){.group = c->acts[i].group, .order = c->acts[i].order};
            ok = cpu_alloc_act(c, &m->acts[i], chosen, widest);
        }
    return ok;
}

/* ---- routing ------------------------------------------------------------------------------------------------------ */

static bool greater(float a, float b) { return a > b || (isnan(a) && !isnan(b)); }

/* The k greatest of x[0..n), of equal ones the lowest; ids ascending. taken: scratch, all false before and after. */
static void choose(const float *x, int n, int k, int32_t *ids, bool *taken)
{
    for (int i = 0; i < k; i++) {
        int best = -1;
        for (int j = 0; j < n; j++)
            if (!taken[j] && (best < 0 || greater(x[j], x[best])))
                best = j;
        taken[best] = true;
    }
    for (int j = 0, i = 0; j < n; j++) {
        if (taken[j])
            ids[i++] = j;
        taken[j] = false;
    }
}

static float sum16(const float *x, int n)
{
    float lane[16] = {0};
    for (int i = 0; i < n; i++)
        lane[i % 16] += x[i];
    for (int half = 8; half; half /= 2)
        for (int l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

/* Experts outside the best groups can't be chosen. A group's rank is the sum of its two greatest. */
static void keep_groups(const struct moe_params *p, float *b)
{
    float rank[EXPERTS_MAX];
    int32_t kept[EXPERTS_MAX];
    bool taken[EXPERTS_MAX] = {false};
    int size = p->n_experts / p->n_groups;
    for (int g = 0; g < p->n_groups; g++) {
        int32_t two[2];
        choose(b + g * size, size, size < 2 ? 1 : 2, two, taken);
        rank[g] = b[g * size + two[0]] + (size < 2 ? 0 : b[g * size + two[1]]);
    }
    choose(rank, p->n_groups, p->n_used_groups, kept, taken);
    for (int g = 0, i = 0; g < p->n_groups; g++)
        if (i < p->n_used_groups && kept[i] == g)
            i++;
        else
            for (int j = 0; j < size; j++)
                b[g * size + j] = -INFINITY;
}

static void route_row(const struct cpu *c, const struct moe_params *p, float *score, int32_t *ids, float *weight)
{
    int n = p->n_experts, k = p->n_used;
    float biased[EXPERTS_MAX], part[USED_MAX], total;
    bool taken[EXPERTS_MAX] = {false};
    if (p->is_sigmoid) {
        c->k->sigmoid(score, n);
        for (int i = 0; i < n; i++)
            biased[i] = p->bias ? score[i] + p->bias->f[i] : score[i];
        if (p->n_groups > 1)
            keep_groups(p, biased);
        choose(biased, n, k, ids, taken);
    } else {
        float top = -INFINITY;
        choose(score, n, k, ids, taken);
        for (int i = 0; i < k; i++)
            top = greater(score[ids[i]], top) ? score[ids[i]] : top;
        c->k->exp_less(score, top, n);
    }
    for (int i = 0; i < k; i++)
        part[i] = score[ids[i]];
    total = p->normalize ? sum16(part, k) : p->is_sigmoid ? 1 : sum16(score, n);
    if (p->is_sigmoid && p->normalize)
        total += 1e-20f;
    for (int i = 0; i < k; i++) {
        weight[i] = part[i] / total;
        if (p->scale != 1)
            weight[i] *= p->scale;
        if (p->expert_scale)
            weight[i] *= p->expert_scale->f[ids[i]];
    }
}

static void route_rows(void *ud, int first, int last, int thread)
{
    struct moe_job *j = ud;
    struct moe_scratch *m = j->m;
    int k = j->p->n_used;
    (void)thread;
    for (int r = first; r < last; r++)
        route_row(j->c, j->p, m->score + (int64_t)r * j->p->n_experts, m->id + r * k, m->weight + r * k);
}

/* Item: a tile of experts, all rows. */
static void score_tiles(void *ud, int first, int last, int thread)
{
    struct moe_job *j = ud;
    struct cpu *c = j->c;
    int n = j->p->n_experts;
    (void)thread;
    for (int i = first; i < last; i++)
        for (int r = 0; r < j->n; r += ROWS_MAX)
            c->k->fmm(j->p->router, buf_row(c, BUF_NORM, r), c->width[BUF_NORM], i * ROW_GROUP, i * ROW_GROUP + ROW_GROUP < n ? i * ROW_GROUP + ROW_GROUP : n,
                      j->n - r < ROWS_MAX ? j->n - r : ROWS_MAX, j->m->score + (int64_t)r * n, n);
}

static void sort_by_expert(struct moe_job *j)
{
    struct moe_scratch *m = j->m;
    int k = j->p->n_used, next[EXPERTS_MAX];
    memset(m->first, 0, (size_t)(j->p->n_experts + 1) * sizeof *m->first);
    for (int i = 0; i < j->n * k; i++)
        m->first[m->id[i] + 1]++;
    j->n_active = 0;
    for (int x = 0; x < j->p->n_experts; x++) {
        if (m->first[x + 1])
            j->active[j->n_active++] = x;
        m->first[x + 1] += m->first[x];
        next[x] = m->first[x];
    }
    for (int i = 0; i < j->n * k; i++) {
        m->place[i] = next[m->id[i]]++;
        m->row[m->place[i]] = i / k;
    }
}

/* ---- products ------------------------------------------------------------------------------------------------------- */

/* Item: one row of the step. */
static void norm_rows(void *ud, int first, int last, int thread)
{
    struct moe_job *j = ud;
    struct cpu *c = j->c;
    const struct bvec *w = j->need ? j->p->norm : j->p->router_norm;
    (void)thread;
    for (int r = first; r < last; r++) {
        c->k->rms(buf_row(c, BUF_X, r), w->f, w->n, j->p->eps, buf_row(c, BUF_NORM, r));
        for (int i = 0; i < c->n_acts; i++)
            if (j->need & j->m->need_in & 1u << i)
                c->k->quantize(buf_row(c, BUF_NORM, r), w->n, &c->acts[i], r);
    }
}

/* Item: one assignment. */
static void gather_rows(void *ud, int first, int last, int thread)
{
    struct moe_job *j = ud;
    struct moe_scratch *m = j->m;
    struct cpu *c = j->c;
    (void)thread;
    for (int a = first; a < last; a++) {
        int r = m->row[a];
        if (m->in)
            memcpy(m->in + (int64_t)a * j->p->hidden, buf_row(c, BUF_NORM, r), (size_t)j->p->hidden * sizeof *m->in);
        for (int i = 0; i < c->n_acts; i++) {
            const struct qact *s = &c->acts[i];
            struct qact *d = &m->acts[i];
            if (!(m->need_in & 1u << i))
                continue;
            size_t groups = (size_t)s->n_groups;
            memcpy(d->code + a * d->ld, s->code + r * s->ld, (size_t)s->ld);
            memcpy(d->scale + (size_t)a * groups, s->scale + (size_t)r * groups, groups * sizeof *s->scale);
            memcpy(d->isum + (size_t)a * groups, s->isum + (size_t)r * groups, groups * sizeof *s->isum);
            if (s->sum16)
                memcpy(d->sum16 + a * d->ld / 16, s->sum16 + r * s->ld / 16, (size_t)(s->ld / 16) * sizeof *s->sum16);
        }
    }
}

static void quantize_mid(void *ud, int first, int last, int thread)
{
    struct moe_job *j = ud;
    struct moe_scratch *m = j->m;
    (void)thread;
    for (int a = first; a < last; a++)
        for (int i = 0; i < j->c->n_acts; i++)
            if (m->need_down & 1u << i)
                j->c->k->quantize(m->mid + a * j->p->inter, (int)j->p->inter, &m->acts[i], a);
}

/* y [n, TILE_OUT]: outputs [o0, o1) of one expert's matrix for assignments [a, a+n). */
static void expert_tile(const struct moe_job *j, const struct moe_matrix *w, const float *x, int64_t ld_x, int64_t o0, int64_t o1, int a, int n, float *y)
{
    int i = cpu_act_index(j->c, w->w);
    if (i >= 0)
        j->c->k->qmm(w->w, &j->m->acts[i], w->row0 + o0, w->row0 + o1, a, n, y - (w->row0 + o0), TILE_OUT);
    else
        j->c->k->fmm(w->w, x + a * ld_x, ld_x, w->row0 + o0, w->row0 + o1, n, y - (w->row0 + o0), TILE_OUT);
}

/* Items: an active expert's tiles of outputs, expert by expert. */
static void gate_tiles(void *ud, int first, int last, int thread)
{
    struct moe_job *j = ud;
    struct moe_scratch *m = j->m;
    int64_t inter = j->p->inter, tiles = (inter + TILE_OUT - 1) / TILE_OUT;
    float *g = local_of(j->c, thread), *u = g + TILE_OUT * ROWS_MAX;
    for (int i = first; i < last; i++) {
        int x = j->active[i / tiles];
        int64_t o0 = i % tiles * TILE_OUT, o1 = o0 + TILE_OUT < inter ? o0 + TILE_OUT : inter;
        for (int a = m->first[x]; a < m->first[x + 1]; a += ROWS_MAX) {
            int n = m->first[x + 1] - a < ROWS_MAX ? m->first[x + 1] - a : ROWS_MAX;
            expert_tile(j, &j->p->gate[x], m->in, j->p->hidden, o0, o1, a, n, g);
            expert_tile(j, &j->p->up[x], m->in, j->p->hidden, o0, o1, a, n, u);
            for (int r = 0; r < n; r++)
                j->c->k->act_mul(j->p->act, g + r * TILE_OUT, u + r * TILE_OUT, (int)(o1 - o0), m->mid + (a + r) * inter + o0);
        }
    }
}

static void down_tiles(void *ud, int first, int last, int thread)
{
    struct moe_job *j = ud;
    struct moe_scratch *m = j->m;
    int64_t hidden = j->p->hidden, tiles = (hidden + TILE_OUT - 1) / TILE_OUT;
    float *y = local_of(j->c, thread);
    for (int i = first; i < last; i++) {
        int x = j->active[i / tiles];
        int64_t o0 = i % tiles * TILE_OUT, o1 = o0 + TILE_OUT < hidden ? o0 + TILE_OUT : hidden;
        for (int a = m->first[x]; a < m->first[x + 1]; a += ROWS_MAX) {
            int n = m->first[x + 1] - a < ROWS_MAX ? m->first[x + 1] - a : ROWS_MAX;
            expert_tile(j, &j->p->down[x], m->mid, j->p->inter, o0, o1, a, n, y);
            for (int r = 0; r < n; r++)
                memcpy(m->out + (a + r) * hidden + o0, y + r * TILE_OUT, (size_t)(o1 - o0) * sizeof *y);
        }
    }
}

/* Item: one row. The shared expert's output waits in BUF_OUT, its gate's score in BUF_B. */
static void combine_rows(void *ud, int first, int last, int thread)
{
    struct moe_job *j = ud;
    struct moe_scratch *m = j->m;
    const struct moe_params *p = j->p;
    float *y = local_of(j->c, thread);
    for (int r = first; r < last; r++) {
        memset(y, 0, (size_t)p->hidden * sizeof *y);
        for (int i = 0; i < p->n_used; i++)
            j->c->k->axpy(y, m->weight[r * p->n_used + i], m->out + m->place[r * p->n_used + i] * p->hidden, (int)p->hidden);
        if (p->shared_gate) {
            float g = 1;
            if (p->shared_mix) {
                g = *buf_row(j->c, BUF_B, r);
                j->c->k->sigmoid(&g, 1);
            }
            j->c->k->axpy(y, g, buf_row(j->c, BUF_OUT, r), (int)p->hidden);
        }
        if (j->dst == BUF_X)
            j->c->k->add(buf_row(j->c, BUF_X, r), y, (int)p->hidden);
        else
            memcpy(buf_row(j->c, j->dst, r), y, (size_t)p->hidden * sizeof *y);
    }
}

void cpu_moe(struct backend *b, const struct step *s, const struct moe_params *p, enum buffer dst)
{
    struct cpu *c = (struct cpu *)b;
    struct moe_scratch *m = c->moe;
    struct moe_job j = {.c = c, .m = m, .p = p, .n = s->n_rows, .dst = dst, .assignments = s->n_rows * p->n_used};
    if (p->shared_gate) {
        b->ops->mlp(b, s, p->norm, p->eps, p->shared_gate, p->shared_up, p->shared_down, p->act, BUF_OUT);
        if (p->shared_mix)
            b->ops->mm(b, s, BUF_NORM, p->shared_mix, BUF_B);
    }
    cpu_set_widths(c->acts, c->n_acts, p->hidden);
    cpu_set_widths(m->acts, c->n_acts, p->hidden);
    if (p->router_norm) { // a norm of its own, before the one that the experts read
        pool_run(c->pool, norm_rows, &j, j.n, 1);
        pool_run(c->pool, score_tiles, &j, (p->n_experts + ROW_GROUP - 1) / ROW_GROUP, 1);
    }
    j.need = ~0u;
    pool_run(c->pool, norm_rows, &j, j.n, 1);
    if (!p->router_norm)
        pool_run(c->pool, score_tiles, &j, (p->n_experts + ROW_GROUP - 1) / ROW_GROUP, 1);
    pool_run(c->pool, route_rows, &j, j.n, 4);
    sort_by_expert(&j);
    pool_run(c->pool, gather_rows, &j, j.assignments, 8);
    pool_run(c->pool, gate_tiles, &j, j.n_active * (int)((p->inter + TILE_OUT - 1) / TILE_OUT), 1);
    cpu_set_widths(m->acts, c->n_acts, p->inter);
    if (m->need_down)
        pool_run(c->pool, quantize_mid, &j, j.assignments, 2);
    pool_run(c->pool, down_tiles, &j, j.n_active * (int)((p->hidden + TILE_OUT - 1) / TILE_OUT), 4);
    pool_run(c->pool, combine_rows, &j, j.n, 1);
}
