/* Inside the CPU backend: the kernels of one instruction set as a table, single-threaded over ranges. The
 * formulas are docs/arithmetic.md's. */
#ifndef KERNEL_CPU_CPU_H
#define KERNEL_CPU_CPU_H

#include "kernel/backend.h"

enum { ROW_GROUP = 8, QUANT_SEGMENT = 1024, ROWS_MAX = 16 };

/* Order in which int8 activation codes are stored: as they come, or in each 8 columns the even ones before the odd
 * ones, so that MLX nibbles meet them without a shuffle. */
enum act_order { ORDER_NATURAL, ORDER_EVEN_ODD };

/* How a quantized format wants its activations. */
struct qfmt {
    int group; // columns per scale: those of the weight's group or block
    enum act_order order;
};

struct bweight {
    const struct weight *w;
    int64_t out, in;
    const int32_t *ids; // row subset: output i is row ids[i] of w; NULL: all rows
    const float *bias;  // added to the product, by row of w; NULL: none
    bool quantized;
    struct qfmt q;
};

/* n rows of activations quantized for one (group, order). */
struct qact {
    int n, in, group, n_groups;
    enum act_order order;
    int64_t ld;       // codes per row, multiple of 128, padded with 0
    int8_t *code;     // [n, ld]
    float *scale;     // [n, n_groups] a of §2.2
    int32_t *isum;    // [n, n_groups] C
    int32_t *sum16;   // [n, ld/16] sums of 16 codes, of groups of 256 only, else NULL
};

/* A block of rows of one sequence that share a KV head. */
struct attn_work {
    const float *q;      // [n_q, dim] normed, rotated, scaled
    const int32_t *pos;  // [n_q] last visible key
    int n_q, dim, first_key, window;
    const uint16_t *(*block)(const void *ud, int block, const uint16_t **v); // K and V of one 64-token block, [64, dim]
    const void *ud;
    float *scratch; // [2, 64, dim]
};

struct cpu_kernels {
    const char *name;
    void (*quantize)(const float *x, int in, struct qact *a, int row);
    /* y[r*ld_y + o] for o in [o0, o1) and rows [r0, r0+n) of a; o0 a multiple of ROW_GROUP. */
    void (*qmm)(const struct bweight *w, const struct qact *a, int64_t o0, int64_t o1, int r0, int n, float *y, int64_t ld_y);
    /* The same for float products; x [n, ld_x], n <= ROWS_MAX. Dequantizes if w is quantized (float mode). */
    void (*fmm)(const struct bweight *w, const float *x, int64_t ld_x, int64_t o0, int64_t o1, int n, float *y, int64_t ld_y);
    void (*rms)(const float *x, const float *w, int n, float eps, float *y);
    void (*act_mul)(enum activation act, const float *gate, const float *up, int n, float *y);
    void (*sigmoid_mul)(float *x, const float *gate, int n);
    void (*add)(float *x, const float *y, int n);
    void (*axpy)(float *y, float a, const float *x, int n); // y = fma(a, x, y)
    void (*exp_less)(float *x, float top, int n);           // x = exp(x - top)
    void (*sigmoid)(float *x, int n);
    void (*scale)(float *x, float s, int n);
    void (*softcap)(float *x, float cap, int n);
    void (*rotate)(float *x, const float *cs, int half, bool adjacent); // cs: half cosines, half sines
    void (*to_f16)(const float *x, int n, uint16_t *y);
    /* One segment for n_q queries: ms[2*i] = max, ms[2*i+1] = sum, o [n_q, dim]. Rows that see no key: max -inf. */
    void (*segment)(const struct attn_work *w, int segment, float *ms, float *o);
    void (*merge)(float *ms, float *o, const float *ms2, const float *o2, int dim);
    void (*finish)(const float *ms, float *o, int dim);
    /* Convolution and silu of channels [c0, c1) of one row. w [taps, ld_w], rows: its taps input rows, oldest first. */
    void (*conv)(const float *w, int64_t ld_w, int taps, int c0, int c1, const float *const *rows, float *y);
    void (*l2norm)(float *x, int n, float scale);
    void (*zero_tiny)(float *x, int n);
    /* One tile of a head's state: 16 columns, S [dk, ld]. q, k [dk]; v, u, o [16]. */
    void (*gdn_replay)(float *S, int64_t ld, int dk, const float *k, const float *u, float e);
    void (*gdn_step)(float *S, int64_t ld, int dk, const float *q, const float *k, const float *v, float beta, float e, float *u, float *o);
    void (*gated_norm)(float *o, const float *w, const float *z, int n, float eps);
};

extern const struct cpu_kernels cpu_kernels_scalar, cpu_kernels_avx2;
const struct cpu_kernels *cpu_kernels_find(const char *name); // NULL name: best here; NULL if absent here

#endif
