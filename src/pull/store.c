#include "pull/store.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/file.h"
#include "base/os.h"
#include "pull/hub.h"
#include "pull/store_internal.h"

enum { MAX_DEPTH = 4, MAX_FOLDERS = 20000 };

const char *store_place_name(enum store_place p)
{
    static const char *const names[] = {"foresay", "Hugging Face cache", "LM Studio", "Ollama", "MLX folder", "FORESAY_MODELS"};
    return names[p];
}

// ---- the list --------------------------------------------------------------------------------------------

struct store_model *store_add(struct store *s, enum store_place place, const char *name, const char *path)
{
    if (!(s->n & (s->n - 1)))
        s->model = xrealloc(s->model, 2 * ((size_t)s->n + 1) * sizeof *s->model);
    struct store_model *m = &s->model[s->n++];
    *m = (struct store_model){.name = xstrdup(name), .path = xstrdup(path), .place = place, .same_as = -1};
    return m;
}

struct store_file *store_add_file(struct store_model *m, const char *path)
{
    m->file = xrealloc(m->file, ((size_t)m->n_files + 1) * sizeof *m->file);
    m->file[m->n_files] = (struct store_file){.path = xstrdup(path), .size = file_size(path)};
    return &m->file[m->n_files++];
}

void store_trouble(struct store_model *m, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    if (m->trouble)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    m->trouble = xstrdup(text);
}

static void free_model(struct store_model *m)
{
    for (int i = 0; i < m->n_files; i++)
        free(m->file[i].path);
    free(m->file);
    free(m->name);
    free(m->path);
    free(m->trouble);
    free(m->origin);
    free(m->commit);
}

void store_free(struct store *s)
{
    for (int i = 0; i < s->n; i++)
        free_model(&s->model[i]);
    for (int i = 0; i < s->n_roots; i++)
        free(s->root[i]);
    free(s->model);
    free(s->root);
    free(s->root_place);
    *s = (struct store){0};
}

bool store_note_root(struct store *s, enum store_place place, const char *dir)
{
    char *real = file_is_dir(dir) ? os_real_path(dir) : NULL;
    bool is_new = real != NULL;
    for (int i = 0; i < s->n_roots && is_new; i++)
        is_new = strcmp(s->root[i], real) != 0;
    if (!is_new) {
        free(real);
        return false;
    }
    s->root = xrealloc(s->root, ((size_t)s->n_roots + 1) * sizeof *s->root);
    s->root_place = xrealloc(s->root_place, ((size_t)s->n_roots + 1) * sizeof *s->root_place);
    s->root_place[s->n_roots] = place;
    s->root[s->n_roots++] = real;
    return true;
}

// ---- our own folder --------------------------------------------------------------------------------------

char *store_env_path(const char *variable, const char *below, const char *fallback)
{
    const char *s = getenv(variable);
    char *base = path_expand(s && *s ? s : fallback), *whole = NULL;
    if (base[0] != '~')
        whole = s && *s && below ? path_join(base, below) : xstrdup(base);
    free(base);
    return whole;
}

char *store_home(void)
{
    const char *own = getenv("FORESAY_HOME");
    char *p = own && *own ? store_env_path("FORESAY_HOME", "models", "") : store_env_path("XDG_DATA_HOME", "foresay/models", "~/.local/share/foresay/models");
    return p ? p : xstrdup("foresay-models"); // without a home folder: here
}

/* Revisions and sets as part of a file's name. */
static void add_escaped(struct buf *b, const char *s)
{
    for (; *s; s++)
        if ((*s >= '0' && *s <= '9') || (*s >= 'A' && *s <= 'Z') || (*s >= 'a' && *s <= 'z') || strchr("-_.", *s))
            buf_chr(b, *s);
        else
            buf_fmt(b, "%%%02X", (unsigned char)*s);
}

char *store_folder(const char *repo, const char *revision, const char *set, bool partial)
{
    char *home = store_home();
    const char *slash = strchr(repo, '/');
    struct buf b;
    buf_init(&b, 8192);
    buf_fmt(&b, "%s/%.*s/%s%s", home, (int)(slash - repo), repo, partial ? ".partial-" : "", slash + 1);
    if (strcmp(revision, "main")) {
        buf_chr(&b, '@');
        add_escaped(&b, revision);
    }
    if (*set) {
        buf_chr(&b, '+');
        add_escaped(&b, set);
    }
    free(home);
    return buf_take(&b);
}

