/* x86-64 with AVX2, FMA and F16C; compiled with those flags, reached only where the CPU has them. */
#include "kernel/cpu/kernels.inc"

KERNELS(avx2)
