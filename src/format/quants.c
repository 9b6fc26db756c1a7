/* Stored formats, one row at a time, in fp32 with one rounding per documented step:
 *   F32, F16, BF16   exact
 *   WF_MLX           row = little-endian LSB-first bitstream of codes; w = fma(scale, q, bias)
 *   WF_Q8_0          32 columns in 34 bytes: f16 d, i8 q[32];              w = d * q
 *   WF_Q4_0          32 columns in 18 bytes: f16 d, u8 q[16];              w = d * (nibble - 8)
 *   WF_Q4_1          32 columns in 20 bytes: f16 d, f16 m, u8 q[16];       w = fma(d, nibble, m)
 * Column e of a 4-bit block is the low nibble of byte e for e < 16, else the high nibble of byte e - 16. */
#include <math.h>
#include <string.h>

#include "format/catalogue.h"

float f16_to_f32(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v;
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 0x3ff;
    if (!e) {
        v.f = (float)m * 0x1p-24f; // exact, and a normal number in fp32
        v.u |= sign;
    } else {
        v.u = sign | (e == 31 ? 0xffu : e + 112) << 23 | m << 13;
    }
    return v.f;
}

uint16_t f32_to_f16(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {f};
    uint32_t sign = v.u >> 16 & 0x8000, a = v.u & 0x7fffffff;
    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000) // 65520 and above round to infinity
        return (uint16_t)(sign | 0x7c00);
    if (a >= 0x38800000) {
        a -= 0x38000000;
        a += 0xfff + (a >> 13 & 1);
        return (uint16_t)(sign | a >> 13);
    }
    if (a <= 0x33000000) // half of the smallest subnormal: to even, zero
        return (uint16_t)sign;
    uint32_t m = (a & 0x7fffff) | 0x800000, shift = 126 - (a >> 23);
    uint32_t h = m >> shift, rest = m & ((1u << shift) - 1), half = 1u << (shift - 1);
    h += rest > half || (rest == half && (h & 1));
    return (uint16_t)(sign | h);
}

void weight_layout(struct weight *t)
{
    size_t in = (size_t)t->ne[t->ndim - 1];
    switch (t->fmt) {
    case WF_F32: t->row_bytes = in * 4; break;
    case WF_F16:
    case WF_BF16: t->row_bytes = in * 2; break;
    case WF_MLX: t->row_bytes = in * (size_t)t->bits / 8; break;
    case WF_Q8_0: t->row_bytes = in / 32 * 34, t->bits = 8, t->group = 32; break;
    case WF_Q4_0: t->row_bytes = in / 32 * 18, t->bits = 4, t->group = 32; break;
    case WF_Q4_1: t->row_bytes = in / 32 * 20, t->bits = 4, t->group = 32; break;
    case WF_OTHER: t->row_bytes = 0; break;
    }
}

