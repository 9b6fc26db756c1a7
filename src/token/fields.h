/* Typed reading of a tokenizer file's JSON. null counts as absent; a member of another type is an error that names it,
 * what was expected and what was found. where: the object's own name, "" for the file's root. */
#ifndef TOKEN_FIELDS_H
#define TOKEN_FIELDS_H

#include "text/json.h"

/* *out: the member, NULL if absent. */
MUST_CHECK int field_of(const struct json *o, const char *where, const char *key, enum json_type type,
                        const struct json **out, struct err *e);
MUST_CHECK int field_bool(const struct json *o, const char *where, const char *key, bool dflt, bool *out, struct err *e);

#endif
