/* UTF-8 decoding with Unicode's "maximal subpart" practice: what can't be valid becomes one U+FFFD at once. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes the sequence at s (n >= 1 bytes). Returns its length and sets *cp; for an invalid start returns
 * the length of the maximal subpart and sets *cp = -1; for a valid but cut sequence returns 0. */
int utf8_next(const char *s, size_t n, int32_t *cp);

/* Writes cp (a scalar value) to out (4 bytes), returns the length. */
int utf8_put(int32_t cp, char *out);

/* Makes text from strangers (file names, configurations, templates) fit for terminals and logs, in place: control
 * characters, invalid bytes and what reorders or breaks lines unseen (bidirectional controls, U+2028, U+2029) become
 * '?'; newline and tab a space unless keep_lines; a character cut off at the end goes. s[n] must be writable: it
 * becomes NUL. Returns the new length, at most n. */
size_t utf8_clean(char *s, size_t n, bool keep_lines);

#endif
