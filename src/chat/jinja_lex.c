/* Lexer: template text to tokens. Owns whitespace control ({%-, {%+, trim_blocks, lstrip_blocks), raw blocks,
 * comments and literals. Tags may span lines; closing braces count as the tag's end only outside brackets. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "chat/jinja_eval.h"
#include "base/utf8.h"

enum { MAX_BRACKETS = 1000 };

struct lexer {
    struct jx *x;
    const char *s;
    size_t n, pos;
    const struct jinja_options *o;
    bool at_line_start; // the token before pos ended a line
    struct token *tok;
    size_t n_tok, cap_tok;
    int n_open;
    char open[MAX_BRACKETS];
};

bool jx_is_space(int32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F ||
           cp == 0x3000;
}

static struct token *add(struct lexer *l, enum token_type type, size_t start, size_t n)
{
    if (l->n_tok == l->cap_tok) {
        size_t cap = l->cap_tok ? 2 * l->cap_tok : 256;
        struct token *t = jx_alloc(l->x, cap * sizeof *t);
        if (l->n_tok)
            memcpy(t, l->tok, l->n_tok * sizeof *t);
        l->tok = t;
        l->cap_tok = cap;
    }
    l->tok[l->n_tok] = (struct token){.type = type, .line = l->x->line, .s = l->s + start, .n = n};
    return &l->tok[l->n_tok++];
}

/* Moves to position `to`, keeping count of lines. */
static void move(struct lexer *l, size_t to)
{
    for (size_t i = l->pos; i < to; i++)
        l->x->line += l->s[i] == '\n';
    if (to > l->pos)
        l->at_line_start = l->s[to - 1] == '\n';
    l->pos = to;
}

static size_t skip_space(const struct lexer *l, size_t i)
{
    while (i < l->n) {
        int32_t cp;
        int len = utf8_next(l->s + i, l->n - i, &cp);
        if (!jx_is_space(cp))
            break;
        i += (size_t)len;
    }
    return i;
}

/* End of [start, end) without the white space at its end. */
static size_t strip_right(const struct lexer *l, size_t start, size_t end)
{
    while (end > start) {
        size_t i = end - 1;
        int32_t cp;
        while (i > start && ((uint8_t)l->s[i] & 0xC0) == 0x80)
            i--;
        utf8_next(l->s + i, end - i, &cp);
        if (!jx_is_space(cp))
            break;
        end = i;
    }
    return end;
}

static bool looking_at(const struct lexer *l, size_t i, const char *what)
{
    size_t n = strlen(what);
    return i <= l->n && l->n - i >= n && !memcmp(l->s + i, what, n);
}

/* Template text [pos, end) in front of a tag with this sign: '-' strips all white space before the tag;
 * lstrip_blocks strips what indents a block or comment tag. */
static void text_before(struct lexer *l, size_t end, char sign, bool is_variable)
{
    size_t stop = end;
    if (sign == '-') {
        stop = strip_right(l, l->pos, end);
    } else if (sign != '+' && l->o->lstrip_blocks && !is_variable) {
        size_t line = end;
        while (line > l->pos && l->s[line - 1] != '\n')
            line--;
        if ((line > l->pos || l->at_line_start) && strip_right(l, line, end) == line)
            stop = line;
    }
    if (stop > l->pos)
        add(l, TOK_DATA, l->pos, stop - l->pos);
}

static char sign_at(const struct lexer *l, size_t i)
{
    return i < l->n && (l->s[i] == '-' || l->s[i] == '+') ? l->s[i] : 0;
}

/* Position behind a closing tag: "-%}" eats white space, "%}" eats a newline if trim_blocks is on. 0: not here. */
static size_t tag_end(const struct lexer *l, size_t i, const char *end, bool plus, bool trim)
{
    char sign = sign_at(l, i);
    if (sign == '+' && !plus)
        return 0;
    if (!looking_at(l, i + (sign != 0), end))
        return 0;
    i += (sign != 0) + 2;
    if (sign == '-')
        return skip_space(l, i);
    return !sign && trim && i < l->n && l->s[i] == '\n' ? i + 1 : i;
}

