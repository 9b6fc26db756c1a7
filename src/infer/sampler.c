/* From logits to a distribution. Two ways to the ranking:
 *   few    a heap of the k best, for top_k up to FEW_MAX and for argmax: one pass over the fp32 logits with
 *          a block test against the k-th best so far;
 *   many   a histogram of the distance to the maximum says up to which bucket tokens can stay (by count for
 *          top_k, by mass for top_p); only those are gathered and sorted, by radix.
 * Tokens that a penalty or a bias touches are kept aside as (id, value) pairs in double precision.
 * Working memory belongs to the thread that owns the struct sampler. */
#include "infer/sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/math64.h"
#include "base/mem.h"

/* exp((x - max) / T) below this counts as 0, so that no probability is subnormal. */
static const double TINY = 0x1p-960;

enum { FEW_MAX = 1024, N_BUCKET = 4096, BUCKETS_PER_NAT = 64 };

struct history {
    int n_vocab, n; // n distinct tokens
    int32_t *count; // by token
    int32_t *slot;  // by token: its place in list
    int32_t *list;  // the distinct tokens, in no particular order
};

struct history *history_new(int n_vocab)
{
    struct history *h = xcalloc(1, sizeof *h);
    size_t n = n_vocab > 0 ? (size_t)n_vocab : 1;
    h->n_vocab = n_vocab;
    h->count = xcalloc(n, sizeof *h->count);
    h->slot = xcalloc(n, sizeof *h->slot);
    h->list = xcalloc(n, sizeof *h->list);
    return h;
}

void history_free(struct history *h)
{
    if (!h)
        return;
    free(h->count);
    free(h->slot);
    free(h->list);
    free(h);
}

void history_push(struct history *h, int32_t id)
{
    if (id < 0 || id >= h->n_vocab)
        return; // no logit belongs to it
    if (!h->count[id]++) {
        h->slot[id] = h->n;
        h->list[h->n++] = id;
    }
}

void history_pop(struct history *h, int32_t id)
{
    if (id < 0 || id >= h->n_vocab || !h->count[id] || --h->count[id])
        return;
    int32_t last = h->list[--h->n];
    h->list[h->slot[id]] = last;
    h->slot[last] = h->slot[id];
}

void history_clear(struct history *h)
{
    for (int i = 0; i < h->n; i++)
        h->count[h->list[i]] = 0;
    h->n = 0;
}

void dist_init(struct dist *d, int n_vocab)
{
    size_t n = n_vocab > 0 ? (size_t)n_vocab : 1;
    d->n = 0;
    d->cap = (int)n;
    d->id = xmalloc(n * sizeof *d->id);
    d->p = xmalloc(n * sizeof *d->p);
}

void dist_free(struct dist *d)
{
    free(d->id);
    free(d->p);
    memset(d, 0, sizeof *d);
}

double dist_p(const struct dist *d, int32_t id)
{
    for (int i = 0; i < d->n; i++)
        if (d->id[i] == id)
            return d->p[i];
    return 0;
}

/* A sum of values in [0, 1] in fixed point with 62 fraction bits. Halves are summed apart so that 2^32 terms
 * fit; integer addition has no order. */
struct fixed {
    uint64_t hi, lo;
};

static inline void fixed_add(struct fixed *f, double v)
{
    uint64_t q = (uint64_t)(v * 0x1p62);
    f->hi += q >> 32;
    f->lo += (uint32_t)q;
}

static inline void fixed_merge(struct fixed *f, const struct fixed *g)
{
    f->hi += g->hi;
    f->lo += g->lo;
}

static inline double fixed_value(const struct fixed *f)
{
    uint64_t hi = f->hi + (f->lo >> 32);
    return (double)hi * 0x1p-30 + (double)(uint32_t)f->lo * 0x1p-62;
}

struct cand {
    double x;
    int32_t id;
};

/* The one order of this file: higher value first, then lower id. */
static inline bool ranks_before(double xa, int32_t a, double xb, int32_t b)
{
    return xa > xb || (xa == xb && a < b);
}

