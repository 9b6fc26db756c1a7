/* What a folder of any tool holds, and the layouts of the Hugging Face cache and of Ollama. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/os.h"
#include "format/gguf.h"
#include "pull/choose.h"
#include "pull/store_internal.h"

static const size_t max_json = (size_t)64 << 20;

/* A JSON file, in an arena of its own; NULL if it isn't there or can't be read. */
static const struct json *read_json(const char *dir, const char *name, struct arena *a)
{
    char *path = path_join(dir, name), *text = NULL;
    size_t n;
    struct json *v = NULL;
    if (file_is_regular(path) && !file_read(path, max_json, &text, &n, NULL)) {
        a->max_bytes = 32 * n + 65536;
        if (json_parse(&v, a, text, n, name, NULL))
            v = NULL;
    }
    free(text);
    free(path);
    return v;
}

// ---- one folder ------------------------------------------------------------------------------------------

static void read_config(struct store_model *m, const char *dir)
{
    struct arena a = {0};
    const struct json *c = read_json(dir, "config.json", &a), *text = json_get(c, "text_config");
    const struct json *q = json_get(c, "quantization") ? json_get(c, "quantization") : json_get(text, "quantization");
    const char *dtype = json_str(json_get(c, "torch_dtype"), json_str(json_get(c, "dtype"), json_str(json_get(text, "dtype"), "")));
    snprintf(m->arch, sizeof m->arch, "%.60s", json_str(json_get(c, "model_type"), json_str(json_get(text, "model_type"), "?")));
    double bits = json_num(json_get(q, "bits"), 0);
    if (bits > 0 && bits < 100)
        snprintf(m->format, sizeof m->format, "MLX %.0f-bit", bits);
    else
        snprintf(m->format, sizeof m->format, "safetensors%s%.16s", *dtype ? " " : "", dtype);
    if (!c)
        store_trouble(m, "config.json can't be read");
    arena_free(&a);
}

static void check_index(struct store_model *m, const char *dir)
{
    struct arena a = {0};
    const struct json *map = json_get(read_json(dir, "model.safetensors.index.json", &a), "weight_map");
    const char *last = "";
    int n_missing = 0;
    char first[200] = "";
    for (const struct json *v = json_is(map, JSON_OBJECT) ? map->child : NULL; v; v = v->next) {
        const char *name = json_str(v, "");
        if (!strcmp(name, last) || !path_is_inside(name, strlen(name)))
            continue;
        last = name;
        char *path = path_join(dir, name);
        if (!file_is_regular(path)) {
            snprintf(first, sizeof first, "%.150s", name);
            n_missing++;
        }
        free(path);
    }
    if (n_missing)
        store_trouble(m, "incomplete: %.150s of its index is missing", first);
    arena_free(&a);
}

/* Names of blobs are their checksums. */
static void sha_of_link(struct store_file *f)
{
    char target[4096];
    ssize_t n = readlink(f->path, target, sizeof target - 1);
    if (n <= 0)
        return;
    target[n] = 0;
    const char *base = path_base(target);
    if (strlen(base) == 64 && strspn(base, "0123456789abcdef") == 64)
        memcpy(f->sha256, base, 65);
}

static void add_weights(struct store_model *m, const char *dir, const struct filelist *l)
{
    for (int i = 0; i < l->n; i++) {
        char *path = path_join(dir, l->name[i]);
        if (file_is_regular(path)) {
            m->bytes += file_size(path);
            if (path_ends(l->name[i], ".safetensors"))
                sha_of_link(store_add_file(m, path));
        }
        free(path);
    }
}

static int add_safetensors(struct store *s, enum store_place place, const char *dir, const char *name, const struct filelist *l)
{
    bool has_config = false, has_weights = false;
    for (int i = 0; i < l->n; i++) {
        has_config |= !strcmp(l->name[i], "config.json");
        has_weights |= path_ends(l->name[i], ".safetensors") || !strcmp(l->name[i], "model.safetensors.index.json");
    }
    if (!has_config || !has_weights)
        return 0;
    struct store_model *m = store_add(s, place, name, dir);
    struct filelist head;
    char *mtp = path_join(dir, "mtp");
    add_weights(m, dir, l);
    if (file_is_dir(mtp) && !file_list(&head, mtp, NULL)) {
        add_weights(m, mtp, &head);
        file_list_free(&head);
    }
    free(mtp);
    read_config(m, dir);
    check_index(m, dir);
    if (!m->n_files)
        store_trouble(m, "incomplete: its weights are missing");
    return 1;
}

