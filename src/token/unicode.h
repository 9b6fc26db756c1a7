/* The reference tokenizers' view of Unicode, whatever the system's libraries know: classes as in Unicode 16,
 * normalization form C as in Unicode 9. All functions take valid UTF-8. */
#ifndef TOKEN_UNICODE_H
#define TOKEN_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* PCRE2 classes characters by its own Unicode version. Where that may differ from Unicode 16, a stand-in of
 * the same UTF-8 length and the right class is shown to it, so patterns and offsets stay as they are. */
bool unicode_needs_stand_ins(const char *s, size_t n);
void unicode_stand_ins(const char *s, size_t n, char *out); // n bytes

/* Numeric only since Unicode 17: the reference's `Digits` step knows these, its patterns don't. This is their
 * stand-in; the code point itself is a noncharacter that never reaches a pattern otherwise. */
#define UNICODE_NUMERIC17_PATTERN "\\x{1FFFF}"

/* Word character in the sense of \w: letters, marks, numbers that are digits or letters, connectors. */
bool unicode_is_word(int32_t cp);
bool unicode_is_space(int32_t cp);

/* First character at or after s that isn't ASCII, or end. */
const char *unicode_skip_ascii(const char *s, const char *end);

#endif
