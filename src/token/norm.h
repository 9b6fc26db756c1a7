/* Changes a text goes through before it is cut into pieces: a list of steps, each over the whole section between two
 * added tokens. Steps carry the trust of the bytes they change. */
#ifndef TOKEN_NORM_H
#define TOKEN_NORM_H

#include "token/text.h"

enum { NORM_MAX_STEPS = 16, NORM_MAX_TEXT = 64 }; // a step's texts: bytes

enum norm_kind {
    NORM_NFC,
    NORM_REPLACE,     // every `from` becomes `to`
    NORM_PREPEND,     // `to` in front of a text that isn't empty
    NORM_PREPEND_NEW, // the same, but not in front of a text that starts with it
    NORM_PREPEND_FIRST, // NEW, and only where the section starts the whole text
};

struct norm_step {
    enum norm_kind kind;
    char from[NORM_MAX_TEXT], to[NORM_MAX_TEXT];
    size_t n_from, n_to;
};

struct norm {
    struct norm_step step[NORM_MAX_STEPS];
    int n;
};

/* from may be NULL where the kind has none. */
MUST_CHECK int norm_add(struct norm *m, enum norm_kind kind, const char *from, size_t n_from, const char *to,
                        size_t n_to, struct err *e);
bool norm_has(const struct norm *m, enum norm_kind kind);

/* The result is v itself or lies in one of t. is_first: v starts the whole text. 0 or ERR_NOMEM. v is valid UTF-8. */
MUST_CHECK int norm_run(const struct norm *m, struct text t[2], const struct view *v, bool is_first, struct view *out);

#endif
