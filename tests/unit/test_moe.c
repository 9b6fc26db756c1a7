/* Mixtures of experts on the CPU backend: every instruction set, number of threads and way of batching against
 * docs/arithmetic.md §7 written out row by row, by memcmp. All mixtures are declared on one backend, so that they share
 * its scratch. */
#include "kernel_fixture.h"

#include "../slow_build.h"
#include "kernel/cpu/internal.h"

#ifdef SLOW
enum { ROWS = 20, N_MAX = 24 };
#else
enum { ROWS = 40, N_MAX = 24 };
#endif

struct form {
    enum wfmt fmt;
    int bits, group;
    enum wfmt scale;
};
static const struct form f32 = {WF_F32, 0, 0, WF_F32}, bf16 = {WF_BF16, 0, 0, WF_F32}, mlx4 = {WF_MLX, 4, 32, WF_BF16},
                         mlx8 = {WF_MLX, 8, 64, WF_F16}, q4_k = {WF_Q4_K, 5, 256, WF_F32}, q8_0 = {WF_Q8_0, 8, 32, WF_F32};

/* What a mixture is like; its weights are random. */
struct shape {
    const struct form *form, *down;
    int hidden, inter, n, k;
    bool sigmoid, normalize, bias, fused, router_norm, expert_scale, mix;
    int groups, used_groups, shared; // shared: width of the shared expert, 0: none
    float scale;
    enum activation act;
};
static const struct shape shapes[] = {
    {&f32, &f32, 48, 36, 11, 4, .normalize = true, .scale = 1},
    {&bf16, &f32, 48, 80, 11, 4, .fused = true, .scale = 1, .shared = 20, .mix = true},
    {&mlx4, &mlx4, 160, 96, 11, 3, .normalize = true, .scale = 1},
    {&mlx4, &mlx8, 192, 64, 17, 5, .fused = true, .normalize = true, .scale = 1, .shared = 96, .mix = true},
    {&mlx4, &mlx4, 96, 32, 12, 3, .sigmoid = true, .normalize = true, .bias = true, .groups = 4, .used_groups = 2, .scale = 2.5f, .shared = 64},
    {&bf16, &bf16, 32, 16, 12, 5, .sigmoid = true, .scale = 0.7f, .groups = 6, .used_groups = 4},
    {&f32, &f32, 32, 16, 6, 2, .sigmoid = true, .normalize = true, .bias = true, .scale = 1, .groups = 6, .used_groups = 3},
    {&q4_k, &q4_k, 256, 256, 5, 2, .normalize = true, .fused = true, .scale = 1},
    {&q8_0, &mlx8, 64, 64, 9, 2, .normalize = true, .router_norm = true, .expert_scale = true, .scale = 1, .act = ACT_GELU_TANH},
    {&mlx4, &f32, 64, 32, 24, 18, .normalize = true, .scale = 3, .router_norm = true},
    {&f32, &mlx4, 32, 32, 1, 1, .scale = 1, .normalize = true, .shared = 32},
    {&mlx4, &mlx4, 1088, 32, 4, 4, .scale = 1, .shared = 32, .mix = true},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

struct mixture {
    struct shape s;
    struct mat *router, *gate, *up, *down, *shared[3], *mix;
    double norm[1100], router_norm[1100], bias[N_MAX], expert_scale[N_MAX];
};

static struct mat *matrix(const struct form *f, int out, int in) { return mat_new(f->fmt, f->bits, f->group, f->scale, out, in); }

static struct mixture *mixture_new(const struct shape *s)
{
    struct mixture *m = xcalloc(1, sizeof *m);
    m->s = *s;
    m->router = matrix(below(2) ? &f32 : &bf16, s->n, s->hidden);
    m->gate = matrix(s->form, s->n * s->inter * (s->fused ? 2 : 1), s->hidden);
    m->up = s->fused ? NULL : matrix(s->form, s->n * s->inter, s->hidden);
    m->down = matrix(s->down, s->n * s->hidden, s->inter);
    for (int i = 0; i < 3 && s->shared; i++)
        m->shared[i] = matrix(s->form, i < 2 ? s->shared : s->hidden, i < 2 ? s->hidden : s->shared);
    m->mix = s->mix ? matrix(s->form, 1, s->hidden) : NULL;
    for (int i = 0; i < s->hidden; i++) {
        m->norm[i] = (double)uniform(0.5f, 1.5f);
        m->router_norm[i] = (double)(uniform(0.5f, 1.5f) / sqrtf((float)s->hidden));
    }
    for (int i = 0; i < s->n; i++) {
        m->bias[i] = (double)uniform(-1, 1);
        m->expert_scale[i] = (double)uniform(0.5f, 1.5f);
    }
    return m;
}

static void mixture_free(struct mixture *m)
{
    struct mat *all[] = {m->router, m->gate, m->up, m->down, m->shared[0], m->shared[1], m->shared[2], m->mix};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i])
            mat_free(all[i]);
    free(m);
}

