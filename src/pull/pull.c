#include "pull/pull.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/human.h"
#include "base/os.h"
#include "pull/store.h"

static const char journals_name[] = ".journals", lock_name[] = ".lock";
static const size_t max_index = (size_t)64 << 20;
static const uint64_t spare_bytes = (uint64_t)64 << 20; // left free on the volume

struct pull {
    const struct pull_options *o;
    struct pull_report *r;
    struct hub hub;
    struct hub_repo repo;
    struct choice choice;
    char *final, *partial, *journals;
    int lock;
};

static void note(const struct pull *p, const char *sentence)
{
    if (p->o->on_note)
        p->o->on_note(p->o->ud, sentence);
}

static const struct hub_file *chosen(const struct pull *p, int i) { return &p->repo.file[p->choice.file[i]]; }

// ---- what to fetch ---------------------------------------------------------------------------------------

static int decide(struct pull *p, struct err *e)
{
    const struct pull_options *o = p->o;
    struct hub_name name;
    int rc = hub_parse_name(o->name, &name, e);
    if (rc)
        return rc < 0 ? rc : err_set(e, ERR_ARG, "\"%.200s\": expected hf:ORG/NAME, with @REVISION or :QUANT after it if need be", o->name);
    if (o->set && *name.set && strcmp(o->set, name.set))
        return err_set(e, ERR_ARG, "--quant %.60s contradicts \"%.200s\"", o->set, o->name);
    if ((rc = hub_list(&p->hub, &name, &p->repo, e)))
        return rc;
    struct choice_options co = {.set = o->set ? o->set : name.set, .file = o->file};
    const char *index = choose_index(&p->repo, &co);
    struct buf text;
    buf_init(&text, max_index);
    if (index)
        rc = hub_read(&p->hub, &p->repo, index, max_index, &text, e);
    if (!rc)
        rc = choose_files(&p->repo, &co, index ? buf_cstr(&text) : NULL, text.n, &p->choice, e);
    buf_free(&text);
    if (p->choice.offers.n)
        p->r->offers = xstrdup(buf_cstr(&p->choice.offers));
    return rc;
}

// ---- what is here ----------------------------------------------------------------------------------------

static char *usable_path(const struct pull *p, const char *dir)
{
    return *p->choice.set ? path_join(dir, chosen(p, 0)->path) : xstrdup(dir);
}

/* The folder of an earlier pull holds these very files. */
static bool is_pulled(const struct pull *p)
{
    struct manifest m;
    if (manifest_read(&m, p->final, NULL))
        return false;
    bool same = m.files->n == (size_t)p->choice.n;
    for (int i = 0; i < p->choice.n && same; i++) {
        const struct hub_file *f = chosen(p, i);
        char *path = path_join(p->final, f->path);
        const struct json *x = m.files->child;
        while (x && strcmp(json_str(json_get(x, "path"), ""), f->path))
            x = x->next;
        same = x && !strcmp(json_str(json_get(x, f->kind == DIGEST_SHA256 ? "sha256" : "git"), ""), f->digest) && file_is_regular(path) &&
               file_size(path) == f->size;
        free(path);
    }
    manifest_free(&m);
    return same;
}

static bool has_digest(const char *path, enum digest_kind kind, const char *want, uint64_t size, const struct fetcher *f)
{
    enum { CHUNK = 1 << 20 };
    char found[DIGEST_HEX] = "";
    FILE *in = fopen(path, "rb");
    struct digest *d = in ? digest_new(kind, size) : NULL;
    char *data = xmalloc(CHUNK);
    for (size_t n; d && (n = fread(data, 1, CHUNK, in)) > 0 && !fetch_is_cancelled(f);)
        digest_add(d, data, n);
    if (d)
        digest_end(d, found);
    free(data);
    if (in)
        fclose(in);
    return !strcmp(found, want);
}

static bool is_this_file(const struct pull *p, const struct hub_file *f, const struct store_model *m, const char *path)
{
    for (int i = 0; i < m->n_files; i++)
        if (f->kind == DIGEST_SHA256 && *m->file[i].sha256 && !strcmp(m->file[i].path, path))
            return !strcmp(m->file[i].sha256, f->digest);
    return has_digest(path, f->kind, f->digest, f->size, p->hub.f);
}

/* Another tool's model is file for file what would be fetched: sizes first, then the checksums that names say or
 * those of the content. GGUF files may have other names. */
static bool is_held_by(const struct pull *p, const struct store_model *m)
{
    bool is_gguf = *p->choice.set, ok = is_gguf ? m->n_files == p->choice.n && !file_is_dir(m->path) : file_is_dir(m->path);
    for (int pass = 0; pass < 2 && ok; pass++)
        for (int i = 0; i < p->choice.n && ok; i++) {
            const struct hub_file *f = chosen(p, i);
            char *path = is_gguf ? xstrdup(m->file[i].path) : path_join(m->path, f->path);
            ok = pass ? is_this_file(p, f, m, path) : file_is_regular(path) && file_size(path) == f->size;
            free(path);
        }
    return ok;
}

