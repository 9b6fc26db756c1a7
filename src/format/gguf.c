/* Parser of the GGUF container. Counts are bounded by the bytes that are left before a table is allocated, and
 * every length before it is followed. Numbers are read with memcpy: nothing in the header is aligned.
 * Little-endian files on little-endian machines. */
#include "format/gguf.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum {
    MAX_KV = 1 << 16,
    MAX_TENSORS = 1 << 20,
    MAX_NAME_BYTES = 1 << 16,
    MAX_DIMS = 4,
    DEFAULT_ALIGNMENT = 32,
};
static const uint64_t max_alignment = 1u << 24;

static const struct gguf_type_info types[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},    {42, "Q2_0", 64, 18},
};

const struct gguf_type_info *gguf_type_info(int id)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].id == id)
            return &types[i];
    return NULL;
}

/* Bytes of one scalar; 0 for strings, arrays and unknown ids. */
static size_t scalar_bytes(int type)
{
    switch (type) {
    case GGUF_U8:
    case GGUF_I8:
    case GGUF_BOOL: return 1;
    case GGUF_U16:
    case GGUF_I16: return 2;
    case GGUF_U32:
    case GGUF_I32:
    case GGUF_F32: return 4;
    case GGUF_U64:
    case GGUF_I64:
    case GGUF_F64: return 8;
    default: return 0;
    }
}

// ---- reading ---------------------------------------------------------------------------------------------

struct reader {
    const uint8_t *p;
    size_t n, pos; // of the file
    size_t have;   // bytes of its begin that are at hand, n but for gguf_probe
    bool is_short; // more than those were needed
    const char *name;
    struct err *e;
};

static int truncated(struct reader *r, const char *what)
{
    return err_set(r->e, ERR_FORMAT, "%s: truncated file: it ends at byte %zu inside %.80s", r->name, r->n,
                   what);
}

/* After a check against the file's size: false if the bytes aren't at hand. */
static bool at_hand(struct reader *r, size_t n)
{
    r->is_short |= n > r->have - r->pos;
    return !r->is_short;
}

static int take(struct reader *r, void *out, size_t n, const char *what)
{
    if (n > r->n - r->pos)
        return truncated(r, what);
    if (!at_hand(r, n))
        return ERR_FORMAT;
    memcpy(out, r->p + r->pos, n);
    r->pos += n;
    return 0;
}

/* A length-prefixed string that stays in the file. what and name say where it stands. */
static int take_string(struct reader *r, struct gguf_str *s, size_t max, const char *what, const char *name)
{
    uint64_t n;
    if (take(r, &n, sizeof n, what))
        return ERR_FORMAT;
    if (n > r->n - r->pos || n > max)
        return err_set(r->e, ERR_FORMAT,
                       "%s: string length out of range in %s%s%.80s: %llu bytes, at most %zu are possible",
                       r->name, what, *name ? " " : "", name, (unsigned long long)n,
                       r->n - r->pos < max ? r->n - r->pos : max);
    if (!at_hand(r, (size_t)n))
        return ERR_FORMAT;
    s->s = (const char *)r->p + r->pos;
    s->n = (size_t)n;
    r->pos += (size_t)n;
    return 0;
}

/* Copies a name as a C string. Names with control characters or zero bytes are refused: they would cut or
 * garble every message. */
static int take_name(struct gguf *g, struct reader *r, const char **out, const char *what)
{
    struct gguf_str s;
    if (take_string(r, &s, MAX_NAME_BYTES, what, ""))
        return ERR_FORMAT;
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.s[i] < 0x20 || s.s[i] == 0x7f)
            return err_set(r->e, ERR_FORMAT, "%s: control character 0x%02x in %s before byte %zu", r->name,
                           (unsigned char)s.s[i], what, r->pos);
    *out = arena_strndup(g->arena, s.s, s.n);
    return *out ? 0 : err_set(r->e, ERR_NOMEM, "%s: no memory for names", r->name);
}

