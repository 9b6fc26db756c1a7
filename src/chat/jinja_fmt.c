/* Formatting: the % operator of strings and str.format with its field and format specification language. Widths
 * and precisions come from templates, so nothing is formatted into a buffer of fixed size. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/jinja_str.h"
#include "base/utf8.h"

enum { MAX_PRECISION = 100000 };

struct spec {
    const char *fill; // one character
    size_t n_fill;
    char align; // < > = ^, 0: the type's own
    char sign;  // + - or space
    bool alt, zero;
    int64_t width, prec; // -1: not given
    char group, type;
    int32_t from; // origin of what is formatted
};

static void check_size(struct jx *x, int64_t n, int64_t max)
{
    if (n > max)
        jx_fail(x, JINJA_LIMIT, "a width or precision of a format is larger than the limit of %lld",
                (long long)max);
}

/* Writes head (sign, prefix) and body, padded to the width. */
static void put(struct sb *b, const struct spec *sp, const char *head, const struct str *body, char align)
{
    const struct str fill = {.p = sp->fill, .n = sp->n_fill, .n_chars = 1, .from = FROM_TPL};
    int64_t more = sp->width - (int64_t)strlen(head) - (int64_t)body->n_chars;
    more = more < 0 ? 0 : more;
    int64_t left = align == '>' ? more : align == '^' ? more / 2 : 0;
    sb_pad(b, &fill, left);
    sb_add(b, head, strlen(head), sp->from);
    sb_pad(b, &fill, align == '=' ? more : 0);
    sb_str(b, body);
    sb_pad(b, &fill, align == '<' || align == '^' ? more - left : 0);
}

static void put_text(struct sb *b, const struct spec *sp, const struct str *s)
{
    struct str cut = *s;
    if (sp->prec >= 0 && (size_t)sp->prec < s->n_chars) {
        cut.n = (size_t)js_index_byte(s, (size_t)sp->prec);
        cut.n_chars = (size_t)sp->prec;
    }
    put(b, sp, "", &cut, sp->align ? sp->align : '<');
}

/* Digits with separators every three (four for bases 2, 8, 16) in front of the point. */
static const char *group_digits(struct jx *x, const char *s, char group, int every)
{
    size_t n = strlen(s), whole = strspn(s, "0123456789abcdefABCDEF"), k = 0;
    if (strchr(s, '.') || strpbrk(s, "eE%"))
        whole = strspn(s, "0123456789");
    char *out = jx_alloc(x, 2 * n + 2);
    for (size_t i = 0; i < n; i++) {
        if (i && i < whole && (whole - i) % (size_t)every == 0)
            out[k++] = group;
        out[k++] = s[i];
    }
    return out;
}

static void put_number(struct sb *b, const struct spec *sp, bool neg, const char *prefix, const char *digits)
{
    struct jx *x = b->x;
    char head[16], sign = neg ? '-' : sp->sign == '+' || sp->sign == ' ' ? sp->sign : 0;
    snprintf(head, sizeof head, "%s%s", sign ? (char[]){sign, 0} : "", prefix);
    if (sp->group) {
        bool is_based = sp->type == 'b' || sp->type == 'o' || (sp->type | 0x20) == 'x';
        digits = group_digits(x, digits, sp->group, is_based ? 4 : 3);
    }
    struct val body = jv_str(x, digits, strlen(digits), sp->from);
    put(b, sp, head, body.u.s, sp->align ? sp->align : sp->zero ? '=' : '>');
}

static void put_int(struct sb *b, struct spec *sp, struct val v)
{
    struct jx *x = b->x;
    int base = sp->type == 'b' ? 2 : sp->type == 'o' ? 8 : (sp->type | 0x20) == 'x' ? 16 : 10;
    const char *prefix = !sp->alt || base == 10 ? ""
                         : base == 2            ? "0b"
                         : base == 8            ? "0o"
                         : sp->type == 'X'      ? "0X"
                                                : "0x";
    const char *s = jn_text(x, v, base, true);
    bool neg = *s == '-';
    struct sb *t = sb_new(x);
    s += neg;
    check_size(x, sp->prec, MAX_PRECISION);
    for (int64_t i = (int64_t)strlen(s); i < sp->prec; i++) // %.5d
        sb_text(t, "0");
    for (; *s; s++)
        sb_add(t, sp->type == 'X' && *s >= 'a' ? (char[]){(char)(*s - 32)} : s, 1, FROM_TPL);
    put_number(b, sp, neg, prefix, jx_cstr(x, sb_take(t)));
}

