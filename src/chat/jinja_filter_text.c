/* Filters over text. Most take any value and work on its text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/jinja_filter.h"
#include "base/utf8.h"

static bool truth_or(struct jx *x, struct val v, bool dflt)
{
    return v.t == V_MISSING ? dflt : jv_truth(x, v);
}
static bool given(struct val v) { return v.t != V_MISSING && v.t != V_NONE; }

static const struct str *need_str(struct jx *x, struct val v, const char *filter)
{
    if (v.t == V_UNDEF)
        jx_fail_undef(x, v);
    if (v.t != V_STR)
        jx_fail(x, JINJA_TYPE, "%s: expected str, got %s", filter, jv_type_name(v));
    return v.u.s;
}

/* A method of the value's text, with the filter's own arguments. */
static struct val by_method(struct jx *x, struct val self, const char *method, const struct args *args)
{
    self = jv_soft_str(x, self);
    return jx_run_builtin(x, jinja_find_method(self, method, strlen(method)), self, args);
}

#define BY_METHOD(filter, method)                             \
    FILTER_TYPE(filter)                                       \
    {                                                         \
        (void)a, (void)raw;                                   \
        return by_method(x, self, method, &(struct args){0}); \
    }
BY_METHOD(f_capitalize, "capitalize")
BY_METHOD(f_lower, "lower")
BY_METHOD(f_upper, "upper")

FILTER_TYPE(f_trim)
{
    UNUSED_ARGS;
    struct args args = {.v = a, .n = a[0].t != V_MISSING};
    return by_method(x, self, "strip", &args);
}

FILTER_TYPE(f_center)
{
    UNUSED_ARGS;
    struct val width = a[0].t == V_MISSING ? jv_int(80) : a[0];
    struct args args = {.v = &width, .n = 1};
    return by_method(x, self, "center", &args);
}

FILTER_TYPE(f_string)
{
    UNUSED_ARGS;
    return jv_soft_str(x, self);
}
FILTER_TYPE(f_escape)
{
    UNUSED_ARGS;
    return jv_escape(x, self);
}
FILTER_TYPE(f_forceescape)
{
    UNUSED_ARGS;
    return jv_escape(x, jv_to_str(x, self));
}

FILTER_TYPE(f_safe)
{
    UNUSED_ARGS;
    self = jv_soft_str(x, self);
    self.markup = true;
    return self;
}

FILTER_TYPE(f_format)
{
    UNUSED_ARGS;
    struct list_builder b = {0};
    if (raw->n && raw->n_kw)
        jx_fail(x, JINJA_VALUE, "can't handle positional and keyword arguments at the same time");
    for (int i = 0; i < raw->n; i++)
        lb_add(x, &b, raw->v[i]);
    struct val right = lb_take(x, &b, V_TUPLE);
    if (raw->n_kw) {
        struct dict *d = jd_new(x, (size_t)raw->n_kw);
        for (int i = 0; i < raw->n_kw; i++)
            jd_set(x, d, raw->kw[i].k, raw->kw[i].v);
        right = jv_dict(d);
    }
    return js_percent(x, jv_soft_str(x, self), right);
}

FILTER_TYPE(f_replace)
{
    UNUSED_ARGS;
    const struct str *s = jv_to_str(x, self).u.s, *old = jv_to_str(x, a[0]).u.s,
                     *new = jv_to_str(x, a[1]).u.s;
    return js_replace(x, s, old, new, given(a[2]) ? jv_index(x, a[2], "count") : -1);
}

FILTER_TYPE(f_join)
{
    UNUSED_ARGS;
    struct sb *b = sb_new(x);
    const struct list *l = jv_items(x, self);
    struct val sep = jv_to_str(x, a[0].t == V_MISSING ? jv_text(x, "") : a[0]);
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            sb_str(b, sep.u.s);
        jv_print(b, given(a[1]) ? jx_path(x, l->v[i], a[1], (struct val){0}) : l->v[i]);
    }
    return sb_take(b);
}