struct sampler {
    int n_vocab;
    struct cand *adjusted; // tokens touched by penalty or bias, value after step 1
    int n_adjusted;
    int32_t *at;           // by token: its index in adjusted + 1; all zero between calls
    struct cand few[FEW_MAX];
    double *x, *e;         // by token: value after step 1, exp((x - max) / T)
    uint64_t *key, *tmp;   // sorting: high half falls with the value, low half is the id
    struct fixed mass[N_BUCKET];
    int32_t count[N_BUCKET];
};

struct sampler *sampler_new(int n_vocab)
{
    struct sampler *s = xcalloc(1, sizeof *s);
    size_t n = n_vocab > 0 ? (size_t)n_vocab : 1;
    s->n_vocab = n_vocab;
    s->adjusted = xmalloc(n * sizeof *s->adjusted);
    s->at = xcalloc(n, sizeof *s->at);
    s->x = xmalloc(n * sizeof *s->x);
    s->e = xmalloc(n * sizeof *s->e);
    s->key = xmalloc(n * sizeof *s->key);
    s->tmp = xmalloc(n * sizeof *s->tmp);
    return s;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    free(s->adjusted);
    free(s->at);
    free(s->x);
    free(s->e);
    free(s->key);
    free(s->tmp);
    free(s);
}

/* Extreme settings may overflow; a finite value stays finite so that differences are never NaN. */
static double bounded(double x)
{
    return x > 1e300 ? 1e300 : x < -1e300 ? -1e300 : x;
}

/* Step 1: fills s->adjusted. A token masked by -infinity stays so. */
static void adjust(struct sampler *s, const float *logits, int n_valid, const struct sampling *set,
                   const struct history *h)
{
    double r = set->repetition_penalty;
    s->n_adjusted = 0;
    if (h && (r != 1.0 || set->presence_penalty != 0.0 || set->frequency_penalty != 0.0)) {
        for (int i = 0; i < h->n; i++) {
            int32_t id = h->list[i];
            if (id >= n_valid || logits[id] == -INFINITY)
                continue;
            double x = logits[id];
            x = bounded(x > 0 ? x / r : x * r);
            x = bounded(x - set->presence_penalty);
            x = bounded(x - set->frequency_penalty * (double)h->count[id]);
            s->adjusted[s->n_adjusted++] = (struct cand){x, id};
            s->at[id] = s->n_adjusted;
        }
    }
    for (int i = 0; i < set->n_bias; i++) {
        int32_t id = set->bias[i].id;
        if (id < 0 || id >= n_valid || logits[id] == -INFINITY)
            continue;
        if (!s->at[id]) {
            s->adjusted[s->n_adjusted++] = (struct cand){logits[id], id};
            s->at[id] = s->n_adjusted;
        }
        struct cand *c = &s->adjusted[s->at[id] - 1];
        c->x = bounded(c->x + set->bias[i].bias);
    }
}

static void adjust_end(struct sampler *s)
{
    for (int i = 0; i < s->n_adjusted; i++)
        s->at[s->adjusted[i].id] = 0;
}

static bool is_sound(float x) { return x <= FLT_MAX; } // neither NaN nor +infinity

/* ---- few: the k best by a heap whose root is the worst kept ------------------------------------------- */

static void heap_down(struct cand *h, int n, int i)
{
    struct cand c = h[i];
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && ranks_before(h[child].x, h[child].id, h[child + 1].x, h[child + 1].id))
            child++;
        if (!ranks_before(c.x, c.id, h[child].x, h[child].id))
            break;
        h[i] = h[child];
    }
    h[i] = c;
}

static void heap_add(struct cand *h, int *n, int k, double x, int32_t id)
{
    if (*n < k) {
        int i = (*n)++;
        for (int up; i > 0; i = up) {
            up = (i - 1) / 2;
            if (!ranks_before(h[up].x, h[up].id, x, id))
                break;
            h[i] = h[up];
        }
        h[i] = (struct cand){x, id};
    } else if (ranks_before(x, id, h[0].x, h[0].id)) {
        h[0] = (struct cand){x, id};
        heap_down(h, k, 0);
    }
}

