/* Pre-tokenizers by the names that GGUF files use. */
#ifndef TOKEN_GGUF_PRE_H
#define TOKEN_GGUF_PRE_H

#include <stdbool.h>
#include <stddef.h>

enum { GGUF_PRE_MAX_STEPS = 6 };
enum { PRE_NFC = 1, PRE_IGNORE_MERGES = 2, PRE_ADD_BOS = 4 }; // the last where the file doesn't say

struct gguf_pre {
    const char *name;
    const char *step[GGUF_PRE_MAX_STEPS]; // patterns in order, each isolates what it matches; NULL: no more
    unsigned flags;
};

const struct gguf_pre *gguf_pre_find(const char *name, size_t n); // NULL: not known

#endif
