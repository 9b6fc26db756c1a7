/* Acceptance of drafts. No state, no clock, no libm: outcome = f(distributions, randomness). */
#include "infer/accept.h"

#include <stdlib.h>
#include <string.h>

#include "base/math64.h"
#include "base/mem.h"
#include "base/rng.h"

/* ---- sources of randomness ---------------------------------------------------------------------------- */

/* Counters under one seed: word 0 is a token id (below 2^31) for seeded noise, or the top bit, the purpose
 * and the number of the call; words 1 and 2 the absolute index, word 3 the choice. They never meet. */
static double unit(const struct noise *at, uint32_t word)
{
    uint32_t key[2] = {(uint32_t)at->seed, (uint32_t)(at->seed >> 32)}, out[4];
    uint32_t ctr[4] = {word, (uint32_t)at->index, (uint32_t)(at->index >> 32), at->choice};
    philox4x32(key, ctr, out);
    return rng_unit(out[0], out[1]);
}

static double next_unit(struct rnd_counter *c)
{
    return unit(&c->noise, 0x80000000u | (uint32_t)c->purpose << 24 | (c->calls++ & 0xffffffu));
}

static int counter_bernoulli(void *ud, double prob) { return next_unit(ud) < prob; }

static int counter_categorical(void *ud, const double *w, int n)
{
    double sum = 0, run = 0;
    int last = 0;
    for (int i = 0; i < n; i++)
        sum += w[i];
    double u = next_unit(ud) * sum;
    for (int i = 0; i < n; i++) {
        if (!(w[i] > 0))
            continue;
        run += w[i];
        last = i;
        if (u < run)
            break;
    }
    return last;
}

struct rnd rnd_of(struct rnd_counter *c) { return (struct rnd){c, counter_bernoulli, counter_categorical}; }

int32_t dist_draw(const struct dist *p, struct rnd *rnd)
{
    return p->id[rnd->categorical(rnd->ud, p->p, p->n)];
}

/* ---- seeded ------------------------------------------------------------------------------------------- */

enum { LANES = 8 };