static int take_array(struct reader *r, struct gguf_kv *kv)
{
    int32_t elem;
    uint64_t n;
    if (take(r, &elem, sizeof elem, "an array header") || take(r, &n, sizeof n, "an array header"))
        return ERR_FORMAT;
    size_t width = scalar_bytes(elem), least = elem == GGUF_STRING ? 8 : width;
    if (!least)
        return err_set(r->e, ERR_FORMAT,
                       "%s: array %.80s has element type %d, expected a scalar type or string", r->name,
                       kv->key, (int)elem);
    if (n > (r->n - r->pos) / least)
        return err_set(r->e, ERR_FORMAT,
                       "%s: array length out of range in %.80s: %llu elements in the %zu bytes that follow",
                       r->name, kv->key, (unsigned long long)n, r->n - r->pos);
    kv->elem = elem;
    kv->n = n;
    kv->p = r->p + r->pos;
    size_t start = r->pos;
    struct gguf_str s;
    if (elem != GGUF_STRING && !at_hand(r, (size_t)n * width))
        return ERR_FORMAT;
    if (elem != GGUF_STRING)
        r->pos += (size_t)n * width;
    else
        for (uint64_t i = 0; i < n; i++)
            if (take_string(r, &s, SIZE_MAX, "array", kv->key))
                return ERR_FORMAT;
    kv->n_bytes = r->pos - start;
    return 0;
}

static int take_kv(struct gguf *g, struct reader *r, struct gguf_kv *kv)
{
    int32_t type;
    if (take_name(g, r, &kv->key, "a metadata key") || take(r, &type, sizeof type, "a metadata value"))
        return ERR_FORMAT;
    kv->type = kv->elem = type;
    kv->n = 1;
    if (type == GGUF_ARRAY)
        return take_array(r, kv);
    if (type == GGUF_STRING) {
        struct gguf_str s;
        if (take_string(r, &s, SIZE_MAX, "value", kv->key))
            return ERR_FORMAT;
        kv->p = s.s;
        kv->n_bytes = s.n;
        return 0;
    }
    size_t width = scalar_bytes(type);
    if (!width)
        return err_set(r->e, ERR_FORMAT, "%s: metadata key %.80s has unknown type %d", r->name, kv->key,
                       (int)type);
    if (width > r->n - r->pos)
        return truncated(r, kv->key);
    if (!at_hand(r, width))
        return ERR_FORMAT;
    kv->p = r->p + r->pos;
    kv->n_bytes = width;
    r->pos += width;
    return 0;
}

// ---- tensor table ----------------------------------------------------------------------------------------

