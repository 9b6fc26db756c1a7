/* The kernels of every instruction set against the scalar ones, by memcmp, and the scalar ones against the
 * formulas of docs/arithmetic.md written out term by term. Weights lie at odd addresses in blocks of exact
 * size, results in memory full of NaN, so that a sanitizer or a comparison sees what strays. */
#include "kernel_fixture.h"

/* ---- products --------------------------------------------------------------------------------------------------- */

struct acts {
    struct qact a;
    float *x;
};

static struct acts acts_new(const struct mat *m, int n)
{
    int in = (int)m->bw.in, group = m->bw.q.group;
    struct acts t = {{.n = n, .in = in, .group = group, .n_groups = (in + group - 1) / group, .order = m->bw.q.order,
                      .ld = (in + 127) & ~127}, random_floats((int64_t)n * in, 3)};
    for (int r = 0; r < n; r++) {
        float *x = t.x + (int64_t)r * in;
        if (below(2)) // a group too small to count, one that hardly does, one of a single spike
            for (int i = 0; i < group; i++)
                x[i] = below(2) ? 0x1p-101f : 0;
        if (in >= 2 * group && below(2))
            for (int i = group; i < 2 * group; i++)
                x[i] *= 0x1p-98f;
        x[in - 1] *= below(2) ? 1000 : 1;
    }
    size_t groups = (size_t)(n * t.a.n_groups);
    t.a.code = xmalloc((size_t)(n * t.a.ld));
    memset(t.a.code, 0x55, (size_t)(n * t.a.ld));
    t.a.scale = xcalloc(groups, 4);
    t.a.isum = xcalloc(groups, 4);
    t.a.sum16 = group == 256 ? xcalloc((size_t)(n * t.a.ld / 16), 4) : NULL;
    return t;
}

static void acts_free(struct acts *t)
{
    free(t->a.code), free(t->a.scale), free(t->a.isum), free(t->a.sum16), free(t->x);
}

static void quantize_all(const struct cpu_kernels *k, struct acts *t)
{
    for (int r = 0; r < t->a.n; r++)
        k->quantize(t->x + (int64_t)r * t->a.in, t->a.in, &t->a, r);
}

/* Every instruction set gives the same activations; the last one's stay. */
static void check_quantize(struct acts *t)
{
    size_t codes = (size_t)(t->a.n * t->a.ld), groups = (size_t)(t->a.n * t->a.n_groups);
    int8_t *code = xmalloc(codes);
    float *f = floats((int64_t)(2 * groups));
    for (int k = 0; k < n_isa; k++) {
        quantize_all(isa[k], t);
        if (k) {
            assert_memory_equal(code, t->a.code, codes);
            assert_memory_equal(f, t->a.scale, groups * 4);
            assert_memory_equal(f + groups, t->a.isum, groups * 4);
        }
        memcpy(code, t->a.code, codes);
        memcpy(f, t->a.scale, groups * 4);
        memcpy(f + groups, t->a.isum, groups * 4);
    }
    free(code);
    free(f);
}

/* Outputs [o0, out) of rows [r0, n): all instruction sets alike, nothing else written, first and last right. */
static void check_product(struct mat *m, const float *x, struct qact *a, int o0, int r0, int n, int naive)
{
    int out = (int)m->bw.out, in = (int)m->bw.in, rows = n - r0;
    int64_t ld = out + 5, size = ld * (rows + 1);
    float *first = floats(size), *y = floats(size);
    for (int k = 0; k < n_isa; k++) {
        float *to = k ? y : first;
        poison(to, size);
        if (a)
            isa[k]->qmm(&m->bw, a, o0, out, r0, rows, to, ld);
        else
            isa[k]->fmm(&m->bw, x + (int64_t)r0 * in, in, o0, out, rows, to, ld);
        if (k)
            assert_same(first, y, size);
    }
    for (int64_t i = 0; i < size; i++) {
        bool valid = i / ld < rows && i % ld >= o0 && i % ld < out;
        uint32_t u;
        memcpy(&u, &first[i], 4);
        assert_true(valid ? isfinite(first[i]) : u == 0xffffffff);
    }
    float *wrow = floats(in);
    for (int t = 0; t < naive; t++) {
        int r = t ? below(rows) : rows - 1, o = t ? o0 + below(out - o0) : out - 1;
        int64_t id = m->bw.ids ? m->bw.ids[o] : o;
        const float *xr = x + (int64_t)(r0 + r) * in;
        for (int i = 0; i < in && !a; i++)
            wrow[i] = weight_at(&m->w, id, i);
        float want = a ? naive_qdot(&m->w, id, xr) : naive_dot(wrow, xr, in);
        assert_memory_equal(&want, &first[r * ld + o], 4);
    }
    free(wrow), free(first), free(y);
}

