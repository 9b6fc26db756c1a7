#include "net/url.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <curl/curl.h>

#include "base/mem.h"

/* A part of the address, or "" where it has none. Caller frees. */
static char *part_of(CURLU *u, CURLUPart what, unsigned flags)
{
    char *s = NULL, *own;
    own = xstrdup(curl_url_get(u, what, &s, flags) == CURLUE_OK && s ? s : "");
    curl_free(s);
    return own;
}

/* NULL if it is no address of ours; the caller cleans up. */
static CURLU *parse(const char *url)
{
    CURLU *u = curl_url();
    char *scheme = NULL, *user = NULL;
    bool ok = u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK && curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
              (!strcasecmp(scheme, "http") || !strcasecmp(scheme, "https")) && curl_url_get(u, CURLUPART_USER, &user, 0) != CURLUE_OK;
    curl_free(scheme);
    curl_free(user);
    if (ok)
        return u;
    curl_url_cleanup(u);
    return NULL;
}

static int bad_url(const char *url, struct err *e)
{
    char shown[200];
    url_shown(url, shown, sizeof shown);
    const char *at = strchr(shown, '@');
    return err_set(e, ERR_ARG, "\"%s\" is no usable address: expected http:// or https:// and a host, without a user or password",
                   at ? at + 1 : shown);
}

int url_origin(const char *url, char **origin, struct err *e)
{
    CURLU *u = parse(url);
    *origin = NULL;
    if (!u)
        return bad_url(url, e);
    char *scheme = part_of(u, CURLUPART_SCHEME, 0), *host = part_of(u, CURLUPART_HOST, 0), *port = part_of(u, CURLUPART_PORT, CURLU_NO_DEFAULT_PORT);
    struct buf b;
    buf_init(&b, 4096);
    buf_fmt(&b, "%s://%s%s%s", scheme, host, *port ? ":" : "", port);
    *origin = buf_take(&b);
    for (char *s = *origin; *s; s++)
        *s = (char)(*s >= 'A' && *s <= 'Z' ? *s + 32 : *s);
    free(scheme);
    free(host);
    free(port);
    curl_url_cleanup(u);
    return 0;
}

static bool is_https(const char *url) { return !strncasecmp(url, "https:", 6); }

int url_resolve(const char *base, const char *location, char **out, struct err *e)
{
    CURLU *u = parse(base);
    char *joined = NULL, *checked = NULL;
    int rc = 0;
    *out = NULL;
    if (!u)
        return bad_url(base, e);
    if (curl_url_set(u, CURLUPART_URL, location, 0) == CURLUE_OK)
        joined = part_of(u, CURLUPART_URL, 0);
    curl_url_cleanup(u);
    if (!joined || url_origin(joined, &checked, NULL))
        rc = err_set(e, ERR_FORMAT, "the server sends us to an unusable address: \"%.100s\"", location);
    else if (is_https(base) && !is_https(joined))
        rc = err_set(e, ERR_FORMAT, "the server sends us from https to an address without encryption (%s): refused", checked);
    else
        *out = xstrdup(joined);
    free(checked);
    free(joined);
    return rc;
}

bool url_is_private(const char *url)
{
    CURLU *u = parse(url);
    if (!u)
        return false;
    char *host = part_of(u, CURLUPART_HOST, 0);
    bool is_loopback = !strncmp(host, "127.", 4) && !host[strspn(host, "0123456789.")];
    bool ok = is_https(url) || is_loopback || !strcmp(host, "[::1]") || !strcasecmp(host, "localhost");
    free(host);
    curl_url_cleanup(u);
    return ok;
}

void url_add_path(struct buf *b, const char *path, bool keep_slashes)
{
    for (const char *s = path; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || strchr("-._~", c) || (c == '/' && keep_slashes))
            buf_chr(b, (char)c);
        else
            buf_fmt(b, "%%%02X", c);
    }
}

void url_shown(const char *url, char *out, int n) { snprintf(out, (size_t)n, "%.*s", (int)strcspn(url, "?#"), url); }