static int take_tensor(struct gguf *g, struct reader *r, struct gguf_tensor *t)
{
    uint32_t n_dims;
    int32_t type;
    if (take_name(g, r, &t->name, "a tensor name") || take(r, &n_dims, sizeof n_dims, "the tensor table"))
        return ERR_FORMAT;
    if (n_dims < 1 || n_dims > MAX_DIMS)
        return err_set(r->e, ERR_FORMAT, "%s: bad rank of tensor %.100s: %u dimensions, expected 1 to %d",
                       r->name, t->name, n_dims, MAX_DIMS);
    t->n_dims = (int)n_dims;
    uint64_t elements = 1;
    for (int i = 0; i < MAX_DIMS; i++) {
        t->ne[i] = 1;
        if (i < t->n_dims && take(r, &t->ne[i], sizeof t->ne[i], "the tensor table"))
            return ERR_FORMAT;
        if (t->ne[i] < 1)
            return err_set(r->e, ERR_FORMAT,
                           "%s: tensor %.100s has size %lld in dimension %d, expected at least 1", r->name,
                           t->name, (long long)t->ne[i], i);
        if (__builtin_mul_overflow(elements, (uint64_t)t->ne[i], &elements))
            return err_set(r->e, ERR_FORMAT, "%s: shape of tensor %.100s overflows 64 bits", r->name,
                           t->name);
    }
    if (take(r, &type, sizeof type, "the tensor table") ||
        take(r, &t->offset, sizeof t->offset, "the tensor table"))
        return ERR_FORMAT;
    t->type = type;
    const struct gguf_type_info *info = gguf_type_info(type);
    if (!info)
        return err_set(r->e, ERR_FORMAT, "%s: unknown type of tensor %.100s: id %d", r->name, t->name,
                       (int)type);
    if (t->ne[0] % info->block)
        return err_set(r->e, ERR_FORMAT,
                       "%s: tensor %.100s has rows of %lld, expected a multiple of %d for %s", r->name,
                       t->name, (long long)t->ne[0], info->block, info->name);
    if (__builtin_mul_overflow(elements / (uint64_t)info->block, (uint64_t)info->bytes, &t->n_bytes))
        return err_set(r->e, ERR_FORMAT, "%s: shape of tensor %.100s overflows 64 bits", r->name, t->name);
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(const struct gguf_tensor *const *)a,
                             *y = *(const struct gguf_tensor *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}
static int by_tensor_name(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(const struct gguf_tensor *const *)a,
                             *y = *(const struct gguf_tensor *const *)b;
    return strcmp(x->name, y->name);
}
static int by_key(const void *a, const void *b)
{
    const struct gguf_kv *x = *(const struct gguf_kv *const *)a, *y = *(const struct gguf_kv *const *)b;
    return strcmp(x->key, y->key);
}

/* Offsets become file offsets; ranges must lie in the file, aligned, and apart from each other. */
static int place_tensors(struct gguf *g, struct err *e)
{
    size_t n = g->map.n;
    uint64_t room = n > g->data_offset ? n - g->data_offset : 0;
    const struct gguf_tensor **order = malloc((g->n_tensors + 1) * sizeof *order);
    if (!order)
        return err_set(e, ERR_NOMEM, "%s: no memory for %zu tensors", g->name, g->n_tensors);
    int rc = 0;
    for (size_t i = 0; i < g->n_tensors && !rc; i++) {
        struct gguf_tensor *t = &g->tensor[i];
        order[i] = t;
        if (t->offset % g->alignment)
            rc = err_set(e, ERR_FORMAT, "%s: unaligned tensor %.100s: offset %llu is not a multiple of %llu",
                         g->name, t->name, (unsigned long long)t->offset, (unsigned long long)g->alignment);
        else if (t->offset > room)
            rc = err_set(e, ERR_FORMAT,
                         "%s: tensor %.100s lies outside the file: offset %llu, %llu bytes of data", g->name,
                         t->name, (unsigned long long)t->offset, (unsigned long long)room);
        else if (t->n_bytes > room - t->offset)
            rc = err_set(e, ERR_FORMAT,
                         "%s: truncated file: tensor %.100s ends beyond the file (%llu bytes at offset %llu, "
                         "%llu bytes of data)",
                         g->name, t->name, (unsigned long long)t->n_bytes, (unsigned long long)t->offset,
                         (unsigned long long)room);
        else
            t->offset += g->data_offset;
    }
    if (!rc && g->n_tensors > 1) {
        qsort(order, g->n_tensors, sizeof *order, by_offset);
        for (size_t i = 1; i < g->n_tensors && !rc; i++)
            if (order[i - 1]->offset + order[i - 1]->n_bytes > order[i]->offset)
                rc = err_set(e, ERR_FORMAT, "%s: overlapping tensors %.100s and %.100s", g->name,
                             order[i - 1]->name, order[i]->name);
        qsort(order, g->n_tensors, sizeof *order, by_tensor_name);
        for (size_t i = 1; i < g->n_tensors && !rc; i++)
            if (!strcmp(order[i - 1]->name, order[i]->name))
                rc = err_set(e, ERR_FORMAT, "%s: tensor %.100s is listed twice", g->name, order[i]->name);
    }
    free(order);
    return rc;
}

// ---- opening ---------------------------------------------------------------------------------------------

static int read_head(struct gguf *g, struct reader *r, uint64_t *n_tensors, uint64_t *n_kv)
{
    char magic[4];
    uint32_t version;
    if (r->n < 4 || take(r, magic, 4, "the magic") || memcmp(magic, "GGUF", 4))
        return err_set(r->e, ERR_FORMAT, "%s: not a GGUF file: it doesn't begin with the letters GGUF",
                       g->name);
    if (take(r, &version, sizeof version, "the header"))
        return ERR_FORMAT;
    if (version >= 1u << 24 && !(version & 0xffffff))
        return err_set(r->e, ERR_UNSUPPORTED,
                       "%s: big-endian GGUF is unsupported, expected a little-endian file", g->name);
    if (version != 2 && version != 3)
        return err_set(r->e, ERR_UNSUPPORTED, "%s: unsupported GGUF version %u, expected 2 or 3", g->name,
                       version);
    g->version = (int)version;
    if (take(r, n_tensors, 8, "the header") || take(r, n_kv, 8, "the header"))
        return ERR_FORMAT;
    size_t left = r->n - r->pos;
    uint64_t max_kv = left / 13 < MAX_KV ? left / 13 : MAX_KV;                // empty key, type, one byte
    uint64_t max_tensors = left / 32 < MAX_TENSORS ? left / 32 : MAX_TENSORS; // empty name, one dimension
    if (*n_kv > max_kv)
        return err_set(r->e, ERR_FORMAT, "%s: metadata count out of range: %llu, at most %llu are possible",
                       g->name, (unsigned long long)*n_kv, (unsigned long long)max_kv);
    if (*n_tensors > max_tensors)
        return err_set(r->e, ERR_FORMAT, "%s: tensor count out of range: %llu, at most %llu are possible",
                       g->name, (unsigned long long)*n_tensors, (unsigned long long)max_tensors);
    return 0;
}

static int index_kv(struct gguf *g, struct err *e)
{
    const struct gguf_kv **index = g->index;
    for (size_t i = 0; i < g->n_kv; i++)
        index[i] = &g->kv[i];
    if (g->n_kv > 1)
        qsort(index, g->n_kv, sizeof *index, by_key);
    for (size_t i = 1; i < g->n_kv; i++)
        if (!strcmp(index[i - 1]->key, index[i]->key))
            return err_set(e, ERR_FORMAT, "%s: metadata key %.100s is listed twice", g->name, index[i]->key);
    return 0;
}

static int read_header(struct gguf *g, struct reader *r, struct err *e)
{
    uint64_t n_tensors, n_kv;
    int rc = read_head(g, r, &n_tensors, &n_kv);
    if (rc)
        return rc;
    g->kv = calloc((size_t)n_kv + 1, sizeof *g->kv);
    g->index = calloc((size_t)n_kv + 1, sizeof(struct gguf_kv *));
    g->tensor = calloc((size_t)n_tensors + 1, sizeof *g->tensor);
    if (!g->kv || !g->index || !g->tensor)
        return err_set(e, ERR_NOMEM, "%s: no memory for its tables", g->name);
    for (; g->n_kv < n_kv; g->n_kv++)
        if (take_kv(g, r, &g->kv[g->n_kv]))
            return ERR_FORMAT;
    if ((rc = index_kv(g, e)))
        return rc;
    const struct gguf_kv *kv = gguf_find(g, "general.alignment");
    int64_t align = DEFAULT_ALIGNMENT;
    if (kv && !gguf_int(kv, &align))
        return err_set(e, ERR_FORMAT, "%s: bad alignment: general.alignment is not an integer", g->name);
    if (align < 1 || (uint64_t)align > max_alignment || (align & (align - 1)))
        return err_set(e, ERR_FORMAT,
                       "%s: bad alignment: general.alignment is %lld, expected a power of two up to %llu",
                       g->name, (long long)align, (unsigned long long)max_alignment);
    g->alignment = (uint64_t)align;
    for (; g->n_tensors < n_tensors; g->n_tensors++)
        if (take_tensor(g, r, &g->tensor[g->n_tensors]))
            return ERR_FORMAT;
    g->data_offset = (r->pos + g->alignment - 1) / g->alignment * g->alignment;
    return place_tensors(g, e);
}

/* have: bytes of the file that are at hand. 1 (nothing opened) if they don't hold the whole header. */
static int open_map(struct gguf **out, struct filemap map, bool owns_map, size_t have, const char *name, struct err *e)
{
    struct err local = {0};
    struct gguf *g = xcalloc(1, sizeof *g);
    g->arena = xcalloc(1, sizeof *g->arena);
    g->map = map;
    g->owns_map = owns_map;
    g->name = xstrdup(name);
    struct reader r = {.p = map.p, .n = map.n, .have = have, .name = g->name, .e = &local};
    int rc = read_header(g, &r, &local);
    if (rc) {
        gguf_close(g);
        return r.is_short ? 1 : err_set(e, local.code, "%s", local.msg);
    }
    *out = g;
    return 0;
}

int gguf_probe(const void *p, size_t have, size_t size, const char *name, struct err *e)
{
    struct gguf *g = NULL;
    int rc = open_map(&g, (struct filemap){p, size}, false, have, name, e);
    gguf_close(g);
    return rc;
}

int gguf_open_bytes(struct gguf **g, const void *p, size_t n, const char *name, struct err *e)
{
    *g = NULL;
    return open_map(g, (struct filemap){p, n}, false, n, name, e);
}

int gguf_open(struct gguf **g, const char *path, struct err *e)
{
    struct filemap map;
    *g = NULL;
    int rc = file_map(&map, path, e);
    return rc ? rc : open_map(g, map, true, map.n, path_base(path), e);
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    free(g->kv);
    free(g->tensor);
    free(g->index);
    free(g->name);
    arena_free(g->arena);
    free(g->arena);
    if (g->owns_map)
        file_unmap(&g->map);
    free(g);
}

// ---- values ----------------------------------------------------------------------------------------------

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key)
{
    if (!g->n_kv)
        return NULL;
    const struct gguf_kv want = {.key = key}, *p = &want;
    const struct gguf_kv *const *at = bsearch(&p, g->index, g->n_kv, sizeof p, by_key);
    return at ? *at : NULL;
}

