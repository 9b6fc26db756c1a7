/* A model bound to a backend: one architecture = one small file that declares its state and runs its layers
 * for any number of rows. Nothing above this layer knows an architecture. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "base/mem.h"
#include "format/config.h"
#include "format/weights.h"
#include "kernel/backend.h"

struct model;
struct mtp_head;

struct arch {
    const char *name;     // for people
    const char *types[4]; // model_type values of its configurations
    const char *defaults; // JSON object: what its configurations may leave out, NULL: nothing
    /* Reads dimensions, binds weights, declares state and buffer widths. */
    int (*bind)(struct model *m, struct err *e);
    /* Layers [layer0, layer1) over BUF_X in place. */
    void (*forward)(const struct model *m, const struct step *s, int layer0, int layer1);
    void (*bind_head)(struct model *m, struct mtp_head *h); // its MTP head, by mtp_look and mtp_done; NULL: it never has one
};

enum { MODEL_MAX_SPECS = 512, MODEL_MAX_LAYERS = 400 };

struct model {
    const struct arch *arch;
    struct package *pkg;
    struct backend *be;
    struct arena arena; // layer structs and everything else that lives as long as the model
    int hidden, n_layers, n_vocab, max_ctx; // n_vocab: rows of the embedding
    int heads, kv_heads, head_dim;
    float eps;
    float embed_scale;  // of the embedding's rows, 0: 1
    float softcap;      // of the logits, 0: none
    bool norms_raw;     // stored norm weights lack the +1 of a zero-centred family
    struct bweight *embed, *head;
    struct bvec *final_norm;
    void *layers;       // the architecture's own
    struct state_spec specs[MODEL_MAX_SPECS];
    int n_specs;
    int windows[PAGE_CLASSES], n_windows; // of the page classes
    int widths[BUF_COUNT];
};

/* Takes the package over, also when it fails. The backend stays the caller's. */
MUST_CHECK int model_open(struct model **m, struct package *p, struct backend *be, struct err *e);
void model_close(struct model *m);
/* Embeds the step's tokens, runs all layers, leaves the normed hidden rows in BUF_HIDDEN. */
void model_forward(const struct model *m, const struct step *s);

/* ---- for architecture files ---- */

/* Adds a piece of state, returns its index among the pieces of its kind. */
int model_state(struct model *m, struct state_spec spec);
uint64_t model_kv_bytes(const struct model *m, int64_t n); // keys and values of a sequence of n tokens
void model_width(struct model *m, enum buffer b, int64_t width); // at least
/* A matrix of the package, placed on the backend. NULL with *e set if missing, misshaped or unsupported. */
struct bweight *model_matrix(struct model *m, struct err *e, int64_t out, int64_t in, const char *key, ...)
    __attribute__((format(printf, 5, 6)));
/* Rows [row0, row0 + out) of a matrix of `all` rows. */
struct bweight *model_rows(struct model *m, struct err *e, int64_t all, int64_t row0, int64_t out, int64_t in, const char *key);
/* Adds a stored bias of n values to the matrix's products. */
int model_bias(struct model *m, struct bweight *w, struct err *e, int64_t n, const char *key, ...) __attribute__((format(printf, 5, 6)));
/* A vector; plus is added to every element in f32 (1 for the raw norms of zero-centred families). */
struct bvec *model_vector(struct model *m, struct err *e, int64_t n, float plus, const char *key, ...)
    __attribute__((format(printf, 5, 6)));
/* Angular frequencies of rotary embedding from the configuration: default, linear, llama3, proportional. kind: the
 * layers they are for, ROPE_FULL ("full_attention") or ROPE_SLIDING ("sliding_attention"); most families have one for all. */
#define ROPE_FULL "full_attention"
#define ROPE_SLIDING "sliding_attention"
struct bvec *model_rope_of(struct model *m, int rot_dim, const char *kind, struct err *e);
struct bvec *model_rope(struct model *m, int rot_dim, struct err *e); // for full attention
/* How many dimensions of a head rotate: partial_rotary_factor, here or in rope_parameters, times the head's width. */
int model_rot_dim(const struct model *m, int *rot_dim, struct err *e);
/* The activation that a key of the configuration names, silu where it is absent. */
int model_activation(const struct model *m, const char *key, enum activation *act, struct err *e);
/* Window of a layer, 0: it sees all tokens. By layer_types; where the configuration has none, slides says whether
 * sliding_window, if given, holds for this layer. */
int model_window(const struct model *m, int layer, bool slides, int *window, struct err *e);

/* ---- blocks shared by architectures ---- */

/* x += o_proj(attention(norm(x))); x += mlp(norm(x)). */
struct attn_layer {
    struct bvec *norm_in, *norm_post;
    struct bweight *q, *k, *v, *o;
    struct attn_params p;
};
struct mlp_layer {
    struct bweight *gate, *up, *down;
    enum activation act;
    struct moe_params *moe; // experts in place of the three matrices, NULL: none
};
/* key: prefix of the layer, as "layers.3." or "mtp.layers.0.". p: heads, dims, scale, rope set by the caller, and kv,
 * the owner's, where keys and values are shared: such a layer has no state and no tensors for them. */
