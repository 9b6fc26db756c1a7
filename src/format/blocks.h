/* The blocks of GGUF's quantized formats: where things stand and what the integers mean. For readers of rows
 * (format/quants.c) and for kernels, which compile these loops for their own instruction set.
 *
 * A block holds `cols` columns of a row in `bytes` bytes. Column e has the value
 *   simple formats    d * q_e            or  fma(d, q_e, m)
 *   with sub-blocks   (d * k_s) * q_e    or  fma(d * k_s, q_e, -(dmin * l_s)),  s = e / sub, k and l integers
 *   NVFP4             d_s * q_e with s = e / 16
 * q_e is the code less the format's zero: a small integer. nib(p, e) below is the nibble of column e of 32 that
 * stand as 16 low halves, then 16 high ones. Layouts as in llama.cpp's ggml-common.h. */
#ifndef FORMAT_BLOCKS_H
#define FORMAT_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "format/weights.h"

enum { BLOCK_COLS_MAX = 256, BLOCK_SUBS_MAX = 16 };

struct block_form {
    int cols, bytes;
    int scale_at; // byte offset of d
    int min_at;   // of m or dmin, -1: none
    int sub;      // columns of a sub-block with integer scales, 0: none
};

static inline struct block_form block_form(enum wfmt f)
{
    switch (f) {
    case WF_Q4_0: return (struct block_form){32, 18, 0, -1, 0};
    case WF_Q4_1: return (struct block_form){32, 20, 0, 2, 0};
    case WF_Q5_0: return (struct block_form){32, 22, 0, -1, 0};
    case WF_Q5_1: return (struct block_form){32, 24, 0, 2, 0};
    case WF_Q8_0: return (struct block_form){32, 34, 0, -1, 0};
    case WF_Q2_K: return (struct block_form){256, 84, 80, 82, 16};
    case WF_Q3_K: return (struct block_form){256, 110, 108, -1, 16};
    case WF_Q4_K: return (struct block_form){256, 144, 0, 2, 32};
    case WF_Q5_K: return (struct block_form){256, 176, 0, 2, 32};
    case WF_Q6_K: return (struct block_form){256, 210, 208, -1, 16};
    case WF_IQ4_NL: return (struct block_form){32, 18, 0, -1, 0};
    case WF_IQ4_XS: return (struct block_form){256, 136, 0, -1, 32};
    case WF_MXFP4: return (struct block_form){32, 17, 0, -1, 0};
    case WF_NVFP4: return (struct block_form){64, 36, 0, -1, 0};
    case WF_Q1_0: return (struct block_form){128, 18, 0, -1, 0};
    case WF_Q2_0: return (struct block_form){64, 18, 0, -1, 0};
    case WF_TQ1_0: return (struct block_form){256, 54, 52, -1, 0};
    case WF_TQ2_0: return (struct block_form){256, 66, 64, -1, 0};
    default: return (struct block_form){0, 0, 0, -1, 0};
    }
}

/* E8M0, half of it: FP4 codes are counted in halves. Scales below 2^-100 are zero, so that no product can be denormal. */
static inline float e8m0_half(uint8_t e)
{
    union {
        uint32_t u;
        float f;
    } v = {e < 28 ? 0 : e == 255 ? 0x7fc00000 : (uint32_t)(e - 1) << 23};
    return v.f;
}

/* E4M3: no infinity, 0x7f is NaN. */
static inline float e4m3(uint8_t b)
{
    int e = b >> 3 & 15, m = b & 7;
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)(e + 120) << 23 | (uint32_t)m << 20};
    if ((b & 0x7f) == 0x7f)
        v.u = 0x7fc00000;
    else if (!e)
        v.f = (float)m * 0x1p-9f;
    return b & 0x80 ? -v.f : v.f;
}

static const int8_t fp4_halves[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static inline void nibbles32(const uint8_t *restrict p, int8_t *restrict q)
{
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)(p[i] & 15);
        q[i + 16] = (int8_t)(p[i] >> 4);
    }
}

static inline void map_nibbles(const uint8_t *restrict p, int n, const int8_t *table, int8_t *restrict q)
{
    for (int i = 0; i < n; i++) {
        q[i] = table[p[i] & 15];
        q[i + n] = table[p[i] >> 4];
    }
}

static inline void codes_q5(const uint8_t *restrict high, const uint8_t *restrict p, int zero, int8_t *restrict q)
{
    nibbles32(p, q);
    for (int i = 0; i < 32; i++)
        q[i] = (int8_t)(q[i] + (high[i / 8] >> i % 8 & 1) * 16 - zero);
}

static inline void codes_q2_k(const uint8_t *restrict p, int8_t *restrict q)
{
    for (int h = 0; h < 2; h++)
        for (int g = 0; g < 4; g++)
            for (int l = 0; l < 32; l++)
                q[128 * h + 32 * g + l] = (int8_t)(p[32 * h + l] >> 2 * g & 3);
}

static inline void codes_q3_k(const uint8_t *restrict p, int8_t *restrict q)
{
    codes_q2_k(p + 32, q);
    for (int g = 0; g < 8; g++)
        for (int l = 0; l < 32; l++)
            q[32 * g + l] = (int8_t)(q[32 * g + l] + (p[l] >> g & 1) * 4 - 4);
}

static inline void codes_q4_k(const uint8_t *restrict p, int8_t *restrict q)
{
    for (int j = 0; j < 4; j++)
        for (int l = 0; l < 32; l++) {
            q[64 * j + l] = (int8_t)(p[32 * j + l] & 15);
            q[64 * j + 32 + l] = (int8_t)(p[32 * j + l] >> 4);
        }
}