/* printf of a finite double with this precision and conversion, without a sign. */
static char *print_double(struct jx *x, double f, int64_t prec, char conv, bool alt)
{
    char fmt[8];
    size_t cap = (size_t)prec + 400;
    snprintf(fmt, sizeof fmt, alt ? "%%#.*%c" : "%%.*%c", conv);
    char *s = jx_alloc(x, cap);
    snprintf(s, cap, fmt, (int)prec, fabs(f));
    return s;
}

/* No type in a format specification: the shortest form, or `prec` digits with at least one behind the point. */
static char *print_general(struct jx *x, double f, int64_t prec)
{
    char *s = jx_alloc(x, 40);
    if (prec < 0) {
        jn_float_repr(fabs(f), s);
        return s;
    }
    prec = prec ? prec : 1;
    s = print_double(x, f, prec - 1, 'e', false);
    int decpt = (int)strtol(strchr(s, 'e') + 1, NULL, 10) + 1;
    bool use_exp = decpt <= -4 || decpt > prec - 1;
    if (!use_exp)
        s = print_double(x, f, prec - decpt, 'f', false);
    char *e = use_exp ? strchr(s, 'e') : s + strlen(s), *end = e;
    if (memchr(s, '.', (size_t)(e - s))) {
        while (end[-1] == '0')
            end--;
        end += end[-1] == '.' ? (use_exp ? -1 : 1) : 0;
        memmove(end, e, strlen(e) + 1);
    } else if (!use_exp) {
        size_t n = strlen(s);
        char *t = jx_alloc(x, n + 3);
        memcpy(t, s, n);
        memcpy(t + n, ".0", 2);
        s = t;
    }
    return s;
}

static void put_float(struct sb *b, struct spec *sp, double f)
{
    struct jx *x = b->x;
    char type = sp->type == '%' ? 'f' : sp->type == 'n' ? 'g' : sp->type;
    bool is_upper = type >= 'A' && type <= 'Z';
    int64_t prec = sp->prec < 0 ? 6 : sp->prec;
    check_size(x, prec, MAX_PRECISION);
    if (sp->type == '%')
        f *= 100;
    char *s;
    if (!isfinite(f)) {
        s = jx_alloc(x, 8);
        snprintf(s, 8, "%s", isnan(f) ? (is_upper ? "NAN" : "nan") : is_upper ? "INF" : "inf");
    } else {
        s = type ? print_double(x, f, prec, type, sp->alt) : print_general(x, f, sp->prec);
    }
    if (sp->type == '%') {
        size_t n = strlen(s);
        char *t = jx_alloc(x, n + 2);
        memcpy(t, s, n);
        t[n] = '%';
        s = t;
    }
    put_number(b, sp, signbit(f) && !isnan(f), "", s);
}

static struct val ascii_repr(struct jx *x, struct val v)
{
    struct sb *b = sb_new(x), *t = sb_new(x);
    jv_repr(b, v);
    const struct str *s = sb_take(b).u.s;
    for (size_t i = 0; i < s->n;) {
        int32_t cp;
        char e[16];
        int len = utf8_next(s->p + i, s->n - i, &cp);
        len = len ? len : 1;
        if (cp >= 0 && cp < 0x80) {
            sb_part(t, s, i, i + 1);
        } else {
            snprintf(e, sizeof e,
                     cp < 0x100     ? "\\x%02x"
                     : cp < 0x10000 ? "\\u%04x"
                                    : "\\U%08x",
                     (unsigned)cp);
            sb_add(t, e, strlen(e), js_from_at(s, i));
        }
        i += (size_t)len;
    }
    return sb_take(t);
}

