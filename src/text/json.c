/* Parser: recursive descent with a depth limit, strings decoded into the arena. Format: RFC 8259. */
#include "text/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/rng.h"
#include "base/utf8.h"

enum { SMALL_OBJECT = 16 }; // up to so many keys are compared pairwise

struct parser {
    const char *s, *p, *end, *name;
    struct arena *a;
    struct err *e;
    int depth;
    uint64_t seed; // of key hashes, drawn when first needed
};

static int fail(struct parser *ps, int code, const char *what)
{
    return err_set(ps->e, code, "%s: bad JSON at byte %zu: %s", ps->name, (size_t)(ps->p - ps->s), what);
}

static int no_memory(struct parser *ps)
{
    return err_set(ps->e, ERR_LIMIT, "%s: JSON needs more memory than there is, or than the limit of %zu bytes", ps->name,
                   ps->a->max_bytes);
}

static void skip_space(struct parser *ps)
{
    while (ps->p < ps->end && (*ps->p == ' ' || *ps->p == '\n' || *ps->p == '\t' || *ps->p == '\r'))
        ps->p++;
}

static int hex4(struct parser *ps, int32_t *v)
{
    *v = 0;
    if (ps->end - ps->p < 4)
        return fail(ps, ERR_FORMAT, "cut \\u escape");
    for (int i = 0; i < 4; i++) {
        char c = *ps->p;
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0)
            return fail(ps, ERR_FORMAT, "\\u needs four hexadecimal digits");
        *v = *v * 16 + d;
        ps->p++;
    }
    return 0;
}

static int unicode_escape(struct parser *ps, char **out)
{
    int32_t v, low;
    if (hex4(ps, &v))
        return -1;
    if (v >= 0xD800 && v < 0xDC00 && ps->end - ps->p >= 6 && ps->p[0] == '\\' && ps->p[1] == 'u') {
        const char *back = ps->p;
        ps->p += 2;
        if (hex4(ps, &low))
            return -1;
        if (low >= 0xDC00 && low < 0xE000)
            v = 0x10000 + ((v - 0xD800) << 10) + (low - 0xDC00);
        else
            ps->p = back;
    }
    if (v >= 0xD800 && v < 0xE000)
        v = 0xFFFD;
    *out += utf8_put(v, *out);
    return 0;
}

/* p stands after the opening quote; on success after the closing one. */
static int string(struct parser *ps, const char **s, size_t *n)
{
    const char *q = ps->p;
    size_t extra = 0;
    while (q < ps->end && *q != '"') {
        if ((uint8_t)*q >= 0x80)
            extra += 2; // an invalid byte may become three
        q += *q == '\\' && q + 1 < ps->end ? 2 : 1;
    }
    if (q >= ps->end) {
        ps->p = ps->end;
        return fail(ps, ERR_FORMAT, "string without an end");
    }
    char *out = arena_alloc(ps->a, (size_t)(q - ps->p) + extra + 1), *w = out;
    if (!out)
        return no_memory(ps);
    while (*ps->p != '"') {
        uint8_t c = (uint8_t)*ps->p;
        if (c == '\\') {
            static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
            char x = ps->p[1];
            const char *at = x ? strchr(from, x) : NULL;
            if (at) {
                *w++ = to[at - from];
                ps->p += 2;
            } else if (x == 'u') {
                ps->p += 2;
                if (unicode_escape(ps, &w))
                    return ERR_FORMAT;
            } else {
                return fail(ps, ERR_FORMAT, "unknown escape in a string");
            }
        } else if (c < 0x20) {
            return fail(ps, ERR_FORMAT, "control character in a string");
        } else if (c < 0x80) {
            *w++ = *ps->p++;
        } else {
            int32_t cp;
            int len = utf8_next(ps->p, (size_t)(ps->end - ps->p), &cp);
            if (cp < 0) {
                w += utf8_put(0xFFFD, w);
                ps->p += len ? len : 1;
            } else {
                memcpy(w, ps->p, (size_t)len);
                w += len;
                ps->p += len;
            }
        }
    }
    ps->p++;
    *w = 0;
    *s = out;
    *n = (size_t)(w - out);
    return 0;
}

static const char *digits(const char *p, const char *end)
{
    while (p < end && *p >= '0' && *p <= '9')
        p++;
    return p;
}

static int number(struct parser *ps, struct json *v)
{
    const char *p = ps->p, *start = p, *q;
    if (p < ps->end && *p == '-')
        p++;
    q = digits(p, ps->end);
    if (q == p || (*p == '0' && q - p > 1))
        return fail(ps, ERR_FORMAT, "expected a value");
    p = q;
    if (p < ps->end && *p == '.') {
        q = digits(p + 1, ps->end);
        if (q == p + 1)
            return fail(ps, ERR_FORMAT, "number without digits after the point");
        p = q;
    }
    if (p < ps->end && (*p == 'e' || *p == 'E')) {
        p++;
        if (p < ps->end && (*p == '+' || *p == '-'))
            p++;
        q = digits(p, ps->end);
        if (q == p)
            return fail(ps, ERR_FORMAT, "number without digits in its exponent");
        p = q;
    }
    v->type = JSON_NUMBER;
    v->n = (size_t)(p - start);
    v->s = arena_strndup(ps->a, start, v->n);
    ps->p = p;
    return v->s ? 0 : no_memory(ps);
}

