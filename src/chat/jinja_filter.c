/* Filters over collections and numbers, and the table of all filters. Those over text are in jinja_filter_text.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "chat/jinja_filter.h"

static struct val or_default(struct val v, struct val dflt) { return v.t == V_MISSING ? dflt : v; }
static bool truth_or(struct jx *x, struct val v, bool dflt)
{
    return v.t == V_MISSING ? dflt : jv_truth(x, v);
}

static struct val ignore_case(struct jx *x, struct val v)
{
    return v.t == V_STR ? js_case(x, v.u.s, CASE_LOWER) : v;
}

/* A fresh list of v's items, which the caller may change. */
static struct list *own_items(struct jx *x, struct val v)
{
    const struct list *l = jv_items(x, v);
    struct list *r = jx_alloc(x, sizeof *r);
    r->n = l->n;
    r->v = jx_alloc(x, l->n * sizeof *r->v);
    if (l->n)
        memcpy(r->v, l->v, l->n * sizeof *r->v);
    return r;
}

/* ---- one value ------------------------------------------------------------------------------------ */

FILTER(f_abs)
{
    UNUSED_ARGS;
    if (!jv_is_num(self))
        jx_fail(x, JINJA_TYPE, "bad operand type for abs(): '%s'", jv_type_name(self));
    if (self.t == V_FLOAT)
        self.u.f = fabs(self.u.f);
    return self.t == V_BOOL ? jv_int(self.u.b) : jn_sign(self) < 0 ? jn_neg(x, self) : self;
}

FILTER(f_attr)
{
    UNUSED_ARGS;
    struct val v;
    if (self.t == V_UNDEF && a[0].t == V_STR)
        return jx_attr(x, self, a[0]);
    if (a[0].t != V_STR)
        jx_fail(x, JINJA_TYPE, "attribute name must be string, not '%s'", jv_type_name(a[0]));
    return jx_own_attr(x, self, a[0], &v) ? v : jv_undef_name(x, self, a[0], false);
}

FILTER(f_default)
{
    UNUSED_ARGS;
    bool use = self.t == V_UNDEF || (truth_or(x, a[1], false) && !jv_truth(x, self));
    return use ? or_default(a[0], jv_text(x, "")) : self;
}

FILTER(f_float)
{
    UNUSED_ARGS;
    double f;
    struct val dflt = or_default(a[0], jv_float(0)), v;
    if (self.t == V_UNDEF)
        jx_fail_undef(x, self);
    if (self.t == V_STR || self.t == V_BYTES) {
        if (!jn_parse_float(self.u.s->p, self.u.s->n, &f))
            return dflt;
        v = jv_float(f);
    } else if (jv_is_num(self)) {
        v = jv_float(jn_double(x, self));
        if (isinf(v.u.f) && self.t == V_BIG)
            jx_fail(x, JINJA_VALUE, "int too large to convert to float");
    } else {
        return dflt;
    }
    v.from = jv_from(self);
    return v;
}

FILTER(f_int)
{
    UNUSED_ARGS;
    struct val dflt = or_default(a[0], jv_int(0)), v = dflt;
    double f;
    bool ok = true;
    int64_t base = a[1].t == V_MISSING ? 10 : jv_is_int(a[1]) ? jv_index(x, a[1], "base") : -1;
    if (self.t == V_UNDEF)
        jx_fail_undef(x, self);
    if (self.t == V_STR || self.t == V_BYTES) {
        if (base >= 0 && base <= 36 && base != 1)
            v = jn_parse_int(x, self.u.s->p, self.u.s->n, (int)base, &ok);
        else
            ok = false;
        if (!ok) { // "42.23" is 42
            if (!jn_parse_float(self.u.s->p, self.u.s->n, &f) || !isfinite(f))
                return dflt;
            v = jn_from_double(x, f);
        }
    } else if (self.t == V_FLOAT) {
        if (isnan(self.u.f))
            return dflt;
        v = jn_from_double(x, self.u.f);
    } else if (jv_is_int(self)) {
        v = self.t == V_BOOL ? jv_int(self.u.b) : self;
    } else {
        return dflt;
    }
    v.from = jv_from(self);
    return v;
}

