/* The catalogue: entries hashed by canonical key, what was asked for and what was not, and why. The hash is
 * seeded so that a file can't choose names that collide. */
#include "format/weights.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/rng.h"
#include "format/catalogue.h"

enum { MAX_KEY = 256 };

// ---- building --------------------------------------------------------------------------------------------

struct weights *weights_new(const char *label)
{
    struct weights *w = xcalloc(1, sizeof *w);
    w->label = xstrdup(label);
    w->seed = rng_entropy();
    return w;
}

void weights_free(struct weights *w)
{
    if (!w)
        return;
    for (int i = 0; i < w->n_st; i++)
        st_close(&w->st[i]);
    for (int i = 0; i < w->n_gguf; i++)
        gguf_close(w->gguf[i]);
    free(w->st);
    free(w->gguf);
    free(w->entry);
    free(w->slot);
    free(w->label);
    arena_free(&w->arena);
    free(w);
}

const char *weights_canonical(const char *name)
{
    static const char *const prefix[] = {"model.language_model.", "language_model.model.", "model.",
                                         "language_model."};
    for (size_t i = 0; i < sizeof prefix / sizeof *prefix; i++)
        if (!strncmp(name, prefix[i], strlen(prefix[i])))
            return name + strlen(prefix[i]);
    return name;
}

/* Slot that holds the key, or the empty one where it belongs. */
static size_t probe(const struct weights *w, const char *key)
{
    size_t i = XXH64(key, strlen(key), w->seed) & (w->n_slots - 1);
    while (w->slot[i] && strcmp(w->entry[w->slot[i] - 1].w.key, key))
        i = (i + 1) & (w->n_slots - 1);
    return i;
}

static void rehash(struct weights *w, size_t n_slots)
{
    free(w->slot);
    w->slot = xcalloc(n_slots, sizeof *w->slot);
    w->n_slots = n_slots;
    for (int i = 0; i < w->n; i++)
        w->slot[probe(w, w->entry[i].w.key)] = (uint32_t)i + 1;
}

int weights_add(struct weights *w, const struct weight *t, int file_no, struct err *e)
{
    if (2 * ((size_t)w->n + 1) > w->n_slots)
        rehash(w, w->n_slots ? 2 * w->n_slots : 256);
    size_t at = probe(w, t->key);
    if (w->slot[at])
        return 1;
    if (w->n == w->cap) {
        w->cap = w->cap ? 2 * w->cap : 256;
        w->entry = xrealloc(w->entry, (size_t)w->cap * sizeof *w->entry);
    }
    struct catalogue_entry *c = &w->entry[w->n];
    *c = (struct catalogue_entry){*t, file_no};
    c->w.name = arena_strndup(&w->arena, t->name, strlen(t->name));
    c->w.key = arena_strndup(&w->arena, t->key, strlen(t->key));
    c->w.file = arena_strndup(&w->arena, t->file, strlen(t->file));
    c->w.type = arena_strndup(&w->arena, t->type, strlen(t->type));
    if (!c->w.name || !c->w.key || !c->w.file || !c->w.type)
        return err_set(e, ERR_NOMEM, "%s: no memory for tensor names", w->label);
    w->slot[at] = (uint32_t)++w->n;
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const struct catalogue_entry *x = a, *y = b;
    if (x->file_no != y->file_no)
        return x->file_no < y->file_no ? -1 : 1;
    uintptr_t p = (uintptr_t)x->w.q, q = (uintptr_t)y->w.q;
    return p < q ? -1 : p > q ? 1 : strcmp(x->w.key, y->w.key);
}

void weights_seal(struct weights *w)
{
    if (w->n > 1)
        qsort(w->entry, (size_t)w->n, sizeof *w->entry, by_place);
    rehash(w, w->n_slots ? w->n_slots : 256);
}

// ---- lookups ---------------------------------------------------------------------------------------------

static struct weight *find(const struct weights *w, char key[MAX_KEY], const char *fmt, va_list ap)
{
    int n = vsnprintf(key, MAX_KEY, fmt, ap);
    if (n < 0 || n >= MAX_KEY || !w->n_slots)
        return NULL;
    size_t at = probe(w, key);
    return w->slot[at] ? &w->entry[w->slot[at] - 1].w : NULL;
}

