#include "pull/hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "net/url.h"
#include "text/json.h"

static const char default_endpoint[] = "https://huggingface.co";
enum { MAX_FILES = 20000, MAX_PAGES = 200, MAX_PATH = 512, MAX_TOKEN = 4096 };
static const size_t max_answer = (size_t)32 << 20;

// ---- names -----------------------------------------------------------------------------------------------

/* ASCII letters, digits, and what else is allowed; not empty. */
static bool is_plain(const char *s, size_t n, const char *also)
{
    for (size_t i = 0; i < n; i++)
        if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'A' && s[i] <= 'Z') || (s[i] >= 'a' && s[i] <= 'z') || (s[i] && strchr(also, s[i]))))
            return false;
    return n > 0;
}

static bool is_word(const char *s, size_t n) { return is_plain(s, n, "-_.") && n <= 96 && s[0] != '.'; }

bool hub_is_repo_name(const char *s, size_t n)
{
    const char *slash = memchr(s, '/', n);
    return slash && is_word(s, (size_t)(slash - s)) && is_word(slash + 1, n - (size_t)(slash - s) - 1);
}

static int bad_name(const char *text, struct err *e)
{
    return err_set(e, ERR_ARG, "\"%.200s\": expected hf:ORG/NAME, with @REVISION or :QUANT after it if need be", text);
}

char *hub_endpoint(void)
{
    const char *s = getenv("HF_ENDPOINT");
    char *own = xstrdup(s && *s ? s : default_endpoint);
    for (size_t n = strlen(own); n && own[n - 1] == '/';)
        own[--n] = 0;
    return own;
}

/* After the hub's own address, or NULL. */
static const char *after_web_address(const char *text)
{
    char *endpoint = hub_endpoint();
    const char *const hosts[] = {endpoint, default_endpoint};
    const char *rest = NULL;
    for (int i = 0; i < 2 && !rest; i++) {
        size_t n = strlen(hosts[i]);
        if (!strncasecmp(text, hosts[i], n) && text[n] == '/')
            rest = text + n + 1;
    }
    free(endpoint);
    return rest;
}

static bool take_revision(struct hub_name *n, const char *s, size_t len)
{
    if (!is_plain(s, len, "-_./") || len >= sizeof n->revision)
        return false;
    memcpy(n->revision, s, len);
    n->revision[len] = 0;
    return path_is_inside(n->revision, len);
}

/* ORG/NAME, ORG/NAME/, ORG/NAME/tree/REVISION; addresses of single files are something else. */
static int parse_web(const char *rest, struct hub_name *n)
{
    size_t len = strcspn(rest, "?#"), repo = 0;
    for (int slashes = 0; repo < len; repo++)
        if (rest[repo] == '/' && slashes++)
            break;
    if (!hub_is_repo_name(rest, repo))
        return 1;
    snprintf(n->repo, sizeof n->repo, "%.*s", (int)repo, rest);
    const char *tail = rest + repo;
    len -= repo;
    if (len > 6 && !strncmp(tail, "/tree/", 6))
        return !take_revision(n, tail + 6, len - 6);
    return len > 1;
}

int hub_parse_name(const char *text, struct hub_name *n, struct err *e)
{
    *n = (struct hub_name){.revision = "main"};
    const char *web = after_web_address(text);
    if (web)
        return parse_web(web, n);
    if (strncmp(text, "hf:", 3))
        return 1;
    const char *s = text + 3;
    s += 2 * !strncmp(s, "//", 2);
    size_t repo = strcspn(s, "@:"), len;
    if (!hub_is_repo_name(s, repo))
        return bad_name(text, e);
    snprintf(n->repo, sizeof n->repo, "%.*s", (int)repo, s);
    s += repo;
    if (*s == '@') {
        len = strcspn(++s, ":");
        if (!take_revision(n, s, len))
            return bad_name(text, e);
        s += len;
    }
    if (*s == ':') {
        len = strlen(++s);
        if (!is_plain(s, len, "-_.") || len >= sizeof n->set)
            return bad_name(text, e);
        memcpy(n->set, s, len + 1);
    }
    return 0;
}

// ---- token -----------------------------------------------------------------------------------------------

/* A token is one word; whatever else is there must not end in a header. Blanks alone are none. */
static int take_token(struct hub *h, const char *s, size_t n, const char *source, struct err *e)
{
    while (n && (unsigned char)s[n - 1] <= ' ')
        n--;
    while (n && (unsigned char)*s <= ' ')
        s++, n--;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] <= ' ' || (unsigned char)s[i] >= 0x7f)
            return err_set(e, ERR_ARG, "%s: expected one word without spaces or control characters", source);
    h->token = n ? xstrndup(s, n) : NULL;
    h->token_source = source;
    return 0;
}