static struct val convert(struct jx *x, struct val v, char how)
{
    if (how == 's')
        return jv_to_str(x, v);
    if (how == 'a')
        return ascii_repr(x, v);
    struct sb *b = sb_new(x);
    jv_repr(b, v);
    return sb_take(b);
}

/* ---- the % operator ------------------------------------------------------------------------------- */

struct percent {
    struct jx *x;
    const struct str *s;
    size_t i;
    struct val right;
    const struct val *args;
    size_t n_args, next;
};

static struct val next_arg(struct percent *p)
{
    if (p->next >= p->n_args)
        jx_fail(p->x, JINJA_TYPE, "not enough arguments for format string");
    return p->args[p->next++];
}

static int64_t star_or_number(struct percent *p, bool *negative)
{
    int64_t n = 0;
    if (p->i < p->s->n && p->s->p[p->i] == '*') {
        struct val v = next_arg(p);
        p->i++;
        if (!jv_is_int(v))
            jx_fail(p->x, JINJA_TYPE, "* wants int");
        n = jv_index(p->x, v, "*");
        *negative = n < 0;
        return n < 0 ? -n : n;
    }
    for (; p->i < p->s->n && p->s->p[p->i] >= '0' && p->s->p[p->i] <= '9'; p->i++)
        n = n > JX_MAX_TEXT ? n : n * 10 + (p->s->p[p->i] - '0');
    return n;
}

static struct val mapped_arg(struct percent *p)
{
    size_t start = ++p->i;
    int depth = 1;
    for (; p->i < p->s->n && depth; p->i++)
        depth += p->s->p[p->i] == '(' ? 1 : p->s->p[p->i] == ')' ? -1 : 0;
    if (depth)
        jx_fail(p->x, JINJA_VALUE, "incomplete format key");
    if (p->right.t != V_DICT)
        jx_fail(p->x, JINJA_TYPE, "format requires a mapping");
    struct pair *at = jd_find_text(p->x, p->right.u.d, p->s->p + start, p->i - 1 - start);
    if (!at)
        jx_fail(p->x, JINJA_VALUE, "the format's key is not in the mapping");
    return at->v;
}

static void percent_int(struct percent *p, struct sb *b, struct spec *sp, struct val v)
{
    bool is_based = sp->type == 'x' || sp->type == 'X' || sp->type == 'o';
    if (v.t == V_UNDEF)
        jx_fail_undef(p->x, v);
    if (!jv_is_num(v) || (is_based && v.t == V_FLOAT))
        jx_fail(p->x, JINJA_TYPE, "%%%c format: a%s number is required, not %s", sp->type,
                is_based ? "n integer" : " real", jv_type_name(v));
    put_int(b, sp, v.t == V_FLOAT ? jn_from_double(p->x, v.u.f) : v);
}

