/* String methods. Positions that templates see count characters; inside everything counts bytes. Parts keep
 * the origin of their bytes. */
#include "chat/jinja_str.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"

static const struct str *text_arg(struct jx *x, struct val v, const char *what)
{
    if (v.t == V_UNDEF)
        jx_fail(x, JINJA_TYPE, "%s must be str, not Undefined", what);
    if (v.t != V_STR)
        jx_fail(x, JINJA_TYPE, "%s must be str, not %s", what, jv_type_name(v));
    return v.u.s;
}

static bool given(struct val v) { return v.t != V_MISSING && v.t != V_NONE; }

/* ---- searching ------------------------------------------------------------------------------------ */

int64_t js_find(struct jx *x, const struct str *s, const struct str *needle, size_t from, size_t to)
{
    size_t i = from;
    if (from > to || needle->n > to - from)
        return -1;
    if (!needle->n)
        return (int64_t)from;
    while (i + needle->n <= to) {
        const char *at = memchr(s->p + i, needle->p[0], to - needle->n - i + 1);
        size_t j = at ? (size_t)(at - s->p) : to;
        jx_spend(x, (j - i) / 32);
        if (!at)
            return -1;
        jx_spend(x, needle->n / 64);
        if (!memcmp(at, needle->p, needle->n))
            return (int64_t)j;
        i = j + 1;
    }
    return -1;
}

int64_t js_rfind(struct jx *x, const struct str *s, const struct str *needle, size_t from, size_t to)
{
    if (from > to || needle->n > to - from)
        return -1;
    for (size_t i = to - needle->n;; i--) {
        if (needle->n && s->p[i] == needle->p[0])
            jx_spend(x, needle->n / 64);
        if (!memcmp(s->p + i, needle->p, needle->n) && (i == s->n || ((uint8_t)s->p[i] & 0xC0) != 0x80))
            return (int64_t)i;
        if (i == from)
            return -1;
        if (i % 16 == 0)
            jx_spend(x, 1);
    }
}

/* Bytes [*i, *j) that start and end (characters, Python's slice rules) stand for; false if start lies behind. */
static bool window(struct jx *x, const struct str *s, struct val start, struct val end, size_t *i, size_t *j)
{
    int64_t n = (int64_t)s->n_chars, a = given(start) ? jv_index(x, start, "start") : 0,
            b = given(end) ? jv_index(x, end, "end") : n;
    a = a < 0 ? (a + n < 0 ? 0 : a + n) : a;
    b = b < 0 ? (b + n < 0 ? 0 : b + n) : b > n ? n : b;
    if (a > n || a > b)
        return false;
    *i = (size_t)js_index_byte(s, (size_t)a);
    *j = (size_t)js_index_byte(s, (size_t)b);
    return true;
}

static int64_t search(struct jx *x, struct val self, const struct val *a, bool from_right)
{
    const struct str *s = self.u.s, *needle = text_arg(x, a[0], "argument");
    size_t i, j;
    if (!window(x, s, a[1], a[2], &i, &j))
        return -1;
    int64_t at = from_right ? js_rfind(x, s, needle, i, j) : js_find(x, s, needle, i, j);
    return at < 0 ? -1 : (int64_t)utf8_count(s->p, (size_t)at);
}

#define METHOD(name) \
    static struct val m_##name(struct jx *x, struct val self, const struct val *a, const struct args *raw)
#define UNUSED_ARGS (void)x, (void)self, (void)a, (void)raw

METHOD(find)
{
    UNUSED_ARGS;
    return jv_int(search(x, self, a, false));
}
METHOD(rfind)
{
    UNUSED_ARGS;
    return jv_int(search(x, self, a, true));
}

static struct val found(struct jx *x, int64_t at)
{
    if (at < 0)
        jx_fail(x, JINJA_VALUE, "substring not found");
    return jv_int(at);
}

METHOD(index)
{
    UNUSED_ARGS;
    return found(x, search(x, self, a, false));
}
METHOD(rindex)
{
    UNUSED_ARGS;
    return found(x, search(x, self, a, true));
}