/* A backend with some mixtures declared. */
struct rig {
    struct backend *b;
    int n;
    struct moe_params p[N_SHAPES];
    struct moe_matrix mat[N_SHAPES][3][N_MAX];
};

static const struct bweight *bound(struct backend *b, const struct mat *m)
{
    struct bweight *w = NULL;
    struct err e = {0};
    if (m && b->ops->weight(b, &m->w, &w, &e))
        fail_msg("%s", e.msg);
    return w;
}

static const struct bvec *vector(struct backend *b, const double *x, int n)
{
    struct bvec *v;
    struct err e = {0};
    assert_int_equal(b->ops->vec(b, x, n, &v, &e), 0);
    return v;
}

static void bind(struct rig *r, const struct mixture *m)
{
    const struct shape *s = &m->s;
    struct backend *b = r->b;
    struct err e = {0};
    struct moe_params *p = &r->p[r->n];
    struct moe_matrix (*mat)[N_MAX] = r->mat[r->n++];
    const struct bweight *gate = bound(b, m->gate), *up = s->fused ? gate : bound(b, m->up), *down = bound(b, m->down);
    for (int i = 0; i < s->n; i++) {
        mat[0][i] = (struct moe_matrix){gate, (int64_t)i * s->inter * (s->fused ? 2 : 1)};
        mat[1][i] = (struct moe_matrix){up, (int64_t)(s->fused ? 2 * i + 1 : i) * s->inter};
        mat[2][i] = (struct moe_matrix){down, (int64_t)i * s->hidden};
    }
    *p = (struct moe_params){
        .n_experts = s->n, .n_used = s->k, .hidden = s->hidden, .inter = s->inter, .norm = vector(b, m->norm, s->hidden), .eps = 1e-6f,
        .router_norm = s->router_norm ? vector(b, m->router_norm, s->hidden) : NULL, .router = bound(b, m->router), .is_sigmoid = s->sigmoid,
        .normalize = s->normalize, .bias = s->bias ? vector(b, m->bias, s->n) : NULL, .n_groups = s->groups, .n_used_groups = s->used_groups,
        .scale = s->scale, .expert_scale = s->expert_scale ? vector(b, m->expert_scale, s->n) : NULL, .gate = mat[0], .up = mat[1],
        .down = mat[2], .shared_gate = bound(b, m->shared[0]), .shared_up = bound(b, m->shared[1]), .shared_down = bound(b, m->shared[2]),
        .shared_mix = bound(b, m->mix), .act = s->act,
    };
    assert_int_equal(b->ops->moe_declare(b, p, &e), 0);
}

static void rig_open(struct rig *r, struct mixture *const *m, int n, const char *name, int threads, bool float_mode)
{
    struct backend_options o = {.threads = threads, .isa = name, .float_mode = float_mode};
    struct err e = {0};
    int widths[BUF_COUNT] = {0}, pages[PAGE_CLASSES] = {0};
    *r = (struct rig){0};
    if (backend_cpu_open(&r->b, &o, &e))
        fail_msg("%s", e.msg);
    widths[BUF_X] = widths[BUF_NORM] = widths[BUF_GATE] = widths[BUF_OUT] = widths[BUF_MIX] = 1088;
    widths[BUF_B] = 1;
    for (int i = 0; i < n; i++)
        bind(r, m[i]);
    if (r->b->ops->setup(r->b, NULL, 0, widths, ROWS, pages, 0, 0, &e))
        fail_msg("%s", e.msg);
}

