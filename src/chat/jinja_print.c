/* Values as text: str(), repr(), JSON and HTML escaping, each byte with its origin. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "chat/jinja_eval.h"
#include "chat/jinja_value.h"
#include "base/utf8.h"

static bool is_printable(int32_t cp)
{
    if (cp < 0x7F)
        return cp >= 0x20;
    switch (utf8proc_category(cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

/* Walks s, hands every stretch that needs no escape through, and every other character to esc, which writes its
 * replacement to out and returns true, or false if the character may stay. */
static void write_escaped(struct sb *b, const struct str *s, bool (*esc)(int32_t cp, void *ud, char *out),
                          void *ud)
{
    size_t run = 0;
    char out[16];
    for (size_t i = 0; i < s->n;) {
        int32_t cp = (uint8_t)s->p[i];
        int len = cp < 0x80 ? 1 : utf8_next(s->p + i, s->n - i, &cp);
        len = len ? len : 1;
        if (esc(cp, ud, out)) {
            sb_part(b, s, run, i);
            sb_add(b, out, strlen(out), js_from_at(s, i));
            run = i + (size_t)len;
        }
        i += (size_t)len;
    }
    sb_part(b, s, run, s->n);
}

static bool repr_escape(int32_t cp, void *quote, char *out)
{
    static const char from[] = "\\\n\r\t", to[] = "\\nrt";
    const char *at = cp > 0 && cp < 0x80 ? strchr(from, cp) : NULL;
    if (at)
        snprintf(out, 16, "\\%c", to[at - from]);
    else if (cp == *(char *)quote)
        snprintf(out, 16, "\\%c", (char)cp);
    else if (cp < 0 || is_printable(cp))
        return false;
    else
        snprintf(out, 16, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)cp);
    return true;
}

static void repr_str(struct sb *b, const struct str *s)
{
    bool has_single = memchr(s->p, '\'', s->n), has_double = memchr(s->p, '"', s->n);
    char quote[2] = {has_single && !has_double ? '"' : '\'', 0};
    sb_text(b, quote);
    write_escaped(b, s, repr_escape, quote);
    sb_text(b, quote);
}

static void repr_bytes(struct sb *b, const struct str *s)
{
    bool has_single = memchr(s->p, '\'', s->n), has_double = memchr(s->p, '"', s->n);
    char quote[2] = {has_single && !has_double ? '"' : '\'', 0}, out[16];
    sb_text(b, "b");
    sb_text(b, quote);
    for (size_t i = 0; i < s->n; i++) {
        uint8_t c = (uint8_t)s->p[i];
        if (c >= 0x7F)
            snprintf(out, sizeof out, "\\x%02x", c);
        else if (!repr_escape(c, quote, out))
            snprintf(out, sizeof out, "%c", c);
        sb_add(b, out, strlen(out), js_from_at(s, i));
    }
    sb_text(b, quote);
}

static void repr_items(struct sb *b, const char *open, const struct list *l, const char *close)
{
    sb_text(b, open);
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            sb_text(b, ", ");
        jv_repr(b, l->v[i]);
    }
    sb_text(b, close);
}

static void repr_dict(struct sb *b, const struct dict *d)
{
    sb_text(b, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            sb_text(b, ", ");
        jv_repr(b, d->e[i].k);
        sb_text(b, ": ");
        jv_repr(b, d->e[i].v);
    }
    sb_text(b, "}");
}

static void add_fmt(struct sb *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add_fmt(struct sb *b, const char *fmt, ...)
{
    char s[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s, sizeof s, fmt, ap);
    va_end(ap);
    sb_text(b, s);
}

static void repr_func(struct sb *b, const struct func *f)
{
    if (f->self.t == V_MISSING)
        add_fmt(b, "<function %s>", f->b->name);
    else
        add_fmt(b, "<built-in method %s of %s object>", f->b->name, jv_type_name(f->self));
}

void jv_repr(struct sb *b, struct val v)
{
    struct jx *x = b->x;
    char s[40];
    jx_enter(x);
    jx_spend(x, 1);
    switch (v.t) {
    case V_UNDEF:
        sb_text(b, "Undefined");
        break;
    case V_STR:
        if (v.markup)
            sb_text(b, "Markup(");
        repr_str(b, v.u.s);
        if (v.markup)
            sb_text(b, ")");
        break;
    case V_BYTES:
        repr_bytes(b, v.u.s);
        break;
    case V_NONE:
    case V_BOOL:
        sb_add(b, v.t == V_NONE ? "None" : v.u.b ? "True" : "False", v.t == V_BOOL && !v.u.b ? 5 : 4, v.from);
        break;
    case V_INT:
    case V_BIG: {
        const char *text = jn_text(x, v, 10, true);
        sb_add(b, text, strlen(text), v.from);
        break;
    }
    case V_FLOAT:
        jn_float_repr(v.u.f, s);
        sb_add(b, s, strlen(s), v.from);
        break;
    case V_LIST:
        repr_items(b, "[", v.u.l, "]");
        break;
    case V_TUPLE:
        repr_items(b, "(", v.u.l, v.u.l->n == 1 ? ",)" : ")");
        break;
    case V_DICT:
        repr_dict(b, v.u.d);
        break;
    case V_VIEW:
        sb_text(b, jv_type_name(v));
        repr_items(b, "([", jv_items(x, v), "])");
        break;
    case V_RANGE:
        add_fmt(b, v.u.range->step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)",
                (long long)v.u.range->start, (long long)v.u.range->stop, (long long)v.u.range->step);
        break;
    case V_NS:
        sb_text(b, "<Namespace ");
        repr_dict(b, v.u.ns);
        sb_text(b, ">");
        break;
    case V_FUNC:
        repr_func(b, v.u.func);
        break;
    case V_ITER:
        add_fmt(b, "<%s object>", v.u.iter->kind);
        break;
    default:
        jx_repr_runtime(b, v);
    }
    x->depth--;
}