int attn_bind(struct model *m, struct attn_layer *l, const char *key, float norm_plus, bool qk_norm, int layer, struct err *e);
/* Declares the layer's keys and values and the widths of its buffers; attn_bind does it. */
void attn_state(struct model *m, struct attn_layer *l, int layer);
/* Biases of the query, key and value products, and of the output product if it has one; after attn_bind. */
int attn_bind_biases(struct model *m, struct attn_layer *l, const char *key, bool has_output, struct err *e);
/* The block on the norm of BUF_X: its output is added to BUF_X, or stored where dst is another buffer. */
void attn_block(const struct model *m, const struct step *s, const struct attn_layer *l, enum buffer dst);
void attn_forward(const struct model *m, const struct step *s, const struct attn_layer *l); // added
int mlp_bind(struct model *m, struct mlp_layer *l, const char *key, int64_t inter, struct err *e);
int mlp_bind_biases(struct model *m, struct mlp_layer *l, const char *key, int64_t inter, struct err *e);
void mlp_block(const struct model *m, const struct step *s, const struct bvec *norm, const struct mlp_layer *l, enum buffer dst);
void mlp_forward(const struct model *m, const struct step *s, const struct bvec *norm, const struct mlp_layer *l); // added

/* Mixtures of experts (model/moe.c). moe_read: sizes from num_experts, used_key, moe_intermediate_size and
 * norm_topk_prob. moe_bind: the experts under key, as "layers.3.mlp.", by the shape that the caller has completed (router,
 * activation, ...); norm: of their input. moe_bind_shared: the shared expert's matrices at key, its scalar gate at gate_key. */
int moe_read(struct model *m, struct moe_params *p, const char *used_key, bool normalize, struct err *e);
struct bweight *moe_router(struct model *m, int n_experts, struct err *e, const char *key);
int moe_bind(struct model *m, struct mlp_layer *l, const struct moe_params *shape, const char *key, struct bvec *norm, struct err *e);
int moe_bind_shared(struct model *m, struct mlp_layer *l, const char *key, int64_t inter, bool gated, const char *gate_key, struct err *e);

enum mtp_health { MTP_ABSENT, MTP_PROMISED, MTP_INCOMPLETE, MTP_DEAD, MTP_OK };
struct mtp_head {
    enum mtp_health health;
    bool suspicious; // norms in another convention than the trunk's: runs, but drafts will fail
    char why[400];   // a sentence on its state and what it means
    struct bvec *norm_e, *norm_h, *norm;
    struct bweight *fc;
    struct attn_layer attn;
    struct mlp_layer mlp;
};

/* The plain pre-norm decoder: layers of one attention block and one MLP. Families read what they have in common into a
 * struct decoder, change in it what sets them (or a layer) apart, and bind layer by layer. */
struct decoder_layer {
    struct attn_layer attn;
    struct mlp_layer mlp;
};
struct decoder {
    int64_t inter;
    enum activation act;
    bool qk_norm, qkv_bias, o_bias, mlp_bias;
    struct attn_params attn;
    const struct moe_params *moe; // of the layer to bind; NULL: an MLP
};
int decoder_read(struct model *m, struct decoder *d, struct err *e); // also binds the final norm
int decoder_bind(struct model *m, const struct decoder *d, int layer, struct err *e);
void decoder_forward(const struct model *m, const struct step *s, int layer0, int layer1);

const struct arch *arch_find(const char *type); // by model_type; NULL: there is none
/* Says what a family that isn't run lacks. Always ERR_UNSUPPORTED. */
int arch_refuse(const char *file, const char *type, struct err *e);

extern const struct arch arch_qwen35, arch_qwen35_moe, arch_llama, arch_qwen2, arch_qwen3, arch_qwen3_moe, arch_bailing, arch_gemma3, arch_gemma4, arch_smollm3;

/* ---- MTP heads (model/mtp.c) ---- */

/* Never fails for the head's sake: whatever is wrong with it is in health and why. */
void mtp_bind(struct model *m, struct mtp_head *h);
/* Rows of the step are pairs: token t_j of the step, and h_{j-1} in BUF_HIDDEN. Leaves the head's normed
 * output in BUF_HIDDEN: input of the shared LM head, and hidden of the next recursive step. */
void mtp_forward(const struct model *m, const struct mtp_head *h, const struct step *s);

/* For the families' bind_head. Names of a head's tensors after key; all zeros in one of the first two: it is dead. */
struct mtp_names {
    const char *key;
    const char *const *tensor;
    int n;
};
/* True if the head is worth binding; else health and why are set. promised: the configuration speaks of a head. */
bool mtp_look(struct model *m, struct mtp_head *h, const struct mtp_names *n, bool promised);
/* After binding: n_specs is the model's count before it, *e what came of it. */
void mtp_done(struct model *m, struct mtp_head *h, const char *key, int n_specs, const struct err *e);

/* Shared by arch_qwen35.c and mtp_qwen35.c. */
void qwen35_bind_head(struct model *m, struct mtp_head *h);
int qwen35_attn_shape(struct model *m, struct attn_params *out, struct err *e);
int qwen35_mlp_bind(struct model *m, struct mlp_layer *l, const char *key, struct bvec *norm_post, struct err *e);

#endif