void store_read_gguf(struct store_model *m)
{
    struct gguf *g;
    struct err e = {0};
    struct gguf_str arch;
    if (gguf_open(&g, m->file[0].path, &e)) {
        store_trouble(m, "%.300s", e.msg);
        return;
    }
    if (gguf_string(gguf_find(g, "general.architecture"), &arch))
        snprintf(m->arch, sizeof m->arch, "%.*s", arch.n < sizeof m->arch ? (int)arch.n : (int)sizeof m->arch - 1, arch.s);
    uint64_t bytes[64] = {0}, most = 0;
    for (size_t i = 0; i < g->n_tensors; i++) { // named after the type that most bytes are of
        int type = g->tensor[i].type;
        const struct gguf_type_info *info = gguf_type_info(type);
        if (type < 0 || type >= 64 || !info || (bytes[type] += g->tensor[i].n_bytes) <= most)
            continue;
        most = bytes[type];
        snprintf(m->format, sizeof m->format, "GGUF %.20s", info->name);
    }
    gguf_close(g);
}

static int add_gguf(struct store *s, enum store_place place, const char *dir, const char *name, const char *file, bool alone)
{
    int part = 1, parts = 1;
    size_t stem = 0;
    char set[100], whole[1024];
    bool is_split = choose_part(file, &part, &parts, &stem);
    if (part > 1 || strstr(file, "mmproj") || strstr(file, "imatrix"))
        return 0;
    if (choose_quant(file, set, sizeof set))
        snprintf(whole, sizeof whole, "%s:%s", name, set);
    else if (alone)
        snprintf(whole, sizeof whole, "%s", name);
    else
        snprintf(whole, sizeof whole, "%s:%.*s", name, (int)(is_split ? stem : strlen(file) - 5), file);
    char *path = path_join(dir, file);
    struct store_model *m = store_add(s, place, whole, path);
    for (int k = 1; k <= parts; k++) {
        char other[1024];
        if (is_split)
            snprintf(other, sizeof other, "%.*s-%05d-of-%05d.gguf", (int)stem, file, k, parts);
        char *p = is_split ? path_join(dir, other) : xstrdup(path);
        struct store_file *f = store_add_file(m, p);
        m->bytes += f->size;
        sha_of_link(f);
        if (!file_is_regular(p))
            store_trouble(m, "incomplete: %.200s is missing", path_base(p));
        free(p);
    }
    if (!m->trouble)
        store_read_gguf(m);
    free(path);
    return 1;
}

int store_add_folder(struct store *s, enum store_place place, const char *dir, const char *name)
{
    struct filelist l;
    int n_gguf = 0, n = 0;
    if (file_list(&l, dir, NULL))
        return 0;
    n += add_safetensors(s, place, dir, name, &l);
    for (int i = 0; i < l.n; i++)
        n_gguf += path_ends(l.name[i], ".gguf");
    for (int i = 0; i < l.n && n_gguf; i++)
        if (path_ends(l.name[i], ".gguf"))
            n += add_gguf(s, place, dir, name, l.name[i], n_gguf == 1);
    file_list_free(&l);
    return n;
}

// ---- the Hugging Face cache ------------------------------------------------------------------------------
// models--ORG--NAME/ refs/REVISION (holds a commit), snapshots/COMMIT/... (links), blobs/HASH, blobs/HASH.incomplete

static bool has_unfinished(const char *repo_dir)
{
    struct filelist l;
    char *dir = path_join(repo_dir, "blobs");
    bool found = false;
    if (!file_list(&l, dir, NULL)) {
        for (int i = 0; i < l.n; i++)
            found |= path_ends(l.name[i], ".incomplete");
        file_list_free(&l);
    }
    free(dir);
    return found;
}

