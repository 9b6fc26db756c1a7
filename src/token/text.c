#include "token/text.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "token/unicode.h"

struct view view_part(const struct view *v, size_t from, size_t to)
{
    struct view part = *v;
    part.s += from;
    part.n = to - from;
    part.base += from;
    return part;
}

struct view text_view(const struct text *t)
{
    return (struct view){.s = t->n ? t->s : "", .n = t->n, .r = t->r, .n_r = t->n_r};
}

size_t view_run(const struct view *v, size_t at, bool *is_tpl)
{
    size_t lo = 0, hi = v->n_r - 1, pos = v->base + at;
    while (lo < hi) { // first region that ends after pos
        size_t mid = (lo + hi) / 2;
        if (v->r[mid].end <= pos)
            lo = mid + 1;
        else
            hi = mid;
    }
    *is_tpl = v->r[lo].is_tpl;
    size_t n = v->r[lo].end - pos;
    return n < v->n - at ? n : v->n - at;
}

bool view_is_tpl(const struct view *v, size_t from, size_t to)
{
    bool is_tpl = true;
    while (is_tpl && from < to)
        from += view_run(v, from, &is_tpl);
    return is_tpl;
}

static bool grow(void **p, size_t *cap, size_t need, size_t size)
{
    size_t c = *cap ? *cap : 256, bytes;
    while (c < need)
        if (__builtin_mul_overflow(c, (size_t)2, &c))
            return false;
    if (__builtin_mul_overflow(c, size, &bytes))
        return false;
    void *q = realloc(*p, bytes);
    if (!q)
        return false;
    *p = q;
    *cap = c;
    return true;
}

void text_add(struct text *t, const char *s, size_t n, bool is_tpl)
{
    if (!n || t->is_full)
        return;
    bool is_new = !t->n_r || t->r[t->n_r - 1].is_tpl != is_tpl;
    if ((t->n + n > t->cap && !grow((void **)&t->s, &t->cap, t->n + n, 1)) ||
        (is_new && t->n_r == t->cap_r && !grow((void **)&t->r, &t->cap_r, t->n_r + 1, sizeof *t->r))) {
        t->is_full = true;
        return;
    }
    memcpy(t->s + t->n, s, n);
    t->n += n;
    if (is_new)
        t->r[t->n_r++].is_tpl = is_tpl;
    t->r[t->n_r - 1].end = t->n;
}

void text_copy(struct text *t, const struct view *v, size_t from, size_t to)
{
    while (from < to) {
        bool is_tpl;
        size_t n = view_run(v, from, &is_tpl);
        if (n > to - from)
            n = to - from;
        text_add(t, v->s + from, n, is_tpl);
        from += n;
    }
}

void text_clear(struct text *t)
{
    t->n = t->n_r = 0;
    t->is_full = false;
}

void text_free(struct text *t)
{
    free(t->s);
    free(t->r);
    *t = (struct text){0};
}

/* Offset of the first byte at or after `at` that isn't valid UTF-8; v->n if there is none. */
static size_t find_invalid(const struct view *v, size_t at, size_t *bad)
{
    const char *end = v->s + v->n, *p = v->s + at;
    while ((p = unicode_skip_ascii(p, end)) < end) {
        int32_t cp;
        int len = utf8_next(p, (size_t)(end - p), &cp);
        if (cp < 0) {
            *bad = len ? (size_t)len : (size_t)(end - p); // 0: a valid sequence, cut by the end
            break;
        }
        p += len;
    }
    return (size_t)(p - v->s);
}

int text_repair(struct text *t, const struct view *v)
{
    size_t bad = 0, at = 0, next = find_invalid(v, 0, &bad);
    if (next == v->n)
        return 0;
    while (next < v->n) {
        text_copy(t, v, at, next);
        text_add(t, "\xEF\xBF\xBD", 3, view_is_tpl(v, next, next + bad));
        at = next + bad;
        next = find_invalid(v, at, &bad);
    }
    text_copy(t, v, at, v->n);
    return 1;
}
