/* All that a hardware port implements: coarse operations on handles. Where weights, buffers, pages and
 * states lie, and in which layout, is the backend's secret. The arithmetic is docs/arithmetic.md's; a backend
 * that can't give those bits names its own domain. Not thread-safe: the engine thread owns it. */
#ifndef KERNEL_BACKEND_H
#define KERNEL_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "format/weights.h"

struct backend;
struct bweight; // a matrix as the backend holds it
struct bvec;    // a small fp32 vector

enum { PAGE_TOKENS = 64, SEGMENT_TOKENS = 1024, PAGE_CLASSES = 4 };

/* Buffers of a step, [max_rows, width] fp32 each; the model declares the widths it needs. */
enum buffer { BUF_X, BUF_NORM, BUF_Q, BUF_K, BUF_V, BUF_Z, BUF_B, BUF_A, BUF_MIX, BUF_GATE, BUF_HIDDEN, BUF_PAIR, BUF_OUT, BUF_LAYERS,
              BUF_COUNT };

/* One declared piece of state. Cache, tape, rollback, snapshots, inspect work from the list alone. */
enum state_kind { STATE_KV, STATE_REC };
struct state_spec {
    enum state_kind kind;
    int layer;         // for people; -1 - i for layer i of a drafter
    int heads, dk, dv; // KV: key/value heads and widths. REC: value heads, key width, value width
    int window;        // KV: a row reads the last window rows, itself among them; 0: all. Drafters' pieces keep all
    int page_class;    // KV: pieces of one window share pages; set by model_state
    int conv;          // REC: channels of the convolution window, 0 without
    int k_heads;       // REC: key heads
};

/* Consecutive rows of one sequence in a step. Positions pos0..pos0+n-1 are absolute token indices. The first
 * n_final rows can't be rolled back: recurrent state is advanced for good; the others are provisional. */
struct run {
    int slot;             // recurrent state of the sequence
    int row0, n, n_final; // rows of the step
    int pos0;
    int state_pos;        // tokens folded into the recurrent state; pos0 - state_pos rows wait on the tape
    /* pages[c][t / PAGE_TOKENS] holds token t of the pieces of class c; -1 where no row of the run looks any more */
    const int32_t *pages[PAGE_CLASSES];
};

struct step {
    int n_rows, n_runs;
    const int32_t *token; // [n_rows]
    const int32_t *pos;   // [n_rows] absolute token index
    const int32_t *run_of; // [n_rows] index of the row's run
    const struct run *runs;
};

struct attn_params {
    int kv;                  // index among the STATE_KV pieces
    int heads, kv_heads, dim, rot_dim; // dim: head width; the first rot_dim (or none) are rotated
    const struct bvec *freq; // [rot_dim/2] angular frequencies, binary64 inside
    const struct bvec *q_norm, *k_norm, *v_norm; // NULL: none
    float eps, scale;
    bool pairs_adjacent;     // rotary pairs (2i, 2i+1) instead of (i, i + rot_dim/2)
    bool shared;             // keys and values are those of an earlier layer of the step: BUF_K and BUF_V aren't read
    bool v_from_k;           // values are BUF_K's rows as they are there, before norm and rotation of the keys
    bool gated;              // BUF_Q rows are [q | gate] per head; the result is times sigmoid(gate)
    int pos_shift;           // rotary position = token index + pos_shift
    int first_key;           // keys before this token index don't exist
    int window;              // 0: all; else key j visible to row i iff i - j < window
};

struct gdn_params {
    int rec;                 // index among the STATE_REC pieces
    int k_heads, v_heads, dk, dv, taps;
    bool tiled;              // value head i uses key head i mod k_heads instead of i / (v_heads / k_heads)
    const struct bvec *conv, *a, *dt_bias, *norm; // conv [taps, channels]; a = -exp(A_log) [v_heads]
    float eps;
};

/* Rows of a head product: results of rows sel[0..n) of a buffer. */
struct head_out {
    float *logits;  // [n, ld] if not NULL
    int64_t ld;     // floats from one logits row to the next
    int32_t *best;  // [n] argmax (lowest id among equals) if not NULL
    float *best_value; // [n] its logit, with best
    float softcap;     // 0: none; else logits are softcap * tanh(logit / softcap)
};

enum activation { ACT_SILU, ACT_GELU_TANH };

/* Rows [row0, row0 + n) of a matrix that holds the weights of several experts. */
struct moe_matrix {
    const struct bweight *w;
    int64_t row0;
};

/* A mixture of experts; arrays stay the caller's. */
struct moe_params {
    int n_experts, n_used;
    int64_t hidden, inter;
    const struct bvec *norm, *router_norm; // of BUF_X, before the experts and the router; NULL: the experts' for both
    float eps;
    const struct bweight *router;          // [n_experts, hidden], float
    bool is_sigmoid, normalize;            // scores by sigmoid instead of softmax; chosen weights sum to 1
    const struct bvec *bias;               // added to sigmoid scores for the choice alone, NULL: none
    int n_groups, n_used_groups;           // experts are chosen among those of the best groups; 0: no groups
    float scale;                           // of all weights
    const struct bvec *expert_scale;       // of each expert's weight, NULL: none
    const struct moe_matrix *gate, *up, *down; // [n_experts]
    const struct bweight *shared_gate, *shared_up, *shared_down, *shared_mix; // NULL: none; mix: its scalar gate
    enum activation act;
};

