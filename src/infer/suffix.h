/* Longest-suffix match over one sequence (prompt and output), for the copy drafter: where did the last
 * tokens occur before, and what followed? Depends on the tokens alone. Owned by the thread that decodes
 * the sequence.
 *
 * Two hash tables map every 6-gram and every 3-gram to its last occurrence; occurrences of a gram are
 * chained backwards. A query walks the chain of the last gram (the longer gram first), extends each
 * occurrence backwards and keeps the longest; among equals the most recent. */
#ifndef INFER_SUFFIX_H
#define INFER_SUFFIX_H

#include <stdint.h>

#include "base/err.h"

enum {
    SUFFIX_WALK = 32,      // occurrences looked at in a query
    SUFFIX_MATCH_MAX = 64, // a match is not followed further back
    SUFFIX_GRAM_MIN = 3,   // shortest match
};

struct suffix;
/* Room for max_tokens; no allocation afterwards. NULL if memory is refused. */
struct suffix *suffix_new(int max_tokens);
void suffix_free(struct suffix *s);
/* ERR_LIMIT once max_tokens are in. */
MUST_CHECK int suffix_append(struct suffix *s, int32_t tok);
/* Forgets all but the first len tokens: exactly the state before the others were appended. */
void suffix_cut(struct suffix *s, int len);
int suffix_len(const struct suffix *s);

struct suffix_match {
    int len; // tokens that match, 0: none of SUFFIX_GRAM_MIN or more
    int pos; // index of the token that followed the earlier occurrence
};
struct suffix_match suffix_query(const struct suffix *s);

/* When and how much to copy. */
struct suffix_rule {
    int min_match; // shortest match that is trusted
    int factor;    // tokens to copy per matched token
    int max_draft;
};
static inline struct suffix_rule suffix_rule_default(void) { return (struct suffix_rule){8, 2, 24}; }

/* Writes min(max_draft, factor * match) tokens that followed the match, or fewer if max is smaller; a
 * continuation that reaches the end of the text goes on with its own tokens (a repeating text). Returns
 * how many, 0: no match that the rule trusts. */
int suffix_propose(const struct suffix *s, const struct suffix_rule *r, int32_t *out, int max);

#endif