static const int row_counts[] = {1, 2, 3, 7, 8, 16, 17};
static const int outs[] = {8, 13, 24, 31, 66};

struct form {
    enum wfmt fmt;
    int bits, group;
    enum wfmt scale;
};
static const struct form forms[] = {
    {WF_MLX, 4, 32, WF_F16},   {WF_MLX, 4, 64, WF_F16},  {WF_MLX, 4, 128, WF_F16},  {WF_MLX, 4, 32, WF_BF16}, {WF_MLX, 4, 64, WF_BF16},
    {WF_MLX, 4, 128, WF_BF16}, {WF_MLX, 4, 64, WF_F32},  {WF_MLX, 4, 128, WF_F32},  {WF_MLX, 8, 32, WF_F16},  {WF_MLX, 8, 64, WF_BF16},
    {WF_MLX, 8, 128, WF_F32},  {WF_MLX, 8, 64, WF_F16},  {WF_Q8_0, 8, 32, WF_F32},  {WF_Q4_0, 4, 32, WF_F32}, {WF_Q4_1, 4, 32, WF_F32},
    {WF_MLX, 1, 128, WF_F16},  {WF_MLX, 2, 32, WF_BF16}, {WF_MLX, 2, 128, WF_F16},  {WF_MLX, 3, 64, WF_BF16}, {WF_MLX, 3, 128, WF_F16},
    {WF_MLX, 5, 32, WF_F16},   {WF_MLX, 5, 64, WF_F32},  {WF_MLX, 6, 64, WF_BF16},  {WF_MLX, 6, 128, WF_F16}, {WF_MLX_FP4, 4, 32, WF_E8M0},
    {WF_MLX_FP4, 4, 16, WF_E4M3}, {WF_Q5_0, 6, 32, WF_F32}, {WF_Q5_1, 6, 32, WF_F32}, {WF_Q2_K, 3, 256, WF_F32}, {WF_Q3_K, 4, 256, WF_F32},
    {WF_Q4_K, 5, 256, WF_F32}, {WF_Q5_K, 6, 256, WF_F32}, {WF_Q6_K, 7, 256, WF_F32}, {WF_IQ4_NL, 5, 32, WF_F32}, {WF_IQ4_XS, 5, 256, WF_F32},
    {WF_MXFP4, 5, 32, WF_F32}, {WF_NVFP4, 5, 16, WF_F32}, {WF_Q1_0, 2, 128, WF_F32}, {WF_Q2_0, 3, 64, WF_F32}, {WF_TQ1_0, 2, 256, WF_F32},
    {WF_TQ2_0, 3, 256, WF_F32},
};
static const int ins[] = {32, 64, 128, 256, 416, 1024, 1152, 1280, 2048, 2176, 5120};

static int block_cols(const struct form *f) { return block_form(f->fmt).cols ? block_form(f->fmt).cols : 1; }

