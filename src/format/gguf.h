/* GGUF container, versions 2 and 3: metadata and tensor table over a mapped file. Owns the mapping; strings
 * and arrays stay in the file (strings are not NUL-terminated). Opening checks every count, length, offset
 * and type against the file before anything is allocated. Knows no tensor names and no architecture. */
#ifndef FORMAT_GGUF_H
#define FORMAT_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/file.h"

/* Ids of metadata values, as stored. */
enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
};

struct gguf_kv {
    const char *key;  // NUL-terminated, owned by the gguf
    int type;         // enum gguf_type
    int elem;         // type of an array's elements; otherwise the same as type
    uint64_t n;       // length of an array; otherwise 1
    const void *p;    // bytes of a scalar or string; first element of an array (strings: u64 length, bytes)
    uint64_t n_bytes; // bytes at p
};

struct gguf_str {
    const char *s;
    size_t n;
};

struct gguf_tensor {
    const char *name; // NUL-terminated, owned by the gguf
    int type;         // id as stored
    int n_dims;       // 1 to 4
    int64_t ne[4];    // GGUF's order: ne[0] is the contiguous one; 1 beyond n_dims
    uint64_t offset;  // from the start of the file
    uint64_t n_bytes;
};

struct gguf {
    struct filemap map;
    bool owns_map;
    char *name; // file name for messages
    int version;
    uint64_t alignment;
    struct gguf_kv *kv;
    size_t n_kv;
    struct gguf_tensor *tensor; // order of the file's table
    size_t n_tensors;
    uint64_t data_offset;
    void *index; // kv by key
    struct arena *arena;
};

/* What the container knows about a tensor type. NULL: unknown id. */
struct gguf_type_info {
    int id;
    const char *name;
    int block, bytes; // elements per block along a row, bytes per block
};
const struct gguf_type_info *gguf_type_info(int id);

MUST_CHECK int gguf_open(struct gguf **g, const char *path, struct err *e);
/* The same over bytes that stay the caller's and must outlive *g. name stands in messages. */
MUST_CHECK int gguf_open_bytes(struct gguf **g, const void *p, size_t n, const char *name, struct err *e);
/* Checks a file of size bytes of which only the first have are at hand: 0 its header is whole and sound, 1 more bytes
 * are needed to tell, or an error. */
MUST_CHECK int gguf_probe(const void *p, size_t have, size_t size, const char *name, struct err *e);
void gguf_close(struct gguf *g); // NULL is fine

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key); // NULL if absent

/* Values. false (nothing written) when kv is NULL or has another type. */
bool gguf_int(const struct gguf_kv *kv, int64_t *v); // any integer type; a u64 above INT64_MAX is refused
bool gguf_num(const struct gguf_kv *kv, double *v);  // any integer or float type
bool gguf_bool(const struct gguf_kv *kv, bool *v);
bool gguf_string(const struct gguf_kv *kv, struct gguf_str *v);
bool gguf_ints(const struct gguf_kv *kv, int64_t *out); // array of integers or booleans: kv->n values
bool gguf_nums(const struct gguf_kv *kv, double *out);  // array of integers or floats: kv->n values
int gguf_strings(const struct gguf_kv *kv,
                 struct gguf_str *out); // kv->n values; 0, or ERR_FORMAT if not an array of strings

/* Opens a file and copies one string value (NUL-terminated, freed by the caller). 0, 1 if the key is absent
 * (or no string), or an error. */
MUST_CHECK int gguf_find_string(const char *path, const char *key, char **value, struct err *e);

#endif
