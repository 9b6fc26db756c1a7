#include "token/pretok.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "token/unicode.h"

#define TAIL "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
const char PATTERN_GPT2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char PATTERN_QWEN2[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?"
                             "[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL;
const char PATTERN_QWEN35[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?"
                              "[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" TAIL;
const char PATTERN_LLAMA3[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?"
                              "[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL;
/* The reference's `Digits` step asks its language's library, which is a Unicode version ahead. */
const char PATTERN_DIGIT[] = "[\\p{N}" UNICODE_NUMERIC17_PATTERN "]";
const char PATTERN_DIGITS[] = "[\\p{N}" UNICODE_NUMERIC17_PATTERN "]+";

const char *pattern_name(const char *pattern, size_t n)
{
    static const struct {
        const char *pattern, *name;
    } known[] = {{PATTERN_QWEN2, "Qwen2"}, {PATTERN_QWEN35, "Qwen3.5"}, {PATTERN_LLAMA3, "Llama 3"},
                 {PATTERN_GPT2, "GPT-2"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].pattern) == n && !memcmp(known[i].pattern, pattern, n))
            return known[i].name;
    return NULL;
}

static int refuse(struct err *e, const char *what)
{
    return err_set(e, ERR_UNSUPPORTED, "unsupported pre-tokenizer pattern: %s", what);
}

static bool is_plain_group(const char *s, size_t n)
{
    static const char *const known[] = {":", "i:", "=", "!", "<=", "<!", ">"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (n >= strlen(known[i]) && !memcmp(s, known[i], strlen(known[i])))
            return true;
    return false;
}

/* Both engines read the common ground alike: literals, classes of the escapes below, groups, alternatives,
 * quantifiers, lookaround. Everything they read differently without PCRE2 complaining is found here. */
static int check_syntax(const char *s, size_t n, struct err *e)
{
    static const char escapes[] = "pPsSdDrntfx";
    bool in_class = false;
    size_t class_at = 0;
    for (size_t i = 0; i < n; i++) {
        char c = s[i], next = i + 1 < n ? s[i + 1] : 0;
        if (c == '\\') {
            bool is_letter = (next >= 'a' && next <= 'z') || (next >= 'A' && next <= 'Z') ||
                             (next >= '0' && next <= '9');
            if (next && is_letter && !strchr(escapes, next))
                return refuse(e, "an escape other than \\p \\P \\s \\S \\d \\D \\r \\n \\t \\f \\x");
            i++;
            if (strchr("pPx", next) && i + 1 < n && s[i + 1] == '{') // its braces aren't a quantifier's
                while (i + 1 < n && s[i] != '}')
                    i++;
        } else if (in_class) {
            if (c == ']' && i > class_at)
                in_class = false;
            else if (c == '[' || (c == '&' && next == '&'))
                return refuse(e, "a class inside a class");
        } else if (c == '[') {
            in_class = true;
            class_at = i + 1 + (next == '^'); // a first ']' is literal in PCRE2, an empty class in Oniguruma
            i = class_at - 1;
            if (class_at < n && s[class_at] == ']')
                return refuse(e, "a class that starts with ']'");
        } else if (c == '{' && next == ',') {
            return refuse(e, "a quantifier without a lower bound");
        } else if (c == '}' && next == '+') {
            return refuse(e, "'+' after a counted quantifier");
        } else if (c == '(' && next == '*') {
            return refuse(e, "a verb");
        } else if (c == '(' && next == '?' && !is_plain_group(s + i + 2, n - i - 2)) {
            return refuse(e, "a group other than (?: (?i: (?= (?! (?<= (?<! (?>");
        }
    }
    return 0;
}

static int compile(struct pretok *p, const char *pattern, size_t n, uint32_t options, enum split split,
                   bool invert, struct err *e)
{
    int code;
    PCRE2_SIZE at;
    if (p->n == PRETOK_MAX_STEPS)
        return err_set(e, ERR_LIMIT, "more than %d pre-tokenizer steps", PRETOK_MAX_STEPS);
    if (n > PRETOK_MAX_PATTERN)
        return err_set(e, ERR_LIMIT, "pre-tokenizer pattern of %zu bytes, the limit is %d", n,
                       PRETOK_MAX_PATTERN);
    pcre2_compile_context *c = pcre2_compile_context_create(NULL);
    if (!c)
        return err_set(e, ERR_NOMEM, "no memory for a pattern");
    pcre2_set_newline(c, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(c, 50);
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, n, options | PCRE2_UTF, &code, &at, c);
    pcre2_compile_context_free(c);
    if (!re) {
        PCRE2_UCHAR why[128] = "";
        pcre2_get_error_message(code, why, sizeof why);
        return err_set(e, ERR_FORMAT, "pre-tokenizer pattern: %s at byte %zu", (const char *)why, at);
    }
    pcre2_jit_compile(re, PCRE2_JIT_COMPLETE); // where there is no JIT the interpreter does it
    p->step[p->n++] = (struct pretok_step){re, split, invert};
    return 0;
}

int pretok_add(struct pretok *p, const char *pattern, size_t n, enum split split, bool invert, struct err *e)
{
    uint32_t options = PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    int rc = check_syntax(pattern, n, e);
    return rc ? rc : compile(p, pattern, n, options, split, invert, e);
}

int pretok_add_literal(struct pretok *p, const char *s, size_t n, enum split split, bool invert,
                       struct err *e)
{
    return compile(p, s, n, PCRE2_LITERAL, split, invert, e);
}

void pretok_deinit(struct pretok *p)
{
    for (int i = 0; i < p->n; i++)
        pcre2_code_free(p->step[i].re);
    *p = (struct pretok){0};
}

void pretok_work_free(struct pretok_work *w)
{
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->limits);
    free(w->shown);
    *w = (struct pretok_work){0};
}

struct run {
    const struct pretok *p;
    struct pretok_work *w;
    const char *s; // as shown to PCRE2
    piece_fn piece;
    void *ud;
    struct err *e;
};

static int do_step(struct run *r, int k, size_t from, size_t to);

/* A finished piece of step k goes on to the next step. */
static int emit(struct run *r, int k, size_t from, size_t to)
{
    return from == to ? 0 : do_step(r, k + 1, from, to);
}

/* What a step holds back until it knows what follows. */
struct held {
    size_t from, to;
    bool is_match, is_set;
};

static int take(struct run *r, int k, struct held *h, size_t from, size_t to, bool is_match)
{
    enum split split = r->p->step[k].split;
    bool joins;
    is_match ^= r->p->step[k].invert;
    switch (split) {
    case SPLIT_ISOLATED:
        return emit(r, k, from, to);
    case SPLIT_REMOVED:
        return is_match ? 0 : emit(r, k, from, to);
    case SPLIT_CONTIGUOUS:
        joins = h->is_set && h->is_match == is_match;
        break;
    case SPLIT_MERGED_WITH_PREVIOUS:
        joins = h->is_set && is_match && !h->is_match;
        break;
    case SPLIT_MERGED_WITH_NEXT:
    default:
        joins = h->is_set && !is_match && h->is_match;
        break;
    }
    if (joins) {
        h->to = to;
        if (split != SPLIT_CONTIGUOUS) { // a joined piece is complete
            int rc = emit(r, k, h->from, h->to);
            *h = (struct held){.is_match = is_match};
            return rc;
        }
        return 0;
    }
    int rc = h->is_set ? emit(r, k, h->from, h->to) : 0;
    *h = (struct held){from, to, is_match, true};
    return rc;
}

static int match_failed(struct run *r, int rc)
{
    PCRE2_UCHAR why[128] = "";
    pcre2_get_error_message(rc, why, sizeof why);
    return err_set(r->e, ERR_LIMIT, "pre-tokenizer pattern gave up on this text: %s", (const char *)why);
}

static int do_step(struct run *r, int k, size_t from, size_t to)
{
    if (k == r->p->n)
        return r->piece(r->ud, from, to);
    PCRE2_SPTR s = (PCRE2_SPTR)r->s + from;
    size_t n = to - from, at = 0, done = 0, last_end = SIZE_MAX;
    struct held h = {0};
    int rc = 0;
    while (!rc && at <= n) {
        const pcre2_code *re = r->p->step[k].re;
        int m = pcre2_match(re, s, n, at, PCRE2_NO_UTF_CHECK, r->w->match, r->w->limits);
        if (m == PCRE2_ERROR_JIT_STACKLIMIT)
            m = pcre2_match(re, s, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, r->w->match, r->w->limits);
        if (m == PCRE2_ERROR_NOMATCH)
            break;
        if (m < 0)
            return match_failed(r, m);
        const PCRE2_SIZE *v = pcre2_get_ovector_pointer(r->w->match);
        size_t a = v[0], b = v[1];
        if (b < a || a < done)
            return err_set(r->e, ERR_UNSUPPORTED, "unsupported pre-tokenizer pattern: it matches backwards");
        at = b;
        if (a == b) { // an empty match: one character on, and not at the end of the match before it
            int32_t cp;
            at += at < n ? (size_t)utf8_next((const char *)s + at, n - at, &cp) : 1;
            if (last_end == b)
                continue;
        }
        last_end = b;
        if (a > done)
            rc = take(r, k, &h, from + done, from + a, false);
        if (!rc)
            rc = take(r, k, &h, from + a, from + b, true);
        done = b;
    }
    if (!rc && done < n)
        rc = take(r, k, &h, from + done, to, false);
    if (!rc && h.is_set)
        rc = emit(r, k, h.from, h.to);
    return rc;
}

int pretok_run(const struct pretok *p, struct pretok_work *w, const char *s, size_t n, piece_fn piece,
               void *ud, struct err *e)
{
    struct run r = {p, w, s, piece, ud, e};
    if (!n)
        return 0;
    if (!w->match) {
        w->match = pcre2_match_data_create(1, NULL);
        w->limits = pcre2_match_context_create(NULL);
        if (!w->match || !w->limits)
            return err_set(e, ERR_NOMEM, "no memory for a match");
    }
    /* Patterns come from strangers. An honest one takes a few steps a character, in one match of the whole
     * text at the most. */
    pcre2_set_match_limit(w->limits, n < (1u << 26) ? 1000000 + 16 * (uint32_t)n : UINT32_MAX);
    pcre2_set_depth_limit(w->limits, 1000000);
    pcre2_set_heap_limit(w->limits, 256 * 1024); // KiB
    if (unicode_needs_stand_ins(s, n)) {
        if (w->cap_shown < n) {
            char *shown = realloc(w->shown, n);
            if (!shown)
                return err_set(e, ERR_NOMEM, "no memory for %zu bytes of text", n);
            w->shown = shown;
            w->cap_shown = n;
        }
        unicode_stand_ins(s, n, w->shown);
        r.s = w->shown;
    }
    return do_step(&r, 0, 0, n);
}
