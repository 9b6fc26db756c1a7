/* One pass over the catalogue per table; nothing of the tensors' data is read. */
#include "measure/inspect.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "chat/template_set.h"
#include "format/config.h"
#include "format/gguf.h"

enum class {
    EMBEDDING,
    HEAD,
    ATTENTION,
    LINEAR_ATTENTION,
    MLP,
    EXPERTS,
    NORMS,
    DRAFT_HEAD,
    OTHER_INPUT,
    OTHER,
    N_CLASSES
};
static const char *const class_name[N_CLASSES] = {
    "embedding", "lm_head", "attention",  "linear_attention", "mlp",
    "experts",   "norms",   "draft_head", "other_modalities", "other",
};

struct sum {
    const char *type; // of a format's sum
    enum wfmt fmt;
    int n_tensors;
    int64_t parameters;
    uint64_t bytes;
};

enum { MAX_FORMATS = 48, MAX_UNUSED = 4096 };

static bool starts(const char *s, const char *prefix) { return !strncmp(s, prefix, strlen(prefix)); }
static bool ends(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && !strcmp(s + n - m, suffix);
}

static int64_t trunk_layers(const struct package *p)
{
    int64_t n;
    return json_int(cfg_get(p, "num_hidden_layers"), &n) && n > 0 ? n : INT64_MAX;
}

/* Some families keep the head under mtp., others in the layers that follow the trunk's. */
static bool in_head(const char *key, int64_t n_layers)
{
    if (starts(key, "mtp."))
        return true;
    if (!starts(key, "layers.") || key[7] < '0' || key[7] > '9')
        return false;
    return strtoll(key + 7, NULL, 10) >= n_layers;
}

static enum class class_of(const char *key, int64_t n_layers) {
    static const char *const inputs[] = {"visual.", "vision_", "audio_", "multi_modal_projector.",
                                         "embed_vision.", "embed_audio."};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs;
         i++) if (starts(key, inputs[i])) return OTHER_INPUT;
    if (in_head(key, n_layers)) return DRAFT_HEAD;
    if (ends(key, "norm.weight")) return NORMS;
    if (starts(key, "embed_tokens.") || starts(key, "word_embeddings.")) return EMBEDDING;
    if (starts(key, "lm_head.")) return HEAD;
    if (strstr(key, "experts.") || strstr(key, ".switch_mlp.")) return EXPERTS;
    if (strstr(key, ".linear_attn.")) return LINEAR_ATTENTION;
    if (strstr(key, "attn.") || strstr(key, ".attention.")) return ATTENTION;
    return strstr(key, ".mlp.") ? MLP : OTHER;
}

static int64_t parameter_count(const struct weight *w)
{
    int64_t n = 1;
    for (int i = 0; i < w->ndim; i++)
        n *= w->ne[i];
    return n;
}

static void add(struct sum *s, const struct weight *w)
{
    s->n_tensors++;
    s->parameters += parameter_count(w);
    s->bytes += w->bytes;
}

/* A table of formats; what doesn't fit in it is counted under the last entry. */
static void add_format(struct sum *table, int *n, const struct weight *w)
{
    int i = 0;
    while (i < *n && strcmp(table[i].type, w->type))
        i++;
    if (i == MAX_FORMATS)
        i--;
    if (i == *n)
        table[(*n)++] = (struct sum){.type = w->type, .fmt = w->fmt};
    add(&table[i], w);
}

// ---- writing ---------------------------------------------------------------------------------------------

static void put_str(struct buf *b, const char *key, const char *s)
{
    buf_fmt(b, "\"%s\":", key);
    if (s)
        json_write_str(b, s, strlen(s));
    else
        buf_str(b, "null");
}

static void put_sum(struct buf *b, const struct sum *s)
{
    buf_fmt(b, "\"tensors\":%d,\"parameters\":%" PRId64 ",\"bytes\":%" PRIu64, s->n_tensors, s->parameters,
            s->bytes);
}

