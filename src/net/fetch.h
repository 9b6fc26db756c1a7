/* GET requests over http and https, several at once, on one thread: libcurl's multi interface with the rules
 * that downloads of models need. Redirects are followed here, one by one, so that a token goes to its own origin
 * only; limits and time-outs are the caller's; retrying is, too (fetch_text does it for small answers). Proxies and
 * certificates as the environment says (https_proxy, no_proxy, ..., SSL_CERT_FILE). */
#ifndef NET_FETCH_H
#define NET_FETCH_H

#include <stdatomic.h>

#include "base/buf.h"
#include "base/err.h"
#include "net/header.h"

struct fetch_options {
    const char *token;  // or NULL; sent only to token_origin, and never over plain http but on this machine
    const char *token_origin; // as url_origin writes it
    int stall_s;        // a connection that brings nothing for so long is given up; 0: 30
    int max_attempts;   // of one piece of work without any progress; 0: 8
    atomic_int *cancel; // or NULL: nonzero stops everything with ERR_CANCEL
};

/* How a request ended. */
struct fetch_result {
    int rc;             // 0: the body came as announced
    bool is_transient;  // trying again may help
    struct http_head head;        // of the last response
    char linked_etag[160];        // of the first response, before any redirect
    uint64_t bytes;               // of body given to on_data
    const char *msg;              // what went wrong, one sentence; lives as long as the call of on_done
};

struct fetch_request {
    const char *url;
    bool has_range;
    uint64_t first, last; // bytes of the range, both included
    void *ud;
    /* The answer's head, status 200 or 206. Nonzero (a negative code) ends the request with it. */
    int (*on_head)(void *ud, const struct http_head *h);
    int (*on_data)(void *ud, const void *p, size_t n); // nonzero ends the request, too
    /* Called once from fetch_poll, unless fetch_abort or fetcher_close comes before. */
    void (*on_done)(void *ud, const struct fetch_result *r);
};

struct fetcher;
MUST_CHECK int fetcher_open(struct fetcher **f, const struct fetch_options *o, struct err *e);
void fetcher_close(struct fetcher *f); // NULL is fine; ends what still runs

MUST_CHECK int fetch_start(struct fetcher *f, const struct fetch_request *r, struct err *e);
void fetch_abort(struct fetcher *f, const void *ud); // ends the requests with this ud, without a word to them
/* Moves bytes; waits at most timeout_ms for some. Returns how many requests run, or an error. */
MUST_CHECK int fetch_poll(struct fetcher *f, int timeout_ms, struct err *e);
bool fetch_pause(const struct fetcher *f, int ms); // sleeps; false: cancelled
bool fetch_is_cancelled(const struct fetcher *f);
int fetch_max_attempts(const struct fetcher *f);

/* Milliseconds before attempt number n (from 1) of the same work: 250, doubled each time up to 30 s, or what the
 * server asks for (at most 10 minutes: then it is no use waiting, and -1 comes back). */
int fetch_backoff_ms(int attempt, int64_t retry_after_s);

/* A whole small answer of at most max bytes, or exactly a range of a file (a server that ignores ranges is refused before its
 * body), with retries. */
struct fetch_text {
    const char *url;
    size_t max;
    bool has_range;
    uint64_t first, last;
    void (*on_wait)(const char *why, int ms); // may be NULL
};
/* *r says how it ended, but for msg, which is in *e. */
MUST_CHECK int fetch_text(struct fetcher *f, const struct fetch_text *what, struct buf *out, struct fetch_result *r, struct err *e);
/* n of them, some at the same time. *bad: the one that failed. */
MUST_CHECK int fetch_texts(struct fetcher *f, const struct fetch_text *what, struct buf *out, struct fetch_result *r, int n, int *bad, struct err *e);

uint64_t fetch_bytes(const struct fetcher *f); // of all bodies so far
int fetch_requests(const struct fetcher *f);   // sent so far, redirects counted

#endif
