/* Byte-pair merging over one piece of text. The model is read-only but for a memo (see bpe.c), so threads may
 * share it; each brings its own work space. */
#ifndef TOKEN_BPE_H
#define TOKEN_BPE_H

#include <stdatomic.h>

#include "token/tokenizer.h"
#include "token/vocab.h"

struct merge {
    int32_t left, right; // ids; left -1: free slot
    int32_t rank, into;  // lower ranks merge first
};

struct bpe {
    const struct vocab *vocab;
    struct merge *merge; // open addressing
    size_t n_slots, n;
    int32_t last_into;    // of the merge added last
    int32_t byte_id[256]; // token of a single byte, -1: the vocabulary lacks it
    int32_t unk;          // for bytes without a token; -1: they vanish
    bool fuse_unk;        // one unk for a run of them
    bool ignore_merges;   // a piece that is a vocabulary entry is taken whole
    _Atomic uint8_t *whole; // by id: 0 unknown, 1 merging its bytes gives this one token, 2 it doesn't
    uint64_t seed;
};

struct symbol {
    int32_t id, rank, into; // rank of the merge with the next symbol, -1: none
    int32_t prev, next;     // -1: end; a merged-away symbol has id -1
};

struct bpe_work {
    struct symbol *sym;
    size_t cap_sym;
    uint64_t *heap; // rank << 32 | position
    size_t n_heap, cap_heap;
};

/* bpe_init before the merges, bpe_finish after them (the vocabulary is complete then). */
MUST_CHECK int bpe_init(struct bpe *m, const struct vocab *v, size_t n_merges);
/* A repeated pair: the last rank counts. */
void bpe_add_merge(struct bpe *m, int32_t left, int32_t right, int32_t into, int32_t rank);
MUST_CHECK int bpe_finish(struct bpe *m);
void bpe_deinit(struct bpe *m);

MUST_CHECK int bpe_encode(const struct bpe *m, struct bpe_work *w, const char *s, size_t n, struct ids *out);
void bpe_work_free(struct bpe_work *w);

/* Room for n more ids: 0 or ERR_NOMEM. */
MUST_CHECK int ids_reserve(struct ids *ids, size_t n);

#endif