/* y [n, hidden]: the i-th mixture on rows x, as it lies in dst afterwards. */
static void run(struct rig *r, int i, const float *x, int n, enum buffer dst, float *y)
{
    const struct backend_ops *op = r->b->ops;
    int width = ((struct cpu *)r->b)->width[BUF_X], hidden = (int)r->p[i].hidden;
    struct step s = {.n_rows = n};
    float *row = floats(width);
    poison(row, width);
    for (int k = 0; k < n; k++) {
        op->write(r->b, dst, k, 1, row);
        memcpy(row, x + (int64_t)k * hidden, (size_t)hidden * sizeof *row);
        op->write(r->b, BUF_X, k, 1, row);
    }
    op->moe(r->b, &s, &r->p[i], dst);
    for (int k = 0; k < n; k++) {
        op->read(r->b, dst, k, 1, row);
        memcpy(y + (int64_t)k * hidden, row, (size_t)hidden * sizeof *row);
    }
    free(row);
}

/* ---- §7, one row ------------------------------------------------------------------------------------------------- */

static float product(const struct bweight *w, int64_t row, const float *x)
{
    float line[1100];
    if (w->quantized)
        return naive_qdot(w->w, row, x);
    for (int i = 0; i < w->in; i++)
        line[i] = weight_at(w->w, row, i);
    return naive_dot(line, x, (int)w->in);
}

static void normed(const float *x, const struct bvec *w, float eps, float *y)
{
    float s = 1.0f / sqrtf(naive_dot(x, x, w->n) / (float)w->n + eps);
    for (int i = 0; i < w->n; i++)
        y[i] = x[i] * s * w->f[i];
}

/* o = down · (act(gate · x) * (up · x)), each matrix from a row of its own on. */
static void mlp(enum activation act, const struct moe_matrix m[3], int inter, int hidden, const float *x, float *o)
{
    float h[1100];
    for (int i = 0; i < inter; i++) {
        float g = product(m[0].w, m[0].row0 + i, x);
        h[i] = (act == ACT_SILU ? g * naive_sigmoid(g) : naive_gelu(g)) * product(m[1].w, m[1].row0 + i, x);
    }
    for (int i = 0; i < hidden; i++)
        o[i] = product(m[2].w, m[2].row0 + i, h);
}

static bool above(const float *x, int i, int k)
{
    bool more = x[i] > x[k] || (isnan(x[i]) && !isnan(x[k])), less = x[k] > x[i] || (isnan(x[k]) && !isnan(x[i]));
    return more || (!less && i < k);
}

/* Which of the allowed ones are among the `most` greatest. */
static void greatest(const float *x, int n, int most, const bool *allowed, bool *in)
{
    for (int i = 0; i < n; i++) {
        int before = 0;
        for (int k = 0; k < n; k++)
            before += (!allowed || allowed[k]) && k != i && above(x, k, i);
        in[i] = (!allowed || allowed[i]) && before < most;
    }
}

static void in_best_groups(const struct moe_params *p, const float *b, bool *allowed)
{
    float rank[N_MAX];
    bool kept[N_MAX], two[N_MAX];
    int size = p->n_experts / p->n_groups;
    for (int g = 0; g < p->n_groups; g++) {
        greatest(b + g * size, size, 2, NULL, two);
        rank[g] = 0;
        for (int i = 0; i < size; i++)
            rank[g] += two[i] ? b[g * size + i] : 0;
    }
    greatest(rank, p->n_groups, p->n_used_groups, NULL, kept);
    for (int i = 0; i < p->n_experts; i++)
        allowed[i] = kept[i / size];
}

static float sum_of(const float *x, int n, const bool *in)
{
    float lane[16] = {0};
    for (int i = 0, k = 0; i < n; i++)
        if (!in || in[i])
            lane[k++ % 16] += x[i];
    return tree16(lane);
}

/* w[e] for the chosen experts. */
static void route(const struct moe_params *p, const float *x, float *w, bool *chosen)
{
    float s[N_MAX], b[N_MAX], top = -INFINITY;
    bool allowed[N_MAX];
    int n = p->n_experts;
    for (int e = 0; e < n; e++) {
        s[e] = product(p->router, e, x);
        top = fmaxf(top, s[e]);
        allowed[e] = true;
    }
    for (int e = 0; e < n && p->is_sigmoid; e++) {
        s[e] = naive_sigmoid(s[e]);
        b[e] = s[e] + (p->bias ? p->bias->f[e] : 0);
    }
    if (p->is_sigmoid && p->n_groups)
        in_best_groups(p, b, allowed);
    greatest(p->is_sigmoid ? b : s, n, p->n_used, allowed, chosen);
    for (int e = 0; e < n && !p->is_sigmoid; e++)
        s[e] = naive_exp(s[e] - top);
    float total = p->is_sigmoid ? p->normalize ? sum_of(s, n, chosen) + 1e-20f : 1 : sum_of(s, n, p->normalize ? chosen : NULL);
    for (int e = 0; e < n; e++)
        w[e] = s[e] / total * p->scale * (p->expert_scale ? p->expert_scale->f[e] : 1);
}

