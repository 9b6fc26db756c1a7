/* Byte-pair merging over one piece of text, from bytes or from characters. What merges says a list of merges, or
 * the vocabulary itself: any two neighbours that spell an entry, by the entry's rank. The model is read-only but for a memo (see bpe.c), so threads may
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
    int32_t *rank;        // by id, -1: never the result of a merge. NULL: the list of merges says it
    size_t max_len;       // with rank: bytes of the longest entry that has one
    bool by_char;         // symbols are characters at first, not bytes
    bool byte_fallback;   // a character without a token becomes its bytes
    int32_t byte_id[256]; // token of a single byte (or ASCII character), -1: the vocabulary lacks it
    int32_t fallback[256];
    int32_t unk;          // for bytes or characters without a token; -1: they vanish
    bool fuse_unk;        // one unk for a run of them
    bool ignore_merges;   // a piece that is a vocabulary entry is taken whole
    _Atomic uint8_t *whole; // by id: 0 unknown, 1 merging its bytes gives this one token, 2 it doesn't
    uint64_t seed;
};

struct symbol {
    int32_t id, rank, into; // rank of the merge with the next symbol, -1: none
    int32_t prev, next;     // -1: end; a merged-away symbol has id -1
    int32_t from;           // first byte in the piece
};

struct bpe_work {
    const char *s; // the piece
    size_t n;
    struct symbol *sym;
    size_t cap_sym;
    uint64_t *heap; // rank << 32 | position
    size_t n_heap, cap_heap;
};

/* bpe_init before the merges or ranks, bpe_finish after them (the vocabulary is complete then). */
MUST_CHECK int bpe_init(struct bpe *m, const struct vocab *v, size_t n_merges);
/* Takes ownership of an array with an entry for every id. */
void bpe_set_ranks(struct bpe *m, int32_t *rank);
/* A repeated pair: the last rank counts. */
void bpe_add_merge(struct bpe *m, int32_t left, int32_t right, int32_t into, int32_t rank);
MUST_CHECK int bpe_finish(struct bpe *m);
void bpe_deinit(struct bpe *m);

MUST_CHECK int bpe_encode(const struct bpe *m, struct bpe_work *w, const char *s, size_t n, struct ids *out);
void bpe_work_free(struct bpe_work *w);

/* Room for n more ids: 0 or ERR_NOMEM. */
MUST_CHECK int ids_reserve(struct ids *ids, size_t n);

#endif
