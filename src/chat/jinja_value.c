/* Values: memory, construction, truth, equality, order, dicts, and strings that remember where each of their
 * bytes came from. */
#include "chat/jinja_str.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

/* ---- failing and memory --------------------------------------------------------------------------- */

void jx_fail_text(struct jx *x, enum jinja_class c, const char *s, size_t n)
{
    x->je->cls = c;
    x->je->line = x->line;
    x->je->msg = xstrndup(s, n);
    longjmp(x->env, 1);
}

void jx_fail(struct jx *x, enum jinja_class c, const char *fmt, ...)
{
    char msg[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    jx_fail_text(x, c, msg, strlen(msg));
}

void jx_fail_undef(struct jx *x, struct val v)
{
    const struct undef *u = v.u.undef;
    if (!u)
        jx_fail(x, JINJA_UNDEFINED, "an undefined value was used");
    if (u->hint)
        jx_fail(x, u->is_security ? JINJA_SECURITY : JINJA_UNDEFINED, "%s", u->hint);
    struct sb *b = sb_new(x);
    jv_repr(b, u->name);
    const char *name = jx_cstr(x, sb_take(b)), *type = jv_type_name(u->obj);
    if (u->is_security)
        jx_fail(x, JINJA_SECURITY, "access to attribute %.200s of '%s' object is unsafe", name, type);
    if (u->obj.t == V_MISSING)
        jx_fail(x, JINJA_UNDEFINED, "%.200s is undefined", name);
    const char *what = u->obj.t == V_NONE ? "None" : type, *object = u->obj.t == V_NONE ? "" : " object";
    if (u->name.t == V_STR)
        jx_fail(x, JINJA_UNDEFINED, "'%s%s' has no attribute %.200s", what, object, name);
    jx_fail(x, JINJA_UNDEFINED, "%s%s has no element %.200s", what, object, name);
}

void *jx_alloc(struct jx *x, size_t n)
{
    void *p = arena_alloc(&x->a, n ? n : 1);
    if (!p)
        jx_fail(x, JINJA_LIMIT, "the template needs more memory than the limit of %d MiB",
                JX_MAX_BYTES >> 20);
    return memset(p, 0, n);
}

void jx_spend(struct jx *x, uint64_t steps)
{
    x->steps += steps;
    if (x->steps > JX_MAX_STEPS)
        jx_fail(x, JINJA_LIMIT, "the template runs longer than the limit of %d steps", JX_MAX_STEPS);
}

void jx_enter(struct jx *x)
{
    if (++x->depth > JX_MAX_DEPTH)
        jx_fail(x, JINJA_LIMIT, "the template recurses deeper than the limit of %d levels", JX_MAX_DEPTH);
}

const char *jx_cstr(struct jx *x, struct val v)
{
    char *p = jx_alloc(x, v.u.s->n + 1);
    memcpy(p, v.u.s->p, v.u.s->n);
    return p;
}

/* ---- making --------------------------------------------------------------------------------------- */

struct val jv_none(void) { return (struct val){.t = V_NONE, .from = FROM_TPL}; }
struct val jv_bool(bool b) { return (struct val){.t = V_BOOL, .from = FROM_TPL, .u.b = b}; }
struct val jv_int(int64_t i) { return (struct val){.t = V_INT, .from = FROM_TPL, .u.i = i}; }
struct val jv_float(double f) { return (struct val){.t = V_FLOAT, .from = FROM_TPL, .u.f = f}; }
struct val jv_dict(const struct dict *d) { return (struct val){.t = V_DICT, .u.d = d}; }

struct val jv_undef_hint(struct jx *x, const char *hint)
{
    struct undef *u = jx_alloc(x, sizeof *u);
    u->hint = hint;
    return (struct val){.t = V_UNDEF, .from = FROM_TPL, .u.undef = u};
}

struct val jv_undef_name(struct jx *x, struct val obj, struct val name, bool is_security)
{
    struct undef *u = jx_alloc(x, sizeof *u);
    *u = (struct undef){.obj = obj, .name = name, .is_security = is_security};
    return (struct val){.t = V_UNDEF, .from = FROM_TPL, .u.undef = u};
}

size_t utf8_count(const char *s, size_t n)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += ((uint8_t)s[i] & 0xC0) != 0x80;
    return chars;
}