static void naive_row(const struct moe_params *p, const float *x, float *y)
{
    float n[1100], rn[1100], w[N_MAX], o[1100];
    bool chosen[N_MAX];
    int hidden = (int)p->hidden;
    normed(x, p->norm, p->eps, n);
    normed(x, p->router_norm ? p->router_norm : p->norm, p->eps, rn);
    route(p, rn, w, chosen);
    memset(y, 0, (size_t)hidden * sizeof *y);
    for (int e = 0; e < p->n_experts; e++) {
        if (!chosen[e])
            continue;
        mlp(p->act, (struct moe_matrix[]){p->gate[e], p->up[e], p->down[e]}, (int)p->inter, hidden, n, o);
        for (int i = 0; i < hidden; i++)
            y[i] = fmaf(w[e], o[i], y[i]);
    }
    if (!p->shared_gate)
        return;
    float g = p->shared_mix ? naive_sigmoid(product(p->shared_mix, 0, n)) : 1;
    mlp(p->act, (struct moe_matrix[]){{p->shared_gate, 0}, {p->shared_up, 0}, {p->shared_down, 0}}, (int)p->shared_gate->out, hidden, n, o);
    for (int i = 0; i < hidden; i++)
        y[i] = fmaf(g, o[i], y[i]);
}

/* ---- tests --------------------------------------------------------------------------------------------------------- */

enum { N_RIGS = 4 };

/* Every mixture on every rig, all rows at once and in pieces, to both kinds of destination. */
static void check_all(struct mixture *const *m, int n, bool float_mode)
{
    static const int threads[N_RIGS] = {1, 3, 1, 3};
    struct rig rig[N_RIGS];
    for (int k = 0; k < N_RIGS; k++)
        rig_open(&rig[k], m, n, isa[k / 2 % n_isa]->name, threads[k], float_mode);
    for (int i = 0; i < n; i++) {
        int hidden = m[i]->s.hidden;
        int64_t size = (int64_t)ROWS * hidden;
        float *x = random_floats(size, 2), *y = floats(size), *want = floats(size), *sum = copy_of(x, size);
        for (int r = 0; r < ROWS; r++)
            naive_row(&rig[0].p[i], x + r * hidden, want + r * hidden);
        for (int64_t t = 0; t < size; t++) {
            assert_true(isfinite(want[t]));
            sum[t] += want[t];
        }
        for (int k = 0; k < N_RIGS; k++) {
            run(&rig[k], i, x, ROWS, BUF_MIX, y);
            assert_same(want, y, size);
            run(&rig[k], i, x, ROWS, BUF_X, y);
            assert_same(sum, y, size);
            for (int r = 0, part = 1; r < ROWS; r += part) { // one at a time, then some
                part = r < 8 || k == 0 ? 1 : r + 5 < ROWS ? 5 : ROWS - r;
                run(&rig[k], i, x + r * hidden, part, r % 2 ? BUF_X : BUF_MIX, y);
                assert_same((r % 2 ? sum : want) + r * hidden, y, (int64_t)part * hidden);
            }
        }
        free(x), free(y), free(want), free(sum);
    }
    for (int k = 0; k < N_RIGS; k++)
        rig[k].b->ops->close(rig[k].b);
}

static void each_shape(void (*change)(struct mixture *), bool float_mode)
{
    struct mixture *m[N_SHAPES];
    for (int i = 0; i < N_SHAPES; i++) {
        m[i] = mixture_new(&shapes[i]);
        if (change)
            change(m[i]);
    }
    check_all(m, N_SHAPES, float_mode);
    for (int i = 0; i < N_SHAPES; i++)
        mixture_free(m[i]);
}

static void test_contract(void **state)
{
    (void)state;
    each_shape(NULL, false);
}

