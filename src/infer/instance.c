#include "infer/instance.h"

#include <string.h>

#include "base/clock.h"

static void add_eos(struct instance *in, int64_t id)
{
    if (id < 0 || id >= in->m->n_vocab || instance_is_eos(in, (int32_t)id) || in->n_eos == (int)(sizeof in->eos / sizeof *in->eos))
        return;
    in->eos[in->n_eos++] = (int32_t)id;
}

/* One id or a list of them. */
static void add_eos_json(struct instance *in, const struct json *v)
{
    int64_t id;
    if (json_int(v, &id))
        add_eos(in, id);
    for (const struct json *c = json_is(v, JSON_ARRAY) ? v->child : NULL; c; c = c->next)
        if (json_int(c, &id))
            add_eos(in, id);
}

bool instance_is_eos(const struct instance *in, int32_t id)
{
    for (int i = 0; i < in->n_eos; i++)
        if (in->eos[i] == id)
            return true;
    return false;
}

int instance_open(struct instance *in, const char *path, const struct instance_options *o, struct err *e)
{
    struct package *p;
    int64_t t0 = clock_ns();
    *in = (struct instance){0};
    int rc = package_open(&p, path, e);
    if (rc)
        return rc;
    p->is_headers_only = o->headers_only;
    struct backend_options bo = {.threads = o->threads, .isa = o->isa, .float_mode = o->float_mode};
    if ((rc = backend_cpu_open(&in->be, &bo, e))) {
        package_close(p);
        return rc;
    }
    if ((rc = model_open(&in->m, p, in->be, e)))
        goto out;
    mtp_bind(in->m, &in->head);
    in->n_valid = in->m->n_vocab;
    if (!o->without_tokenizer) {
        bool present = tokenizer_present(path);
        if ((rc = present ? tokenizer_open(&in->tok, path, e) : tokenizer_open_bytes(&in->tok, e)))
            goto out;
        in->bytes_only = !present;
        int32_t top = tokenizer_max_id(in->tok);
        if (top >= in->m->n_vocab) {
            rc = err_set(e, ERR_FORMAT, "%s: tokenizer id %d has no embedding row: the embedding has %d rows", path, (int)top, in->m->n_vocab);
            goto out;
        }
        in->n_valid = top + 1;
        in->specials = tokenizer_specials(in->tok);
        add_eos(in, in->specials.eos);
    }
    add_eos_json(in, json_get(p->generation, "eos_token_id"));
    add_eos_json(in, json_get(p->config, "eos_token_id"));
    in->load_ns = clock_ns() - t0;
    return 0;
out:
    instance_close(in);
    return rc;
}

int instance_sampling(const struct instance *in, struct sampling *s, const char **source, struct err *e)
{
    const struct json *g = in->m->pkg->generation;
    *s = sampling_neutral();
    *source = g ? "generation_config.json" : "default";
    int rc = g ? sampling_read(s, g, e) : 0;
    bool samples = json_bool(json_get(g, "do_sample"), json_get(g, "temperature") != NULL);
    if (!samples)
        s->temperature = 0; // as transformers does: greedy unless the package asks for sampling
    return rc ? err_prefix(e, "%s: generation_config.json", in->m->pkg->path) : 0;
}

void instance_close(struct instance *in)
{
    tokenizer_close(in->tok);
    model_close(in->m);
    if (in->be)
        in->be->ops->close(in->be);
    *in = (struct instance){0};
}