struct val jv_str(struct jx *x, const char *s, size_t n, int32_t from)
{
    struct str *t = jx_alloc(x, sizeof *t);
    *t = (struct str){.p = s, .n = n, .n_chars = utf8_count(s, n), .from = from};
    return (struct val){.t = V_STR, .u.s = t};
}

struct val jv_text(struct jx *x, const char *s) { return jv_str(x, s, strlen(s), FROM_TPL); }

struct val jv_list(struct jx *x, enum vtype t, struct val *v, size_t n)
{
    struct list *l = jx_alloc(x, sizeof *l);
    *l = (struct list){.v = v ? v : jx_alloc(x, sizeof *v), .n = n};
    return (struct val){.t = (uint8_t)t, .u.l = l};
}

struct val jv_pair(struct jx *x, struct val a, struct val b)
{
    struct val *v = jx_alloc(x, 2 * sizeof *v);
    v[0] = a;
    v[1] = b;
    return jv_list(x, V_TUPLE, v, 2);
}

struct val jv_func(struct jx *x, const struct builtin *b, struct val self)
{
    struct func *f = jx_alloc(x, sizeof *f);
    *f = (struct func){b, self};
    return (struct val){.t = V_FUNC, .u.func = f};
}

struct val jv_iter(struct jx *x, const struct list *items, const char *kind)
{
    struct iter *it = jx_alloc(x, sizeof *it);
    it->items = items;
    it->kind = kind;
    return (struct val){.t = V_ITER, .u.iter = it};
}

void lb_add(struct jx *x, struct list_builder *b, struct val v)
{
    if (b->n == b->cap) {
        size_t cap = b->cap ? 2 * b->cap : 8;
        if (b->n >= JX_MAX_ITEMS)
            jx_fail(x, JINJA_LIMIT, "a list is longer than the limit of %d items", JX_MAX_ITEMS);
        struct val *p = jx_alloc(x, cap * sizeof *p);
        if (b->n)
            memcpy(p, b->v, b->n * sizeof *p);
        b->v = p;
        b->cap = cap;
    }
    b->v[b->n++] = v;
}

struct val lb_take(struct jx *x, struct list_builder *b, enum vtype t)
{
    jx_spend(x, b->n / 4);
    return jv_list(x, t, b->v, b->n);
}

static struct val number_from_json(struct jx *x, const struct json *j)
{
    bool is_int = !memchr(j->s, '.', j->n) && !memchr(j->s, 'e', j->n) && !memchr(j->s, 'E', j->n), ok = true;
    struct val v = is_int ? jn_parse_int(x, j->s, j->n, 10, &ok) : jv_float(strtod(j->s, NULL));
    if (!ok)
        jx_fail(x, JINJA_VALUE, "an integer of the input has more than %d digits", JX_MAX_INT_DIGITS);
    return v;
}

/* Message k of the context's "messages" gives its text origin k. */
struct val jv_from_json(struct jx *x, const struct json *j, int32_t from, bool is_context)
{
    struct val v = jv_none();
    switch (j->type) {
    case JSON_NULL:
        break;
    case JSON_FALSE:
    case JSON_TRUE:
        v = jv_bool(j->type == JSON_TRUE);
        break;
    case JSON_NUMBER:
        v = number_from_json(x, j);
        break;
    case JSON_STRING:
        return jv_str(x, j->s, j->n, from);
    case JSON_ARRAY: {
        struct val *items = jx_alloc(x, j->n * sizeof *items);
        size_t i = 0;
        for (const struct json *c = j->child; c; c = c->next, i++)
            items[i] = jv_from_json(x, c, is_context ? (int32_t)i : from, false);
        return jv_list(x, V_LIST, items, j->n);
    }
    case JSON_OBJECT: {
        struct dict *d = jd_new(x, j->n);
        for (const struct json *c = j->child; c; c = c->next) {
            bool is_messages =
                is_context && c->type == JSON_ARRAY && c->n_key == 8 && !memcmp(c->key, "messages", 8);
            jd_set(x, d, jv_str(x, c->key, c->n_key, from), jv_from_json(x, c, from, is_messages));
        }
        return jv_dict(d);
    }
    }
    v.from = from;
    return v;
}

/* ---- asking --------------------------------------------------------------------------------------- */