char *manifest_name(const char *repo, const char *revision, const char *set)
{
    struct buf b;
    buf_init(&b, 8192);
    buf_str(&b, repo);
    if (strcmp(revision, "main"))
        buf_fmt(&b, "@%s", revision);
    if (*set)
        buf_fmt(&b, ":%s", set);
    return buf_take(&b);
}

int manifest_parse(struct manifest *m, const char *text, size_t n, const char *name, struct err *e)
{
    struct json *v;
    int64_t version;
    *m = (struct manifest){.arena = {.max_bytes = 32 * n + 65536}};
    int rc = json_parse(&v, &m->arena, text, n, name, e);
    if (!rc) {
        m->top = v;
        m->files = json_get(v, "files");
        m->repo = json_str(json_get(v, "repo"), "");
        m->revision = json_str(json_get(v, "revision"), "");
        m->commit = json_str(json_get(v, "commit"), "");
        m->set = json_str(json_get(v, "set"), "");
        if (!json_int(json_get(v, "foresay"), &version) || version != 1 || !json_is(m->files, JSON_ARRAY) ||
            !hub_is_repo_name(m->repo, strlen(m->repo)) || !*m->revision)
            rc = err_set(e, ERR_FORMAT, "%s: not a description of a pulled model that this version reads", name);
    }
    for (const struct json *f = rc ? NULL : m->files->child; f && !rc; f = f->next) {
        const struct json *path = json_get(f, "path");
        int64_t size;
        if (!json_is(path, JSON_STRING) || !path_is_inside(path->s, path->n) || !json_int(json_get(f, "size"), &size) || size < 0)
            rc = err_set(e, ERR_FORMAT, "%s: lists a file without a usable path and size", name);
    }
    if (rc)
        manifest_free(m);
    return rc;
}

int manifest_read(struct manifest *m, const char *dir, struct err *e)
{
    char *path = path_join(dir, MANIFEST_NAME), *text;
    size_t n;
    int rc = 1;
    *m = (struct manifest){0};
    if (file_exists(path) && !(rc = file_read(path, (size_t)16 << 20, &text, &n, e))) {
        rc = manifest_parse(m, text, n, path, e);
        free(text);
    }
    free(path);
    return rc;
}

void manifest_free(struct manifest *m)
{
    arena_free(&m->arena);
    *m = (struct manifest){0};
}

/* One that was pulled, or is on its way (partial). */
static void add_ours(struct store *s, const char *dir, bool partial)
{
    struct manifest m;
    struct err e = {0};
    int rc = manifest_read(&m, dir, &e);
    if (rc == 1 && !partial)
        store_add_folder(s, STORE_OURS, dir, path_base(dir)); // put there by hand
    if (rc)
        return;
    char *name = manifest_name(m.repo, m.revision, m.set);
    const char *path = dir;
    char *gguf = NULL;
    if (*m.set && m.files->child)
        path = gguf = path_join(dir, json_str(json_get(m.files->child, "path"), ""));
    int first = s->n;
    if (!partial && !gguf)
        store_add_folder(s, STORE_OURS, dir, name);
    if (s->n == first)
        store_add(s, STORE_OURS, name, path);
    struct store_model *x = &s->model[first];
    free(x->name);
    x->name = name;
    x->origin = xstrdup(name);
    x->commit = xstrdup(m.commit);
    x->bytes = 0;
    for (const struct json *f = m.files->child; f; f = f->next) {
        char *file = path_join(dir, json_str(json_get(f, "path"), ""));
        int64_t size = 0;
        json_int(json_get(f, "size"), &size);
        x->bytes += (uint64_t)size;
        if (!partial && file_size(file) != (uint64_t)size)
            store_trouble(x, "%.200s is missing or cut", path_base(file));
        if (gguf)
            store_add_file(x, file);
        for (int i = 0; i < x->n_files; i++)
            if (!strcmp(x->file[i].path, file))
                snprintf(x->file[i].sha256, sizeof x->file[i].sha256, "%s", json_str(json_get(f, "sha256"), ""));
        free(file);
    }
    if (partial)
        store_trouble(x, "the download isn't finished");
    else if (gguf && !x->trouble)
        store_read_gguf(x);
    free(gguf);
    manifest_free(&m);
}