static bool lex_raw(struct lexer *l, size_t at)
{
    char sign = sign_at(l, at + 2);
    size_t i = skip_space(l, at + 2 + (sign != 0)), body;
    if (!looking_at(l, i, "raw"))
        return false;
    i = skip_space(l, i + 3);
    if (sign_at(l, i) == '+' || !(body = tag_end(l, i, "%}", false, false)))
        return false;
    text_before(l, at, sign, false);
    move(l, body);
    for (size_t p = l->pos; p < l->n; p++) {
        if (!looking_at(l, p, "{%"))
            continue;
        char end_sign = sign_at(l, p + 2);
        i = skip_space(l, p + 2 + (end_sign != 0));
        if (!looking_at(l, i, "endraw"))
            continue;
        size_t end = tag_end(l, skip_space(l, i + 6), "%}", true, l->o->trim_blocks);
        if (!end)
            continue;
        text_before(l, p, end_sign, false);
        move(l, end);
        return true;
    }
    jx_fail(l->x, JINJA_SYNTAX, "Missing end of raw directive");
}

static void lex_comment(struct lexer *l, size_t at)
{
    char sign = sign_at(l, at + 2);
    text_before(l, at, sign, false);
    for (size_t p = at + 2 + (sign != 0); p < l->n; p++) {
        size_t end = tag_end(l, p, "#}", true, l->o->trim_blocks);
        if (end) {
            move(l, end);
            return;
        }
    }
    jx_fail(l->x, JINJA_SYNTAX, "Missing end of comment tag");
}

/* ---- inside tags ---------------------------------------------------------------------------------- */

static bool is_digit(const struct lexer *l, size_t i) { return i < l->n && l->s[i] >= '0' && l->s[i] <= '9'; }

/* Digits with single underscores between them; returns the end, i itself if there is none. */
static size_t digits(const struct lexer *l, size_t i)
{
    while (is_digit(l, i) || (i < l->n && l->s[i] == '_' && i && is_digit(l, i - 1) && is_digit(l, i + 1)))
        i++;
    return i;
}

static size_t based_digits(const struct lexer *l, size_t i, const char *set)
{
    while (i < l->n && ((l->s[i] && strchr(set, l->s[i])) ||
                        (l->s[i] == '_' && i + 1 < l->n && l->s[i + 1] && strchr(set, l->s[i + 1]))))
        i++;
    return i;
}