const char *jv_type_name(struct val v)
{
    static const char *const names[] = {[V_MISSING] = "missing",
                                        [V_UNDEF] = "Undefined",
                                        [V_NONE] = "NoneType",
                                        [V_BOOL] = "bool",
                                        [V_INT] = "int",
                                        [V_BIG] = "int",
                                        [V_FLOAT] = "float",
                                        [V_STR] = "str",
                                        [V_BYTES] = "bytes",
                                        [V_LIST] = "list",
                                        [V_TUPLE] = "tuple",
                                        [V_DICT] = "dict",
                                        [V_VIEW] = "dict_keys",
                                        [V_RANGE] = "range",
                                        [V_SLICE] = "slice",
                                        [V_ITER] = "generator",
                                        [V_NS] = "Namespace",
                                        [V_FUNC] = "function",
                                        [V_MACRO] = "Macro",
                                        [V_LOOP] = "LoopContext",
                                        [V_CYCLER] = "Cycler",
                                        [V_JOINER] = "Joiner",
                                        [V_SELF] = "TemplateReference"};
    if (v.t == V_VIEW)
        return v.u.view->what == VIEW_KEYS     ? "dict_keys"
               : v.u.view->what == VIEW_VALUES ? "dict_values"
                                               : "dict_items";
    return v.markup ? "Markup" : names[v.t];
}

bool jv_is_int(struct val v) { return v.t == V_INT || v.t == V_BIG || v.t == V_BOOL; }
bool jv_is_num(struct val v) { return jv_is_int(v) || v.t == V_FLOAT; }

bool jv_is_iterable(struct val v)
{
    return v.t == V_UNDEF || v.t == V_STR || v.t == V_BYTES || v.t == V_LIST || v.t == V_TUPLE ||
           v.t == V_DICT || v.t == V_VIEW || v.t == V_RANGE || v.t == V_ITER || v.t == V_LOOP;
}

int64_t jv_len(struct jx *x, struct val v)
{
    (void)x;
    switch (v.t) {
    case V_UNDEF:
        return 0;
    case V_STR:
        return (int64_t)v.u.s->n_chars;
    case V_BYTES:
        return (int64_t)v.u.s->n;
    case V_LIST:
    case V_TUPLE:
        return (int64_t)v.u.l->n;
    case V_DICT:
        return (int64_t)v.u.d->n;
    case V_VIEW:
        return (int64_t)v.u.view->d->n;
    case V_RANGE:
        return v.u.range->n;
    default:
        return -1;
    }
}

bool jv_truth(struct jx *x, struct val v)
{
    switch (v.t) {
    case V_UNDEF:
    case V_NONE:
    case V_MISSING:
        return false;
    case V_BOOL:
        return v.u.b;
    case V_INT:
        return v.u.i != 0;
    case V_FLOAT:
        return v.u.f != 0;
    default:
        return jv_len(x, v) != 0; // what has no length (-1) is true
    }
}

int32_t jv_from(struct val v)
{
    if (v.t == V_STR || v.t == V_BYTES)
        return v.u.s->runs ? FROM_USER : v.u.s->from; // mixed: some of it is the user's
    return v.t <= V_FLOAT ? v.from : FROM_TPL;
}

static int bytes_compare(const struct str *a, const struct str *b)
{
    size_t n = a->n < b->n ? a->n : b->n;
    int c = n ? memcmp(a->p, b->p, n) : 0; // UTF-8 order is code point order
    return c < 0 ? -1 : c > 0 ? 1 : a->n < b->n ? -1 : a->n > b->n;
}

static bool dict_equal(struct jx *x, const struct dict *a, const struct dict *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        struct pair *p = jd_find(x, b, a->e[i].k);
        if (!p || !jv_equal(x, a->e[i].v, p->v))
            return false;
    }
    return true;
}