static bool is_elsewhere(struct pull *p)
{
    struct store s;
    char size[32], sentence[600];
    bool found = false;
    store_scan(&s);
    for (int i = 0; i < s.n && !found; i++) {
        const struct store_model *m = &s.model[i];
        if (m->place == STORE_OURS || m->trouble || !m->n_files || !is_held_by(p, m))
            continue;
        found = true;
        free(p->r->path);
        free(p->r->name);
        p->r->path = xstrdup(m->path);
        p->r->name = xstrdup(m->name);
        snprintf(sentence, sizeof sentence, "the same files (%s) are on this machine already: %s (%s); --anyway fetches them into foresay's own folder",
                 human_bytes((double)m->bytes, size, sizeof size), m->path, store_place_name(m->place));
        note(p, sentence);
    }
    store_free(&s);
    return found;
}

// ---- the partial folder ----------------------------------------------------------------------------------

static int write_manifest(const struct pull *p, struct err *e)
{
    struct buf b;
    char *path = path_join(p->partial, MANIFEST_NAME);
    buf_init(&b, 16 << 20);
    buf_str(&b, "{\"foresay\":1,\"source\":\"hf\",\"endpoint\":");
    json_write_str(&b, p->hub.endpoint, strlen(p->hub.endpoint));
    buf_fmt(&b, ",\"repo\":\"%s\",\"revision\":", p->repo.name.repo);
    json_write_str(&b, p->repo.name.revision, strlen(p->repo.name.revision));
    buf_fmt(&b, ",\"commit\":\"%s\",\"set\":", p->repo.commit);
    json_write_str(&b, p->choice.set, strlen(p->choice.set));
    buf_str(&b, ",\"files\":[");
    for (int i = 0; i < p->choice.n; i++) {
        const struct hub_file *f = chosen(p, i);
        buf_fmt(&b, "%s\n{\"path\":", i ? "," : "");
        json_write_str(&b, f->path, strlen(f->path));
        buf_fmt(&b, ",\"size\":%llu,\"%s\":\"%s\"}", (unsigned long long)f->size, f->kind == DIGEST_SHA256 ? "sha256" : "git", f->digest);
    }
    buf_str(&b, "]}\n");
    int rc = b.is_full ? err_set(e, ERR_LIMIT, "%s: too many files to describe", path) : file_write(path, b.p, b.n, e);
    buf_free(&b);
    free(path);
    return rc;
}

static bool is_wanted(const struct pull *p, const char *path)
{
    size_t n = strlen(path);
    for (int i = 0; i < p->choice.n; i++)
        if (!strcmp(chosen(p, i)->path, path) || (!strncmp(chosen(p, i)->path, path, n) && chosen(p, i)->path[n] == '/'))
            return true;
    return !strcmp(path, journals_name) || !strcmp(path, lock_name) || !strcmp(path, MANIFEST_NAME);
}

/* What an earlier pull of another commit left, and links that somebody put there. below: path inside, "" at the top. */
static int remove_strangers(const struct pull *p, const char *below, struct err *e)
{
    struct filelist l;
    char *dir = *below ? path_join(p->partial, below) : xstrdup(p->partial);
    int rc = file_list(&l, dir, e);
    for (int i = 0; i < l.n && !rc; i++) {
        char *path = *below ? path_join(below, l.name[i]) : xstrdup(l.name[i]), *whole = path_join(p->partial, path);
        bool is_file = file_is_plain(whole), is_dir = !file_is_link(whole) && file_is_dir(whole);
        if (!is_wanted(p, path) || (!is_file && !is_dir))
            rc = file_remove_tree(whole, e);
        else if (is_dir && strcmp(path, journals_name))
            rc = remove_strangers(p, path, e);
        free(path);
        free(whole);
    }
    file_list_free(&l);
    free(dir);
    return rc;
}

/* Files that the model's older pull has and the new one wants unchanged: linked, then proved like all others. */
static void reuse_older(const struct pull *p)
{
    struct manifest m;
    if (manifest_read(&m, p->final, NULL))
        return;
    for (int i = 0; i < p->choice.n; i++) {
        const struct hub_file *f = chosen(p, i);
        char *from = path_join(p->final, f->path), *to = path_join(p->partial, f->path), *dir = xstrndup(to, (size_t)(path_base(to) - to));
        for (const struct json *x = m.files->child; x; x = x->next)
            if (!strcmp(json_str(json_get(x, f->kind == DIGEST_SHA256 ? "sha256" : "git"), ""), f->digest) &&
                !strcmp(json_str(json_get(x, "path"), ""), f->path) && file_size(from) == f->size && !file_make_dirs(dir, NULL))
                (void)!link(from, to); // else it is fetched
        free(from);
        free(to);
        free(dir);
    }
    manifest_free(&m);
}

