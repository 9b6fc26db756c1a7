/* Ids to text. At most three bytes wait for the rest of their character. */
#include <string.h>

#include "base/utf8.h"
#include "token/model.h"

static const char REPLACEMENT[] = "\xEF\xBF\xBD";

void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special)
{
    *d = (struct detok){.t = t, .skip_special = skip_special, .may_strip = t->decoding.max_strip};
}

/* Whole characters only. */
static void show(struct detok *d, struct buf *out, const char *s, size_t n)
{
    const struct decoding *c = &d->t->decoding;
    while (d->may_strip && n >= c->n_strip && !memcmp(s, c->strip, c->n_strip)) {
        s += c->n_strip;
        n -= c->n_strip;
        d->may_strip--;
    }
    if (n)
        d->may_strip = 0;
    buf_add(out, s, n);
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

static bool is_skipped(const struct detok *d, int32_t id) { return d->skip_special && tokenizer_is_special(d->t, id); }

static void add_content(struct detok *d, const char *s, size_t n, enum token_kind kind, struct buf *out)
{
    const struct decoding *c = &d->t->decoding;
    size_t done = 0;
    for (size_t i = 0; c->n_from && kind != TOKEN_FALLBACK && i + c->n_from <= n;) {
        if (s[i] != c->from[0] || memcmp(s + i, c->from, c->n_from)) {
            i++;
            continue;
        }
        add_bytes(d, s + done, i - done, out);
        if (d->started || !c->drop_in_first)
            add_bytes(d, c->to, c->n_to, out);
        done = i += c->n_from;
    }
    add_bytes(d, s + done, n - done, out);
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
    if (is_skipped(d, id))
        return;
    add_content(d, s, n, vocab_kind(&d->t->vocab, id), out);
    d->started = true;
}

void detok_flush(struct detok *d, struct buf *out)
{
    if (d->n_pending)
        show(d, out, REPLACEMENT, 3);
    d->n_pending = 0;
}

static bool is_byte(const struct detok *d, int32_t id)
{
    const char *s;
    size_t n;
    return tokenizer_bytes(d->t, id, &s, &n) && vocab_kind(&d->t->vocab, id) == TOKEN_FALLBACK;
}

/* Ids from i on that are one run of byte tokens: whether their bytes are valid together. *end is the first one after
 * it. */
static bool is_valid_run(const struct detok *d, const int32_t *ids, size_t n, size_t i, size_t *end)
{
    char tail[4];
    int k = 0;
    bool is_valid = true;
    for (; i < n; i++) {
        const char *s;
        size_t len;
        int32_t cp;
        if (is_skipped(d, ids[i]))
            continue;
        if (!is_byte(d, ids[i]))
            break;
        tokenizer_bytes(d->t, ids[i], &s, &len);
        tail[k++] = *s;
        int got = utf8_next(tail, (size_t)k, &cp);
        is_valid &= !got || cp >= 0;
        k = got || k == 4 ? 0 : k;
    }
    *end = i;
    return is_valid && !k;
}

void detok_whole(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special, struct buf *out)
{
    struct detok d;
    detok_init(&d, t, skip_special);
    for (size_t i = 0; i < n;) {
        size_t end;
        bool is_valid = is_valid_run(&d, ids, n, i, &end);
        if (end == i)
            detok_add(&d, ids[i++], out);
        for (; i < end; i++)
            if (is_valid || !is_byte(&d, ids[i]))
                detok_add(&d, ids[i], out);
            else
                show(&d, out, REPLACEMENT, 3);
    }
    detok_flush(&d, out);
}