bool jv_equal(struct jx *x, struct val a, struct val b)
{
    jx_spend(x, 1);
    if (jv_is_num(a) && jv_is_num(b))
        return jn_compare(a, b) == 0;
    if (a.t != b.t)
        return false;
    bool eq = true;
    jx_enter(x);
    switch (a.t) {
    case V_UNDEF:
    case V_NONE:
    case V_MISSING:
        break;
    case V_STR:
    case V_BYTES:
        jx_spend(x, a.u.s->n / 64);
        eq = a.u.s->n == b.u.s->n && !bytes_compare(a.u.s, b.u.s);
        break;
    case V_LIST:
    case V_TUPLE:
        eq = a.u.l->n == b.u.l->n;
        for (size_t i = 0; eq && i < a.u.l->n; i++)
            eq = jv_equal(x, a.u.l->v[i], b.u.l->v[i]);
        break;
    case V_DICT:
        eq = dict_equal(x, a.u.d, b.u.d);
        break;
    case V_RANGE: {
        const struct range *r = a.u.range, *s = b.u.range;
        eq = r->n == s->n && (!r->n || (r->start == s->start && (r->n == 1 || r->step == s->step)));
        break;
    }
    case V_VIEW:
        if (a.u.view->what == VIEW_VALUES || b.u.view->what == VIEW_VALUES) {
            eq = a.u.view == b.u.view;
        } else {
            const struct list *l = jv_items(x, a);
            eq = l->n == b.u.view->d->n;
            for (size_t i = 0; eq && i < l->n; i++)
                eq = jv_in(x, l->v[i], b);
        }
        break;
    case V_FUNC:
        eq = a.u.func->b == b.u.func->b && a.u.func->self.u.s == b.u.func->self.u.s;
        break;
    default:
        eq = a.u.s == b.u.s; // identity
    }
    x->depth--;
    return eq;
}

int jv_compare(struct jx *x, struct val a, struct val b, const char *op)
{
    jx_spend(x, 1);
    if (a.t == V_UNDEF || b.t == V_UNDEF)
        jx_fail_undef(x, a.t == V_UNDEF ? a : b);
    if (jv_is_num(a) && jv_is_num(b))
        return jn_compare(a, b);
    if (a.t == b.t && (a.t == V_STR || a.t == V_BYTES)) {
        jx_spend(x, a.u.s->n / 64);
        return bytes_compare(a.u.s, b.u.s);
    }
    if (a.t != b.t || (a.t != V_LIST && a.t != V_TUPLE))
        jx_fail(x, JINJA_TYPE, "'%s' not supported between instances of '%s' and '%s'", op, jv_type_name(a),
                jv_type_name(b));
    int c = a.u.l->n < b.u.l->n ? -1 : a.u.l->n > b.u.l->n;
    size_t n = a.u.l->n < b.u.l->n ? a.u.l->n : b.u.l->n;
    jx_enter(x);
    for (size_t i = 0; i < n; i++)
        if (!jv_equal(x, a.u.l->v[i], b.u.l->v[i])) {
            c = jv_compare(x, a.u.l->v[i], b.u.l->v[i], op);
            break;
        }
    x->depth--;
    return c;
}

bool jv_in(struct jx *x, struct val item, struct val box)
{
    switch (box.t) {
    case V_STR:
        if (item.t != V_STR)
            jx_fail(x, JINJA_TYPE, "'in <string>' requires string as left operand, not %s",
                    jv_type_name(item));
        return js_find(x, box.u.s, item.u.s, 0, box.u.s->n) >= 0;
    case V_DICT:
        return jd_find(x, box.u.d, item) != NULL;
    case V_VIEW:
        if (box.u.view->what == VIEW_KEYS)
            return jd_find(x, box.u.view->d, item) != NULL;
        break;
    case V_RANGE:
        if (jv_is_num(item) && item.t != V_INT) { // floats are compared by value
            double f = jn_double(x, item);
            if (f != floor(f) || fabs(f) > 1e15)
                return false;
            item = jv_int((int64_t)f);
        }
        if (item.t != V_INT || !box.u.range->n)
            return false;
        int64_t off = item.u.i - box.u.range->start, step = box.u.range->step;
        return llabs(item.u.i) < ((int64_t)1 << 61) && off % step == 0 && off / step >= 0 &&
               off / step < box.u.range->n;
    default:
        break;
    }
    if (!jv_is_iterable(box))
        jx_fail(x, JINJA_TYPE, "argument of type '%s' is not iterable", jv_type_name(box));
    const struct list *l = jv_items(x, box);
    for (size_t i = 0; i < l->n; i++)
        if (jv_equal(x, l->v[i], item)) {
            if (box.t == V_ITER) // a generator goes on behind the item found
                box.u.iter->pos -= l->n - i - 1;
            return true;
        }
    return false;
}