static inline void codes_q5_k(const uint8_t *restrict qh, const uint8_t *restrict p, int8_t *restrict q)
{
    codes_q4_k(p, q);
    for (int j = 0; j < 8; j++)
        for (int l = 0; l < 32; l++)
            q[32 * j + l] = (int8_t)(q[32 * j + l] + (qh[l] >> j & 1) * 16);
}

static inline void codes_q6_k(const uint8_t *restrict p, int8_t *restrict q)
{
    for (int h = 0; h < 2; h++)
        for (int g = 0; g < 4; g++)
            for (int l = 0; l < 32; l++)
                q[128 * h + 32 * g + l] =
                    (int8_t)((p[64 * h + 32 * (g & 1) + l] >> 4 * (g >> 1) & 15) + (p[128 + 32 * h + l] >> 2 * g & 3) * 16 - 32);
}

/* Base-3 digits, most significant first: digit n of b is the third in which b * 3^n (mod 256) lies. */
static inline int8_t trit(uint8_t b, int power) { return (int8_t)(((uint8_t)(b * power) * 3 >> 8) - 1); }

static inline void codes_tq1_0(const uint8_t *restrict p, int8_t *restrict q)
{
    static const int powers[] = {1, 3, 9, 27, 81};
    for (int n = 0; n < 5; n++) {
        for (int i = 0; i < 32; i++)
            q[32 * n + i] = trit(p[i], powers[n]);
        for (int i = 0; i < 16; i++)
            q[160 + 16 * n + i] = trit(p[32 + i], powers[n]);
        for (int i = 0; i < 4 && n < 4; i++)
            q[240 + 4 * n + i] = trit(p[48 + i], powers[n]);
    }
}

/* The codes of one block, less their zero. q has room for cols. */
static inline void block_codes(enum wfmt f, const uint8_t *restrict p, int8_t *restrict q)
{
    switch (f) {
    case WF_Q8_0: memcpy(q, p + 2, 32); break;
    case WF_Q4_0:
        nibbles32(p + 2, q);
        for (int i = 0; i < 32; i++)
            q[i] = (int8_t)(q[i] - 8);
        break;
    case WF_Q4_1: nibbles32(p + 4, q); break;
    case WF_Q5_0: codes_q5(p + 2, p + 6, 16, q); break;
    case WF_Q5_1: codes_q5(p + 4, p + 8, 0, q); break;
    case WF_Q2_K: codes_q2_k(p + 16, q); break;
    case WF_Q3_K: codes_q3_k(p, q); break;
    case WF_Q4_K: codes_q4_k(p + 16, q); break;
    case WF_Q5_K: codes_q5_k(p + 16, p + 48, q); break;
    case WF_Q6_K: codes_q6_k(p, q); break;
    case WF_IQ4_NL: map_nibbles(p + 2, 16, iq4_values, q); break;
    case WF_IQ4_XS:
        for (int b = 0; b < 8; b++)
            map_nibbles(p + 8 + 16 * b, 16, iq4_values, q + 32 * b);
        break;
    case WF_MXFP4: map_nibbles(p + 1, 16, fp4_halves, q); break;
    case WF_NVFP4:
        for (int s = 0; s < 4; s++)
            map_nibbles(p + 4 + 8 * s, 8, fp4_halves, q + 16 * s);
        break;
    case WF_Q1_0:
        for (int i = 0; i < 128; i++)
            q[i] = (int8_t)((p[2 + i / 8] >> i % 8 & 1) * 2 - 1);
        break;
    case WF_Q2_0:
        for (int i = 0; i < 64; i++)
            q[i] = (int8_t)((p[2 + i / 4] >> 2 * (i % 4) & 3) - 1);
        break;
    case WF_TQ1_0: codes_tq1_0(p, q); break;
    case WF_TQ2_0:
        codes_q2_k(p, q);
        for (int i = 0; i < 256; i++)
            q[i] = (int8_t)(q[i] - 1);
        break;
    default: break;
    }
}

/* Integer scales, and mins where the format has them, of the sub-blocks of one block. */
static inline void block_subs(enum wfmt f, const uint8_t *p, int *k, int *l)
{
    switch (f) {
    case WF_Q2_K:
        for (int s = 0; s < 16; s++)
            k[s] = p[s] & 15, l[s] = p[s] >> 4;
        break;
    case WF_Q3_K:
        for (int s = 0; s < 16; s++)
            k[s] = (p[96 + s % 8] >> 4 * (s / 8) & 15) + (p[104 + s % 4] >> 2 * (s / 4) & 3) * 16 - 32;
        break;
    case WF_Q4_K:
    case WF_Q5_K:
        p += 4;
        for (int s = 0; s < 4; s++) {
            k[s] = p[s] & 63, l[s] = p[s + 4] & 63;
            k[s + 4] = (p[s + 8] & 15) | p[s] >> 6 << 4, l[s + 4] = p[s + 8] >> 4 | p[s + 4] >> 6 << 4;
        }
        break;
    case WF_Q6_K:
        for (int s = 0; s < 16; s++)
            k[s] = (int8_t)p[192 + s];
        break;
    case WF_IQ4_XS:
        for (int s = 0; s < 8; s++)
            k[s] = (p[4 + s / 2] >> 4 * (s % 2) & 15) + ((p[2] | p[3] << 8) >> 2 * s & 3) * 16 - 32;
        break;
    default: break;
    }
}

#endif