static int word(struct parser *ps, struct json *v, const char *w, enum json_type t)
{
    size_t n = strlen(w);
    if ((size_t)(ps->end - ps->p) < n || memcmp(ps->p, w, n))
        return fail(ps, ERR_FORMAT, "expected a value");
    ps->p += n;
    v->type = t;
    return 0;
}

static int value(struct parser *ps, struct json *v);

static bool same_key(const struct json *a, const struct json *b)
{
    return a->n_key == b->n_key && !memcmp(a->key, b->key, a->n_key);
}

static int duplicate(struct parser *ps, const struct json *v)
{
    return err_set(ps->e, ERR_FORMAT, "%s: key \"%.100s\" is listed twice", ps->name, v->key);
}

/* A duplicate key would make two readers of one file see different things. Large objects are hashed, so that
 * a vocabulary of 250,000 keys stays linear, with a seed, so that a text can't choose keys that collide. */
static int check_keys(struct parser *ps, const struct json *obj)
{
    if (obj->n <= SMALL_OBJECT) {
        for (const struct json *c = obj->child; c; c = c->next)
            for (const struct json *d = obj->child; d != c; d = d->next)
                if (same_key(c, d))
                    return duplicate(ps, c);
        return 0;
    }
    size_t cap = 4;
    while (cap < 2 * obj->n)
        cap *= 2;
    const struct json **slot = calloc(cap, sizeof *slot);
    if (!slot)
        return no_memory(ps);
    if (!ps->seed)
        ps->seed = rng_entropy() | 1;
    int rc = 0;
    for (const struct json *c = obj->child; c && !rc; c = c->next) {
        size_t i = XXH64(c->key, c->n_key, ps->seed) & (cap - 1);
        while (slot[i] && !same_key(slot[i], c))
            i = (i + 1) & (cap - 1);
        if (slot[i])
            rc = duplicate(ps, c);
        slot[i] = c;
    }
    free(slot);
    return rc;
}

static int container(struct parser *ps, struct json *v)
{
    bool is_object = *ps->p == '{';
    char close = is_object ? '}' : ']';
    struct json **tail = &v->child;
    v->type = is_object ? JSON_OBJECT : JSON_ARRAY;
    if (++ps->depth > JSON_MAX_DEPTH)
        return err_set(ps->e, ERR_LIMIT, "%s: JSON nested too deeply (more than %d levels) at byte %zu", ps->name,
                       JSON_MAX_DEPTH, (size_t)(ps->p - ps->s));
    ps->p++;
    skip_space(ps);
    if (ps->p < ps->end && *ps->p == close) {
        ps->p++;
        ps->depth--;
        return 0;
    }
    for (;;) {
        struct json *c = arena_alloc(ps->a, sizeof *c);
        if (!c)
            return no_memory(ps);
        *c = (struct json){0};
        skip_space(ps);
        if (is_object) {
            size_t n;
            if (ps->p >= ps->end || *ps->p != '"')
                return fail(ps, ERR_FORMAT, "expected a key in quotes");
            ps->p++;
            if (string(ps, &c->key, &n))
                return ERR_FORMAT;
            c->n_key = (uint32_t)n;
            skip_space(ps);
            if (ps->p >= ps->end || *ps->p != ':')
                return fail(ps, ERR_FORMAT, "expected ':' after a key");
            ps->p++;
        }
        if (value(ps, c))
            return ERR_FORMAT;
        *tail = c;
        tail = &c->next;
        v->n++;
        skip_space(ps);
        if (ps->p < ps->end && *ps->p == ',') {
            ps->p++;
            continue;
        }
        if (ps->p >= ps->end || *ps->p != close)
            return fail(ps, ERR_FORMAT, is_object ? "expected ',' or '}'" : "expected ',' or ']'");
        ps->p++;
        ps->depth--;
        return is_object ? check_keys(ps, v) : 0;
    }
}

static int value(struct parser *ps, struct json *v)
{
    skip_space(ps);
    if (ps->p >= ps->end)
        return fail(ps, ERR_FORMAT, "text ends where a value should stand");
    switch (*ps->p) {
    case '{':
    case '[':
        return container(ps, v);
    case '"':
        ps->p++;
        v->type = JSON_STRING;
        return string(ps, &v->s, &v->n);
    case 't':
        return word(ps, v, "true", JSON_TRUE);
    case 'f':
        return word(ps, v, "false", JSON_FALSE);
    case 'n':
        return word(ps, v, "null", JSON_NULL);
    default:
        return number(ps, v);
    }
}

