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

static struct mat *mat_new(enum wfmt fmt, int bits, int group, enum wfmt scale_fmt, int out, int in)
{
    struct mat *m = xcalloc(1, sizeof *m);
    struct weight *w = &m->w;
    int size = fmt == WF_Q4_0 ? 18 : fmt == WF_Q4_1 ? 20 : 34, head = fmt == WF_Q4_1 ? 4 : 2;
    *w = (struct weight){.name = "m", .key = "m", .file = "f", .type = "t", .fmt = fmt, .ndim = 2, .ne = {out, in}, .bits = bits,
                         .group = group, .scale_fmt = scale_fmt};
    w->row_bytes = is_plain(fmt) ? (size_t)(in * float_bytes(fmt)) : fmt == WF_MLX ? (size_t)(in * bits / 8) : (size_t)(in / 32 * size);
    size_t bytes = w->row_bytes * (size_t)out;
    uint8_t *q = odd_bytes(m, 0, bytes);
    w->q = q;
    for (size_t i = 0; is_plain(fmt) && i < (size_t)out * (size_t)in; i++)
        put_float(q + i * (size_t)float_bytes(fmt), fmt, uniform(-1, 1));
    for (size_t b = 0; !is_plain(fmt) && fmt != WF_MLX && b < bytes; b += (size_t)size) {
        for (int h = 0; h < head; h += 2)
            put_float(q + b + h, WF_F16, uniform(-0.1f, 0.1f));
        if (fmt == WF_Q8_0 && !below(3))
            q[b + 2 + (size_t)below(32)] = 0x80; // -128
    }
    if (fmt == WF_MLX) {
        int one = float_bytes(scale_fmt), n = out * (in / group);
        uint8_t *s = odd_bytes(m, 1, (size_t)(n * one)), *b = odd_bytes(m, 2, (size_t)(n * one));
        for (int i = 0; i < n; i++) {
            put_float(s + i * one, scale_fmt, uniform(-0.1f, 0.1f));
            put_float(b + i * one, scale_fmt, uniform(-1, 1));
        }
        w->scale = s;
        w->bias = b;
    }
    m->bw = (struct bweight){.w = w, .out = out, .in = in, .quantized = !is_plain(fmt)};
    if (fmt == WF_MLX)
        m->bw.q = (struct qfmt){group, bits == 8 ? 128 : 0, bits == 8, true,
                                bits == 4 ? ORDER_EVEN_ODD : ORDER_NATURAL};
    else
        m->bw.q = (struct qfmt){32, fmt == WF_Q4_0 ? -8 : 0, fmt == WF_Q8_0, fmt == WF_Q4_1, ORDER_NATURAL};
    return m;
}

static void mat_free(struct mat *m)
{
    for (int i = 0; i < 3; i++)
        free(m->mem[i]);
    free(m);
}

/* Code, scale and bias of one weight, as the formats define them: w = s*(q - zero) + b. */
static int code_at(const struct weight *w, int64_t row, int64_t c, float *s, float *b)
{
    const uint8_t *p = (const uint8_t *)w->q + (size_t)row * w->row_bytes;
    *b = 0;
    if (w->fmt == WF_MLX) {
        int64_t g = row * (w->ne[1] / w->group) + c / w->group;
        *s = get_float((const uint8_t *)w->scale + g * float_bytes(w->scale_fmt), w->scale_fmt);
        *b = get_float((const uint8_t *)w->bias + g * float_bytes(w->scale_fmt), w->scale_fmt);
        return w->bits == 8 ? p[c] : p[c / 2] >> 4 * (c & 1) & 15;
    }
    int e = (int)(c % 32);
    p += c / 32 * (w->fmt == WF_Q4_0 ? 18 : w->fmt == WF_Q4_1 ? 20 : 34);
    *s = get_float(p, WF_F16);
    if (w->fmt == WF_Q8_0)
        return (int8_t)p[2 + e];
    if (w->fmt == WF_Q4_1)
        *b = get_float(p + 2, WF_F16);
    p += w->fmt == WF_Q4_1 ? 4 : 2;
    int v = e < 16 ? p[e] & 15 : p[e - 16] >> 4;
    return w->fmt == WF_Q4_0 ? v - 8 : v;
}

static float weight_at(const struct weight *w, int64_t row, int64_t c)
{
    float s, b;
    if (is_plain(w->fmt))
        return get_float((const uint8_t *)w->q + (size_t)row * w->row_bytes + c * float_bytes(w->fmt), w->fmt);
    int q = code_at(w, row, c, &s, &b);
    return w->fmt == WF_MLX || w->fmt == WF_Q4_1 ? fmaf(s, (float)q, b) : s * (float)q;
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
    int in = (int)w->ne[1], G = w->fmt == WF_MLX ? w->group : 32;
    float y = 0, acc = 0, s, b;
    for (int g = 0; g < in; g += G) {
        float m = 0;
        int64_t I = 0, C = 0;
        for (int j = g; j < g + G; j++)
            m = fabsf(x[j]) > m ? fabsf(x[j]) : m;
        float a = m < 0x1p-100f ? 0 : m / 127.0f, r = m < 0x1p-100f ? 0 : 127.0f / m;
        for (int j = g; j < g + G; j++) {
            double c = nearbyint((double)(x[j] * r));
            c = c > 127 ? 127 : c < -127 ? -127 : c;
            I += (int64_t)c * code_at(w, row, j, &s, &b);
            C += (int64_t)c;
        }
        if (g && g % 1024 == 0) {
            y = g == 1024 ? acc : y + acc;
            acc = 0;
        }
        acc = fmaf(s, (float)I * a, acc);
        if (w->fmt == WF_MLX || w->fmt == WF_Q4_1)
            acc = fmaf(b, (float)C * a, acc);
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

static float naive_tanh(float x)
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
