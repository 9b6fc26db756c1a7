/* Logits of token sequences to .npy files: `foresay probe logits` (docs/probe.md). By the law none of chunk,
 * batch, threads, instruction set or layout changes a byte. */
#ifndef MEASURE_LOGITS_H
#define MEASURE_LOGITS_H

#include "infer/engine.h"

struct logits_options {
    int chunk;  // rows of a sequence per step, 0: as many as fit
    bool batch; // all sequences advance together, rows interleaved
};

/* ids: the JSON input file's value (sequences, rows?, starts?, drafts?, depth?). */
MUST_CHECK int logits_write(struct engine *g, const struct json *ids, const char *dir, const struct logits_options *o, struct err *e);
/* Checks the sequences and returns the longest and their number, for sizing the engine. */
MUST_CHECK int logits_size(const struct json *ids, int n_vocab, int *longest, int *total, int *n_seqs, int *depth, struct err *e);

#endif