static void lex_number(struct lexer *l)
{
    size_t start = l->pos, end = digits(l, start), q = end;
    bool is_float = false, ok = true;
    struct val v;
    if (!(start && l->s[start - 1] == '.')) { // l.0.1: two items, not 0.1
        if (q < l->n && l->s[q] == '.' && is_digit(l, q + 1)) {
            q = digits(l, q + 1);
            is_float = true;
        }
        size_t e = q + 1;
        if (q < l->n && (l->s[q] | 0x20) == 'e') {
            e += e < l->n && (l->s[e] == '+' || l->s[e] == '-');
            if (is_digit(l, e)) {
                q = digits(l, e);
                is_float = true;
            }
        }
    }
    if (is_float) {
        double f;
        end = q;
        ok = jn_parse_float(l->s + start, end - start, &f);
        v = jv_float(f);
    } else {
        char c = start + 1 < l->n ? l->s[start + 1] | 0x20 : 0;
        const char *set = c == 'x'   ? "0123456789abcdefABCDEF"
                          : c == 'o' ? "01234567"
                          : c == 'b' ? "01"
                                     : NULL;
        if (l->s[start] == '0' && set && based_digits(l, start + 2, set) > start + 2) {
            end = based_digits(l, start + 2, set);
        } else if (l->s[start] == '0') {
            end = start + 1;
            while (end < l->n &&
                   (l->s[end] == '0' || (l->s[end] == '_' && end + 1 < l->n && l->s[end + 1] == '0')))
                end++;
        }
        v = jn_parse_int(l->x, l->s + start, end - start, 0, &ok);
    }
    if (!ok)
        jx_fail(l->x, JINJA_SYNTAX, "a number in the template has too many digits");
    add(l, TOK_NUMBER, start, end - start)->v = v;
    move(l, end);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Decodes the escape behind a backslash at i into b; returns the position behind it. Unknown escapes stay. */
static size_t unescape(struct lexer *l, struct sb *b, size_t i, size_t end)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = l->s[i];
    const char *at = c ? strchr(from, c) : NULL;
    if (c == '\n')
        return i + 1;
    if (at) {
        sb_add(b, &to[at - from], 1, FROM_TPL);
        return i + 1;
    }
    int32_t cp = 0;
    int want = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (want) {
        uint32_t v = 0;
        for (int k = 1; k <= want; k++) {
            int d = i + (size_t)k < end ? hex_digit(l->s[i + (size_t)k]) : -1;
            if (d < 0)
                jx_fail(l->x, JINJA_SYNTAX, "truncated \\%c escape in a string", c);
            v = v * 16 + (uint32_t)d;
        }
        if (v > 0x10FFFF)
            jx_fail(l->x, JINJA_SYNTAX, "illegal Unicode character in a string");
        cp = v >= 0xD800 && v < 0xE000 ? 0xFFFD : (int32_t)v; // UTF-8 has no surrogates
        sb_chr(b, cp, FROM_TPL);
        return i + 1 + (size_t)want;
    }
    if (c >= '0' && c <= '7') {
        size_t k = i;
        for (; k < end && k < i + 3 && l->s[k] >= '0' && l->s[k] <= '7'; k++)
            cp = cp * 8 + (l->s[k] - '0');
        sb_chr(b, cp, FROM_TPL);
        return k;
    }
    if (c == 'N')
        jx_fail(l->x, JINJA_SYNTAX, "\\N{...} escapes are not supported");
    sb_add(b, "\\", 1, FROM_TPL);
    return i;
}

static void lex_string(struct lexer *l)
{
    char quote = l->s[l->pos];
    size_t start = l->pos + 1, end = start;
    while (end < l->n && l->s[end] != quote)
        end += l->s[end] == '\\' ? 2 : 1;
    if (end >= l->n)
        jx_fail(l->x, JINJA_SYNTAX, "unexpected char %c at %zu", quote, l->pos);
    struct token *t = add(l, TOK_STRING, start, end - start);
    if (!memchr(l->s + start, '\\', end - start)) {
        t->v = jv_str(l->x, l->s + start, end - start, FROM_TPL);
    } else {
        struct sb *b = sb_new(l->x);
        for (size_t i = start; i < end;) {
            const char *slash = memchr(l->s + i, '\\', end - i);
            size_t stop = slash ? (size_t)(slash - l->s) : end;
            sb_add(b, l->s + i, stop - i, FROM_TPL);
            i = stop < end ? unescape(l, b, stop + 1, end) : end;
        }
        t->v = sb_take(b);
    }
    move(l, end + 1);
}

static bool is_name_char(int32_t cp)
{
    if (cp < 0x80)
        return (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z') || (cp >= '0' && cp <= '9') || cp == '_';
    int c = utf8proc_category(cp);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_MC) || c == UTF8PROC_CATEGORY_ND ||
           c == UTF8PROC_CATEGORY_NL;
}

