#include "net/fetch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <curl/curl.h>

#include "base/clock.h"
#include "base/mem.h"
#include "net/url.h"

enum { MAX_HOPS = 8, MAX_HEADER_BYTES = 256 * 1024, CONNECT_S = 30, MAX_TEXTS = 8 };
static const uint64_t max_discarded = 1 << 20; // body of a redirect or an error

struct transfer {
    struct fetcher *f;
    struct fetch_request r; // url belongs to us
    CURL *easy;
    struct curl_slist *fields;
    int hops, rc;           // rc: what a callback ended it with
    bool is_told;           // on_head was called
    size_t header_bytes;
    uint64_t discarded;
    struct fetch_result result;
    struct err e;
    char curl_says[CURL_ERROR_SIZE];
    struct transfer *next, *prev;
};

struct fetcher {
    CURLM *multi;
    char *token, *token_origin;
    int stall_s, max_attempts, n_active, n_requests;
    uint64_t bytes;
    atomic_int *cancel;
    struct transfer *first;
};

int fetcher_open(struct fetcher **out, const struct fetch_options *o, struct err *e)
{
    *out = NULL;
    if (curl_global_init(CURL_GLOBAL_DEFAULT))
        return err_set(e, ERR_IO, "libcurl can't be initialised");
    struct fetcher *f = xcalloc(1, sizeof *f);
    f->multi = curl_multi_init();
    f->token = o->token ? xstrdup(o->token) : NULL;
    f->token_origin = xstrdup(o->token_origin ? o->token_origin : "");
    f->stall_s = o->stall_s > 0 ? o->stall_s : 30;
    f->max_attempts = o->max_attempts > 0 ? o->max_attempts : 8;
    f->cancel = o->cancel;
    if (!f->multi) {
        fetcher_close(f);
        return err_set(e, ERR_IO, "libcurl can't be initialised");
    }
    *out = f;
    return 0;
}

static void transfer_free(struct transfer *t)
{
    struct fetcher *f = t->f;
    if (t->easy) {
        curl_multi_remove_handle(f->multi, t->easy);
        curl_easy_cleanup(t->easy);
    }
    curl_slist_free_all(t->fields);
    free((char *)(uintptr_t)t->r.url);
    if (t->prev)
        t->prev->next = t->next;
    else
        f->first = t->next;
    if (t->next)
        t->next->prev = t->prev;
    f->n_active--;
    free(t);
}

void fetcher_close(struct fetcher *f)
{
    if (!f)
        return;
    while (f->first)
        transfer_free(f->first);
    if (f->multi)
        curl_multi_cleanup(f->multi);
    free(f->token);
    free(f->token_origin);
    free(f);
}

// ---- one hop ---------------------------------------------------------------------------------------------

static size_t on_header(char *line, size_t size, size_t n, void *ud)
{
    struct transfer *t = ud;
    t->header_bytes += size * n;
    if (t->header_bytes > MAX_HEADER_BYTES) {
        t->rc = err_set(&t->e, ERR_LIMIT, "the answer's header is larger than %d bytes", MAX_HEADER_BYTES);
        return 0;
    }
    http_head_line(&t->result.head, line, size * n, (int64_t)time(NULL));
    return size * n;
}

static bool has_content(const struct http_head *h) { return h->status == 200 || h->status == 206; }

static int tell_head(struct transfer *t)
{
    t->is_told = true;
    t->result.is_transient = t->result.head.is_encoded; // a proxy's whim
    if (t->result.head.is_encoded)
        return t->rc = err_set(&t->e, ERR_FORMAT, "the server compresses the file though it was asked not to");
    return t->rc = t->r.on_head ? t->r.on_head(t->r.ud, &t->result.head) : 0;
}

static size_t on_body(char *p, size_t size, size_t n, void *ud)
{
    struct transfer *t = ud;
    n *= size;
    t->f->bytes += n;
    if (!has_content(&t->result.head)) {
        t->discarded += n;
        return t->discarded > max_discarded ? 0 : n;
    }
    if (!t->is_told && tell_head(t))
        return 0;
    if ((t->rc = t->r.on_data(t->r.ud, p, n)))
        return 0;
    t->result.bytes += n;
    return n;
}

static int add_field(struct transfer *t, const char *fmt, const char *value)
{
    struct buf b;
    buf_init(&b, 16384);
    buf_fmt(&b, fmt, value);
    struct curl_slist *l = curl_slist_append(t->fields, buf_cstr(&b));
    buf_free(&b);
    if (!l)
        return -1;
    t->fields = l;
    return 0;
}