static void put_formats(struct buf *b, const struct sum *table, int n)
{
    buf_str(b, "\"formats\":[");
    for (int i = 0; i < n; i++) {
        buf_str(b, i ? ",{" : "{");
        put_str(b, "format", table[i].type);
        buf_fmt(b, ",\"supported\":%s,", table[i].fmt == WF_OTHER ? "false" : "true");
        put_sum(b, &table[i]);
        buf_chr(b, '}');
    }
    buf_chr(b, ']');
}

static void put_sizes(const struct package *p, struct buf *b)
{
    struct sum classes[N_CLASSES] = {{0}}, all = {0}, formats[MAX_FORMATS];
    int n = 0;
    bool is_first = true;
    int64_t n_layers = trunk_layers(p);
    for (int i = 0; i < weights_count(p->weights); i++) {
        const struct weight *w = weights_at(p->weights, i);
        add(&classes[class_of(w->key, n_layers)], w);
        add(&all, w);
        add_format(formats, &n, w);
    }
    put_sum(b, &all);
    buf_str(b, ",\"classes\":[");
    for (int c = 0; c < N_CLASSES; c++)
        if (classes[c].n_tensors) {
            buf_str(b, is_first ? "{" : ",{");
            is_first = false;
            put_str(b, "class", class_name[c]);
            buf_chr(b, ',');
            put_sum(b, &classes[c]);
            buf_chr(b, '}');
        }
    buf_str(b, "],");
    put_formats(b, formats, n);
}

static bool has_file(const struct package *p, const char *name)
{
    char *path = path_join(p->path, name);
    bool is_there = file_exists(path);
    free(path);
    return is_there;
}

/* A string of the GGUF behind the package, or NULL; the caller frees it. */
static char *gguf_value(const struct package *p, const char *key)
{
    char *path = file_is_dir(p->path) ? path_join(p->path, p->config_file) : xstrdup(p->path), *value = NULL;
    int rc = gguf_find_string(path, key, &value, NULL);
    free(path);
    return rc ? NULL : value;
}

static void put_texts(const struct package *p, struct buf *b)
{
    const char *tokenizer = NULL;
    char *model = NULL, *pre = NULL;
    struct template_set set;
    if (template_set_find(&set, p->path, NULL))
        set.n = 0; // said where the template is opened
    if (p->kind == PACKAGE_GGUF) {
        model = gguf_value(p, "tokenizer.ggml.model");
        pre = gguf_value(p, "tokenizer.ggml.pre");
        tokenizer = model ? p->config_file : NULL;
    } else {
        tokenizer = has_file(p, "tokenizer.json")    ? "tokenizer.json"
                    : has_file(p, "tekken.json")     ? "tekken.json"
                    : has_file(p, "tokenizer.model") ? "tokenizer.model"
                                                     : NULL;
    }
    buf_str(b, ",\"tokenizer\":{");
    put_str(b, "source", tokenizer);
    buf_chr(b, ',');
    put_str(b, "kind", model ? model : tokenizer);
    buf_chr(b, ',');
    put_str(b, "pre", pre);
    buf_str(b, "},\"template\":{");
    put_str(b, "source", set.n ? set.v[0].source : NULL);
    buf_chr(b, '}');
    template_set_free(&set);
    free(model);
    free(pre);
}

// ---- draft head ------------------------------------------------------------------------------------------

static int stored_parts(const struct weight *w)
{
    return w->fmt == WF_MLX ? 3 : starts(w->type, "U32 ") ? 2 : 1;
}

void inspect_find_head(const struct package *p, struct inspect_head *h)
{
    static const char *const needed[] = {
        "mtp.fc.weight",   "mtp.pre_fc_norm_embedding.weight",    "mtp.pre_fc_norm_hidden.weight",
        "mtp.norm.weight", "mtp.layers.0.input_layernorm.weight", "mtp.layers.0.self_attn.q_proj.weight"};
    int64_t n_layers = trunk_layers(p);
    bool is_mtp_layout = false;
    *h = (struct inspect_head){0};
    if (!json_int(cfg_get(p, "mtp_num_hidden_layers"), &h->promised) &&
        !json_int(cfg_get(p, "num_nextn_predict_layers"), &h->promised))
        h->promised = 0;
    for (int i = 0; i < weights_count(p->weights); i++) {
        const struct weight *w = weights_at(p->weights, i);
        if (class_of(w->key, n_layers) != DRAFT_HEAD)
            continue;
        is_mtp_layout |= starts(w->key, "mtp.");
        h->n_tensors++;
        h->n_stored += stored_parts(w);
        h->parameters += parameter_count(w);
        h->bytes += w->bytes;
    }
    for (size_t i = 0; i < sizeof needed / sizeof *needed && is_mtp_layout && !h->missing; i++)
        if (!weights_find(p->weights, "%s", needed[i]) &&
            !(!strcmp(needed[i], "mtp.norm.weight") && cfg_get(p, "foresay_mtp_norm")))
            h->missing = needed[i];
}

