#include "pull/mirror.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/file.h"
#include "format/gguf.h"
#include "net/url.h"
#include "pull/store.h"

enum { GGUF_FIRST = 512 * 1024, MAX_SMALL = 16 << 20, MAX_INDEX = 64 << 20, MAX_PROBED = 4096 };
static const uint64_t max_header = 100u * 1000 * 1000, max_gguf_header = (uint64_t)256 << 20;

struct source {
    struct mirror *m;
    struct hub hub;
    struct hub_repo repo;     // with a hub: as listed; without: the files that were found
    struct choice choice;
    char *base;               // address of the folder, NULL with a hub
    bool is_single;           // base is the address of the only file
    void (*on_wait)(const char *why, int ms);
};

bool mirror_is_remote(const char *what)
{
    return !strncmp(what, "hf:", 3) || !strncasecmp(what, "http://", 7) || !strncasecmp(what, "https://", 8);
}

static char *url_of(const struct source *s, const char *path)
{
    struct buf b;
    if (!s->base)
        return hub_file_url(&s->hub, &s->repo, path);
    buf_init(&b, 8192);
    buf_str(&b, s->base);
    if (!s->is_single) {
        buf_chr(&b, '/');
        url_add_path(&b, path, true);
    }
    return buf_take(&b);
}

static int explain(const struct source *s, const char *path, const struct fetch_result *end, const struct err *why, struct err *e)
{
    char shown[200];
    if (why->code == ERR_CANCEL || why->code == ERR_UNSUPPORTED)
        return err_set(e, why->code, "%.200s: %s", path, why->msg);
    if (!s->base)
        return hub_explain(&s->hub, &s->repo, path, end, why->msg, e);
    url_shown(s->base, shown, sizeof shown);
    return err_set(e, why->code, "%s%s%.100s: %s", shown, s->is_single ? "" : "/", s->is_single ? "" : path, why->msg);
}

// ---- ranges of several files -----------------------------------------------------------------------------

struct piece {
    const struct hub_file *f;
    uint64_t first, n; // bytes wanted; n 0: none
    struct buf data;
};

/* Fetches what the pieces want, up to what their files have. */
static int fetch_pieces(struct source *s, struct piece *p, int n, struct err *e)
{
    struct fetch_text *what = xcalloc((size_t)n, sizeof *what);
    struct fetch_result *end = xcalloc((size_t)n, sizeof *end);
    struct buf *out = xcalloc((size_t)n, sizeof *out);
    int *of = xcalloc((size_t)n, sizeof *of), k = 0, bad = 0, rc = 0;
    struct err why = {0};
    for (int i = 0; i < n; i++) {
        const struct hub_file *f = p[i].f;
        uint64_t last = p[i].n < f->size - p[i].first ? p[i].first + p[i].n - 1 : f->size - 1;
        if (!p[i].n || p[i].first >= f->size)
            continue;
        buf_init(&out[k], (size_t)(last - p[i].first + 1));
        what[k] = (struct fetch_text){.url = url_of(s, f->path), .max = out[k].max, .has_range = p[i].first || last + 1 < f->size,
                                      .first = p[i].first, .last = last, .on_wait = s->on_wait};
        of[k++] = i;
    }
    if (k && (rc = fetch_texts(s->hub.f, what, out, end, k, &bad, &why)))
        explain(s, p[of[bad]].f->path, &end[bad], &why, e);
    for (int i = 0; i < k; i++) {
        struct piece *x = &p[of[i]];
        if (!rc && out[i].n != what[i].last - what[i].first + 1)
            rc = err_set(e, ERR_FORMAT, "%.200s: expected %llu bytes of it, the server sends %zu", x->f->path,
                         (unsigned long long)(what[i].last - what[i].first + 1), out[i].n);
        if (!rc)
            buf_add(&x->data, buf_cstr(&out[i]), out[i].n);
        free((char *)(uintptr_t)what[i].url);
        buf_free(&out[i]);
    }
    free(what);
    free(end);
    free(out);
    free(of);
    return rc;
}

static bool is_weights(const char *path) { return path_ends(path, ".safetensors") || path_ends(path, ".gguf"); }

/* Only its size is of interest. */
static bool is_vocabulary(const char *path)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(path, names[i]))
            return true;
    return false;
}

