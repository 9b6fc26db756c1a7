/* A growing byte buffer with a mandatory cap. Once an append would pass the cap (or memory ends) the buffer
 * stays as it was and is_full is set: check it once after a series of appends. Always NUL-terminated. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *p; // NULL until the first append
    size_t n, cap, max;
    bool is_full;
};

void buf_init(struct buf *b, size_t max);
void buf_free(struct buf *b);
void buf_clear(struct buf *b); // keeps the memory
void buf_reserve(struct buf *b, size_t n); // appends up to a length of n won't allocate; no effect beyond max
void buf_add(struct buf *b, const void *s, size_t n);
void buf_str(struct buf *b, const char *s);
void buf_chr(struct buf *b, char c);
void buf_fmt(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
char *buf_take(struct buf *b); // moves the string out ("" if empty); the caller frees it
const char *buf_cstr(const struct buf *b);

#endif