/* unit() for several token ids: Philox side by side, which hides the latency of its rounds. */
static void units(const struct noise *at, const int32_t *id, double *u)
{
    uint32_t k0 = (uint32_t)at->seed, k1 = (uint32_t)(at->seed >> 32);
    uint32_t c0[LANES], c1[LANES], c2[LANES], c3[LANES];
    for (int j = 0; j < LANES; j++) {
        c0[j] = (uint32_t)id[j];
        c1[j] = (uint32_t)at->index;
        c2[j] = (uint32_t)(at->index >> 32);
        c3[j] = at->choice;
    }
    for (int round = 0; round < 10; round++) {
        for (int j = 0; j < LANES; j++) {
            uint64_t a = (uint64_t)0xD2511F53u * c0[j], b = (uint64_t)0xCD9E8D57u * c2[j];
            c0[j] = (uint32_t)(b >> 32) ^ c1[j] ^ k0;
            c1[j] = (uint32_t)b;
            c2[j] = (uint32_t)(a >> 32) ^ c3[j] ^ k1;
            c3[j] = (uint32_t)a;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int j = 0; j < LANES; j++)
        u[j] = rng_unit(c0[j], c1[j]);
}

/* argmax(log p + gumbel) with gumbel = -log(E), E = -log(u) exponential, is argmin(E / p). p descends
 * and E >= 1 - u >= 2^-53, so most logarithms, and the tail that can't win any more, are skipped: SLACK
 * is more than all roundings together, and what is skipped could not have won. */
int32_t noise_pick(const struct dist *p, const struct noise *at)
{
    static const double SLACK = 1 - 0x1p-40;
    double best = 0, u[LANES];
    int32_t pick = -1;
    for (int i = 0; i < p->n; i += LANES) {
        int m = p->n - i < LANES ? p->n - i : LANES;
        if (pick >= 0 && 0x1p-53 * SLACK > best * p->p[i])
            break;
        if (m == LANES)
            units(at, p->id + i, u);
        for (int j = 0; j < m; j++) {
            if (m < LANES)
                u[j] = unit(at, (uint32_t)p->id[i + j]);
            if (pick >= 0 && (1 - u[j]) * SLACK > best * p->p[i + j])
                continue;
            double v = -log64(u[j]) / p->p[i + j];
            if (pick < 0 || v < best || (v == best && p->id[i + j] < pick)) {
                best = v;
                pick = p->id[i + j];
            }
        }
    }
    return pick;
}

int accept_seeded(const struct dist *p, const int32_t *x, int d, const struct noise *at, int32_t *next)
{
    struct noise here = *at;
    for (int i = 0;; i++) {
        here.index = at->index + (uint64_t)i;
        *next = noise_pick(&p[i], &here);
        if (i == d || *next != x[i])
            return i;
    }
}

/* ---- exact: block verification ------------------------------------------------------------------------ */

void accept_scratch_init(struct accept_scratch *s, int n_vocab)
{
    size_t n = n_vocab > 0 ? (size_t)n_vocab : 1;
    s->w = xmalloc(n * sizeof *s->w);
    s->q = xcalloc(n, sizeof *s->q);
    s->n = n_vocab;
}

void accept_scratch_free(struct accept_scratch *s)
{
    free(s->w);
    free(s->q);
    memset(s, 0, sizeof *s);
}

/* Weights of the residual max(b p - q, 0) over p's support into s->w; returns their sum. It is summed
 * from its parts and never as 1 - sum(min): the difference would be all rounding when p and q are
 * close. */
static double residual(const struct dist *p, const struct dist *q, double b, struct accept_scratch *s)
{
    double sum = 0;
    for (int j = 0; j < q->n; j++)
        s->q[q->id[j]] = q->p[j];
    for (int j = 0; j < p->n; j++) {
        double w = b * p->p[j] - s->q[p->id[j]];
        s->w[j] = w > 0 ? w : 0;
        sum += s->w[j];
    }
    for (int j = 0; j < q->n; j++)
        s->q[q->id[j]] = 0;
    return sum;
}

/* b[0] = 1, b[i] = min(1, b[i-1] p_i(x_i) / q_i(x_i)): the share of the drafts' law that the target can
 * take. */
static void carry(const struct dist *p, const struct dist *q, const int32_t *x, int d, double *b)
{
    b[0] = 1;
    for (int i = 0; i < d; i++) {
        double qx = dist_p(&q[i], x[i]);
        double r = qx > 0 ? b[i] * (dist_p(&p[i], x[i]) / qx) : 0; // x[i] not of q: never accepted
        b[i + 1] = r < 1 ? r : 1;
    }
}

/* Sun et al. 2025, algorithm 2: tau = the largest i with eta_i < h_i, h_D = b_D and for i < D h_i = R_i
 * / (R_i + 1 - b_i), R_i = sum max(b_i p_i+1 - q_i+1, 0). The token after tau < D comes from the
 * residual with b_tau. If b_i = 1 and R_i = 0 then p = q there, a rejection has probability 0, and p
 * stands in. */
int accept_exact(const struct dist *p, const struct dist *q, const int32_t *x, int d, struct rnd *rnd,
                 struct accept_scratch *s, int32_t *next)
{
    double b[ACCEPT_MAX + 1];
    if (d > ACCEPT_MAX)
        d = ACCEPT_MAX;
    carry(p, q, x, d, b);
    if (b[d] > 0 && rnd->bernoulli(rnd->ud, b[d])) {
        *next = dist_draw(&p[d], rnd);
        return d;
    }
    for (int i = d - 1;; i--) {
        if (i > 0 && b[i] <= 0)
            continue; // R_i = 0, h_i = 0
        double r = residual(&p[i], &q[i], b[i], s);
        double rest = r + (1 - b[i]);
        if (i > 0 && rest > 0 && !rnd->bernoulli(rnd->ud, r / rest))
            continue;
        *next = r > 0 ? p[i].id[rnd->categorical(rnd->ud, s->w, p[i].n)] : dist_draw(&p[i], rnd);
        return i;
    }
}