/* What the header of a safetensors file still lacks. */
static int want_rest(struct piece *p, struct err *e)
{
    uint64_t n = 0;
    p->n = 0;
    if (p->data.n < 8)
        return 0; // the reader will say what's wrong
    for (int i = 0; i < 8; i++)
        n |= (uint64_t)(uint8_t)p->data.p[i] << (8 * i);
    if (n > max_header)
        return err_set(e, ERR_LIMIT, "%.200s: header length out of range: %llu bytes, at most %llu are allowed", p->f->path, (unsigned long long)n,
                       (unsigned long long)max_header);
    p->first = p->data.n;
    p->n = 8 + n > p->data.n ? 8 + n - p->data.n : 0;
    return 0;
}

/* A GGUF's header has no length: more is fetched until it is whole. */
static int grow_gguf(struct source *s, struct piece *p, struct err *e)
{
    int rc;
    while ((rc = gguf_probe(buf_cstr(&p->data), p->data.n, (size_t)p->f->size, path_base(p->f->path), e)) == 1) {
        p->first = p->data.n;
        p->n = p->data.n;
        if (p->first >= max_gguf_header)
            return err_set(e, ERR_LIMIT, "%.200s: its header is larger than %llu bytes", p->f->path, (unsigned long long)max_gguf_header);
        if ((rc = fetch_pieces(s, p, 1, e)))
            break;
    }
    return rc;
}

// ---- the folder ------------------------------------------------------------------------------------------

static int write_piece(const struct source *s, const struct piece *p, struct err *e)
{
    char why[128], *path = path_join(s->m->dir, p->f->path), *dir = xstrndup(path, (size_t)(path_base(path) - path));
    int rc = file_make_dirs(dir, e), fd = rc ? -1 : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (!rc && (fd < 0 || fd_write_at(fd, buf_cstr(&p->data), p->data.n, 0) || ftruncate(fd, (off_t)p->f->size)))
        rc = err_set(e, ERR_IO, "%s: cannot write: %s", path, err_os(errno, why, sizeof why));
    if (fd >= 0)
        close(fd);
    free(dir);
    free(path);
    return rc;
}

static int make_folder(struct source *s, struct err *e)
{
    const char *tmp = getenv("TMPDIR");
    char why[128], *dir = path_join(tmp && *tmp ? tmp : "/tmp", "foresay-headers-XXXXXX");
    if (!mkdtemp(dir)) {
        int rc = err_set(e, ERR_IO, "%s: cannot create: %s", dir, err_os(errno, why, sizeof why));
        free(dir);
        return rc;
    }
    s->m->dir = dir;
    return 0;
}

static int fetch_files(struct source *s, struct err *e)
{
    int n = s->choice.n, rc = 0;
    struct piece *p = xcalloc((size_t)n, sizeof *p);
    for (int i = 0; i < n && !rc; i++) {
        const struct hub_file *f = &s->repo.file[s->choice.file[i]];
        p[i].f = f;
        buf_init(&p[i].data, (size_t)max_gguf_header * 2);
        s->m->total_bytes += f->size;
        if (is_vocabulary(f->path))
            s->m->tokenizer_bytes += f->size;
        else if (!is_weights(f->path) && f->size > (path_ends(f->path, ".index.json") ? MAX_INDEX : MAX_SMALL))
            rc = err_set(e, ERR_LIMIT, "%.200s: %llu bytes, too many for a file of its kind", f->path, (unsigned long long)f->size);
        else
            p[i].n = path_ends(f->path, ".gguf") ? GGUF_FIRST : is_weights(f->path) ? 8 : f->size;
    }
    if (!rc)
        rc = fetch_pieces(s, p, n, e);
    for (int i = 0; i < n && !rc; i++) {
        p[i].n = 0;
        if (path_ends(p[i].f->path, ".safetensors"))
            rc = want_rest(&p[i], e);
    }
    if (!rc)
        rc = fetch_pieces(s, p, n, e);
    for (int i = 0; i < n && !rc; i++)
        if (path_ends(p[i].f->path, ".gguf"))
            rc = grow_gguf(s, &p[i], e);
    for (int i = 0; i < n && !rc; i++)
        rc = write_piece(s, &p[i], e);
    for (int i = 0; i < n; i++)
        buf_free(&p[i].data);
    free(p);
    return rc;
}

// ---- addresses without a hub -----------------------------------------------------------------------------