static void test_quantized(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        for (size_t i = 0; i < sizeof ins / sizeof *ins; i++) {
            if (ins[i] % forms[f].group || ins[i] % block_cols(&forms[f]))
                continue;
            for (size_t r = 0; r < sizeof row_counts / sizeof *row_counts; r++) {
                int out = outs[below(5)], n = row_counts[r], r0 = below(2), o0 = out > 8 && below(2) ? 8 : 0;
                struct mat *m = mat_new(forms[f].fmt, forms[f].bits, forms[f].group, forms[f].scale, out, ins[i]);
                struct acts t = acts_new(m, n + r0);
                int32_t ids[66];
                check_quantize(&t);
                check_product(m, t.x, &t.a, o0, r0, n + r0, 6);
                for (int k = 0; k < 66; k++)
                    ids[k] = below(out);
                m->bw.ids = ids;
                m->bw.out = 1 + below(66);
                check_product(m, t.x, &t.a, 0, r0, n + r0, 2);
                acts_free(&t);
                mat_free(m);
            }
        }
}

/* Float weights, and quantized ones in float mode. */
static void test_float(void **state)
{
    (void)state;
    static const struct form plain[] = {{WF_F32, 0, 0, WF_F32}, {WF_F16, 0, 0, WF_F32}, {WF_BF16, 0, 0, WF_F32}};
    for (size_t f = 0; f < 3 + sizeof forms / sizeof *forms; f++)
        for (size_t i = 0; i < sizeof ins / sizeof *ins; i++) {
            const struct form *fm = f < 3 ? &plain[f] : &forms[f - 3];
            int in = ins[i] + (f < 3 ? below(3) * 5 : 0); // widths that are no multiple of 16
            if (f >= 3 && (in % fm->group || in % block_cols(fm) || in == 5120))
                continue;
            int out = 1 + below(20), n = row_counts[below(6)], o0 = out > 8 && below(2) ? 8 : 0;
            struct mat *m = mat_new(fm->fmt, fm->bits, fm->group, fm->scale, out, in);
            float *x = random_floats((int64_t)n * in, 2);
            int32_t ids[20];
            check_product(m, x, NULL, o0, 0, n, 4);
            for (int k = 0; k < 20; k++)
                ids[k] = below(out);
            m->bw.ids = ids;
            m->bw.out = 1 + below(20);
            check_product(m, x, NULL, 0, 0, n, 2);
            free(x);
            mat_free(m);
        }
}

/* A shorter last group counts its missing columns as zeros. */
static void test_short_group(void **state)
{
    (void)state;
    float x[100];
    fill(x, 100, 2);
    for (int k = 0; k < n_isa; k++) {
        int8_t code[128];
        float scale[2];
        int32_t isum[2], total = 0;
        struct qact a = {.n = 1, .in = 100, .group = 64, .n_groups = 2, .ld = 128, .code = code, .scale = scale, .isum = isum};
        memset(code, 0x55, sizeof code);
        isa[k]->quantize(x, 100, &a, 0);
        for (int i = 64; i < 100; i++)
            total += code[i];
        for (int i = 100; i < 128; i++)
            assert_int_equal(code[i], 0);
        assert_int_equal(isum[1], total);
    }
}

/* ---- rows --------------------------------------------------------------------------------------------------------- */

static const int widths[] = {1, 2, 15, 16, 17, 31, 32, 33, 100, 128, 257, 1024, 1030};

/* Runs one call on each instruction set over the same y and compares y with *want. */
#define ON_EACH(y, n, init, want, call)                                                                                 \
    for (int k_ = 0; k_ < n_isa; k_++) {                                                                               \
        const struct cpu_kernels *k = isa[k_];                                                                         \
        memcpy(y, init, (size_t)(n) * sizeof *(y));                                                                    \
        call;                                                                                                          \
        assert_same(y, want, n);                                                                                       \
    }