static struct val char_at(struct jx *x, const struct str *s, size_t *i)
{
    size_t at = *i;
    do
        ++*i;
    while (*i < s->n && ((uint8_t)s->p[*i] & 0xC0) == 0x80);
    return js_part(x, s, at, *i);
}

const struct list *jv_items(struct jx *x, struct val v)
{
    struct list_builder b = {0};
    switch (v.t) {
    case V_UNDEF:
        break;
    case V_LIST:
    case V_TUPLE:
        jx_spend(x, v.u.l->n / 4);
        return v.u.l;
    case V_ITER: {
        struct iter *it = v.u.iter;
        if (it->fill) {
            void (*fill)(struct jx *, struct iter *) = it->fill;
            it->fill = NULL;
            jx_enter(x);
            fill(x, it);
            x->depth--;
        }
        struct val rest = jv_list(x, V_LIST, it->items->v + it->pos, it->items->n - it->pos);
        it->pos = it->items->n;
        return rest.u.l;
    }
    case V_STR:
        for (size_t i = 0; i < v.u.s->n;)
            lb_add(x, &b, char_at(x, v.u.s, &i));
        break;
    case V_BYTES:
        for (size_t i = 0; i < v.u.s->n; i++)
            lb_add(x, &b, jv_int((uint8_t)v.u.s->p[i]));
        break;
    case V_RANGE:
        for (int64_t i = 0; i < v.u.range->n; i++)
            lb_add(x, &b, jv_int(v.u.range->start + i * v.u.range->step));
        break;
    case V_DICT:
    case V_VIEW: {
        const struct dict *d = v.t == V_DICT ? v.u.d : v.u.view->d;
        int what = v.t == V_DICT ? VIEW_KEYS : (int)v.u.view->what;
        for (size_t i = 0; i < d->n; i++)
            lb_add(x, &b,
                   what == VIEW_KEYS     ? d->e[i].k
                   : what == VIEW_VALUES ? d->e[i].v
                                         : jv_pair(x, d->e[i].k, d->e[i].v));
        break;
    }
    default:
        jx_fail(x, JINJA_TYPE, "'%s' object is not iterable", jv_type_name(v));
    }
    jx_spend(x, b.n / 4);
    return lb_take(x, &b, V_LIST).u.l;
}

int64_t jv_index(struct jx *x, struct val v, const char *what)
{
    const int64_t far = (int64_t)1 << 62;
    if (v.t == V_UNDEF)
        jx_fail_undef(x, v);
    if (!jv_is_int(v))
        jx_fail(x, JINJA_TYPE, "%s: '%s' object cannot be interpreted as an integer", what, jv_type_name(v));
    if (v.t == V_BIG)
        return v.u.big->neg ? -far : far;
    int64_t i = v.t == V_BOOL ? v.u.b : v.u.i;
    return i > far ? far : i < -far ? -far : i;
}

/* ---- dicts ---------------------------------------------------------------------------------------- */

uint32_t js_hash(const char *s, size_t n)
{
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (uint8_t)s[i]) * 1099511628211u;
    return (uint32_t)(h ^ h >> 32);
}

uint32_t jv_hash(struct jx *x, struct val v)
{
    uint32_t h = v.t;
    jx_spend(x, 1);
    switch (v.t) {
    case V_BOOL:
    case V_INT:
    case V_BIG:
    case V_FLOAT: { // equal numbers of any type share a hash
        double f = jn_double(x, v);
        f = f == 0 ? 0 : f;
        return js_hash((const char *)&f, sizeof f);
    }
    case V_STR:
    case V_BYTES:
        jx_spend(x, v.u.s->n / 32);
        return js_hash(v.u.s->p, v.u.s->n);
    case V_TUPLE:
        jx_enter(x);
        for (size_t i = 0; i < v.u.l->n; i++)
            h = h * 1000003u ^ jv_hash(x, v.u.l->v[i]);
        x->depth--;
        return h;
    case V_LIST:
    case V_DICT:
    case V_SLICE:
    case V_VIEW:
        jx_fail(x, JINJA_TYPE, "unhashable type: '%s'", jv_type_name(v));
    case V_UNDEF:
    case V_NONE:
    case V_FUNC:
    case V_RANGE:
        return h;
    default:
        return (uint32_t)((uintptr_t)v.u.s >> 4);
    }
}