const struct weight *weights_find(const struct weights *w, const char *key, ...)
{
    char name[MAX_KEY];
    va_list ap;
    va_start(ap, key);
    const struct weight *t = find(w, name, key, ap);
    va_end(ap);
    return t;
}

static const char *shape_text(const struct weight *t, char out[96])
{
    int n = 0;
    out[n++] = '[';
    for (int i = 0; i < t->ndim && n < 70; i++)
        n += snprintf(out + n, (size_t)(96 - n), "%s%lld", i ? ", " : "", (long long)t->ne[i]);
    snprintf(out + n, (size_t)(96 - n), "]");
    return out;
}

static int64_t element_count(const struct weight *t)
{
    int64_t n = 1; // can't overflow: the containers have checked the product
    for (int i = 0; i < t->ndim; i++)
        n *= t->ne[i];
    return n;
}

static bool is_unsupported(const struct weight *t, struct err *e)
{
    if (t->fmt == WF_OTHER)
        err_set(e, ERR_UNSUPPORTED, "%s: tensor %.120s is stored as %s, an unsupported format", t->file,
                t->name, t->type);
    return t->fmt == WF_OTHER;
}

const struct weight *weights_matrix(struct weights *w, struct err *e, int64_t out, int64_t in,
                                    const char *key, ...)
{
    char name[MAX_KEY], shape[96];
    va_list ap;
    va_start(ap, key);
    struct weight *t = find(w, name, key, ap);
    va_end(ap);
    if (!t) {
        err_set(e, ERR_FORMAT, "%s: missing tensor %.120s, expected a matrix of [%lld, %lld]", w->label, name,
                (long long)out, (long long)in);
        return NULL;
    }
    t->used = true;
    if (is_unsupported(t, e)) // first, because the stored shape may be one of packed words
        return NULL;
    int64_t cols = t->ne[t->ndim - 1];
    if (cols != in || in < 1 || element_count(t) / cols != out || (t->ndim == 1 && out != 1)) {
        err_set(e, ERR_FORMAT, "%s: shape of tensor %.120s: expected [%lld, %lld], found %s", t->file,
                t->name, (long long)out, (long long)in, shape_text(t, shape));
        return NULL;
    }
    return t;
}

const float *weights_floats(struct weights *w, struct err *e, int64_t n, const char *key, ...)
{
    char name[MAX_KEY], shape[96];
    va_list ap;
    va_start(ap, key);
    struct weight *t = find(w, name, key, ap);
    va_end(ap);
    if (!t) {
        err_set(e, ERR_FORMAT, "%s: missing tensor %.120s, expected %lld values", w->label, name,
                (long long)n);
        return NULL;
    }
    t->used = true;
    if (is_unsupported(t, e))
        return NULL;
    if (n < 1 || element_count(t) != n) {
        err_set(e, ERR_FORMAT, "%s: shape of tensor %.120s: expected %lld values, found %s", t->file, t->name,
                (long long)n, shape_text(t, shape));
        return NULL;
    }
    char *p = arena_alloc(&w->arena, (size_t)n * sizeof(float) + 64);
    if (!p) {
        err_set(e, ERR_NOMEM, "%s: no memory for the %lld values of tensor %.120s", t->file, (long long)n,
                t->name);
        return NULL;
    }
    float *v = (float *)(void *)(p + (64 - (uintptr_t)p % 64) % 64);
    int64_t cols = t->ne[t->ndim - 1];
    for (int64_t r = 0; r < n / cols; r++)
        weight_row(t, r, v + r * cols);
    return v;
}

void weights_ignore(struct weights *w, const char *prefix, const char *why)
{
    size_t n = strlen(prefix);
    char *kept = NULL; // one copy, made when the first tensor matches
    for (int i = 0; i < w->n; i++) {
        struct weight *t = &w->entry[i].w;
        if (t->used || t->unused_why || (strncmp(t->key, prefix, n) && strncmp(t->file, prefix, n)))
            continue;
        if (!kept)
            kept = arena_strndup(&w->arena, why, strlen(why));
        t->unused_why = kept;
    }
}

int weights_count(const struct weights *w) { return w->n; }
const struct weight *weights_at(const struct weights *w, int i)
{
    return i >= 0 && i < w->n ? &w->entry[i].w : NULL;
}
