#include "forge/affine.h"

#include <math.h>
#include <string.h>

/* Stores v, returns what is read back. */
static float put(float v, enum wfmt fmt, uint8_t *p)
{
    if (fmt == WF_F32) {
        memcpy(p, &v, 4);
        return v;
    }
    uint16_t h = fmt == WF_F16 ? f32_to_f16(v) : f32_to_bf16(v);
    memcpy(p, &h, 2);
    return fmt == WF_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

static double quantize_group(const float *x, int n, int bits, enum wfmt fmt, uint8_t *q, uint8_t *scale_at, uint8_t *bias_at)
{
    float low = x[0], high = x[0], top = (float)((1 << bits) - 1);
    double error = 0;
    for (int i = 1; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    bool from_low = fabsf(low) > fabsf(high);
    float scale = fmaxf((high - low) / top, 1e-7f), edge = from_low ? low : high, bias = 0;
    scale = from_low ? scale : -scale;
    float steps = rintf(edge / scale);
    if (steps != 0) {
        scale = edge / steps;
        bias = edge;
    }
    scale = put(scale, fmt, scale_at);
    bias = put(bias, fmt, bias_at);
    for (int i = 0; i < n; i++) {
        float c = scale != 0 ? rintf((x[i] - bias) / scale) : 0;
        c = c < 0 ? 0 : c > top ? top : c;
        q[i] = (uint8_t)c;
        double d = (double)x[i] - (double)fmaf(scale, c, bias);
        error += d * d;
    }
    return error;
}

double affine_quantize(const float *x, int64_t n, int bits, int group, enum wfmt fmt, uint8_t *codes, uint8_t *scales, uint8_t *biases)
{
    size_t one = fmt == WF_F32 ? 4 : 2;
    double error = 0;
    memset(codes, 0, (size_t)(n * bits / 8));
    for (int64_t g = 0; g < n / group; g++) {
        uint8_t q[256];
        error += quantize_group(x + g * group, group, bits, fmt, q, scales + (size_t)g * one, biases + (size_t)g * one);
        for (int i = 0; i < group; i++) {
            int64_t at = (g * group + i) * bits;
            codes[at / 8] |= (uint8_t)(q[i] << at % 8);
            if (at % 8 + bits > 8)
                codes[at / 8 + 1] |= (uint8_t)(q[i] >> (8 - at % 8));
        }
    }
    return error;
}
