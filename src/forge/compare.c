#include "forge/compare.h"

#include <math.h>
#include <stdlib.h>

#include "base/math64.h"

struct reader {
    struct backend *be;
    struct model *m;
    struct engine *g;
    int seq;
};

int reader_open(struct reader **out, struct package *p, int threads, int n_tokens, struct err *e)
{
    struct reader *r = xcalloc(1, sizeof *r);
    static const struct mtp_head none;
    struct backend_options bo = {.threads = threads};
    struct engine_options eo = {.n_ctx = n_tokens + PAGE_TOKENS, .n_seqs = 1, .max_rows = READER_BLOCK};
    *out = r;
    int rc = backend_cpu_open(&r->be, &bo, e);
    if (rc)
        package_close(p);
    else
        rc = model_open(&r->m, p, r->be, e);
    if (!rc)
        rc = engine_open(&r->g, r->m, &none, &eo, e);
    if (rc) {
        reader_close(r);
        *out = NULL;
        return rc;
    }
    r->seq = seq_new(r->g);
    return 0;
}

void reader_close(struct reader *r)
{
    if (!r)
        return;
    engine_close(r->g);
    model_close(r->m);
    if (r->be)
        r->be->ops->close(r->be);
    free(r);
}

int reader_n_vocab(const struct reader *r) { return r->m->n_vocab; }

int reader_step(struct reader *r, const int32_t *tokens, int n, const float **logits, struct err *e)
{
    struct row rows[READER_BLOCK];
    struct out out;
    for (int i = 0; i < n; i++)
        rows[i] = (struct row){r->seq, tokens[i], ROW_FINAL | WANT_LOGITS};
    int rc = engine_step(r->g, rows, n, &out, e);
    if (!rc) {
        seq_commit(r->g, r->seq, n);
        *logits = out.logits;
    }
    return rc;
}

/* log softmax of x into y. */
static bool log_softmax(const float *x, int n, double *y)
{
    double top = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++)
        top = (double)x[i] > top ? (double)x[i] : top;
    for (int i = 0; i < n; i++)
        sum += exp64((double)x[i] - top);
    for (int i = 0; i < n; i++)
        y[i] = (double)x[i] - top - log64(sum);
    return isfinite(top) && isfinite(sum);
}

static int best_of(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

bool agreement_add(struct agreement *a, const float *p, const float *q, int n_vocab, double *work)
{
    double *lp = work, *lq = work + n_vocab, kl = 0;
    if (!log_softmax(p, n_vocab, lp) || !log_softmax(q, n_vocab, lq))
        return false;
    for (int i = 0; i < n_vocab; i++)
        kl += lp[i] > -700 ? exp64(lp[i]) * (lp[i] - lq[i]) : 0;
    a->all = xrealloc(a->all, (size_t)(a->n + 1) * sizeof *a->all);
    a->all[a->n++] = kl > 0 ? kl : 0; // rounding
    a->top1 += best_of(p, n_vocab) == best_of(q, n_vocab);
    return true;
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

void agreement_finish(struct agreement *a)
{
    if (a->n) {
        qsort(a->all, (size_t)a->n, sizeof *a->all, by_value);
        for (int i = 0; i < a->n; i++)
            a->kl += a->all[i] / a->n;
        a->kl_999 = a->all[(int)ceil(0.999 * a->n) - 1];
        a->top1 /= a->n;
    }
    free(a->all);
    a->all = NULL;
}
