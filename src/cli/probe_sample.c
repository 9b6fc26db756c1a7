/* `foresay probe sample`: logits, history and settings to the probabilities that a token would be drawn
 * by. */

#include "base/mem.h"
#include "cli/cli.h"
#include "infer/sampler.h"

enum { MAX_LOGITS = 1 << 22 };

/* Everything one line needs; zeroed members are safe to free. */
struct work {
    float *logits;
    int n;
    struct history *history;
    struct sampler *sampler;
    struct dist dist;
    struct sampling set;
};

static int read_logits(struct work *w, const struct json *in, struct err *e)
{
    const struct json *v = json_get(in, "logits");
    if (!json_is(v, JSON_ARRAY) || !v->n || v->n > MAX_LOGITS)
        return err_set(e, ERR_ARG, "logits must be an array of 1 to %d numbers", MAX_LOGITS);
    w->n = (int)v->n;
    w->logits = mem_big(v->n * sizeof *w->logits);
    if (!w->logits)
        return err_set(e, ERR_NOMEM, "not enough memory for %zu logits", v->n);
    int i = 0;
    for (const struct json *x = v->child; x; x = x->next, i++) {
        if (!json_is(x, JSON_NUMBER))
            return err_set(e, ERR_ARG, "logits[%d] is not a number", i);
        w->logits[i] = (float)json_num(x, 0);
    }
    return 0;
}

static int read_history(struct work *w, const struct json *in, struct err *e)
{
    const struct json *v = json_get(in, "history");
    int i = 0;
    w->history = history_new(w->n);
    if (!v || json_is(v, JSON_NULL))
        return 0;
    if (!json_is(v, JSON_ARRAY))
        return err_set(e, ERR_ARG, "history must be an array of token ids");
    for (const struct json *x = v->child; x; x = x->next, i++) {
        int64_t id;
        if (!json_int(x, &id) || id < 0 || id >= w->n)
            return err_set(e, ERR_ARG, "history[%d] must be a token id from 0 to %d", i, w->n - 1);
        history_push(w->history, (int32_t)id);
    }
    return 0;
}

static int sample(struct work *w, const struct json *in, struct buf *out, struct err *e)
{
    const struct json *set = json_get(in, "settings");
    int rc;
    if ((rc = read_logits(w, in, e)) || (rc = read_history(w, in, e)))
        return rc;
    if (set && !json_is(set, JSON_NULL) && (rc = sampling_read(&w->set, set, e)))
        return rc;
    for (int i = 0; i < w->set.n_bias; i++)
        if (w->set.bias[i].id >= w->n)
            return err_set(e, ERR_ARG, "logit_bias names token %d, but there are %d logits",
                           w->set.bias[i].id, w->n);
    w->sampler = sampler_new(w->n);
    dist_init(&w->dist, w->n);
    rc = dist_build(w->sampler, &w->dist, w->logits, w->n, &w->set, w->history);
    if (rc)
        return err_set(e, rc, "logits hold a NaN, an infinity, or nothing but minus infinity");
    buf_str(out, "{\"probs\":{");
    for (int i = 0; i < w->dist.n; i++)
        buf_fmt(out, "%s\"%d\":%.17g", i ? "," : "", w->dist.id[i], w->dist.p[i]);
    buf_str(out, "}}");
    return 0;
}

static int sample_line(void *ud, const struct json *in, struct buf *out, struct err *e)
{
    struct work w = {.set = sampling_neutral()};
    int rc;
    (void)ud;
    rc = sample(&w, in, out, e);
    mem_big_free(w.logits, (size_t)w.n * sizeof *w.logits);
    history_free(w.history);
    sampler_free(w.sampler);
    dist_free(&w.dist);
    sampling_free(&w.set);
    return rc;
}

int probe_sample(int argc, char **argv)
{
    (void)argv;
    if (argc > 0) {
        struct err e = {0};
        err_set(&e, ERR_ARG, "probe sample takes no arguments; it reads JSON lines from standard input");
        return cli_fail(&e);
    }
    return probe_lines(NULL, sample_line);
}
