/* The lowest-ranked adjacent pair merges first, the leftmost of equals. Symbols form a linked list and pairs
 * wait in a heap, so a piece of n bytes costs O(n log n) however hostile. A heap entry is stale when the pair
 * at its position has another rank by now. */
#include "token/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"

int ids_reserve(struct ids *ids, size_t n)
{
    size_t need, cap = ids->cap ? ids->cap : 64;
    if (__builtin_add_overflow(ids->n, n, &need) || need > SIZE_MAX / (4 * sizeof *ids->v))
        return ERR_NOMEM;
    if (need <= ids->cap)
        return 0;
    while (cap < need)
        cap *= 2;
    int32_t *v = realloc(ids->v, cap * sizeof *v);
    if (!v)
        return ERR_NOMEM;
    ids->v = v;
    ids->cap = cap;
    return 0;
}

void ids_add(struct ids *ids, int32_t id)
{
    if (ids->n == ids->cap) {
        ids->cap = ids->cap ? 2 * ids->cap : 64;
        ids->v = xrealloc(ids->v, ids->cap * sizeof *ids->v);
    }
    ids->v[ids->n++] = id;
}

void ids_free(struct ids *ids)
{
    free(ids->v);
    *ids = (struct ids){0};
}

int bpe_init(struct bpe *m, const struct vocab *v, size_t n_merges)
{
    *m = (struct bpe){.vocab = v, .unk = -1, .seed = rng_entropy(), .n_slots = 1024};
    while (m->n_slots < n_merges + n_merges / 2)
        m->n_slots *= 2;
    m->merge = malloc(m->n_slots * sizeof *m->merge);
    if (!m->merge)
        return ERR_NOMEM;
    for (size_t i = 0; i < m->n_slots; i++)
        m->merge[i].left = -1;
    return 0;
}

static struct merge *find_merge(const struct bpe *m, int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) ^ m->seed;
    h *= 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93u;
    size_t i = (h >> 32) & (m->n_slots - 1);
    while (m->merge[i].left >= 0 && (m->merge[i].left != left || m->merge[i].right != right))
        i = (i + 1) & (m->n_slots - 1);
    return &m->merge[i];
}

void bpe_add_merge(struct bpe *m, int32_t left, int32_t right, int32_t into, int32_t rank)
{
    struct merge *x = find_merge(m, left, right);
    m->n += x->left < 0;
    *x = (struct merge){left, right, rank, into};
    m->last_into = into;
}

void bpe_set_ranks(struct bpe *m, int32_t *rank)
{
    free(m->rank);
    m->rank = rank;
}

/* No text may spell a control token, whatever the file's merges or ranks say. */
static void bar_specials(struct bpe *m)
{
    const struct vocab *v = m->vocab;
    for (size_t i = 0; i < m->n_slots; i++)
        if (m->merge[i].left >= 0 && (v->flags[m->merge[i].into] & TOKEN_IS_SPECIAL))
            m->merge[i].rank = -1;
    for (int32_t id = 0; m->rank && id <= v->max_id; id++) {
        const char *s;
        size_t n;
        if ((v->flags[id] & TOKEN_IS_SPECIAL) || !vocab_bytes(v, id, &s, &n))
            m->rank[id] = -1;
        else if (m->rank[id] >= 0 && n > m->max_len)
            m->max_len = n;
    }
}

int bpe_finish(struct bpe *m)
{
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        m->byte_id[b] = vocab_find(m->vocab, &c, 1, TOKEN_BYTES);
        m->fallback[b] = vocab_find(m->vocab, &c, 1, TOKEN_FALLBACK);
    }
    bar_specials(m);
    m->whole = calloc((size_t)m->vocab->max_id + 1, sizeof *m->whole);
    return m->whole ? 0 : ERR_NOMEM;
}

void bpe_deinit(struct bpe *m)
{
    free(m->merge);
    free(m->rank);
    free((void *)m->whole);
    *m = (struct bpe){0};
}

void bpe_work_free(struct bpe_work *w)
{
    free(w->sym);
    free(w->heap);
    *w = (struct bpe_work){0};
}

/* A piece of n bytes pushes at most n - 1 pairs at first and two for each of its n - 1 merges. */
static int reserve(struct bpe_work *w, size_t n)
{
    if (n > INT32_MAX / 4)
        return ERR_LIMIT;
    if (n <= w->cap_sym)
        return 0;
    size_t cap = w->cap_sym ? w->cap_sym : 256;
    while (cap < n)
        cap *= 2;
    struct symbol *sym = realloc(w->sym, cap * sizeof *sym);
    if (sym)
        w->sym = sym;
    uint64_t *heap = realloc(w->heap, 3 * cap * sizeof *heap);
    if (heap)
        w->heap = heap;
    if (!sym || !heap)
        return ERR_NOMEM;
    w->cap_sym = cap;
    w->cap_heap = 3 * cap;
    return 0;
}

static void push(struct bpe_work *w, uint64_t key)
{
    size_t i = w->n_heap++;
    while (i && w->heap[(i - 1) / 2] > key) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = key;
}

static uint64_t pop(struct bpe_work *w)
{
    uint64_t top = w->heap[0], key = w->heap[--w->n_heap];
    size_t i = 0, c;
    while ((c = 2 * i + 1) < w->n_heap) {
        c += c + 1 < w->n_heap && w->heap[c + 1] < w->heap[c];
        if (w->heap[c] >= key)
            break;
        w->heap[i] = w->heap[c];
        i = c;
    }
    w->heap[i] = key;
    return top;
}

