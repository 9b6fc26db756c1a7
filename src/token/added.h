/* Added tokens: literal strings cut out of a text before anything else looks at it. Longest match at the
 * leftmost position, in a trie. */
#ifndef TOKEN_ADDED_H
#define TOKEN_ADDED_H

#include "token/text.h"
#include "token/tokenizer.h"

enum { ADDED_MAX_NODES = 8 * 1024 * 1024 };

struct added_token {
    int32_t id;
    bool is_special, single_word, lstrip, rstrip, normalized;
};

struct trie_node {
    int32_t child, next; // first child, next sibling; -1: none
    int32_t token;       // index of the token that ends here, -1
    uint8_t byte;
};

/* One set for the tokens sought in the raw text, one for those sought in normalized text. */
struct added_set {
    struct trie_node *node;
    size_t n, cap;
    int32_t first[256]; // child of the root by byte
    struct added_token *tok;
    size_t n_tok, cap_tok;
};

void added_init(struct added_set *a);
void added_deinit(struct added_set *a);
MUST_CHECK int added_add(struct added_set *a, const char *s, size_t n, const struct added_token *t,
                         struct err *e);

/* Cursor over the matches in a view. Text inside untrusted regions never matches. */
struct added_scan {
    const struct added_set *set;
    const struct view *v;
    enum added mode;
    size_t at;   // next position to look at
    size_t done; // end of the last match, white space that it strips included
};

struct added_match {
    size_t from, to; // with the white space that the token strips
    int32_t id;
};

bool added_next(struct added_scan *scan, struct added_match *m);

#endif