static int prepare(struct pull *p, struct err *e)
{
    if (file_exists(p->final)) {
        struct manifest m;
        int rc = manifest_read(&m, p->final, e);
        if (rc)
            return rc < 0 ? rc : err_set(e, ERR_IO, "%s is there and wasn't pulled by foresay: move it elsewhere first", p->final);
        manifest_free(&m);
    }
    char *lock = path_join(p->partial, lock_name);
    int rc = file_make_dirs(p->journals, e);
    if (!rc && (rc = file_lock(lock, &p->lock, e)) > 0)
        rc = err_set(e, ERR_IO, "%s: another foresay is pulling it right now", p->r->name);
    if (!rc)
        rc = remove_strangers(p, "", e);
    if (!rc)
        reuse_older(p);
    if (!rc)
        rc = write_manifest(p, e);
    free(lock);
    return rc;
}

/* Before anything is fetched; where nothing was, nothing stays. */
static int check_room(const struct pull *p, uint64_t left, struct err *e)
{
    char need[32], have[32];
    uint64_t room = os_disk_free(p->partial);
    if (left + spare_bytes <= room)
        return 0;
    if (left == p->choice.bytes)
        (void)!file_remove_tree(p->partial, NULL);
    return err_set(e, ERR_IO, "%s needs %s more, the volume of %s has %s free", p->r->name, human_bytes((double)left, need, sizeof need), p->partial,
                   human_bytes((double)room, have, sizeof have));
}

/* The verified partial folder becomes the model. An older one under that name goes. */
static int install(struct pull *p, struct err *e)
{
    char why[128], *lock = path_join(p->partial, lock_name);
    int rc = file_remove_tree(p->journals, e);
    unlink(lock);
    free(lock);
    file_sync_dir(p->partial);
    if (!rc && file_exists(p->final))
        rc = store_delete(p->final, e);
    if (!rc && rename(p->partial, p->final))
        rc = err_set(e, ERR_IO, "%s: cannot be put into place: %s", p->final, err_os(errno, why, sizeof why));
    char *org = xstrndup(p->final, (size_t)(path_base(p->final) - p->final));
    file_sync_dir(org);
    free(org);
    return rc;
}

static int fetch(struct pull *p, struct err *e)
{
    struct download_progress done = {0};
    struct download d = {.hub = &p->hub, .repo = &p->repo, .file = p->choice.file, .n_files = p->choice.n, .dir = p->partial,
                         .journals = p->journals, .connections = p->o->connections ? p->o->connections : 8, .ud = p->o->ud,
                         .on_progress = p->o->on_progress};
    int rc = prepare(p, e);
    if (!rc)
        rc = check_room(p, download_left(&d), e);
    if (!rc)
        rc = download_run(&d, &done, e);
    p->r->fetched = done.fetched;
    p->r->again = done.again;
    return rc ? rc : install(p, e);
}

static int run(struct pull *p, struct err *e)
{
    int rc = decide(p, e);
    if (rc)
        return rc;
    const struct hub_name *n = &p->repo.name;
    struct pull_report *r = p->r;
    p->final = store_folder(n->repo, n->revision, p->choice.set, false);
    p->partial = store_folder(n->repo, n->revision, p->choice.set, true);
    p->journals = path_join(p->partial, journals_name);
    r->name = manifest_name(n->repo, n->revision, p->choice.set);
    r->path = usable_path(p, p->final);
    r->bytes = p->choice.bytes;
    r->n_files = p->choice.n;
    r->left_out = xstrdup(buf_cstr(&p->choice.left_out));
    memcpy(r->commit, p->repo.commit, sizeof r->commit);
    if (p->repo.n_refused)
        note(p, "files whose names would leave the folder are left out");
    store_sweep();
    r->was_here = is_pulled(p) || (!p->o->anyway && is_elsewhere(p));
    return r->was_here ? 0 : fetch(p, e);
}

int pull_run(const struct pull_options *o, struct pull_report *r, struct err *e)
{
    struct pull p = {.o = o, .r = r, .lock = -1};
    *r = (struct pull_report){0};
    int rc = hub_open(&p.hub, &o->fetch, e);
    if (rc)
        return rc;
    p.hub.on_wait = o->on_wait;
    rc = run(&p, e);
    r->api_bytes = fetch_bytes(p.hub.f) - r->fetched;
    r->n_requests = fetch_requests(p.hub.f);
    if (p.lock >= 0)
        close(p.lock);
    free(p.final);
    free(p.partial);
    free(p.journals);
    choice_free(&p.choice);
    hub_repo_free(&p.repo);
    hub_close(&p.hub);
    return rc;
}

void pull_report_free(struct pull_report *r)
{
    free(r->name);
    free(r->path);
    free(r->left_out);
    free(r->offers);
    *r = (struct pull_report){0};
}
