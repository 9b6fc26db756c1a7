/* How far one model's predictions are from another's on a text. */
#ifndef FORGE_COMPARE_H
#define FORGE_COMPARE_H

#include <stdatomic.h>

#include "infer/engine.h"

/* A trunk that reads a text and gives the logits of every position. */
struct reader;
/* Takes the package over, also when it fails. */
MUST_CHECK int reader_open(struct reader **r, struct package *p, int threads, int n_tokens, struct err *e);
void reader_close(struct reader *r);
int reader_n_vocab(const struct reader *r);
/* Logits after tokens [at, at + n), n <= READER_BLOCK, which follow those read before. Valid until the next call. */
enum { READER_BLOCK = 32 };
MUST_CHECK int reader_step(struct reader *r, const int32_t *tokens, int n, const float **logits, struct err *e);

struct agreement {
    int n;              // positions
    double kl, kl_999;  // KL(p || q) in nats: mean, 99.9th percentile
    double top1;        // share of positions with the same most likely token
    double *all;        // [n] KL by position while it is gathered
};
/* Adds one position: p the reference's logits, q the other's. work [2 n_vocab]. False if they are not numbers. */
bool agreement_add(struct agreement *a, const float *p, const float *q, int n_vocab, double *work);
void agreement_finish(struct agreement *a); // sorts, fills the figures, frees all

#endif
