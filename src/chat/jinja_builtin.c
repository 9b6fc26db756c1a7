/* Calling builtins (arguments bound by name and position), global functions, methods of everything but text, and
 * the attributes of run time objects such as `loop`. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/jinja_str.h"

/* ---- binding -------------------------------------------------------------------------------------- */

static bool key_is(const struct pair *kw, const char *name, size_t n)
{
    return kw->k.u.s->n == n && !memcmp(kw->k.u.s->p, name, n);
}

static void bind(struct jx *x, const struct builtin *b, const struct args *args, struct val *a)
{
    bool by_position = b->params[0] == '/';
    int n = 0, used = 0;
    for (const char *p = b->params + by_position; *p;) {
        p += strspn(p, " ");
        bool is_optional = *p == '?';
        p += is_optional;
        size_t len = strcspn(p, " ");
        if (!len)
            break;
        if (n < args->n)
            a[n] = args->v[n];
        for (int k = 0; !by_position && k < args->n_kw; k++)
            if (key_is(&args->kw[k], p, len)) {
                if (a[n].t != V_MISSING)
                    jx_fail(x, JINJA_TYPE, "%s() got multiple values for argument '%.*s'", b->name, (int)len,
                            p);
                a[n] = args->kw[k].v;
                used++;
            }
        if (a[n].t == V_MISSING && !is_optional)
            jx_fail(x, JINJA_TYPE, "%s() is missing its argument '%.*s'", b->name, (int)len, p);
        n++;
        p += len;
    }
    if (args->n > n)
        jx_fail(x, JINJA_TYPE, "%s() takes at most %d arguments (%d given)", b->name, n, args->n);
    if (used < args->n_kw)
        jx_fail(x, JINJA_TYPE, "%s() got an unexpected keyword argument", b->name);
}

/* Text that methods of safe text return is safe as well. */
static struct val keep_markup(struct jx *x, struct val v)
{
    if (v.t == V_STR)
        v.markup = true;
    if (v.t != V_LIST && v.t != V_TUPLE)
        return v;
    struct list_builder b = {0};
    for (size_t i = 0; i < v.u.l->n; i++) {
        struct val item = v.u.l->v[i];
        item.markup = item.t == V_STR;
        lb_add(x, &b, item);
    }
    return lb_take(x, &b, v.t);
}

static bool is_str_method(const struct builtin *b)
{
    for (const struct builtin *m = js_methods; m->name; m++)
        if (m == b)
            return true;
    return false;
}

struct val jx_run_builtin(struct jx *x, const struct builtin *b, struct val self, const struct args *args)
{
    struct val a[MAX_PARAMS] = {0};
    jx_spend(x, 1);
    if (b->params[0] != '*')
        bind(x, b, args, a);
    struct val v = b->fn(x, self, a, args);
    return self.t == V_STR && self.markup && is_str_method(b) ? keep_markup(x, v) : v;
}

int64_t jx_len(struct jx *x, struct val v)
{
    struct val n;
    int64_t len = jv_len(x, v);
    if (v.t == V_LOOP && jx_runtime_attr(x, v, "length", 6, &n))
        len = n.u.i;
    if (len < 0)
        jx_fail(x, JINJA_TYPE, "object of type '%s' has no len()", jv_type_name(v));
    return len;
}

/* ---- methods -------------------------------------------------------------------------------------- */

#define BUILTIN(name) \
    static struct val name(struct jx *x, struct val self, const struct val *a, const struct args *raw)
#define UNUSED_ARGS (void)x, (void)self, (void)a, (void)raw

BUILTIN(seq_count)
{
    UNUSED_ARGS;
    const struct list *l = jv_items(x, self);
    int64_t n = 0;
    for (size_t i = 0; i < l->n; i++)
        n += jv_equal(x, l->v[i], a[0]);
    return jv_int(n);
}

