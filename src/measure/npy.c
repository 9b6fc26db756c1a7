#include "measure/npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"

int npy_write(const char *path, const float *x, const int64_t *shape, int ndim, struct err *e)
{
    struct buf b;
    size_t n = 1;
    buf_init(&b, SIZE_MAX / 4);
    buf_add(&b, "\x93NUMPY\x01\x00\x00\x00", 10);
    buf_str(&b, "{'descr': '<f4', 'fortran_order': False, 'shape': (");
    for (int i = 0; i < ndim; i++) {
        n *= (size_t)shape[i];
        buf_fmt(&b, "%lld,", (long long)shape[i]);
    }
    buf_str(&b, "), }");
    while ((b.n + 1) % 64)
        buf_chr(&b, ' ');
    buf_chr(&b, '\n');
    b.p[8] = (char)((b.n - 10) & 255);
    b.p[9] = (char)((b.n - 10) >> 8);
    buf_add(&b, x, n * sizeof *x);
    int rc = b.is_full ? err_set(e, ERR_NOMEM, "%s: no memory for %zu values", path, n) : file_write(path, b.p, b.n, e);
    buf_free(&b);
    return rc;
}

int npy_read(const char *path, float **x, int64_t shape[2], struct err *e)
{
    struct filemap m;
    int rc = file_map(&m, path, e);
    if (rc)
        return rc;
    char head[512] = "";
    long long rows = 0, cols = 0;
    size_t at = m.n > 10 ? 10 + (size_t)(m.p[8] | m.p[9] << 8) : 0;
    if (at && at <= m.n && at - 10 < sizeof head && !memcmp(m.p, "\x93NUMPY\x01", 7))
        memcpy(head, m.p + 10, at - 10);
    const char *s = strstr(head, "'shape': (");
    if (!s || !strstr(head, "'<f4'") || !strstr(head, "'fortran_order': False")) {
        rc = err_set(e, ERR_FORMAT, "%s: expected a .npy file of float32 in C order", path);
    } else {
        char *end;
        rows = strtoll(s + 10, &end, 10);
        cols = *end == ',' ? strtoll(end + 1, &end, 10) : 0;
        if (rows < 1 || cols < 1 || (size_t)rows > m.n || (size_t)cols > m.n || (size_t)(rows * cols) * 4 != m.n - at)
            rc = err_set(e, ERR_FORMAT, "%s: expected a two-dimensional array that fills the file", path);
    }
    if (!rc && !(*x = malloc((size_t)(rows * cols) * 4)))
        rc = err_set(e, ERR_NOMEM, "%s: no memory for %lld values", path, rows * cols);
    if (!rc) {
        memcpy(*x, m.p + at, (size_t)(rows * cols) * 4);
        shape[0] = rows;
        shape[1] = cols;
    }
    file_unmap(&m);
    return rc;
}