static void percent_field(struct percent *p, struct sb *b)
{
    struct jx *x = p->x;
    struct spec sp = {.fill = " ", .n_fill = 1, .prec = -1, .from = FROM_TPL};
    struct val v = {0};
    bool left = false, negative = false;
    if (p->i < p->s->n && p->s->p[p->i] == '(')
        v = mapped_arg(p);
    for (; p->i < p->s->n && p->s->p[p->i] && strchr("#0- +", p->s->p[p->i]); p->i++) {
        char c = p->s->p[p->i];
        sp.alt |= c == '#';
        sp.zero |= c == '0';
        left |= c == '-';
        if (c == '+' || (c == ' ' && sp.sign != '+'))
            sp.sign = c;
    }
    sp.width = star_or_number(p, &negative);
    left |= negative;
    if (p->i < p->s->n && p->s->p[p->i] == '.') {
        p->i++;
        sp.prec = star_or_number(p, &negative);
    }
    while (p->i < p->s->n && (p->s->p[p->i] == 'l' || p->s->p[p->i] == 'h' || p->s->p[p->i] == 'L'))
        p->i++;
    if (p->i >= p->s->n)
        jx_fail(x, JINJA_VALUE, "incomplete format");
    sp.type = p->s->p[p->i++];
    if (sp.type == '%') {
        sb_text(b, "%");
        return;
    }
    v = v.t == V_MISSING ? next_arg(p) : v;
    check_size(x, sp.width, JX_MAX_TEXT);
    sp.from = jv_from(v);
    sp.align = left ? '<' : '>';
    if (strchr("diuoxXeEfFgG", sp.type) && sp.zero && !left) {
        sp.fill = "0";
        sp.align = '=';
    }
    switch (sp.type) {
    case 's':
    case 'r':
    case 'a':
        put_text(b, &sp, convert(x, v, sp.type).u.s);
        return;
    case 'c':
        if (v.t == V_INT && v.u.i >= 0 && v.u.i < 0x110000) {
            struct sb *c = sb_new(x);
            sb_chr(c, (int32_t)v.u.i, v.from);
            v = sb_take(c);
        }
        if (v.t != V_STR || v.u.s->n_chars != 1)
            jx_fail(x, JINJA_TYPE, "%%c requires int or char");
        put_text(b, &sp, v.u.s);
        return;
    case 'd':
    case 'i':
    case 'u':
    case 'o':
    case 'x':
    case 'X':
        percent_int(p, b, &sp, v);
        return;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (v.t == V_UNDEF)
            jx_fail_undef(x, v);
        if (!jv_is_num(v))
            jx_fail(x, JINJA_TYPE, "must be real number, not %s", jv_type_name(v));
        put_float(b, &sp, jn_double(x, v));
        return;
    default:
        jx_fail(x, JINJA_VALUE, "unsupported format character '%c'",
                sp.type >= ' ' && sp.type < 127 ? sp.type : '?');
    }
}

struct val js_percent(struct jx *x, struct val self, struct val right)
{
    struct percent p = {.x = x, .s = self.u.s, .right = right, .args = &right, .n_args = 1};
    struct sb *b = sb_new(x);
    if (self.t == V_BYTES)
        jx_fail(x, JINJA_TYPE, "formatting of bytes is not supported");
    if (right.t == V_TUPLE) {
        p.args = right.u.l->v;
        p.n_args = right.u.l->n;
    }
    while (p.i < p.s->n) {
        const char *at = memchr(p.s->p + p.i, '%', p.s->n - p.i);
        size_t end = at ? (size_t)(at - p.s->p) : p.s->n;
        sb_part(b, p.s, p.i, end);
        p.i = end + 1;
        if (at)
            percent_field(&p, b);
    }
    bool may_be_mapping = right.t == V_DICT || right.t == V_LIST || right.t == V_UNDEF ||
                          right.t == V_RANGE || right.t == V_BYTES;
    if (p.next < p.n_args && !may_be_mapping)
        jx_fail(x, JINJA_TYPE, "not all arguments converted during string formatting");
    struct val v = sb_take(b);
    v.markup = self.markup;
    return v;
}

/* ---- str.format ----------------------------------------------------------------------------------- */

