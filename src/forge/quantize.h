/* A package of floats as an MLX package of 4 or 8 bits, or of a mixture chosen by measurement. */
#ifndef FORGE_QUANTIZE_H
#define FORGE_QUANTIZE_H

#include <stdatomic.h>

#include "forge/compare.h"

struct quantize_options {
    const char *src, *dst; // folders; dst must not exist
    int bits;              // 4 or 8; 0: mixed
    int group;             // 32, 64, 128
    double bpw;            // mixed: bits a weight, scales included
    const char *text;      // file to measure on, NULL: the built-in text
    int calibration, held_out; // tokens for the choice of bits, and for the final figures
    int threads;
    atomic_int *cancel;    // ends with ERR_CANCEL; what is done stays
    void (*on_progress)(void *ud, const char *what, double share);
    void *ud;
};
struct quantize_report {
    struct agreement agreement; // of the new package with its source
    double bpw;
    uint64_t src_bytes, dst_bytes;
    int n_quantized, n_kept, n_resumed; // tensors; n_resumed: written by an earlier run
};

/* Writes DST.partial, then renames it. After an interruption the same call goes on where it was; memory holds one
 * tensor's rows at a time, and while bits are chosen one quantized tensor. */
MUST_CHECK int quantize_run(const struct quantize_options *o, struct quantize_report *r, struct err *e);

#endif