FILTER(f_round)
{
    UNUSED_ARGS;
    int64_t digits = a[0].t == V_MISSING ? 0 : jv_index(x, a[0], "precision");
    struct val how = or_default(a[1], jv_text(x, "common"));
    if (self.t == V_UNDEF)
        jx_fail_undef(x, self);
    if (!js_is(how, "common") && !js_is(how, "ceil") && !js_is(how, "floor"))
        jx_fail(x, JINJA_VALUE, "method must be common, ceil or floor");
    if (!jv_is_num(self))
        jx_fail(x, JINJA_TYPE, "type %s doesn't define __round__ method", jv_type_name(self));
    if (js_is(how, "common"))
        return jn_round(x, self, digits);
    struct val scale = jn_arith(x, 'p', jv_int(10), jv_int(digits)), v = jn_arith(x, '*', self, scale);
    if (v.t == V_FLOAT) {
        bool up = js_is(how, "ceil");
        v = jn_from_double(x, up ? ceil(v.u.f) : floor(v.u.f));
    }
    return jn_arith(x, '/', v, scale);
}

FILTER(f_length)
{
    UNUSED_ARGS;
    return jv_int(jx_len(x, self));
}

FILTER(f_tojson)
{
    UNUSED_ARGS;
    struct json_style st = {.ensure_ascii = truth_or(x, a[0], false), .sort_keys = truth_or(x, a[3], false)};
    if (a[1].t == V_STR) {
        st.indent = jx_cstr(x, a[1]);
    } else if (a[1].t != V_MISSING && a[1].t != V_NONE) {
        const struct str space = {.p = " ", .n = 1, .n_chars = 1};
        struct sb *b = sb_new(x);
        sb_pad(b, &space, jv_index(x, a[1], "indent"));
        st.indent = jx_cstr(x, sb_take(b));
    }
    st.item_sep = jv_text(x, st.indent ? "," : ", ");
    st.key_sep = jv_text(x, ": ");
    if (a[2].t != V_MISSING && a[2].t != V_NONE) {
        const struct list *l = jv_items(x, a[2]);
        if (l->n != 2 || l->v[0].t != V_STR || l->v[1].t != V_STR)
            jx_fail(x, JINJA_VALUE, "separators must be two strings");
        st.item_sep = l->v[0];
        st.key_sep = l->v[1];
    }
    struct sb *b = sb_new(x);
    jv_to_json(b, self, &st);
    return sb_take(b);
}

/* ---- collections ---------------------------------------------------------------------------------- */

FILTER(f_list)
{
    UNUSED_ARGS;
    struct list *l = own_items(x, self);
    return jv_list(x, V_LIST, l->v, l->n);
}

FILTER(f_first)
{
    UNUSED_ARGS;
    const struct list *l = jv_items(x, self);
    if (!l->n)
        return jv_undef_hint(x, "No first item, sequence was empty.");
    if (self.t == V_ITER) // the rest stays
        self.u.iter->pos -= l->n - 1;
    return l->v[0];
}

FILTER(f_last)
{
    UNUSED_ARGS;
    if (self.t == V_ITER || self.t == V_LOOP)
        jx_fail(x, JINJA_TYPE, "'%s' object is not reversible", jv_type_name(self));
    const struct list *l = jv_items(x, self);
    return l->n ? l->v[l->n - 1] : jv_undef_hint(x, "No last item, sequence was empty.");
}

FILTER(f_random)
{
    UNUSED_ARGS;
    int64_t n = jx_len(x, self);
    if (!n)
        return jv_undef_hint(x, "No random item, sequence was empty.");
    x->rnd = x->rnd * 6364136223846793005u + 1442695040888963407u;
    return jx_item(x, self, jv_int((int64_t)((x->rnd >> 33) % (uint64_t)n)));
}

