/* NumPy .npy files (format 1.0): float32, C order, little-endian. */
#ifndef MEASURE_NPY_H
#define MEASURE_NPY_H

#include <stdint.h>

#include "base/err.h"

MUST_CHECK int npy_write(const char *path, const float *x, const int64_t *shape, int ndim, struct err *e);
/* Two-dimensional only. Caller frees *x. */
MUST_CHECK int npy_read(const char *path, float **x, int64_t shape[2], struct err *e);

#endif