static void test_rows(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof widths / sizeof *widths; t++) {
        int n = widths[t];
        float *x = random_floats(n + 3, 4), *b = random_floats(n + 3, 40), *y = floats(n + 3), *want = copy_of(x, n + 3);
        float s = 1.0f / sqrtf(naive_dot(x, x, n) / (float)n + 1e-6f);
        for (int i = 0; i < n; i++)
            want[i] = x[i] * s * b[i];
        ON_EACH(y, n + 3, x, want, k->rms(x, b, n, 1e-6f, y))
        ON_EACH(y, n + 3, x, want, k->rms(y, b, n, 1e-6f, y))
        float *z = random_floats(n + 3, 10);
        for (int i = 0; i < n; i++)
            want[i] = want[i] * (z[i] * naive_sigmoid(z[i]));
        ON_EACH(y, n + 3, x, want, k->gated_norm(y, b, z, n, 1e-6f))
        for (int i = 0; i < n; i++)
            want[i] = x[i] * naive_sigmoid(x[i]) * b[i];
        ON_EACH(y, n + 3, x, want, k->act_mul(ACT_SILU, x, b, n, y))
        ON_EACH(y, n + 3, x, want, k->act_mul(ACT_SILU, y, b, n, y))
        for (int i = 0; i < n; i++)
            want[i] = naive_gelu(x[i]) * b[i];
        ON_EACH(y, n + 3, x, want, k->act_mul(ACT_GELU_TANH, x, b, n, y))
        ON_EACH(y, n + 3, x, want, k->act_mul(ACT_GELU_TANH, y, b, n, y))
        for (int i = 0; i < n; i++)
            want[i] = x[i] * naive_sigmoid(b[i]);
        ON_EACH(y, n + 3, x, want, k->sigmoid_mul(y, b, n))
        for (int i = 0; i < n; i++)
            want[i] = x[i] + b[i];
        ON_EACH(y, n + 3, x, want, k->add(y, b, n))
        for (int i = 0; i < n; i++)
            want[i] = x[i] * 0.3f;
        ON_EACH(y, n + 3, x, want, k->scale(y, 0.3f, n))
        for (int i = 0; i < n; i++)
            want[i] = naive_tanh(x[i] / 3) * 3;
        ON_EACH(y, n + 3, x, want, k->softcap(y, 3, n))
        for (int with = 0; with < 2; with++) {
            s = 1.0f / sqrtf(naive_dot(x, x, n) + 1e-6f);
            for (int i = 0; i < n; i++)
                want[i] = with ? x[i] * s * 0.125f : x[i] * s;
            ON_EACH(y, n + 3, x, want, k->l2norm(y, n, with ? 0.125f : 1.0f))
        }
        for (int i = 0; i < n; i++)
            x[i] *= below(2) ? 0x1p-41f : below(2) ? 1 : 0x1p-140f;
        x[0] = below(2) ? -0x1p-40f : 0x1.fffffep-41f;
        for (int i = 0; i < n; i++)
            want[i] = fabsf(x[i]) < 0x1p-40f ? 0 : x[i];
        want[n] = x[n], want[n + 1] = x[n + 1], want[n + 2] = x[n + 2];
        ON_EACH(y, n + 3, x, want, k->zero_tiny(y, n))
        free(x), free(b), free(y), free(z), free(want);
    }
}

static void test_rotate(void **state)
{
    (void)state;
    for (int half = 1; half <= 64; half += half < 4 ? 1 : 15)
        for (int adjacent = 0; adjacent < 2; adjacent++) {
            float x[160], y[160], want[160], cs[128];
            fill(x, 160, 2);
            fill(cs, 128, 1);
            memcpy(want, x, sizeof x);
            for (int i = 0; i < half; i++) {
                int iu = adjacent ? 2 * i : i, iv = adjacent ? 2 * i + 1 : i + half;
                want[iu] = fmaf(-x[iv], cs[half + i], x[iu] * cs[i]);
                want[iv] = fmaf(x[iu], cs[half + i], x[iv] * cs[i]);
            }
            ON_EACH(y, 160, x, want, k->rotate(y, cs, half, adjacent))
        }
}