static const char *certificates(void)
{
    const char *s = getenv("SSL_CERT_FILE");
    return s && *s ? s : getenv("CURL_CA_BUNDLE");
}

/* Sets the handle up for the address in t->r.url and starts it. */
static int start_hop(struct transfer *t, struct err *e)
{
    struct fetcher *f = t->f;
    char *origin, range[64];
    int rc = url_origin(t->r.url, &origin, e);
    if (rc)
        return rc;
    bool with_token = f->token && !strcmp(origin, f->token_origin) && url_is_private(t->r.url);
    free(origin);
    http_head_init(&t->result.head);
    t->header_bytes = 0;
    t->discarded = 0;
    curl_slist_free_all(t->fields);
    t->fields = NULL;
    if (add_field(t, "Accept-Encoding: %s", "identity") || (with_token && add_field(t, "Authorization: Bearer %s", f->token)))
        return err_set(e, ERR_NOMEM, "no memory for a request");
    if (!t->easy && !(t->easy = curl_easy_init()))
        return err_set(e, ERR_NOMEM, "no memory for a request");
    CURL *c = t->easy;
    curl_easy_reset(c);
    snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)t->r.first, (unsigned long long)t->r.last);
    if (t->r.has_range)
        curl_easy_setopt(c, CURLOPT_RANGE, range);
    curl_easy_setopt(c, CURLOPT_URL, t->r.url);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, t->fields);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "foresay/" FORESAY_VERSION);
    curl_easy_setopt(c, CURLOPT_PRIVATE, t);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, t->curl_says);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(c, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)f->stall_s);
    curl_easy_setopt(c, CURLOPT_BUFFERSIZE, 256L * 1024);
    curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1); // one connection each, or parallel requests share one
    if (certificates())
        curl_easy_setopt(c, CURLOPT_CAINFO, certificates());
    if (curl_multi_add_handle(f->multi, c))
        return err_set(e, ERR_IO, "libcurl refuses a request");
    f->n_requests++;
    return 0;
}

int fetch_start(struct fetcher *f, const struct fetch_request *r, struct err *e)
{
    struct transfer *t = xcalloc(1, sizeof *t);
    t->f = f;
    t->r = *r;
    t->r.url = xstrdup(r->url);
    t->next = f->first;
    if (t->next)
        t->next->prev = t;
    f->first = t;
    f->n_active++;
    int rc = start_hop(t, e);
    if (rc)
        transfer_free(t);
    return rc;
}

void fetch_abort(struct fetcher *f, const void *ud)
{
    for (struct transfer *t = f->first, *next; t; t = next) {
        next = t->next;
        if (t->r.ud == ud)
            transfer_free(t);
    }
}

// ---- ends ------------------------------------------------------------------------------------------------

/* The sentence about an address: its host is enough. */
static int fail(struct transfer *t, int code, bool is_transient, const char *what)
{
    char *origin = NULL;
    t->result.is_transient = is_transient;
    if (url_origin(t->r.url, &origin, NULL))
        origin = xstrdup("?");
    t->rc = err_set(&t->e, code, "%s: %s", origin, what);
    free(origin);
    return t->rc;
}

static void curl_failed(struct transfer *t, CURLcode c)
{
    char what[400];
    if (t->rc) // a callback ended it: it knows why
        return;
    if (c == CURLE_PEER_FAILED_VERIFICATION || c == CURLE_SSL_CACERT_BADFILE) {
        snprintf(what, sizeof what, "its certificate isn't trusted (%.200s); behind a proxy that decrypts, set SSL_CERT_FILE to a file that "
                 "holds the proxy's certificate", *t->curl_says ? t->curl_says : curl_easy_strerror(c));
        fail(t, ERR_IO, false, what);
    } else if (c == CURLE_OPERATION_TIMEDOUT) {
        snprintf(what, sizeof what, "nothing came for %d s", t->f->stall_s);
        fail(t, ERR_IO, true, what);
    } else if (c == CURLE_WRITE_ERROR && t->discarded > max_discarded) {
        fail(t, ERR_LIMIT, false, "the answer to a failed request has no end");
    } else {
        // CURLE_UNSUPPORTED_PROTOCOL, too: what a connection's last answer had too many reads as HTTP/0.9
        fail(t, ERR_IO, c != CURLE_OUT_OF_MEMORY && c != CURLE_URL_MALFORMAT, *t->curl_says ? t->curl_says : curl_easy_strerror(c));
    }
}

