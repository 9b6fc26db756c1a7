/* probe generate: answers from ids, text or messages, with everything that decides them (docs/probe.md). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/session.h"

/* Stop strings of a request: a string or a list of them. */
static int read_stop(const struct json *v, char **out, int max, int *n, struct err *e)
{
    *n = 0;
    if (!v || json_is(v, JSON_NULL))
        return 0;
    if (json_is(v, JSON_STRING)) {
        out[(*n)++] = (char *)(uintptr_t)v->s;
        return 0;
    }
    for (const struct json *c = json_is(v, JSON_ARRAY) ? v->child : NULL; c; c = c->next) {
        if (!json_is(c, JSON_STRING) || *n == max)
            return err_set(e, ERR_FORMAT, "stop: expected a string or a list of at most %d strings", max);
        out[(*n)++] = (char *)(uintptr_t)c->s;
    }
    return json_is(v, JSON_ARRAY) ? 0 : err_set(e, ERR_FORMAT, "stop: expected a string or a list of strings");
}

static int read_int(const struct json *o, const char *key, int64_t min, int64_t max, int64_t *out, struct err *e)
{
    const struct json *v = json_get(o, key);
    if (!v || json_is(v, JSON_NULL))
        return 0;
    if (!json_int(v, out) || *out < min || *out > max)
        return err_set(e, ERR_FORMAT, "%s: expected a whole number from %lld to %lld", key, (long long)min, (long long)max);
    return 0;
}

static int read_settings(const struct json *in, struct gen_request *r, struct err *e)
{
    int64_t max_tokens = r->max_tokens, seed = 0, depth = r->depth;
    const struct json *d = json_get(in, "depth"), *acc = json_get(in, "acceptance");
    if (sampling_read(&r->sampling, in, e) || read_int(in, "max_tokens", 1, 1 << 30, &max_tokens, e) ||
        read_int(in, "seed", 0, INT64_MAX, &seed, e))
        return e->code;
    if (json_is(d, JSON_STRING) && !strcmp(d->s, "auto"))
        depth = -1;
    else if (read_int(in, "depth", 0, DEPTH_MAX, &depth, e))
        return e->code;
    if (acc && strcmp(json_str(acc, ""), "seeded") && strcmp(json_str(acc, ""), "exact"))
        return err_set(e, ERR_FORMAT, "acceptance: expected \"seeded\" or \"exact\"");
    if (acc)
        r->acceptance = !strcmp(acc->s, "exact") ? ACCEPT_EXACT : ACCEPT_SEEDED;
    r->max_tokens = (int)max_tokens;
    r->depth = (int)depth;
    r->ignore_eos = json_bool(json_get(in, "ignore_eos"), false);
    const char *drafters = json_str(json_get(in, "drafters"), "mtp,copy");
    r->use_mtp = strstr(drafters, "mtp") != NULL;
    r->use_copy = strstr(drafters, "copy") != NULL;
    r->has_seed = json_is(json_get(in, "seed"), JSON_NUMBER);
    r->seed = (uint64_t)seed;
    return 0;
}