static void test_to_f16(void **state)
{
    (void)state;
    enum { N = 4099 };
    float x[N];
    static const float edge[] = {0, -0.0f, 1, 65504, 65519.996f, 65520, -65520, 1e30f, 0x1p-24f, 0x1p-25f, 0x1.000002p-25f, 0x1p-14f,
                                 0x1.ffcp-15f, 0x1.ffep-15f, 0x1p-130f, 2049, 2051, -2049, INFINITY, 0x1.8p-24f, 0x1.4p-23f};
    for (int i = 0; i < N; i++)
        x[i] = uniform(-1, 1) * ldexpf(1, below(45) - 27);
    memcpy(x, edge, sizeof edge);
    for (int k = 0; k < n_isa; k++) {
        uint16_t y[N + 1];
        y[N] = 0xabcd;
        isa[k]->to_f16(x, N, y);
        for (int i = 0; i < N; i++)
            assert_int_equal(y[i], f32_to_f16(x[i]));
        assert_int_equal(y[N], 0xabcd);
    }
}

static void test_conv(void **state)
{
    (void)state;
    for (int taps = 2; taps <= 8; taps++)
        for (int t = 0; t < 20; t++) {
            int ld = 1 + below(150), c0 = below(ld), c1 = c0 + 1 + below(ld - c0);
            float *w = random_floats((int64_t)taps * ld, 1), *x = random_floats((int64_t)taps * ld, 1), *want = floats(ld), *y = floats(ld);
            float *init = floats(ld);
            const float *rows[8];
            poison(init, ld);
            memcpy(want, init, (size_t)ld * sizeof *want);
            for (int i = 0; i < taps; i++)
                rows[i] = x + (int64_t)i * ld;
            for (int c = c0; c < c1; c++) {
                float s = w[c] * x[c];
                for (int i = 1; i < taps; i++)
                    s = fmaf(w[i * ld + c], x[i * ld + c], s);
                want[c] = s * naive_sigmoid(s);
            }
            ON_EACH(y, ld, init, want, k->conv(w, ld, taps, c0, c1, rows, y))
            free(w), free(x), free(want), free(y), free(init);
        }
}

/* exp as merge uses it: of a maximum below the other, weighing a sum of 1. */
static float kernel_exp(const struct cpu_kernels *k, float x)
{
    float ms[2] = {0, 0}, ms2[2] = {x, 1}, o = 0, o2 = 0;
    k->merge(ms, &o, ms2, &o2, 1);
    return ms[1];
}

static void test_exp(void **state)
{
    (void)state;
    static const float edge[] = {0, -27.7f, -27.70001f, -27.699999f, -1e30f, -INFINITY, -1e-30f, -0.34657f, -0.34658f};
    double worst = 0;
    for (int i = 0; i < 200000; i++) {
        float x = i < 9 ? edge[i] : i < 1000 ? uniform(-40, -20) : uniform(-28, 0), want = naive_exp(x);
        for (int k = 0; k < n_isa; k++) {
            float y = kernel_exp(isa[k], x);
            assert_memory_equal(&y, &want, 4);
            assert_true(y == 0 || y >= 0x1p-40f);
            assert_int_equal(y == 0, x < -27.7f);
        }
        double error = want > 0 ? fabs((double)want / exp((double)x) - 1) : 0;
        worst = error > worst ? error : worst;
    }
    assert_true(worst < 3e-7);
    for (int k = 0; k < n_isa; k++) { // what is not a number must not become one: broken weights would go unseen
        float x = 1, gate = NAN;
        isa[k]->sigmoid_mul(&x, &gate, 1);
        assert_true(isnan(x));
        assert_true(isnan(kernel_exp(isa[k], NAN)));
    }
}

