/* A text under way through the tokenizer, and which of its bytes are trusted. Steps that change the text
 * (repair of invalid UTF-8, normalization) carry the trust along. */
#ifndef TOKEN_TEXT_H
#define TOKEN_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct region {
    size_t end; // first byte after the region; regions are adjacent, the first starts at 0
    bool is_tpl;
};

/* Borrowed bytes. Offsets of the regions count from s - base, so that a part of a text keeps its regions. */
struct view {
    const char *s;
    size_t n, base;
    const struct region *r;
    size_t n_r;
};

/* Owned bytes that grow. is_full: memory ran out and later appends were dropped. */
struct text {
    char *s;
    size_t n, cap;
    struct region *r;
    size_t n_r, cap_r;
    bool is_full;
};

struct view view_part(const struct view *v, size_t from, size_t to);
struct view text_view(const struct text *t);
/* Length from `at` on that has one trust; *is_tpl says which. at < v->n. */
size_t view_run(const struct view *v, size_t at, bool *is_tpl);
bool view_is_tpl(const struct view *v, size_t from, size_t to); // wholly trusted

void text_add(struct text *t, const char *s, size_t n, bool is_tpl);
void text_copy(struct text *t, const struct view *v, size_t from, size_t to); // with its trust
void text_clear(struct text *t);
void text_free(struct text *t);

/* Replaces each maximal subpart that isn't valid UTF-8 by U+FFFD. Returns 0 if v was valid (t untouched), 1
 * if the repaired text is in t. */
int text_repair(struct text *t, const struct view *v);

#endif