static struct spec parse_spec(struct jx *x, const struct str *t)
{
    struct spec sp = {.fill = " ", .n_fill = 1, .prec = -1};
    const char *p = t->p, *end = p + t->n;
    int32_t cp;
    size_t len = t->n ? (size_t)utf8_next(p, t->n, &cp) : 0;
    len = t->n && !len ? 1 : len;
    bool has_fill = false;
    if (t->n > len && p[len] && strchr("<>=^", p[len])) {
        sp.fill = p;
        sp.n_fill = len;
        sp.align = p[len];
        has_fill = true;
        p += len + 1;
    } else if (t->n && *p && strchr("<>=^", *p)) {
        sp.align = *p++;
    }
    if (p < end && (*p == '+' || *p == '-' || *p == ' '))
        sp.sign = *p++;
    if (p < end && *p == 'z')
        p++;
    if (p < end && *p == '#')
        sp.alt = true, p++;
    if (p < end && *p == '0') {
        sp.zero = true;
        p++;
        if (!has_fill)
            sp.fill = "0";
    }
    for (; p < end && *p >= '0' && *p <= '9'; p++)
        sp.width = sp.width > JX_MAX_TEXT ? sp.width : sp.width * 10 + (*p - '0');
    if (p < end && (*p == ',' || *p == '_'))
        sp.group = *p++;
    if (p < end && *p == '.') {
        if (++p == end || *p < '0' || *p > '9')
            jx_fail(x, JINJA_VALUE, "Format specifier missing precision");
        for (sp.prec = 0; p < end && *p >= '0' && *p <= '9'; p++)
            sp.prec = sp.prec > JX_MAX_TEXT ? sp.prec : sp.prec * 10 + (*p - '0');
    }
    sp.type = p < end ? *p++ : 0;
    if (p != end)
        jx_fail(x, JINJA_VALUE, "Invalid format specifier");
    check_size(x, sp.width, JX_MAX_TEXT);
    return sp;
}

static void format_value(struct sb *b, struct val v, const struct str *spec)
{
    struct jx *x = b->x;
    if (!spec->n) {
        jv_print(b, v);
        return;
    }
    struct spec sp = parse_spec(x, spec);
    sp.from = jv_from(v);
    if (v.t == V_STR) {
        if ((sp.type && sp.type != 's') || sp.align == '=' || sp.sign || sp.group)
            jx_fail(x, JINJA_VALUE, "Unknown format code '%c' for object of type 'str'",
                    sp.type ? sp.type : '=');
        put_text(b, &sp, v.u.s);
    } else if (!jv_is_num(v)) {
        jx_fail(x, JINJA_TYPE, "unsupported format string passed to %s.__format__", jv_type_name(v));
    } else if (sp.type && strchr("eEfFgG%", sp.type)) {
        put_float(b, &sp, jn_double(x, v));
    } else if (v.t == V_FLOAT) {
        if (sp.type && sp.type != 'n')
            jx_fail(x, JINJA_VALUE, "Unknown format code '%c' for object of type 'float'", sp.type);
        put_float(b, &sp, v.u.f);
    } else {
        if ((sp.type && !strchr("bcdoxXn", sp.type)) || sp.prec >= 0)
            jx_fail(x, JINJA_VALUE, "Unknown format code or precision for object of type 'int'");
        if (sp.type == 'c') {
            int64_t cp = jv_index(x, v, "c");
            if (cp < 0 || cp > 0x10FFFF)
                jx_fail(x, JINJA_VALUE, "%%c arg not in range(0x110000)");
            struct sb *c = sb_new(x);
            sb_chr(c, (int32_t)cp, sp.from);
            sp.align = sp.align ? sp.align : '>';
            put_text(b, &sp, sb_take(c).u.s);
            return;
        }
        put_int(b, &sp, v);
    }
}

struct format {
    struct jx *x;
    const struct str *s;
    const struct args *args;
    struct val mapping;
    int64_t next; // automatic field number; -1: fields are numbered by hand
};

static bool all_digits(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] < '0' || s[i] > '9')
            return false;
    return n > 0;
}

