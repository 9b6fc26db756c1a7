/* Random-weight models of true shapes, for tests and benches: `mkmodel SHAPE FORMAT OUT`. Qwen3.5 hybrids
 * with an MTP head, as a Hugging Face folder (bf16), an MLX folder (mlx4: affine 4 bits in groups of 64) or a
 * GGUF file (q4_0), complete with a byte-level tokenizer and a ChatML template. Those with experts, in every layer
 * and in the head, are written as mlx4 alone.
 *
 * Every value is drawn from Philox by (seed, tensor, index): a seed gives the same bytes everywhere, and tensors
 * are streamed to the file row by row. Quantized formats draw their codes directly, so the three formats of one
 * seed are three models of one distribution, not one model three times.
 *
 * Scales keep activations sane: products N(0, 1/in), residual contributions as large as the embedding, norms
 * near 1, decays of the recurrent heads from none to total. A few convolution channels of keys and values are
 * nearly dead (2^-70, 2^-60): products of their outputs would be denormal in the recurrent state, were they not
 * zeroed as docs/arithmetic.md §6 says.
 *
 * --agree makes the next token a fixed function of the current one, for trunk and head alike: row f(t) of an
 * untied LM head is row t of the embedding, layers add little, and the head's fc passes the embedding through. */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/math64.h"
#include "base/mem.h"
#include "base/rng.h"
#include "format/weights.h"
#include "text/json.h"

struct shape {
    const char *name;
    int layers, hidden, ffn, heads, kv_heads, dim;
    int k_heads, v_heads, dk, dv, taps;
    int vocab, ctx;
    bool tied;
    int experts, used, shared; // all, of a token, width of the shared one; ffn is the width of each. 0: an MLP
};

static const struct shape shapes[] = {
    {"tiny", 4, 128, 256, 4, 2, 32, 2, 4, 32, 32, 4, 512, 8192, true, 0, 0, 0},
    {"thin-0.8B", 4, 1024, 3584, 8, 2, 256, 16, 16, 128, 128, 4, 248320, 262144, true, 0, 0, 0},
    {"tiny-moe", 4, 128, 64, 4, 2, 32, 2, 4, 32, 32, 4, 512, 8192, true, 12, 3, 128},
    {"thin-35B-A3B", 4, 2048, 512, 16, 2, 256, 16, 32, 128, 128, 4, 248320, 262144, false, 256, 8, 512},
    {"thin-27B", 4, 5120, 17408, 24, 4, 256, 16, 48, 128, 128, 4, 248320, 262144, false, 0, 0, 0},
    {"0.8B", 24, 1024, 3584, 8, 2, 256, 16, 16, 128, 128, 4, 248320, 262144, true, 0, 0, 0},
};

enum format { BF16, MLX4, Q4_0 };
enum { GROUP = 64, AGREE_CYCLE = 94, AGREE_STEP = 7 }; // the first 94 ids are the printable ASCII characters

enum role { MATRIX, EMBED, HEAD, FC, NORM, OUT_NORM, PLAIN_NORM, CONV, DECAY, DT_BIAS };

struct tensor {
    char hf[96], gguf[64]; // hf: without the prefix that says where the text model lies
    enum role role;
    int64_t out, in; // vectors: in = 1
    int experts;     // whose matrices are stacked in out, 0: it is one matrix
    double std;
    uint64_t offset[3]; // weight, scales, biases
};

enum { MAX_TENSORS = 2048, MAX_LAYERS = 400 };

struct job {
    struct shape s;
    enum format f;
    bool agree;
    uint64_t seed;
    struct tensor *t;
    int n;
    float *z;          // [65536] quantiles of the normal distribution
    uint8_t nibble[256]; // the same in 4 bits, a third of the deviation apart
    FILE *out;
};

/* ---- random values ------------------------------------------------------------------------------------------- */

enum { DRAW_VALUES, DRAW_SCALES };

static void draw(const struct job *j, int tensor, int purpose, int64_t row, int64_t block, uint32_t out[4])
{
    uint32_t key[2] = {(uint32_t)j->seed, (uint32_t)(j->seed >> 32)};
    uint32_t ctr[4] = {(uint32_t)block, (uint32_t)row, (uint32_t)(row >> 32), (uint32_t)tensor << 1 | (uint32_t)purpose};
    philox4x32(key, ctr, out);
}

