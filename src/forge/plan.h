/* What becomes of each tensor of a package when it is quantized. */
#ifndef FORGE_PLAN_H
#define FORGE_PLAN_H

#include "format/weights.h"

struct plan_part {
    int index;          // of the source tensor in the catalogue
    int64_t row0, rows; // of it
};
/* One tensor of the new package: rows of source tensors, one after the other. */
struct plan_target {
    char *name;         // with ".weight" if it may be quantized
    struct plan_part *part;
    int n_parts, ndim;
    int64_t ne[4];
    int bits;           // 0: copied as stored
    double kl;          // nats that 4 bits for it alone cost, < 0: not measured
    /* where its bytes go: codes (or the copy), scales, biases */
    int shard;
    uint64_t at[3], bytes[3]; // from the begin of the shard's data
};
struct plan {
    struct plan_target *target;
    int n, group, bits; // bits: of most
    int n_shards;
    uint64_t *shard_bytes, total;
};

/* Matrices get `bits`; kept as stored are vectors, convolutions, routers and other small gates, an MTP head, image and
 * sound towers, and rows that groups don't divide. Experts are stacked as MLX has them (switch_mlp). Refuses a package
 * whose matrices are quantized already. */
MUST_CHECK int plan_make(struct plan *p, const struct package *pkg, int bits, int group, struct err *e);
/* Raises bits (to 5, 6, 8) where that saves most of the measured KL for its bytes, until the quantized tensors take
 * bpw bits a weight with scales. Each bit is taken to quarter a tensor's KL. */
void plan_spend(struct plan *p, const struct package *pkg, double bpw);
void plan_place(struct plan *p, const struct package *pkg, uint64_t shard_max); // fills shards and offsets
double plan_bpw(const struct plan *p, const struct package *pkg);
enum wfmt plan_scale_fmt(const struct package *pkg, const struct plan_target *t);
void plan_free(struct plan *p);

#endif