static void test_float_mode(void **state)
{
    (void)state;
    each_shape(NULL, true);
}

static uint8_t *router_row(struct mixture *m, int e) { return m->router->mem[0] + 1 + (size_t)e * m->router->w.row_bytes; }

/* Experts score alike, all or in threes; so do groups of them. */
static void tie(struct mixture *m)
{
    int n = below(2) ? m->s.n : 3;
    for (int e = 0; e < m->s.n; e++) {
        memmove(router_row(m, e), router_row(m, e - e % n), m->router->w.row_bytes);
        m->bias[e] = m->bias[e - e % n];
    }
}

static void test_ties(void **state)
{
    (void)state;
    each_shape(tie, false);
}

/* With a bias of 4 no other expert is chosen; those are full of NaN, which nothing may read. */
static void test_experts_without_rows(void **state)
{
    (void)state;
    static const struct shape s = {&f32, &f32, 48, 80, 9, 3, .sigmoid = true, .normalize = true, .bias = true, .scale = 1};
    struct mixture *m = mixture_new(&s);
    for (int e = 0; e < s.n; e++) {
        if (e % 4 == 1 || e == 8) {
            m->bias[e] = 4;
            continue;
        }
        size_t gate = (size_t)s.inter * m->gate->w.row_bytes, down = (size_t)s.hidden * m->down->w.row_bytes;
        memset(m->gate->mem[0] + 1 + (size_t)e * gate, 0xff, gate);
        memset(m->up->mem[0] + 1 + (size_t)e * gate, 0xff, gate);
        memset(m->down->mem[0] + 1 + (size_t)e * down, 0xff, down);
    }
    check_all(&m, 1, false);
    mixture_free(m);
}

/* A score that is not a number reaches every value of its rows, and no other row. */
static void test_nan(void **state)
{
    (void)state;
    for (int i = 0; i < N_SHAPES; i++)
        for (int k = 0; k < n_isa; k++) {
            struct mixture *m = mixture_new(&shapes[i]);
            int hidden = m->s.hidden, bad = below(ROWS);
            int64_t size = (int64_t)ROWS * hidden;
            float *x = random_floats(size, 2), *y = floats(size), *want = floats(size);
            struct rig r;
            rig_open(&r, &m, 1, isa[k]->name, 2, false);
            run(&r, 0, x, ROWS, BUF_MIX, want);
            x[(int64_t)bad * hidden + below(hidden)] = NAN;
            run(&r, 0, x, ROWS, BUF_MIX, y);
            for (int64_t t = 0; t < size; t++)
                assert_true(t / hidden == bad ? isnan(y[t]) : !memcmp(&y[t], &want[t], 4));
            x[(int64_t)bad * hidden] = 1;
            memset(router_row(m, below(m->s.n)), 0xff, m->router->w.row_bytes); // one expert, in the last group or the first
            run(&r, 0, x, ROWS, BUF_MIX, y);
            for (int64_t t = 0; t < size; t++)
                assert_true(isnan(y[t]));
            r.b->ops->close(r.b);
            mixture_free(m);
            free(x), free(y), free(want);
        }
}

static void test_limits(void **state)
{
    (void)state;
    struct backend *b;
    struct backend_options o = {.threads = 1};
    struct err e = {0};
    struct moe_params p = {.n_experts = 1025, .n_used = 8};
    assert_int_equal(backend_cpu_open(&b, &o, &e), 0);
    assert_int_equal(b->ops->moe_declare(b, &p, &e), ERR_UNSUPPORTED);
    assert_string_equal(e.msg, "a mixture of 1025 experts, 8 a token, is unsupported; the most are 1024 and 64");
    p = (struct moe_params){.n_experts = 128, .n_used = 65};
    assert_int_equal(b->ops->moe_declare(b, &p, &e), ERR_UNSUPPORTED);
    b->ops->close(b);
}

int main(void)
{
    isa[n_isa++] = &cpu_kernels_scalar;
    const struct cpu_kernels *best = cpu_kernels_find(NULL);
    if (best != &cpu_kernels_scalar)
        isa[n_isa++] = best;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contract), cmocka_unit_test(test_float_mode), cmocka_unit_test(test_ties),
        cmocka_unit_test(test_experts_without_rows), cmocka_unit_test(test_nan), cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
