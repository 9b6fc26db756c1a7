/* What an HTTP response says about itself before its body: the fields that downloads need, read line by line.
 * Lines come from strangers: what doesn't fit or makes no sense is left unset, never guessed. Pure functions. */
#ifndef NET_HEADER_H
#define NET_HEADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_head {
    int status;              // 0: none seen yet
    int64_t length;          // Content-Length, -1: not given
    int64_t first, last;     // Content-Range: bytes first-last/total; -1: not given
    int64_t total;           // size of the whole, -1: not given
    int64_t retry_after_s;   // Retry-After, or the reset time of a RateLimit field; -1: not given
    bool is_encoded;         // Content-Encoding other than identity: the bytes are not the file's
    char etag[160];          // without W/ and quotes; "" where a string wasn't given
    char linked_etag[160];   // X-Linked-Etag: tag of the file behind a hub's redirect
    int64_t linked_size;     // X-Linked-Size, -1
    char error_code[64];     // X-Error-Code
    char error_message[256]; // X-Error-Message
    char location[4096];
    char next[2048];         // Link: <...>; rel="next"
};

void http_head_init(struct http_head *h);
/* One header line with or without its line end. A status line starts anew: only the last response of several
 * (100 Continue, a proxy's answer) counts. now: seconds since 1970, for dates in Retry-After. */
void http_head_line(struct http_head *h, const char *line, size_t n, int64_t now);

#endif
