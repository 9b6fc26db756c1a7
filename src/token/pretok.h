/* Pre-tokenization: a text is cut into pieces by a sequence of patterns; merging never crosses a piece.
 * Patterns come from model files and mean what the reference's regex engine (Oniguruma, Ruby syntax) makes of
 * them; what PCRE2 would read differently is refused. */
#ifndef TOKEN_PRETOK_H
#define TOKEN_PRETOK_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum { PRETOK_MAX_STEPS = 16, PRETOK_MAX_PATTERN = 16 * 1024 };

/* What becomes of a match and of the text between matches. */
enum split {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
};

struct pretok_step {
    pcre2_code *re;
    enum split split;
    bool invert; // matches and gaps change roles
};

struct pretok {
    struct pretok_step step[PRETOK_MAX_STEPS];
    int n;
};

/* Patterns that several sources name. */
extern const char PATTERN_GPT2[], PATTERN_QWEN2[], PATTERN_QWEN35[], PATTERN_LLAMA3[];
extern const char PATTERN_DIGIT[], PATTERN_DIGITS[]; // one numeric character, a run of them
const char *pattern_name(const char *pattern, size_t n); // "Qwen2", ...; NULL for any other

MUST_CHECK int pretok_add(struct pretok *p, const char *pattern, size_t n, enum split split, bool invert,
                          struct err *e);
MUST_CHECK int pretok_add_literal(struct pretok *p, const char *s, size_t n, enum split split, bool invert,
                                  struct err *e);
void pretok_deinit(struct pretok *p);

/* Per call of the tokenizer. piece gets offsets into the text of pretok_run; nonzero ends the run. */
struct pretok_work {
    pcre2_match_data *match;
    pcre2_match_context *limits;
    char *shown; // the text with stand-ins
    size_t cap_shown;
};
typedef int (*piece_fn)(void *ud, size_t from, size_t to);
MUST_CHECK int pretok_run(const struct pretok *p, struct pretok_work *w, const char *s, size_t n,
                          piece_fn piece, void *ud, struct err *e);
void pretok_work_free(struct pretok_work *w);

#endif