METHOD(count)
{
    UNUSED_ARGS;
    const struct str *s = self.u.s, *needle = text_arg(x, a[0], "argument");
    size_t i, j;
    int64_t n = 0, at;
    if (!window(x, s, a[1], a[2], &i, &j))
        return jv_int(0);
    if (!needle->n)
        return jv_int((int64_t)utf8_count(s->p + i, j - i) + 1);
    for (; (at = js_find(x, s, needle, i, j)) >= 0; i = (size_t)at + needle->n)
        n++;
    return jv_int(n);
}

static bool has_affix(struct jx *x, const struct str *s, size_t i, size_t j, struct val affix, bool at_end,
                      const char *what)
{
    const struct str *t = text_arg(x, affix, what);
    return t->n <= j - i && !memcmp(s->p + (at_end ? j - t->n : i), t->p, t->n);
}

static struct val affixes(struct jx *x, struct val self, const struct val *a, bool at_end)
{
    size_t i, j;
    const char *what = at_end ? "endswith first arg" : "startswith first arg";
    for (size_t k = 0; a[0].t == V_TUPLE && k < a[0].u.l->n; k++)
        text_arg(x, a[0].u.l->v[k], what);
    if (a[0].t != V_TUPLE)
        text_arg(x, a[0], what);
    if (!window(x, self.u.s, a[1], a[2], &i, &j))
        return jv_bool(false);
    if (a[0].t != V_TUPLE)
        return jv_bool(has_affix(x, self.u.s, i, j, a[0], at_end, what));
    for (size_t k = 0; k < a[0].u.l->n; k++)
        if (has_affix(x, self.u.s, i, j, a[0].u.l->v[k], at_end, what))
            return jv_bool(true);
    return jv_bool(false);
}

METHOD(startswith)
{
    UNUSED_ARGS;
    return affixes(x, self, a, false);
}
METHOD(endswith)
{
    UNUSED_ARGS;
    return affixes(x, self, a, true);
}

/* ---- cutting and joining -------------------------------------------------------------------------- */

static bool strips(struct jx *x, const struct str *chars, const char *c, size_t n, int32_t cp)
{
    if (!chars)
        return jx_is_space(cp);
    jx_spend(x, 1 + chars->n / 16);
    for (size_t i = 0; i + n <= chars->n; i++)
        if (!memcmp(chars->p + i, c, n))
            return true;
    return false;
}

struct val js_strip(struct jx *x, const struct str *s, const struct str *chars, bool left, bool right)
{
    size_t i = 0, j = s->n;
    int32_t cp;
    while (left && i < j) {
        int len = utf8_next(s->p + i, j - i, &cp);
        len = len ? len : 1;
        if (!strips(x, chars, s->p + i, (size_t)len, cp))
            break;
        i += (size_t)len;
    }
    while (right && j > i) {
        size_t k = j - 1;
        while (k > i && ((uint8_t)s->p[k] & 0xC0) == 0x80)
            k--;
        utf8_next(s->p + k, j - k, &cp);
        if (!strips(x, chars, s->p + k, j - k, cp))
            break;
        j = k;
    }
    jx_spend(x, (s->n - (j - i)) / 16);
    return js_part(x, s, i, j);
}

static struct val strip(struct jx *x, struct val self, const struct val *a, bool left, bool right)
{
    return js_strip(x, self.u.s, given(a[0]) ? text_arg(x, a[0], "strip arg") : NULL, left, right);
}

METHOD(strip)
{
    UNUSED_ARGS;
    return strip(x, self, a, true, true);
}
METHOD(lstrip)
{
    UNUSED_ARGS;
    return strip(x, self, a, true, false);
}
METHOD(rstrip)
{
    UNUSED_ARGS;
    return strip(x, self, a, false, true);
}