/* Adds the file if the server has it; 1: it hasn't. One byte of it tells the size. */
static int probe_file(struct source *s, const char *path, struct err *e)
{
    struct hub_repo *r = &s->repo;
    struct fetch_result end = {0};
    struct err why = {0};
    struct buf first;
    for (int i = 0; i < r->n_files; i++)
        if (!strcmp(r->file[i].path, path))
            return 0;
    char *url = url_of(s, path);
    struct fetch_text what = {.url = url, .max = 1, .has_range = true, .on_wait = s->on_wait};
    buf_init(&first, 1);
    int rc = r->n_files >= MAX_PROBED ? err_set(&why, ERR_LIMIT, "more than %d files", MAX_PROBED) : fetch_text(s->hub.f, &what, &first, &end, &why);
    if (rc && (end.head.status == 404 || end.head.status == 410))
        rc = 1;
    else if (rc)
        explain(s, path, &end, &why, e);
    else if (end.head.total < 0 && end.head.status != 200)
        rc = err_set(e, ERR_UNSUPPORTED, "%.200s: unsupported: the server doesn't say how large it is", path);
    if (!rc) {
        r->file = xrealloc(r->file, ((size_t)r->n_files + 1) * sizeof *r->file);
        r->file[r->n_files++] = (struct hub_file){.path = arena_strndup(&r->arena, path, strlen(path)),
                                                  .size = (uint64_t)(end.head.total >= 0 ? end.head.total : (int64_t)first.n)};
    }
    buf_free(&first);
    free(url);
    return rc;
}

static int read_index(struct source *s, struct buf *text, struct err *e)
{
    struct fetch_result end;
    struct err why = {0};
    char *url = url_of(s, "model.safetensors.index.json");
    struct fetch_text what = {.url = url, .max = MAX_INDEX, .on_wait = s->on_wait};
    int rc = fetch_text(s->hub.f, &what, text, &end, &why);
    if (rc)
        explain(s, "model.safetensors.index.json", &end, &why, e);
    free(url);
    return rc;
}

/* The shards of an index become files that were asked for one by one. */
static int probe_shards(struct source *s, const struct buf *text, struct err *e)
{
    struct arena a = {.max_bytes = 32 * text->n + 65536};
    struct json *top;
    int rc = json_parse(&top, &a, buf_cstr(text), text->n, "model.safetensors.index.json", e);
    const struct json *map = rc ? NULL : json_get(top, "weight_map");
    for (const struct json *v = json_is(map, JSON_OBJECT) ? map->child : NULL; v && rc >= 0; v = v->next) {
        const char *name = json_str(v, "");
        if (path_is_inside(name, strlen(name))) // others are refused later
            rc = probe_file(s, name, e);
    }
    arena_free(&a);
    return rc < 0 ? rc : 0;
}

static int probe_folder(struct source *s, struct buf *index, struct err *e)
{
    static const char *const names[] = {"config.json", "generation_config.json", "model.safetensors.index.json", "model.safetensors", "mtp.safetensors",
                                        "model-mtp.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};
    char shown[300];
    url_shown(s->base, shown, sizeof shown);
    snprintf(s->repo.name.repo, sizeof s->repo.name.repo, "%.190s", shown);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int rc = probe_file(s, names[i], e);
        if (rc < 0)
            return rc;
        if (rc && !i)
            return err_set(e, ERR_IO, "%.200s: no model there: expected a folder with config.json, or a .gguf file", shown);
        if (!rc && i == 2 && ((rc = read_index(s, index, e)) || (rc = probe_shards(s, index, e))))
            return rc;
    }
    return hub_finish_tree(&s->repo, e);
}

