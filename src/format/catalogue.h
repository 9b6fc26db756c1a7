/* The building side of weights.h, for the package readers of this layer only: they add tensors, this owns the
 * containers behind them. Not thread-safe; nothing is added after weights_seal. */
#ifndef FORMAT_CATALOGUE_H
#define FORMAT_CATALOGUE_H

#include "base/mem.h"
#include "format/gguf.h"
#include "format/safetensors.h"
#include "format/weights.h"

struct catalogue_entry {
    struct weight w;
    int file_no; // order of files, for sorting
};

struct weights {
    struct arena arena; // names, keys, converted floats
    char *label;        // name of the package for messages about absent tensors
    struct catalogue_entry *entry;
    int n, cap;
    uint32_t *slot; // open-addressed hash by key: entry + 1
    size_t n_slots;
    uint64_t seed;
    struct st_file *st; // files behind the entries
    int n_st;
    struct gguf **gguf;
    int n_gguf;
};

struct weights *weights_new(const char *label);
void weights_free(struct weights *w); // NULL is fine

/* Copies *t with its strings. Returns 1 (nothing added) if the key is there already, or an error. */
int weights_add(struct weights *w, const struct weight *t, int file_no, struct err *e);
void weights_seal(struct weights *w); // sorts by file and offset

/* Key without the prefixes that only say where in a composed model the text part lives. */
const char *weights_canonical(const char *name);

/* Fills what follows from fmt, ne, bits and group: row_bytes (and bits, group of GGUF blocks). */
void weight_layout(struct weight *t);

#endif