/* The whole range of a gate, against the definition in long double. */
static void test_gelu(void **state)
{
    (void)state;
    const long double c = sqrtl(2 / acosl(-1));
    static const float edge[] = {0, -0.0f, 5.5f, -5.5f, -13, 100, -100, 1e19f, -1e19f, 1e30f, -1e30f, INFINITY};
    for (int i = 0; i < 200000; i++) {
        float x = i < 12 ? edge[i] : i < 1000 ? uniform(-100, 100) : uniform(-8, 8), one = 1, want = naive_gelu(x);
        for (int k = 0; k < n_isa; k++) {
            float y;
            isa[k]->act_mul(ACT_GELU_TANH, &x, &one, 1, &y);
            assert_memory_equal(&y, &want, 4);
        }
        long double v = x, exact = fabsf(x) > 1e6f ? fmaxf(x, 0) : v / 2 * (1 + tanhl(c * (v + 0.044715L * v * v * v)));
        assert_true(want == x || fabsl(want - exact) <= 1e-7L * fabsl(v) + 4e-7L * fabsl(exact));
    }
    for (int k = 0; k < n_isa; k++) {
        float x = NAN, one = 1;
        isa[k]->act_mul(ACT_GELU_TANH, &x, &one, 1, &x);
        assert_true(isnan(x));
    }
}

/* tanh, by a cap of 1: against long double, odd, never past 1. */
static void test_tanh(void **state)
{
    (void)state;
    static const float edge[] = {0, 0.55f, 0x1.199998p-1f, 1e-8f, 9, 10, 44, 45, 1e10f, INFINITY};
    for (int i = 0; i < 200000; i++) {
        float x = i < 10 ? edge[i] : i < 1000 ? uniform(0, 60) : i < 100000 ? uniform(0, 1) : uniform(0, 12), want = naive_tanh(x);
        for (int k = 0; k < n_isa; k++) {
            float y[2] = {x, -x};
            isa[k]->softcap(y, 1, 2);
            assert_memory_equal(y, &want, 4);
            assert_true(y[1] == -want && want <= 1);
        }
        long double exact = tanhl((long double)x);
        assert_true(fabsl(want - exact) <= 2e-7L * exact);
    }
    for (int k = 0; k < n_isa; k++) {
        float x = NAN;
        isa[k]->softcap(&x, 30, 1);
        assert_true(isnan(x));
    }
}

/* ---- attention ----------------------------------------------------------------------------------------------------- */

enum { KEYS = 2304 };
struct cache {
    uint16_t *k, *v; // [KEYS, dim]
    int dim;
};

static const uint16_t *block_of(const void *ud, int block, const uint16_t **v)
{
    const struct cache *c = ud;
    assert_in_range(block, 0, KEYS / PAGE_TOKENS - 1);
    *v = c->v + (int64_t)block * PAGE_TOKENS * c->dim;
    return c->k + (int64_t)block * PAGE_TOKENS * c->dim;
}

/* §5 within one segment; false if no key is visible. */
static bool naive_segment(const struct cache *c, const float *q, int low, int pos, int segment, float *ms, float *o)
{
    float m = -INFINITY, s = 0, k[512];
    memset(o, 0, (size_t)c->dim * sizeof *o);
    for (int b = segment * 1024; b < segment * 1024 + 1024; b += 64) {
        float z[64], lane[16] = {0}, top = m;
        int first = low > b ? low : b, last = pos < b + 63 ? pos : b + 63;
        for (int j = first; j <= last; j++) {
            for (int d = 0; d < c->dim; d++)
                k[d] = f16_to_f32(c->k[(int64_t)j * c->dim + d]);
            z[j - b] = naive_dot(q, k, c->dim);
            top = z[j - b] > top ? z[j - b] : top;
        }
        if (first > last)
            continue;
        float scale = m > -INFINITY ? naive_exp(m - top) : 0;
        for (int d = 0; d < c->dim; d++)
            o[d] *= scale;
        for (int j = first; j <= last; j++) {
            float p = naive_exp(z[j - b] - top);
            lane[j % 16] += p;
            for (int d = 0; d < c->dim; d++)
                o[d] = fmaf(p, f16_to_f32(c->v[(int64_t)j * c->dim + d]), o[d]);
        }
        s = s * scale + tree16(lane);
        m = top;
    }
    ms[0] = m;
    ms[1] = s;
    return m > -INFINITY;
}