static void lex_operator(struct lexer *l)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    char c = l->s[l->pos];
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (looking_at(l, l->pos, two[i])) {
            add(l, TOK_OP, l->pos, 2)->op = OP2(two[i][0], two[i][1]);
            move(l, l->pos + 2);
            return;
        }
    if (!c || !strchr("+-/*%~[](){}><=.:|,;", c))
        jx_fail(l->x, JINJA_SYNTAX, "unexpected char '%c' at %zu", c >= ' ' && c < 127 ? c : '?', l->pos);
    if (strchr("([{", c)) {
        if (l->n_open == MAX_BRACKETS)
            jx_fail(l->x, JINJA_LIMIT, "brackets are nested deeper than the limit of %d", MAX_BRACKETS);
        l->open[l->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (strchr(")]}", c)) {
        if (!l->n_open)
            jx_fail(l->x, JINJA_SYNTAX, "unexpected '%c'", c);
        char want = l->open[--l->n_open];
        if (want != c)
            jx_fail(l->x, JINJA_SYNTAX, "unexpected '%c', expected '%c'", c, want);
    }
    add(l, TOK_OP, l->pos, 1)->op = c;
    move(l, l->pos + 1);
}

static void lex_tag(struct lexer *l, bool is_variable)
{
    add(l, is_variable ? TOK_VAR_BEGIN : TOK_BLOCK_BEGIN, l->pos, 2);
    move(l, l->pos + 2 + (sign_at(l, l->pos + 2) != 0));
    l->n_open = 0;
    while (l->pos < l->n) {
        size_t end = l->n_open ? 0
                               : tag_end(l, l->pos, is_variable ? "}}" : "%}", !is_variable,
                                         !is_variable && l->o->trim_blocks);
        int32_t cp;
        if (end) {
            add(l, is_variable ? TOK_VAR_END : TOK_BLOCK_END, l->pos, 2);
            move(l, end);
            return;
        }
        int len = utf8_next(l->s + l->pos, l->n - l->pos, &cp);
        if (jx_is_space(cp)) {
            move(l, l->pos + (size_t)len);
        } else if (is_digit(l, l->pos)) {
            lex_number(l);
        } else if (cp == '\'' || cp == '"') {
            lex_string(l);
        } else if (cp >= 0 && is_name_char(cp)) {
            size_t i = l->pos;
            while (i < l->n && (len = utf8_next(l->s + i, l->n - i, &cp), cp >= 0 && is_name_char(cp)))
                i += (size_t)len;
            add(l, TOK_NAME, l->pos, i - l->pos);
            move(l, i);
        } else {
            lex_operator(l);
        }
    }
}

/* The text as the reference sees it: \n line ends only, one trailing line end dropped. */
static char *normalize(struct jx *x, const char *s, size_t *n)
{
    char *t = jx_alloc(x, *n + 1);
    size_t m = 0;
    for (size_t i = 0; i < *n; i++) {
        if (s[i] == '\r') {
            t[m++] = '\n';
            i += i + 1 < *n && s[i + 1] == '\n';
        } else {
            t[m++] = s[i];
        }
    }
    if (m && t[m - 1] == '\n')
        m--;
    *n = m;
    return t;
}

struct token *jinja_lex(struct jx *x, const char *s, size_t n, const struct jinja_options *o)
{
    struct lexer *l = jx_alloc(x, sizeof *l);
    *l = (struct lexer){.x = x, .n = n, .o = o, .at_line_start = true};
    l->s = normalize(x, s, &l->n);
    x->line = 1;
    while (l->pos < l->n) {
        size_t at = l->pos;
        while (at < l->n &&
               !(l->s[at] == '{' && at + 1 < l->n && strchr("{%#", l->s[at + 1]) && l->s[at + 1]))
            at++;
        if (at == l->n) {
            add(l, TOK_DATA, l->pos, l->n - l->pos);
            move(l, l->n);
            break;
        }
        if (l->s[at + 1] == '#') {
            lex_comment(l, at);
        } else if (l->s[at + 1] == '{' || !lex_raw(l, at)) {
            text_before(l, at, sign_at(l, at + 2), l->s[at + 1] == '{');
            move(l, at);
            lex_tag(l, l->s[at + 1] == '{');
        }
    }
    add(l, TOK_EOF, l->n, 0);
    return l->tok;
}