/* Value of a field name: "0", "", "name", followed by .attribute and [item]. */
static struct val field_value(struct format *f, size_t i, size_t end)
{
    struct jx *x = f->x;
    const char *s = f->s->p;
    size_t start = i;
    bool ok;
    while (i < end && s[i] != '.' && s[i] != '[')
        i++;
    struct val v = {0};
    if (i == start || all_digits(s + start, i - start)) {
        int64_t at =
            i == start ? f->next++ : jv_index(x, jn_parse_int(x, s + start, i - start, 10, &ok), "field");
        if (i == start ? f->next <= 0 : f->next > 0)
            jx_fail(x, JINJA_VALUE,
                    "cannot switch between manual field specification and automatic field numbering");
        if (i != start)
            f->next = -1;
        if (at >= f->args->n)
            jx_fail(x, JINJA_VALUE, "Replacement index %lld out of range", (long long)at);
        v = f->args->v[at];
    } else {
        for (int k = 0; k < f->args->n_kw && v.t == V_MISSING; k++)
            if (f->args->kw[k].k.u.s->n == i - start &&
                !memcmp(f->args->kw[k].k.u.s->p, s + start, i - start))
                v = f->args->kw[k].v;
        struct pair *p = v.t == V_MISSING && f->mapping.t == V_DICT
                             ? jd_find_text(x, f->mapping.u.d, s + start, i - start)
                             : NULL;
        if (p)
            v = p->v;
        if (v.t == V_MISSING)
            jx_fail(x, JINJA_VALUE, "the format's field '%.*s' was not given",
                    (int)(i - start > 99 ? 99 : i - start), s + start);
    }
    while (i < end) {
        bool is_attr = s[i] == '.';
        size_t from = ++i;
        while (i < end && (is_attr ? s[i] != '.' && s[i] != '[' : s[i] != ']'))
            i++;
        if (i == from || (!is_attr && i == end))
            jx_fail(x, JINJA_VALUE, "Empty attribute in format string");
        struct val key = js_part(x, f->s, from, i);
        if (is_attr)
            v = jx_attr(x, v, key);
        else
            v = jx_item(x, v,
                        all_digits(s + from, i - from) ? jn_parse_int(x, s + from, i - from, 10, &ok) : key);
        i += !is_attr;
        if (!is_attr && i < end && s[i] != '.' && s[i] != '[')
            jx_fail(x, JINJA_VALUE, "Only '.' or '[' may follow ']' in format field specifier");
    }
    return v;
}

static struct val format_part(struct format *f, size_t i, size_t end, int depth);

/* A field [i, end) without its braces. */
static void format_field(struct format *f, struct sb *b, size_t i, size_t end, int depth)
{
    const char *s = f->s->p;
    size_t name = i;
    bool in_item = false;
    while (i < end && (in_item || (s[i] != ':' && s[i] != '!'))) {
        in_item = s[i] == '[' ? true : s[i] == ']' ? false : in_item;
        i++;
    }
    struct val v = field_value(f, name, i), spec = jv_text(f->x, "");
    if (i < end && s[i] == '!') {
        char c = i + 1 < end ? s[i + 1] : 0;
        if (!c || !strchr("sra", c) || (i + 2 < end && s[i + 2] != ':'))
            jx_fail(f->x, JINJA_VALUE, "unknown conversion in a format string");
        v = convert(f->x, v, c);
        i += 2;
    }
    if (i < end)
        spec = format_part(f, i + 1, end, depth - 1);
    format_value(b, v, spec.u.s);
}

static struct val format_part(struct format *f, size_t i, size_t end, int depth)
{
    struct sb *b = sb_new(f->x);
    const char *s = f->s->p;
    if (depth < 0)
        jx_fail(f->x, JINJA_VALUE, "Max string recursion exceeded");
    while (i < end) {
        size_t start = i;
        while (i < end && s[i] != '{' && s[i] != '}')
            i++;
        sb_part(b, f->s, start, i);
        if (i == end)
            break;
        if (i + 1 < end && s[i + 1] == s[i]) { // {{ or }}
            sb_part(b, f->s, i, i + 1);
            i += 2;
            continue;
        }
        if (s[i] == '}')
            jx_fail(f->x, JINJA_VALUE, "Single '}' encountered in format string");
        size_t open = ++i;
        int nest = 1;
        for (; i < end && nest; i++)
            nest += s[i] == '{' ? 1 : s[i] == '}' ? -1 : 0;
        if (nest)
            jx_fail(f->x, JINJA_VALUE, "Single '{' encountered in format string");
        format_field(f, b, open, i - 1, depth);
    }
    return sb_take(b);
}

struct val js_format(struct jx *x, const struct str *s, const struct args *args, struct val mapping)
{
    struct format f = {.x = x, .s = s, .args = args, .mapping = mapping};
    return format_part(&f, 0, s->n, 1);
}