/* The k best in rank order into s->few. Returns how many (fewer if others are -infinity) or ERR_NUMERIC. */
static int rank_few(struct sampler *s, const float *logits, int n_valid, int k)
{
    int n = 0, i = 0;
    // A token enters if it is above the k-th best so far: ids ascend, so an equal one ranks behind. The test
    // is written so that NaN and +infinity pass it and are seen.
    float bar = -INFINITY;
    while (i < n_valid) {
        int end = i + 16;
        if (end <= n_valid) {
            int any = 0;
            for (int j = 0; j < 16; j++)
                any |= !(logits[i + j] <= bar);
            if (!any) {
                i = end;
                continue;
            }
        } else {
            end = n_valid;
        }
        for (; i < end; i++) {
            if (logits[i] <= bar)
                continue;
            if (!is_sound(logits[i]))
                return ERR_NUMERIC;
            if (s->n_adjusted && s->at[i])
                continue;
            heap_add(s->few, &n, k, logits[i], i);
            if (n == k)
                bar = (float)s->few[0].x; // exact: it was an fp32 logit
        }
    }
    for (i = 0; i < s->n_adjusted; i++)
        heap_add(s->few, &n, k, s->adjusted[i].x, s->adjusted[i].id);
    if (!n)
        return ERR_NUMERIC;
    for (int m = n - 1; m > 0; m--) { // the root is the worst of those left
        struct cand c = s->few[0];
        s->few[0] = s->few[m];
        s->few[m] = c;
        heap_down(s->few, m, 0);
    }
    return n;
}

/* ---- many: histogram, gather, radix sort -------------------------------------------------------------- */

/* Falls as the value rises. Values that differ only beyond fp32 share a key; sort_exact looks at them. */
static uint32_t key_of(double x)
{
    float f = (float)x + 0.0f; // -0 is 0
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u >> 31 ? u : ~u & 0x7fffffffu;
}

static bool key_before(const struct sampler *s, uint64_t a, uint64_t b)
{
    return ranks_before(s->x[(uint32_t)a], (int32_t)(uint32_t)a, s->x[(uint32_t)b], (int32_t)(uint32_t)b);
}

static void exact_down(const struct sampler *s, uint64_t *h, int n, int i)
{
    uint64_t c = h[i];
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && key_before(s, h[child], h[child + 1]))
            child++;
        if (!key_before(s, c, h[child]))
            break;
        h[i] = h[child];
    }
    h[i] = c;
}

static void sort_exact(const struct sampler *s, uint64_t *k, int n)
{
    for (int i = n / 2 - 1; i >= 0; i--)
        exact_down(s, k, n, i);
    for (int m = n - 1; m > 0; m--) {
        uint64_t c = k[0];
        k[0] = k[m];
        k[m] = c;
        exact_down(s, k, m, 0);
    }
}

/* Sorts s->key[0..n), gathered in ascending id, by rank: stable radix passes over the key half. */
static void sort_keys(struct sampler *s, int n)
{
    static const int shift[3] = {32, 43, 54};
    uint32_t (*hist)[2048] = (uint32_t (*)[2048])(void *)s->mass; // the masses are no longer needed
    _Static_assert(sizeof s->mass >= 3 * sizeof *hist, "histograms fit");
    memset(hist, 0, 3 * sizeof *hist);
    for (int i = 0; i < n; i++)
        for (int p = 0; p < 3; p++)
            hist[p][s->key[i] >> shift[p] & 2047]++;
    for (int p = 0; p < 3; p++) {
        uint32_t sum = 0;
        if (n && hist[p][s->key[0] >> shift[p] & 2047] == (uint32_t)n)
            continue; // all alike in these bits
        for (int b = 0; b < 2048; b++) {
            uint32_t c = hist[p][b];
            hist[p][b] = sum;
            sum += c;
        }
        for (int i = 0; i < n; i++)
            s->tmp[hist[p][s->key[i] >> shift[p] & 2047]++] = s->key[i];
        uint64_t *swap = s->key;
        s->key = s->tmp;
        s->tmp = swap;
    }
    if (!s->n_adjusted)
        return; // every value is an fp32 logit: equal keys are equal values, already in ascending id
    for (int i = 0, j; i < n; i = j) {
        bool differ = false;
        for (j = i + 1; j < n && s->key[j] >> 32 == s->key[i] >> 32; j++)
            differ |= s->x[(uint32_t)s->key[j]] != s->x[(uint32_t)s->key[i]];
        if (differ)
            sort_exact(s, s->key + i, j - i);
    }
}