void jv_print(struct sb *b, struct val v)
{
    if (v.t == V_STR)
        sb_str(b, v.u.s);
    else if (v.t == V_UNDEF) // prints as nothing
        return;
    else
        jv_repr(b, v);
}

struct val jv_soft_str(struct jx *x, struct val v)
{
    if (v.t == V_STR)
        return v;
    struct sb *b = sb_new(x);
    jv_print(b, v);
    return sb_take(b);
}

struct val jv_to_str(struct jx *x, struct val v)
{
    v = jv_soft_str(x, v);
    v.markup = false;
    return v;
}

static bool html_escape(int32_t cp, void *ud, char *out)
{
    (void)ud;
    const char *to = cp == '&'    ? "&amp;"
                     : cp == '<'  ? "&lt;"
                     : cp == '>'  ? "&gt;"
                     : cp == '\'' ? "&#39;"
                     : cp == '"'  ? "&#34;"
                                  : NULL;
    if (to)
        snprintf(out, 16, "%s", to);
    return to != NULL;
}

struct val jv_escape(struct jx *x, struct val v)
{
    if (v.t != V_STR || !v.markup) {
        struct sb *b = sb_new(x);
        write_escaped(b, jv_soft_str(x, v).u.s, html_escape, NULL);
        v = sb_take(b);
        v.markup = true;
    }
    return v;
}

/* ---- JSON ----------------------------------------------------------------------------------------- */

static bool json_escape(int32_t cp, void *ascii, char *out)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *at = cp > 0 && cp < 0x80 ? strchr(from, cp) : NULL;
    if (at)
        snprintf(out, 16, "\\%c", to[at - from]);
    else if (cp < 0 || (cp >= 0x20 && (cp < 0x7F || !*(const bool *)ascii)))
        return false;
    else if (cp < 0x10000)
        snprintf(out, 16, "\\u%04x", (unsigned)cp);
    else
        snprintf(out, 16, "\\u%04x\\u%04x", (unsigned)(0xD7C0 + (cp >> 10)),
                 (unsigned)(0xDC00 + (cp & 0x3FF)));
    return true;
}

static void json_text(struct sb *b, const struct str *s, const struct json_style *st)
{
    bool ascii = st->ensure_ascii;
    sb_text(b, "\"");
    write_escaped(b, s, json_escape, &ascii);
    sb_text(b, "\"");
}

static void json_value(struct sb *b, struct val v, const struct json_style *st, int level);

static void json_break(struct sb *b, const struct json_style *st, int level)
{
    if (!st->indent)
        return;
    sb_text(b, "\n");
    for (int i = 0; i < level; i++)
        sb_text(b, st->indent);
}

static void json_scalar(struct sb *b, struct val v)
{
    if (v.t == V_NONE || v.t == V_BOOL) {
        const char *s = v.t == V_NONE ? "null" : v.u.b ? "true" : "false";
        sb_add(b, s, strlen(s), v.from);
    } else if (v.t == V_FLOAT && !isfinite(v.u.f)) {
        sb_text(b, isnan(v.u.f) ? "NaN" : v.u.f < 0 ? "-Infinity" : "Infinity");
    } else {
        jv_repr(b, v);
    }
}

static void json_key(struct sb *b, struct val k, const struct json_style *st)
{
    if (k.t == V_STR) {
        json_text(b, k.u.s, st);
        return;
    }
    if (k.t != V_NONE && !jv_is_num(k))
        jx_fail(b->x, JINJA_TYPE, "keys must be str, int, float, bool or None, not %s", jv_type_name(k));
    sb_text(b, "\"");
    json_scalar(b, k);
    sb_text(b, "\"");
}

static void json_dict(struct sb *b, const struct dict *d, const struct json_style *st, int level)
{
    struct jx *x = b->x;
    struct val *keys = jx_alloc(x, (d->n + 1) * sizeof *keys);
    for (size_t i = 0; i < d->n; i++)
        keys[i] = d->e[i].k;
    if (st->sort_keys)
        jx_sort(x, keys, keys, d->n, false);
    sb_text(b, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            sb_str(b, st->item_sep.u.s);
        json_break(b, st, level + 1);
        json_key(b, keys[i], st);
        sb_str(b, st->key_sep.u.s);
        json_value(b, st->sort_keys ? jd_find(x, d, keys[i])->v : d->e[i].v, st, level + 1);
    }
    if (d->n)
        json_break(b, st, level);
    sb_text(b, "}");
}

static void json_value(struct sb *b, struct val v, const struct json_style *st, int level)
{
    jx_enter(b->x);
    jx_spend(b->x, 1);
    if (v.t == V_STR) {
        json_text(b, v.u.s, st);
    } else if (v.t == V_NONE || jv_is_num(v)) {
        json_scalar(b, v);
    } else if (v.t == V_LIST || v.t == V_TUPLE) {
        sb_text(b, "[");
        for (size_t i = 0; i < v.u.l->n; i++) {
            if (i)
                sb_str(b, st->item_sep.u.s);
            json_break(b, st, level + 1);
            json_value(b, v.u.l->v[i], st, level + 1);
        }
        if (v.u.l->n)
            json_break(b, st, level);
        sb_text(b, "]");
    } else if (v.t == V_DICT) {
        json_dict(b, v.u.d, st, level);
    } else {
        jx_fail(b->x, JINJA_TYPE, "Object of type %s is not JSON serializable", jv_type_name(v));
    }
    b->x->depth--;
}

void jv_to_json(struct sb *b, struct val v, const struct json_style *st) { json_value(b, v, st, 0); }
