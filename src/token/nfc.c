/* Text falls into chunks that never interact: each starts with a character that is a starter and has
 * NFC_Quick_Check=Yes, and takes along the "active" characters after it. A chunk without active characters is
 * copied; the others are decomposed, sorted by combining class and composed. Decompositions, classes and
 * pairs come from utf8proc, cut back to what Unicode 9 knew by the tables in unicode_table.h. */
#include "token/nfc.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "token/unicode.h"
#include "token/unicode_table.h"

struct chunk {
    int32_t *cp, *tmp; // tmp: the sort's other half
    uint8_t *ccc;
    size_t n, cap;
};

static bool in_table(const uint32_t (*t)[2], size_t n, int32_t cp)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if ((uint32_t)cp > t[mid][1])
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && (uint32_t)cp >= t[lo][0];
}

static bool is_active(int32_t cp)
{
    if (cp < 0x300 || (cp >= 0x4E00 && cp < 0xA000) || (cp >= 0xAC00 && cp < 0xD7A4))
        return false;
    return in_table(nfc_active, sizeof nfc_active / sizeof *nfc_active, cp);
}

static bool is_later(int32_t cp) { return in_table(nfc_later, sizeof nfc_later / sizeof *nfc_later, cp); }

static bool chunk_reserve(struct chunk *c, size_t n)
{
    if (n <= c->cap)
        return true;
    size_t cap = c->cap ? c->cap : 32;
    while (cap < n)
        cap *= 2;
    int32_t *cp = realloc(c->cp, cap * sizeof *cp);
    if (cp)
        c->cp = cp;
    int32_t *tmp = realloc(c->tmp, cap * sizeof *tmp);
    if (tmp)
        c->tmp = tmp;
    uint8_t *ccc = realloc(c->ccc, cap);
    if (ccc)
        c->ccc = ccc;
    if (!cp || !tmp || !ccc)
        return false;
    c->cap = cap;
    return true;
}

static uint8_t class_of(int32_t cp)
{
    return is_active(cp) ? (uint8_t)utf8proc_get_property(cp)->combining_class : 0;
}

/* Appends the full canonical decomposition of cp. */
static bool decompose(struct chunk *c, int32_t cp)
{
    enum { MOST = 18 }; // longest full decomposition in Unicode is 18, canonical ones are at most 4
    utf8proc_int32_t out[MOST];
    int bound = 0;
    utf8proc_ssize_t n = -1;
    if (!is_later(cp))
        n = utf8proc_decompose_char(cp, out, MOST, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &bound);
    if (n < 1 || n > MOST) {
        out[0] = cp;
        n = 1;
    }
    if (!chunk_reserve(c, c->n + (size_t)n))
        return false;
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        c->ccc[c->n] = class_of(out[i]);
        c->cp[c->n++] = out[i];
    }
    return true;
}

/* Stable order of cp[from..to) by class. Long runs (the text is untrusted) are counted, not inserted. */
static void sort_run(struct chunk *c, size_t from, size_t to)
{
    if (to - from <= 16) {
        for (size_t i = from + 1; i < to; i++) {
            int32_t cp = c->cp[i];
            uint8_t ccc = c->ccc[i];
            size_t j = i;
            for (; j > from && c->ccc[j - 1] > ccc; j--) {
                c->cp[j] = c->cp[j - 1];
                c->ccc[j] = c->ccc[j - 1];
            }
            c->cp[j] = cp;
            c->ccc[j] = ccc;
        }
        return;
    }
    size_t at[256] = {0}, sum = from;
    for (size_t i = from; i < to; i++)
        at[c->ccc[i]]++;
    for (int k = 0; k < 256; k++) {
        size_t n = at[k];
        at[k] = sum;
        sum += n;
    }
    for (size_t i = from; i < to; i++)
        c->tmp[at[c->ccc[i]]++] = c->cp[i];
    for (size_t i = from; i < to; i++) {
        c->cp[i] = c->tmp[i];
        c->ccc[i] = class_of(c->cp[i]);
    }
}

/* The character that a and b compose to, or -1. */
static int32_t compose_pair(int32_t a, int32_t b)
{
    utf8proc_int32_t pair[2] = {a, b};
    if (!is_active(b)) // every second half of a pair is active
        return -1;
    if (utf8proc_normalize_utf32(pair, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE) != 1)
        return -1;
    return is_later(pair[0]) || utf8proc_category(pair[0]) == UTF8PROC_CATEGORY_CN ? -1 : pair[0];
}

static void compose(struct chunk *c)
{
    size_t starter = SIZE_MAX, w = 0;
    int last = -1; // highest class since the starter; -1: nothing between it and the next character
    for (size_t i = 0; i < c->n; i++) {
        int32_t cp = c->cp[i], both;
        int ccc = c->ccc[i];
        if (starter != SIZE_MAX && last < ccc && (both = compose_pair(c->cp[starter], cp)) >= 0) {
            c->cp[starter] = both;
            continue;
        }
        if (ccc == 0) {
            starter = w;
            last = -1;
        } else {
            last = ccc;
        }
        c->cp[w++] = cp;
    }
    c->n = w;
}

static void order_and_compose(struct chunk *c)
{
    for (size_t i = 0; i < c->n;) {
        size_t j = i;
        while (j < c->n && c->ccc[j])
            j++;
        if (j > i + 1)
            sort_run(c, i, j);
        i = j > i ? j : i + 1;
    }
    compose(c);
}

/* End of the chunk whose active part starts at `at`. */
static size_t chunk_end(const struct view *v, size_t at)
{
    while (at < v->n) {
        int32_t cp;
        int len = utf8_next(v->s + at, v->n - at, &cp);
        if (!is_active(cp))
            break;
        at += (size_t)len;
    }
    return at;
}

static int do_chunk(struct text *t, struct chunk *c, const struct view *v, size_t from, size_t to)
{
    bool is_tpl = view_is_tpl(v, from, to); // composing mixes the bytes: trusted only if all are
    char out[4];
    c->n = 0;
    for (size_t i = from; i < to;) {
        int32_t cp;
        i += (size_t)utf8_next(v->s + i, v->n - i, &cp);
        if (!decompose(c, cp))
            return ERR_NOMEM;
    }
    order_and_compose(c);
    for (size_t i = 0; i < c->n; i++)
        text_add(t, out, (size_t)utf8_put(c->cp[i], out), is_tpl);
    return 0;
}

int nfc_normalize(struct text *t, const struct view *v)
{
    struct chunk c = {0};
    size_t done = 0, prev = 0; // written so far; start of the character before `at`, at least done
    int rc = 0;
    const char *end = v->s + v->n, *p = v->s;
    while ((p = unicode_skip_ascii(p, end)) < end && !rc) {
        int32_t cp;
        size_t at = (size_t)(p - v->s);
        if (at && (uint8_t)p[-1] < 0x80)
            prev = at - 1;
        int len = utf8_next(p, (size_t)(end - p), &cp);
        if (!is_active(cp)) {
            prev = at;
            p += len;
            continue;
        }
        size_t to = chunk_end(v, at);
        text_copy(t, v, done, prev);
        rc = do_chunk(t, &c, v, prev, to);
        done = prev = to;
        p = v->s + to;
    }
    if (done)
        text_copy(t, v, done, v->n);
    free(c.cp);
    free(c.tmp);
    free(c.ccc);
    return rc ? rc : done > 0;
}
