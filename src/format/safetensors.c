/* Format: u64 little-endian header length, header (a JSON object, may be padded with spaces), data. Offsets
 * in the header count from the end of the header. No alignment is promised. */
#include "format/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "text/json.h"

static const uint64_t max_header_bytes = 100u * 1000 * 1000;

static const struct {
    const char *name;
    int bits;
} dtypes[] = {
    {"F32", 32},    {"BF16", 16},   {"F16", 16},        {"U32", 32},        {"I32", 32}, {"I64", 64},
    {"F64", 64},    {"U8", 8},      {"I8", 8},          {"BOOL", 8},        {"U16", 16}, {"I16", 16},
    {"U64", 64},    {"F8_E4M3", 8}, {"F8_E5M2", 8},     {"F8_E8M0", 8},     {"F4", 4},   {"F6_E2M3", 6},
    {"F6_E3M2", 6}, {"C64", 64},    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
};

static int read_shape(struct st_tensor *t, const struct json *shape, const char *file, struct err *e)
{
    if (!json_is(shape, JSON_ARRAY))
        return err_set(e, ERR_FORMAT, "%s: tensor %.100s has no shape", file, t->name);
    if (shape->n > ST_MAX_DIMS)
        return err_set(e, ERR_FORMAT, "%s: bad rank of tensor %.100s: %zu dimensions, expected at most %d",
                       file, t->name, shape->n, ST_MAX_DIMS);
    int64_t elements = 1; // signed, so that readers may multiply sizes as int64_t
    uint64_t bits;
    t->ndim = (int)shape->n;
    for (int i = 0; i < ST_MAX_DIMS; i++)
        t->ne[i] = 1;
    const struct json *d = shape->child;
    for (int i = 0; i < t->ndim; i++, d = d->next) {
        if (!json_int(d, &t->ne[i]))
            return err_set(e, ERR_FORMAT,
                           "%s: shape of tensor %.100s has an entry that is no integer of 64 bits", file,
                           t->name);
        if (t->ne[i] < 0)
            return err_set(e, ERR_FORMAT, "%s: negative size in tensor %.100s: %lld in dimension %d", file,
                           t->name, (long long)t->ne[i], i);
        if (__builtin_mul_overflow(elements, t->ne[i], &elements))
            return err_set(e, ERR_FORMAT, "%s: shape of tensor %.100s overflows 64 bits", file, t->name);
    }
    if (__builtin_mul_overflow((uint64_t)elements, (uint64_t)t->bits, &bits))
        return err_set(e, ERR_FORMAT, "%s: shape of tensor %.100s overflows 64 bits", file, t->name);
    if (bits % 8)
        return err_set(e, ERR_FORMAT, "%s: shape of tensor %.100s doesn't fill whole bytes", file, t->name);
    t->bytes = bits / 8;
    return 0;
}

static int read_tensor(struct st_tensor *t, const struct json *v, uint64_t data, size_t size,
                       const char *file, struct err *e)
{
    t->name = v->key;
    for (uint32_t i = 0; i < v->n_key; i++)
        if ((unsigned char)v->key[i] < 0x20 || v->key[i] == 0x7f)
            return err_set(e, ERR_FORMAT, "%s: control character 0x%02x in a tensor name", file,
                           (unsigned char)v->key[i]);
    if (!json_is(v, JSON_OBJECT))
        return err_set(e, ERR_FORMAT, "%s: entry of tensor %.100s is not an object", file, t->name);
    const char *dtype = json_str(json_get(v, "dtype"), NULL);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes && dtype && !t->dtype; i++)
        if (!strcmp(dtype, dtypes[i].name)) {
            t->dtype = dtypes[i].name;
            t->bits = dtypes[i].bits;
        }
    if (!t->dtype)
        return err_set(e, ERR_FORMAT, "%s: unknown dtype of tensor %.100s: %.40s", file, t->name,
                       dtype ? dtype : "missing");
    int rc = read_shape(t, json_get(v, "shape"), file, e);
    if (rc)
        return rc;
    const struct json *off = json_get(v, "data_offsets");
    int64_t begin, end;
    if (!json_is(off, JSON_ARRAY) || off->n != 2 || !json_int(off->child, &begin) ||
        !json_int(off->child->next, &end))
        return err_set(e, ERR_FORMAT, "%s: bad offsets of tensor %.100s: expected two integers", file,
                       t->name);
    if (begin < 0 || end < begin)
        return err_set(e, ERR_FORMAT, "%s: bad offsets of tensor %.100s: begin %lld, end %lld", file, t->name,
                       (long long)begin, (long long)end);
    uint64_t room = size - data, n = (uint64_t)(end - begin);
    if (n != t->bytes)
        return err_set(e, ERR_FORMAT,
                       "%s: size of tensor %.100s: expected %llu bytes by shape and dtype, found %llu", file,
                       t->name, (unsigned long long)t->bytes, (unsigned long long)n);
    if ((uint64_t)begin > room || ((uint64_t)begin == room && n))
        return err_set(e, ERR_FORMAT,
                       "%s: tensor %.100s lies outside the file: begins at byte %lld of %llu data bytes",
                       file, t->name, (long long)begin, (unsigned long long)room);
    if ((uint64_t)end > room)
        return err_set(
            e, ERR_FORMAT,
            "%s: truncated file: tensor %.100s ends beyond the file, at byte %lld of %llu data bytes", file,
            t->name, (long long)end, (unsigned long long)room);
    t->offset = data + (uint64_t)begin;
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes ? 1 : strcmp(x->name, y->name);
}

