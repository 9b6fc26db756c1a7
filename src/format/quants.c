/* Stored formats, one row at a time, in fp32 with one rounding per documented step:
 *   F32, F16, BF16   exact
 *   WF_MLX           row = little-endian LSB-first bitstream of codes; w = fma(scale, q, bias)
 *   WF_MLX_FP4, FP8  w = scale * element, exact but for overflow
 *   GGUF's blocks    format/blocks.h */
#include <math.h>
#include <string.h>

#include "format/blocks.h"
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
    case WF_MLX:
    case WF_MLX_FP4:
    case WF_MLX_FP8: t->row_bytes = in * (size_t)t->bits / 8; break;
    case WF_OTHER: t->row_bytes = 0; break;
    default: {
        struct block_form f = block_form(t->fmt);
        t->row_bytes = in / (size_t)f.cols * (size_t)f.bytes;
        t->group = t->fmt == WF_NVFP4 ? 16 : f.cols;
        t->bits = (int)((f.bytes * 8 + f.cols - 1) / f.cols); // with its scales, rounded up
    }
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

static float fp_scale(enum wfmt f, uint8_t s) { return f == WF_E4M3 ? e4m3(s) * 0.5f : e8m0_half(s); }

static void row_mlx_fp(const struct weight *w, int64_t row, const uint8_t *q, size_t n, float *out)
{
    size_t group = (size_t)w->group;
    const uint8_t *scale = (const uint8_t *)w->scale + (size_t)row * (n / group);
    for (size_t i = 0; i < n; i++) {
        float s = fp_scale(w->scale_fmt, scale[i / group]);
        out[i] = w->fmt == WF_MLX_FP8 ? s * (2 * e4m3(q[i])) : s * (float)fp4_halves[q[i / 2] >> 4 * (i & 1) & 15];
    }
}

static void row_blocks(enum wfmt fmt, const uint8_t *q, size_t n, float *out)
{
    struct block_form f = block_form(fmt);
    for (size_t b = 0; b < n / (size_t)f.cols; b++, q += f.bytes, out += f.cols) {
        int8_t code[BLOCK_COLS_MAX];
        int k[BLOCK_SUBS_MAX], l[BLOCK_SUBS_MAX] = {0};
        float d = fmt == WF_MXFP4 ? e8m0_half(*q) : fmt == WF_NVFP4 ? 0 : f16_to_f32(load16(q + f.scale_at));
        float m = f.min_at < 0 ? 0 : f16_to_f32(load16(q + f.min_at));
        block_codes(fmt, q, code);
        block_subs(fmt, q, k, l);
        for (int i = 0; i < f.cols; i++) {
            float s = fmt == WF_NVFP4 ? e4m3(q[i / 16]) * 0.5f : f.sub ? d * (float)k[i / f.sub] : d;
            if (f.min_at < 0)
                out[i] = s * (float)code[i];
            else
                out[i] = fmaf(s, (float)code[i], f.sub ? -(m * (float)l[i / f.sub]) : m);
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
    case WF_MLX_FP4:
    case WF_MLX_FP8: row_mlx_fp(w, row, q, n, out); break;
    case WF_OTHER: memset(out, 0, n * sizeof *out); break; // the lookups refuse these
    default: row_blocks(w->fmt, q, n, out);
    }
}

void weight_rows(struct weight *w, int64_t row0, int64_t n)
{
    size_t parts = w->group && w->scale ? (size_t)(w->ne[w->ndim - 1] / w->group) : 0;
    size_t at = (size_t)row0 * parts * (w->scale_fmt == WF_F32 ? 4 : w->scale_fmt == WF_E8M0 || w->scale_fmt == WF_E4M3 ? 1 : 2);
    w->q = (const char *)w->q + (size_t)row0 * w->row_bytes;
    w->scale = w->scale ? (const char *)w->scale + at : NULL;
    w->bias = w->bias ? (const char *)w->bias + at : NULL;
    w->bytes = (size_t)n * (w->bytes / (size_t)w->ne[0]);
    w->ne[1] = w->ne[w->ndim - 1];
    w->ne[0] = n;
    w->ndim = 2;
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

/* Scales of a byte each, n of them in a row. */
static int check_bytes(const struct weight *w, const uint8_t *p, int64_t row, size_t n, int covers, struct err *e)
{
    for (size_t i = 0; i < n; i++, p++)
        if (!isfinite(w->scale_fmt == WF_E4M3 || w->fmt == WF_NVFP4 ? e4m3(*p) : e8m0_half(*p)))
            return err_set(e, ERR_NUMERIC, "%s: tensor %.120s holds NaN in the scale of row %lld, column %zu", w->file, w->name,
                           (long long)row, i * (size_t)covers);
    return 0;
}

static int check_blocks(const struct weight *w, int64_t rows, struct err *e)
{
    struct block_form f = block_form(w->fmt);
    const uint8_t *q = w->q;
    size_t blocks = w->row_bytes / (size_t)f.bytes;
    for (int64_t r = 0; r < rows; r++)
        for (size_t b = 0; b < blocks; b++, q += f.bytes) {
            if (w->fmt == WF_MXFP4 || w->fmt == WF_NVFP4) {
                int rc = check_bytes(w, q, r, w->fmt == WF_NVFP4 ? 4 : 1, 16, e);
                if (rc)
                    return rc;
                continue;
            }
            for (int h = 0; h < (f.min_at < 0 ? 1 : 2); h++) {
                float v = f16_to_f32(load16(q + (h ? f.min_at : f.scale_at)));
                if (!isfinite(v))
                    return err_set(e, ERR_NUMERIC, "%s: tensor %.120s holds %s in the block %s of row %lld, column %zu", w->file, w->name,
                                   odd_name(v), h ? "minimum" : "scale", (long long)r, b * (size_t)f.cols);
            }
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
    case WF_MLX_FP4:
    case WF_MLX_FP8:
        for (int64_t r = 0; r < rows; r++) {
            size_t parts = n / (size_t)w->group;
            if ((rc = check_bytes(w, (const uint8_t *)w->scale + (size_t)r * parts, r, parts, w->group, e)))
                return rc;
        }
        return 0;
    case WF_OTHER: return 0;
    default: return check_blocks(w, rows, e);
    }
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
