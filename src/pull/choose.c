#include "pull/choose.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/human.h"
#include "text/json.h"

static const char index_name[] = "model.safetensors.index.json";

/* Small files that the readers of folders, tokenizers and templates know. */
static const char *const companions[] = {
    "config.json",     "generation_config.json", "tokenizer.json",      "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json",           "merges.txt",          "tokenizer.model",       "chat_template.jinja",
    "chat_template.json", index_name,            "mtp/config.json",
};

static bool starts(const char *s, const char *prefix) { return !strncmp(s, prefix, strlen(prefix)); }

static bool holds(const char *s, const char *word)
{
    for (; *s; s++)
        if (!strncasecmp(s, word, strlen(word)))
            return true;
    return false;
}

// ---- names of GGUF files ---------------------------------------------------------------------------------

bool choose_part(const char *path, int *part, int *parts, size_t *stem)
{
    size_t n = strlen(path);
    const char *t = path + n - 20; // -00001-of-00003.gguf
    if (n < 21 || !path_ends(path, ".gguf") || t[0] != '-' || strncmp(t + 6, "-of-", 4))
        return false;
    *part = *parts = 0;
    for (int i = 0; i < 5; i++) {
        if (t[1 + i] < '0' || t[1 + i] > '9' || t[10 + i] < '0' || t[10 + i] > '9')
            return false;
        *part = *part * 10 + (t[1 + i] - '0');
        *parts = *parts * 10 + (t[10 + i] - '0');
    }
    *stem = n - 20;
    return *part >= 1 && *part <= *parts;
}

static size_t stem_of(const char *path)
{
    int part, parts;
    size_t stem;
    return choose_part(path, &part, &parts, &stem) ? stem : strlen(path) - (path_ends(path, ".gguf") ? 5 : 0);
}

