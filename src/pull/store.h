/* Where models lie on this machine: our own folder, the Hugging Face cache, LM Studio's and Ollama's folders, MLX folders,
 * and what FORESAY_MODELS adds. All are used in place; only our own is ever written (docs/models-on-disk.md). */
#ifndef PULL_STORE_H
#define PULL_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/err.h"
#include "base/mem.h"
#include "text/json.h"

enum store_place { STORE_OURS, STORE_HF, STORE_LMSTUDIO, STORE_OLLAMA, STORE_MLX, STORE_EXTRA };
const char *store_place_name(enum store_place p);

struct store_file { // one that holds weights
    char *path;
    uint64_t size;
    char sha256[DIGEST_HEX]; // "" where nobody says
};

struct store_model {
    char *name;     // ORG/NAME[@REVISION][:SET] as far as its place says; what MODEL arguments accept
    char *path;     // what package_open takes
    enum store_place place;
    uint64_t bytes; // of all its files
    char format[48], arch[64];
    char *trouble;  // why it can't be used as it lies, or NULL
    char *origin;   // what `foresay pull` takes for it, or NULL
    char *commit;   // or NULL
    struct store_file *file;
    int n_files;
    int same_as;    // index of the first model with the same content, or -1
    enum { STORE_SAME_FILES, STORE_SAME_SHA, STORE_SAME_ENDS } same_how; // links; equal SHA-256; equal size, begin and end
};
struct store {
    struct store_model *model;
    int n;
    char **root; // folders looked at, and whose they are
    enum store_place *root_place;
    int n_roots;
};

/* Lists everything. What can't be read is a model with trouble, not a failure. */
void store_scan(struct store *s);
void store_mark_same(struct store *s); // fills same_as; reads 2 MiB of each file of candidates
void store_free(struct store *s);

/* The model a word names: its name, without the set, without the organisation, with or without hf:, in any case of letters, as
 * org--name. Several of one name: the first. Fails with a sentence that says what there is. */
MUST_CHECK int store_find(const struct store *s, const char *word, const struct store_model **m, struct err *e);

/* The repository a folder or file came from, by our description or the Hugging Face cache's layout; NULL: unknown. */
char *store_origin(const char *path);
/* The snapshot inside a repository's folder of the Hugging Face cache; NULL if path is no such folder. */
char *store_snapshot(const char *path);

/* Our own folder. All strings are the caller's to free. */
char *store_home(void);                                                                   // .../models
char *store_folder(const char *repo, const char *revision, const char *set, bool partial); // where a pull puts it
MUST_CHECK int store_delete(const char *path, struct err *e); // a folder of ours, also when it is killed half-way
void store_sweep(void);                                       // what killed deletions left

/* What a folder of ours says about itself: .foresay.json, written before the first byte is fetched. */
struct manifest {
    struct arena arena;
    const struct json *top, *files; // files: [{"path","size","sha256"|"git"}]
    const char *repo, *revision, *commit, *set;
};
#define MANIFEST_NAME ".foresay.json"
/* 1: there is none. */
MUST_CHECK int manifest_read(struct manifest *m, const char *dir, struct err *e);
MUST_CHECK int manifest_parse(struct manifest *m, const char *text, size_t n, const char *name, struct err *e);
void manifest_free(struct manifest *m);
/* "ORG/NAME@REVISION:SET" with the parts that aren't usual. Caller frees. */
char *manifest_name(const char *repo, const char *revision, const char *set);

#endif