/* Next word of s in [i, j) from the left (right); false at the end. */
static bool next_word(const struct str *s, size_t *i, size_t *j, bool from_right, size_t *start, size_t *end)
{
    int32_t cp;
    bool in = false;
    *start = *end = from_right ? *j : *i;
    while (*i < *j) {
        size_t k = from_right ? *j - 1 : *i;
        while (from_right && k > *i && ((uint8_t)s->p[k] & 0xC0) == 0x80)
            k--;
        int len = utf8_next(s->p + k, *j - k, &cp);
        len = len ? len : 1;
        if (jx_is_space(cp)) {
            if (in)
                break;
        } else {
            if (!in)
                *start = *end = from_right ? *j : *i;
            in = true;
            if (from_right)
                *start = k;
            else
                *end = k + (size_t)len;
        }
        if (from_right)
            *j = k;
        else
            *i = k + (size_t)len;
    }
    return in;
}

static void reverse_list(struct list_builder *b)
{
    for (size_t i = 0; i < b->n / 2; i++) {
        struct val t = b->v[i];
        b->v[i] = b->v[b->n - 1 - i];
        b->v[b->n - 1 - i] = t;
    }
}

struct val js_split(struct jx *x, const struct str *s, const struct str *sep, int64_t max, bool from_right)
{
    struct list_builder b = {0};
    size_t i = 0, j = s->n, start, end;
    jx_spend(x, s->n / 16);
    if (sep && !sep->n)
        jx_fail(x, JINJA_VALUE, "empty separator");
    for (; max != 0; max--) {
        if (sep) {
            int64_t at = from_right ? js_rfind(x, s, sep, i, j) : js_find(x, s, sep, i, j);
            if (at < 0)
                break;
            lb_add(x, &b, from_right ? js_part(x, s, (size_t)at + sep->n, j) : js_part(x, s, i, (size_t)at));
            if (from_right)
                j = (size_t)at;
            else
                i = (size_t)at + sep->n;
        } else {
            if (!next_word(s, &i, &j, from_right, &start, &end))
                break;
            lb_add(x, &b, js_part(x, s, start, end));
        }
    }
    if (sep) {
        lb_add(x, &b, js_part(x, s, i, j));
    } else { // what the count leaves over, without the white space on its open side
        struct val rest = js_strip(x, js_part(x, s, i, j).u.s, NULL, !from_right, from_right);
        if (rest.u.s->n && max == 0)
            lb_add(x, &b, rest);
    }
    if (from_right)
        reverse_list(&b);
    return lb_take(x, &b, V_LIST);
}

static struct val split(struct jx *x, struct val self, const struct val *a, bool from_right)
{
    const struct str *sep = given(a[0]) ? text_arg(x, a[0], "separator") : NULL;
    return js_split(x, self.u.s, sep, a[1].t == V_MISSING ? -1 : jv_index(x, a[1], "maxsplit"), from_right);
}

METHOD(split)
{
    UNUSED_ARGS;
    return split(x, self, a, false);
}
METHOD(rsplit)
{
    UNUSED_ARGS;
    return split(x, self, a, true);
}

struct val js_lines(struct jx *x, const struct str *s, bool keep_ends)
{
    struct list_builder b = {0};
    size_t start = 0;
    jx_spend(x, s->n / 16);
    for (size_t i = 0; i < s->n;) {
        int32_t cp;
        int len = utf8_next(s->p + i, s->n - i, &cp);
        len = len ? len : 1;
        bool is_end = (cp >= 0xA && cp <= 0xD) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 ||
                      cp == 0x2029;
        size_t end = i + (size_t)len;
        if (is_end) {
            if (cp == '\r' && end < s->n && s->p[end] == '\n')
                end++;
            lb_add(x, &b, js_part(x, s, start, keep_ends ? end : i));
            start = end;
        }
        i = end;
    }
    if (start < s->n)
        lb_add(x, &b, js_part(x, s, start, s->n));
    return lb_take(x, &b, V_LIST);
}

METHOD(splitlines)
{
    UNUSED_ARGS;
    return js_lines(x, self.u.s, a[0].t != V_MISSING && jv_index(x, a[0], "keepends"));
}