struct product {
    const struct bweight *w;
    enum buffer dst;
};

struct backend_ops {
    const char *name;
    void (*close)(struct backend *);
    /* Weight placement. The struct weight outlives the handle. */
    int (*weight)(struct backend *, const struct weight *, struct bweight **, struct err *);
    /* A subset of the rows of a matrix: output i is row ids[i]. The ids stay the caller's and may change between
     * operations; rows_set tells how many of them count. */
    int (*rows)(struct backend *, const struct bweight *, const int32_t *ids, struct bweight **, struct err *);
    void (*rows_set)(struct backend *, struct bweight *, int n);
    int (*vec)(struct backend *, const double *, int n, struct bvec **, struct err *);
    /* From now on products with the matrix add the vector, one value an output. */
    void (*bias)(struct backend *, struct bweight *, const struct bvec *);
    /* Working memory: called once, after the declared state and widths are known. n_pages: of each page class. */
    int (*setup)(struct backend *, const struct state_spec *, int n_specs, const int *widths, int max_rows,
                 const int *n_pages, int n_slots, int tape_rows, struct err *);

    /* The forward operations; n_rows etc. from the step. */
    void (*embed)(struct backend *, const struct step *, const struct bweight *, enum buffer dst);
    void (*norm)(struct backend *, const struct step *, enum buffer src, const struct bvec *w, float eps, enum buffer dst, int dst_col);
    /* dst += norm of src, over parts as wide as w. */
    void (*norm_add)(struct backend *, const struct step *, enum buffer src, const struct bvec *w, float eps, int n_parts, enum buffer dst);
    void (*scale)(struct backend *, const struct step *, enum buffer, int n, float factor); // the first n of each row
    /* The first n of gate's rows become act(gate) * up, from column up_col of up. */
    void (*act_mul)(struct backend *, const struct step *, enum activation, enum buffer gate, enum buffer up, int up_col, int n);
    void (*norm_mm)(struct backend *, const struct step *, enum buffer src, const struct bvec *w, float eps, const struct product *, int n);
    void (*mm)(struct backend *, const struct step *, enum buffer src, const struct bweight *, enum buffer dst);
    void (*mm_add)(struct backend *, const struct step *, enum buffer src, const struct bweight *, enum buffer dst);
    void (*attn)(struct backend *, const struct step *, const struct attn_params *, enum buffer dst);
    void (*gdn)(struct backend *, const struct step *, const struct gdn_params *, enum buffer dst);
    /* down · (act(gate · n) * (up · n)), n the norm of BUF_X: added to BUF_X, or stored where dst is another buffer. */
    void (*mlp)(struct backend *, const struct step *, const struct bvec *norm, float eps, const struct bweight *gate,
                const struct bweight *up, const struct bweight *down, enum activation act, enum buffer dst);
    /* Before setup: working memory for a mixture. After: it runs, on BUF_X, and is added to it or stored in dst. A shared
     * expert uses BUF_OUT and BUF_B. */
    int (*moe_declare)(struct backend *, const struct moe_params *, struct err *);
    void (*moe)(struct backend *, const struct step *, const struct moe_params *, enum buffer dst);
    void (*head)(struct backend *, const struct step *, enum buffer src, const int32_t *sel, int n, const struct bweight *,
                 const struct head_out *);
    void (*read)(struct backend *, enum buffer, int row, int n, float *dst); // width floats per row
    void (*write)(struct backend *, enum buffer, int row, int n, const float *src);

    /* State. A page holds PAGE_TOKENS tokens of every KV piece of its class; a slot one sequence's recurrent state. */
    void (*page_copy)(struct backend *, int page_class, int dst, int src);
    void (*slot_clear)(struct backend *, int slot);
    void (*slot_copy)(struct backend *, int dst, int src); // state, window and tape
    void (*page_io)(struct backend *, int page_class, int page, void *p, bool save);
    void (*slot_io)(struct backend *, int slot, void *p, bool save);
    /* The recurrent state of STATE_REC piece rec, heads * dk * dv floats in the backend's own order: for comparison. */
    void (*rec_read)(struct backend *, int slot, int rec, float *dst);
};

/* First member of every backend. */
struct backend {
    const struct backend_ops *ops;
    const char *domain; // of its bits, "f0" for the contract's
    const char *isa;    // instruction set in use, for reports
    int threads;        // likewise
    size_t page_bytes[PAGE_CLASSES], slot_bytes; // set by setup
    bool float_mode;
};

struct backend_options {
    int threads;      // 0: all CPUs
    const char *isa;  // NULL: best available; "scalar", "avx2", ...
    bool float_mode;
};
MUST_CHECK int backend_cpu_open(struct backend **b, const struct backend_options *o, struct err *e);

#endif