static int token_from_file(struct hub *h, char *path, const char *source, struct err *e)
{
    char *text;
    size_t n;
    int rc = 0;
    if (file_exists(path) && !(rc = file_read(path, MAX_TOKEN, &text, &n, e))) {
        rc = take_token(h, text, n, source, e);
        free(text);
    }
    free(path);
    return rc;
}

static int find_token(struct hub *h, struct err *e)
{
    static const char *const variables[] = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}; // the second is the older one
    const char *path = getenv("HF_TOKEN_PATH"), *home = getenv("HF_HOME"), *cache = getenv("XDG_CACHE_HOME");
    for (int i = 0; i < 2; i++) {
        const char *s = getenv(variables[i]);
        if (s && *s)
            return take_token(h, s, strlen(s), variables[i], e);
    }
    if (path && *path)
        return token_from_file(h, path_expand(path), "the file HF_TOKEN_PATH", e);
    char *dir = path_expand(home && *home ? home : cache && *cache ? cache : "~/.cache");
    int rc = home && *home ? token_from_file(h, path_join(dir, "token"), "HF_HOME/token", e)
                           : token_from_file(h, path_join(dir, "huggingface/token"), "~/.cache/huggingface/token", e);
    free(dir);
    return rc;
}

int hub_open(struct hub *h, const struct fetch_options *o, struct err *e)
{
    struct fetch_options own = *o;
    const char *offline = getenv("HF_HUB_OFFLINE");
    *h = (struct hub){.endpoint = hub_endpoint()};
    int rc = 0;
    if (offline && (!strcmp(offline, "1") || !strcasecmp(offline, "true") || !strcasecmp(offline, "yes") || !strcasecmp(offline, "on")))
        rc = err_set(e, ERR_IO, "HF_HUB_OFFLINE is set: nothing is fetched");
    if (!rc && (rc = url_origin(h->endpoint, &h->origin, e)))
        err_prefix(e, "HF_ENDPOINT");
    if (!rc)
        rc = find_token(h, e);
    own.token = h->token;
    own.token_origin = h->origin;
    if (!rc)
        rc = fetcher_open(&h->f, &own, e);
    if (rc)
        hub_close(h);
    return rc;
}

void hub_close(struct hub *h)
{
    fetcher_close(h->f);
    free(h->endpoint);
    free(h->origin);
    free(h->token);
    *h = (struct hub){0};
}

// ---- what answers mean -----------------------------------------------------------------------------------

static int explain_refusal(const struct hub *h, const struct hub_repo *r, const struct http_head *head, struct err *e)
{
    const char *repo = r->name.repo;
    char own[100];
    snprintf(own, sizeof own, "the token from %s", h->token_source ? h->token_source : "");
    if (h->token && !url_is_private(h->endpoint))
        snprintf(own, sizeof own, "a token (none is sent without encryption)");
    if (!strcmp(head->error_code, "GatedRepo"))
        return err_set(e, ERR_IO, "%s is gated: accept its conditions at %s/%s, then pull with a token of that account (%s)", repo, h->endpoint,
                       repo, h->token ? "this one may not read it yet" : "HF_TOKEN, or a token file; none is set");
    if (head->status == 401 && !h->token)
        return err_set(e, ERR_IO, "%s: there is no such public repository on %s; if it is private or gated, set HF_TOKEN to a token that may read it",
                       repo, h->origin);
    if (head->status == 401)
        return err_set(e, ERR_IO, "%s: the hub doesn't accept %s, or the repository doesn't exist for it", repo, own);
    return err_set(e, ERR_IO, "%s: the hub refuses access%s%s%s%.150s", repo, h->token ? " for " : " without a token (HF_TOKEN)", h->token ? own : "",
                   head->error_message[0] ? ": " : "", head->error_message);
}

int hub_explain(const struct hub *h, const struct hub_repo *r, const char *path, const struct fetch_result *end, const char *msg,
                struct err *e)
{
    const struct http_head *head = &end->head;
    const char *repo = r->name.repo;
    int status = end->rc ? head->status : 0;
    if (status == 401 || status == 403)
        return explain_refusal(h, r, head, e);
    if (status == 404 && !strcmp(head->error_code, "RevisionNotFound"))
        return err_set(e, ERR_IO, "%s has no revision \"%.100s\"", repo, r->name.revision);
    if (status == 404 && path)
        return err_set(e, ERR_IO, "%s: the hub lists %.200s, but doesn't have it", repo, path);
    if (status == 404)
        return err_set(e, ERR_IO, "%s: there is no such repository on %s%s", repo, h->origin,
                       h->token ? "" : " for people without a token; if it is private, set HF_TOKEN");
    if (status == 429 && head->retry_after_s > 0)
        return err_set(e, ERR_IO, "%s: the hub wants us to wait %lld s before the next request; pull again later", repo,
                       (long long)head->retry_after_s);
    if (path)
        return err_set(e, end->rc ? end->rc : ERR_IO, "%.200s: %s", path, msg);
    return err_set(e, end->rc ? end->rc : ERR_IO, "%s: %s", repo, msg);
}

