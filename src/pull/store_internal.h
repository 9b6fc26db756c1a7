/* Inside of store_scan: what the readers of each place share. For src/pull/store*.c only. */
#ifndef PULL_STORE_INTERNAL_H
#define PULL_STORE_INTERNAL_H

#include "pull/store.h"

/* A new model at the end of the list; name and path are copied. Valid until the next call. */
struct store_model *store_add(struct store *s, enum store_place place, const char *name, const char *path);
struct store_file *store_add_file(struct store_model *m, const char *path);
void store_trouble(struct store_model *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool store_note_root(struct store *s, enum store_place place, const char *dir); // false: no folder, or looked at before

/* The models that one folder holds by itself (not in folders below): safetensors with a configuration, and GGUF files. Returns
 * how many were added. With several GGUF files or a quantization in the name, names get ":SET". */
int store_add_folder(struct store *s, enum store_place place, const char *dir, const char *name);
void store_read_gguf(struct store_model *m); // format and architecture from the first file

void store_scan_hf(struct store *s);
void store_scan_ollama(struct store *s);

/* The environment variable, or path below the home folder; NULL if neither is known. Caller frees. */
char *store_env_path(const char *variable, const char *below, const char *fallback);

#endif
