/* Folders: config.json, generation_config.json and which safetensors files belong to the model. The index
 * says where a tensor is; files that it doesn't name may only add tensors it lacks (heads arrive that way). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/hf_tensors.h"
#include "format/package.h"

enum { MAX_FILES = 4096, MAX_EOS = 64 };
static const size_t max_config_bytes = (size_t)16 << 20, max_index_bytes = (size_t)64 << 20;
static const char index_name[] = "model.safetensors.index.json";

// ---- configuration ---------------------------------------------------------------------------------------

/* 1 if the file isn't there. */
static int read_json(struct package *p, const char *dir, const char *name, struct json **out, struct err *e)
{
    char *path = path_join(dir, name), *text;
    size_t n;
    int rc = 1;
    if (file_exists(path) && !(rc = file_read(path, max_config_bytes, &text, &n, e))) {
        rc = package_json(p, text, n, name, out, e);
        free(text);
    }
    free(path);
    return rc;
}

static struct json *node(struct package *p, const struct json *like, struct err *e)
{
    struct json *v = arena_alloc(p->arena, sizeof *v);
    if (!v) {
        err_set(e, ERR_LIMIT, "%s: configuration needs too much memory", p->config_file);
        return NULL;
    }
    *v = *like;
    v->next = NULL;
    return v;
}

static void append(struct json *parent, struct json *v)
{
    struct json **tail = &parent->child;
    while (*tail)
        tail = &(*tail)->next;
    *tail = v;
    parent->n++;
}

/* Both levels of a composed config may name ids that end a text, and not the same ones: all count. */
static int merge_eos(struct package *p, struct json *text, const struct json *top, struct err *e)
{
    const struct json *levels[2] = {json_get(text, "eos_token_id"), json_get(top, "eos_token_id")};
    struct json list = {.type = JSON_ARRAY, .key = "eos_token_id", .n_key = 12}, *v;
    if (!levels[0] || json_is(levels[0], JSON_NULL) || !levels[1] || json_is(levels[1], JSON_NULL))
        return 0; // at most one level speaks: inherit() has brought it down
    for (int i = 0; i < 2; i++) {
        const struct json *first = json_is(levels[i], JSON_ARRAY) ? levels[i]->child : levels[i];
        for (const struct json *c = first; c && list.n < MAX_EOS; c = first == levels[i] ? NULL : c->next) {
            const struct json *seen = list.child;
            while (seen && json_is(c, JSON_NUMBER) && json_is(seen, JSON_NUMBER) && strcmp(seen->s, c->s))
                seen = seen->next;
            if (seen)
                continue;
            if (!(v = node(p, c, e)))
                return e->code;
            v->key = NULL;
            v->n_key = 0;
            append(&list, v);
        }
    }
    v = (struct json *)(uintptr_t)levels[0];
    list.next = v->next;
    *v = list;
    return 0;
}

static int inherit(struct package *p, struct json *text, const struct json *top, struct err *e)
{
    static const char *const keys[] = {"tie_word_embeddings", "architectures", "eos_token_id", "bos_token_id",
                                       "pad_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const struct json *from = json_get(top, keys[i]);
        struct json *to = (struct json *)(uintptr_t)json_get(text, keys[i]), *v;
        if (!from || (to && to->type != JSON_NULL))
            continue;
        if (!(v = node(p, from, e)))
            return e->code;
        if (to) {
            v->next = to->next;
            *to = *v;
        } else {
            append(text, v);
        }
    }
    return 0;
}

