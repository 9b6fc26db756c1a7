/* UTF-8 decoding with Unicode's "maximal subpart" practice: what can't be valid becomes one U+FFFD at once. */
#ifndef TEXT_UTF8_H
#define TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Decodes the sequence at s (n >= 1 bytes). Returns its length and sets *cp; for an invalid start returns
 * the length of the maximal subpart and sets *cp = -1; for a valid but cut sequence returns 0. */
int utf8_next(const char *s, size_t n, int32_t *cp);

/* Writes cp (a scalar value) to out (4 bytes), returns the length. */
int utf8_put(int32_t cp, char *out);

#endif