BUILTIN(seq_index)
{
    UNUSED_ARGS;
    const struct list *l = jv_items(x, self);
    int64_t n = (int64_t)l->n, from = a[1].t == V_MISSING ? 0 : jv_index(x, a[1], "start"),
            to = a[2].t == V_MISSING ? n : jv_index(x, a[2], "stop");
    from = from < 0 ? (from + n < 0 ? 0 : from + n) : from;
    to = to < 0 ? to + n : to > n ? n : to;
    for (int64_t i = from; i < to; i++)
        if (jv_equal(x, l->v[i], a[0]))
            return jv_int(i);
    jx_fail(x, JINJA_VALUE, "the value is not in the %s", jv_type_name(self));
}

BUILTIN(copy_self)
{
    UNUSED_ARGS;
    return self;
} // values are immutable

static struct val view(struct jx *x, struct val self, int what)
{
    struct view *v = jx_alloc(x, sizeof *v);
    v->d = self.u.d;
    v->what = what == 0 ? VIEW_KEYS : what == 1 ? VIEW_VALUES : VIEW_ITEMS;
    return (struct val){.t = V_VIEW, .u.view = v};
}

BUILTIN(dict_keys)
{
    UNUSED_ARGS;
    return view(x, self, 0);
}
BUILTIN(dict_values)
{
    UNUSED_ARGS;
    return view(x, self, 1);
}
BUILTIN(dict_items)
{
    UNUSED_ARGS;
    return view(x, self, 2);
}

BUILTIN(dict_get)
{
    UNUSED_ARGS;
    struct pair *p = jd_find(x, self.u.d, a[0]);
    return p ? p->v : a[1].t == V_MISSING ? jv_none() : a[1];
}

BUILTIN(dict_fromkeys)
{
    UNUSED_ARGS;
    const struct list *l = jv_items(x, a[0]);
    struct dict *d = jd_new(x, l->n);
    for (size_t i = 0; i < l->n; i++)
        jd_set(x, d, l->v[i], a[1].t == V_MISSING ? jv_none() : a[1]);
    return jv_dict(d);
}

BUILTIN(view_isdisjoint)
{
    UNUSED_ARGS;
    const struct list *l = jv_items(x, a[0]);
    for (size_t i = 0; i < l->n; i++)
        if (jv_in(x, l->v[i], self))
            return jv_bool(false);
    return jv_bool(true);
}

BUILTIN(int_bit_length)
{
    UNUSED_ARGS;
    return jv_int(jn_bits(self));
}

BUILTIN(int_bit_count)
{
    UNUSED_ARGS;
    int64_t n = 0;
    for (const char *s = jn_text(x, self, 2, false); *s; s++)
        n += *s == '1';
    return jv_int(n);
}

BUILTIN(num_conjugate)
{
    UNUSED_ARGS;
    return self.t == V_BOOL ? jv_int(self.u.b) : self;
}
BUILTIN(float_is_integer)
{
    UNUSED_ARGS;
    return jv_bool(isfinite(self.u.f) && floor(self.u.f) == self.u.f);
}

BUILTIN(as_integer_ratio)
{
    UNUSED_ARGS;
    struct val num = self.t == V_BOOL ? jv_int(self.u.b) : self, den = jv_int(1);
    if (self.t == V_FLOAT) {
        double f = self.u.f;
        int shift = 0;
        for (; isfinite(f) && floor(f) != f; shift++)
            f *= 2;
        num = jn_from_double(x, f);
        for (; shift; shift--)
            den = jn_arith(x, '*', den, jv_int(2));
    }
    return jv_pair(x, num, den);
}

BUILTIN(bytes_decode)
{
    UNUSED_ARGS;
    struct val v = jv_str(x, self.u.s->p, self.u.s->n, jv_from((struct val){.t = V_STR, .u.s = self.u.s}));
    return v;
}

BUILTIN(bytes_hex)
{
    UNUSED_ARGS;
    struct sb *b = sb_new(x);
    char hex[4];
    for (size_t i = 0; i < self.u.s->n; i++) {
        snprintf(hex, sizeof hex, "%02x", (uint8_t)self.u.s->p[i]);
        sb_add(b, hex, 2, js_from_at(self.u.s, i));
    }
    return sb_take(b);
}