static void put_head(const struct package *p, struct buf *b)
{
    struct inspect_head h;
    struct sum formats[MAX_FORMATS];
    int n = 0;
    int64_t n_layers = trunk_layers(p);
    inspect_find_head(p, &h);
    for (int i = 0; i < weights_count(p->weights); i++) {
        const struct weight *w = weights_at(p->weights, i);
        if (class_of(w->key, n_layers) == DRAFT_HEAD)
            add_format(formats, &n, w);
    }
    const char *state = h.missing        ? "incomplete"
                        : h.n_tensors    ? "found"
                        : h.promised > 0 ? "promised by the configuration, but the weights hold none"
                                         : "none";
    buf_fmt(b, ",\"mtp\":{\"promised\":%" PRId64 ",\"found\":%s,", h.promised,
            h.n_tensors ? "true" : "false");
    put_str(b, "state", state);
    buf_chr(b, ',');
    put_str(b, "missing", h.missing);
    buf_fmt(b, ",\"tensors\":%d,\"stored_tensors\":%d,\"parameters\":%" PRId64 ",\"bytes\":%" PRIu64 ",",
            h.n_tensors, h.n_stored, h.parameters, h.bytes);
    put_formats(b, formats, n);
    buf_chr(b, '}');
}

// ---- report ----------------------------------------------------------------------------------------------

static void put_unused(const struct package *p, struct buf *b)
{
    int n = 0;
    buf_str(b, ",\"unused\":[");
    for (int i = 0; i < weights_count(p->weights); i++) {
        const struct weight *w = weights_at(p->weights, i);
        if (w->used || n++ >= MAX_UNUSED)
            continue;
        buf_str(b, n > 1 ? ",{" : "{");
        put_str(b, "tensor", w->name);
        buf_chr(b, ',');
        put_str(b, "file", w->file);
        buf_chr(b, ',');
        put_str(b, "format", w->type);
        buf_fmt(b, ",\"bytes\":%zu,", w->bytes);
        put_str(b, "why", w->unused_why ? w->unused_why : "no part of this architecture has that name");
        buf_chr(b, '}');
    }
    buf_fmt(b, "],\"n_unused\":%d", n);
}

void inspect_catalogue(const struct package *p, const struct inspect_facts *facts, struct buf *b)
{
    static const char *const kinds[] = {"hf", "mlx", "gguf"};
    const struct json *names = cfg_get(p, "architectures");
    buf_chr(b, '{');
    put_str(b, "path", facts && facts->shown_path ? facts->shown_path : p->path);
    buf_chr(b, ',');
    put_str(b, "kind", kinds[p->kind]);
    buf_chr(b, ',');
    put_str(b, "model_type", json_str(cfg_get(p, "model_type"), NULL));
    buf_chr(b, ',');
    put_str(b, "architecture", json_str(json_at(names, 0), NULL));
    buf_chr(b, ',');
    put_sizes(p, b);
    put_texts(p, b);
    put_head(p, b);
    if (facts && facts->is_bound)
        put_unused(p, b);
    buf_str(b, ",\"notes\":[");
    for (int i = 0; i < p->n_notes; i++) {
        buf_str(b, i ? "," : "");
        json_write_str(b, p->notes[i], strlen(p->notes[i]));
    }
    buf_chr(b, ']');
    if (facts && facts->refusal) {
        buf_chr(b, ',');
        put_str(b, "refusal", facts->refusal);
    }
    if (facts && facts->members && *facts->members) {
        buf_chr(b, ',');
        buf_str(b, facts->members);
    }
    buf_chr(b, '}');
}
