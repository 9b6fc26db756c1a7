/* A model elsewhere, for readers that know only files: a private temporary folder with its small files whole and its weights as
 * holes of the right size behind their true headers. So package_open works on it unchanged, and nothing but headers
 * and configurations crosses the network. */
#ifndef PULL_MIRROR_H
#define PULL_MIRROR_H

#include "pull/choose.h"

struct mirror {
    char *name;         // for people: ORG/NAME:SET or the address
    char *path;         // what package_open takes
    char *dir;          // the temporary folder
    char commit[41];    // "" without a hub
    uint64_t total_bytes, fetched_bytes, tokenizer_bytes; // of the whole model; that crossed the network; not fetched
    int n_requests;
};

/* Whether a word means a model elsewhere: hf:..., http://..., https://... */
bool mirror_is_remote(const char *what);
/* what: hf:ORG/NAME[@REVISION][:QUANT], the hub's address of a repository, the address of a GGUF file, or that of a folder
 * with config.json. Close it in any case. */
MUST_CHECK int mirror_open(struct mirror *m, const char *what, const struct choice_options *choice, const struct fetch_options *fetch,
                           void (*on_wait)(const char *why, int ms), struct err *e);
void mirror_close(struct mirror *m);

#endif