BUILTIN(cycler_next)
{
    UNUSED_ARGS;
    struct cycler *c = self.u.cycler;
    struct val v = c->items->v[c->pos];
    c->pos = (c->pos + 1) % c->items->n;
    return v;
}

BUILTIN(cycler_reset)
{
    UNUSED_ARGS;
    self.u.cycler->pos = 0;
    return jv_none();
}

BUILTIN(loop_cycle)
{
    UNUSED_ARGS;
    if (!raw->n || raw->n_kw)
        jx_fail(x, JINJA_TYPE, "no items for cycling given");
    return raw->v[self.u.loop->index0 % raw->n];
}

BUILTIN(loop_changed)
{
    UNUSED_ARGS;
    struct list_builder b = {0};
    if (raw->n_kw)
        jx_fail(x, JINJA_TYPE, "changed() got an unexpected keyword argument");
    for (int i = 0; i < raw->n; i++)
        lb_add(x, &b, raw->v[i]);
    struct val now = lb_take(x, &b, V_TUPLE);
    bool changed = self.u.loop->changed.t == V_MISSING || !jv_equal(x, self.u.loop->changed, now);
    self.u.loop->changed = now;
    return jv_bool(changed);
}

static const struct builtin list_methods[] = {{"copy", "", copy_self},
                                              {"count", "/ value", seq_count},
                                              {"index", "/ value ?start ?stop", seq_index},
                                              {NULL, NULL, NULL}};
static const struct builtin dict_methods[] = {{"copy", "", copy_self},
                                              {"fromkeys", "/ iterable ?value", dict_fromkeys},
                                              {"get", "/ key ?default", dict_get},
                                              {"items", "", dict_items},
                                              {"keys", "", dict_keys},
                                              {"values", "", dict_values},
                                              {NULL, NULL, NULL}};
static const struct builtin int_methods[] = {{"as_integer_ratio", "", as_integer_ratio},
                                             {"bit_count", "", int_bit_count},
                                             {"bit_length", "", int_bit_length},
                                             {"conjugate", "", num_conjugate},
                                             {NULL, NULL, NULL}};
static const struct builtin float_methods[] = {{"as_integer_ratio", "", as_integer_ratio},
                                               {"conjugate", "", num_conjugate},
                                               {"is_integer", "", float_is_integer},
                                               {NULL, NULL, NULL}};
static const struct builtin bytes_methods[] = {
    {"decode", "?encoding ?errors", bytes_decode}, {"hex", "", bytes_hex}, {NULL, NULL, NULL}};
static const struct builtin view_methods[] = {{"isdisjoint", "/ other", view_isdisjoint}, {NULL, NULL, NULL}};
static const struct builtin cycler_methods[] = {
    {"next", "", cycler_next}, {"reset", "", cycler_reset}, {NULL, NULL, NULL}};
static const struct builtin loop_methods[] = {
    {"changed", "*", loop_changed}, {"cycle", "*", loop_cycle}, {NULL, NULL, NULL}};

static const struct builtin *find(const struct builtin *table, const char *name, size_t n)
{
    for (; table && table->name; table++)
        if (table->name[0] == name[0] && strlen(table->name) == n && !memcmp(table->name, name, n))
            return table;
    return NULL;
}

const struct builtin *jinja_find_method(struct val obj, const char *name, size_t n)
{
    static const struct builtin *const tables[] = {[V_BOOL] = int_methods,       [V_INT] = int_methods,
                                                   [V_BIG] = int_methods,        [V_FLOAT] = float_methods,
                                                   [V_STR] = js_methods,         [V_BYTES] = bytes_methods,
                                                   [V_LIST] = list_methods,      [V_TUPLE] = list_methods + 1,
                                                   [V_DICT] = dict_methods,      [V_VIEW] = view_methods,
                                                   [V_RANGE] = list_methods + 1, [V_LOOP] = loop_methods,
                                                   [V_CYCLER] = cycler_methods,  [V_SELF] = NULL};
    return n ? find(tables[obj.t], name, n) : NULL;
}

