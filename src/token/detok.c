/* Ids to text. At most three bytes wait for the rest of their character. */
#include <string.h>

#include "text/utf8.h"
#include "token/model.h"

static const char REPLACEMENT[] = "\xEF\xBF\xBD";

void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special)
{
    *d = (struct detok){.t = t, .skip_special = skip_special};
}

static void show(struct detok *d, struct buf *out, const char *s, size_t n)
{
    buf_add(out, s, n);
    d->started |= n > 0;
}

/* Takes what is complete off the front of the pending bytes. */
static void drain(struct detok *d, struct buf *out)
{
    while (d->n_pending) {
        int32_t cp;
        int len = utf8_next((const char *)d->pending, (size_t)d->n_pending, &cp);
        if (!len)
            return;
        show(d, out, cp < 0 ? REPLACEMENT : (const char *)d->pending, cp < 0 ? 3 : (size_t)len);
        d->n_pending -= len;
        memmove(d->pending, d->pending + len, (size_t)d->n_pending);
    }
}

static void add_bytes(struct detok *d, const char *s, size_t n, struct buf *out)
{
    size_t i = 0, run;
    while (i < n && d->n_pending) {
        d->pending[d->n_pending++] = (uint8_t)s[i++];
        drain(d, out);
    }
    for (run = i; i < n;) { // s[run..i) is complete
        int32_t cp;
        int len = utf8_next(s + i, n - i, &cp);
        if (cp >= 0) {
            i += (size_t)len;
            continue;
        }
        show(d, out, s + run, i - run);
        if (!len) {
            d->n_pending = (int)(n - i);
            memcpy(d->pending, s + i, n - i);
            return;
        }
        show(d, out, REPLACEMENT, 3);
        i += (size_t)len;
        run = i;
    }
    show(d, out, s + run, n - run);
}

void detok_add(struct detok *d, int32_t id, struct buf *out)
{
    const char *s;
    size_t n;
    if (!tokenizer_bytes(d->t, id, &s, &n)) {
        detok_flush(d, out);
        show(d, out, REPLACEMENT, 3);
        return;
    }
    if (d->skip_special && tokenizer_is_special(d->t, id))
        return;
    add_bytes(d, s, n, out);
}

void detok_flush(struct detok *d, struct buf *out)
{
    if (d->n_pending)
        show(d, out, REPLACEMENT, 3);
    d->n_pending = 0;
}
