/* Input: lines of a response's head, after a zero byte the hub's JSON (list of files, revision, our description of a
 * pulled model), after another one an index of shards. What is accepted must be safe to use: names stay in the
 * folder, numbers fit each other, redirects keep to encryption. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "net/url.h"
#include "pull/choose.h"
#include "pull/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void require(int ok)
{
    if (!ok)
        abort();
}

static void read_head(const char *s, size_t n)
{
    struct http_head h;
    http_head_init(&h);
    for (size_t i = 0, end; i < n; i = end + 1) {
        for (end = i; end < n && s[end] != '\n'; end++)
            ;
        http_head_line(&h, s + i, end - i, 1000000000);
    }
    require(!h.status || (h.status >= 100 && h.status <= 999));
    require(h.length >= -1 && h.retry_after_s >= -1 && h.linked_size >= -1);
    require(h.first <= h.last && (h.total < 0 || h.last < h.total));
    const char *const texts[] = {h.etag, h.linked_etag, h.error_code, h.error_message, h.location, h.next};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (const char *c = texts[i]; *c; c++)
            require((unsigned char)*c >= 0x20 && *c != 0x7f);
    char *to, *origin = NULL;
    struct err e = {0};
    if (!url_resolve("https://hub.example/a/b?c", h.location, &to, &e)) {
        require(!strncmp(to, "https:", 6) && !url_origin(to, &origin, &e));
        free(origin);
        free(to);
    } else {
        require(e.code && *e.msg);
    }
}

static void read_list(const char *s, size_t n, const char *index, size_t n_index)
{
    struct hub_repo r = {.name = {.repo = "org/name", .revision = "main"}};
    struct choice_options o = {.set = n & 1 ? "Q8_0" : ""};
    struct choice c;
    struct err e = {0};
    if (hub_parse_tree(&r, s, n, &e) || hub_finish_tree(&r, &e)) {
        require(e.code && *e.msg);
        hub_repo_free(&r);
        return;
    }
    for (int i = 0; i < r.n_files; i++) {
        const struct hub_file *f = &r.file[i];
        require(path_is_inside(f->path, strlen(f->path)) && hub_find(&r, f->path) == f);
        require((int)strspn(f->digest, "0123456789abcdef") == digest_hex_length(f->kind) && f->size <= INT64_MAX);
    }
    const char *has_index = choose_index(&r, &o);
    if (choose_files(&r, &o, has_index ? index : NULL, has_index ? n_index : 0, &c, &e))
        require(e.code && *e.msg);
    else
        require(c.n > 0 && c.file[0] >= 0 && c.file[c.n - 1] < r.n_files);
    for (int i = 1; i < c.n; i++)
        require(c.file[i] > c.file[i - 1]);
    choice_free(&c);
    hub_repo_free(&r);
}

static void read_objects(const char *s, size_t n)
{
    struct hub_repo r = {.name = {.repo = "org/name"}};
    struct manifest m;
    struct err e = {0};
    if (!hub_parse_revision(&r, s, n, &e))
        require(strspn(r.commit, "0123456789abcdef") == 40 && !r.commit[40]);
    else
        require(e.code && *e.msg);
    if (!manifest_parse(&m, s, n, "input", &e)) {
        for (const struct json *f = m.files->child; f; f = f->next)
            require(path_is_inside(json_str(json_get(f, "path"), ""), json_get(f, "path")->n));
        char *name = manifest_name(m.repo, m.revision, m.set), *dir = store_folder(m.repo, m.revision, m.set, false);
        require(*name && path_base(dir)[0] != '.');
        free(name);
        free(dir);
        manifest_free(&m);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    const char *s = (const char *)p, *json = n ? memchr(s, 0, n) : NULL;
    read_head(s, json ? (size_t)(json - s) : n);
    if (!json)
        return 0;
    size_t n_json = n - (size_t)(++json - s);
    const char *index = n_json ? memchr(json, 0, n_json) : NULL;
    size_t n_index = index ? n_json - (size_t)(index - json) - 1 : 0;
    n_json -= index ? n_index + 1 : 0;
    read_list(json, n_json, index ? index + 1 : "", n_index);
    read_objects(json, n_json);
    return 0;
}
