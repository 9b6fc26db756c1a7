/* A model package as downloaded: its configuration in one spelling and a read-only catalogue of named
 * tensors over mapped files. HF folders (single file, shards, extra files the index doesn't name), MLX
 * folders, GGUF files. Everything is validated before use; nothing is copied or converted.
 *
 * Names. Tensors are found by canonical keys: HF's names without the prefixes model., language_model., ...
 * ("layers.3.self_attn.q_proj.weight", "embed_tokens.weight", "norm.weight", "lm_head.weight", "mtp.fc.weight").
 * GGUF names map to the same keys; its metadata becomes a configuration in HF's spelling, with these extra keys
 * for facts of its layout that an architecture must follow (absent: HF's own layout):
 *   "foresay_v_heads": "tiled"        GDN value head i belongs to key head i mod Hk (HF: floor(i / (Hv/Hk)))
 *   "foresay_rope_pairs": "adjacent"  q/k rows stand in the order of the (even, odd) rotary pairing
 *   "foresay_norms": "effective"      norm weights already hold the +1 of zero-centred families
 *   "foresay_mtp_norm": "output_norm" the head has no norm of its own: norm.weight serves in place of mtp.norm.weight
 *   linear_attn.A instead of A_log    -exp(A_log) is stored
 * Files of a folder mtp/ get keys that begin with mtp. whether their names do or not; file is then "mtp/NAME".
 */
#ifndef FORMAT_WEIGHTS_H
#define FORMAT_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "text/json.h"

enum wfmt {
    WF_F32,
    WF_F16,
    WF_BF16,
    WF_MLX,  // affine: w = scale*q + bias; bits and group in struct weight; q LSB-first bitstream, rows whole
    WF_MLX_FP4, // E2M1 codes, low nibble first; scale_fmt says mxfp4 (E8M0, groups of 32) or nvfp4 (E4M3, of 16)
    WF_MLX_FP8, // E4M3 codes with E8M0 scales of 32
    WF_Q8_0, // GGUF's blocks: format/blocks.h
    WF_Q4_0,
    WF_Q4_1,
    WF_Q5_0,
    WF_Q5_1,
    WF_Q2_K,
    WF_Q3_K,
    WF_Q4_K,
    WF_Q5_K,
    WF_Q6_K,
    WF_IQ4_NL,
    WF_IQ4_XS,
    WF_MXFP4,
    WF_NVFP4,
    WF_Q1_0,
    WF_Q2_0,
    WF_TQ1_0,
    WF_TQ2_0,
    WF_E8M0, // of scales only
    WF_E4M3,
    WF_OTHER, // known to the container, not to the kernels (integers, formats without a kernel)
};

/* One logical tensor. Matrices are [out, in] row-major: ne[0] = out, ne[1] = in (HF order, also for GGUF). */
struct weight {
    const char *name; // as in the file; the module's .weight for a quantized triple
    const char *key;  // canonical
    const char *file; // base name of the file (with its folder inside the package, if any)
    enum wfmt fmt;
    const char *type; // the container's own word: "BF16", "U32 4-bit g64", "Q4_K"
    int ndim;
    int64_t ne[4];
    int bits, group;          // quantized: bits per code and columns per scale, else 0
    enum wfmt scale_fmt;      // WF_F16/BF16/F32 of scale and bias of WF_MLX; WF_E8M0, WF_E4M3 of WF_MLX_FP*
    const void *q, *scale, *bias; // data; scale for WF_MLX*, bias for WF_MLX: [out, in/group]. No alignment is promised:
                                  // MLX writes headers of any length, so load with memcpy or unaligned loads
    size_t row_bytes;         // bytes from one row of q to the next
    size_t bytes;             // stored bytes with scales and biases
    bool used;                // some part of the program asked for it
    const char *unused_why;   // reason given by weights_ignore, else NULL
};

struct weights;

enum package_kind { PACKAGE_HF, PACKAGE_MLX, PACKAGE_GGUF };
struct package {
    char *path; // as given
    enum package_kind kind;
    const struct json *config;     // text configuration in HF's spelling (nested text_config unwrapped)
    const struct json *generation; // generation_config.json, or NULL
    const struct json *quantization; // the top-level quantization object, or NULL
    struct weights *weights;
    char **notes; // sentences about what was ignored, inferred or odd; shown by inspect and at load with -v
    int n_notes;
    struct arena *arena; // owns the JSON
    bool is_headers_only; // the tensors' data are holes: sizes and formats are true, contents aren't there (set by the opener)
    const char *config_file; // where config comes from, for messages: "config.json" or the GGUF file's name
};

/* path: folder or .gguf file. Opening reads headers only. */
MUST_CHECK int package_open(struct package **p, const char *path, struct err *e);
void package_close(struct package *p);
void package_note(struct package *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Lookups by canonical key (printf style). All mark the tensor as used. The sentence of a failure names file,
 * tensor, expected and found shape. A matrix in a format without kernel is ERR_UNSUPPORTED. */
const struct weight *weights_matrix(struct weights *w, struct err *e, int64_t out, int64_t in, const char *key, ...)
    __attribute__((format(printf, 5, 6)));
/* A small float tensor of n elements in any shape (norms, conv1d, A_log), converted to fp32; arena-owned. */
const float *weights_floats(struct weights *w, struct err *e, int64_t n, const char *key, ...)
    __attribute__((format(printf, 4, 5)));
/* Any tensor, or NULL if absent; doesn't mark it. */
const struct weight *weights_find(const struct weights *w, const char *key, ...) __attribute__((format(printf, 2, 3)));
/* Gives a reason to every unused tensor whose key (or file name of the tensor) starts with prefix. */
void weights_ignore(struct weights *w, const char *prefix, const char *why);

int weights_count(const struct weights *w);
const struct weight *weights_at(const struct weights *w, int i); // order of files, then of offsets
/* First NaN or infinity in the stored floats and scales: fills *e with a sentence naming the tensor, returns
 * nonzero. Reads everything: for diagnosis only. */
int weights_check_finite(const struct weights *w, struct err *e);

/* Dequantizes one row to fp32, exactly as docs/arithmetic.md defines (fma(scale, q, bias), d*(q-8), ...). */
void weight_row(const struct weight *w, int64_t row, float *out);

/* Narrows a matrix to rows [row0, row0 + n). */
void weight_rows(struct weight *w, int64_t row0, int64_t n);

/* f16/bf16 <-> f32, round to nearest even. */
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);
static inline float bf16_to_f32(uint16_t h)
{
    union { uint32_t u; float f; } v = {(uint32_t)h << 16};
    return v.f;
}
static inline uint16_t f32_to_bf16(float f)
{
    union { float f; uint32_t u; } v = {f};
    return (uint16_t)((v.u + 0x7fff + (v.u >> 16 & 1)) >> 16);
}

#endif