/* The revision that names a commit, "main" before others; or the commit's begin. */
static void revision_of(const char *repo_dir, const char *commit, char *out, size_t n)
{
    struct filelist l;
    char *dir = path_join(repo_dir, "refs"), *text;
    size_t len;
    snprintf(out, n, "%.12s", commit);
    if (!file_list(&l, dir, NULL)) {
        for (int i = 0; i < l.n && strcmp(out, "main"); i++) {
            char *path = path_join(dir, l.name[i]);
            if (file_is_regular(path) && !file_read(path, 4096, &text, &len, NULL)) {
                if (len >= 40 && !strncmp(text, commit, 40) && strlen(l.name[i]) < n)
                    snprintf(out, n, "%s", l.name[i]);
                free(text);
            }
            free(path);
        }
        file_list_free(&l);
    }
    free(dir);
}

static void add_snapshot(struct store *s, const char *repo_dir, const char *snapshot, const char *repo, bool is_unfinished)
{
    char revision[200];
    const char *commit = path_base(snapshot);
    struct filelist l;
    revision_of(repo_dir, commit, revision, sizeof revision);
    char *name = manifest_name(repo, revision, "");
    int first = s->n;
    store_add_folder(s, STORE_HF, snapshot, name);
    if (!file_list(&l, snapshot, NULL)) { // quantizations in folders of their own
        for (int i = 0; i < l.n; i++) {
            char *sub = path_join(snapshot, l.name[i]);
            if (file_is_dir(sub))
                store_add_folder(s, STORE_HF, sub, name);
            free(sub);
        }
        file_list_free(&l);
    }
    for (int i = first; i < s->n; i++) {
        struct store_model *m = &s->model[i];
        m->origin = xstrdup(m->name);
        m->commit = xstrdup(commit);
        if (is_unfinished && m->trouble && strstr(m->trouble, "missing")) {
            free(m->trouble);
            m->trouble = xstrdup("a download into the Hugging Face cache isn't finished");
        }
    }
    free(name);
}

/* models--org--name -> org/name; NULL if it is something else (a data set) */
static char *repo_of(const char *dir_name)
{
    const char *s = dir_name + 8, *dashes;
    if (strncmp(dir_name, "models--", 8) || !(dashes = strstr(s, "--")) || dashes == s || !dashes[2])
        return NULL;
    struct buf b;
    buf_init(&b, 1024);
    buf_fmt(&b, "%.*s/%s", (int)(dashes - s), s, dashes + 2);
    return buf_take(&b);
}

void store_scan_hf(struct store *s)
{
    struct filelist repos, l;
    const char *own = getenv("HF_HUB_CACHE"), *old = getenv("HUGGINGFACE_HUB_CACHE"), *home = getenv("HF_HOME");
    char *root = own && *own     ? path_expand(own)
                 : old && *old   ? path_expand(old)
                 : home && *home ? store_env_path("HF_HOME", "hub", "")
                                 : store_env_path("XDG_CACHE_HOME", "huggingface/hub", "~/.cache/huggingface/hub");
    if (root && store_note_root(s, STORE_HF, root) && !file_list(&repos, root, NULL)) {
        for (int i = 0; i < repos.n; i++) {
            char *repo = repo_of(repos.name[i]), *dir = path_join(root, repos.name[i]), *snapshots = path_join(dir, "snapshots");
            if (repo && !file_list(&l, snapshots, NULL)) {
                bool is_unfinished = has_unfinished(dir);
                for (int k = 0; k < l.n; k++) {
                    char *snapshot = path_join(snapshots, l.name[k]);
                    add_snapshot(s, dir, snapshot, repo, is_unfinished);
                    free(snapshot);
                }
                file_list_free(&l);
            }
            free(repo);
            free(dir);
            free(snapshots);
        }
        file_list_free(&repos);
    }
    free(root);
}

char *store_snapshot(const char *path)
{
    char revision[200];
    struct filelist l;
    char *dir = path_join(path, "snapshots"), *best = NULL;
    if (file_is_dir(dir) && !file_list(&l, dir, NULL)) {
        for (int i = 0; i < l.n; i++) {
            revision_of(path, l.name[i], revision, sizeof revision);
            if (!best || !strcmp(revision, "main")) {
                free(best);
                best = path_join(dir, l.name[i]);
            }
        }
        file_list_free(&l);
    }
    free(dir);
    return best;
}

/* .../models--ORG--NAME/snapshots/COMMIT/... */
static char *origin_in_cache(const char *path)
{
    const char *s = strstr(path, "/models--"), *snapshots = s ? strstr(s + 1, "/snapshots/") : NULL;
    if (!snapshots || memchr(s + 1, '/', (size_t)(snapshots - s) - 1))
        return NULL;
    char *dir = xstrndup(s + 1, (size_t)(snapshots - s) - 1), *repo = repo_of(dir);
    free(dir);
    return repo;
}

