/* Text operations that string methods and filters share. */
#ifndef CHAT_JINJA_STR_H
#define CHAT_JINJA_STR_H

#include "chat/jinja_eval.h"

enum js_case_how { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITALIZE, CASE_SWAP, CASE_FOLD };
struct val js_case(struct jx *x, const struct str *s, enum js_case_how how);
bool js_is_alpha(int32_t cp);
bool js_is_upper(int32_t cp);
bool js_is_lower(int32_t cp);
bool js_is_title(int32_t cp);
bool js_is_word(int32_t cp); // \w

/* Byte of the first (last) occurrence of needle in [from, to), -1 if there is none. */
int64_t js_find(struct jx *x, const struct str *s, const struct str *needle, size_t from, size_t to);
int64_t js_rfind(struct jx *x, const struct str *s, const struct str *needle, size_t from, size_t to);
struct val js_replace(struct jx *x, const struct str *s, const struct str *old, const struct str *new,
                      int64_t count);
struct val js_strip(struct jx *x, const struct str *s, const struct str *chars, bool left, bool right);
struct val js_lines(struct jx *x, const struct str *s, bool keep_ends); // splitlines
struct val js_split(struct jx *x, const struct str *s, const struct str *sep, int64_t max,
                    bool from_right);     // sep NULL: white space
extern const struct builtin js_methods[]; // ends with a NULL name

#endif