static uint16_t load16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static float load_float(const void *p, enum wfmt f, size_t i)
{
    const char *c = p;
    float v;
    if (f == WF_F32) {
        memcpy(&v, c + 4 * i, sizeof v);
        return v;
    }
    uint16_t h = load16(c + 2 * i);
    return f == WF_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

static void row_mlx(const struct weight *w, int64_t row, const uint8_t *q, size_t n, float *out)
{
    unsigned bits = (unsigned)w->bits, mask = (1u << bits) - 1;
    size_t group = (size_t)w->group, first = (size_t)row * (n / group);
    for (size_t g = 0; g < n / group; g++) {
        float scale = load_float(w->scale, w->scale_fmt, first + g),
              bias = load_float(w->bias, w->scale_fmt, first + g);
        for (size_t i = g * group; i < (g + 1) * group; i++) {
            size_t at = i * bits;
            unsigned v = q[at / 8], shift = at % 8;
            if (shift + bits > 8)
                v |= (unsigned)q[at / 8 + 1] << 8;
            out[i] = fmaf(scale, (float)(v >> shift & mask), bias);
        }
    }
}

static void row_q8_0(const uint8_t *q, size_t n, float *out)
{
    for (size_t b = 0; b < n / 32; b++, q += 34) {
        float d = f16_to_f32(load16(q));
        for (int i = 0; i < 32; i++)
            out[32 * b + (size_t)i] = d * (float)(int8_t)q[2 + i];
    }
}

static void row_q4(const uint8_t *q, size_t n, bool has_min, float *out)
{
    size_t head = has_min ? 4 : 2;
    for (size_t b = 0; b < n / 32; b++, q += head + 16) {
        float d = f16_to_f32(load16(q)), m = has_min ? f16_to_f32(load16(q + 2)) : 0;
        for (int i = 0; i < 32; i++) {
            int v = i < 16 ? q[head + (size_t)i] & 15 : q[head + (size_t)i - 16] >> 4;
            out[32 * b + (size_t)i] = has_min ? fmaf(d, (float)v, m) : d * (float)(v - 8);
        }
    }
}

void weight_row(const struct weight *w, int64_t row, float *out)
{
    size_t n = (size_t)w->ne[w->ndim - 1];
    const uint8_t *q = (const uint8_t *)w->q + (size_t)row * w->row_bytes;
    switch (w->fmt) {
    case WF_F32:
    case WF_F16:
    case WF_BF16:
        for (size_t i = 0; i < n; i++)
            out[i] = load_float(q, w->fmt, i);
        break;
    case WF_MLX: row_mlx(w, row, q, n, out); break;
    case WF_Q8_0: row_q8_0(q, n, out); break;
    case WF_Q4_0: row_q4(q, n, false, out); break;
    case WF_Q4_1: row_q4(q, n, true, out); break;
    case WF_OTHER: memset(out, 0, n * sizeof *out); break; // the lookups refuse these
    }
}

// ---- search for NaN and infinity -------------------------------------------------------------------------

static const char *odd_name(float v) { return isnan(v) ? "NaN" : v > 0 ? "+infinity" : "-infinity"; }

/* rows of n floats; each covers that many columns of the tensor. */
static int check_floats(const struct weight *w, const void *p, enum wfmt f, int64_t rows, size_t n,
                        int covers, const char *what, struct err *e)
{
    uint32_t exp_mask = f == WF_F16 ? 0x7c00 : 0x7f80;
    for (int64_t r = 0; r < rows; r++)
        for (size_t i = 0; i < n; i++) {
            size_t at = (size_t)r * n + i;
            if (f != WF_F32 && (load16((const char *)p + 2 * at) & exp_mask) != exp_mask)
                continue;
            float v = load_float(p, f, at);
            if (!isfinite(v))
                return err_set(e, ERR_NUMERIC, "%s: tensor %.120s holds %s in %srow %lld, column %zu",
                               w->file, w->name, odd_name(v), what, (long long)r, i * (size_t)covers);
        }
    return 0;
}

static int check_blocks(const struct weight *w, int64_t rows, size_t block_bytes, int halves, struct err *e)
{
    const uint8_t *q = w->q;
    size_t blocks = w->row_bytes / block_bytes;
    for (int64_t r = 0; r < rows; r++)
        for (size_t b = 0; b < blocks; b++, q += block_bytes)
            for (int h = 0; h < halves; h++) {
                float v = f16_to_f32(load16(q + 2 * h));
                if (!isfinite(v))
                    return err_set(
                        e, ERR_NUMERIC, "%s: tensor %.120s holds %s in the block %s of row %lld, column %zu",
                        w->file, w->name, odd_name(v), h ? "minimum" : "scale", (long long)r, b * 32);
            }
    return 0;
}

static int check_weight(const struct weight *w, struct err *e)
{
    int64_t rows = 1;
    for (int i = 0; i < w->ndim - 1; i++)
        rows *= w->ne[i];
    size_t n = (size_t)w->ne[w->ndim - 1];
    int rc;
    if (!n)
        return 0; // an empty tensor may claim any number of rows
    switch (w->fmt) {
    case WF_F32:
    case WF_F16:
    case WF_BF16: return check_floats(w, w->q, w->fmt, rows, n, 1, "", e);
    case WF_MLX:
        rc =
            check_floats(w, w->scale, w->scale_fmt, rows, n / (size_t)w->group, w->group, "the scale of ", e);
        return rc ? rc
                  : check_floats(w, w->bias, w->scale_fmt, rows, n / (size_t)w->group, w->group,
                                 "the bias of ", e);
    case WF_Q8_0: return check_blocks(w, rows, 34, 1, e);
    case WF_Q4_0: return check_blocks(w, rows, 18, 1, e);
    case WF_Q4_1: return check_blocks(w, rows, 20, 2, e);
    case WF_OTHER: break;
    }
    return 0;
}

int weights_check_finite(const struct weights *w, struct err *e)
{
    for (int i = 0; i < w->n; i++) {
        int rc = check_weight(&w->entry[i].w, e);
        if (rc)
            return rc;
    }
    return 0;
}