int json_parse(struct json **out, struct arena *a, const char *s, size_t n, const char *name, struct err *e)
{
    struct parser ps = {.s = s, .p = s, .end = s + n, .name = name, .a = a, .e = e};
    struct err local = {0};
    if (!e)
        ps.e = &local;
    struct json *v = arena_alloc(a, sizeof *v);
    if (!v)
        return no_memory(&ps);
    *v = (struct json){0};
    if (value(&ps, v))
        return ps.e->code;
    skip_space(&ps);
    if (ps.p != ps.end)
        return fail(&ps, ERR_FORMAT, "text after the value");
    *out = v;
    return 0;
}

const struct json *json_get(const struct json *v, const char *key)
{
    if (!v || v->type != JSON_OBJECT)
        return NULL;
    size_t n = strlen(key);
    for (const struct json *c = v->child; c; c = c->next)
        if (c->n_key == n && !memcmp(c->key, key, n))
            return c;
    return NULL;
}

const struct json *json_at(const struct json *v, size_t i)
{
    if (!v || (v->type != JSON_ARRAY && v->type != JSON_OBJECT))
        return NULL;
    const struct json *c = v->child;
    while (c && i--)
        c = c->next;
    return c;
}

bool json_is(const struct json *v, enum json_type t) { return v && v->type == t; }

const char *json_type_name(const struct json *v)
{
    static const char *const name[] = {"null", "false", "true", "a number", "a string", "an array", "an object"};
    return v ? name[v->type] : "nothing";
}
const char *json_str(const struct json *v, const char *dflt) { return json_is(v, JSON_STRING) ? v->s : dflt; }
double json_num(const struct json *v, double dflt) { return json_is(v, JSON_NUMBER) ? strtod(v->s, NULL) : dflt; }

bool json_bool(const struct json *v, bool dflt)
{
    return json_is(v, JSON_TRUE) ? true : json_is(v, JSON_FALSE) ? false : dflt;
}

bool json_int(const struct json *v, int64_t *out)
{
    if (!json_is(v, JSON_NUMBER))
        return false;
    const char *s = v->s;
    bool neg = *s == '-';
    int64_t x = 0;
    for (s += neg; *s >= '0' && *s <= '9'; s++)
        if (__builtin_mul_overflow(x, (int64_t)10, &x) || __builtin_sub_overflow(x, (int64_t)(*s - '0'), &x))
            return false; // accumulated as a negative number: its range is the larger
    if (*s) {
        double d = strtod(v->s, NULL);
        if (!(fabs(d) < 0x1p53) || d != rint(d))
            return false;
        *out = (int64_t)d;
        return true;
    }
    if (!neg && x == INT64_MIN)
        return false;
    *out = neg ? x : -x;
    return true;
}

void json_write_str(struct buf *b, const char *s, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    size_t i = 0, run = 0; // s[run..i) needs no escape
    buf_chr(b, '"');
    while (i < n) {
        uint8_t c = (uint8_t)s[i];
        int32_t cp = c;
        int len = 1;
        if (c >= 0x80) {
            len = utf8_next(s + i, n - i, &cp);
            if (!len)
                len = (int)(n - i); // a cut sequence at the end
            if (cp >= 0 && cp != 0x85 && cp != 0x2028 && cp != 0x2029) {
                i += (size_t)len;
                continue;
            }
        } else if (c >= 0x20 && c != '"' && c != '\\') {
            i++;
            continue;
        }
        buf_add(b, s + run, i - run);
        if (cp < 0) {
            buf_str(b, "\xEF\xBF\xBD");
        } else if (cp >= 0x80) { // readers of lines may count these as line ends
            buf_fmt(b, "\\u%04x", (unsigned)cp);
        } else {
            static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
            const char *at = c ? strchr(from, c) : NULL;
            char esc[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
            if (at)
                esc[1] = to[at - from];
            buf_add(b, esc, at ? 2 : 6);
        }
        i += (size_t)len;
        run = i;
    }
    buf_add(b, s + run, i - run);
    buf_chr(b, '"');
}

void json_shortest(double v, char *out)
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, v);
        if (strtod(out, NULL) == v)
            return;
    }
}

void json_write_double(struct buf *b, double v)
{
    char s[32];
    if (!isfinite(v)) {
        buf_str(b, "null");
        return;
    }
    json_shortest(v, s);
    buf_str(b, s);
}

void json_write(struct buf *b, const struct json *v)
{
    switch (v->type) {
    case JSON_NULL:
        buf_str(b, "null");
        return;
    case JSON_FALSE:
        buf_str(b, "false");
        return;
    case JSON_TRUE:
        buf_str(b, "true");
        return;
    case JSON_NUMBER:
        buf_add(b, v->s, v->n);
        return;
    case JSON_STRING:
        json_write_str(b, v->s, v->n);
        return;
    case JSON_ARRAY:
    case JSON_OBJECT:
        buf_chr(b, v->type == JSON_ARRAY ? '[' : '{');
        for (const struct json *c = v->child; c; c = c->next) {
            if (c->key) {
                json_write_str(b, c->key, c->n_key);
                buf_chr(b, ':');
            }
            json_write(b, c);
            if (c->next)
                buf_chr(b, ',');
        }
        buf_chr(b, v->type == JSON_ARRAY ? ']' : '}');
    }
}