static void check_attention(int dim, int n_q, int window, int first_key)
{
    struct cache c = {xcalloc(KEYS * (size_t)dim, 2), xcalloc(KEYS * (size_t)dim, 2), dim};
    int64_t size = (int64_t)n_q * dim;
    int32_t pos[24];
    float *q = random_floats(size, 1), *o[2][2] = {{NULL}}, ms[2][2][48], *want = floats(dim), *want2 = floats(dim);
    float *scratch = floats(2 * PAGE_TOKENS * dim);
    int from = below(KEYS - 24), last = 0;
    for (int i = 0; i < n_q; i++) {
        pos[i] = from + i / 3;
        last = pos[i];
    }
    for (int64_t i = 0; i < (int64_t)KEYS * dim; i++) {
        c.k[i] = i / dim <= last ? f32_to_f16(uniform(-2, 2)) : 0x7e00; // NaN where nothing may look
        c.v[i] = i / dim <= last ? f32_to_f16(uniform(-2, 2)) : 0x7e00;
    }
    struct attn_work w = {.q = q, .pos = pos, .n_q = n_q, .dim = dim, .first_key = first_key, .window = window, .block = block_of,
                          .ud = &c, .scratch = scratch};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 2; i++)
            o[k][i] = floats(size);
    for (int k = 0; k < n_isa; k++) { // segments merged in order, as the backend does
        float (*m)[48] = ms[k];
        isa[k]->segment(&w, 0, m[0], o[k][0]);
        for (int sg = 1; sg <= last / 1024; sg++) {
            isa[k]->segment(&w, sg, m[1], o[k][1]);
            for (int i = 0; i < n_q; i++) {
                if (m[1][2 * i] == -INFINITY)
                    continue;
                if (m[0][2 * i] == -INFINITY) {
                    memcpy(m[0] + 2 * i, m[1] + 2 * i, 8);
                    memcpy(o[k][0] + i * dim, o[k][1] + i * dim, (size_t)dim * 4);
                } else {
                    isa[k]->merge(m[0] + 2 * i, o[k][0] + i * dim, m[1] + 2 * i, o[k][1] + i * dim, dim);
                }
            }
        }
        for (int i = 0; i < n_q; i++)
            isa[k]->finish(m[0] + 2 * i, o[k][0] + i * dim, dim);
        if (k)
            assert_same(o[0][0], o[k][0], size);
    }
    for (int i = 0; i < n_q; i += n_q > 8 ? 7 : 1) {
        float M[2] = {-INFINITY, 0}, m2[2];
        int low = window && pos[i] - window + 1 > first_key ? pos[i] - window + 1 : first_key, has = 0;
        for (int sg = 0; sg <= pos[i] / 1024; sg++) {
            if (!naive_segment(&c, q + i * dim, low, pos[i], sg, m2, want2))
                continue;
            if (!has++) {
                memcpy(M, m2, 8);
                memcpy(want, want2, (size_t)dim * 4);
                continue;
            }
            float N = M[0] > m2[0] ? M[0] : m2[0], a = naive_exp(M[0] - N), b = naive_exp(m2[0] - N);
            M[1] = fmaf(m2[1], b, M[1] * a);
            for (int d = 0; d < dim; d++)
                want[d] = fmaf(want2[d], b, want[d] * a);
            M[0] = N;
        }
        float inv = 1.0f / M[1];
        for (int d = 0; d < dim; d++)
            want[d] *= inv;
        assert_same(want, o[0][0] + i * dim, dim);
    }
    for (int k = 0; k < 2; k++)
        free(o[k][0]), free(o[k][1]);
    free(c.k), free(c.v), free(q), free(want), free(want2), free(scratch);
}

