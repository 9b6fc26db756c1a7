#include "token/vocab.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/rng.h"
#include "base/utf8.h"

void vocab_init(struct vocab *v) { *v = (struct vocab){.max_id = -1, .seed = rng_entropy()}; }

void vocab_deinit(struct vocab *v)
{
    free(v->blob);
    free(v->tok);
    free(v->slot);
    free(v->by_id);
    free(v->flags);
    *v = (struct vocab){.max_id = -1};
}

static uint64_t hash(const struct vocab *v, const char *s, size_t n, enum token_kind kind)
{
    return XXH3_64bits_withSeed(s, n, v->seed + (uint64_t)kind);
}

/* Slot of this content, or the free one where it belongs. The half hash in the slot keeps misses from
 * touching the token. */
static size_t find_slot(const struct vocab *v, const char *s, size_t n, enum token_kind kind, uint64_t h)
{
    size_t i = h & (v->n_slots - 1);
    for (; v->slot[i]; i = (i + 1) & (v->n_slots - 1)) {
        if (v->slot[i] >> 32 != h >> 32)
            continue;
        const struct token *t = &v->tok[(uint32_t)v->slot[i] - 1];
        if (t->n == n && t->kind == (uint32_t)kind && !memcmp(v->blob + t->off, s, n))
            break;
    }
    return i;
}

static void set_slot(struct vocab *v, size_t k)
{
    const struct token *t = &v->tok[k];
    enum token_kind kind = (enum token_kind)t->kind;
    uint64_t h = hash(v, v->blob + t->off, t->n, kind);
    v->slot[find_slot(v, v->blob + t->off, t->n, kind, h)] = (h >> 32 << 32) | (k + 1);
}

int vocab_reserve(struct vocab *v, size_t n)
{
    if (n > v->cap) {
        struct token *tok = realloc(v->tok, n * sizeof *tok);
        if (!tok)
            return ERR_NOMEM;
        v->tok = tok;
        v->cap = n;
    }
    size_t slots = v->n_slots ? v->n_slots : 1024;
    while (slots < 2 * n)
        slots *= 2;
    if (slots == v->n_slots)
        return 0;
    uint64_t *slot = calloc(slots, sizeof *slot);
    if (!slot)
        return ERR_NOMEM;
    free(v->slot);
    v->slot = slot;
    v->n_slots = slots;
    for (size_t k = 0; k < v->n; k++)
        set_slot(v, k);
    return 0;
}

static int grow_ids(struct vocab *v, int32_t id)
{
    size_t cap = v->cap_ids ? v->cap_ids : 1024;
    while (cap <= (size_t)id)
        cap *= 2;
    if (cap > v->cap_ids) {
        int32_t *by_id = realloc(v->by_id, cap * sizeof *by_id);
        if (by_id)
            v->by_id = by_id;
        uint8_t *flags = realloc(v->flags, cap);
        if (flags)
            v->flags = flags;
        if (!by_id || !flags)
            return ERR_NOMEM;
        v->cap_ids = cap;
    }
    while (v->max_id < id) {
        v->max_id++;
        v->by_id[v->max_id] = -1;
        v->flags[v->max_id] = 0;
    }
    return 0;
}

int vocab_add(struct vocab *v, const char *s, size_t n, int64_t id, enum token_kind kind, struct err *e)
{
    if (id < 0 || id > VOCAB_MAX_ID)
        return err_set(e, id < 0 ? ERR_FORMAT : ERR_LIMIT,
                       "token \"%.*s\" has id %lld, ids run from 0 to %d",
                       (int)(n < 60 ? n : 60), s, (long long)id, VOCAB_MAX_ID);
    if (v->n >= VOCAB_MAX_TOKENS)
        return err_set(e, ERR_LIMIT, "more than %d tokens", VOCAB_MAX_TOKENS);
    if (n > VOCAB_MAX_BYTES - v->n_blob)
        return err_set(e, ERR_LIMIT, "the tokens hold more than %d bytes", VOCAB_MAX_BYTES);
    if (v->n_blob + n > v->cap_blob) {
        size_t cap = v->cap_blob ? v->cap_blob : 1 << 16;
        while (cap < v->n_blob + n)
            cap *= 2;
        char *blob = realloc(v->blob, cap);
        if (!blob)
            return err_set(e, ERR_NOMEM, "no memory for %zu bytes of tokens", cap);
        v->blob = blob;
        v->cap_blob = cap;
    }
    if ((v->n == v->cap && vocab_reserve(v, v->cap ? 2 * v->cap : 512)) || grow_ids(v, (int32_t)id))
        return err_set(e, ERR_NOMEM, "no memory for %zu tokens", v->n + 1);
    v->tok[v->n] = (struct token){(uint32_t)v->n_blob, (uint32_t)n, (int32_t)id, kind};
    memcpy(v->blob + v->n_blob, s, n);
    v->n_blob += n;
    set_slot(v, v->n++); // the same content again: the last id counts, the earlier one only decodes
    if (v->by_id[id] < 0)
        v->n_ids++;
    v->by_id[id] = (int32_t)v->n - 1;
    return 0;
}