static bool is_redirect(int status) { return status == 301 || status == 302 || status == 303 || status == 307 || status == 308; }

static void status_failed(struct transfer *t)
{
    int status = t->result.head.status;
    char what[100];
    bool is_transient = status == 408 || status == 425 || status == 429 || (status >= 500 && status != 501 && status != 505);
    snprintf(what, sizeof what, "the server answers with status %d%s", status, status == 429 ? " (too many requests)" : "");
    fail(t, ERR_IO, is_transient, what);
}

/* The next hop, if there is one. Returns 1 if it was started. */
static int follow(struct transfer *t)
{
    char *to;
    if (!is_redirect(t->result.head.status))
        return 0;
    if (t->hops++ >= MAX_HOPS) {
        fail(t, ERR_FORMAT, false, "the server sends us from one address to the next without end");
        return 0;
    }
    if (t->hops == 1)
        memcpy(t->result.linked_etag, t->result.head.linked_etag, sizeof t->result.linked_etag);
    if (!t->result.head.location[0]) {
        fail(t, ERR_FORMAT, false, "the server sends us elsewhere without saying where");
        return 0;
    }
    if ((t->rc = url_resolve(t->r.url, t->result.head.location, &to, &t->e)))
        return 0;
    free((char *)(uintptr_t)t->r.url);
    t->r.url = to;
    curl_multi_remove_handle(t->f->multi, t->easy);
    t->rc = start_hop(t, &t->e);
    return !t->rc;
}

static void finish(struct transfer *t, CURLcode c)
{
    if (c != CURLE_OK)
        curl_failed(t, c);
    else if (follow(t))
        return;
    else if (!t->rc && !has_content(&t->result.head))
        status_failed(t);
    else if (!t->rc && !t->is_told)
        tell_head(t);
    t->result.rc = t->rc;
    t->result.msg = t->e.msg;
    if (!t->hops)
        memcpy(t->result.linked_etag, t->result.head.linked_etag, sizeof t->result.linked_etag);
    t->r.on_done(t->r.ud, &t->result);
    transfer_free(t);
}

int fetch_poll(struct fetcher *f, int timeout_ms, struct err *e)
{
    int running, left;
    CURLMcode mc = curl_multi_perform(f->multi, &running);
    if (!mc && running && timeout_ms > 0)
        mc = curl_multi_poll(f->multi, NULL, 0, timeout_ms, NULL);
    if (!mc)
        mc = curl_multi_perform(f->multi, &running);
    if (mc)
        return err_set(e, ERR_IO, "the network can't be used: %s", curl_multi_strerror(mc));
    for (CURLMsg *m; (m = curl_multi_info_read(f->multi, &left));) {
        struct transfer *t = NULL;
        if (m->msg == CURLMSG_DONE && !curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &t) && t)
            finish(t, m->data.result);
    }
    return f->n_active;
}

bool fetch_is_cancelled(const struct fetcher *f) { return f->cancel && atomic_load(f->cancel); }
int fetch_max_attempts(const struct fetcher *f) { return f->max_attempts; }
uint64_t fetch_bytes(const struct fetcher *f) { return f->bytes; }
int fetch_requests(const struct fetcher *f) { return f->n_requests; }

int fetch_backoff_ms(int attempt, int64_t retry_after_s)
{
    if (retry_after_s > 600)
        return -1;
    int ms = attempt > 8 ? 30000 : 125 << (attempt < 1 ? 1 : attempt);
    if (ms > 30000)
        ms = 30000;
    return retry_after_s * 1000 > ms ? (int)retry_after_s * 1000 : ms;
}

bool fetch_pause(const struct fetcher *f, int ms)
{
    int64_t until = clock_ns() + (int64_t)ms * 1000000;
    while (clock_ns() < until && !fetch_is_cancelled(f))
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    return !fetch_is_cancelled(f);
}

// ---- whole small answers ---------------------------------------------------------------------------------

struct text_job {
    const struct fetch_text *what;
    struct buf *out;
    struct fetch_result *r;
    struct err e;
    int attempt;
    int64_t wake_ns;
    bool is_busy, is_done;
};

