/* What the files of the CPU backend share: cpu.c (placement, products, MLP, head), mixer.c (attention, GDN), moe.c. */
#ifndef KERNEL_CPU_INTERNAL_H
#define KERNEL_CPU_INTERNAL_H

#include "base/pool.h"
#include "kernel/cpu/cpu.h"

enum { MAX_ACTS = 8, TILE_OUT = 64, DECODE_ROWS = 16 };

struct bvec {
    int n;
    double *d;
    float *f; // d rounded
};

struct kv_place {
    int heads, dk, dv, page_class;
    size_t k, v; // byte offsets in a page
};

struct rec_place {
    int heads, k_heads, dk, dv, channels;
    size_t state, ring, tape_k, tape_u, tape_e; // byte offsets in a slot
};

struct cpu {
    struct backend base;
    const struct cpu_kernels *k;
    struct pool *pool;
    int threads;

    struct bweight **weights;
    struct bvec **vecs;
    int n_weights, n_vecs;
    int64_t max_in;

    int max_rows;
    float *buf[BUF_COUNT];
    int width[BUF_COUNT];
    struct qact acts[MAX_ACTS]; // one for each (group, order) that a bound weight needs
    int n_acts;
    struct moe_scratch *moe; // NULL without mixtures

    struct kv_place *kv;
    struct rec_place *rec;
    int n_kv, n_rec, tape;                   // tape: rows of the tape ring
    int ring;                                // rows of the convolution ring
    uint8_t *pages[PAGE_CLASSES], *slots;

    /* scratch of the mixers */
    float *q;            // [kv_heads][max_rows][group][dim]
    float *conv_out;     // [max_rows, channels]
    float *gate_decay;   // [max_rows, 2 * v_heads]: beta, e
    float *partial;      // attention segments of a decode step
    size_t partial_floats;
    float *cs;           // [max_rows, rot_dim] cosines, sines
    int32_t *cs_pos;     // the positions they belong to
    const struct bvec *cs_freq;
    int cs_rows;
    float *local;        // per thread
    size_t local_floats;
    float *best_value;   // [threads, DECODE_ROWS]
    int32_t *best;
    float *zeros;        // one row of zeros for the window before the first token

    size_t alloc_bytes[128]; // of the big blocks, for freeing
    void *alloc[128];
    int n_alloc;
};

static inline float *buf_row(const struct cpu *c, enum buffer b, int row) { return c->buf[b] + (int64_t)row * c->width[b]; }
static inline float *local_of(const struct cpu *c, int thread) { return c->local + (size_t)thread * c->local_floats; }

void *cpu_alloc(struct cpu *c, size_t bytes); // zeroed, freed with the backend; NULL if refused
void cpu_attn(struct backend *b, const struct step *s, const struct attn_params *p, enum buffer dst);
void cpu_gdn(struct backend *b, const struct step *s, const struct gdn_params *p, enum buffer dst);
/* Activation set that a weight reads, -1 for float products; the same as a bit, 0 for float products. */
int cpu_act_index(const struct cpu *c, const struct bweight *w);
unsigned cpu_acts_of(const struct cpu *c, const struct bweight *w);
void cpu_set_widths(struct qact *acts, int n, int64_t in); // for rows of that length
bool cpu_alloc_act(struct cpu *c, struct qact *a, size_t rows, int64_t max_in);
int cpu_moe_declare(struct backend *b, const struct moe_params *p, struct err *e);
bool cpu_moe_setup(struct cpu *c);
void cpu_moe(struct backend *b, const struct step *s, const struct moe_params *p, enum buffer dst);
/* Scratch that the mixers need for these pieces of state. */
int cpu_mixer_setup(struct cpu *c, int max_heads_dim, struct err *e);

#endif