static inline int bucket_of(double x, double max, double temperature)
{
    double t = (max - x) / temperature * BUCKETS_PER_NAT;
    return t < N_BUCKET - 1 ? (int)t : N_BUCKET - 1;
}

/* Fills s->x and the maximum; ERR_NUMERIC for bad logits. */
static int widen(struct sampler *s, const float *logits, int n_valid, double *max)
{
    double m = -INFINITY;
    int bad = 0;
    for (int i = 0; i < n_valid; i++) {
        bad |= !is_sound(logits[i]);
        s->x[i] = logits[i];
    }
    if (bad)
        return ERR_NUMERIC;
    for (int i = 0; i < s->n_adjusted; i++)
        s->x[s->adjusted[i].id] = s->adjusted[i].x;
    for (int i = 0; i < n_valid; i++)
        m = s->x[i] > m ? s->x[i] : m;
    *max = m;
    return m > -INFINITY ? 0 : ERR_NUMERIC;
}

/* Ranks into s->key all tokens that top_k, top_p and min_p can keep (and maybe more: emit cuts exactly).
 * *total gets the mass that top_p and probabilities relate to, unless top_k is on: then emit sums. */
static int rank_many(struct sampler *s, int n_valid, const struct sampling *set, int k, double max,
                     double *total)
{
    double t = set->temperature;
    int cut = N_BUCKET - 1, n = 0;
    memset(s->count, 0, sizeof s->count);
    memset(s->mass, 0, sizeof s->mass);
    if (k) {
        for (int i = 0; i < n_valid; i++)
            s->count[bucket_of(s->x[i], max, t)]++;
        cut = 0;
        for (int sum = s->count[0]; sum < k && cut < N_BUCKET - 1; sum += s->count[cut])
            cut++;
    } else {
        struct fixed sum = {0, 0};
        for (int i = 0; i < n_valid; i++)
            s->e[i] = (s->x[i] - max) / t;
        exp64_row(s->e, n_valid);
        for (int i = 0; i < n_valid && set->top_p >= 1; i++)
            fixed_add(&sum, s->e[i]);
        for (int i = 0; i < n_valid && set->top_p < 1; i++)
            fixed_add(&s->mass[bucket_of(s->x[i], max, t)], s->e[i]);
        for (int b = 0; b < N_BUCKET; b++)
            fixed_merge(&sum, &s->mass[b]);
        *total = fixed_value(&sum);
        if (set->top_p < 1) {
            sum = s->mass[0];
            for (cut = 0; cut < N_BUCKET - 1 && fixed_value(&sum) / *total < set->top_p; cut++)
                fixed_merge(&sum, &s->mass[cut + 1]);
        }
    }
    for (int i = 0; i < n_valid; i++) {
        if (cut < N_BUCKET - 1 && bucket_of(s->x[i], max, t) > cut)
            continue;
        if (k ? s->x[i] == -INFINITY : s->e[i] < TINY || s->e[i] < set->min_p)
            continue;
        s->key[n++] = (uint64_t)key_of(s->x[i]) << 32 | (uint32_t)i;
    }
    sort_keys(s, n);
    return k && k < n ? k : n;
}

/* ---- the distribution --------------------------------------------------------------------------------- */

