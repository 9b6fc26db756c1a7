/* Which files of a repository make the model, and which don't: everything that serving needs, nothing twice in
 * another format. What is left out is named with the reason. Pure: decides on names, sizes and the index. */
#ifndef PULL_CHOOSE_H
#define PULL_CHOOSE_H

#include "pull/hub.h"

struct choice {
    int *file; // indices into the repository's files, ascending
    int n;
    char set[100]; // "" for a folder of safetensors; else what tells one GGUF of a repository from the others
    uint64_t bytes;
    struct buf left_out; // one line for each weight file that isn't taken: "NAME: why"
    struct buf offers;   // after a failure for want of a choice: one line for each, "SET  SIZE"
};

struct choice_options {
    const char *set;  // quantization of a GGUF, or ""
    const char *file; // a GGUF file by its path (any of its parts), or NULL
};

/* Repositories of safetensors with an index: its path, whose text choose_files needs; else NULL. */
const char *choose_index(const struct hub_repo *r, const struct choice_options *o);
/* index: text of n_index bytes, or NULL. A repository with several GGUF files and no choice is ERR_ARG. Free with
 * choice_free, after a failure, too. */
MUST_CHECK int choose_files(const struct hub_repo *r, const struct choice_options *o, const char *index, size_t n_index, struct choice *c,
                            struct err *e);
void choice_free(struct choice *c);

/* "Q4_K_M", "UD-Q4_K_XL", "BF16": the quantization a GGUF file's name ends in, before the part's number; 0 if none. */
int choose_quant(const char *path, char *out, size_t n);
/* Of NAME-00002-of-00003.gguf: 2 and 3, and the length of NAME; false if the name isn't one of a part. */
bool choose_part(const char *path, int *part, int *parts, size_t *stem);

#endif