static void test_attention(void **state)
{
    (void)state;
    static const int dims[] = {32, 40, 64, 96, 128, 250, 256};
    for (int t = 0; t < 28; t++) {
        int window = t % 4 == 1 ? 1 + below(200) : t % 4 == 2 ? 1000 + below(400) : 0;
        check_attention(dims[t % 7], t % 3 == 0 ? 1 : t % 3 == 1 ? 5 : 24, window, t % 5 == 4);
    }
}

/* ---- Gated DeltaNet -------------------------------------------------------------------------------------------------- */

static void test_gdn(void **state)
{
    (void)state;
    for (int t = 0; t < 40; t++) {
        int dk = 4 * (1 + below(32)), ld = t & 1 ? 16 : 48, steps = 12;
        int64_t size = (int64_t)dk * ld;
        float *S0 = floats(size), *S[2], *N = floats(size), *R = floats(size), *q = floats(dk), *k = floats(dk);
        float u[2][16], o[2][16], v[16];
        poison(S0, size);
        for (int i = 0; i < dk; i++)
            fill(S0 + i * ld, 16, below(4) ? 1 : 0);
        for (int i = 0; i < 2; i++)
            S[i] = copy_of(S0, size);
        memcpy(N, S0, (size_t)size * 4);
        memcpy(R, S0, (size_t)size * 4);
        for (int step = 0; step < steps; step++) {
            float e = step == 3 ? 0 : uniform(0, 1), beta = uniform(0, 1);
            e = step % 4 == 2 ? 0x1p-38f : e; // decays below the bound, kept by nothing
            fill(q, dk, 0.3f), fill(k, dk, 0.3f), fill(v, 16, 1);
            for (int i = 0; i < dk; i += 3)
                k[i] = 0;
            for (int i = 0; i < n_isa; i++)
                isa[i]->gdn_step(S[i], ld, dk, q, k, v, beta, e, u[i], o[i]);
            for (int i = 1; i < n_isa; i++) {
                assert_same(S[0], S[i], size);
                assert_same(u[0], u[i], 16);
                assert_same(o[0], o[i], 16);
            }
            for (int j = 0; j < 16; j++) { // §6
                float kappa[4] = {0}, out[4] = {0};
                for (int i = 0; i < dk; i++) {
                    N[i * ld + j] *= e;
                    kappa[i % 4] = fmaf(N[i * ld + j], k[i], kappa[i % 4]);
                }
                float uj = beta * (v[j] - ((kappa[0] + kappa[2]) + (kappa[1] + kappa[3])));
                for (int i = 0; i < dk; i++) {
                    float s = fmaf(k[i], uj, N[i * ld + j]);
                    N[i * ld + j] = fabsf(s) < 0x1p-40f ? 0 : s;
                    out[i % 4] = fmaf(N[i * ld + j], q[i], out[i % 4]);
                }
                float oj = (out[0] + out[2]) + (out[1] + out[3]);
                assert_memory_equal(&uj, &u[0][j], 4);
                assert_memory_equal(&oj, &o[0][j], 4);
            }
            assert_same(N, S[0], size);
            isa[step % n_isa]->gdn_replay(R, ld, dk, k, u[0], e);
            assert_same(N, R, size);
        }
        free(S0), free(S[0]), free(S[1]), free(N), free(R), free(q), free(k);
    }
}

int main(void)
{
    isa[n_isa++] = &cpu_kernels_scalar;
    const struct cpu_kernels *best = cpu_kernels_find(NULL);
    if (best != &cpu_kernels_scalar)
        isa[n_isa++] = best;
    else
        printf("SKIPPED: this machine has only the scalar kernels; they are compared with the formulas alone\n");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantized), cmocka_unit_test(test_float),   cmocka_unit_test(test_short_group),
        cmocka_unit_test(test_rows),      cmocka_unit_test(test_rotate),  cmocka_unit_test(test_to_f16),
        cmocka_unit_test(test_conv),      cmocka_unit_test(test_exp),     cmocka_unit_test(test_gelu),
        cmocka_unit_test(test_tanh),      cmocka_unit_test(test_attention), cmocka_unit_test(test_gdn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