static void scan_ours(struct store *s)
{
    struct filelist orgs, names;
    char *home = store_home();
    if (store_note_root(s, STORE_OURS, home) && !file_list(&orgs, home, NULL)) {
        for (int i = 0; i < orgs.n; i++) {
            char *org = path_join(home, orgs.name[i]);
            if (orgs.name[i][0] != '.' && file_is_dir(org) && !file_list(&names, org, NULL)) {
                for (int k = 0; k < names.n; k++) {
                    char *dir = path_join(org, names.name[k]);
                    bool partial = !strncmp(names.name[k], ".partial-", 9);
                    if ((names.name[k][0] != '.' || partial) && file_is_dir(dir))
                        add_ours(s, dir, partial);
                    free(dir);
                }
                file_list_free(&names);
            }
            free(org);
        }
        file_list_free(&orgs);
    }
    free(home);
}

void store_sweep(void)
{
    struct filelist orgs, names;
    char *home = store_home();
    if (!file_list(&orgs, home, NULL)) {
        for (int i = 0; i < orgs.n; i++) {
            char *org = path_join(home, orgs.name[i]);
            if (file_is_dir(org) && !file_list(&names, org, NULL)) {
                for (int k = 0; k < names.n; k++)
                    if (!strncmp(names.name[k], ".trash-", 7)) {
                        char *dir = path_join(org, names.name[k]);
                        (void)!file_remove_tree(dir, NULL); // comes again next time
                        free(dir);
                    }
                file_list_free(&names);
            }
            free(org);
        }
        file_list_free(&orgs);
    }
    free(home);
}

int store_delete(const char *path, struct err *e)
{
    char why[128], *org = xstrndup(path, (size_t)(path_base(path) - path));
    struct buf trash;
    buf_init(&trash, 8192);
    buf_fmt(&trash, "%s.trash-%ld-%s", org, (long)getpid(), path_base(path));
    int rc = rename(path, buf_cstr(&trash)) ? err_set(e, ERR_IO, "%s: cannot delete: %s", path, err_os(errno, why, sizeof why))
                                            : file_remove_tree(buf_cstr(&trash), e);
    rmdir(org); // if it was the last
    buf_free(&trash);
    free(org);
    return rc;
}

// ---- folders of others -----------------------------------------------------------------------------------

/* org--name is how some tools write org/name. */
static char *name_below(const char *root, const char *dir)
{
    const char *rest = dir + strlen(root);
    char *name = xstrdup(*rest == '/' ? rest + 1 : *rest ? rest : path_base(dir));
    char *dashes = strchr(name, '/') ? NULL : strstr(name, "--");
    if (dashes && dashes > name && dashes[2]) {
        *dashes = '/';
        memmove(dashes + 1, dashes + 2, strlen(dashes + 2) + 1);
    }
    return name;
}

static void scan_below(struct store *s, enum store_place place, const char *root, const char *dir, int depth, int *budget)
{
    struct filelist l;
    if (depth > MAX_DEPTH || --*budget < 0 || file_list(&l, dir, NULL))
        return;
    char *name = name_below(root, dir);
    store_add_folder(s, place, dir, name);
    free(name);
    for (int i = 0; i < l.n; i++) {
        char *sub = path_join(dir, l.name[i]);
        if (l.name[i][0] != '.' && strcmp(l.name[i], "mtp") && file_is_dir(sub))
            scan_below(s, place, root, sub, depth + 1, budget);
        free(sub);
    }
    file_list_free(&l);
}

static void scan_tree(struct store *s, enum store_place place, char *root)
{
    int budget = MAX_FOLDERS;
    if (root && store_note_root(s, place, root)) {
        size_t n = strlen(root);
        while (n > 1 && root[n - 1] == '/')
            root[--n] = 0;
        scan_below(s, place, root, root, 0, &budget);
    }
    free(root);
}

/* Where a model really lies. Links to files stay: their names say which model they belong to. */
static char *place_of(const struct store_model *m)
{
    if (file_is_dir(m->path))
        return os_real_path(m->path);
    const char *base = path_base(m->path);
    char *dir = xstrndup(m->path, (size_t)(base - m->path)), *real = os_real_path(dir), *whole = real ? path_join(real, base) : NULL;
    free(dir);
    free(real);
    return whole;
}