static int read_config(struct package *p, const char *dir, struct json **top, struct err *e)
{
    int rc = read_json(p, dir, "config.json", top, e);
    if (rc)
        return rc < 0 ? rc : err_set(e, ERR_IO, "%s: config.json disappeared", dir);
    struct json *text = (struct json *)(uintptr_t)json_get(*top, "text_config");
    p->config = *top;
    if (json_is(text, JSON_OBJECT)) {
        if ((rc = merge_eos(p, text, *top, e)) || (rc = inherit(p, text, *top, e)))
            return rc;
        p->config = text;
    }
    static const char *const names[] = {"quantization", "quantization_config"};
    for (int i = 0; i < 4 && !p->quantization; i++) {
        const struct json *q = json_get(i < 2 ? *top : p->config, names[i % 2]);
        p->quantization = json_is(q, JSON_OBJECT) ? q : NULL;
    }
    struct json *gen;
    rc = read_json(p, dir, "generation_config.json", &gen, e);
    if (!rc)
        p->generation = gen;
    return rc < 0 ? rc : 0;
}

// ---- files -----------------------------------------------------------------------------------------------

static bool is_safetensors(const char *s)
{
    size_t n = strlen(s);
    return n > 12 && !strcmp(s + n - 12, ".safetensors");
}

static int find_file(const struct hf_files *f, const char *name)
{
    for (int i = 0; i < f->n; i++)
        if (!strcmp(f->file[i].name, name))
            return i;
    return -1;
}

static int add_file(struct hf_files *f, const char *name, bool is_extra, struct err *e)
{
    if (f->n >= MAX_FILES)
        return err_set(e, ERR_LIMIT, "%s: more than %d safetensors files", f->dir, MAX_FILES);
    f->file = xrealloc(f->file, ((size_t)f->n + 1) * sizeof *f->file);
    f->file[f->n++] = (struct hf_file){.name = xstrdup(name), .is_extra = is_extra};
    return 0;
}

/* A shard's name comes from a stranger: it must stay inside the folder. */
static int check_shard_name(const char *name, size_t n, struct err *e)
{
    if (!path_is_inside(name, n))
        return err_set(e, ERR_FORMAT, "%s: shard name leaves the folder: \"%.100s\"", index_name, name);
    if (!is_safetensors(name))
        return err_set(e, ERR_UNSUPPORTED, "%s: unsupported shard \"%.100s\": expected a .safetensors file",
                       index_name, name);
    return 0;
}

static int missing_shard(const struct json *map, const char *name, struct err *e)
{
    int n = 0;
    const char *example = "";
    for (const struct json *v = map->child; v; v = v->next)
        if (!strcmp(json_str(v, ""), name) && !n++)
            example = v->key;
    return err_set(e, ERR_IO, "missing file %.100s: by %s it holds %d tensors, for example %.100s", name,
                   index_name, n, example);
}

static int read_index(struct hf_files *f, struct err *e)
{
    char *path = path_join(f->dir, index_name), *text = NULL;
    size_t n;
    int rc = 0;
    struct json *top;
    if (!file_exists(path))
        goto out;
    if ((rc = file_read(path, max_index_bytes, &text, &n, e)))
        goto out;
    f->arena.max_bytes = 32 * n + 65536;
    if ((rc = json_parse(&top, &f->arena, text, n, index_name, e)))
        goto out;
    f->map = json_get(top, "weight_map");
    if (!json_is(f->map, JSON_OBJECT)) {
        rc = err_set(e, ERR_FORMAT, "%s: missing weight_map", index_name);
        goto out;
    }
    for (const struct json *v = f->map->child; v && !rc; v = v->next) {
        if (!json_is(v, JSON_STRING)) {
            rc = err_set(e, ERR_FORMAT, "%s: the entry of tensor %.100s is no file name", index_name, v->key);
        } else if (find_file(f, v->s) < 0 && !(rc = check_shard_name(v->s, v->n, e))) {
            char *shard = path_join(f->dir, v->s);
            rc = file_exists(shard) ? add_file(f, v->s, false, e) : missing_shard(f->map, v->s, e);
            free(shard);
        }
    }
out:
    free(text);
    free(path);
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct hf_file *)a)->name, ((const struct hf_file *)b)->name);
}

