#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void buf_init(struct buf *b, size_t max) { *b = (struct buf){.max = max}; }

void buf_free(struct buf *b)
{
    free(b->p);
    *b = (struct buf){.max = b->max};
}

void buf_clear(struct buf *b)
{
    b->n = 0;
    b->is_full = false;
    if (b->p)
        b->p[0] = 0;
}

static bool reserve(struct buf *b, size_t n)
{
    if (b->is_full || n > b->max - b->n) {
        b->is_full = true;
        return false;
    }
    if (b->n + n + 1 > b->cap) {
        size_t cap = b->cap ? b->cap : 64;
        while (cap < b->n + n + 1)
            cap *= 2;
        char *p = realloc(b->p, cap);
        if (!p) {
            b->is_full = true;
            return false;
        }
        b->p = p;
        b->cap = cap;
    }
    return true;
}

void buf_reserve(struct buf *b, size_t n)
{
    if (n > b->n && n <= b->max)
        reserve(b, n - b->n);
}

void buf_add(struct buf *b, const void *s, size_t n)
{
    if (!reserve(b, n))
        return;
    if (n)
        memcpy(b->p + b->n, s, n);
    b->n += n;
    b->p[b->n] = 0;
}

void buf_str(struct buf *b, const char *s) { buf_add(b, s, strlen(s)); }
void buf_chr(struct buf *b, char c) { buf_add(b, &c, 1); }

void buf_fmt(struct buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    if (n >= 0 && reserve(b, (size_t)n)) {
        vsnprintf(b->p + b->n, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    }
    va_end(again);
    va_end(ap);
}

char *buf_take(struct buf *b)
{
    char *p = b->p ? b->p : xstrdup("");
    *b = (struct buf){.max = b->max};
    return p;
}

const char *buf_cstr(const struct buf *b) { return b->p ? b->p : ""; }