/* The same model reached by two ways is one model. Ollama's may share a blob and have names of their own. */
static void drop_repeated(struct store *s)
{
    char **real = xcalloc((size_t)s->n, sizeof *real);
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        char *mine = place_of(&s->model[i]);
        bool is_repeated = false;
        for (int k = 0; k < n && mine && !is_repeated && s->model[i].place != STORE_OLLAMA; k++)
            is_repeated = real[k] && !strcmp(real[k], mine);
        if (is_repeated) {
            free_model(&s->model[i]);
            free(mine);
        } else {
            real[n] = mine;
            s->model[n++] = s->model[i];
        }
    }
    for (int i = 0; i < n; i++)
        free(real[i]);
    free(real);
    s->n = n;
}

void store_scan(struct store *s)
{
    *s = (struct store){0};
    scan_ours(s);
    store_scan_hf(s);
    scan_tree(s, STORE_LMSTUDIO, path_expand("~/.lmstudio/models"));
    scan_tree(s, STORE_LMSTUDIO, path_expand("~/.cache/lm-studio/models"));
    store_scan_ollama(s);
    static const char *const mlx[] = {"~/mlx-models", "~/mlx_models", "~/.mtplx/models", "~/.omlx/models"};
    for (size_t i = 0; i < sizeof mlx / sizeof *mlx; i++)
        scan_tree(s, STORE_MLX, path_expand(mlx[i]));
    const char *extra = getenv("FORESAY_MODELS");
    for (const char *p = extra ? extra : ""; *p;) {
        size_t n = strcspn(p, ":");
        char *one = xstrndup(p, n);
        if (n)
            scan_tree(s, STORE_EXTRA, path_expand(one));
        free(one);
        p += n + (p[n] == ':');
    }
    drop_repeated(s);
}

// ---- the same content ------------------------------------------------------------------------------------

struct print { // of a file
    uint64_t size;
    XXH128_hash_t ends; // of its first and last MiB
    dev_t dev;
    ino_t ino;
    const char *sha256;
};

enum { END_BYTES = 1 << 20 };

static bool print_of(const struct store_file *f, struct print *p)
{
    struct stat st;
    FILE *in = fopen(f->path, "rb");
    bool ok = in && !fstat(fileno(in), &st) && (uint64_t)st.st_size == f->size;
    if (ok) {
        size_t n = f->size < END_BYTES ? (size_t)f->size : END_BYTES;
        uint8_t *data = xmalloc(2 * n);
        ok = !fd_read_at(fileno(in), data, n, 0) && !fd_read_at(fileno(in), data + n, n, f->size - n);
        *p = (struct print){f->size, XXH3_128bits(data, 2 * n), st.st_dev, st.st_ino, f->sha256};
        free(data);
    }
    if (in)
        fclose(in);
    return ok;
}

static int by_print(const void *a, const void *b)
{
    const struct print *x = a, *y = b;
    return x->size != y->size ? (x->size < y->size ? -1 : 1) : XXH128_cmp(&x->ends, &y->ends);
}

static struct print *prints_of(const struct store_model *m)
{
    struct print *p = xcalloc((size_t)m->n_files, sizeof *p);
    for (int i = 0; i < m->n_files; i++)
        if (!print_of(&m->file[i], &p[i])) {
            free(p);
            return NULL;
        }
    qsort(p, (size_t)m->n_files, sizeof *p, by_print);
    return p;
}

static uint64_t weight_bytes(const struct store_model *m)
{
    uint64_t n = 0;
    for (int i = 0; i < m->n_files; i++)
        n += m->file[i].size;
    return n;
}

static bool is_same(struct store_model *a, struct store_model *b)
{
    bool by_sha = true, by_link = true, same = true;
    struct print *x = prints_of(a), *y = x ? prints_of(b) : NULL;
    for (int i = 0; y && same && i < a->n_files; i++) {
        bool both = *x[i].sha256 && *y[i].sha256, link = x[i].dev == y[i].dev && x[i].ino == y[i].ino;
        same = link || (!by_print(&x[i], &y[i]) && (!both || !strcmp(x[i].sha256, y[i].sha256)));
        by_sha &= both || link;
        by_link &= link;
    }
    b->same_how = by_link ? STORE_SAME_FILES : by_sha ? STORE_SAME_SHA : STORE_SAME_ENDS;
    free(x);
    free(y);
    return y && same;
}