static int read_table(struct st_file *f, const struct json *head, uint64_t data, const char *name,
                      struct err *e)
{
    if (!json_is(head, JSON_OBJECT))
        return err_set(e, ERR_FORMAT, "%s: the header is not a JSON object", name);
    f->tensor = calloc(head->n + 1, sizeof *f->tensor);
    if (!f->tensor)
        return err_set(e, ERR_NOMEM, "%s: no memory for %zu tensors", name, head->n);
    for (const struct json *v = head->child; v; v = v->next) {
        if (!strcmp(v->key, "__metadata__")) {
            f->format = json_str(json_get(v, "format"), "");
            continue;
        }
        int rc = read_tensor(&f->tensor[f->n_tensors], v, data, f->map.n, name, e);
        if (rc)
            return rc;
        f->n_tensors++;
    }
    if (f->n_tensors > 1)
        qsort(f->tensor, f->n_tensors, sizeof *f->tensor, by_offset);
    for (size_t i = 1; i < f->n_tensors; i++)
        if (f->tensor[i - 1].offset + f->tensor[i - 1].bytes > f->tensor[i].offset)
            return err_set(e, ERR_FORMAT, "%s: overlapping tensors %.100s and %.100s", name,
                           f->tensor[i - 1].name, f->tensor[i].name);
    return 0;
}

static int read_all(struct st_file *f, const char *name, struct err *e)
{
    uint64_t n = 0;
    for (int i = 0; i < 8 && f->map.n >= 8; i++)
        n |= (uint64_t)f->map.p[i] << (8 * i);
    if (f->map.n < 8)
        return err_set(e, ERR_FORMAT,
                       "%s: truncated file: %zu bytes, expected at least 8 for the header length", name,
                       f->map.n);
    if (n > max_header_bytes)
        return err_set(e, ERR_LIMIT, "%s: header length out of range: %llu bytes, at most %llu are allowed",
                       name, (unsigned long long)n, (unsigned long long)max_header_bytes);
    if (n > f->map.n - 8)
        return err_set(e, ERR_FORMAT,
                       "%s: truncated file: header length is %llu bytes, the file holds %zu after it", name,
                       (unsigned long long)n, f->map.n - 8);
    struct json *head;
    f->arena.max_bytes = 32 * (size_t)n + 65536; // real headers need 5 bytes a byte
    int rc = json_parse(&head, &f->arena, (const char *)f->map.p + 8, (size_t)n, name, e);
    return rc ? rc : read_table(f, head, 8 + n, name, e);
}

static int open_map(struct st_file *f, struct filemap map, bool owns_map, const char *name, struct err *e)
{
    struct err local = {0};
    *f = (struct st_file){.map = map, .owns_map = owns_map, .format = ""};
    if (!read_all(f, name, &local))
        return 0;
    st_close(f);
    return err_set(e, local.code, "%s", local.msg);
}

int st_open_bytes(struct st_file *f, const void *p, size_t n, const char *name, struct err *e)
{
    return open_map(f, (struct filemap){p, n}, false, name, e);
}

int st_open(struct st_file *f, const char *path, const char *name, struct err *e)
{
    struct filemap map;
    *f = (struct st_file){.format = ""};
    int rc = file_map(&map, path, e);
    return rc ? rc : open_map(f, map, true, name ? name : path_base(path), e);
}

void st_close(struct st_file *f)
{
    free(f->tensor);
    arena_free(&f->arena);
    if (f->owns_map)
        file_unmap(&f->map);
    *f = (struct st_file){.format = ""};
}
