/* One lane at a time, plain C: the readable reference that every other instruction set must equal. */
#include "kernel/cpu/kernels.inc"

KERNELS(scalar)