FILTER(f_reverse)
{
    UNUSED_ARGS;
    if (self.t == V_STR) {
        struct slice s = {jv_none(), jv_none(), jv_int(-1)};
        return jx_slice(x, self, &s);
    }
    struct list *l = own_items(x, self);
    for (size_t i = 0; i < l->n / 2; i++) {
        struct val t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
    return self.t == V_ITER ? jv_list(x, V_LIST, l->v, l->n)
                            : jv_iter(x, l, self.t == V_LIST ? "list_reverseiterator" : "reversed");
}

FILTER(f_items)
{
    UNUSED_ARGS;
    struct list_builder b = {0};
    if (self.t != V_UNDEF && self.t != V_DICT)
        jx_fail(x, JINJA_TYPE, "Can only get item pairs from a mapping.");
    for (size_t i = 0; self.t == V_DICT && i < self.u.d->n; i++)
        lb_add(x, &b, jv_pair(x, self.u.d->e[i].k, self.u.d->e[i].v));
    return jv_iter(x, lb_take(x, &b, V_LIST).u.l, "generator");
}

FILTER(f_batch)
{
    UNUSED_ARGS;
    const struct list *l = jv_items(x, self);
    struct list_builder out = {0}, row = {0};
    bool fill = a[1].t != V_MISSING && a[1].t != V_NONE;
    for (size_t i = 0; i < l->n; i++) {
        if (jv_equal(x, jv_int((int64_t)row.n), a[0])) {
            lb_add(x, &out, lb_take(x, &row, V_LIST));
            row = (struct list_builder){0};
        }
        lb_add(x, &row, l->v[i]);
    }
    while (row.n && fill && jv_compare(x, jv_int((int64_t)row.n), a[0], "<") < 0)
        lb_add(x, &row, a[1]);
    if (row.n)
        lb_add(x, &out, lb_take(x, &row, V_LIST));
    return jv_iter(x, lb_take(x, &out, V_LIST).u.l, "generator");
}

FILTER(f_slice)
{
    UNUSED_ARGS;
    const struct list *l = jv_items(x, self);
    int64_t n = jv_index(x, a[0], "slices"), at = 0;
    bool fill = a[1].t != V_MISSING && a[1].t != V_NONE;
    struct list_builder out = {0};
    if (n == 0)
        jx_fail(x, JINJA_VALUE, "integer division or modulo by zero");
    for (int64_t k = 0; k < n; k++) {
        struct list_builder row = {0};
        bool extra = k < (int64_t)l->n % n;
        for (int64_t end = at + (int64_t)l->n / n + extra; at < end; at++)
            lb_add(x, &row, l->v[at]);
        if (fill && !extra)
            lb_add(x, &row, a[1]);
        lb_add(x, &out, lb_take(x, &row, V_LIST));
        jx_spend(x, 1);
    }
    return jv_iter(x, lb_take(x, &out, V_LIST).u.l, "generator");
}

static struct val sorted(struct jx *x, struct list *items, struct val *keys, bool reverse)
{
    jx_sort(x, items->v, keys, items->n, reverse);
    return jv_list(x, V_LIST, items->v, items->n);
}

FILTER(f_dictsort)
{
    UNUSED_ARGS;
    bool with_case = truth_or(x, a[0], false);
    struct val by = or_default(a[1], jv_text(x, "key"));
    if (self.t == V_UNDEF)
        jx_fail_undef(x, self);
    if (!js_is(by, "key") && !js_is(by, "value"))
        jx_fail(x, JINJA_VALUE, "You can only sort by either \"key\" or \"value\"");
    if (self.t != V_DICT)
        jx_fail(x, JINJA_TYPE, "'%s' object has no attribute 'items'", jv_type_name(self));
    struct list_builder b = {0}, keys = {0};
    for (size_t i = 0; i < self.u.d->n; i++) {
        struct val k = js_is(by, "key") ? self.u.d->e[i].k : self.u.d->e[i].v;
        lb_add(x, &b, jv_pair(x, self.u.d->e[i].k, self.u.d->e[i].v));
        lb_add(x, &keys, with_case ? k : ignore_case(x, k));
    }
    struct list l = {.v = b.v, .n = b.n};
    return sorted(x, &l, keys.v, a[2].t != V_MISSING && jv_index(x, a[2], "reverse"));
}

/* Sort key: the list of the attributes that "a,b.c" names, or of the item itself. */
static struct val sort_key(struct jx *x, struct val item, struct val attribute, bool with_case)
{
    struct list_builder b = {0};
    const struct list *paths = NULL;
    if (attribute.t == V_STR)
        paths = js_split(x, attribute.u.s, jv_text(x, ",").u.s, -1, false).u.l;
    for (size_t i = 0; i < (paths ? paths->n : 1); i++) {
        struct val v = jx_path(x, item, paths ? paths->v[i] : attribute, (struct val){0});
        lb_add(x, &b, with_case ? v : ignore_case(x, v));
    }
    return lb_take(x, &b, V_LIST);
}

FILTER(f_sort)
{
    UNUSED_ARGS;
    struct list *l = own_items(x, self);
    struct val *keys = jx_alloc(x, l->n * sizeof *keys);
    for (size_t i = 0; i < l->n; i++)
        keys[i] = sort_key(x, l->v[i], a[2], truth_or(x, a[1], false));
    return sorted(x, l, keys, a[0].t != V_MISSING && jv_index(x, a[0], "reverse"));
}

static struct val attr_key(struct jx *x, struct val item, struct val attribute, bool with_case,
                           struct val dflt)
{
    item = jx_path(x, item, attribute, dflt);
    return with_case ? item : ignore_case(x, item);
}

FILTER(f_unique)
{
    UNUSED_ARGS;
    const struct list *l = jv_items(x, self);
    struct dict *seen = jd_new(x, 8);
    struct list_builder b = {0};
    for (size_t i = 0; i < l->n; i++) {
        struct val k = attr_key(x, l->v[i], a[1], truth_or(x, a[0], false), (struct val){0});
        if (jd_find(x, seen, k))
            continue;
        jd_set(x, seen, k, jv_none());
        lb_add(x, &b, l->v[i]);
    }
    return jv_iter(x, lb_take(x, &b, V_LIST).u.l, "generator");
}

static struct val extreme(struct jx *x, struct val self, const struct val *a, bool max)
{
    const struct list *l = jv_items(x, self);
    if (!l->n)
        return jv_undef_hint(x, "No aggregated item, sequence was empty.");
    size_t best = 0;
    struct val best_key = attr_key(x, l->v[0], a[1], truth_or(x, a[0], false), (struct val){0});
    for (size_t i = 1; i < l->n; i++) {
        struct val k = attr_key(x, l->v[i], a[1], truth_or(x, a[0], false), (struct val){0});
        if (max ? jv_compare(x, k, best_key, ">") == 1 : jv_compare(x, k, best_key, "<") < 0) {
            best = i;
            best_key = k;
        }
    }
    return l->v[best];
}

FILTER(f_min)
{
    UNUSED_ARGS;
    return extreme(x, self, a, false);
}
FILTER(f_max)
{
    UNUSED_ARGS;
    return extreme(x, self, a, true);
}

FILTER(f_sum)
{
    UNUSED_ARGS;
    struct val sum = or_default(a[1], jv_int(0));
    if (sum.t == V_STR)
        jx_fail(x, JINJA_TYPE, "sum() can't sum strings [use ''.join(seq) instead]");
    const struct list *l = jv_items(x, self);
    for (size_t i = 0; i < l->n; i++)
        sum = jx_binary(x, '+', sum, jx_path(x, l->v[i], a[0], (struct val){0}));
    return sum;
}

FILTER(f_groupby)
{
    UNUSED_ARGS;
    bool with_case = truth_or(x, a[2], false);
    struct list *l = own_items(x, self);
    struct val *keys = jx_alloc(x, l->n * sizeof *keys);
    for (size_t i = 0; i < l->n; i++)
        keys[i] = attr_key(x, l->v[i], a[0], with_case, a[1]);
    jx_sort(x, l->v, keys, l->n, false);
    struct list_builder out = {0};
    for (size_t i = 0; i < l->n;) {
        struct list_builder group = {0};
        size_t first = i;
        for (; i < l->n && jv_equal(x, keys[i], keys[first]); i++)
            lb_add(x, &group, l->v[i]);
        if (i == first) // nan: equal to nothing, a group of its own
            lb_add(x, &group, l->v[i++]);
        struct val key = with_case ? keys[first] : jx_path(x, l->v[first], a[0], a[1]);
        struct val *v = jx_alloc(x, 2 * sizeof *v);
        struct list *pair = jx_alloc(x, sizeof *pair);
        v[0] = key;
        v[1] = lb_take(x, &group, V_LIST);
        *pair = (struct list){.v = v, .n = 2, .is_group = true};
        lb_add(x, &out, (struct val){.t = V_TUPLE, .u.l = pair});
    }
    return lb_take(x, &out, V_LIST);
}

/* ---- map, select, reject: evaluated when first walked, like the generators they stand for ------------ */

static struct val lazy(struct jx *x, struct val self, const struct args *raw,
                       void (*fill)(struct jx *, struct iter *))
{
    struct iter *it = jx_alloc(x, sizeof *it);
    it->fill = fill;
    it->src = self;
    it->args = *raw;
    it->kind = "generator";
    return (struct val){.t = V_ITER, .u.iter = it};
}

static struct args rest_args(const struct args *all, int skip)
{
    return (struct args){all->v + skip, all->n - skip, all->kw, all->n_kw};
}

static const struct builtin *named(struct jx *x, struct val name, bool is_filter)
{
    const struct builtin *b = NULL;
    if (name.t == V_STR)
        b = is_filter ? jinja_find_filter(name.u.s->p, name.u.s->n)
                      : jinja_find_test(name.u.s->p, name.u.s->n);
    if (!b)
        jx_fail(x, JINJA_TYPE, "No %s named '%.100s'.", is_filter ? "filter" : "test",
                jx_cstr(x, jv_to_str(x, name)));
    return b;
}

static void fill_map(struct jx *x, struct iter *it)
{
    struct list_builder b = {0};
    struct val attribute = {0}, dflt = {0};
    const struct builtin *filter = NULL;
    struct args args = it->args;
    if (jv_truth(x, it->src)) {
        for (int i = 0; !args.n && i < args.n_kw; i++) {
            if (js_is(args.kw[i].k, "attribute"))
                attribute = args.kw[i].v;
            else if (js_is(args.kw[i].k, "default"))
                dflt = args.kw[i].v;
            else
                jx_fail(x, JINJA_VALUE, "Unexpected keyword argument '%.100s'", jx_cstr(x, args.kw[i].k));
        }
        if (attribute.t == V_MISSING && !args.n)
            jx_fail(x, JINJA_VALUE, "map requires a filter argument");
        const struct list *l = jv_items(x, it->src);
        if (args.n && l->n) {
            filter = named(x, args.v[0], true);
            args = rest_args(&args, 1);
        }
        for (size_t i = 0; i < l->n; i++)
            lb_add(x, &b,
                   filter ? jx_run_builtin(x, filter, l->v[i], &args) : jx_path(x, l->v[i], attribute, dflt));
    }
    it->items = lb_take(x, &b, V_LIST).u.l;
}

static void select_items(struct jx *x, struct iter *it, bool keep, bool by_attribute)
{
    struct list_builder b = {0};
    struct args args = it->args;
    const struct builtin *test = NULL;
    if (jv_truth(x, it->src)) {
        if (by_attribute && !args.n)
            jx_fail(x, JINJA_VALUE, "Missing parameter for attribute name");
        const struct list *l = jv_items(x, it->src);
        int off = by_attribute;
        if (args.n > off) {
            test = l->n ? named(x, args.v[off], false) : NULL;
            args = rest_args(&args, off + 1);
        }
        for (size_t i = 0; i < l->n; i++) {
            struct val v = by_attribute ? jx_path(x, l->v[i], it->args.v[0], (struct val){0}) : l->v[i];
            if (jv_truth(x, test ? jx_run_builtin(x, test, v, &args) : v) == keep)
                lb_add(x, &b, l->v[i]);
        }
    }
    it->items = lb_take(x, &b, V_LIST).u.l;
}

static void fill_select(struct jx *x, struct iter *it) { select_items(x, it, true, false); }
static void fill_reject(struct jx *x, struct iter *it) { select_items(x, it, false, false); }
static void fill_selectattr(struct jx *x, struct iter *it) { select_items(x, it, true, true); }
static void fill_rejectattr(struct jx *x, struct iter *it) { select_items(x, it, false, true); }

FILTER(f_map)
{
    UNUSED_ARGS;
    return lazy(x, self, raw, fill_map);
}
FILTER(f_select)
{
    UNUSED_ARGS;
    return lazy(x, self, raw, fill_select);
}
FILTER(f_reject)
{
    UNUSED_ARGS;
    return lazy(x, self, raw, fill_reject);
}
FILTER(f_selectattr)
{
    UNUSED_ARGS;
    return lazy(x, self, raw, fill_selectattr);
}
FILTER(f_rejectattr)
{
    UNUSED_ARGS;
    return lazy(x, self, raw, fill_rejectattr);
}

/* ---- the table ------------------------------------------------------------------------------------ */

static const struct builtin filters[] = {
    {"abs", "", f_abs},
    {"attr", "name", f_attr},
    {"batch", "linecount ?fill_with", f_batch},
    {"capitalize", "", f_capitalize},
    {"center", "?width", f_center},
    {"count", "", f_length},
    {"d", "?default_value ?boolean", f_default},
    {"default", "?default_value ?boolean", f_default},
    {"dictsort", "?case_sensitive ?by ?reverse", f_dictsort},
    {"e", "", f_escape},
    {"escape", "", f_escape},
    {"filesizeformat", "?binary", f_filesizeformat},
    {"first", "", f_first},
    {"float", "?default", f_float},
    {"forceescape", "", f_forceescape},
    {"format", "*", f_format},
    {"groupby", "attribute ?default ?case_sensitive", f_groupby},
    {"indent", "?width ?first ?blank", f_indent},
    {"int", "?default ?base", f_int},
    {"items", "", f_items},
    {"join", "?d ?attribute", f_join},
    {"last", "", f_last},
    {"length", "", f_length},
    {"list", "", f_list},
    {"lower", "", f_lower},
    {"map", "*", f_map},
    {"max", "?case_sensitive ?attribute", f_max},
    {"min", "?case_sensitive ?attribute", f_min},
    {"pprint", "", f_pprint},
    {"random", "", f_random},
    {"reject", "*", f_reject},
    {"rejectattr", "*", f_rejectattr},
    {"replace", "old new ?count", f_replace},
    {"reverse", "", f_reverse},
    {"round", "?precision ?method", f_round},
    {"safe", "", f_safe},
    {"select", "*", f_select},
    {"selectattr", "*", f_selectattr},
    {"slice", "slices ?fill_with", f_slice},
    {"sort", "?reverse ?case_sensitive ?attribute", f_sort},
    {"string", "", f_string},
    {"striptags", "", f_striptags},
    {"sum", "?attribute ?start", f_sum},
    {"title", "", f_title},
    {"tojson", "?ensure_ascii ?indent ?separators ?sort_keys", f_tojson},
    {"trim", "?chars", f_trim},
    {"truncate", "?length ?killwords ?end ?leeway", f_truncate},
    {"unique", "?case_sensitive ?attribute", f_unique},
    {"upper", "", f_upper},
    {"urlencode", "", f_urlencode},
    {"wordcount", "", f_wordcount},
    {"wordwrap", "?width ?break_long_words ?wrapstring ?break_on_hyphens", f_wordwrap},
    {"xmlattr", "?autospace", f_xmlattr},
};

const struct builtin *jinja_find_filter(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (strlen(filters[i].name) == n && !memcmp(filters[i].name, name, n))
            return &filters[i];
    return NULL;
}