static void sort_ids(int32_t *a, int n)
{
    for (int start = n / 2 - 1, m = n; m > 1;) { // heapsort
        int i = 0;
        int32_t c;
        if (start >= 0) {
            i = start--;
            c = a[i];
        } else {
            c = a[--m];
            a[m] = a[0];
        }
        for (int child; (child = 2 * i + 1) < m; i = child) {
            if (child + 1 < m && a[child] < a[child + 1])
                child++;
            if (c >= a[child])
                break;
            a[i] = a[child];
        }
        a[i] = c;
    }
}

/* d->id and d->p hold tokens and exp((x - max) / T) in rank order, p[0] = 1. Applies steps 4 to 6. total: the
 * mass that top_p relates to, 0: what is in d. */
static void emit(struct dist *d, const struct sampling *set, double total)
{
    struct fixed sum = {0, 0};
    int n = d->n;
    for (int i = 1; i < n; i++)
        if (d->p[i] > d->p[i - 1])
            d->p[i] = d->p[i - 1]; // exp64 may fall by its last bit where its argument rises
    if (set->top_p < 1) {
        if (total <= 0) {
            for (int i = 0; i < n; i++)
                fixed_add(&sum, d->p[i]);
            total = fixed_value(&sum);
            sum = (struct fixed){0, 0};
        }
        int m = 0;
        while (m < n && (m == 0 || fixed_value(&sum) / total < set->top_p))
            fixed_add(&sum, d->p[m++]);
        n = m;
    }
    while (n > 1 && (d->p[n - 1] < set->min_p || d->p[n - 1] < TINY)) // the largest is 1
        n--;
    sum = (struct fixed){0, 0};
    for (int i = 0; i < n; i++)
        fixed_add(&sum, d->p[i]);
    total = fixed_value(&sum);
    d->n = n;
    for (int i = 0, j; i < d->n; i = j) {
        bool falls = false;
        for (j = i + 1; j < d->n && d->p[j] == d->p[i]; j++)
            falls |= d->id[j] < d->id[j - 1];
        if (falls) // values that differ below the precision of a probability
            sort_ids(d->id + i, j - i);
    }
    for (int i = 0; i < d->n; i++)
        d->p[i] /= total;
}

int dist_build(struct sampler *s, struct dist *d, const float *logits, int n_valid,
               const struct sampling *set, const struct history *h)
{
    double t = set->temperature, max = 0, total = 0;
    int k = set->top_k > 0 && set->top_k < n_valid ? set->top_k : 0, rc;
    d->n = 0;
    if (n_valid <= 0 || n_valid > s->n_vocab || n_valid > d->cap)
        return ERR_ARG;
    adjust(s, logits, n_valid, set, h);
    if (t == 0 || (k && k <= FEW_MAX)) {
        rc = rank_few(s, logits, n_valid, t == 0 ? 1 : k);
        for (int i = 0; i < rc; i++) {
            d->id[i] = s->few[i].id;
            d->p[i] = i ? exp64((s->few[i].x - s->few[0].x) / t) : 1.0;
        }
        d->n = rc > 0 ? rc : 0;
    } else {
        rc = widen(s, logits, n_valid, &max);
        int n = rc ? 0 : rank_many(s, n_valid, set, k, max, &total);
        for (int i = 0; i < n; i++) {
            d->id[i] = (int32_t)(uint32_t)s->key[i];
            d->p[i] = k ? exp64((s->x[d->id[i]] - max) / t) : s->e[d->id[i]];
        }
        d->n = n;
    }
    adjust_end(s);
    if (rc < 0)
        return rc;
    if (d->n > 1)
        emit(d, set, total);
    else
        d->p[0] = 1.0;
    return 0;
}

int32_t sampler_argmax(struct sampler *s, const float *logits, int n_valid, const struct sampling *set,
                       const struct history *h)
{
    if (n_valid <= 0 || n_valid > s->n_vocab)
        return -1;
    adjust(s, logits, n_valid, set, h);
    int rc = rank_few(s, logits, n_valid, 1);
    adjust_end(s);
    return rc < 0 ? -1 : s->few[0].id;
}