static bool load_int(int type, const void *p, int64_t *v)
{
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } x = {0};
    size_t n = scalar_bytes(type);
    if (!n || type == GGUF_F32 || type == GGUF_F64)
        return false;
    memcpy(&x, p, n);
    switch (type) {
    case GGUF_BOOL: *v = x.u8 != 0; return true;
    case GGUF_U8: *v = x.u8; return true;
    case GGUF_I8: *v = x.i8; return true;
    case GGUF_U16: *v = x.u16; return true;
    case GGUF_I16: *v = x.i16; return true;
    case GGUF_U32: *v = x.u32; return true;
    case GGUF_I32: *v = x.i32; return true;
    case GGUF_I64: *v = x.i64; return true;
    default:
        if (x.u64 > INT64_MAX)
            return false;
        *v = (int64_t)x.u64;
        return true;
    }
}

static bool load_num(int type, const void *p, double *v)
{
    int64_t i;
    float f;
    if (type == GGUF_F32) {
        memcpy(&f, p, sizeof f);
        *v = (double)f;
        return true;
    }
    if (type == GGUF_F64) {
        memcpy(v, p, sizeof *v);
        return true;
    }
    if (type == GGUF_BOOL || !load_int(type, p, &i))
        return false;
    *v = (double)i;
    return true;
}