// ---- listing ---------------------------------------------------------------------------------------------

static bool is_hex(const char *s, size_t n, size_t want)
{
    for (size_t i = 0; i < n; i++)
        if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f')))
            return false;
    return n == want;
}

static int parse(struct hub_repo *r, struct json **v, struct arena *a, const char *text, size_t n, enum json_type want, struct err *e)
{
    int rc = json_parse(v, a, text, n, "the hub's answer", e);
    if (rc)
        return err_prefix(e, "%s", r->name.repo);
    if (!json_is(*v, want))
        return err_set(e, ERR_FORMAT, "%s: the hub's answer is no JSON %s", r->name.repo, want == JSON_ARRAY ? "array" : "object");
    return 0;
}

int hub_parse_revision(struct hub_repo *r, const char *text, size_t n, struct err *e)
{
    struct arena a = {.max_bytes = 32 * n + 65536};
    struct json *v;
    int rc = parse(r, &v, &a, text, n, JSON_OBJECT, e);
    const struct json *sha = rc ? NULL : json_get(v, "sha");
    if (!rc && (!json_is(sha, JSON_STRING) || !is_hex(sha->s, sha->n, 40)))
        rc = err_set(e, ERR_FORMAT, "%s: the hub's answer names no commit of 40 hexadecimal digits", r->name.repo);
    if (!rc)
        memcpy(r->commit, sha->s, 41);
    arena_free(&a);
    return rc;
}

static int add_file(struct hub_repo *r, const struct json *v, struct err *e)
{
    const struct json *path = json_get(v, "path"), *lfs = json_get(v, "lfs"), *oid = json_get(json_is(lfs, JSON_OBJECT) ? lfs : v, "oid");
    struct hub_file f = {.kind = json_is(lfs, JSON_OBJECT) ? DIGEST_SHA256 : DIGEST_GIT};
    int64_t size;
    if (!json_is(path, JSON_STRING))
        return err_set(e, ERR_FORMAT, "%s: the hub lists a file without a name", r->name.repo);
    if (!path_is_inside(path->s, path->n) || path->n > MAX_PATH) {
        r->n_refused++;
        return 0;
    }
    if (!json_int(json_get(f.kind == DIGEST_SHA256 ? lfs : v, "size"), &size) || size < 0)
        return err_set(e, ERR_FORMAT, "%s: the hub lists %.200s without a usable size", r->name.repo, path->s);
    if (!json_is(oid, JSON_STRING) || !is_hex(oid->s, oid->n, (size_t)digest_hex_length(f.kind)))
        return err_set(e, ERR_FORMAT, "%s: the hub lists %.200s without a usable checksum", r->name.repo, path->s);
    if (r->n_files >= MAX_FILES)
        return err_set(e, ERR_LIMIT, "%s: more than %d files", r->name.repo, MAX_FILES);
    f.size = (uint64_t)size;
    memcpy(f.digest, oid->s, oid->n + 1);
    f.path = arena_strndup(&r->arena, path->s, path->n);
    if (!f.path)
        return err_set(e, ERR_LIMIT, "%s: its file names need too much memory", r->name.repo);
    if (!(r->n_files & (r->n_files - 1)))
        r->file = xrealloc(r->file, 2 * ((size_t)r->n_files + 1) * sizeof *r->file);
    r->file[r->n_files++] = f;
    return 0;
}

int hub_parse_tree(struct hub_repo *r, const char *text, size_t n, struct err *e)
{
    struct arena a = {.max_bytes = 32 * n + 65536};
    struct json *v;
    r->arena.max_bytes = max_answer;
    int rc = parse(r, &v, &a, text, n, JSON_ARRAY, e);
    for (const struct json *c = rc ? NULL : v->child; c && !rc; c = c->next)
        if (!strcmp(json_str(json_get(c, "type"), ""), "file"))
            rc = add_file(r, c, e);
    arena_free(&a);
    return rc;
}

static int by_folded_path(const void *a, const void *b)
{
    const struct hub_file *x = a, *y = b;
    int c = strcasecmp(x->path, y->path);
    return c ? c : strcmp(x->path, y->path);
}

static int by_path(const void *a, const void *b) { return strcmp(((const struct hub_file *)a)->path, ((const struct hub_file *)b)->path); }

