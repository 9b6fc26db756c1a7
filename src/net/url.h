/* Addresses: only http and https exist here. Parsing and joining are libcurl's. */
#ifndef NET_URL_H
#define NET_URL_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"

/* "https://host:port", lower case, the default port left out: what must be equal for a token to be sent.
 * Caller frees. A URL with a user or password in it is refused, so that none ends in a message. */
MUST_CHECK int url_origin(const char *url, char **origin, struct err *e);
/* Where a redirect from base leads; refused: other schemes, and from https to http. Caller frees *out. */
MUST_CHECK int url_resolve(const char *base, const char *location, char **out, struct err *e);
/* https, or http on this very machine: a secret may travel there. */
bool url_is_private(const char *url);
/* Appends one path with everything escaped that isn't unreserved; keep_slashes: between parts of a path. */
void url_add_path(struct buf *b, const char *path, bool keep_slashes);
/* Without query and fragment, which may hold signatures: what messages may show. */
void url_shown(const char *url, char *out, int n);

#endif
