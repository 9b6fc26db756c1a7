#include "token/added.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "token/unicode.h"

void added_init(struct added_set *a)
{
    *a = (struct added_set){0};
    memset(a->first, -1, sizeof a->first);
}

void added_deinit(struct added_set *a)
{
    free(a->node);
    free(a->tok);
    added_init(a);
}

/* Child of *link's list for this byte; made if absent. -1: no memory or too many. The list is named by node
 * and byte because growing moves the nodes. */
static int32_t child_for(struct added_set *a, int32_t parent, uint8_t byte)
{
    int32_t head = parent < 0 ? a->first[byte] : a->node[parent].child, i = head;
    while (i >= 0 && a->node[i].byte != byte)
        i = a->node[i].next;
    if (i >= 0)
        return i;
    if (a->n >= ADDED_MAX_NODES)
        return -1;
    if (a->n == a->cap) {
        size_t cap = a->cap ? 2 * a->cap : 256;
        struct trie_node *node = realloc(a->node, cap * sizeof *node);
        if (!node)
            return -1;
        a->node = node;
        a->cap = cap;
    }
    i = (int32_t)a->n++;
    a->node[i] = (struct trie_node){.child = -1, .next = head, .token = -1, .byte = byte};
    if (parent < 0)
        a->first[byte] = i;
    else
        a->node[parent].child = i;
    return i;
}

int added_add(struct added_set *a, const char *s, size_t n, const struct added_token *t, struct err *e)
{
    int32_t at = -1;
    if (a->n_tok == a->cap_tok) {
        size_t cap = a->cap_tok ? 2 * a->cap_tok : 64;
        struct added_token *tok = realloc(a->tok, cap * sizeof *tok);
        if (!tok)
            return err_set(e, ERR_NOMEM, "no memory for %zu added tokens", cap);
        a->tok = tok;
        a->cap_tok = cap;
    }
    for (size_t i = 0; i < n; i++)
        if ((at = child_for(a, at, (uint8_t)s[i])) < 0)
            return err_set(e, ERR_LIMIT, "the added tokens need more than %d trie nodes", ADDED_MAX_NODES);
    if (at < 0)
        return 0;
    if (a->node[at].token >= 0)
        return 0; // normalization made two contents equal: the first counts
    a->tok[a->n_tok] = *t;
    a->node[at].token = (int32_t)a->n_tok++;
    return 0;
}

/* Longest token at s, at most n bytes. Returns its index, -1 if none. */
static int32_t longest(const struct added_set *a, const char *s, size_t n, size_t *len)
{
    int32_t best = -1, i = a->first[(uint8_t)s[0]];
    for (size_t k = 1; i >= 0; k++) {
        if (a->node[i].token >= 0) {
            best = a->node[i].token;
            *len = k;
        }
        if (k == n)
            break;
        int32_t c = a->node[i].child;
        while (c >= 0 && a->node[c].byte != (uint8_t)s[k])
            c = a->node[c].next;
        i = c;
    }
    return best;
}

/* Start of the character that ends before `at` (at > 0), and the character. */
static size_t char_before(const struct view *v, size_t at, int32_t *cp)
{
    size_t i = at - 1;
    while (i && ((uint8_t)v->s[i] & 0xC0) == 0x80)
        i--;
    utf8_next(v->s + i, at - i, cp);
    return i;
}

static bool is_single_word(const struct view *v, size_t from, size_t to)
{
    int32_t cp;
    if (from && (char_before(v, from, &cp), unicode_is_word(cp)))
        return false;
    return to == v->n || (utf8_next(v->s + to, v->n - to, &cp), !unicode_is_word(cp));
}

static size_t strip_left(const struct view *v, size_t from, size_t least)
{
    while (from > least) {
        int32_t cp;
        size_t i = char_before(v, from, &cp);
        if (!unicode_is_space(cp))
            break;
        from = i;
    }
    return from;
}

static size_t strip_right(const struct view *v, size_t to)
{
    while (to < v->n) {
        int32_t cp;
        int len = utf8_next(v->s + to, v->n - to, &cp);
        if (!unicode_is_space(cp))
            break;
        to += (size_t)len;
    }
    return to;
}

bool added_next(struct added_scan *scan, struct added_match *m)
{
    const struct view *v = scan->v;
    if (scan->mode == ADDED_NONE || !scan->set->n_tok)
        return false;
    while (scan->at < v->n) {
        bool is_tpl;
        size_t end = scan->at + view_run(v, scan->at, &is_tpl), len = 0;
        if (!is_tpl) {
            scan->at = end;
            continue;
        }
        while (scan->at < end) {
            int32_t k = longest(scan->set, v->s + scan->at, end - scan->at, &len);
            size_t from = scan->at, to = from + len;
            // what isn't wanted is passed over whole, as the reference does
            scan->at = k < 0 ? from + 1 : to;
            if (k < 0 || to <= scan->done) // nothing, or white space that the last match took along
                continue;
            const struct added_token *t = &scan->set->tok[k];
            if ((scan->mode == ADDED_TEXT && t->is_special) ||
                (t->single_word && !is_single_word(v, from, to)))
                continue;
            m->from = t->lstrip ? strip_left(v, from, scan->done) : from;
            if (m->from < scan->done)
                m->from = scan->done;
            m->to = t->rstrip ? strip_right(v, to) : to;
            m->id = t->id;
            scan->done = m->to;
            return true;
        }
    }
    return false;
}