/* Q4_0, Q4_K_M, IQ2_XXS, TQ1_0, BF16, F16, F32, MXFP4, NVFP4 */
static bool is_quant(const char *s, size_t n)
{
    static const char *const whole[] = {"BF16", "F16", "F32", "FP16", "FP32", "MXFP4", "NVFP4", "MXFP4_MOE"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (strlen(whole[i]) == n && !strncasecmp(s, whole[i], n))
            return true;
    size_t k = n && (*s == 'I' || *s == 'i' || *s == 'T' || *s == 't');
    if (n < k + 2 || (s[k] != 'Q' && s[k] != 'q') || s[k + 1] < '1' || s[k + 1] > '8')
        return false;
    return n == k + 2 || s[k + 2] == '_';
}

int choose_quant(const char *path, char *out, size_t n)
{
    const char *base = path_base(path);
    size_t end = stem_of(path) - (size_t)(base - path), at = end;
    while (at && base[at - 1] != '-' && base[at - 1] != '.')
        at--;
    size_t len = end - at;
    if (!is_quant(base + at, len) || len + 4 > n)
        return 0;
    bool is_dynamic = at >= 3 && !strncasecmp(base + at - 3, "UD-", 3) && (at == 3 || base[at - 4] == '-' || base[at - 4] == '.');
    return snprintf(out, n, "%s%.*s", is_dynamic ? "UD-" : "", (int)len, base + at);
}

// ---- building a choice -----------------------------------------------------------------------------------

static void take(const struct hub_repo *r, struct choice *c, bool *taken, const char *path)
{
    const struct hub_file *f = hub_find(r, path);
    if (f && !taken[f - r->file]) {
        taken[f - r->file] = true;
        c->bytes += f->size;
    }
}

static void leave(struct choice *c, const char *path, const char *why) { buf_fmt(&c->left_out, "%s: %s\n", path, why); }

static int count_ending(const struct hub_repo *r, const char *suffix)
{
    int n = 0;
    for (int i = 0; i < r->n_files; i++)
        n += path_ends(r->file[i].path, suffix);
    return n;
}

static bool is_top(const char *path) { return !strchr(path, '/'); }

/* Other weights' names, in the places where a model's own could lie. */
static const char *not_weights(const char *name)
{
    return starts(name, "consolidated")                           ? "the same weights in another layout"
           : starts(name, "adapter_") || holds(name, "lora")      ? "an adapter"
           : holds(name, ".fp16.") || holds(name, ".fp32.") || holds(name, ".bf16.") ? "a variant of the same weights"
                                                                  : NULL;
}

static bool is_head(const char *path) { return starts(path, "mtp/") || holds(path_base(path), "mtp") || holds(path_base(path), "nextn"); }

// ---- folders of safetensors ------------------------------------------------------------------------------

static int take_indexed(const struct hub_repo *r, struct choice *c, bool *taken, const char *text, size_t n, struct err *e)
{
    struct arena a = {.max_bytes = 32 * n + 65536};
    struct json *top;
    int rc = json_parse(&top, &a, text, n, index_name, e);
    const struct json *map = rc ? NULL : json_get(top, "weight_map");
    if (!rc && !json_is(map, JSON_OBJECT))
        rc = err_set(e, ERR_FORMAT, "%s: missing weight_map", index_name);
    for (const struct json *v = rc ? NULL : map->child; v && !rc; v = v->next) {
        if (!json_is(v, JSON_STRING) || !path_is_inside(v->s, v->n) || !path_ends(v->s, ".safetensors"))
            rc = err_set(e, ERR_FORMAT, "%s: tensor %.100s lies in \"%.100s\": expected a .safetensors file inside the folder", index_name, v->key,
                         json_str(v, "?"));
        else if (!hub_find(r, v->s))
            rc = err_set(e, ERR_FORMAT, "%s: its index names %.200s, which the repository doesn't hold: the upload is incomplete", r->name.repo,
                         v->s);
        else
            take(r, c, taken, v->s);
    }
    arena_free(&a);
    return rc;
}

static bool is_numbered(const char *path)
{
    int digits = 0;
    const char *of = strstr(path, "-of-");
    while (of && of - digits > path && of[-1 - digits] >= '0' && of[-1 - digits] <= '9')
        digits++;
    return starts(path, "model") && digits == 5;
}

/* No index: one file, or shards that lost it, or the only file there is. */
static int take_unindexed(const struct hub_repo *r, struct choice *c, bool *taken, struct err *e)
{
    int n = 0, only = -1;
    if (hub_find(r, "model.safetensors")) {
        take(r, c, taken, "model.safetensors");
        return 0;
    }
    for (int i = 0; i < r->n_files; i++) {
        const char *path = r->file[i].path;
        if (!is_top(path) || !path_ends(path, ".safetensors") || not_weights(path) || is_head(path))
            continue;
        if (is_numbered(path))
            take(r, c, taken, path);
        only = i;
        n++;
    }
    if (!c->bytes && n == 1)
        take(r, c, taken, r->file[only].path);
    if (c->bytes)
        return 0;
    return err_set(e, ERR_UNSUPPORTED, "%s: unsupported: its weights are %s, expected model.safetensors or shards at the top of the repository",
                   r->name.repo, n ? "in files of unknown names" : "in folders");
}

static bool is_other_format(const char *path)
{
    static const char *const suffixes[] = {".bin", ".pth", ".pt", ".onnx", ".h5", ".msgpack", ".gguf"};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (path_ends(path, suffixes[i]))
            return true;
    return false;
}

static int choose_folder(const struct hub_repo *r, const char *index, size_t n_index, struct choice *c, bool *taken, struct err *e)
{
    if (!hub_find(r, "config.json"))
        return err_set(e, ERR_UNSUPPORTED, "%s: unsupported: it has safetensors, but no config.json%s", r->name.repo,
                       hub_find(r, "adapter_config.json") ? " (it is an adapter, not a model)" : "");
    int rc = index ? take_indexed(r, c, taken, index, n_index, e) : take_unindexed(r, c, taken, e);
    for (size_t i = 0; i < sizeof companions / sizeof *companions && !rc; i++)
        take(r, c, taken, companions[i]);
    for (int i = 0; i < r->n_files && !rc; i++) {
        const char *path = r->file[i].path, *why = not_weights(path_base(path));
        bool is_here = is_top(path) || (starts(path, "mtp/") && is_top(path + 4));
        if (taken[i])
            continue;
        if (path_ends(path, ".safetensors") && is_here && !why && is_head(path))
            take(r, c, taken, path);
        else if (starts(path, "additional_chat_templates/") && path_ends(path, ".jinja") && is_top(strchr(path, '/') + 1))
            take(r, c, taken, path);
        else if (path_ends(path, ".safetensors"))
            leave(c, path, why ? why : !is_here ? "in a folder" : index ? "the index doesn't name it" : "not the model's own");
        else if (is_other_format(path))
            leave(c, path, "another format");
    }
    return rc;
}

// ---- GGUF ------------------------------------------------------------------------------------------------

/* The first file of a model: not a later part, not an image projector, not calibration data. */
static bool begins_gguf(const char *path)
{
    int part, parts;
    size_t stem;
    const char *base = path_base(path);
    bool is_later = choose_part(path, &part, &parts, &stem) && part > 1;
    return path_ends(path, ".gguf") && !is_later && !holds(base, "mmproj") && !holds(base, "imatrix");
}

static uint64_t gguf_bytes(const struct hub_repo *r, const char *path)
{
    uint64_t n = 0;
    size_t stem = stem_of(path);
    for (int i = 0; i < r->n_files; i++)
        if (path_ends(r->file[i].path, ".gguf") && stem_of(r->file[i].path) == stem && !strncmp(r->file[i].path, path, stem))
            n += r->file[i].size;
    return n;
}

/* What tells the file from the repository's others: the quantization if no other has it, else the name. */
static void set_of(const struct hub_repo *r, int file, char *out, size_t n)
{
    char mine[100], other[100];
    const char *base = path_base(r->file[file].path);
    bool is_unique = choose_quant(base, mine, sizeof mine) > 0;
    for (int i = 0; i < r->n_files && is_unique; i++)
        is_unique = i == file || !begins_gguf(r->file[i].path) || !choose_quant(r->file[i].path, other, sizeof other) || strcasecmp(mine, other);
    if (is_unique)
        snprintf(out, n, "%s", mine);
    else
        snprintf(out, n, "%.*s", (int)stem_of(base), base);
}

static bool is_wanted(const struct hub_repo *r, int file, const struct choice_options *o)
{
    char set[100];
    const char *path = r->file[file].path;
    if (o->file) {
        size_t stem = stem_of(o->file);
        return (stem_of(path) == stem && !strncmp(path, o->file, stem)) || !strcmp(path_base(path), o->file);
    }
    if (!*o->set)
        return true;
    set_of(r, file, set, sizeof set);
    return !strcasecmp(set, o->set);
}

static int several(const struct hub_repo *r, const struct choice_options *o, struct choice *c, int n_wanted, struct err *e)
{
    char set[100], size[32], names[300] = "";
    for (int i = 0; i < r->n_files; i++) {
        if (!begins_gguf(r->file[i].path))
            continue;
        size_t n = strlen(names);
        set_of(r, i, set, sizeof set);
        buf_fmt(&c->offers, "%-24s %10s\n", set, human_bytes((double)gguf_bytes(r, r->file[i].path), size, sizeof size));
        if (n + strlen(set) + 8 < sizeof names)
            snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", set);
        else if (n + 6 < sizeof names && strcmp(names + n - 3, "..."))
            snprintf(names + n, sizeof names - n, ", ...");
    }
    return n_wanted ? err_set(e, ERR_ARG, "%s holds several models: choose one with --quant: %s", r->name.repo, names)
                    : err_set(e, ERR_ARG, "%s holds no \"%.60s\"; there are: %s", r->name.repo, o->file ? o->file : o->set, names);
}

static int choose_gguf(const struct hub_repo *r, const struct choice_options *o, struct choice *c, bool *taken, struct err *e)
{
    int n = 0, first = -1, part, parts;
    size_t stem;
    for (int i = 0; i < r->n_files; i++)
        if (begins_gguf(r->file[i].path) && is_wanted(r, i, o)) {
            n++;
            first = i;
        }
    if (n != 1)
        return several(r, o, c, n, e);
    const char *path = r->file[first].path;
    set_of(r, first, c->set, sizeof c->set);
    take(r, c, taken, path);
    if (!choose_part(path, &part, &parts, &stem))
        return 0;
    for (int k = 2; k <= parts; k++) {
        char name[600];
        snprintf(name, sizeof name, "%.*s-%05d-of-%05d.gguf", (int)stem, path, k, parts);
        if (!hub_find(r, name))
            return err_set(e, ERR_FORMAT, "%s: part %d of %d is missing: %.200s: the upload is incomplete", r->name.repo, k, parts, name);
        take(r, c, taken, name);
    }
    return 0;
}

// ---- the choice ------------------------------------------------------------------------------------------

static bool wants_folder(const struct hub_repo *r, const struct choice_options *o)
{
    return !o->file && !*o->set && count_ending(r, ".safetensors") && (hub_find(r, "config.json") || !count_ending(r, ".gguf"));
}

const char *choose_index(const struct hub_repo *r, const struct choice_options *o)
{
    return wants_folder(r, o) && hub_find(r, index_name) ? index_name : NULL;
}

int choose_files(const struct hub_repo *r, const struct choice_options *o, const char *index, size_t n_index, struct choice *c, struct err *e)
{
    int rc;
    bool *taken = xcalloc((size_t)r->n_files + 1, sizeof *taken);
    *c = (struct choice){0};
    buf_init(&c->left_out, 1 << 20);
    buf_init(&c->offers, 1 << 20);
    if (wants_folder(r, o))
        rc = choose_folder(r, index, n_index, c, taken, e);
    else if (count_ending(r, ".gguf"))
        rc = choose_gguf(r, o, c, taken, e);
    else if (count_ending(r, ".safetensors") && (o->file || *o->set))
        rc = err_set(e, ERR_ARG, "%s holds no GGUF files: --quant and --file choose among those", r->name.repo);
    else
        rc = err_set(e, ERR_UNSUPPORTED, "%s: unsupported: it holds %s, expected safetensors or GGUF", r->name.repo,
                     count_ending(r, ".bin") || count_ending(r, ".pth") || count_ending(r, ".pt") ? "PyTorch files" : "no weights");
    c->file = xcalloc((size_t)r->n_files + 1, sizeof *c->file);
    for (int i = 0; i < r->n_files && !rc; i++)
        if (taken[i])
            c->file[c->n++] = i;
    free(taken);
    return rc;
}

void choice_free(struct choice *c)
{
    free(c->file);
    buf_free(&c->left_out);
    buf_free(&c->offers);
    *c = (struct choice){0};
}