/* Acklam's rational approximation of the inverse normal distribution, relative error 1e-9. */
static double quantile(double p)
{
    static const double a[] = {-3.969683028665376e+01, 2.209460984245205e+02, -2.759285104469687e+02,
                               1.383577518672690e+02, -3.066479806614716e+01, 2.506628277459239e+00};
    static const double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02, 6.680131188771972e+01,
                               -1.328068155288572e+01};
    static const double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                               -2.549732539343734e+00, 4.374664141464968e+00, 2.938163982698783e+00};
    static const double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00};
    if (p > 0.5)
        return -quantile(1 - p);
    if (p < 0.02425) {
        double q = sqrt(-2 * log64(p));
        return (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
               ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
    }
    double q = p - 0.5, r = q * q;
    return (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
           (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
}

static void fill_tables(struct job *j)
{
    j->z = xmalloc(65536 * sizeof *j->z);
    for (int i = 0; i < 65536; i++)
        j->z[i] = (float)quantile((i + 0.5) / 65536);
    for (int i = 0; i < 256; i++) {
        double v = quantile((i + 0.5) / 256) * 3 + 8; // to whole numbers by truncation: 8 is +0.5 above the middle
        j->nibble[i] = (uint8_t)(v < 0 ? 0 : v > 15 ? 15 : v);
    }
}

static double normal(const struct job *j, int tensor, int64_t i)
{
    uint32_t r[4];
    draw(j, tensor, DRAW_VALUES, i, 0, r);
    return (double)j->z[r[0] >> 16];
}

/* ---- what a tensor holds --------------------------------------------------------------------------------------- */

/* Row of the random source behind a row of the matrix, and the scale of its values. */
static int64_t source_row(const struct job *j, const struct tensor *t, int64_t row, double *std)
{
    *std = t->std;
    if (!j->agree || (t->role != EMBED && t->role != HEAD))
        return row;
    if (t->role == EMBED)
        return row % AGREE_CYCLE;
    if (row < AGREE_CYCLE)
        return (row + AGREE_CYCLE - AGREE_STEP) % AGREE_CYCLE;
    *std = 0.1 * t->std;
    return row;
}

/* The LM head of an agreeing model is drawn as its embedding is. */
static int source_tensor(const struct job *j, const struct tensor *t) { return j->agree && t->role == HEAD ? 0 : (int)(t - j->t); }

/* The embedding half of fc is the identity in an agreeing model. */
static bool is_identity(const struct job *j, const struct tensor *t, int64_t column)
{
    return j->agree && t->role == FC && column < t->out;
}

/* Elements of small tensors, in the order of HF files. */
static double element(const struct job *j, const struct tensor *t, int64_t i)
{
    int id = (int)(t - j->t);
    double z = normal(j, id, i);
    int64_t n = t->out, Kd = (int64_t)j->s.k_heads * j->s.dk;
    switch (t->role) {
    case NORM:
        return t->std + 0.1 * z + (j->f == BF16 ? 0 : 1);
    case OUT_NORM: // random signs: else a tied head would repeat the token that the residual stream begins with
        return (j->agree || z > 0 ? 1 + 0.1 * z : 0.1 * z - 1) - (j->f == BF16 ? 1 : 0);
    case PLAIN_NORM:
        return 1 + 0.1 * z;
    case CONV: { // the newest tap weighs most; one channel of each key and value head is nearly dead
        int64_t ch = i / j->s.taps, tap = i % j->s.taps;
        double w = (tap == j->s.taps - 1 ? 0.7 : 0.3) * z;
        if (ch >= Kd && ch < 2 * Kd && ch % j->s.dk == 5)
            return w * 0x1p-70;
        return ch >= 2 * Kd && (ch - 2 * Kd) % j->s.dv == 3 ? w * 0x1p-60 : w;
    }
    case DECAY: { // log of A, from 0.0025 to 20: memories of half a token to a hundred thousand
        double a_log = -6 + 9.0 * (double)i / (double)(n > 1 ? n - 1 : 1);
        return j->f == Q4_0 ? -exp64(a_log) : a_log;
    }
    case DT_BIAS:
        return -5 + 7.0 * (double)(i * 5 % n) / (double)n + 0.1 * z;
    default:
        return t->std * z;
    }
}

/* ---- the list of tensors ----------------------------------------------------------------------------------------- */

static struct tensor *add(struct job *j, enum role role, int64_t out, int64_t in, double std)
{
    struct tensor *t = &j->t[j->n++];
    *t = (struct tensor){.role = role, .out = out, .in = in, .std = std};
    return t;
}

/* One tensor of a layer; either name follows the layer's prefix. */
static void layer_tensor(struct job *j, const char *hf_prefix, int block, const char *hf, const char *gguf, enum role role, int64_t out,
                         int64_t in, double std)
{
    struct tensor *t = add(j, role, out, in, std);
    snprintf(t->hf, sizeof t->hf, "%s%s", hf_prefix, hf);
    snprintf(t->gguf, sizeof t->gguf, "blk.%d.%s", block, gguf);
}

static void global_tensor(struct job *j, const char *hf, const char *gguf, enum role role, int64_t out, int64_t in, double std)
{
    struct tensor *t = add(j, role, out, in, std);
    snprintf(t->hf, sizeof t->hf, "%s", hf);
    snprintf(t->gguf, sizeof t->gguf, "%s", gguf);
}

static int interval_of(const struct shape *s) { return s->layers < 4 ? s->layers : 4; }
static bool is_full(const struct shape *s, int layer) { return (layer + 1) % interval_of(s) == 0; }

static void list_attention(struct job *j, const char *p, int b, double in_std, double out_gain)
{
    const struct shape *s = &j->s;
    int64_t H = s->hidden, q = (int64_t)s->heads * s->dim, kv = (int64_t)s->kv_heads * s->dim;
    layer_tensor(j, p, b, "self_attn.q_proj.weight", "attn_q.weight", MATRIX, 2 * q, H, in_std);
    layer_tensor(j, p, b, "self_attn.k_proj.weight", "attn_k.weight", MATRIX, kv, H, in_std);
    layer_tensor(j, p, b, "self_attn.v_proj.weight", "attn_v.weight", MATRIX, kv, H, in_std);
    layer_tensor(j, p, b, "self_attn.o_proj.weight", "attn_output.weight", MATRIX, H, q, out_gain / sqrt((double)q));
    /* 1.5 each: attention that looks at some tokens more than at others */
    layer_tensor(j, p, b, "self_attn.q_norm.weight", "attn_q_norm.weight", NORM, s->dim, 1, 0.5);
    layer_tensor(j, p, b, "self_attn.k_norm.weight", "attn_k_norm.weight", NORM, s->dim, 1, 0.5);
}

static void list_gdn(struct job *j, const char *p, int b, double in_std, double out_gain)
{
    const struct shape *s = &j->s;
    int64_t H = s->hidden, V = (int64_t)s->v_heads * s->dv, C = 2 * (int64_t)s->k_heads * s->dk + V;
    layer_tensor(j, p, b, "linear_attn.in_proj_qkv.weight", "attn_qkv.weight", MATRIX, C, H, in_std);
    layer_tensor(j, p, b, "linear_attn.in_proj_z.weight", "attn_gate.weight", MATRIX, V, H, in_std);
    layer_tensor(j, p, b, "linear_attn.in_proj_b.weight", "ssm_beta.weight", MATRIX, s->v_heads, H, 1.5 * in_std);
    layer_tensor(j, p, b, "linear_attn.in_proj_a.weight", "ssm_alpha.weight", MATRIX, s->v_heads, H, in_std);
    layer_tensor(j, p, b, "linear_attn.out_proj.weight", "ssm_out.weight", MATRIX, H, V, out_gain / sqrt((double)V));
    layer_tensor(j, p, b, "linear_attn.conv1d.weight", "ssm_conv1d.weight", CONV, C, s->taps, 1);
    layer_tensor(j, p, b, "linear_attn.A_log", "ssm_a", DECAY, s->v_heads, 1, 1);
    layer_tensor(j, p, b, "linear_attn.dt_bias", "ssm_dt.bias", DT_BIAS, s->v_heads, 1, 1);
    layer_tensor(j, p, b, "linear_attn.norm.weight", "ssm_norm.weight", PLAIN_NORM, s->dv, 1, 1);
}

static void list_experts(struct job *j, const char *p, int b, double in_std, double out_gain)
{
    const struct shape *s = &j->s;
    int64_t H = s->hidden, all = (int64_t)s->experts * s->ffn;
    layer_tensor(j, p, b, "mlp.gate.weight", "", MATRIX, s->experts, H, in_std);
    layer_tensor(j, p, b, "mlp.shared_expert_gate.weight", "", MATRIX, 1, H, in_std);
    layer_tensor(j, p, b, "mlp.shared_expert.gate_proj.weight", "", MATRIX, s->shared, H, in_std);
    layer_tensor(j, p, b, "mlp.shared_expert.up_proj.weight", "", MATRIX, s->shared, H, in_std);
    layer_tensor(j, p, b, "mlp.shared_expert.down_proj.weight", "", MATRIX, H, s->shared, out_gain / sqrt((double)s->shared));
    int first = j->n;
    layer_tensor(j, p, b, "mlp.switch_mlp.gate_proj.weight", "", MATRIX, all, H, in_std);
    layer_tensor(j, p, b, "mlp.switch_mlp.up_proj.weight", "", MATRIX, all, H, in_std);
    layer_tensor(j, p, b, "mlp.switch_mlp.down_proj.weight", "", MATRIX, s->experts * H, s->ffn, out_gain / sqrt((double)s->ffn));
    for (int i = first; i < j->n; i++)
        j->t[i].experts = s->experts;
}

static void list_layer(struct job *j, const char *p, int b, bool full, double out_gain)
{
    const struct shape *s = &j->s;
    int64_t H = s->hidden;
    double in_std = 1 / sqrt((double)H);
    layer_tensor(j, p, b, "input_layernorm.weight", "attn_norm.weight", NORM, H, 1, 0);
    layer_tensor(j, p, b, "post_attention_layernorm.weight", "post_attention_norm.weight", NORM, H, 1, 0);
    if (full)
        list_attention(j, p, b, in_std, out_gain);
    else
        list_gdn(j, p, b, in_std, out_gain);
    if (s->experts) {
        list_experts(j, p, b, in_std, out_gain);
        return;
    }
    layer_tensor(j, p, b, "mlp.gate_proj.weight", "ffn_gate.weight", MATRIX, s->ffn, H, in_std);
    layer_tensor(j, p, b, "mlp.up_proj.weight", "ffn_up.weight", MATRIX, s->ffn, H, in_std);
    layer_tensor(j, p, b, "mlp.down_proj.weight", "ffn_down.weight", MATRIX, H, s->ffn, out_gain / sqrt((double)s->ffn));
}

static void list_tensors(struct job *j)
{
    const struct shape *s = &j->s;
    int64_t H = s->hidden;
    /* Logits deviate by 2; what a block adds is as large as the embedding, or a tenth where tokens must agree. */
    double embed_std = 2 / sqrt((double)H), out_gain = (j->agree ? 0.1 : 2) * embed_std;
    char p[32];
    j->t = xcalloc(MAX_TENSORS + 24 * MAX_LAYERS, sizeof *j->t);
    global_tensor(j, "embed_tokens.weight", "token_embd.weight", EMBED, s->vocab, H, embed_std);
    for (int i = 0; i < s->layers; i++) {
        snprintf(p, sizeof p, "layers.%d.", i);
        list_layer(j, p, i, is_full(s, i), out_gain);
    }
    global_tensor(j, "norm.weight", "output_norm.weight", OUT_NORM, H, 1, 0);
    if (!s->tied)
        global_tensor(j, "lm_head.weight", "output.weight", HEAD, s->vocab, H, embed_std);
    double fc_std = j->agree ? 0.02 / sqrt(2.0 * (double)H) : 1 / sqrt(2.0 * (double)H);
    layer_tensor(j, "mtp.", s->layers, "fc.weight", "nextn.eh_proj.weight", FC, H, 2 * H, fc_std);
    layer_tensor(j, "mtp.", s->layers, "pre_fc_norm_embedding.weight", "nextn.enorm.weight", NORM, H, 1, 0);
    layer_tensor(j, "mtp.", s->layers, "pre_fc_norm_hidden.weight", "nextn.hnorm.weight", NORM, H, 1, 0);
    list_layer(j, "mtp.layers.0.", s->layers, true, j->agree ? 0.1 : 1);
    layer_tensor(j, "mtp.", s->layers, "norm.weight", "nextn.shared_head_norm.weight", OUT_NORM, H, 1, 0);
}

static bool is_matrix(const struct tensor *t) { return t->role <= FC; }

/* ---- writing data -------------------------------------------------------------------------------------------------- */

static void put(struct job *j, const void *p, size_t n)
{
    if (fwrite(p, 1, n, j->out) != n) {
        fprintf(stderr, "mkmodel: cannot write: %s\n", strerror(errno));
        exit(1);
    }
}

static void write_bf16_matrix(struct job *j, const struct tensor *t)
{
    uint16_t *row = xmalloc((size_t)t->in * 2);
    for (int64_t r = 0; r < t->out; r++) {
        double std;
        int64_t src = source_row(j, t, r, &std);
        float f = (float)std;
        for (int64_t c = 0; c < t->in; c += 8) {
            uint32_t v[4];
            draw(j, source_tensor(j, t), DRAW_VALUES, src, c / 8, v);
            for (int k = 0; k < 8 && c + k < t->in; k++)
                row[c + k] = is_identity(j, t, c + k) ? f32_to_bf16(c + k == r) : f32_to_bf16(f * j->z[v[k / 2] >> 16 * (k % 2) & 0xffff]);
        }
        put(j, row, (size_t)t->in * 2);
    }
    free(row);
}

/* 32 codes of a row, one a byte. */
static void codes32(const struct job *j, const struct tensor *t, int64_t src, int64_t first, uint8_t out[32])
{
    for (int half = 0; half < 2; half++) {
        uint32_t v[4];
        draw(j, source_tensor(j, t), DRAW_VALUES, src, first / 16 + half, v);
        for (int k = 0; k < 16; k++)
            out[16 * half + k] = j->nibble[v[k / 4] >> 8 * (k % 4) & 0xff];
    }
}

/* Scale of a group: a third of the deviation, give or take 30 %, of either sign as quantizers leave it. */
static float group_scale(const struct job *j, const struct tensor *t, int64_t src, int64_t group, double std, float *offset)
{
    uint32_t v[4];
    draw(j, source_tensor(j, t), DRAW_SCALES, src, group / 2, v);
    uint32_t u = v[2 * (group & 1)], w = v[2 * (group & 1) + 1];
    float s = (float)(std / 3) * (0.7f + 0.6f * ((float)(u >> 8) * 0x1p-24f));
    *offset = 7 + (float)(w >> 8) * 0x1p-24f; // where zero lies among the codes
    return u & 1 ? s : -s;
}

static void mlx_params(const struct job *j, const struct tensor *t, int64_t r, int64_t group, uint16_t *scale, uint16_t *bias)
{
    double std;
    int64_t src = source_row(j, t, r, &std);
    float offset, s = group_scale(j, t, src, group, std, &offset);
    if (is_identity(j, t, group * GROUP)) {
        *scale = f32_to_bf16(1.0f / 15);
        *bias = 0;
        return;
    }
    *scale = f32_to_bf16(s);
    *bias = f32_to_bf16(-offset * bf16_to_f32(*scale));
}

static void write_mlx_matrix(struct job *j, const struct tensor *t)
{
    int64_t groups = t->in / GROUP;
    uint8_t *row = xmalloc((size_t)t->in / 2), q[32];
    uint16_t *params = xmalloc((size_t)groups * 2 * sizeof *params);
    for (int64_t r = 0; r < t->out; r++) {
        double std;
        int64_t src = source_row(j, t, r, &std);
        for (int64_t c = 0; c < t->in; c += 32) {
            if (is_identity(j, t, c))
                for (int k = 0; k < 32; k++)
                    q[k] = c + k == r ? 15 : 0;
            else
                codes32(j, t, src, c, q);
            for (int k = 0; k < 16; k++)
                row[c / 2 + k] = (uint8_t)(q[2 * k] | q[2 * k + 1] << 4);
        }
        put(j, row, (size_t)t->in / 2);
    }
    for (int part = 0; part < 2; part++)
        for (int64_t r = 0; r < t->out; r++) {
            for (int64_t g = 0; g < groups; g++)
                mlx_params(j, t, r, g, &params[part ? groups + g : g], &params[part ? g : groups + g]);
            put(j, params, (size_t)groups * sizeof *params);
        }
    free(row);
    free(params);
}

static void write_q4_0_matrix(struct job *j, const struct tensor *t)
{
    uint8_t *row = xmalloc((size_t)t->in / 32 * 18), q[32];
    for (int64_t r = 0; r < t->out; r++) {
        double std;
        int64_t src = source_row(j, t, r, &std);
        for (int64_t c = 0; c < t->in; c += 32) {
            uint8_t *b = row + c / 32 * 18;
            float offset, d = group_scale(j, t, src, c / 32, std, &offset);
            codes32(j, t, src, c, q);
            if (is_identity(j, t, c)) {
                d = -0.125f;
                for (int k = 0; k < 32; k++)
                    q[k] = c + k == r ? 0 : 8;
            }
            uint16_t h = f32_to_f16(d);
            memcpy(b, &h, 2);
            for (int k = 0; k < 16; k++)
                b[2 + k] = (uint8_t)(q[k] | q[k + 16] << 4);
        }
        put(j, row, (size_t)t->in / 32 * 18);
    }
    free(row);
}

static bool is_f32(const struct job *j, const struct tensor *t)
{
    return !is_matrix(t) && (j->f == Q4_0 || t->role == DECAY || (j->f == BF16 && t->role == PLAIN_NORM));
}

static void write_small(struct job *j, const struct tensor *t)
{
    for (int64_t i = 0; i < t->out * t->in; i++) {
        float v = (float)element(j, t, i);
        uint16_t h = f32_to_bf16(v);
        put(j, is_f32(j, t) ? (const void *)&v : &h, is_f32(j, t) ? 4 : 2);
    }
}

static void write_tensor(struct job *j, const struct tensor *t)
{
    if (!is_matrix(t))
        write_small(j, t);
    else if (j->f == BF16)
        write_bf16_matrix(j, t);
    else if (j->f == MLX4)
        write_mlx_matrix(j, t);
    else
        write_q4_0_matrix(j, t);
}

/* ---- tokenizer --------------------------------------------------------------------------------------------------------- */

static const char *const merges[][2] = {
    {"Ġ", "t"}, {"h", "e"}, {"i", "n"}, {"Ġ", "a"}, {"r", "e"}, {"o", "n"}, {"Ġt", "he"}, {"e", "r"}, {"Ġ", "s"}, {"a", "t"},
    {"o", "r"}, {"e", "n"}, {"Ġ", "c"}, {"Ġ", "w"}, {"i", "s"}, {"in", "g"}, {"Ġ", "o"}, {"e", "s"}, {"Ġ", "f"}, {"a", "n"},
    {"Ġ", "b"}, {"Ġ", "p"}, {"Ġa", "n"}, {"Ġan", "d"}, {"Ġ", "in"}, {"e", "d"}, {"a", "l"}, {"Ġo", "f"}, {"Ġt", "o"}, {"Ġ", "Ġ"},
};
enum { N_MERGES = sizeof merges / sizeof *merges, N_PLAIN = 256 + N_MERGES };

/* Qwen3.5's added tokens, in the order of their ids. */
static const struct {
    const char *text;
    bool special;
} added[] = {
    {"<|endoftext|>", true}, {"<|im_start|>", true}, {"<|im_end|>", true}, {"<tool_call>", false}, {"</tool_call>", false},
    {"<tool_response>", false}, {"</tool_response>", false}, {"<think>", false}, {"</think>", false},
};
enum { N_ADDED = sizeof added / sizeof *added, ENDOFTEXT = N_PLAIN, IM_END = N_PLAIN + 2, MIN_VOCAB = N_PLAIN + N_ADDED };

static const char pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
                              " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|"
                              "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static const char chat_template[] =
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "{%- endif %}\n";

/* Text of a token as vocabularies spell it: byte-level code points. */
static void token_text(int id, char out[16])
{
    if (id >= 256) {
        snprintf(out, 16, "%s%s", merges[id - 256][0], merges[id - 256][1]);
        return;
    }
    static const int ranges[3][2] = {{33, 126}, {161, 172}, {174, 255}};
    int cp = -1, n = 0;
    for (int r = 0; r < 3 && cp < 0; r++) {
        int len = ranges[r][1] - ranges[r][0] + 1;
        if (id < n + len)
            cp = ranges[r][0] + id - n;
        n += len;
    }
    if (cp < 0)
        cp = 256 + id - n; // the bytes that don't stand for themselves, in order
    n = 0;
    if (cp < 0x80) {
        out[n++] = (char)cp;
    } else {
        out[n++] = (char)(0xc0 | cp >> 6);
        out[n++] = (char)(0x80 | (cp & 0x3f));
    }
    out[n] = 0;
}

static void str(struct buf *b, const char *s) { json_write_str(b, s, strlen(s)); }

static void tokenizer_json(struct buf *b)
{
    char text[16];
    buf_str(b, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [");
    for (int i = 0; i < N_ADDED; i++) {
        buf_fmt(b, "%s\n  {\"id\": %d, \"content\": ", i ? "," : "", N_PLAIN + i);
        str(b, added[i].text);
        buf_fmt(b, ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": %s}",
                added[i].special ? "true" : "false");
    }
    buf_str(b, "],\n \"normalizer\": {\"type\": \"NFC\"},\n \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [\n"
               "  {\"type\": \"Split\", \"pattern\": {\"Regex\": ");
    str(b, pattern);
    buf_str(b, "}, \"behavior\": \"Isolated\", \"invert\": false},\n"
               "  {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}]},\n"
               " \"post_processor\": null,\n"
               " \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true},\n"
               " \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null,\n"
               "  \"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": false, \"vocab\": {");
    for (int i = 0; i < N_PLAIN; i++) {
        token_text(i, text);
        buf_str(b, i ? ", " : "");
        str(b, text);
        buf_fmt(b, ": %d", i);
    }
    buf_str(b, "}, \"merges\": [");
    for (int i = 0; i < N_MERGES; i++) {
        buf_str(b, i ? ", [" : "[");
        str(b, merges[i][0]);
        buf_str(b, ", ");
        str(b, merges[i][1]);
        buf_chr(b, ']');
    }
    buf_str(b, "]}}\n");
}

/* ---- Hugging Face and MLX folders ---------------------------------------------------------------------------------------- */

static void text_config(const struct job *j, struct buf *b)
{
    const struct shape *s = &j->s;
    const char *moe = s->experts ? "_moe" : "";
    buf_fmt(b, "{\"architectures\": [\"Qwen3_5%sForCausalLM\"], \"model_type\": \"qwen3_5%s_text\", \"hidden_act\": \"silu\",\n"
               " \"attention_bias\": false, \"attn_output_gate\": true, \"dtype\": \"bfloat16\", \"rms_norm_eps\": 1e-06,\n"
               " \"vocab_size\": %d, \"hidden_size\": %d, \"%sintermediate_size\": %d, \"num_hidden_layers\": %d,\n"
               " \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d, \"full_attention_interval\": %d,\n",
            s->experts ? "Moe" : "", moe, s->vocab, s->hidden, s->experts ? "moe_" : "", s->ffn, s->layers, s->heads, s->kv_heads, s->dim,
            interval_of(s));
    if (s->experts)
        buf_fmt(b, " \"num_experts\": %d, \"num_experts_per_tok\": %d, \"shared_expert_intermediate_size\": %d,\n", s->experts, s->used, s->shared);
    buf_str(b, " \"layer_types\": [");
    for (int i = 0; i < s->layers; i++)
        buf_fmt(b, "%s\"%s\"", i ? ", " : "", is_full(s, i) ? "full_attention" : "linear_attention");
    buf_fmt(b, "],\n \"linear_num_key_heads\": %d, \"linear_num_value_heads\": %d, \"linear_key_head_dim\": %d,\n"
               " \"linear_value_head_dim\": %d, \"linear_conv_kernel_dim\": %d, \"mamba_ssm_dtype\": \"float32\",\n"
               " \"max_position_embeddings\": %d, \"mtp_num_hidden_layers\": 1, \"mtp_use_dedicated_embeddings\": false,\n"
               " \"tie_word_embeddings\": %s, \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000000.0,\n"
               " \"partial_rotary_factor\": 0.25}, \"eos_token_id\": %d, \"bos_token_id\": null}",
            s->k_heads, s->v_heads, s->dk, s->dv, s->taps, s->ctx, s->tied ? "true" : "false", ENDOFTEXT);
}

static void config_json(const struct job *j, struct buf *b)
{
    if (j->f == BF16) {
        text_config(j, b);
        buf_chr(b, '\n');
        return;
    }
    static const char quant[] = "{\"group_size\": 64, \"bits\": 4, \"mode\": \"affine\"}";
    buf_fmt(b, "{\"architectures\": [\"Qwen3_5%sForConditionalGeneration\"], \"model_type\": \"qwen3_5%s\",\n"
               "\"eos_token_id\": [%d, %d], \"tie_word_embeddings\": %s,\n\"quantization\": %s,\n"
               "\"quantization_config\": %s,\n\"text_config\": ",
            j->s.experts ? "Moe" : "", j->s.experts ? "_moe" : "", IM_END, ENDOFTEXT, j->s.tied ? "true" : "false", quant, quant);
    text_config(j, b);
    buf_str(b, "}\n");
}

static void hf_name(const struct job *j, const struct tensor *t, char out[160])
{
    bool head = !strncmp(t->hf, "mtp.", 4), lm = t->role == HEAD;
    const char *prefix = j->f == BF16 ? (head || lm ? "" : "model.") : head || lm ? "language_model." : "language_model.model.";
    snprintf(out, 160, "%s%s", prefix, t->hf);
}

static void header_entry(struct buf *b, const char *name, const char *dtype, int64_t d0, int64_t d1, int64_t d2, uint64_t *at,
                         uint64_t bytes)
{
    buf_str(b, ",\n");
    str(b, name);
    buf_fmt(b, ":{\"dtype\":\"%s\",\"shape\":[%lld", dtype, (long long)d0);
    if (d1)
        buf_fmt(b, ",%lld", (long long)d1);
    if (d2)
        buf_fmt(b, ",%lld", (long long)d2);
    buf_fmt(b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)*at, (unsigned long long)(*at + bytes));
    *at += bytes;
}

/* A matrix or a stack of them, whose rows hold one element for `columns` of the model's. */
static void matrix_entry(struct buf *b, const char *name, const char *dtype, const struct tensor *t, int columns, uint64_t *at, uint64_t bytes)
{
    if (t->experts)
        header_entry(b, name, dtype, t->experts, t->out / t->experts, t->in / columns, at, bytes);
    else
        header_entry(b, name, dtype, t->out, t->in / columns, 0, at, bytes);
}

static void safetensors_header(const struct job *j, struct buf *b)
{
    uint64_t at = 0;
    buf_fmt(b, "{\"__metadata__\":{\"format\":\"%s\"}", j->f == BF16 ? "pt" : "mlx");
    for (int i = 0; i < j->n; i++) {
        const struct tensor *t = &j->t[i];
        char name[160];
        hf_name(j, t, name);
        uint64_t n = (uint64_t)t->out * (uint64_t)t->in;
        const char *dtype = is_f32(j, t) ? "F32" : "BF16";
        if (t->role == CONV) {
            header_entry(b, name, dtype, t->out, j->f == BF16 ? 1 : t->in, j->f == BF16 ? t->in : 1, &at, 2 * n);
        } else if (!is_matrix(t)) {
            header_entry(b, name, dtype, t->out, 0, 0, &at, (is_f32(j, t) ? 4 : 2) * n);
        } else if (j->f == BF16) {
            header_entry(b, name, dtype, t->out, t->in, 0, &at, 2 * n);
        } else {
            size_t stem = strlen(name) - strlen("weight");
            matrix_entry(b, name, "U32", t, 8, &at, n / 2);
            snprintf(name + stem, sizeof name - stem, "scales");
            matrix_entry(b, name, "BF16", t, GROUP, &at, n / GROUP * 2);
            snprintf(name + stem, sizeof name - stem, "biases");
            matrix_entry(b, name, "BF16", t, GROUP, &at, n / GROUP * 2);
        }
    }
    buf_chr(b, '}');
    while (b->n % 64 != 56) // the data begin at a multiple of 64
        buf_chr(b, ' ');
}

static void write_text(const char *dir, const char *name, const char *text, size_t n)
{
    struct err e = {0};
    char *path = path_join(dir, name);
    if (file_write(path, text, n, &e)) {
        fprintf(stderr, "mkmodel: %s\n", e.msg);
        exit(1);
    }
    free(path);
}

static void open_out(struct job *j, const char *path)
{
    j->out = fopen(path, "wb");
    if (!j->out) {
        fprintf(stderr, "mkmodel: %s: %s\n", path, strerror(errno));
        exit(1);
    }
    setvbuf(j->out, NULL, _IOFBF, 1 << 20);
}

static void close_out(struct job *j)
{
    if (fclose(j->out)) {
        fprintf(stderr, "mkmodel: cannot write: %s\n", strerror(errno));
        exit(1);
    }
}

static void write_folder(struct job *j, const char *dir)
{
    struct buf b;
    if (mkdir(dir, 0777) && errno != EEXIST) {
        fprintf(stderr, "mkmodel: %s: %s\n", dir, strerror(errno));
        exit(1);
    }
    char *path = path_join(dir, "model.safetensors");
    buf_init(&b, (size_t)16 << 20);
    safetensors_header(j, &b);
    open_out(j, path);
    uint64_t n = b.n;
    put(j, &n, 8);
    put(j, b.p, b.n);
    for (int i = 0; i < j->n; i++)
        write_tensor(j, &j->t[i]);
    close_out(j);
    free(path);
    buf_clear(&b);
    tokenizer_json(&b);
    write_text(dir, "tokenizer.json", b.p, b.n);
    buf_clear(&b);
    buf_fmt(&b, "{\"eos_token_id\": [%d, %d], \"pad_token_id\": %d, \"do_sample\": true, \"temperature\": 0.7, \"top_k\": 20, "
                "\"top_p\": 0.8}\n",
            IM_END, ENDOFTEXT, ENDOFTEXT);
    write_text(dir, "generation_config.json", b.p, b.n);
    buf_clear(&b);
    buf_str(&b, "{\"tokenizer_class\": \"Qwen2TokenizerFast\", \"bos_token\": null, \"eos_token\": \"<|im_end|>\",\n"
                " \"pad_token\": \"<|endoftext|>\", \"unk_token\": null, \"add_bos_token\": false,\n"
                " \"clean_up_tokenization_spaces\": false}\n");
    write_text(dir, "tokenizer_config.json", b.p, b.n);
    write_text(dir, "chat_template.jinja", chat_template, sizeof chat_template - 1);
    buf_clear(&b);
    config_json(j, &b); // last: a folder with it is complete
    write_text(dir, "config.json", b.p, b.n);
    buf_free(&b);
}

/* ---- GGUF ------------------------------------------------------------------------------------------------------------------ */

enum { KV_U32 = 4, KV_I32 = 5, KV_F32 = 6, KV_BOOL = 7, KV_STR = 8, KV_ARR = 9 };

struct gguf_head {
    struct buf b;
    uint64_t n_kv;
};

static void raw(struct gguf_head *h, const void *p, size_t n) { buf_add(&h->b, p, n); }

static void gstr(struct gguf_head *h, const char *s)
{
    uint64_t n = strlen(s);
    raw(h, &n, 8);
    raw(h, s, (size_t)n);
}

static void kv_key(struct gguf_head *h, const char *key, int32_t type)
{
    gstr(h, key);
    raw(h, &type, 4);
    h->n_kv++;
}

static void kv_u32(struct gguf_head *h, const char *key, uint32_t v)
{
    kv_key(h, key, KV_U32);
    raw(h, &v, 4);
}

static void kv_f32(struct gguf_head *h, const char *key, float v)
{
    kv_key(h, key, KV_F32);
    raw(h, &v, 4);
}

static void kv_str(struct gguf_head *h, const char *key, const char *s)
{
    kv_key(h, key, KV_STR);
    gstr(h, s);
}

static void kv_array(struct gguf_head *h, const char *key, int32_t type, uint64_t n)
{
    kv_key(h, key, KV_ARR);
    raw(h, &type, 4);
    raw(h, &n, 8);
}

static void gguf_tokenizer(const struct job *j, struct gguf_head *h)
{
    char text[32];
    kv_str(h, "tokenizer.ggml.model", "gpt2");
    kv_str(h, "tokenizer.ggml.pre", "qwen35");
    kv_array(h, "tokenizer.ggml.tokens", KV_STR, (uint64_t)j->s.vocab);
    for (int i = 0; i < j->s.vocab; i++) {
        if (i < N_PLAIN)
            token_text(i, text);
        else if (i < MIN_VOCAB)
            snprintf(text, sizeof text, "%s", added[i - N_PLAIN].text);
        else
            snprintf(text, sizeof text, "[PAD%d]", i);
        gstr(h, text);
    }
    kv_array(h, "tokenizer.ggml.token_type", KV_I32, (uint64_t)j->s.vocab);
    for (int i = 0; i < j->s.vocab; i++) { // normal, control, user-defined, unused
        int32_t type = i < N_PLAIN ? 1 : i >= MIN_VOCAB ? 5 : added[i - N_PLAIN].special ? 3 : 4;
        raw(h, &type, 4);
    }
    kv_array(h, "tokenizer.ggml.merges", KV_STR, N_MERGES);
    for (int i = 0; i < N_MERGES; i++) {
        snprintf(text, sizeof text, "%s %s", merges[i][0], merges[i][1]);
        gstr(h, text);
    }
    kv_u32(h, "tokenizer.ggml.eos_token_id", IM_END);
    kv_u32(h, "tokenizer.ggml.padding_token_id", ENDOFTEXT);
    kv_key(h, "tokenizer.ggml.add_bos_token", KV_BOOL);
    raw(h, "", 1);
    kv_str(h, "tokenizer.chat_template", chat_template);
}

static void gguf_metadata(const struct job *j, struct gguf_head *h)
{
    const struct shape *s = &j->s;
    static const int32_t sections[4] = {11, 11, 10, 0};
    kv_str(h, "general.architecture", "qwen35");
    kv_str(h, "general.name", s->name);
    kv_u32(h, "general.file_type", 2);
    kv_u32(h, "general.quantization_version", 2);
    kv_u32(h, "qwen35.block_count", (uint32_t)s->layers + 1);
    kv_u32(h, "qwen35.nextn_predict_layers", 1);
    kv_u32(h, "qwen35.context_length", (uint32_t)s->ctx);
    kv_u32(h, "qwen35.embedding_length", (uint32_t)s->hidden);
    kv_u32(h, "qwen35.feed_forward_length", (uint32_t)s->ffn);
    kv_u32(h, "qwen35.vocab_size", (uint32_t)s->vocab);
    kv_u32(h, "qwen35.attention.head_count", (uint32_t)s->heads);
    kv_u32(h, "qwen35.attention.head_count_kv", (uint32_t)s->kv_heads);
    kv_u32(h, "qwen35.attention.key_length", (uint32_t)s->dim);
    kv_u32(h, "qwen35.attention.value_length", (uint32_t)s->dim);
    kv_f32(h, "qwen35.attention.layer_norm_rms_epsilon", 1e-6f);
    kv_f32(h, "qwen35.rope.freq_base", 1e7f);
    kv_u32(h, "qwen35.rope.dimension_count", (uint32_t)s->dim / 4);
    kv_array(h, "qwen35.rope.dimension_sections", KV_I32, 4);
    raw(h, sections, sizeof sections);
    kv_u32(h, "qwen35.ssm.conv_kernel", (uint32_t)s->taps);
    kv_u32(h, "qwen35.ssm.state_size", (uint32_t)s->dk);
    kv_u32(h, "qwen35.ssm.group_count", (uint32_t)s->k_heads);
    kv_u32(h, "qwen35.ssm.time_step_rank", (uint32_t)s->v_heads);
    kv_u32(h, "qwen35.ssm.inner_size", (uint32_t)(s->v_heads * s->dv));
    kv_u32(h, "qwen35.full_attention_interval", (uint32_t)interval_of(s));
    gguf_tokenizer(j, h);
}

static uint64_t gguf_bytes(const struct tensor *t) { return (uint64_t)t->out * (uint64_t)t->in * (is_matrix(t) ? 18 : 32 * 4) / 32; }

static void pad32(struct job *j, uint64_t n)
{
    static const char zero[32];
    put(j, zero, (size_t)(-n & 31));
}

static void write_gguf(struct job *j, const char *path)
{
    struct gguf_head kv = {0}, info = {0};
    uint64_t at = 0, n_tensors = (uint64_t)j->n;
    uint32_t version = 3;
    buf_init(&kv.b, (size_t)64 << 20);
    buf_init(&info.b, (size_t)16 << 20);
    gguf_metadata(j, &kv);
    for (int i = 0; i < j->n; i++) {
        const struct tensor *t = &j->t[i];
        int32_t type = is_matrix(t) ? 2 : 0;
        uint32_t n_dims = t->in > 1 ? 2 : 1;
        int64_t ne[2] = {n_dims == 2 ? t->in : t->out, t->out};
        gstr(&info, t->gguf);
        raw(&info, &n_dims, 4);
        raw(&info, ne, 8 * n_dims);
        raw(&info, &type, 4);
        raw(&info, &at, 8);
        at += (gguf_bytes(t) + 31) & ~(uint64_t)31;
    }
    open_out(j, path);
    put(j, "GGUF", 4);
    put(j, &version, 4);
    put(j, &n_tensors, 8);
    put(j, &kv.n_kv, 8);
    put(j, kv.b.p, kv.b.n);
    put(j, info.b.p, info.b.n);
    pad32(j, 24 + kv.b.n + info.b.n);
    for (int i = 0; i < j->n; i++) {
        write_tensor(j, &j->t[i]);
        pad32(j, gguf_bytes(&j->t[i]));
    }
    close_out(j);
    buf_free(&kv.b);
    buf_free(&info.b);
}

/* ---- command line -------------------------------------------------------------------------------------------------------------- */

static int usage(void)
{
    fprintf(stderr, "usage: mkmodel SHAPE FORMAT OUT [--seed N] [--agree] [--layers N] [--vocab N]\n"
                    "  SHAPE   tiny, thin-0.8B, thin-27B, 0.8B; with experts, as mlx4 alone: tiny-moe, thin-35B-A3B\n"
                    "  FORMAT  bf16 or mlx4: OUT is a folder; q4_0: OUT is a .gguf file\n"
                    "  --agree  trunk and head always predict the same next token\n");
    return 2;
}

static bool number(const char *s, long long min, long long max, long long *out)
{
    char *end;
    errno = 0;
    *out = strtoll(s, &end, 10);
    return !errno && *s && !*end && *out >= min && *out <= max;
}

int main(int argc, char **argv)
{
    struct job j = {.seed = 1};
    const char *word[3];
    int n_words = 0;
    long long layers = 0, vocab = 0, seed = 1;
    for (int i = 1; i < argc; i++) {
        bool has_value = i + 1 < argc;
        if (!strcmp(argv[i], "--agree"))
            j.agree = true;
        else if (!strcmp(argv[i], "--seed") && has_value && number(argv[i + 1], 0, INT64_MAX, &seed))
            i++;
        else if (!strcmp(argv[i], "--layers") && has_value && number(argv[i + 1], 1, MAX_LAYERS, &layers))
            i++;
        else if (!strcmp(argv[i], "--vocab") && has_value && number(argv[i + 1], MIN_VOCAB, 1 << 24, &vocab))
            i++;
        else if (argv[i][0] != '-' && n_words < 3)
            word[n_words++] = argv[i];
        else
            return usage();
    }
    if (n_words < 3)
        return usage();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (!strcmp(word[0], shapes[i].name))
            j.s = shapes[i];
    static const char *const formats[] = {"bf16", "mlx4", "q4_0"};
    int f = 0;
    while (f < 3 && strcmp(word[1], formats[f]))
        f++;
    if (!j.s.name || f == 3 || (j.s.experts && f != MLX4))
        return usage();
    j.f = (enum format)f;
    j.seed = (uint64_t)seed;
    j.s.layers = layers ? (int)layers : j.s.layers;
    j.s.vocab = vocab ? (int)vocab : j.s.vocab;
    j.s.tied = j.s.tied && !j.agree; // the successor map needs a head of its own
    fill_tables(&j);
    list_tensors(&j);
    if (j.f == Q4_0)
        write_gguf(&j, word[2]);
    else
        write_folder(&j, word[2]);
    free(j.z);
    free(j.t);
    return 0;
}
