/* What the tests of kernels share: random numbers, weights at odd addresses in blocks of exact size, and the
 * formulas of docs/arithmetic.md term by term. */
#ifndef TESTS_UNIT_KERNEL_FIXTURE_H
#define TESTS_UNIT_KERNEL_FIXTURE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "format/blocks.h"
#include "kernel/cpu/cpu.h"

static const struct cpu_kernels *isa[4];
static int n_isa;

/* ---- random numbers ---------------------------------------------------------------------------------------- */

static uint32_t draws[4], n_draws;
static uint32_t test_counter;
static uint32_t rand32(void)
{
    if (!(n_draws++ & 3)) {
        uint32_t key[2] = {77, 5}, ctr[4] = {test_counter++, 0, 0, 0};
        philox4x32(key, ctr, draws);
    }
    return draws[(n_draws - 1) & 3];
}
static int below(int n) { return (int)(rand32() % (uint32_t)n); }
static float uniform(float low, float high) { return low + (high - low) * (float)(rand32() >> 8) * 0x1p-24f; }

static void fill(float *x, int64_t n, float size)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = uniform(-size, size);
}

static float *floats(int64_t n) { return xcalloc((size_t)n + 1, sizeof(float)); }

static float *random_floats(int64_t n, float size)
{
    float *x = floats(n);
    fill(x, n, size);
    return x;
}

static void poison(float *x, int64_t n) { memset(x, 0xff, (size_t)n * sizeof *x); }

static void assert_same(const float *x, const float *y, int64_t n) { assert_memory_equal(x, y, (size_t)n * sizeof *x); }

static float *copy_of(const float *x, int64_t n)
{
    float *y = floats(n);
    memcpy(y, x, (size_t)n * sizeof *x);
    return y;
}

/* ---- weights ------------------------------------------------------------------------------------------------- */

struct mat {
    struct weight w;
    struct bweight bw;
    uint8_t *mem[3];
};

static uint8_t *odd_bytes(struct mat *m, int i, size_t n)
{
    m->mem[i] = xmalloc(n + 1); // one byte in: malloc's addresses are even
    for (size_t k = 0; k < n; k++)
        m->mem[i][k + 1] = (uint8_t)rand32();
    return m->mem[i] + 1;
}

static void put_float(uint8_t *p, enum wfmt f, float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    uint16_t h = f == WF_F16 ? f32_to_f16(v) : (uint16_t)(u >> 16);
    f == WF_F32 ? memcpy(p, &v, 4) : memcpy(p, &h, 2);
}