/* Words begin behind white space and - ( { [ <. */
FILTER_TYPE(f_title)
{
    UNUSED_ARGS;
    self = jv_soft_str(x, self);
    const struct str *s = self.u.s;
    struct sb *b = sb_new(x);
    for (size_t i = 0; i < s->n;) {
        size_t start = i, first = 0;
        int32_t cp;
        bool is_border = false;
        while (i < s->n) { // a run of borders, or a word
            int len = utf8_next(s->p + i, s->n - i, &cp);
            bool border = jx_is_space(cp) || (cp > 0 && cp < 0x80 && strchr("-({[<", cp));
            if (i > start && border != is_border)
                break;
            is_border = border;
            i += len ? (size_t)len : 1;
            first = first ? first : i - start;
        }
        sb_str(b, js_case(x, js_part(x, s, start, start + first).u.s, CASE_UPPER).u.s);
        sb_str(b, js_case(x, js_part(x, s, start + first, i).u.s, CASE_LOWER).u.s);
    }
    return sb_take(b);
}

FILTER_TYPE(f_indent)
{
    UNUSED_ARGS;
    const struct str *s = need_str(x, self, "indent");
    struct sb *pad = sb_new(x), *b = sb_new(x);
    if (a[0].t == V_STR) {
        sb_str(pad, a[0].u.s);
    } else {
        const struct str space = {.p = " ", .n = 1, .n_chars = 1, .from = FROM_TPL};
        sb_pad(pad, &space, a[0].t == V_MISSING ? 4 : jv_index(x, a[0], "width"));
    }
    const struct str *in = sb_take(pad).u.s;
    bool first = truth_or(x, a[1], false), blank = truth_or(x, a[2], false);
    const struct list *lines = js_lines(x, js_concat(x, s, jv_text(x, "\n").u.s).u.s, false).u.l;
    for (size_t i = 0; i < lines->n; i++) {
        const struct str *line = lines->v[i].u.s;
        if (i)
            sb_text(b, "\n");
        if (i == 0 ? first : blank || line->n)
            sb_str(b, in);
        sb_str(b, line);
    }
    struct val v = sb_take(b);
    v.markup = self.markup;
    return v;
}

FILTER_TYPE(f_truncate)
{
    UNUSED_ARGS;
    int64_t length = a[0].t == V_MISSING ? 255 : jv_index(x, a[0], "length"),
            leeway = given(a[3]) ? jv_index(x, a[3], "leeway") : 5;
    struct val end = a[2].t == V_MISSING ? jv_text(x, "...") : a[2];
    const struct str *tail = need_str(x, end, "truncate"), *s;
    if (length < (int64_t)tail->n_chars)
        jx_fail(x, JINJA_VALUE, "expected length >= %zu, got %lld", tail->n_chars, (long long)length);
    if (leeway < 0)
        jx_fail(x, JINJA_VALUE, "expected leeway >= 0, got %lld", (long long)leeway);
    if (jx_len(x, self) <= length + leeway)
        return self;
    s = need_str(x, self, "truncate");
    size_t cut = (size_t)js_index_byte(s, (size_t)length - tail->n_chars);
    if (!truth_or(x, a[1], false))
        for (size_t i = cut; i-- > 0;)
            if (s->p[i] == ' ') {
                cut = i;
                break;
            }
    return js_concat(x, js_part(x, s, 0, cut).u.s, tail);
}

FILTER_TYPE(f_wordcount)
{
    UNUSED_ARGS;
    const struct str *s = jv_to_str(x, self).u.s;
    int64_t n = 0;
    bool in = false;
    for (size_t i = 0; i < s->n;) {
        int32_t cp;
        int len = utf8_next(s->p + i, s->n - i, &cp);
        bool word = cp >= 0 && js_is_word(cp);
        n += word && !in;
        in = word;
        i += len ? (size_t)len : 1;
    }
    return jv_int(n);
}

/* ---- word wrap ------------------------------------------------------------------------------------ */

static bool is_wrap_space(char c) { return c && strchr(" \t\n\v\f\r", c); }

static bool letter_at(const struct str *s, size_t i)
{
    int32_t cp;
    if (i >= s->n)
        return false;
    utf8_next(s->p + i, s->n - i, &cp);
    return cp >= 0 && js_is_alpha(cp);
}

