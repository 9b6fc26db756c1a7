/* RFC 9110 (fields), RFC 8288 (Link), draft RateLimit fields ("name";r=0;t=SECONDS). */
#include "net/header.h"

#include <string.h>
#include <strings.h>

#include <curl/curl.h>

struct text {
    const char *s;
    size_t n;
};

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static struct text trim(const char *s, size_t n)
{
    while (n && is_blank(*s))
        s++, n--;
    while (n && is_blank(s[n - 1]))
        n--;
    return (struct text){s, n};
}

/* Digits at the start, at most 18 of them: -1 if there are none. *used: how many. */
static int64_t take_digits(struct text t, size_t *used)
{
    int64_t v = 0;
    size_t i = 0;
    for (; i < t.n && i < 18 && t.s[i] >= '0' && t.s[i] <= '9'; i++)
        v = v * 10 + (t.s[i] - '0');
    *used = i;
    return i ? v : -1;
}

static int64_t number(struct text t)
{
    size_t used;
    int64_t v = take_digits(t, &used);
    return used == t.n ? v : -1;
}

/* Copies only what fits whole and has no control characters. */
static void copy(char *out, size_t n, struct text t)
{
    out[0] = 0;
    for (size_t i = 0; i < t.n; i++)
        if ((unsigned char)t.s[i] < 0x20 || t.s[i] == 0x7f)
            return;
    if (t.n >= n)
        return;
    memcpy(out, t.s, t.n);
    out[t.n] = 0;
}

static void read_etag(char *out, size_t n, struct text t)
{
    if (t.n >= 2 && t.s[0] == 'W' && t.s[1] == '/')
        t = (struct text){t.s + 2, t.n - 2};
    if (t.n >= 2 && t.s[0] == '"' && t.s[t.n - 1] == '"')
        t = (struct text){t.s + 1, t.n - 2};
    copy(out, n, t);
}

/* bytes FIRST-LAST/TOTAL, each part may be missing as a star */
static void read_range(struct http_head *h, struct text t)
{
    size_t used;
    h->first = h->last = h->total = -1;
    if (t.n < 6 || strncasecmp(t.s, "bytes ", 6))
        return;
    t = (struct text){t.s + 6, t.n - 6};
    int64_t first = -1, last = -1;
    if (t.n && *t.s == '*') {
        used = 1;
    } else {
        first = take_digits(t, &used);
        if (first < 0 || used >= t.n || t.s[used] != '-')
            return;
        t = (struct text){t.s + used + 1, t.n - used - 1};
        last = take_digits(t, &used);
        if (last < first)
            return;
    }
    if (used >= t.n || t.s[used] != '/')
        return;
    t = (struct text){t.s + used + 1, t.n - used - 1};
    int64_t total = number(t);
    if (total < 0 && !(t.n == 1 && *t.s == '*'))
        return;
    if (total >= 0 && last >= total)
        return;
    h->first = first, h->last = last, h->total = total;
}

static void read_retry_after(struct http_head *h, struct text t, int64_t now)
{
    char date[64];
    int64_t v = number(t);
    if (v < 0) {
        copy(date, sizeof date, t);
        int64_t when = *date ? (int64_t)curl_getdate(date, NULL) : -1;
        v = when < 0 ? -1 : when > now ? when - now : 0;
    }
    h->retry_after_s = v;
}

static void read_rate_limit(struct http_head *h, struct text t)
{
    for (size_t i = 0; i + 3 < t.n && h->retry_after_s < 0; i++)
        if (t.s[i] == ';' && t.s[i + 1] == 't' && t.s[i + 2] == '=') {
            size_t used;
            h->retry_after_s = take_digits((struct text){t.s + i + 3, t.n - i - 3}, &used);
        }
}

/* Link: <URL>; rel="next", <URL>; rel="..." */
static void read_link(struct http_head *h, struct text t)
{
    for (size_t i = 0; i < t.n;) {
        const char *open = memchr(t.s + i, '<', t.n - i);
        const char *close = open ? memchr(open, '>', t.n - (size_t)(open - t.s)) : NULL;
        if (!close)
            return;
        size_t from = (size_t)(close - t.s) + 1, end = from;
        while (end < t.n && t.s[end] != ',')
            end++;
        for (size_t k = from; k + 8 <= end; k++)
            if (!strncasecmp(t.s + k, "rel=next", 8) || (k + 10 <= end && !strncasecmp(t.s + k, "rel=\"next\"", 10)))
                copy(h->next, sizeof h->next, (struct text){open + 1, (size_t)(close - open) - 1});
        i = end + 1;
    }
}

void http_head_init(struct http_head *h)
{
    *h = (struct http_head){.length = -1, .first = -1, .last = -1, .total = -1, .retry_after_s = -1, .linked_size = -1};
}

static bool is_name(struct text name, const char *want) { return name.n == strlen(want) && !strncasecmp(name.s, want, name.n); }

void http_head_line(struct http_head *h, const char *line, size_t n, int64_t now)
{
    if (n >= 5 && !memcmp(line, "HTTP/", 5)) {
        const char *space = memchr(line, ' ', n);
        size_t used = 0;
        http_head_init(h);
        int64_t status = space ? take_digits(trim(space, n - (size_t)(space - line)), &used) : -1;
        h->status = used == 3 && status >= 100 ? (int)status : 0;
        return;
    }
    const char *colon = memchr(line, ':', n);
    if (!colon)
        return;
    struct text name = {line, (size_t)(colon - line)}, value = trim(colon + 1, n - name.n - 1);
    if (is_name(name, "content-length"))
        h->length = number(value);
    else if (is_name(name, "content-range"))
        read_range(h, value);
    else if (is_name(name, "content-encoding"))
        h->is_encoded = !is_name(value, "identity") && value.n;
    else if (is_name(name, "etag"))
        read_etag(h->etag, sizeof h->etag, value);
    else if (is_name(name, "x-linked-etag"))
        read_etag(h->linked_etag, sizeof h->linked_etag, value);
    else if (is_name(name, "x-linked-size"))
        h->linked_size = number(value);
    else if (is_name(name, "x-error-code"))
        copy(h->error_code, sizeof h->error_code, value);
    else if (is_name(name, "x-error-message"))
        copy(h->error_message, sizeof h->error_message, value);
    else if (is_name(name, "location"))
        copy(h->location, sizeof h->location, value);
    else if (is_name(name, "link"))
        read_link(h, value);
    else if (is_name(name, "retry-after"))
        read_retry_after(h, value, now);
    else if (is_name(name, "ratelimit"))
        read_rate_limit(h, value);
}
