/* The vector vocabulary of the kernels: 16 virtual lanes of f32, as docs/arithmetic.md counts them. Included
 * by the isa_*.c files only; every function is static, so that each instruction set compiles its own. */
#ifndef KERNEL_CPU_SIMD_H
#define KERNEL_CPU_SIMD_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "format/weights.h"

#define INLINE static inline __attribute__((always_inline, unused))

/* 1.5 * 2^23: adding and subtracting it rounds |x| < 2^22 to the nearest even integer. */
#define ROUND_MAGIC 12582912.0f
#define EXP_LOW (-27.7f)
#define EXP_HIGH 88.0f
#define TINY 0x1p-40f

#ifdef __AVX2__
#include <immintrin.h>

typedef struct {
    __m256 a, b;
} v16;

#define V16(x, y) ((v16){x, y})
INLINE v16 v16_load(const float *p) { return V16(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
INLINE void v16_store(float *p, v16 x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
INLINE v16 v16_set1(float x) { return V16(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
INLINE v16 v16_add(v16 x, v16 y) { return V16(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)); }
INLINE v16 v16_sub(v16 x, v16 y) { return V16(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)); }
INLINE v16 v16_mul(v16 x, v16 y) { return V16(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)); }
INLINE v16 v16_div(v16 x, v16 y) { return V16(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)); }
INLINE v16 v16_max(v16 x, v16 y) { return V16(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)); }
INLINE v16 v16_min(v16 x, v16 y) { return V16(_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)); }
INLINE v16 v16_fma(v16 x, v16 y, v16 z) { return V16(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)); }
INLINE v16 v16_abs(v16 x)
{
    __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return V16(_mm256_and_ps(x.a, m), _mm256_and_ps(x.b, m));
}
/* x < y ? t : f per lane */
INLINE v16 v16_lt(v16 x, v16 y, v16 t, v16 f)
{
    return V16(_mm256_blendv_ps(f.a, t.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
               _mm256_blendv_ps(f.b, t.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)));
}
/* 2^n for integral n in -126..127 */
INLINE v16 v16_pow2(v16 n)
{
    __m256i bias = _mm256_set1_epi32(127);
    return V16(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.a), bias), 23)),
               _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.b), bias), 23)));
}
/* lanes with |x| < TINY become +0 */
INLINE v16 v16_zero_tiny(v16 x)
{
    __m256 t = _mm256_set1_ps(TINY), m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return V16(_mm256_and_ps(x.a, _mm256_cmp_ps(_mm256_and_ps(x.a, m), t, _CMP_GE_OQ)),
               _mm256_and_ps(x.b, _mm256_cmp_ps(_mm256_and_ps(x.b, m), t, _CMP_GE_OQ)));
}
/* from f16 and bf16 at any address */
INLINE v16 v16_from_f16(const void *p)
{
    const __m128i *h = p;
    return V16(_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1)));
}
INLINE void v16_to_f16(uint16_t *p, v16 x)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
INLINE __m256 bf16x8(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
INLINE v16 v16_from_bf16(const void *p)
{
    const __m128i *h = p;
    return V16(bf16x8(_mm_loadu_si128(h)), bf16x8(_mm_loadu_si128(h + 1)));
}
/* the tree of docs/arithmetic.md §1 */
INLINE float v16_sum(v16 x)
{
    __m256 s = _mm256_add_ps(x.a, x.b);
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    t = _mm_add_ss(t, _mm_shuffle_ps(t, t, 1));
    return _mm_cvtss_f32(t);
}
INLINE float v16_hmax(v16 x)
{
    __m256 s = _mm256_max_ps(x.a, x.b);
    __m128 t = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    t = _mm_max_ps(t, _mm_movehl_ps(t, t));
    t = _mm_max_ss(t, _mm_shuffle_ps(t, t, 1));
    return _mm_cvtss_f32(t);
}

INLINE float half_to_f32(uint16_t h) { return _cvtsh_ss(h); }

#else /* one lane at a time */

INLINE float half_to_f32(uint16_t h) { return f16_to_f32(h); }

typedef struct {
    float v[16];
} v16;

#define EACH for (int i = 0; i < 16; i++)
INLINE v16 v16_load(const float *p)
{
    v16 r;
    memcpy(r.v, p, sizeof r.v);
    return r;
}
INLINE void v16_store(float *p, v16 x) { memcpy(p, x.v, sizeof x.v); }
#define LANEWISE1(name, expr) INLINE v16 name(v16 x) { v16 r; EACH r.v[i] = expr; return r; }
#define LANEWISE2(name, expr) INLINE v16 name(v16 x, v16 y) { v16 r; EACH r.v[i] = expr; return r; }
LANEWISE2(v16_add, x.v[i] + y.v[i])
LANEWISE2(v16_sub, x.v[i] - y.v[i])
LANEWISE2(v16_mul, x.v[i] * y.v[i])
LANEWISE2(v16_div, x.v[i] / y.v[i])
LANEWISE2(v16_max, x.v[i] > y.v[i] ? x.v[i] : y.v[i])
LANEWISE2(v16_min, x.v[i] < y.v[i] ? x.v[i] : y.v[i])
LANEWISE1(v16_abs, fabsf(x.v[i]))
LANEWISE1(v16_zero_tiny, fabsf(x.v[i]) >= TINY ? x.v[i] : 0)
LANEWISE1(v16_pow2, ((union { uint32_t u; float f; }){(uint32_t)((int32_t)x.v[i] + 127) << 23}).f)
INLINE v16 v16_set1(float x)
{
    v16 r;
    EACH r.v[i] = x;
    return r;
}
INLINE v16 v16_fma(v16 x, v16 y, v16 z)
{
    EACH z.v[i] = fmaf(x.v[i], y.v[i], z.v[i]);
    return z;
}
INLINE v16 v16_lt(v16 x, v16 y, v16 t, v16 f)
{
    EACH f.v[i] = x.v[i] < y.v[i] ? t.v[i] : f.v[i];
    return f;
}
INLINE v16 v16_from_f16(const void *p)
{
    uint16_t h[16];
    v16 r;
    memcpy(h, p, sizeof h);
    EACH r.v[i] = f16_to_f32(h[i]);
    return r;
}
INLINE void v16_to_f16(uint16_t *p, v16 x) { EACH p[i] = f32_to_f16(x.v[i]); }
INLINE v16 v16_from_bf16(const void *p)
{
    uint16_t h[16];
    v16 r;
    memcpy(h, p, sizeof h);
    EACH r.v[i] = bf16_to_f32(h[i]);
    return r;
}
INLINE float v16_sum(v16 x)
{
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            x.v[i] += x.v[i + half];
    return x.v[0];
}
INLINE float v16_hmax(v16 x)
{
    float m = x.v[0];
    EACH m = x.v[i] > m ? x.v[i] : m;
    return m;
}
#endif

INLINE v16 v16_zero(void) { return v16_set1(0); }

/* Loads the n < 16 floats at p, the other lanes are +0. */
INLINE v16 v16_load_n(const float *p, int n)
{
    float t[16] = {0};
    memcpy(t, p, (size_t)n * sizeof *p);
    return v16_load(t);
}

INLINE v16 v16_rint(v16 x) { return v16_sub(v16_add(x, v16_set1(ROUND_MAGIC)), v16_set1(ROUND_MAGIC)); }

/* docs/arithmetic.md §3. Coefficients: minimax-like polynomial of e^r on |r| <= ln2/2, error 2^-24. */
INLINE v16 v16_exp(v16 x)
{
    v16 low = x;
    x = v16_min(v16_set1(EXP_HIGH), v16_max(v16_set1(EXP_LOW), x)); // in this order NaN stays NaN
    v16 n = v16_rint(v16_mul(x, v16_set1(1.44269504f)));
    v16 r = v16_fma(n, v16_set1(-0.693359375f), x);
    r = v16_fma(n, v16_set1(2.12194440e-4f), r);
    v16 p = v16_set1(1.3888889e-3f);
    p = v16_fma(p, r, v16_set1(8.3333333e-3f));
    p = v16_fma(p, r, v16_set1(4.1666667e-2f));
    p = v16_fma(p, r, v16_set1(1.6666667e-1f));
    p = v16_fma(p, r, v16_set1(0.5f));
    p = v16_fma(p, r, v16_set1(1.0f));
    p = v16_fma(p, r, v16_set1(1.0f));
    p = v16_mul(p, v16_pow2(n));
    return v16_lt(low, v16_set1(EXP_LOW), v16_zero(), p);
}

INLINE float exp_one(float x)
{
    float t[16];
    v16_store(t, v16_exp(v16_set1(x)));
    return t[0];
}

INLINE v16 v16_sigmoid(v16 x)
{
    v16 one = v16_set1(1.0f);
    v16 e = v16_exp(v16_sub(v16_zero(), v16_abs(x)));
    return v16_div(v16_lt(x, v16_zero(), e, one), v16_add(one, e));
}

/* GELU by its tanh approximation: (1 + tanh u) / 2 = sigmoid(2u). */
INLINE v16 v16_gelu(v16 x)
{
    v16 u2 = v16_mul(x, v16_fma(v16_mul(x, x), v16_set1(0.0713548163f), v16_set1(1.59576912f)));
    return v16_mul(x, v16_sigmoid(u2));
}

/* docs/arithmetic.md §3. Coefficients: minimax polynomial of tanh below 0.55, relative error 2^-29. */
INLINE v16 v16_tanh(v16 x)
{
    v16 z = v16_abs(x), u = v16_mul(z, z), one = v16_set1(1.0f), two = v16_set1(2.0f);
    v16 p = v16_set1(-6.27423916e-3f);
    p = v16_fma(p, u, v16_set1(2.10716780e-2f));
    p = v16_fma(p, u, v16_set1(-5.38523085e-2f));
    p = v16_fma(p, u, v16_set1(1.33325860e-1f));
    p = v16_fma(p, u, v16_set1(-3.33333164e-1f));
    v16 near = v16_fma(v16_mul(z, u), p, z);
    v16 far = v16_sub(one, v16_div(two, v16_add(v16_exp(v16_mul(two, z)), one)));
    v16 t = v16_lt(z, v16_set1(0.55f), near, far);
    return v16_lt(x, v16_zero(), v16_sub(v16_zero(), t), t);
}

/* Sum of a_i * b_i over n, 16 lanes. */
INLINE float dot16(const float *a, const float *b, int n)
{
    v16 acc = v16_zero();
    int i = 0;
    for (; i + 16 <= n; i += 16)
        acc = v16_fma(v16_load(a + i), v16_load(b + i), acc);
    if (i < n)
        acc = v16_fma(v16_load_n(a + i, n - i), v16_load_n(b + i, n - i), acc);
    return v16_sum(acc);
}

#endif
