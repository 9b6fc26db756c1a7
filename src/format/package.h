/* Inside of package_open: the readers behind it. For this layer only. */
#ifndef FORMAT_PACKAGE_H
#define FORMAT_PACKAGE_H

#include "base/err.h"
#include "format/catalogue.h"
#include "format/weights.h"

/* Each fills config, generation, quantization, kind and weights of an otherwise empty package. */
MUST_CHECK int hf_open(struct package *p, const char *dir, struct err *e);
MUST_CHECK int gguf_package_open(struct package *p, const char *path, struct err *e);
/* A GGUF in memory, which must outlive the package: the whole mapping without files (fuzzing). */
MUST_CHECK int package_open_gguf_bytes(struct package **p, const void *bytes, size_t n, const char *name,
                                       struct err *e);
struct package *package_new(const char *path);
int gguf_package_fill(struct package *p, struct err *e); // weights->gguf is there; the rest follows

/* JSON text into the package's arena. */
MUST_CHECK int package_json(struct package *p, const char *text, size_t n, const char *name,
                            struct json **out, struct err *e);

/* Configuration of a GGUF in HF's spelling (gguf_config.c) and the canonical key of one of its tensors
 * (gguf_map.c); out holds the key where it has to be composed. */
MUST_CHECK int gguf_config(struct package *p, const struct gguf *g, struct err *e);
enum { GGUF_MAX_KEY = 256 };
struct gguf_names {
    char arch[32];    // general.architecture
    int64_t n_layers; // blocks of the trunk; MTP blocks follow them
    int arch_no;      // of gguf_map.c's table: keys are canonical; -1: they are the file's names
};
int gguf_names_init(struct gguf_names *m, const struct gguf *g, struct err *e);
int gguf_find_arch(const char *name, bool *has_mtp); // -1 if its names aren't known
const char *gguf_key(const struct gguf_names *m, const char *name, char out[GGUF_MAX_KEY]);

/* Integer of "<arch>.<key>"; an array counts as its one distinct nonzero value. */
bool gguf_arch_int(const struct gguf *g, const char *arch, const char *key, int64_t *v);
const struct gguf_kv *gguf_arch_find(const struct gguf *g, const char *arch, const char *key);

#endif