static struct val partition(struct jx *x, struct val self, const struct val *a, bool from_right)
{
    const struct str *s = self.u.s, *sep = text_arg(x, a[0], "separator");
    struct val *v = jx_alloc(x, 3 * sizeof *v);
    if (!sep->n)
        jx_fail(x, JINJA_VALUE, "empty separator");
    int64_t at = from_right ? js_rfind(x, s, sep, 0, s->n) : js_find(x, s, sep, 0, s->n);
    v[0] = v[1] = v[2] = jv_text(x, "");
    if (at < 0) {
        v[from_right ? 2 : 0] = self;
    } else {
        v[0] = js_part(x, s, 0, (size_t)at);
        v[1] = js_part(x, s, (size_t)at, (size_t)at + sep->n);
        v[2] = js_part(x, s, (size_t)at + sep->n, s->n);
    }
    return jv_list(x, V_TUPLE, v, 3);
}

METHOD(partition)
{
    UNUSED_ARGS;
    return partition(x, self, a, false);
}
METHOD(rpartition)
{
    UNUSED_ARGS;
    return partition(x, self, a, true);
}

METHOD(join)
{
    UNUSED_ARGS;
    struct sb *b = sb_new(x);
    if (!jv_is_iterable(a[0]))
        jx_fail(x, JINJA_TYPE, "can only join an iterable");
    const struct list *l = jv_items(x, a[0]);
    for (size_t i = 0; i < l->n; i++) {
        if (l->v[i].t != V_STR && !self.markup)
            jx_fail(x, JINJA_TYPE, "sequence item %zu: expected str instance, %s found", i,
                    jv_type_name(l->v[i]));
        if (i)
            sb_str(b, self.u.s);
        sb_str(b, self.markup ? jv_escape(x, l->v[i]).u.s : l->v[i].u.s);
    }
    return sb_take(b);
}

struct val js_replace(struct jx *x, const struct str *s, const struct str *old, const struct str *new,
                      int64_t count)
{
    struct sb *b = sb_new(x);
    size_t i = 0;
    if (!old->n) { // before every character and at the end
        for (; count != 0; count--) {
            sb_str(b, new);
            if (i >= s->n)
                break;
            size_t j = i + 1;
            while (j < s->n && ((uint8_t)s->p[j] & 0xC0) == 0x80)
                j++;
            sb_part(b, s, i, j);
            i = j;
            jx_spend(x, 1);
        }
    }
    for (int64_t at; old->n && count != 0 && (at = js_find(x, s, old, i, s->n)) >= 0; count--) {
        sb_part(b, s, i, (size_t)at);
        sb_str(b, new);
        i = (size_t)at + old->n;
        jx_spend(x, 1);
    }
    sb_part(b, s, i, s->n);
    return sb_take(b);
}

METHOD(replace)
{
    UNUSED_ARGS;
    int64_t count = a[2].t == V_MISSING ? -1 : jv_index(x, a[2], "count");
    return js_replace(x, self.u.s, text_arg(x, a[0], "replace() argument 1"),
                      text_arg(x, a[1], "replace() argument 2"), count);
}

static struct val remove_affix(struct jx *x, struct val self, struct val affix, bool at_end)
{
    const struct str *s = self.u.s,
                     *t = text_arg(x, affix, at_end ? "removesuffix() argument" : "removeprefix() argument");
    if (!t->n || !has_affix(x, s, 0, s->n, affix, at_end, ""))
        return self;
    return at_end ? js_part(x, s, 0, s->n - t->n) : js_part(x, s, t->n, s->n);
}

METHOD(removeprefix)
{
    UNUSED_ARGS;
    return remove_affix(x, self, a[0], false);
}
METHOD(removesuffix)
{
    UNUSED_ARGS;
    return remove_affix(x, self, a[0], true);
}

/* ---- padding -------------------------------------------------------------------------------------- */