/* One GGUF file, with its other parts if it is split; an address with a query is only that of the one file. */
static int probe_gguf(struct source *s, const char *what, struct err *e)
{
    char shown[4096], name[600];
    int part, parts = 1, rc = 0;
    size_t stem = 0;
    url_shown(what, shown, sizeof shown);
    const char *base = path_base(shown);
    if (!path_is_inside(base, strlen(base)) || strlen(base) > 500)
        return err_set(e, ERR_ARG, "%.300s: its last part is no usable file name", shown);
    s->is_single = !choose_part(base, &part, &parts, &stem) || strcmp(what, shown);
    if (!s->is_single)
        s->base[base - shown - 1] = 0;
    for (int i = 1; i <= parts && !rc && !s->is_single; i++) {
        snprintf(name, sizeof name, "%.*s-%05d-of-%05d.gguf", (int)stem, base, i, parts);
        rc = probe_file(s, name, e);
    }
    if (s->is_single)
        rc = probe_file(s, base, e);
    if (rc)
        return rc < 0 ? rc : err_set(e, ERR_IO, "%.300s: there is no such file%s", shown, s->is_single ? "" : ", or a part of it is missing");
    s->choice.n = s->repo.n_files;
    s->choice.file = xcalloc((size_t)s->choice.n, sizeof *s->choice.file);
    for (int i = 0; i < s->choice.n; i++)
        s->choice.file[i] = i;
    return 0;
}

// ---- opening ---------------------------------------------------------------------------------------------

static int open_hub(struct source *s, const struct hub_name *name, const struct choice_options *co, struct err *e)
{
    struct choice_options own = {.set = *co->set ? co->set : name->set, .file = co->file};
    struct buf text;
    int rc = hub_list(&s->hub, name, &s->repo, e);
    buf_init(&text, MAX_INDEX);
    const char *index = rc ? NULL : choose_index(&s->repo, &own);
    if (index)
        rc = hub_read(&s->hub, &s->repo, index, MAX_INDEX, &text, e);
    if (!rc)
        rc = choose_files(&s->repo, &own, index ? buf_cstr(&text) : NULL, text.n, &s->choice, e);
    buf_free(&text);
    if (!rc) {
        s->m->name = manifest_name(name->repo, name->revision, s->choice.set);
        memcpy(s->m->commit, s->repo.commit, sizeof s->m->commit);
    }
    return rc;
}

static int open_address(struct source *s, const char *what, struct err *e)
{
    char shown[4096], *origin;
    int rc = url_origin(what, &origin, e);
    free(origin);
    if (rc)
        return rc;
    url_shown(what, shown, sizeof shown);
    s->m->name = xstrdup(shown);
    s->base = xstrdup(what);
    s->repo.arena.max_bytes = 1 << 20;
    if (path_ends(shown, ".gguf"))
        return probe_gguf(s, what, e);
    for (size_t n = strlen(s->base); n && s->base[n - 1] == '/';)
        s->base[--n] = 0;
    struct choice_options co = {.set = ""};
    struct buf index;
    buf_init(&index, MAX_INDEX);
    rc = probe_folder(s, &index, e);
    if (!rc)
        rc = choose_files(&s->repo, &co, index.n ? buf_cstr(&index) : NULL, index.n, &s->choice, e);
    buf_free(&index);
    return rc;
}

int mirror_open(struct mirror *m, const char *what, const struct choice_options *choice, const struct fetch_options *fetch,
                void (*on_wait)(const char *why, int ms), struct err *e)
{
    struct source s = {.m = m, .on_wait = on_wait};
    struct hub_name name;
    *m = (struct mirror){0};
    int is_address = hub_parse_name(what, &name, e);
    if (is_address < 0)
        return is_address;
    int rc = hub_open(&s.hub, fetch, e);
    if (rc)
        return rc;
    s.hub.on_wait = on_wait;
    if (!is_address)
        rc = open_hub(&s, &name, choice, e);
    else if (*choice->set || choice->file)
        rc = err_set(e, ERR_ARG, "--quant and --file choose among the files of a repository (hf:ORG/NAME)");
    else
        rc = open_address(&s, what, e);
    if (!rc)
        rc = make_folder(&s, e);
    if (!rc)
        rc = fetch_files(&s, e);
    if (!rc) {
        const char *first = s.repo.file[s.choice.file[0]].path;
        m->path = path_ends(first, ".gguf") ? path_join(m->dir, first) : xstrdup(m->dir);
    }
    m->fetched_bytes = fetch_bytes(s.hub.f);
    m->n_requests = fetch_requests(s.hub.f);
    choice_free(&s.choice);
    hub_repo_free(&s.repo);
    hub_close(&s.hub);
    free(s.base);
    return rc;
}

void mirror_close(struct mirror *m)
{
    if (m->dir)
        (void)!file_remove_tree(m->dir, NULL);
    free(m->dir);
    free(m->path);
    free(m->name);
    *m = (struct mirror){0};
}