/* End of the chunk at i: white space, or a word, which ends behind a hyphen that stands between letters. */
static size_t chunk_end(const struct str *s, size_t i, bool hyphens)
{
    size_t start = i;
    bool space = is_wrap_space(s->p[i]);
    for (; i < s->n && is_wrap_space(s->p[i]) == space; i++) {
        if (space || !hyphens || s->p[i] != '-' || i < start + 2)
            continue;
        size_t before = i - 1;
        while (before > start && ((uint8_t)s->p[before] & 0xC0) == 0x80)
            before--;
        if (letter_at(s, before) && letter_at(s, i + 1))
            return i + 1;
    }
    return i;
}

/* Fills lines of at most width characters; white space at line borders is dropped. */
static void wrap_line(struct jx *x, struct list_builder *lines, const struct str *s, int64_t width,
                      bool break_long, bool hyphens)
{
    size_t i = 0, start = 0,
           end = 0; // the line so far is [start, end), what follows end is pending white space
    bool has = false;
    while (i < s->n) {
        size_t e = chunk_end(s, i, hyphens);
        if (is_wrap_space(s->p[i])) {
            if (!has && !lines->n) { // leading white space of the first line counts
                start = i;
                end = e;
                has = true;
            }
            i = e;
            continue;
        }
        size_t from = has ? start : i;
        jx_spend(x, 1 + (e - from) / 16);
        if ((int64_t)utf8_count(s->p + from, e - from) <= width) {
            start = from;
            end = e;
            has = true;
            i = e;
            continue;
        }
        int64_t room = has ? width - (int64_t)utf8_count(s->p + start, i - start) : width;
        if ((int64_t)utf8_count(s->p + i, e - i) > width && (break_long ? room > 0 : !has)) {
            size_t cut = e;
            if (break_long) {
                cut = i;
                for (int64_t k = 0; k < room && cut < e; k++) {
                    cut++;
                    while (cut < e && ((uint8_t)s->p[cut] & 0xC0) == 0x80)
                        cut++;
                }
            }
            lb_add(x, lines, js_part(x, s, from, cut));
            i = cut;
        } else if (has) {
            while (end > start && is_wrap_space(s->p[end - 1]))
                end--;
            if (end > start)
                lb_add(x, lines, js_part(x, s, start, end));
        }
        has = false;
        jx_spend(x, 1);
    }
    while (has && end > start && is_wrap_space(s->p[end - 1]))
        end--;
    if (has && end > start)
        lb_add(x, lines, js_part(x, s, start, end));
}

FILTER_TYPE(f_wordwrap)
{
    UNUSED_ARGS;
    const struct str *s = need_str(x, self, "wordwrap");
    int64_t width = a[0].t == V_MISSING ? 79 : jv_index(x, a[0], "width");
    struct val sep = given(a[2]) ? a[2] : jv_text(x, "\n");
    const struct list *in = js_lines(x, s, false).u.l;
    struct sb *b = sb_new(x);
    if (width <= 0 && in->n)
        jx_fail(x, JINJA_VALUE, "invalid width %lld (must be > 0)", (long long)width);
    need_str(x, sep, "wordwrap");
    for (size_t i = 0; i < in->n; i++) {
        struct list_builder lines = {0};
        wrap_line(x, &lines, in->v[i].u.s, width, truth_or(x, a[1], true), truth_or(x, a[3], true));
        for (size_t k = 0; k < lines.n || k == 0; k++) {
            if (i || k)
                sb_str(b, sep.u.s);
            if (k < lines.n)
                sb_str(b, lines.v[k].u.s);
        }
    }
    return sb_take(b);
}

/* ---- markup and the web ---------------------------------------------------------------------------- */