static struct val pad(struct jx *x, struct val self, const struct val *a, int side)
{
    const struct str space = {.p = " ", .n = 1, .n_chars = 1, .from = FROM_TPL}, *fill = &space;
    int64_t width = jv_index(x, a[0], "width"), more = width - (int64_t)self.u.s->n_chars;
    if (a[1].t != V_MISSING)
        fill = text_arg(x, a[1], "the fill character");
    if (fill->n_chars != 1)
        jx_fail(x, JINJA_TYPE, "The fill character must be exactly one character long");
    if (more <= 0)
        return self;
    struct sb *b = sb_new(x);
    int64_t left = side < 0 ? more : side > 0 ? 0 : more / 2 + (more & width & 1);
    sb_pad(b, fill, left);
    sb_str(b, self.u.s);
    sb_pad(b, fill, more - left);
    return sb_take(b);
}

METHOD(center)
{
    UNUSED_ARGS;
    return pad(x, self, a, 0);
}
METHOD(ljust)
{
    UNUSED_ARGS;
    return pad(x, self, a, 1);
}
METHOD(rjust)
{
    UNUSED_ARGS;
    return pad(x, self, a, -1);
}

METHOD(zfill)
{
    UNUSED_ARGS;
    const struct str zero = {.p = "0", .n = 1, .n_chars = 1, .from = FROM_TPL}, *s = self.u.s;
    int64_t more = jv_index(x, a[0], "width") - (int64_t)s->n_chars;
    size_t sign = s->n && (s->p[0] == '-' || s->p[0] == '+');
    if (more <= 0)
        return self;
    struct sb *b = sb_new(x);
    sb_part(b, s, 0, sign);
    sb_pad(b, &zero, more);
    sb_part(b, s, sign, s->n);
    return sb_take(b);
}

METHOD(expandtabs)
{
    UNUSED_ARGS;
    const struct str space = {.p = " ", .n = 1, .n_chars = 1, .from = FROM_TPL}, *s = self.u.s;
    int64_t size = a[0].t == V_MISSING ? 8 : jv_index(x, a[0], "tabsize"), column = 0;
    struct sb *b = sb_new(x);
    for (size_t i = 0; i < s->n; i++) {
        if (s->p[i] == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;
            sb_pad(b, &space, n);
            column += n;
            continue;
        }
        sb_part(b, s, i, i + 1);
        column = s->p[i] == '\n' || s->p[i] == '\r' ? 0 : column + (((uint8_t)s->p[i] & 0xC0) != 0x80);
    }
    return sb_take(b);
}

/* ---- case and kinds of characters ----------------------------------------------------------------- */

METHOD(upper)
{
    UNUSED_ARGS;
    return js_case(x, self.u.s, CASE_UPPER);
}
METHOD(lower)
{
    UNUSED_ARGS;
    return js_case(x, self.u.s, CASE_LOWER);
}
METHOD(title)
{
    UNUSED_ARGS;
    return js_case(x, self.u.s, CASE_TITLE);
}
METHOD(capitalize)
{
    UNUSED_ARGS;
    return js_case(x, self.u.s, CASE_CAPITALIZE);
}
METHOD(swapcase)
{
    UNUSED_ARGS;
    return js_case(x, self.u.s, CASE_SWAP);
}
METHOD(casefold)
{
    UNUSED_ARGS;
    return js_case(x, self.u.s, CASE_FOLD);
}

static bool is_decimal(int32_t cp) { return utf8proc_category(cp) == UTF8PROC_CATEGORY_ND; }
static bool is_digit(int32_t cp)
{
    return is_decimal(cp) || cp == 0xB2 || cp == 0xB3 || cp == 0xB9 || cp == 0x2070 ||
           (cp >= 0x2074 && cp <= 0x2079) || (cp >= 0x2080 && cp <= 0x2089) || (cp >= 0x2460 && cp <= 0x2468);
}
static bool is_numeric(int32_t cp)
{
    int c = utf8proc_category(cp);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}
