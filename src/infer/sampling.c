/* Sampling settings: neutral values and reading them from JSON with validation. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "infer/sampler.h"

enum { MAX_BIAS = 1 << 20 };

struct sampling sampling_neutral(void)
{
    return (struct sampling){.temperature = 1.0, .top_p = 1.0, .repetition_penalty = 1.0};
}

const char *const sampling_names[N_SAMPLING] = {"temperature",        "top_k",           "top_p", "min_p", "repetition_penalty",
                                                "presence_penalty", "frequency_penalty"};

double sampling_value(const struct sampling *s, int field)
{
    const double values[N_SAMPLING] = {s->temperature,        s->top_k,           s->top_p, s->min_p, s->repetition_penalty,
                                       s->presence_penalty, s->frequency_penalty};
    return values[field];
}

void sampling_describe(const struct sampling *s, const char *const source[N_SAMPLING], struct buf *out)
{
    for (int f = 0; f < N_SAMPLING; f++)
        buf_fmt(out, "%s%s %g (%s)", f ? ", " : "", sampling_names[f], sampling_value(s, f), source[f]);
}

void sampling_free(struct sampling *s)
{
    free(s->bias);
    s->bias = NULL;
    s->n_bias = 0;
}

/* Complaints about several fields become one sentence in *c. */
static void complain(struct buf *c, const char *field, const char *want, const struct json *found)
{
    struct buf v;
    buf_init(&v, 4096);
    json_write(&v, found);
    buf_fmt(c, "%s%s must be %s, found %.60s%s", c->n ? "; " : "", field, want, buf_cstr(&v),
            v.n > 60 || v.is_full ? "..." : "");
    buf_free(&v);
}

enum { OPEN_LOW = 1 }; // the lower bound itself is not allowed

static void read_number(struct buf *c, const struct json *o, const char *field, double low, double high,
                        int flags, const char *want, double *out)
{
    const struct json *v = json_get(o, field);
    if (!v || json_is(v, JSON_NULL))
        return; // null means not given, as in the OpenAI API
    double x = json_num(v, NAN);
    if (!json_is(v, JSON_NUMBER) || !isfinite(x) || x < low || x > high || ((flags & OPEN_LOW) && x == low))
        complain(c, field, want, v);
    else
        *out = x;
}

static void read_top_k(struct buf *c, const struct json *o, int32_t *out)
{
    const struct json *v = json_get(o, "top_k");
    int64_t k;
    if (!v || json_is(v, JSON_NULL))
        return;
    if (!json_int(v, &k) || k < -1) // -1 is vLLM's word for off
        complain(c, "top_k", "a whole number, 0 or -1 for off", v);
    else
        *out = k < 0 ? 0 : k > INT32_MAX ? INT32_MAX : (int32_t)k;
}

/* A token id as a key: digits only. Returns -1 if it isn't one. */
static int32_t read_id(const char *s, size_t n)
{
    int64_t id = 0;
    if (!n || n > 10)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9')
            return -1;
        id = id * 10 + (s[i] - '0');
    }
    return id <= INT32_MAX ? (int32_t)id : -1;
}

/* All or nothing: a map with one bad entry changes no bias. Returns ERR_NOMEM or 0. */
static int read_bias(struct buf *c, const struct json *o, struct sampling *s)
{
    static const char want[] = "an object of token ids and finite numbers";
    const struct json *v = json_get(o, "logit_bias");
    int n = 0;
    if (!v || json_is(v, JSON_NULL))
        return 0;
    if (!json_is(v, JSON_OBJECT) || v->n > MAX_BIAS) {
        complain(c, "logit_bias", want, v);
        return 0;
    }
    struct logit_bias *bias = v->n ? malloc(v->n * sizeof *bias) : NULL;
    if (v->n && !bias)
        return ERR_NOMEM;
    for (const struct json *m = v->child; m; m = m->next) {
        double x = json_num(m, NAN);
        int32_t id = read_id(m->key, m->n_key);
        if (id < 0 || !json_is(m, JSON_NUMBER) || !isfinite(x)) {
            char field[80];
            snprintf(field, sizeof field, "logit_bias[\"%.40s\"]", m->key);
            complain(c, field, id < 0 ? "keyed by a token id" : "a finite number", m);
            free(bias);
            return 0;
        }
        bias[n++] = (struct logit_bias){id, x};
    }
    s->bias = bias;
    s->n_bias = n;
    return 0;
}

int sampling_read(struct sampling *s, const struct json *o, struct err *e)
{
    struct buf c;
    if (!json_is(o, JSON_OBJECT))
        return err_set(e, ERR_ARG, "sampling settings must be an object");
    buf_init(&c, 2048);
    read_number(&c, o, "temperature", 0, INFINITY, 0, "a number of at least 0", &s->temperature);
    read_top_k(&c, o, &s->top_k);
    read_number(&c, o, "top_p", 0, 1, OPEN_LOW, "a number above 0 and at most 1", &s->top_p);
    read_number(&c, o, "min_p", 0, 1, 0, "a number from 0 to 1", &s->min_p);
    read_number(&c, o, "repetition_penalty", 0, INFINITY, OPEN_LOW, "a number above 0",
                &s->repetition_penalty);
    read_number(&c, o, "presence_penalty", -INFINITY, INFINITY, 0, "a finite number", &s->presence_penalty);
    read_number(&c, o, "frequency_penalty", -INFINITY, INFINITY, 0, "a finite number", &s->frequency_penalty);
    int rc = read_bias(&c, o, s);
    if (rc)
        err_set(e, rc, "not enough memory for %zu entries of logit_bias", json_get(o, "logit_bias")->n);
    else if (c.n)
        rc = err_set(e, ERR_ARG, "%s", buf_cstr(&c));
    buf_free(&c);
    return rc;
}