char *store_origin(const char *path)
{
    struct manifest m;
    char *dir = file_is_dir(path) ? xstrdup(path) : xstrndup(path, (size_t)(path_base(path) - path)), *real = os_real_path(dir), *name = NULL;
    free(dir);
    if (real && !manifest_read(&m, real, NULL)) {
        name = manifest_name(m.repo, m.revision, m.set);
        manifest_free(&m);
    } else if (real) {
        name = origin_in_cache(real);
    }
    free(real);
    return name;
}

// ---- Ollama ----------------------------------------------------------------------------------------------
// manifests/HOST/NAMESPACE/MODEL/TAG: JSON with layers; blobs/sha256-HEX (older: sha256:HEX)

static char *blob_path(const char *root, const char *digest)
{
    struct buf b;
    buf_init(&b, 8192);
    buf_fmt(&b, "%s/blobs/sha256-%s", root, digest + 7);
    if (!file_is_regular(buf_cstr(&b))) {
        buf_clear(&b);
        buf_fmt(&b, "%s/blobs/%s", root, digest);
        if (!file_is_regular(buf_cstr(&b))) {
            buf_clear(&b);
            buf_fmt(&b, "%s/blobs/sha256-%s", root, digest + 7);
        }
    }
    return buf_take(&b);
}

static void add_ollama(struct store *s, const char *root, const char *dir, const char *tag, const char *name)
{
    struct arena a = {0};
    const struct json *layers = json_get(read_json(dir, tag, &a), "layers");
    for (const struct json *v = json_is(layers, JSON_ARRAY) ? layers->child : NULL; v; v = v->next) {
        const char *digest = json_str(json_get(v, "digest"), "");
        if (strcmp(json_str(json_get(v, "mediaType"), ""), "application/vnd.ollama.image.model") || strlen(digest) != 71 ||
            strncmp(digest, "sha256:", 7) || strspn(digest + 7, "0123456789abcdef") != 64)
            continue;
        char *path = blob_path(root, digest);
        struct store_model *m = store_add(s, STORE_OLLAMA, name, path);
        struct store_file *f = store_add_file(m, path);
        memcpy(f->sha256, digest + 7, 65);
        m->bytes = f->size;
        if (f->size != (uint64_t)json_num(json_get(v, "size"), 0))
            store_trouble(m, "incomplete: its blob is missing or cut; `ollama pull %s` fetches it", name);
        else
            store_read_gguf(m);
        free(path);
        break;
    }
    arena_free(&a);
}

static void scan_manifests(struct store *s, const char *root, const char *dir, const char *name, int depth)
{
    struct filelist l;
    if (file_list(&l, dir, NULL))
        return;
    for (int i = 0; i < l.n; i++) {
        char *sub = path_join(dir, l.name[i]);
        struct buf b;
        buf_init(&b, 4096);
        bool is_usual = (depth == 0 && !strcmp(l.name[i], "registry.ollama.ai")) || (depth == 1 && !strcmp(l.name[i], "library"));
        if (depth == 3)
            buf_fmt(&b, "%s:%s", name, l.name[i]);
        else
            buf_fmt(&b, "%s%s%s", name, *name && !is_usual ? "/" : "", is_usual ? "" : l.name[i]);
        if (depth == 3 && file_is_regular(sub))
            add_ollama(s, root, dir, l.name[i], buf_cstr(&b));
        else if (depth < 3 && file_is_dir(sub))
            scan_manifests(s, root, sub, buf_cstr(&b), depth + 1);
        buf_free(&b);
        free(sub);
    }
    file_list_free(&l);
}

void store_scan_ollama(struct store *s)
{
    char *const roots[] = {store_env_path("OLLAMA_MODELS", NULL, "~/.ollama/models"), xstrdup("/usr/share/ollama/.ollama/models")};
    for (int i = 0; i < 2; i++) {
        if (roots[i] && (i == 0 || !getenv("OLLAMA_MODELS")) && store_note_root(s, STORE_OLLAMA, roots[i])) {
            char *dir = path_join(roots[i], "manifests");
            scan_manifests(s, roots[i], dir, "", 0);
            free(dir);
        }
        free(roots[i]);
    }
}