bool gguf_int(const struct gguf_kv *kv, int64_t *v)
{
    return kv && kv->type != GGUF_BOOL && load_int(kv->type, kv->p, v);
}
bool gguf_num(const struct gguf_kv *kv, double *v) { return kv && load_num(kv->type, kv->p, v); }

bool gguf_bool(const struct gguf_kv *kv, bool *v)
{
    int64_t i;
    if (!kv || kv->type != GGUF_BOOL || !load_int(GGUF_BOOL, kv->p, &i))
        return false;
    *v = i;
    return true;
}

bool gguf_string(const struct gguf_kv *kv, struct gguf_str *v)
{
    if (!kv || kv->type != GGUF_STRING)
        return false;
    v->s = kv->p;
    v->n = (size_t)kv->n_bytes;
    return true;
}

bool gguf_ints(const struct gguf_kv *kv, int64_t *out)
{
    if (!kv || kv->type != GGUF_ARRAY || kv->elem == GGUF_F32 || kv->elem == GGUF_F64 ||
        !scalar_bytes(kv->elem))
        return false;
    const char *p = kv->p;
    for (uint64_t i = 0; i < kv->n; i++)
        if (!load_int(kv->elem, p + i * scalar_bytes(kv->elem), &out[i]))
            return false;
    return true;
}

bool gguf_nums(const struct gguf_kv *kv, double *out)
{
    if (!kv || kv->type != GGUF_ARRAY || kv->elem == GGUF_BOOL || !scalar_bytes(kv->elem))
        return false;
    const char *p = kv->p;
    for (uint64_t i = 0; i < kv->n; i++)
        if (!load_num(kv->elem, p + i * scalar_bytes(kv->elem), &out[i]))
            return false;
    return true;
}

int gguf_strings(const struct gguf_kv *kv, struct gguf_str *out)
{
    if (!kv || kv->type != GGUF_ARRAY || kv->elem != GGUF_STRING)
        return ERR_FORMAT;
    const char *p = kv->p;
    for (uint64_t i = 0; i < kv->n; i++) {
        uint64_t n;
        memcpy(&n, p, sizeof n);
        out[i] = (struct gguf_str){p + sizeof n, (size_t)n};
        p += sizeof n + n;
    }
    return 0;
}

int gguf_find_string(const char *path, const char *key, char **value, struct err *e)
{
    struct gguf *g;
    struct gguf_str s;
    *value = NULL;
    int rc = gguf_open(&g, path, e);
    if (rc)
        return rc;
    if (gguf_string(gguf_find(g, key), &s)) {
        *value = malloc(s.n + 1);
        if (*value) {
            memcpy(*value, s.s, s.n);
            (*value)[s.n] = 0;
        } else {
            rc = err_set(e, ERR_NOMEM, "%s: no memory for the %zu bytes of %s", path, s.n, key);
        }
    } else {
        rc = 1;
    }
    gguf_close(g);
    return rc;
}