static float get_float(const uint8_t *p, enum wfmt f)
{
    float v;
    uint16_t h;
    if (f == WF_F32) {
        memcpy(&v, p, 4);
        return v;
    }
    memcpy(&h, p, 2);
    return f == WF_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

static int float_bytes(enum wfmt f) { return f == WF_F32 ? 4 : 2; }
static bool is_plain(enum wfmt f) { return f == WF_F32 || f == WF_F16 || f == WF_BF16; }

/* Random blocks with scales that are numbers. */
static void fill_blocks(enum wfmt fmt, uint8_t *q, size_t bytes)
{
    struct block_form f = block_form(fmt);
    for (size_t b = 0; b < bytes; b += (size_t)f.bytes) {
        if (fmt == WF_MXFP4) {
            q[b] = (uint8_t)(below(20) ? 110 + below(20) : below(40)); // some too small to count
        } else if (fmt == WF_NVFP4) {
            for (size_t s = 0; s < 4; s++)
                q[b + s] = (uint8_t)below(0x7f);
        } else {
            put_float(q + b + f.scale_at, WF_F16, uniform(-0.1f, 0.1f));
            if (f.min_at >= 0)
                put_float(q + b + f.min_at, WF_F16, uniform(-0.1f, 0.1f));
        }
        if (fmt == WF_Q8_0 && !below(3))
            q[b + 2 + (size_t)below(32)] = 0x80; // -128
    }
}

static struct mat *mat_new(enum wfmt fmt, int bits, int group, enum wfmt scale_fmt, int out, int in)
{
    struct mat *m = xcalloc(1, sizeof *m);
    struct weight *w = &m->w;
    bool is_mlx = fmt == WF_MLX || fmt == WF_MLX_FP4;
    *w = (struct weight){.name = "m", .key = "m", .file = "f", .type = "t", .fmt = fmt, .ndim = 2, .ne = {out, in}, .bits = bits,
                         .group = group, .scale_fmt = scale_fmt};
    w->row_bytes = is_plain(fmt) ? (size_t)(in * float_bytes(fmt)) : is_mlx ? (size_t)(in * bits / 8)
                                                                            : (size_t)(in / block_form(fmt).cols * block_form(fmt).bytes);
    size_t bytes = w->row_bytes * (size_t)out;
    uint8_t *q = odd_bytes(m, 0, bytes);
    w->q = q;
    for (size_t i = 0; is_plain(fmt) && i < (size_t)out * (size_t)in; i++)
        put_float(q + i * (size_t)float_bytes(fmt), fmt, uniform(-1, 1));
    if (!is_plain(fmt) && !is_mlx)
        fill_blocks(fmt, q, bytes);
    int n = is_mlx ? out * (in / group) : 0, one = fmt == WF_MLX_FP4 ? 1 : float_bytes(scale_fmt);
    if (is_mlx) {
        uint8_t *s = odd_bytes(m, 1, (size_t)(n * one));
        for (int i = 0; i < n; i++)
            if (fmt == WF_MLX)
                put_float(s + i * one, scale_fmt, uniform(-0.1f, 0.1f));
            else
                s[i] = (uint8_t)(scale_fmt == WF_E4M3 ? below(0x7f) : 110 + below(20));
        w->scale = s;
    }
    if (fmt == WF_MLX) {
        uint8_t *b = odd_bytes(m, 2, (size_t)(n * one));
        for (int i = 0; i < n; i++)
            put_float(b + i * one, scale_fmt, uniform(-1, 1));
        w->bias = b;
    }
    m->bw = (struct bweight){.w = w, .out = out, .in = in, .quantized = !is_plain(fmt),
                             .q = {group, fmt == WF_MLX && bits == 4 ? ORDER_EVEN_ODD : ORDER_NATURAL}};
    return m;
}

static void mat_free(struct mat *m)
{
    for (int i = 0; i < 3; i++)
        free(m->mem[i]);
    free(m);
}

/* One weight as the formats define it: w = d*k*q + (has_min: m, or -m*l with sub-blocks). */
struct element {
    int q, k, l;
    float d, m;
    bool has_min, has_subs;
};

static int nib(const uint8_t *q, int e, int h) { return q[e % h] >> 4 * (e / h) & 15; }

static float power(int e) { return ldexpf(1, e); }
static float fp8(int b) { return b >> 3 & 15 ? ldexpf((float)(8 + (b & 7)), (b >> 3 & 15) - 10) : ldexpf((float)(b & 7), -9); }

static const int fp4_times_2[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
static const int iq4[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static int digit(int b, int n)
{
    for (int i = 0; i < n; i++)
        b = b * 3 & 255;
    return (b * 3 >> 8) - 1;
}

static struct element mlx_element(const struct weight *w, int64_t row, int64_t c)
{
    const uint8_t *p = (const uint8_t *)w->q + (size_t)row * w->row_bytes;
    int64_t g = row * (w->ne[1] / w->group) + c / w->group;
    int q = 0;
    for (int i = 0; i < w->bits; i++)
        q |= (p[(c * w->bits + i) / 8] >> (c * w->bits + i) % 8 & 1) << i;
    if (w->fmt == WF_MLX_FP4) {
        int s = ((const uint8_t *)w->scale)[g];
        return (struct element){.q = fp4_times_2[q], .k = 1, .d = w->scale_fmt == WF_E4M3 ? fp8(s) / 2 : power(s - 128)};
    }
    return (struct element){.q = q, .k = 1, .l = 1, .has_min = true,
                            .d = get_float((const uint8_t *)w->scale + g * float_bytes(w->scale_fmt), w->scale_fmt),
                            .m = get_float((const uint8_t *)w->bias + g * float_bytes(w->scale_fmt), w->scale_fmt)};
}

static struct element k_element(const struct weight *w, const uint8_t *p, int e)
{
    struct element x = {.has_subs = true};
    int j = e / 32, h = e / 128, g = e % 128 / 32, l = e % 32, s = e / 16;
    switch (w->fmt) {
    case WF_Q2_K: x.q = p[16 + 32 * h + l] >> 2 * g & 3, x.k = p[s] & 15, x.l = p[s] >> 4; break;
    case WF_Q3_K:
        x.q = (p[32 + 32 * h + l] >> 2 * g & 3) - (p[l] >> (4 * h + g) & 1 ? 0 : 4);
        x.k = (p[96 + s % 8] >> 4 * (s / 8) & 15) + 16 * (p[104 + s % 4] >> 2 * (s / 4) & 3) - 32;
        break;
    case WF_Q4_K:
    case WF_Q5_K: {
        const uint8_t *t = p + 4, *q = p + (w->fmt == WF_Q4_K ? 16 : 48);
        x.q = (q[32 * (j / 2) + l] >> 4 * (j % 2) & 15) + (w->fmt == WF_Q5_K ? 16 * (p[16 + l] >> j & 1) : 0);
        x.k = j < 4 ? t[j] & 63 : (t[j + 4] & 15) | t[j - 4] >> 6 << 4;
        x.l = j < 4 ? t[j + 4] & 63 : t[j + 4] >> 4 | t[j] >> 6 << 4;
        break;
    }
    case WF_Q6_K:
        x.q = (p[64 * h + l + 32 * (g % 2)] >> 4 * (g / 2) & 15) + 16 * (p[128 + 32 * h + l] >> 2 * g & 3) - 32;
        x.k = (int8_t)p[192 + s];
        break;
    default: // IQ4_XS
        x.q = iq4[nib(p + 8 + 16 * j, l, 16)];
        x.k = (p[4 + j / 2] >> 4 * (j % 2) & 15) + 16 * ((p[2] | p[3] << 8) >> 2 * j & 3) - 32;
    }
    return x;
}

static struct element element_at(const struct weight *w, int64_t row, int64_t c)
{
    if (w->fmt == WF_MLX || w->fmt == WF_MLX_FP4)
        return mlx_element(w, row, c);
    struct block_form f = block_form(w->fmt);
    const uint8_t *p = (const uint8_t *)w->q + (size_t)row * w->row_bytes + c / f.cols * f.bytes;
    int e = (int)(c % f.cols), t = e < 160 ? 0 : e < 240 ? 1 : 2;
    struct element x = {.k = 1};
    switch (w->fmt) {
    case WF_Q8_0: x.q = (int8_t)p[2 + e]; break;
    case WF_Q4_0: x.q = nib(p + 2, e, 16) - 8; break;
    case WF_Q4_1: x.q = nib(p + 4, e, 16); break;
    case WF_Q5_0: x.q = nib(p + 6, e, 16) + 16 * (p[2 + e / 8] >> e % 8 & 1) - 16; break;
    case WF_Q5_1: x.q = nib(p + 8, e, 16) + 16 * (p[4 + e / 8] >> e % 8 & 1); break;
    case WF_IQ4_NL: x.q = iq4[nib(p + 2, e, 16)]; break;
    case WF_MXFP4: x.q = fp4_times_2[nib(p + 1, e, 16)]; break;
    case WF_NVFP4: x.q = fp4_times_2[nib(p + 4 + 8 * (e / 16), e % 16, 8)]; break;
    case WF_Q1_0: x.q = p[2 + e / 8] >> e % 8 & 1 ? 1 : -1; break;
    case WF_Q2_0: x.q = (p[2 + e / 4] >> 2 * (e % 4) & 3) - 1; break;
    case WF_TQ1_0:
        x.q = t == 0 ? digit(p[e % 32], e / 32) : t == 1 ? digit(p[32 + (e - 160) % 16], (e - 160) / 16) : digit(p[48 + (e - 240) % 4], (e - 240) / 4);
        break;
    case WF_TQ2_0: x.q = (p[32 * (e / 128) + e % 32] >> 2 * (e % 128 / 32) & 3) - 1; break;
    default: x = k_element(w, p, e);
    }
    x.d = w->fmt == WF_MXFP4 ? (*p < 28 ? 0 : power(*p - 128)) : w->fmt == WF_NVFP4 ? fp8(p[e / 16]) / 2 : get_float(p + f.scale_at, WF_F16);
    x.has_min = f.min_at >= 0;
    x.m = x.has_min ? get_float(p + f.min_at, WF_F16) : 0;
    return x;
}

static float weight_at(const struct weight *w, int64_t row, int64_t c)
{
    if (is_plain(w->fmt))
        return get_float((const uint8_t *)w->q + (size_t)row * w->row_bytes + c * float_bytes(w->fmt), w->fmt);
    struct element x = element_at(w, row, c);
    float s = x.has_subs ? x.d * (float)x.k : x.d, m = x.has_subs ? -(x.m * (float)x.l) : x.m;
    return x.has_min ? fmaf(s, (float)x.q, m) : s * (float)x.q;
}

/* ---- the formulas, term by term -------------------------------------------------------------------------------- */

static float tree16(float *lane)
{
    for (int half = 8; half; half /= 2)
        for (int l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

static float naive_dot(const float *a, const float *b, int n)
{
    float lane[16] = {0};
    for (int i = 0; i < n; i++)
        lane[i % 16] = fmaf(a[i], b[i], lane[i % 16]);
    return tree16(lane);
}

/* §2.2 for one output and one row. */
static float naive_qdot(const struct weight *w, int64_t row, const float *x)
{
    int in = (int)w->ne[1], G = w->group;
    float y = 0, acc = 0;
    for (int g = 0; g < in; g += G) {
        float m = 0;
        int64_t I = 0, M = 0;
        struct element x_at = {0};
        for (int j = g; j < g + G; j++)
            m = fabsf(x[j]) > m ? fabsf(x[j]) : m;
        float a = m < 0x1p-100f ? 0 : m / 127.0f, r = m < 0x1p-100f ? 0 : 127.0f / m;
        for (int j = g; j < g + G; j++) {
            double c = nearbyint((double)(x[j] * r));
            c = c > 127 ? 127 : c < -127 ? -127 : c;
            x_at = element_at(w, row, j);
            I += (int64_t)c * x_at.k * x_at.q;
            M += (int64_t)c * (x_at.has_subs ? x_at.l : 1);
        }
        if (g && g % 1024 == 0) {
            y = g == 1024 ? acc : y + acc;
            acc = 0;
        }
        acc = fmaf(x_at.d, (float)I * a, acc);
        if (x_at.has_min)
            acc = fmaf(x_at.has_subs ? -x_at.m : x_at.m, (float)M * a, acc);
    }
    return in <= 1024 ? acc : y + acc;
}

static float naive_exp(float x)
{
    if (x < -27.7f)
        return 0;
    float n = rintf(x * 1.44269504f), r = fmaf(n, -0.693359375f, x), p = 1.3888889e-3f;
    r = fmaf(n, 2.12194440e-4f, r);
    static const float c[] = {8.3333333e-3f, 4.1666667e-2f, 1.6666667e-1f, 0.5f, 1.0f, 1.0f};
    for (int i = 0; i < 6; i++)
        p = fmaf(p, r, c[i]);
    return ldexpf(p, (int)n);
}

static float naive_sigmoid(float x)
{
    float e = naive_exp(-fabsf(x));
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}

static inline float naive_tanh(float x)
{
    float z = fabsf(x), u = z * z, p = -6.27423916e-3f, t;
    static const float c[] = {2.10716780e-2f, -5.38523085e-2f, 1.33325860e-1f, -3.33333164e-1f};
    for (int i = 0; i < 4; i++)
        p = fmaf(p, u, c[i]);
    if (z < 0.55f)
        t = fmaf(z * u, p, z);
    else
        t = 1.0f - 2.0f / (naive_exp(fminf(2.0f * z, 88)) + 1.0f);
    return x < 0 ? 0.0f - t : t;
}

static float naive_gelu(float x) { return x * naive_sigmoid(x * fmaf(x * x, 0.0713548163f, 1.59576912f)); }

#endif
