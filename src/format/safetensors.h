/* safetensors container: one file's tensor table over a mapping. Owns the mapping and the table; the data
 * stay in the file. Opening checks the header length, JSON, dtypes, shapes, sizes, ranges and overlaps. Knows no
 * tensor names and no quantization. */
#ifndef FORMAT_SAFETENSORS_H
#define FORMAT_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"

enum { ST_MAX_DIMS = 8 };

struct st_tensor {
    const char *name;        // NUL-terminated
    const char *dtype;       // static string, as in the file
    int bits;                // per element
    int ndim;                // 0 for a scalar
    int64_t ne[ST_MAX_DIMS]; // in the file's order, 1 beyond ndim
    uint64_t offset;         // from the start of the file
    uint64_t bytes;
};

struct st_file {
    struct filemap map;
    bool owns_map;
    struct st_tensor *tensor; // ascending offsets
    size_t n_tensors;
    const char *format; // "format" of the metadata ("pt", "mlx") or ""
    struct arena arena;
};

/* name stands in messages (NULL: the path's last part). On failure *f is empty. */
MUST_CHECK int st_open(struct st_file *f, const char *path, const char *name, struct err *e);
/* The same over bytes that stay the caller's and must outlive *f. */
MUST_CHECK int st_open_bytes(struct st_file *f, const void *p, size_t n, const char *name, struct err *e);
void st_close(struct st_file *f);

#endif
