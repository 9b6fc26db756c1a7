/* MLX's affine quantization of rows: w = scale * q + bias, q of `bits` bits, by group of columns. */
#ifndef FORGE_AFFINE_H
#define FORGE_AFFINE_H

#include "format/weights.h"

/* One row x[0..n), n a multiple of group and group * bits of 8, into n * bits / 8 bytes of codes and n / group scales and
 * biases of the given format (F16, BF16, F32). Codes fit the scales as rounded. Returns the squared error.
 * Formula: mlx.core.quantize (the end of the range farther from zero is met exactly, zero if it can be). */
double affine_quantize(const float *x, int64_t n, int bits, int group, enum wfmt fmt, uint8_t *codes, uint8_t *scales, uint8_t *biases);

#endif