/* Writes the character an entity such as "&amp;" or "&#39;" at i stands for; returns its length, 0 if it is none. */
static size_t entity(struct sb *b, const struct str *s, size_t i)
{
    static const struct {
        const char *name, *text;
    } names[] = {{"&amp;", "&"},   {"&lt;", "<"},   {"&gt;", ">"},
                 {"&quot;", "\""}, {"&apos;", "'"}, {"&nbsp;", "\xc2\xa0"}};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        size_t n = strlen(names[k].name);
        if (s->n - i >= n && !memcmp(s->p + i, names[k].name, n)) {
            sb_add(b, names[k].text, strlen(names[k].text), js_from_at(s, i));
            return n;
        }
    }
    if (s->n - i < 4 || s->p[i + 1] != '#')
        return 0;
    bool hex = s->p[i + 2] == 'x' || s->p[i + 2] == 'X';
    size_t j = i + 2 + hex;
    int32_t cp = 0;
    for (; j < s->n && cp < 0x110000; j++) {
        const char *digits = "0123456789abcdef", *at = s->p[j] ? strchr(digits, s->p[j] | 0x20) : NULL;
        if (!at || (s->p[j] < '0') || at - digits >= (hex ? 16 : 10))
            break;
        cp = cp * (hex ? 16 : 10) + (int32_t)(at - digits);
    }
    if (j >= s->n || s->p[j] != ';' || cp == 0 || cp >= 0x110000 || (cp >= 0xD800 && cp < 0xE000))
        return 0;
    sb_chr(b, cp, js_from_at(s, i));
    return j + 1 - i;
}

/* Without what lies between open and close. */
static const struct str *cut_out(struct jx *x, const struct str *s, const char *open, const char *close)
{
    const struct str o = {.p = open, .n = strlen(open)}, c = {.p = close, .n = strlen(close)};
    struct sb *b = sb_new(x);
    size_t i = 0;
    int64_t at, end;
    while ((at = js_find(x, s, &o, i, s->n)) >= 0 && (end = js_find(x, s, &c, (size_t)at, s->n)) >= 0) {
        sb_part(b, s, i, (size_t)at);
        i = (size_t)end + c.n;
    }
    sb_part(b, s, i, s->n);
    return sb_take(b).u.s;
}

FILTER_TYPE(f_striptags)
{
    UNUSED_ARGS;
    const struct str *s = cut_out(x, cut_out(x, jv_to_str(x, self).u.s, "<!--", "-->"), "<", ">");
    const struct list *words = js_split(x, s, NULL, -1, false).u.l;
    struct sb *b = sb_new(x), *out = sb_new(x);
    for (size_t i = 0; i < words->n; i++) {
        if (i)
            sb_text(b, " ");
        sb_str(b, words->v[i].u.s);
    }
    s = sb_take(b).u.s;
    for (size_t i = 0; i < s->n;) {
        size_t n = s->p[i] == '&' ? entity(out, s, i) : 0;
        if (!n)
            sb_part(out, s, i, i + 1);
        i += n ? n : 1;
    }
    return sb_take(out);
}

FILTER_TYPE(f_xmlattr)
{
    UNUSED_ARGS;
    struct sb *b = sb_new(x);
    bool any = false;
    if (self.t == V_UNDEF)
        jx_fail_undef(x, self);
    if (self.t != V_DICT)
        jx_fail(x, JINJA_TYPE, "'%s' object has no attribute 'items'", jv_type_name(self));
    for (size_t i = 0; i < self.u.d->n; i++) {
        struct val k = self.u.d->e[i].k, v = self.u.d->e[i].v;
        if (v.t == V_NONE || v.t == V_UNDEF)
            continue;
        const struct str *name = need_str(x, k, "xmlattr");
        for (size_t j = 0; j < name->n; j++)
            if (name->p[j] && strchr(" \t\n\r\f\v/>=", name->p[j]))
                jx_fail(x, JINJA_VALUE, "Invalid character in attribute name");
        if (any || truth_or(x, a[0], true))
            sb_text(b, " ");
        any = true;
        sb_str(b, jv_escape(x, k).u.s);
        sb_text(b, "=\"");
        sb_str(b, jv_escape(x, v).u.s);
        sb_text(b, "\"");
    }
    return sb_take(b);
}