/* What the symbols a and b merge into. -1: they don't. */
static int32_t find_into(const struct bpe *m, const struct bpe_work *w, const struct symbol *a,
                         const struct symbol *b, int32_t *rank)
{
    if (!m->rank) {
        const struct merge *x = find_merge(m, a->id, b->id);
        *rank = x->rank;
        return x->left < 0 || x->rank < 0 ? -1 : x->into;
    }
    size_t from = (size_t)a->from, to = b->next < 0 ? w->n : (size_t)w->sym[b->next].from;
    int32_t id = to - from > m->max_len ? -1 : vocab_find(m->vocab, w->s + from, to - from, TOKEN_BYTES);
    *rank = id < 0 ? -1 : m->rank[id];
    return *rank < 0 ? -1 : id;
}

/* Looks up the pair at position i and queues it. */
static void offer(const struct bpe *m, struct bpe_work *w, int32_t i)
{
    struct symbol *a = &w->sym[i];
    int32_t rank;
    a->rank = -1;
    if (a->next < 0)
        return;
    a->into = find_into(m, w, a, &w->sym[a->next], &rank);
    if (a->into < 0)
        return;
    a->rank = rank;
    push(w, (uint64_t)(uint32_t)rank << 32 | (uint32_t)i);
}

struct symbols {
    const struct bpe *m;
    struct bpe_work *w;
    int32_t k;
    bool was_unk;
};

static void add_symbol(struct symbols *y, int32_t id, size_t from)
{
    const struct bpe *m = y->m;
    bool is_unk = id < 0;
    if (is_unk && (m->unk < 0 || (y->was_unk && m->fuse_unk)))
        return;
    y->w->sym[y->k] = (struct symbol){
        .id = is_unk ? m->unk : id, .prev = y->k - 1, .next = y->k + 1, .from = (int32_t)from};
    y->was_unk = is_unk;
    y->k++;
}

/* A character: its token, or those of its bytes if all have one, or the unknown token. */
static void add_char(struct symbols *y, const uint8_t *s, size_t n, size_t from)
{
    const struct bpe *m = y->m;
    int32_t id = n == 1 ? m->byte_id[*s] : vocab_find(m->vocab, (const char *)s, n, TOKEN_BYTES);
    bool as_bytes = id < 0 && m->byte_fallback;
    for (size_t i = 0; i < n && as_bytes; i++)
        as_bytes = m->fallback[s[i]] >= 0;
    if (!as_bytes)
        add_symbol(y, id, from);
    for (size_t i = 0; i < n && as_bytes; i++)
        add_symbol(y, m->fallback[s[i]], from + i);
}

static int32_t first_symbols(const struct bpe *m, struct bpe_work *w, const uint8_t *s, size_t n)
{
    struct symbols y = {.m = m, .w = w};
    for (size_t i = 0; i < n;) {
        int32_t cp;
        int len = m->by_char ? utf8_next((const char *)s + i, n - i, &cp) : 1;
        size_t step = len > 0 ? (size_t)len : n - i; // 0: cut off within a character, which valid text isn't
        if (m->by_char)
            add_char(&y, s + i, step, i);
        else
            add_symbol(&y, m->byte_id[s[i]], i);
        i += step;
    }
    if (y.k)
        w->sym[y.k - 1].next = -1;
    return y.k;
}

static void merge_all(const struct bpe *m, struct bpe_work *w, int32_t k)
{
    w->n_heap = 0;
    for (int32_t i = 0; i < k; i++)
        offer(m, w, i);
    while (w->n_heap) {
        uint64_t key = pop(w);
        int32_t i = (int32_t)(uint32_t)key;
        struct symbol *a = &w->sym[i];
        if (a->id < 0 || a->rank != (int32_t)(key >> 32))
            continue;
        struct symbol *b = &w->sym[a->next];
        a->id = a->into;
        a->next = b->next;
        b->id = -1;
        if (a->next >= 0)
            w->sym[a->next].prev = i;
        offer(m, w, i);
        if (a->prev >= 0)
            offer(m, w, a->prev);
    }
}

int bpe_encode(const struct bpe *m, struct bpe_work *w, const char *s, size_t n, struct ids *out)
{
    /* Most pieces are one token. Finding the piece in the vocabulary doesn't prove that merging leads there
     * (some entries no merge reaches), so the answer is worked out once and remembered. Threads that race
     * compute the same value. */
    int32_t id = vocab_find(m->vocab, s, n, TOKEN_BYTES);
    uint8_t whole = id < 0 || (m->vocab->flags[id] & TOKEN_IS_SPECIAL) ? 2
                    : m->ignore_merges ? 1
                                       : atomic_load_explicit(&m->whole[id], memory_order_relaxed);
    int rc = ids_reserve(out, whole == 1 ? 1 : n);
    if (rc)
        return rc;
    if (whole == 1) {
        out->v[out->n++] = id;
        return 0;
    }
    if ((rc = reserve(w, n)))
        return rc;
    w->s = s;
    w->n = n;
    int32_t k = first_symbols(m, w, (const uint8_t *)s, n);
    if (!k)
        return 0;
    merge_all(m, w, k);
    for (int32_t i = 0; i >= 0; i = w->sym[i].next)
        out->v[out->n++] = w->sym[i].id;
    if (whole == 0) {
        bool is_one = w->sym[0].next < 0 && w->sym[0].id == id;
        atomic_store_explicit(&m->whole[id], is_one ? 1 : 2, memory_order_relaxed);
    }
    return 0;
}
