#include "infer/instance.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"

static void add_eos(struct instance *in, const char *file, int64_t id)
{
    if (id >= 0 && id < in->m->n_vocab && instance_is_eos(in, (int32_t)id))
        return;
    if (id < 0 || id >= in->m->n_vocab)
        package_note(in->m->pkg, "%s: eos_token_id %lld is no token of the model, it is ignored", file, (long long)id);
    else if (in->n_eos == (int)(sizeof in->eos / sizeof *in->eos))
        package_note(in->m->pkg, "%s: eos_token_id %lld is ignored: more than %d of them", file, (long long)id, in->n_eos);
    else
        in->eos[in->n_eos++] = (int32_t)id;
}

/* One id or a list of them. */
static void add_eos_json(struct instance *in, const char *file, const struct json *v)
{
    const struct json *first = json_is(v, JSON_ARRAY) ? v->child : v;
    for (const struct json *c = first; c && !json_is(c, JSON_NULL); c = first == v ? NULL : c->next) {
        int64_t id;
        if (json_int(c, &id))
            add_eos(in, file, id);
        else
            package_note(in->m->pkg, "%s: eos_token_id holds %s, expected token ids", file, json_type_name(c));
    }
}

bool instance_is_eos(const struct instance *in, int32_t id)
{
    for (int i = 0; i < in->n_eos; i++)
        if (in->eos[i] == id)
            return true;
    return false;
}

static const char *generation_file(const struct package *p)
{
    return p->kind == PACKAGE_GGUF ? p->config_file : "generation_config.json";
}

/* What else the file may ask for that changes answers, and isn't served. neutral: the value that asks for nothing. */
static void note_ignored(struct package *p)
{
    static const struct {
        const char *key;
        double neutral;
    } keys[] = {{"num_beams", 1},           {"num_beam_groups", 1},      {"no_repeat_ngram_size", 0},
                {"typical_p", 1},           {"epsilon_cutoff", 0},       {"eta_cutoff", 0},
                {"penalty_alpha", 0},       {"diversity_penalty", 0},    {"encoder_repetition_penalty", 1},
                {"guidance_scale", 1},      {"top_h", 0},                {"min_length", 0},
                {"min_new_tokens", 0},      {"max_new_tokens", -1},      {"bad_words_ids", -1},
                {"force_words_ids", -1},    {"sequence_bias", -1},       {"suppress_tokens", -1},
                {"begin_suppress_tokens", -1}, {"forced_bos_token_id", -1}, {"forced_eos_token_id", -1},
                {"exponential_decay_length_penalty", -1}, {"stop_strings", -1}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const struct json *v = json_get(p->generation, keys[i].key);
        bool asks = v && !json_is(v, JSON_NULL) && !(json_is(v, JSON_ARRAY) && !v->n) &&
                    !(json_is(v, JSON_NUMBER) && json_num(v, 0) == keys[i].neutral);
        if (asks)
            package_note(p, "%s: %s is not honoured", generation_file(p), keys[i].key);
    }
}

static void read_sampling(struct instance *in)
{
    struct package *p = in->m->pkg;
    struct sampling *s = &in->sampling;
    const struct json *g = p->generation, *samples = json_get(g, "do_sample");
    const char *file = generation_file(p);
    struct err bad = {0};
    *s = sampling_neutral();
    if (g && !sampling_read(s, g, &bad) && samples && !json_is(samples, JSON_NULL) && !json_is(samples, JSON_TRUE) &&
        !json_is(samples, JSON_FALSE))
        err_set(&bad, ERR_FORMAT, "do_sample is %s, expected true or false", json_type_name(samples));
    if (bad.code) {
        snprintf(in->sampling_complaint, sizeof in->sampling_complaint, "%s: ignored: %.200s", file, bad.msg);
        package_note(p, "%s", in->sampling_complaint);
    }
    sampling_free(s); // a bias isn't the package's to set
    for (int f = 0; f < N_SAMPLING; f++) {
        struct sampling neutral = sampling_neutral();
        bool is_given = json_is(json_get(g, sampling_names[f]), JSON_NUMBER);
        bool is_used = is_given && (!bad.code || sampling_value(s, f) != sampling_value(&neutral, f));
        in->sampling_source[f] = is_used ? file : "default";
    }
    if (!json_bool(samples, json_is(json_get(g, "temperature"), JSON_NUMBER))) {
        s->temperature = 0; // as transformers does: greedy unless the package asks for sampling
        in->sampling_source[SAMPLING_TEMPERATURE] = samples ? file : "default";
    }
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
        if (in->specials.eos >= 0)
            add_eos(in, "the tokenizer", in->specials.eos);
    }
    add_eos_json(in, generation_file(p), json_get(p->generation, "eos_token_id"));
    add_eos_json(in, p->config_file, json_get(p->config, "eos_token_id"));
    read_sampling(in);
    note_ignored(p);
    in->load_ns = clock_ns() - t0;
    return 0;
out:
    instance_close(in);
    return rc;
}

void instance_close(struct instance *in)
{
    tokenizer_close(in->tok);
    model_close(in->m);
    if (in->be)
        in->be->ops->close(in->be);
    *in = (struct instance){0};
}