struct dict *jd_new(struct jx *x, size_t room)
{
    struct dict *d = jx_alloc(x, sizeof *d);
    d->cap = room;
    d->e = jx_alloc(x, room * sizeof *d->e);
    return d;
}

enum { SMALL_DICT = 8 }; // searched without an index

static struct pair *find(struct jx *x, const struct dict *d, struct val k, uint32_t hash)
{
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (d->e[i].hash == hash && jv_equal(x, d->e[i].k, k))
                return &d->e[i];
        return NULL;
    }
    for (uint32_t i = hash & d->mask; d->index[i]; i = (i + 1) & d->mask) {
        struct pair *p = &d->e[d->index[i] - 1];
        jx_spend(x, 1);
        if (p->hash == hash && jv_equal(x, p->k, k))
            return p;
    }
    return NULL;
}

struct pair *jd_find(struct jx *x, const struct dict *d, struct val k)
{
    return find(x, d, k, jv_hash(x, k));
}

struct pair *jd_find_text(struct jx *x, const struct dict *d, const char *s, size_t n)
{
    struct str t = {.p = s, .n = n};
    return find(x, d, (struct val){.t = V_STR, .u.s = &t}, js_hash(s, n));
}

static void reindex(struct jx *x, struct dict *d)
{
    uint32_t cap = 32;
    while (cap < 4 * d->n)
        cap *= 2;
    d->index = jx_alloc(x, cap * sizeof *d->index);
    d->mask = cap - 1;
    for (size_t j = 0; j < d->n; j++) {
        uint32_t i = d->e[j].hash & d->mask;
        while (d->index[i])
            i = (i + 1) & d->mask;
        d->index[i] = (uint32_t)j + 1;
    }
}

void jd_set(struct jx *x, struct dict *d, struct val k, struct val v)
{
    uint32_t hash = jv_hash(x, k);
    struct pair *p = find(x, d, k, hash);
    if (p) {
        p->v = v;
        return;
    }
    if (d->n >= JX_MAX_ITEMS)
        jx_fail(x, JINJA_LIMIT, "a mapping is longer than the limit of %d items", JX_MAX_ITEMS);
    if (d->n == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 4;
        struct pair *e = jx_alloc(x, cap * sizeof *e);
        if (d->n)
            memcpy(e, d->e, d->n * sizeof *e);
        d->e = e;
        d->cap = cap;
    }
    d->e[d->n++] = (struct pair){k, v, hash};
    if (d->index && 2 * d->n <= d->mask) {
        uint32_t i = hash & d->mask;
        while (d->index[i])
            i = (i + 1) & d->mask;
        d->index[i] = (uint32_t)d->n;
    } else if (d->n > SMALL_DICT) {
        reindex(x, d);
    }
}

/* ---- strings -------------------------------------------------------------------------------------- */

struct sb *sb_new(struct jx *x)
{
    struct sb *b = jx_alloc(x, sizeof *b);
    b->x = x;
    return b;
}

static void reserve(struct sb *b, size_t n)
{
    if (n > JX_MAX_TEXT || b->n + n > JX_MAX_TEXT)
        jx_fail(b->x, JINJA_LIMIT, "the template makes a text longer than the limit of %d MiB",
                JX_MAX_TEXT >> 20);
    jx_spend(b->x, n / 64);
    if (b->n + n <= b->cap)
        return;
    size_t cap = b->cap ? 2 * b->cap : 32;
    while (cap < b->n + n)
        cap *= 2;
    char *p = arena_alloc(&b->x->a, cap);
    if (!p)
        jx_fail(b->x, JINJA_LIMIT, "the template needs more memory than the limit of %d MiB",
                JX_MAX_BYTES >> 20);
    if (b->n)
        memcpy(p, b->p, b->n);
    b->p = p; // strings taken earlier keep the old bytes
    b->cap = cap;
}

