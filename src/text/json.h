/* JSON (RFC 8259): an arena DOM that keeps number lexemes, key order and exact strings, and a writer.
 * Own code because no packaged library keeps lexemes, reads a 15 MB tokenizer.json in a fifth of a second
 * and is maintained on the oldest systems served. Input is untrusted: depth, size and nodes are limited. */
#ifndef TEXT_JSON_H
#define TEXT_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"

enum json_type { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
    enum json_type type;
    uint32_t n_key;      // bytes in key
    const char *key;     // in an object: this member's key, decoded, NUL-terminated; else NULL
    const char *s;       // string: decoded UTF-8, NUL-terminated; number: the lexeme as written
    size_t n;            // bytes of s, or number of children
    struct json *child;  // first child of an array or object
    struct json *next;   // next sibling
};

enum { JSON_MAX_DEPTH = 256 };

/* Parses one value that fills the text. Everything lives in the arena (set its max_bytes for untrusted
 * sources). name stands in messages, which give the byte offset. Invalid UTF-8 and lone surrogates become
 * U+FFFD; a duplicate key is an error that names it. */
MUST_CHECK int json_parse(struct json **out, struct arena *a, const char *s, size_t n, const char *name, struct err *e);

/* Lookups return NULL (or the default) when v is NULL, of another type, or lacks the key: chain freely. */
const struct json *json_get(const struct json *v, const char *key);
const struct json *json_at(const struct json *v, size_t i);
const char *json_str(const struct json *v, const char *dflt);
bool json_bool(const struct json *v, bool dflt);
bool json_is(const struct json *v, enum json_type t);
const char *json_type_name(const struct json *v); // "a string", "an array", ... for messages; "nothing" for NULL
double json_num(const struct json *v, double dflt);
/* Integer lexeme (or one with a zero fraction such as 5.0) that fits: returns true. */
bool json_int(const struct json *v, int64_t *out);

/* Writer: appends to b. Strings are UTF-8 (invalid bytes become U+FFFD), non-ASCII stays as it is except for the
 * line ends U+0085, U+2028 and U+2029, which are escaped. */
void json_write_str(struct buf *b, const char *s, size_t n);
void json_write_double(struct buf *b, double v); // shortest form that reads back the same; null if not finite
void json_write(struct buf *b, const struct json *v); // compact, number lexemes as they were

/* Shortest decimal that strtod reads back as v, in out (at least 32 bytes). */
void json_shortest(double v, char *out);

#endif