void store_mark_same(struct store *s)
{
    for (int i = 1; i < s->n; i++)
        for (int k = 0; k < i && s->model[i].same_as < 0; k++) {
            struct store_model *a = &s->model[k], *b = &s->model[i];
            if (a->same_as < 0 && !a->trouble && !b->trouble && a->n_files && a->n_files == b->n_files && weight_bytes(a) == weight_bytes(b) &&
                is_same(a, b))
                b->same_as = k;
        }
}

// ---- names -----------------------------------------------------------------------------------------------

/* How far a name is what a word says: 0 not at all; the less the better. */
static int match(const char *name, const char *word)
{
    size_t n = strlen(name), bare = strcspn(name, ":");
    const char *last = path_base(name);
    size_t last_bare = strcspn(last, ":");
    if (!strcasecmp(name, word))
        return 1;
    if (bare < n && strlen(word) == bare && !strncasecmp(name, word, bare))
        return 2;
    if (!strcasecmp(last, word))
        return 3;
    return strlen(word) == last_bare && !strncasecmp(last, word, last_bare) ? 4 : 0;
}

/* hf:, models--org--name, org--name, a slash at the end, @main: all the same. */
static char *plain_word(const char *word)
{
    word += 3 * !strncmp(word, "hf:", 3);
    word += 8 * !strncmp(word, "models--", 8);
    char *w = xstrdup(word), *dashes = strchr(w, '/') ? NULL : strstr(w, "--"), *main = strstr(w, "@main");
    if (dashes && dashes > w && dashes[2]) {
        *dashes = '/';
        memmove(dashes + 1, dashes + 2, strlen(dashes + 2) + 1);
        main = strstr(w, "@main");
    }
    if (main && (!main[5] || main[5] == ':'))
        memmove(main, main + 5, strlen(main + 5) + 1);
    for (size_t n = strlen(w); n > 1 && w[n - 1] == '/';)
        w[--n] = 0;
    return w;
}

static int not_found(const struct store *s, const char *word, const char *plain, struct err *e)
{
    char have[200] = "no models are here yet";
    if (s->n)
        snprintf(have, sizeof have, "%d model%s here, `foresay list` names them", s->n, s->n == 1 ? " is" : "s are");
    size_t repo = strcspn(plain, "@:");
    if (hub_is_repo_name(plain, repo))
        return err_set(e, ERR_IO, "%.150s: neither a path nor a model on this machine (%s); to download it: foresay pull hf:%.150s", word, have, plain);
    return err_set(e, ERR_IO, "%.200s: no such file or folder, and no model of that name (%s; foresay pull hf:ORG/NAME downloads one)", word, have);
}

int store_find(const struct store *s, const char *word, const struct store_model **m, struct err *e)
{
    char *plain = plain_word(word);
    int best = 5, rc = 0;
    *m = NULL;
    for (int i = 0; i < s->n; i++) {
        int how = match(s->model[i].name, plain);
        if (how && (how < best || (how == best && (*m)->trouble && !s->model[i].trouble))) {
            best = how;
            *m = &s->model[i];
        }
    }
    char others[300] = "";
    int n = 0;
    for (int i = 0; *m && i < s->n; i++)
        if (match(s->model[i].name, plain) == best && strcasecmp(s->model[i].name, (*m)->name)) {
            size_t used = strlen(others);
            snprintf(others + used, sizeof others - used, ", %s", s->model[i].name);
            n++;
        }
    if (!*m)
        rc = not_found(s, word, plain, e);
    else if (n)
        rc = err_set(e, ERR_ARG, "%.100s: several models have that name: %s%s", word, (*m)->name, others);
    else if ((*m)->trouble)
        rc = err_set(e, ERR_IO, "%s: %.200s%s%s", (*m)->name, (*m)->trouble, (*m)->origin ? "; to complete it: foresay pull hf:" : "",
                     (*m)->origin ? (*m)->origin : "");
    free(plain);
    return rc;
}