static bool is_alnum(int32_t cp) { return js_is_alpha(cp) || is_numeric(cp); }
static bool is_ascii(int32_t cp) { return cp < 0x80; }
static bool is_printable(int32_t cp)
{
    int c = utf8proc_category(cp);
    return cp == ' ' || (c != UTF8PROC_CATEGORY_CN && c < UTF8PROC_CATEGORY_ZS);
}
bool js_is_word(int32_t cp) { return cp == '_' || is_alnum(cp); }

static struct val all_are(const struct str *s, bool (*is)(int32_t), bool if_empty)
{
    for (size_t i = 0; i < s->n;) {
        int32_t cp;
        int len = utf8_next(s->p + i, s->n - i, &cp);
        if (cp < 0 || !is(cp))
            return jv_bool(false);
        i += (size_t)len;
    }
    return jv_bool(s->n ? true : if_empty);
}

METHOD(isalpha)
{
    UNUSED_ARGS;
    return all_are(self.u.s, js_is_alpha, false);
}
METHOD(isalnum)
{
    UNUSED_ARGS;
    return all_are(self.u.s, is_alnum, false);
}
METHOD(isdecimal)
{
    UNUSED_ARGS;
    return all_are(self.u.s, is_decimal, false);
}
METHOD(isdigit)
{
    UNUSED_ARGS;
    return all_are(self.u.s, is_digit, false);
}
METHOD(isnumeric)
{
    UNUSED_ARGS;
    return all_are(self.u.s, is_numeric, false);
}
METHOD(isspace)
{
    UNUSED_ARGS;
    return all_are(self.u.s, jx_is_space, false);
}
METHOD(isascii)
{
    UNUSED_ARGS;
    return all_are(self.u.s, is_ascii, true);
}
METHOD(isprintable)
{
    UNUSED_ARGS;
    return all_are(self.u.s, is_printable, true);
}
METHOD(isidentifier)
{
    UNUSED_ARGS;
    bool digit_first = self.u.s->n && self.u.s->p[0] >= '0' && self.u.s->p[0] <= '9';
    return jv_bool(!digit_first && all_are(self.u.s, js_is_word, false).u.b);
}

/* Some character has the wanted case and none the other one. */
static struct val has_case(const struct str *s, bool want_upper)
{
    bool any = false;
    for (size_t i = 0; i < s->n;) {
        int32_t cp;
        int len = utf8_next(s->p + i, s->n - i, &cp);
        if (cp >= 0 && ((want_upper ? js_is_lower(cp) : js_is_upper(cp)) || js_is_title(cp)))
            return jv_bool(false);
        any |= cp >= 0 && (want_upper ? js_is_upper(cp) : js_is_lower(cp));
        i += len ? (size_t)len : 1;
    }
    return jv_bool(any);
}

METHOD(isupper)
{
    UNUSED_ARGS;
    return has_case(self.u.s, true);
}
METHOD(islower)
{
    UNUSED_ARGS;
    return has_case(self.u.s, false);
}
METHOD(istitle)
{
    UNUSED_ARGS;
    bool any = false, in_word = false;
    for (size_t i = 0; i < self.u.s->n;) {
        int32_t cp;
        int len = utf8_next(self.u.s->p + i, self.u.s->n - i, &cp);
        bool upper = cp >= 0 && (js_is_upper(cp) || js_is_title(cp)), lower = cp >= 0 && js_is_lower(cp);
        if ((upper && in_word) || (lower && !in_word))
            return jv_bool(false);
        in_word = upper || lower;
        any |= upper;
        i += len ? (size_t)len : 1;
    }
    return jv_bool(any);
}

/* ---- the rest ------------------------------------------------------------------------------------- */

METHOD(encode)
{
    UNUSED_ARGS;
    const char *name = a[0].t == V_MISSING ? "utf-8" : jx_cstr(x, (text_arg(x, a[0], "encoding"), a[0]));
    bool utf8 = !strcmp(name, "utf-8") || !strcmp(name, "utf8") || !strcmp(name, "UTF-8");
    if (!utf8 && !(!strcmp(name, "ascii") && self.u.s->n == self.u.s->n_chars))
        jx_fail(x, JINJA_VALUE, "cannot encode to '%.40s'", name);
    self.t = V_BYTES;
    self.markup = false;
    return self;
}