bool jx_is_mutator(struct val obj, const char *name, size_t n)
{
    static const char *const list_names[] = {"append", "clear",  "pop",    "reverse", "insert",
                                             "sort",   "extend", "remove", NULL};
    static const char *const dict_names[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    for (const char *const *p = obj.t == V_LIST   ? list_names
                                : obj.t == V_DICT ? dict_names
                                                  : NULL;
         p && *p; p++)
        if (strlen(*p) == n && !memcmp(*p, name, n))
            return true;
    return false;
}

/* ---- attributes of run time objects --------------------------------------------------------------- */

static int64_t loop_length(struct jx *x, struct loop *l)
{
    if (l->length >= 0)
        return l->length;
    struct list_builder b = {0}; // a filtered loop: the rest has to be tested now
    int64_t done = l->index0 + 1;
    struct val v;
    while (jx_loop_pull(x, l, &v))
        lb_add(x, &b, v);
    l->length = done + (int64_t)b.n;
    struct list *rest = jx_alloc(x, sizeof *rest);
    *rest = (struct list){.v = b.v, .n = b.n};
    struct node *plain = jx_alloc(x, sizeof *plain);
    *plain = *l->node;
    plain->c = NULL; // all of the rest has passed
    l->node = plain;
    l->src = rest;
    l->pos = 0;
    return l->length;
}

static bool loop_peek(struct jx *x, struct loop *l)
{
    struct val v;
    if (l->after.t == V_MISSING && jx_loop_pull(x, l, &v))
        l->after = v;
    return l->after.t != V_MISSING;
}

static bool loop_attr(struct jx *x, struct loop *l, const char *name, struct val *out)
{
    static const char *const names[] = {"index0", "index", "revindex0", "revindex", "first",   "last",
                                        "length", "depth", "depth0",    "previtem", "nextitem"};
    size_t i = 0;
    while (i < sizeof names / sizeof *names && strcmp(names[i], name))
        i++;
    switch (i) {
    case 0:
    case 1:
        *out = jv_int(l->index0 + (int64_t)i);
        return true;
    case 2:
    case 3:
        *out = jv_int(loop_length(x, l) - l->index0 - (i == 2));
        return true;
    case 4:
        *out = jv_bool(l->index0 == 0);
        return true;
    case 5:
        *out = jv_bool(!loop_peek(x, l));
        return true;
    case 6:
        *out = jv_int(loop_length(x, l));
        return true;
    case 7:
    case 8:
        *out = jv_int(l->depth0 + (i == 7));
        return true;
    case 9:
        *out = l->index0 == 0 ? jv_undef_hint(x, "there is no previous item") : l->before;
        return true;
    case 10:
        *out = loop_peek(x, l) ? l->after : jv_undef_hint(x, "there is no next item");
        return true;
    default:
        return false;
    }
}

static bool macro_attr(struct jx *x, const struct macro *m, const char *name, struct val *out)
{
    struct list_builder b = {0};
    if (!strcmp(name, "name")) {
        *out = m->name ? jv_text(x, m->name) : jv_none();
    } else if (!strcmp(name, "arguments")) {
        for (const struct node *k = m->node->type == S_BLOCK ? NULL : m->node->kids; k; k = k->next)
            lb_add(x, &b, k->name->text);
        *out = lb_take(x, &b, V_TUPLE);
    } else if (!strcmp(name, "catch_kwargs") || !strcmp(name, "catch_varargs") || !strcmp(name, "caller")) {
        int bit = name[1] == 'a' && name[2] == 'l' ? USES_CALLER
                  : name[6] == 'k'                 ? USES_KWARGS
                                                   : USES_VARARGS;
        *out = jv_bool(m->node->op & bit);
    } else {
        return false;
    }
    return true;
}

static bool self_attr(struct jx *x, const char *name, struct val *out)
{
    for (const struct node *b = x->t->blocks; b; b = b->c)
        if (!strcmp(b->name->s, name)) {
            struct macro *m = jx_alloc(x, sizeof *m);
            *m = (struct macro){b, x->root, b->name->s};
            *out = (struct val){.t = V_MACRO, .u.macro = m};
            return true;
        }
    return false;
}

bool jx_runtime_attr(struct jx *x, struct val obj, const char *text, size_t n, struct val *out)
{
    char name[64];
    struct pair *p = obj.t == V_NS ? jd_find_text(x, obj.u.ns, text, n) : NULL;
    if (p) {
        *out = p->v;
        return true;
    }
    if (n >= sizeof name || memchr(text, 0, n))
        return false;
    memcpy(name, text, n);
    name[n] = 0;
    switch (obj.t) {
    case V_LOOP:
        return loop_attr(x, obj.u.loop, name, out);
    case V_MACRO:
        return macro_attr(x, obj.u.macro, name, out);
    case V_SELF:
        return self_attr(x, name, out);
    case V_CYCLER:
        if (!strcmp(name, "current"))
            *out = obj.u.cycler->items->v[obj.u.cycler->pos];
        else if (!strcmp(name, "pos"))
            *out = jv_int((int64_t)obj.u.cycler->pos);
        else if (!strcmp(name, "items"))
            *out = (struct val){.t = V_TUPLE, .u.l = obj.u.cycler->items};
        else
            return false;
        return true;
    case V_JOINER:
        if (strcmp(name, "sep") && strcmp(name, "used"))
            return false;
        *out = name[0] == 's' ? obj.u.joiner->sep : jv_bool(obj.u.joiner->used);
        return true;
    case V_FUNC:
        if (strcmp(obj.u.func->b->name, "dict") || strcmp(name, "fromkeys"))
            return false;
        *out = jv_func(x, find(dict_methods, "fromkeys", 8), (struct val){.t = V_NONE});
        return true;
    default:
        return false;
    }
}

void jx_repr_runtime(struct sb *b, struct val v)
{
    char s[200];
    if (v.t == V_MACRO && v.u.macro->node->type == S_BLOCK)
        snprintf(s, sizeof s, "<BlockReference '%.150s'>", v.u.macro->name);
    else if (v.t == V_MACRO && v.u.macro->name)
        snprintf(s, sizeof s, "<Macro '%.150s'>", v.u.macro->name);
    else if (v.t == V_LOOP)
        snprintf(s, sizeof s, "<LoopContext %lld/%lld>", (long long)v.u.loop->index0 + 1,
                 (long long)loop_length(b->x, v.u.loop));
    else if (v.t == V_SELF)
        snprintf(s, sizeof s, "<TemplateReference None>");
    else
        snprintf(s, sizeof s, v.t == V_MACRO ? "<Macro anonymous>" : "<%s object>", jv_type_name(v));
    sb_text(b, s);
}

/* ---- globals -------------------------------------------------------------------------------------- */

BUILTIN(g_range)
{
    UNUSED_ARGS;
    int64_t v[3] = {0, 0, 1};
    int n = raw->n;
    if (raw->n_kw)
        jx_fail(x, JINJA_TYPE, "range() takes no keyword arguments");
    if (n < 1 || n > 3)
        jx_fail(x, JINJA_TYPE, "range expected 1 to 3 arguments, got %d", n);
    for (int i = 0; i < n; i++)
        v[n == 1 ? 1 : i] = jv_index(x, raw->v[i], "range");
    if (v[2] == 0)
        jx_fail(x, JINJA_VALUE, "range() arg 3 must not be zero");
    struct range *r = jx_alloc(x, sizeof *r);
    *r = (struct range){v[0], v[1], v[2], 0};
    if (v[2] > 0 && v[0] < v[1])
        r->n = (v[1] - v[0] - 1) / v[2] + 1;
    else if (v[2] < 0 && v[1] < v[0])
        r->n = (v[0] - v[1] - 1) / -v[2] + 1;
    if (r->n > JX_MAX_RANGE || r->n < 0)
        jx_fail(x, JINJA_LIMIT, "Range too big. The sandbox blocks ranges larger than %d.", JX_MAX_RANGE);
    return (struct val){.t = V_RANGE, .u.range = r};
}

/* dict(mapping or pairs, key=value, ...) */
static struct dict *make_dict(struct jx *x, const struct args *raw, bool is_namespace)
{
    struct dict *d = jd_new(x, 4);
    if (raw->n > 1)
        jx_fail(x, JINJA_TYPE, "dict expected at most 1 argument, got %d", raw->n);
    if (raw->n && raw->v[0].t == V_DICT) {
        for (size_t i = 0; i < raw->v[0].u.d->n; i++)
            jd_set(x, d, raw->v[0].u.d->e[i].k, raw->v[0].u.d->e[i].v);
    } else if (raw->n) {
        if (raw->v[0].t == V_UNDEF) // the reference looks for its keys
            jx_fail_undef(x, raw->v[0]);
        const struct list *l = jv_items(x, raw->v[0]);
        for (size_t i = 0; i < l->n; i++) {
            const struct list *p = jv_is_iterable(l->v[i]) ? jv_items(x, l->v[i]) : NULL;
            if (!p)
                jx_fail(x, JINJA_TYPE, "cannot convert dictionary update sequence element #%zu to a sequence",
                        i);
            if (p->n != 2)
                jx_fail(x, JINJA_VALUE,
                        "dictionary update sequence element #%zu has length %zu; 2 is required", i, p->n);
            jd_set(x, d, p->v[0], p->v[1]);
        }
    }
    for (int i = 0; i < raw->n_kw; i++)
        jd_set(x, d, raw->kw[i].k, raw->kw[i].v);
    for (size_t i = 0; is_namespace && i < d->n; i++)
        if (d->e[i].k.t == V_STR && d->e[i].k.u.s->n && d->e[i].k.u.s->p[0] == '_')
            jx_fail(x, JINJA_SECURITY, "underscore-prefixed attribute '%.100s'", jx_cstr(x, d->e[i].k));
    return d;
}

BUILTIN(g_dict)
{
    UNUSED_ARGS;
    return jv_dict(make_dict(x, raw, false));
}
BUILTIN(g_namespace)
{
    UNUSED_ARGS;
    return (struct val){.t = V_NS, .u.ns = make_dict(x, raw, true)};
}

BUILTIN(g_cycler)
{
    UNUSED_ARGS;
    struct list_builder b = {0};
    if (raw->n_kw)
        jx_fail(x, JINJA_TYPE, "cycler() takes no keyword arguments");
    if (!raw->n)
        jx_fail(x, JINJA_VALUE, "at least one item has to be provided");
    for (int i = 0; i < raw->n; i++)
        lb_add(x, &b, raw->v[i]);
    struct cycler *c = jx_alloc(x, sizeof *c);
    c->items = lb_take(x, &b, V_TUPLE).u.l;
    return (struct val){.t = V_CYCLER, .u.cycler = c};
}

BUILTIN(g_joiner)
{
    UNUSED_ARGS;
    struct joiner *j = jx_alloc(x, sizeof *j);
    j->sep = a[0].t == V_MISSING ? jv_text(x, ", ") : a[0];
    return (struct val){.t = V_JOINER, .u.joiner = j};
}

BUILTIN(g_raise_exception)
{
    UNUSED_ARGS;
    struct val v = jv_to_str(x, a[0]);
    jx_fail_text(x, JINJA_RAISE, v.u.s->p, v.u.s->n);
}

BUILTIN(g_strftime_now)
{
    UNUSED_ARGS;
    if (a[0].t != V_STR)
        jx_fail(x, JINJA_TYPE, "strftime() argument 1 must be str, not %s", jv_type_name(a[0]));
    return jx_strftime(x, jx_cstr(x, a[0]));
}

static const struct builtin globals[] = {{"range", "*", g_range},
                                         {"dict", "*", g_dict},
                                         {"namespace", "*", g_namespace},
                                         {"cycler", "*", g_cycler},
                                         {"joiner", "?sep", g_joiner},
                                         {"raise_exception", "message", g_raise_exception},
                                         {"strftime_now", "format", g_strftime_now},
                                         {NULL, NULL, NULL}};

const struct builtin *jinja_find_global(const char *name, size_t n) { return find(globals, name, n); }
