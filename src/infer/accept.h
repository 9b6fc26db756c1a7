/* Acceptance of drafted tokens. Pure functions of distributions and randomness, in double precision.
 *
 * Both rules emit exactly the law of plain sampling from p_0, p_1, ...:
 *   exact    the longest lossless acceptance for one chain of drafts: block verification (Sun et al., ICLR
 *            2025), which is traversal verification with one child a node. Randomness is abstract so that a
 *            test can enumerate every outcome of the very code that serves.
 *   seeded   the emitted token is the target's own draw argmax(log p + gumbel), with noise keyed by (seed,
 *            choice, absolute token index, token id): the same text whatever was drafted (Daliri, Musco,
 *            Suresh 2024). */
#ifndef INFER_ACCEPT_H
#define INFER_ACCEPT_H

#include <stdint.h>

#include "infer/sampler.h"

/* Source of randomness. bernoulli: true with probability prob. categorical: an index of w[0..n) with
 * probability w[i] / sum(w); weights >= 0, some > 0. */
struct rnd {
    void *ud;
    int (*bernoulli)(void *ud, double prob);
    int (*categorical)(void *ud, const double *w, int n);
};

/* Counter-based source for serving: every call has its own counter under (seed, choice, index, purpose). */
enum purpose { PURPOSE_DRAFT = 1, PURPOSE_ACCEPT = 2, PURPOSE_RESIDUAL = 3, PURPOSE_SAMPLE = 4 };
struct noise {
    uint64_t seed;
    uint32_t choice; // index of the answer in a request with n > 1
    uint64_t index;  // absolute token index of the position being decided
};
struct rnd_counter {
    struct noise noise;
    enum purpose purpose;
    uint32_t calls;
};
struct rnd rnd_of(struct rnd_counter *c);

/* Most drafts of one chain. */
enum { ACCEPT_MAX = 64 };

/* Working memory for residuals (2 n_vocab doubles). */
struct accept_scratch {
    double *w; // residual weights
    double *q; // by token: a draft distribution spread out; all zero between calls
    int n;
};
void accept_scratch_init(struct accept_scratch *s, int n_vocab);
void accept_scratch_free(struct accept_scratch *s);

/* x[0..d) were proposed, x[i] drawn from q[i] (a point mass for a deterministic draft: n = 1, p = 1).
 * p[0..d] are the target's distributions after each prefix. Returns a in 0..d, the number of drafts kept, and
 * *next, the token that follows them. d is at most ACCEPT_MAX (drafts beyond it are rejected). */
int accept_exact(const struct dist *p, const struct dist *q, const int32_t *x, int d, struct rnd *rnd,
                 struct accept_scratch *s, int32_t *next);
/* at: noise for position 0; position i uses index at->index + i. */
int accept_seeded(const struct dist *p, const int32_t *x, int d, const struct noise *at, int32_t *next);

/* The target's own seeded draw from one distribution. */
int32_t noise_pick(const struct dist *p, const struct noise *at);
/* A plain draw from one distribution with an ordinary source. */
int32_t dist_draw(const struct dist *p, struct rnd *rnd);

#endif