static void url_quote(struct sb *b, struct val v, bool for_query)
{
    const struct str *s = v.t == V_BYTES ? v.u.s : jv_to_str(b->x, v).u.s;
    for (size_t i = 0; i < s->n; i++) {
        uint8_t c = (uint8_t)s->p[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     (c && strchr("_.-~", c));
        char out[8];
        if (plain || (c == '/' && !for_query))
            snprintf(out, sizeof out, "%c", c);
        else if (c == ' ' && for_query)
            snprintf(out, sizeof out, "+");
        else
            snprintf(out, sizeof out, "%%%02X", c);
        sb_add(b, out, strlen(out), js_from_at(s, i));
    }
}

FILTER_TYPE(f_urlencode)
{
    UNUSED_ARGS;
    struct sb *b = sb_new(x);
    if (self.t == V_STR || !jv_is_iterable(self)) {
        url_quote(b, self, false);
        return sb_take(b);
    }
    struct args none = {0};
    if (self.t == V_DICT)
        self = jx_run_builtin(x, jinja_find_method(self, "items", 5), self, &none);
    const struct list *l = jv_items(x, self);
    for (size_t i = 0; i < l->n; i++) {
        const struct list *p = jv_items(x, l->v[i]);
        if (p->n != 2)
            jx_fail(x, JINJA_VALUE, "urlencode needs pairs");
        if (i)
            sb_text(b, "&");
        url_quote(b, p->v[0], true);
        sb_text(b, "=");
        url_quote(b, p->v[1], true);
    }
    return sb_take(b);
}

FILTER_TYPE(f_filesizeformat)
{
    UNUSED_ARGS;
    static const char *const decimal[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    static const char *const binary[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
    bool is_binary = truth_or(x, a[0], false);
    double bytes, base = is_binary ? 1024 : 1000, unit = base * base;
    char s[64];
    if (self.t == V_UNDEF)
        jx_fail_undef(x, self);
    if (jv_is_num(self))
        bytes = jn_double(x, self);
    else if (self.t != V_STR || !jn_parse_float(self.u.s->p, self.u.s->n, &bytes))
        jx_fail(x, JINJA_VALUE, "filesizeformat: could not convert to a number");
    if (bytes == 1)
        return jv_text(x, "1 Byte");
    int i = 0;
    if (bytes < base) {
        snprintf(s, sizeof s, "%.0f Bytes", trunc(bytes) + 0.0); // + 0.0: no -0
    } else {
        for (; i < 7 && bytes >= unit; i++)
            unit *= base;
        snprintf(s, sizeof s, "%.1f %s", base * bytes / unit, is_binary ? binary[i] : decimal[i]);
    }
    struct sb *b = sb_new(x);
    sb_text(b, s);
    return sb_take(b);
}

/* repr with the keys of mappings in order; not broken into lines. */
static struct val sort_mappings(struct jx *x, struct val v)
{
    jx_enter(x);
    if (v.t == V_LIST || v.t == V_TUPLE) {
        struct list_builder b = {0};
        for (size_t i = 0; i < v.u.l->n; i++)
            lb_add(x, &b, sort_mappings(x, v.u.l->v[i]));
        v = lb_take(x, &b, v.t);
    } else if (v.t == V_DICT) {
        const struct dict *d = v.u.d;
        struct dict *r = jd_new(x, d->n);
        struct val *keys = jx_alloc(x, d->n * sizeof *keys);
        bool same = true;
        for (size_t i = 0; i < d->n; i++) {
            keys[i] = d->e[i].k;
            same &= keys[i].t == keys[0].t;
        }
        if (same && d->n && (keys[0].t == V_STR || jv_is_num(keys[0])))
            jx_sort(x, keys, keys, d->n, false);
        for (size_t i = 0; i < d->n; i++)
            jd_set(x, r, keys[i], sort_mappings(x, jd_find(x, d, keys[i])->v));
        v = jv_dict(r);
    }
    x->depth--;
    return v;
}

FILTER_TYPE(f_pprint)
{
    UNUSED_ARGS;
    struct sb *b = sb_new(x);
    jv_repr(b, sort_mappings(x, self));
    return sb_take(b);
}