static int text_head(void *ud, const struct http_head *h)
{
    struct text_job *j = ud;
    const struct fetch_text *w = j->what;
    buf_clear(j->out);
    if (w->has_range && h->status == 200 && (w->first || h->length < 0 || (uint64_t)h->length > w->last + 1))
        return err_set(&j->e, ERR_UNSUPPORTED, "the server ignores ranges (unsupported): it would send the whole file");
    if (h->status == 206 && (h->first != (int64_t)w->first || h->last > (int64_t)w->last))
        return err_set(&j->e, ERR_FORMAT, "the server sends another range than was asked for");
    if (h->length > 0 && (uint64_t)h->length > w->max)
        return err_set(&j->e, ERR_LIMIT, "the answer has %lld bytes, at most %zu are allowed", (long long)h->length, w->max);
    return 0;
}

static int text_data(void *ud, const void *p, size_t n)
{
    struct text_job *j = ud;
    if (n > j->what->max - j->out->n)
        return err_set(&j->e, ERR_LIMIT, "the answer is larger than %zu bytes", j->what->max);
    buf_add(j->out, p, n);
    return j->out->is_full ? err_set(&j->e, ERR_NOMEM, "no memory for an answer of more than %zu bytes", j->out->n) : 0;
}

static void text_done(void *ud, const struct fetch_result *r)
{
    struct text_job *j = ud;
    *j->r = *r;
    j->r->msg = NULL;
    if (r->rc)
        err_set(&j->e, r->rc, "%s", r->msg);
    j->is_busy = false;
    j->is_done = !r->rc;
}

/* After a failed attempt: when to try again, or an error. */
static int text_again(struct fetcher *f, struct text_job *j)
{
    int ms = fetch_backoff_ms(++j->attempt, j->r->head.retry_after_s);
    if (!j->r->is_transient || j->attempt >= f->max_attempts || ms < 0)
        return j->e.code;
    if (j->what->on_wait)
        j->what->on_wait(j->e.msg, ms);
    j->wake_ns = clock_ns() + (int64_t)ms * 1000000;
    j->e = (struct err){0};
    return 0;
}

static int text_start(struct fetcher *f, struct text_job *j)
{
    const struct fetch_text *w = j->what;
    struct fetch_request q = {.url = w->url, .has_range = w->has_range, .first = w->first, .last = w->last, .ud = j, .on_head = text_head,
                              .on_data = text_data, .on_done = text_done};
    *j->r = (struct fetch_result){0};
    j->is_busy = true;
    return fetch_start(f, &q, &j->e);
}

/* Starts what may start, up to MAX_TEXTS at once. Returns how many aren't done, or an error, with *bad the job. */
static int texts_step(struct fetcher *f, struct text_job *job, int n, int *bad)
{
    int n_busy = 0, n_left = 0;
    for (int i = 0; i < n; i++)
        n_busy += job[i].is_busy;
    for (int i = 0; i < n; i++) {
        struct text_job *j = &job[i];
        *bad = i;
        n_left += !j->is_done;
        if (j->is_done || j->is_busy)
            continue;
        if (j->e.code && text_again(f, j))
            return j->e.code;
        if (j->wake_ns > clock_ns() || n_busy >= MAX_TEXTS)
            continue;
        n_busy++;
        if (text_start(f, j))
            return j->e.code;
    }
    return n_left;
}

int fetch_texts(struct fetcher *f, const struct fetch_text *what, struct buf *out, struct fetch_result *r, int n, int *bad, struct err *e)
{
    struct text_job *job = xcalloc((size_t)n, sizeof *job);
    int left, rc = 0;
    for (int i = 0; i < n; i++)
        job[i] = (struct text_job){.what = &what[i], .out = &out[i], .r = &r[i]};
    while (!rc && (left = texts_step(f, job, n, bad)) != 0) {
        bool all_wait = !f->n_active;
        rc = left < 0 ? err_set(e, left, "%s", job[*bad].e.msg) : fetch_poll(f, 50, e);
        rc = rc > 0 ? 0 : rc;
        if (!rc && (fetch_is_cancelled(f) || (all_wait && !fetch_pause(f, 10))))
            rc = err_set(e, ERR_CANCEL, "stopped");
    }
    for (int i = 0; i < n; i++)
        fetch_abort(f, &job[i]);
    free(job);
    return rc;
}

int fetch_text(struct fetcher *f, const struct fetch_text *what, struct buf *out, struct fetch_result *r, struct err *e)
{
    int bad;
    return fetch_texts(f, what, out, r, 1, &bad, e);
}