METHOD(translate)
{
    UNUSED_ARGS;
    const struct str *s = self.u.s;
    struct sb *b = sb_new(x);
    for (size_t i = 0; i < s->n;) {
        int32_t cp;
        int len = utf8_next(s->p + i, s->n - i, &cp);
        len = len ? len : 1;
        struct val to = jx_item(x, a[0], jv_int(cp));
        if (to.t == V_UNDEF)
            sb_part(b, s, i, i + (size_t)len);
        else if (to.t == V_STR)
            sb_str(b, to.u.s);
        else if (to.t == V_INT && to.u.i >= 0 && to.u.i < 0x110000 && (to.u.i < 0xD800 || to.u.i > 0xDFFF))
            sb_chr(b, (int32_t)to.u.i, js_from_at(s, i));
        else if (to.t != V_NONE)
            jx_fail(x, JINJA_TYPE, "character mapping must return integer, None or str");
        i += (size_t)len;
    }
    return sb_take(b);
}

METHOD(format)
{
    UNUSED_ARGS;
    return js_format(x, self.u.s, raw, (struct val){0});
}

METHOD(format_map)
{
    UNUSED_ARGS;
    struct args none = {0};
    return js_format(x, self.u.s, &none, a[0]);
}

const struct builtin js_methods[] = {
    {"capitalize", "", m_capitalize},
    {"casefold", "", m_casefold},
    {"center", "/ width ?fillchar", m_center},
    {"count", "/ sub ?start ?end", m_count},
    {"encode", "?encoding ?errors", m_encode},
    {"endswith", "/ suffix ?start ?end", m_endswith},
    {"expandtabs", "?tabsize", m_expandtabs},
    {"find", "/ sub ?start ?end", m_find},
    {"format", "*", m_format},
    {"format_map", "/ mapping", m_format_map},
    {"index", "/ sub ?start ?end", m_index},
    {"isalnum", "", m_isalnum},
    {"isalpha", "", m_isalpha},
    {"isascii", "", m_isascii},
    {"isdecimal", "", m_isdecimal},
    {"isdigit", "", m_isdigit},
    {"isidentifier", "", m_isidentifier},
    {"islower", "", m_islower},
    {"isnumeric", "", m_isnumeric},
    {"isprintable", "", m_isprintable},
    {"isspace", "", m_isspace},
    {"istitle", "", m_istitle},
    {"isupper", "", m_isupper},
    {"join", "/ iterable", m_join},
    {"ljust", "/ width ?fillchar", m_ljust},
    {"lower", "", m_lower},
    {"lstrip", "/ ?chars", m_lstrip},
    {"partition", "/ sep", m_partition},
    {"removeprefix", "/ prefix", m_removeprefix},
    {"removesuffix", "/ suffix", m_removesuffix},
    {"replace", "/ old new ?count", m_replace},
    {"rfind", "/ sub ?start ?end", m_rfind},
    {"rindex", "/ sub ?start ?end", m_rindex},
    {"rjust", "/ width ?fillchar", m_rjust},
    {"rpartition", "/ sep", m_rpartition},
    {"rsplit", "?sep ?maxsplit", m_rsplit},
    {"rstrip", "/ ?chars", m_rstrip},
    {"split", "?sep ?maxsplit", m_split},
    {"splitlines", "?keepends", m_splitlines},
    {"startswith", "/ prefix ?start ?end", m_startswith},
    {"strip", "/ ?chars", m_strip},
    {"swapcase", "", m_swapcase},
    {"title", "", m_title},
    {"translate", "/ table", m_translate},
    {"upper", "", m_upper},
    {"zfill", "/ width", m_zfill},
    {NULL, NULL, NULL},
};