static int read_prompt(struct session *s, const struct json *in, struct ids *ids, struct err *e)
{
    const struct json *v;
    if ((v = json_get(in, "ids"))) {
        for (const struct json *c = json_is(v, JSON_ARRAY) ? v->child : NULL; c; c = c->next) {
            int64_t id;
            if (!json_int(c, &id) || id < 0 || id > INT32_MAX)
                return err_set(e, ERR_FORMAT, "ids: expected a list of token ids");
            ids_add(ids, (int32_t)id);
        }
        return ids->n ? 0 : err_set(e, ERR_FORMAT, "ids: expected a list of token ids");
    }
    if (json_is(v = json_get(in, "prompt"), JSON_STRING))
        return chat_encode_raw(&s->chat, &s->in, v->s, v->n, ids, e);
    if (!json_is(json_get(in, "messages"), JSON_ARRAY))
        return err_set(e, ERR_FORMAT, "expected ids, prompt or messages");
    struct arena a = {0};
    struct json *request;
    struct buf b; // the same members, with the generation prompt asked for
    buf_init(&b, 256 << 20);
    buf_str(&b, "{\"add_generation_prompt\": true");
    for (const struct json *c = in->child; c; c = c->next)
        if (!strcmp(c->key, "messages") || !strcmp(c->key, "tools") || !strcmp(c->key, "documents") || !strcmp(c->key, "kwargs")) {
            buf_fmt(&b, ", \"%s\": ", c->key);
            json_write(&b, c);
        }
    buf_chr(&b, '}');
    int rc = json_parse(&request, &a, b.p, b.n, "messages", e);
    if (!rc)
        rc = chat_encode(&s->chat, request, ids, NULL, e);
    buf_free(&b);
    arena_free(&a);
    return rc;
}

static void write_counts(struct buf *out, const char *name, const int64_t *v, const int64_t *upto)
{
    buf_fmt(out, ", \"%s\": [", name);
    for (int i = 0; i < COPY_MAX && upto[i]; i++)
        buf_fmt(out, "%s%lld", i ? ", " : "", (long long)v[i]);
    buf_chr(out, ']');
}

static int serve_line(void *ud, const struct json *in, struct buf *out, struct err *e)
{
    struct session *s = ud;
    struct gen_request r = s->request;
    struct ids ids = {0};
    char *stop[16];
    int n_stop, n_out;
    r.want_hash = true;
    r.sampling = s->in.sampling;
    if (!json_is(in, JSON_OBJECT))
        return err_set(e, ERR_FORMAT, "expected an object");
    int rc = read_settings(in, &r, e);
    if (!rc)
        rc = read_stop(json_get(in, "stop"), stop, 16, &n_stop, e);
    if (!rc)
        rc = read_prompt(s, in, &ids, e);
    if (!rc) {
        r.stop = (struct stop_strings){stop, n_stop};
        r.prompt = ids.v;
        r.n_prompt = (int)ids.n;
        gen_forget(s->gen);
        rc = gen_run(s->gen, &r, NULL, NULL, NULL, e);
    }
    if (!rc) {
        const int32_t *v = gen_output(s->gen, &n_out);
        const struct gen_stats *st = gen_stats(s->gen);
        buf_str(out, "{\"ids\": [");
        for (int i = 0; i < n_out; i++)
            buf_fmt(out, "%s%d", i ? ", " : "", (int)v[i]);
        buf_str(out, "], \"text\": ");
        json_write_str(out, buf_cstr(gen_text(s->gen)), gen_text(s->gen)->n);
        buf_fmt(out, ", \"stop\": \"%s\", \"seed\": %llu, \"rounds\": %lld", stop_reason_name(gen_stop_reason(s->gen)),
                (unsigned long long)gen_seed(s->gen), (long long)st->rounds);
        write_counts(out, "proposed", st->proposed, st->proposed);
        write_counts(out, "accepted", st->accepted, st->proposed);
        buf_fmt(out, ", \"logits_hash\": \"%016llx\"}", (unsigned long long)gen_logits_hash(s->gen));
    }
    sampling_free(&r.sampling);
    ids_free(&ids);
    return rc;
}

int probe_generate(int argc, char **argv)
{
    struct session_options so = session_defaults();
    struct opt opts[SESSION_OPTS];
    struct err e = {0};
    struct session s;
    int n = opt_parse(opts, session_opts(&so, opts), argc, argv, &so.model, 1, "usage: foresay probe generate MODEL");
    if (n < 0)
        return n == -2 ? 0 : 2;
    if (!so.model) {
        fprintf(stderr, "foresay: probe generate needs MODEL\n");
        return 2;
    }
    if (session_open(&s, &so, 2, &e))
        return cli_fail(&e);
    int rc = probe_lines(&s, serve_line);
    session_close(&s);
    return rc;
}
