#include "infer/suffix.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { N_TABLE = 2, PROBE_MAX = 64 };
static const int gram_of[N_TABLE] = {6, SUFFIX_GRAM_MIN};

/* Open addressing, linear probing. Texts grow and shrink at their end only, so the key put in last is removed
 * first and leaves every other where it would be without it: no tombstones. */
struct slot {
    uint64_t key; // 64 bits of the gram
    int32_t last; // index after its last occurrence, 0: empty
};

struct suffix {
    int n, max;
    int32_t *tok;
    uint32_t mask;
    struct slot *slot[N_TABLE];
    int32_t *prev[N_TABLE]; // by index after a gram: that of the occurrence before, 0: none, -1: not indexed
};

/* Bytes of what mem_big gives; the sizes are needed again to free. */
static size_t slot_bytes(const struct suffix *s) { return ((size_t)s->mask + 1) * sizeof(struct slot); }
static size_t index_bytes(const struct suffix *s) { return ((size_t)s->max + 1) * sizeof(int32_t); }

struct suffix *suffix_new(int max_tokens)
{
    struct suffix *s;
    if (max_tokens < 1 || max_tokens > 1 << 29)
        return NULL;
    s = xcalloc(1, sizeof *s);
    s->max = max_tokens;
    s->mask = 63;
    while (s->mask < (uint32_t)max_tokens * 2u)
        s->mask = s->mask * 2 + 1;
    s->tok = mem_big(index_bytes(s));
    bool is_ok = s->tok != NULL;
    for (int t = 0; t < N_TABLE; t++) {
        s->slot[t] = mem_big(slot_bytes(s));
        s->prev[t] = mem_big(index_bytes(s));
        is_ok = is_ok && s->slot[t] && s->prev[t];
    }
    if (is_ok)
        return s;
    suffix_free(s);
    return NULL;
}

void suffix_free(struct suffix *s)
{
    if (!s)
        return;
    mem_big_free(s->tok, index_bytes(s));
    for (int t = 0; t < N_TABLE; t++) {
        mem_big_free(s->slot[t], slot_bytes(s));
        mem_big_free(s->prev[t], index_bytes(s));
    }
    free(s);
}

int suffix_len(const struct suffix *s) { return s->n; }

/* Mixes the gram that ends before index end. The finalizer spreads every bit (constants: golden ratio,
 * and the multipliers of Stafford's variant 13 of MurmurHash3's finalizer). */
static uint64_t gram_key(const struct suffix *s, int table, int end)
{
    uint64_t h = (uint64_t)table;
    for (int i = end - gram_of[table]; i < end; i++) {
        h = (h ^ (uint32_t)s->tok[i]) * 0x9E3779B97F4A7C15u;
        h ^= h >> 30;
        h *= 0xBF58476D1CE4E5B9u;
        h ^= h >> 27;
    }
    h *= 0x94D049BB133111EBu;
    return h ^ h >> 31;
}

/* The gram's slot or the empty one where it goes; NULL if neither is near (a text made to collide: such
 * a gram is not indexed, so no text can make this slow). */
static struct slot *find(const struct suffix *s, int table, uint64_t key)
{
    for (uint32_t i = 0; i < PROBE_MAX; i++) {
        struct slot *p = &s->slot[table][((uint32_t)key + i) & s->mask];
        if (!p->last || p->key == key)
            return p;
    }
    return NULL;
}

int suffix_append(struct suffix *s, int32_t tok)
{
    if (s->n >= s->max)
        return ERR_LIMIT;
    s->tok[s->n++] = tok;
    for (int t = 0; t < N_TABLE; t++) {
        if (s->n < gram_of[t])
            continue;
        uint64_t key = gram_key(s, t, s->n);
        struct slot *p = find(s, t, key);
        s->prev[t][s->n] = p ? p->last : -1;
        if (p) {
            p->key = key;
            p->last = s->n;
        }
    }
    return 0;
}

void suffix_cut(struct suffix *s, int len)
{
    for (; s->n > len && s->n > 0; s->n--)
        for (int t = 0; t < N_TABLE; t++) {
            if (s->n < gram_of[t] || s->prev[t][s->n] < 0)
                continue;
            struct slot *p = find(s, t, gram_key(s, t, s->n));
            if (p && p->last == s->n)
                p->last = s->prev[t][s->n];
        }
}

/* Tokens before index end that equal those before the end of the text. */
static int match_len(const struct suffix *s, int end)
{
    int len = 0, max = end < SUFFIX_MATCH_MAX ? end : SUFFIX_MATCH_MAX;
    while (len < max && s->tok[end - 1 - len] == s->tok[s->n - 1 - len])
        len++;
    return len;
}

struct suffix_match suffix_query(const struct suffix *s)
{
    struct suffix_match best = {0, 0};
    for (int t = 0; t < N_TABLE && !best.len; t++) {
        if (s->n < gram_of[t])
            continue;
        int end = s->prev[t][s->n];
        for (int i = 0; i < SUFFIX_WALK && end > 0 && best.len < SUFFIX_MATCH_MAX; i++) {
            int len = match_len(s, end);
            if (len >= gram_of[t] && len > best.len)
                best = (struct suffix_match){len, end};
            end = s->prev[t][end];
        }
    }
    return best;
}

int suffix_propose(const struct suffix *s, const struct suffix_rule *r, int32_t *out, int max)
{
    struct suffix_match m = suffix_query(s);
    if (m.len < r->min_match || m.len < 1)
        return 0;
    int64_t want = (int64_t)m.len * r->factor;
    int n = want < r->max_draft ? (int)want : r->max_draft;
    n = n < max ? n : max;
    for (int i = 0; i < n; i++)
        out[i] = m.pos + i < s->n ? s->tok[m.pos + i] : out[m.pos + i - s->n];
    return n > 0 ? n : 0;
}