int hub_finish_tree(struct hub_repo *r, struct err *e)
{
    if (r->n_files > 1)
        qsort(r->file, (size_t)r->n_files, sizeof *r->file, by_folded_path);
    for (int i = 1; i < r->n_files; i++)
        if (!strcasecmp(r->file[i - 1].path, r->file[i].path))
            return err_set(e, ERR_UNSUPPORTED, "%s: unsupported: it holds %.100s and %.100s, which some systems can't tell apart", r->name.repo,
                           r->file[i - 1].path, r->file[i].path);
    if (r->n_files > 1)
        qsort(r->file, (size_t)r->n_files, sizeof *r->file, by_path);
    return 0;
}

static int get(struct hub *h, const struct hub_repo *r, const char *url, const char *path, size_t max, struct buf *out, struct fetch_result *end,
               struct err *e)
{
    struct err local = {0};
    struct fetch_text what = {.url = url, .max = max, .on_wait = h->on_wait};
    int rc = fetch_text(h->f, &what, out, end, &local);
    if (rc == ERR_CANCEL)
        return err_set(e, rc, "%s", local.msg);
    return rc ? hub_explain(h, r, path, end, local.msg, e) : 0;
}

static int list_tree(struct hub *h, struct hub_repo *r, struct buf *text, struct err *e)
{
    struct fetch_result end;
    struct buf url;
    int rc = 0, pages = 0;
    buf_init(&url, 8192);
    buf_fmt(&url, "%s/api/models/%s/tree/%s?recursive=true", h->endpoint, r->name.repo, r->commit);
    while (!rc && url.n) {
        rc = get(h, r, buf_cstr(&url), NULL, max_answer, text, &end, e);
        if (!rc)
            rc = hub_parse_tree(r, buf_cstr(text), text->n, e);
        char *next = NULL, *origin = NULL;
        if (!rc && end.head.next[0] && !(rc = url_resolve(buf_cstr(&url), end.head.next, &next, e)) && !(rc = url_origin(next, &origin, e)) &&
            strcmp(origin, h->origin))
            rc = err_set(e, ERR_FORMAT, "%s: the hub's list goes on at another place (%s): refused", r->name.repo, origin);
        if (!rc && next && ++pages > MAX_PAGES)
            rc = err_set(e, ERR_LIMIT, "%s: the hub's list has more than %d pages", r->name.repo, MAX_PAGES);
        buf_clear(&url);
        if (!rc && next)
            buf_str(&url, next);
        free(next);
        free(origin);
    }
    buf_free(&url);
    return rc ? rc : hub_finish_tree(r, e);
}

int hub_list(struct hub *h, const struct hub_name *name, struct hub_repo *r, struct err *e)
{
    struct fetch_result end;
    struct buf url, text;
    *r = (struct hub_repo){.name = *name};
    buf_init(&url, 4096);
    buf_init(&text, max_answer);
    buf_fmt(&url, "%s/api/models/%s/revision/", h->endpoint, name->repo);
    url_add_path(&url, name->revision, false);
    int rc = get(h, r, buf_cstr(&url), NULL, max_answer, &text, &end, e);
    if (!rc)
        rc = hub_parse_revision(r, buf_cstr(&text), text.n, e);
    if (!rc)
        rc = list_tree(h, r, &text, e);
    buf_free(&url);
    buf_free(&text);
    if (rc)
        hub_repo_free(r);
    return rc;
}

void hub_repo_free(struct hub_repo *r)
{
    free(r->file);
    arena_free(&r->arena);
    *r = (struct hub_repo){0};
}

const struct hub_file *hub_find(const struct hub_repo *r, const char *path)
{
    const struct hub_file want = {.path = path};
    return r->n_files ? bsearch(&want, r->file, (size_t)r->n_files, sizeof want, by_path) : NULL;
}

char *hub_file_url(const struct hub *h, const struct hub_repo *r, const char *path)
{
    struct buf url;
    buf_init(&url, 8192);
    buf_fmt(&url, "%s/%s/resolve/%s/", h->endpoint, r->name.repo, r->commit);
    url_add_path(&url, path, true);
    return buf_take(&url);
}

int hub_read(struct hub *h, const struct hub_repo *r, const char *path, size_t max, struct buf *out, struct err *e)
{
    struct fetch_result end;
    char *url = hub_file_url(h, r, path), found[DIGEST_HEX];
    const struct hub_file *f = hub_find(r, path);
    int rc = get(h, r, url, path, max, out, &end, e);
    struct digest *d = rc || !f ? NULL : digest_new(f->kind, out->n);
    if (d) {
        digest_add(d, buf_cstr(out), out->n);
        digest_end(d, found);
        if (strcmp(found, f->digest))
            rc = err_set(e, ERR_FORMAT, "%.200s: wrong checksum: expected %s, found %s", path, f->digest, found);
    }
    free(url);
    return rc;
}