/* Adds the safetensors files of a folder that aren't listed yet. */
static int add_folder(struct package *p, struct hf_files *f, const char *sub, struct err *e)
{
    struct filelist l;
    char *dir = *sub ? path_join(f->dir, sub) : xstrdup(f->dir), name[512];
    int rc = file_is_dir(dir) ? file_list(&l, dir, e) : 1;
    bool has_main = f->n > 0;
    for (int pass = 0; pass < 2 && !rc; pass++)
        for (int i = 0; i < l.n && !rc; i++) {
            if (!is_safetensors(l.name[i]) ||
                (size_t)snprintf(name, sizeof name, "%s%s", sub, l.name[i]) >= sizeof name)
                continue;
            bool is_model = !strncmp(name, "model", 5); // model.safetensors, or shards that lost their index
            if (find_file(f, name) >= 0 || is_model == (pass == 1))
                continue;
            if (!strncmp(name, "consolidated", 12) || !strncmp(name, "adapter_", 8))
                package_note(p, "%.200s is ignored: it holds %s", name,
                             name[0] == 'c' ? "the same weights in another layout"
                                            : "an adapter, not a model");
            else
                rc = add_file(f, name, has_main || pass == 1 || *sub, e);
        }
    if (rc <= 0)
        file_list_free(&l);
    free(dir);
    return rc < 0 ? rc : 0;
}

static int find_files(struct package *p, struct hf_files *f, struct err *e)
{
    int rc = read_index(f, e);
    if (f->n)
        qsort(f->file, (size_t)f->n, sizeof *f->file, by_name);
    if (rc || (rc = add_folder(p, f, "", e)) || (rc = add_folder(p, f, "mtp/", e)))
        return rc;
    if (f->n)
        return 0;
    char *bin = path_join(f->dir, "pytorch_model.bin"),
         *bin_index = path_join(f->dir, "pytorch_model.bin.index.json");
    bool has_bin = file_exists(bin) || file_exists(bin_index);
    free(bin);
    free(bin_index);
    if (has_bin)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: unsupported weights: pytorch_model.bin, expected .safetensors files", f->dir);
    return err_set(e, ERR_FORMAT, "%s: no weights: expected model.safetensors or %s with its files", f->dir,
                   index_name);
}

static int open_files(struct package *p, struct hf_files *f, struct err *e)
{
    struct weights *w = p->weights;
    int rc = 0;
    w->st = xcalloc((size_t)f->n, sizeof *w->st);
    for (int i = 0; i < f->n && !rc; i++) {
        char *path = path_join(f->dir, f->file[i].name);
        rc = st_open(&w->st[i], path, f->file[i].name, e);
        free(path);
        w->n_st += !rc;
    }
    return rc;
}

/* The head may be quantized by a rule of its own: a key of config.json, or the config of the folder mtp/. */
static int head_quantization(struct package *p, const char *dir, const struct json *top,
                             const struct json **out, struct err *e)
{
    struct json *own;
    *out = json_get(top, "mtplx_mtp_quantization");
    if (*out)
        return 0;
    int rc = read_json(p, dir, "mtp/config.json", &own, e);
    if (!rc)
        *out = json_get(own, "quantization");
    return rc < 0 ? rc : 0;
}

int hf_open(struct package *p, const char *dir, struct err *e)
{
    struct hf_files f = {.dir = dir};
    struct json *top;
    const struct json *head = NULL;
    int rc = read_config(p, dir, &top, e);
    if (!rc)
        rc = find_files(p, &f, e);
    if (!rc) {
        p->weights = weights_new(f.map ? index_name : f.file[0].name);
        rc = open_files(p, &f, e);
    }
    if (!rc)
        rc = head_quantization(p, dir, top, &head, e);
    if (!rc)
        rc = hf_catalogue(p, &f, head, e);
    for (int i = 0; i < f.n; i++)
        free(f.file[i].name);
    free(f.file);
    arena_free(&f.arena);
    return rc;
}