int32_t vocab_find(const struct vocab *v, const char *s, size_t n, enum token_kind kind)
{
    if (!v->n_slots)
        return -1;
    uint32_t k = (uint32_t)v->slot[find_slot(v, s, n, kind, hash(v, s, n, kind))];
    return k ? v->tok[k - 1].id : -1;
}

bool vocab_bytes(const struct vocab *v, int32_t id, const char **s, size_t *n)
{
    if (id < 0 || id > v->max_id || v->by_id[id] < 0)
        return false;
    const struct token *t = &v->tok[v->by_id[id]];
    *s = v->blob + t->off;
    *n = t->n;
    return true;
}

/* The byte-level alphabet writes every byte as one printable character: the visible ones of Latin-1 stand for
 * themselves, the 68 others follow in order from U+0100. */
static int char_to_byte(int32_t cp)
{
    if ((cp >= 33 && cp <= 126) || (cp >= 161 && cp <= 172) || (cp >= 174 && cp <= 255))
        return cp;
    int32_t k = cp - 256; // the k-th byte that isn't visible
    if (k < 0 || k >= 68)
        return -1;
    return k <= 32 ? k : k <= 66 ? 127 + (k - 33) : 173;
}

/* Returns the bytes written to out (at most n), -1 if a character lies outside. */
static int64_t alphabet_decode(const char *s, size_t n, char *out)
{
    char *w = out;
    for (size_t i = 0; i < n;) {
        int32_t cp;
        int len = utf8_next(s + i, n - i, &cp), b = cp >= 0 ? char_to_byte(cp) : -1;
        if (b < 0)
            return -1;
        *w++ = (char)b;
        i += (size_t)len;
    }
    return w - out;
}

static int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; }

size_t vocab_decode(const struct vocab *v, const char *s, size_t n, char *out, enum token_kind *kind)
{
    if (v->form == FORM_ALPHABET) {
        int64_t m = alphabet_decode(s, n, out);
        *kind = m < 0 ? TOKEN_RAW : TOKEN_BYTES;
        if (m >= 0)
            return (size_t)m;
    } else {
        bool is_byte = v->form == FORM_FALLBACK && n == 6 && !memcmp(s, "<0x", 3) && s[5] == '>' &&
                       hex_digit(s[3]) >= 0 && hex_digit(s[4]) >= 0;
        *kind = is_byte ? TOKEN_FALLBACK : TOKEN_BYTES;
        if (is_byte) {
            *out = (char)(hex_digit(s[3]) << 4 | hex_digit(s[4]));
            return 1;
        }
    }
    memcpy(out, s, n);
    return n;
}

enum token_kind vocab_kind(const struct vocab *v, int32_t id) { return (enum token_kind)v->tok[v->by_id[id]].kind; }

enum { SMALL = 512 }; // nearly every entry fits; the few longer ones are decoded on the heap

int vocab_add_written(struct vocab *v, const char *s, size_t n, int64_t id, struct err *e)
{
    char small[SMALL], *big = n > SMALL ? malloc(n) : NULL, *out = big ? big : small;
    enum token_kind kind;
    if (n > SMALL && !big)
        return err_set(e, ERR_NOMEM, "no memory for a token of %zu bytes", n);
    size_t m = vocab_decode(v, s, n, out, &kind);
    int rc = vocab_add(v, out, m, id, kind, e);
    free(big);
    return rc;
}

int32_t vocab_find_written(const struct vocab *v, const char *s, size_t n)
{
    char small[SMALL], *big = n > SMALL ? malloc(n) : NULL, *out = big ? big : small;
    enum token_kind kind;
    if (n > SMALL && !big)
        return -1;
    size_t m = vocab_decode(v, s, n, out, &kind);
    int32_t id = vocab_find(v, out, m, kind);
    free(big);
    return id;
}