void sb_add(struct sb *b, const char *s, size_t n, int32_t from)
{
    if (!n)
        return;
    reserve(b, n);
    memcpy(b->p + b->n, s, n);
    b->n += n;
    b->n_chars += utf8_count(s, n);
    if (b->n_runs && b->runs[b->n_runs - 1].from == from) {
        b->runs[b->n_runs - 1].end = b->n;
        return;
    }
    if (b->n_runs == b->cap_runs) {
        int cap = b->cap_runs ? 2 * b->cap_runs : 2;
        struct run *r = jx_alloc(b->x, (size_t)cap * sizeof *r);
        if (b->n_runs)
            memcpy(r, b->runs, (size_t)b->n_runs * sizeof *r);
        b->runs = r;
        b->cap_runs = cap;
    }
    b->runs[b->n_runs++] = (struct run){b->n, from};
}

void sb_text(struct sb *b, const char *s) { sb_add(b, s, strlen(s), FROM_TPL); }

void sb_chr(struct sb *b, int32_t cp, int32_t from)
{
    char s[4];
    sb_add(b, s, (size_t)utf8_put(cp, s), from);
}

static int run_at(const struct str *s, size_t i)
{
    int lo = 0, hi = s->n_runs - 1;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (s->runs[mid].end > i)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

void sb_part(struct sb *b, const struct str *s, size_t i, size_t j)
{
    if (i == j)
        return;
    if (!s->runs) {
        sb_add(b, s->p + i, j - i, s->from);
        return;
    }
    for (int r = run_at(s, i); i < j; r++) {
        size_t end = r == s->n_runs - 1 || s->runs[r].end > j ? j : s->runs[r].end;
        sb_add(b, s->p + i, end - i, s->runs[r].from);
        i = end;
    }
}

void sb_str(struct sb *b, const struct str *s) { sb_part(b, s, 0, s->n); }

void sb_pad(struct sb *b, const struct str *fill, int64_t n)
{
    if (n > 0 && fill->n && (uint64_t)n > JX_MAX_TEXT / fill->n)
        jx_fail(b->x, JINJA_LIMIT, "the template makes a text longer than the limit of %d MiB",
                JX_MAX_TEXT >> 20);
    if (n <= 0 || !fill->n)
        return;
    size_t start = b->n, all = (size_t)n * fill->n;
    reserve(b, all);
    if (fill->runs) {
        for (int64_t i = 0; i < n; i++)
            sb_str(b, fill);
        return;
    }
    sb_str(b, fill);
    for (size_t have; (have = b->n - start) < all;) { // what is there is copied behind itself
        size_t more = have < all - have ? have : all - have;
        sb_add(b, b->p + start, more, fill->from);
    }
}

struct val sb_take(struct sb *b)
{
    struct str *s = jx_alloc(b->x, sizeof *s);
    *s = (struct str){.p = b->p, .n = b->n, .n_chars = b->n_chars, .from = FROM_TPL, .store = b};
    if (b->n_runs > 1) {
        s->runs = b->runs;
        s->n_runs = b->n_runs;
    } else if (b->n_runs) {
        s->from = b->runs[0].from;
    }
    if (!s->p)
        s->p = "";
    return (struct val){.t = V_STR, .u.s = s};
}

/* Templates gather text by `s = s + more` in loops. If a is the newest string of its builder, more is appended
 * behind it in place (a keeps its own length), which makes such loops linear. */
struct val js_concat(struct jx *x, const struct str *a, const struct str *b)
{
    struct sb *store = a->store;
    if (!store || store->p != a->p || store->n != a->n) {
        store = sb_new(x);
        sb_str(store, a);
    }
    sb_str(store, b);
    return sb_take(store);
}

struct val js_part(struct jx *x, const struct str *s, size_t i, size_t j)
{
    if (s->runs) {
        struct sb *b = sb_new(x);
        sb_part(b, s, i, j);
        return sb_take(b);
    }
    return jv_str(x, s->p + i, j - i, s->from);
}

int32_t js_from_at(const struct str *s, size_t i) { return s->runs ? s->runs[run_at(s, i)].from : s->from; }

int64_t js_index_byte(const struct str *s, size_t i)
{
    if (s->n == s->n_chars)
        return (int64_t)i;
    size_t at = 0;
    for (; at < s->n; at++)
        if (((uint8_t)s->p[at] & 0xC0) != 0x80 && !i--)
            break;
    return (int64_t)at;
}

bool js_is(struct val v, const char *text)
{
    size_t n = strlen(text);
    return v.t == V_STR && v.u.s->n == n && !memcmp(v.u.s->p, text, n);
}
