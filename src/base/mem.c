#include "base/mem.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"

static void *need(void *p, size_t n)
{
    if (!p) {
        fprintf(stderr, "foresay: out of memory (%zu bytes for a control structure)\n", n);
        _Exit(1);
    }
    return p;
}

void *xmalloc(size_t n) { return need(malloc(n ? n : 1), n); }
void *xcalloc(size_t n, size_t size) { return need(calloc(n ? n : 1, size ? size : 1), n * size); }
void *xrealloc(void *p, size_t n) { return need(realloc(p, n ? n : 1), n); }
char *xstrdup(const char *s) { return xstrndup(s, strlen(s)); }

char *xstrndup(const char *s, size_t n)
{
    char *p = xmalloc(n + 1);
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}

void *mem_big(size_t n) { return os_map_anon(n ? n : 1); }
void mem_big_free(void *p, size_t n)
{
    if (p)
        os_unmap(p, n ? n : 1);
}

struct arena_block {
    struct arena_block *next;
    size_t used, cap;
    max_align_t data[];
};

enum { ARENA_BLOCK = 16 * 1024, ARENA_BLOCK_MAX = 1024 * 1024 };

void *arena_alloc(struct arena *a, size_t n)
{
    struct arena_block *b = a->head;
    if (n > SIZE_MAX / 4)
        return NULL;
    n = (n + 15) & ~(size_t)15;
    if (a->max_bytes && n > a->max_bytes - a->used_bytes)
        return NULL;
    if (!b || b->cap - b->used < n) {
        size_t cap = b ? b->cap * 2 : ARENA_BLOCK;
        if (cap > ARENA_BLOCK_MAX)
            cap = ARENA_BLOCK_MAX;
        if (cap < n)
            cap = n;
        struct arena_block *nb = malloc(sizeof *nb + cap);
        if (!nb)
            return NULL;
        nb->next = b;
        nb->used = 0;
        nb->cap = cap;
        a->head = b = nb;
    }
    void *p = (char *)b->data + b->used;
    b->used += n;
    a->used_bytes += n;
    return p;
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *p = arena_alloc(a, n + 1);
    if (p) {
        memcpy(p, s, n);
        p[n] = 0;
    }
    return p;
}

void arena_free(struct arena *a)
{
    struct arena_block *b = a->head;
    while (b) {
        struct arena_block *next = b->next;
        free(b);
        b = next;
    }
    a->head = NULL;
    a->used_bytes = 0;
}
