/* Operators, attributes, items, slices and sorting: what an expression can do with two values. */
#include <stdio.h>
#include <string.h>

#include "chat/jinja_eval.h"

/* ---- binary operators ----------------------------------------------------------------------------- */

struct list_store { // room behind the newest list made by concatenation, as for strings
    struct val *v;
    size_t n, cap;
};

static struct val list_concat(struct jx *x, struct val a, struct val b)
{
    const struct list *l = a.u.l, *m = b.u.l;
    struct list_store *st = l->store;
    size_t n = l->n + m->n;
    if (n > JX_MAX_ITEMS)
        jx_fail(x, JINJA_LIMIT, "a list is longer than the limit of %d items", JX_MAX_ITEMS);
    jx_spend(x, m->n / 4);
    if (!st || st->v != l->v || st->n != l->n || st->cap < n) {
        struct list_store *fresh = jx_alloc(x, sizeof *fresh);
        fresh->cap = n + n / 2 + 4;
        fresh->v = jx_alloc(x, fresh->cap * sizeof *fresh->v);
        jx_spend(x, l->n / 4);
        if (l->n)
            memcpy(fresh->v, l->v, l->n * sizeof *l->v);
        st = fresh;
    }
    if (m->n)
        memcpy(st->v + l->n, m->v, m->n * sizeof *m->v);
    st->n = n;
    struct list *r = jx_alloc(x, sizeof *r);
    *r = (struct list){.v = st->v, .n = n, .store = st};
    return (struct val){.t = a.t, .u.l = r};
}

static struct val repeat(struct jx *x, struct val seq, struct val times)
{
    int64_t n = jv_index(x, times, "repeat");
    n = n < 0 ? 0 : n;
    if (seq.t == V_STR || seq.t == V_BYTES) {
        struct sb *b = sb_new(x);
        sb_pad(b, seq.u.s, n);
        struct val v = sb_take(b);
        v.t = seq.t;
        v.markup = seq.markup;
        return v;
    }
    if (seq.u.l->n && (uint64_t)n > JX_MAX_ITEMS / seq.u.l->n)
        jx_fail(x, JINJA_LIMIT, "a list is longer than the limit of %d items", JX_MAX_ITEMS);
    struct list_builder b = {0};
    for (int64_t i = 0; seq.u.l->n && i < n; i++)
        for (size_t j = 0; j < seq.u.l->n; j++)
            lb_add(x, &b, seq.u.l->v[j]);
    return lb_take(x, &b, seq.t);
}

static bool is_sequence(struct val v)
{
    return v.t == V_STR || v.t == V_BYTES || v.t == V_LIST || v.t == V_TUPLE;
}

static struct val str_add(struct jx *x, struct val a, struct val b)
{
    bool markup = a.markup || b.markup;
    if (markup) { // text that is not marked as safe gets escaped when it joins text that is
        a = jv_escape(x, a);
        b = jv_escape(x, b);
    }
    struct val v = js_concat(x, a.u.s, b.u.s);
    v.markup = markup;
    v.t = a.t;
    return v;
}

struct val jx_binary(struct jx *x, char op, struct val a, struct val b)
{
    if (op == '%' && (a.t == V_STR || a.t == V_BYTES))
        return js_percent(x, a, b);
    if (a.t == V_UNDEF || b.t == V_UNDEF)
        jx_fail_undef(x, a.t == V_UNDEF ? a : b);
    if (jv_is_num(a) && jv_is_num(b))
        return jn_arith(x, op, a, b);
    if (op == '+' && a.t == b.t && is_sequence(a))
        return a.t == V_LIST || a.t == V_TUPLE ? list_concat(x, a, b) : str_add(x, a, b);
    if (op == '*' && is_sequence(a) && jv_is_int(b))
        return repeat(x, a, b);
    if (op == '*' && jv_is_int(a) && is_sequence(b))
        return repeat(x, b, a);
    if (op == '+' && is_sequence(a))
        jx_fail(x, JINJA_TYPE, "can only concatenate %s (not \"%s\") to %s", jv_type_name(a), jv_type_name(b),
                jv_type_name(a));
    const char *sign = op == 'f' ? "//" : op == 'p' ? "**" : (char[]){op, 0};
    jx_fail(x, JINJA_TYPE, "unsupported operand type(s) for %s: '%s' and '%s'", sign, jv_type_name(a),
            jv_type_name(b));
}

/* ---- slices --------------------------------------------------------------------------------------- */

static int64_t slice_bound(struct jx *x, struct val v, int64_t dflt)
{
    if (v.t == V_NONE)
        return dflt;
    if (!jv_is_int(v))
        jx_fail(x, JINJA_TYPE, "slice indices must be integers or None or have an __index__ method");
    return jv_index(x, v, "slice");
}

static int64_t clamp(int64_t i, int64_t n, int64_t lo, int64_t hi)
{
    i = i < 0 ? i + n : i;
    return i < lo ? lo : i > hi ? hi : i;
}

static struct val str_slice(struct jx *x, const struct str *s, int64_t start, int64_t step, int64_t n)
{
    jx_spend(x, s->n / 64);
    if (step == 1 || n <= 1) {
        int64_t i = js_index_byte(s, (size_t)start), j = js_index_byte(s, (size_t)(start + n));
        return js_part(x, s, (size_t)i, (size_t)(n ? j : i));
    }
    bool ascii = s->n == s->n_chars;
    size_t *at = NULL; // byte of every character
    if (!ascii) {
        at = jx_alloc(x, (s->n_chars + 1) * sizeof *at);
        size_t k = 0;
        for (size_t i = 0; i < s->n; i++)
            if (((uint8_t)s->p[i] & 0xC0) != 0x80)
                at[k++] = i;
        at[s->n_chars] = s->n;
    }
    struct sb *b = sb_new(x);
    for (int64_t i = 0; i < n; i++) {
        size_t c = (size_t)(start + i * step);
        sb_part(b, s, ascii ? c : at[c], ascii ? c + 1 : at[c + 1]);
    }
    jx_spend(x, (uint64_t)n / 4);
    return sb_take(b);
}

struct val jx_slice(struct jx *x, struct val obj, const struct slice *sl)
{
    if (obj.t == V_UNDEF)
        jx_fail_undef(x, obj);
    int64_t len = is_sequence(obj) || obj.t == V_RANGE ? jv_len(x, obj) : -1,
            step = slice_bound(x, sl->step, 1);
    if (len < 0)
        jx_fail(x, JINJA_TYPE,
                obj.t == V_DICT ? "unhashable type: 'slice'" : "'%s' object is not subscriptable",
                jv_type_name(obj));
    if (step == 0)
        jx_fail(x, JINJA_VALUE, "slice step cannot be zero");
    int64_t lo = step > 0 ? 0 : -1, hi = step > 0 ? len : len - 1;
    int64_t start = slice_bound(x, sl->start, 0), stop = slice_bound(x, sl->stop, 0), n = 0;
    start = sl->start.t == V_NONE ? (step > 0 ? lo : hi) : clamp(start, len, lo, hi);
    stop = sl->stop.t == V_NONE ? (step > 0 ? hi : lo) : clamp(stop, len, lo, hi);
    if (step > 0 && start < stop)
        n = (stop - start - 1) / step + 1;
    else if (step < 0 && stop < start)
        n = (start - stop - 1) / -step + 1;
    struct val v;
    switch (obj.t) {
    case V_STR:
        v = str_slice(x, obj.u.s, n ? start : 0, step, n);
        v.markup = obj.markup;
        return v;
    case V_BYTES: {
        struct sb *b = sb_new(x);
        for (int64_t i = 0; i < n; i++)
            sb_part(b, obj.u.s, (size_t)(start + i * step), (size_t)(start + i * step) + 1);
        v = sb_take(b);
        v.t = V_BYTES;
        return v;
    }
    case V_RANGE: {
        struct range *r = jx_alloc(x, sizeof *r);
        const struct range *o = obj.u.range;
        *r = (struct range){o->start + start * o->step, o->start + stop * o->step, o->step * step, n};
        return (struct val){.t = V_RANGE, .u.range = r};
    }
    default:
        if (step == 1)
            return jv_list(x, obj.t, obj.u.l->v + (n ? start : 0), (size_t)n);
        struct list_builder b = {0};
        for (int64_t i = 0; i < n; i++)
            lb_add(x, &b, obj.u.l->v[start + i * step]);
        return lb_take(x, &b, obj.t);
    }
}

/* ---- attributes and items ------------------------------------------------------------------------- */

/* Names that every object of the reference has. They exist, and the sandbox refuses them: the value is undefined
 * when printed and a security error when used. */
static bool is_internal(struct val obj, const char *name, size_t n)
{
    static const char all[] =
        " class doc init new str repr eq ne lt le gt ge hash dir format getattribute setattr delattr "
        "reduce reduce_ex sizeof subclasshook init_subclass getstate ";
    static const char sequence[] =
        " add mul rmul len getitem contains iter class_getitem reversed setitem delitem iadd imul "
        "mod rmod getnewargs or ror ior ";
    static const char number[] =
        " add sub mul mod divmod pow neg pos abs bool int float index floordiv truediv radd rsub "
        "rmul round trunc floor ceil and or xor invert lshift rshift ";
    static const char function[] =
        " call globals code defaults kwdefaults closure annotations name qualname module dict get "
        "self func wrapped builtins text_signature ";
    char word[32];
    if (n < 5 || n - 4 > sizeof word - 3 || memcmp(name, "__", 2) || memcmp(name + n - 2, "__", 2))
        return false;
    snprintf(word, sizeof word, " %.*s ", (int)(n - 4), name + 2);
    bool has_items = is_sequence(obj) || obj.t == V_DICT || obj.t == V_RANGE || obj.t == V_VIEW;
    return strstr(all, word) || (has_items && strstr(sequence, word)) ||
           (jv_is_num(obj) && strstr(number, word)) || (obj.t >= V_NS && strstr(function, word));
}

static bool name_is(const char *name, size_t n, const char *what)
{
    return strlen(what) == n && !memcmp(name, what, n);
}

/* Attributes that are no methods. */
static bool data_attr(struct jx *x, struct val obj, const char *name, size_t n, struct val *out)
{
    if (jv_is_num(obj)) {
        bool is_int = obj.t != V_FLOAT;
        if (name_is(name, n, "real") || (is_int && name_is(name, n, "numerator")))
            *out = obj.t == V_BOOL ? jv_int(obj.u.b) : obj;
        else if (name_is(name, n, "imag"))
            *out = is_int ? jv_int(0) : jv_float(0);
        else if (is_int && name_is(name, n, "denominator"))
            *out = jv_int(1);
        else
            return false;
        return true;
    }
    if (obj.t == V_RANGE) {
        const struct range *r = obj.u.range;
        if (!name_is(name, n, "start") && !name_is(name, n, "stop") && !name_is(name, n, "step"))
            return false;
        *out = jv_int(name[2] == 'a' ? r->start : name[2] == 'o' ? r->stop : r->step);
        return true;
    }
    if (obj.t == V_TUPLE && obj.u.l->is_group && (name_is(name, n, "grouper") || name_is(name, n, "list"))) {
        *out = obj.u.l->v[name[0] == 'l'];
        return true;
    }
    if (obj.t == V_VIEW && name_is(name, n, "mapping")) {
        *out = jv_dict(obj.u.view->d);
        return true;
    }
    return obj.t >= V_NS && jx_runtime_attr(x, obj, name, n, out);
}

bool jx_own_attr(struct jx *x, struct val obj, struct val name, struct val *out)
{
    const char *s = name.u.s->p;
    size_t n = name.u.s->n;
    if (n && s[0] == '_') {
        if (!is_internal(obj, s, n))
            return false;
        *out = jv_undef_name(x, obj, name, true);
        return true;
    }
    if (jx_is_mutator(obj, s, n)) {
        *out = jv_undef_name(x, obj, name, true);
        return true;
    }
    const struct builtin *b = jinja_find_method(obj, s, n);
    if (b) {
        *out = jv_func(x, b, obj);
        return true;
    }
    return data_attr(x, obj, s, n, out);
}

struct val jx_attr(struct jx *x, struct val obj, struct val name)
{
    struct val v;
    if (obj.t == V_UNDEF && !is_internal(obj, name.u.s->p, name.u.s->n))
        jx_fail_undef(x, obj);
    if (jx_own_attr(x, obj, name, &v))
        return v;
    if (obj.t == V_DICT) {
        struct pair *p = jd_find(x, obj.u.d, name);
        if (p)
            return p->v;
    }
    return jv_undef_name(x, obj, name, false);
}

static bool is_hashable(struct val v)
{
    for (size_t i = 0; v.t == V_TUPLE && i < v.u.l->n; i++)
        if (!is_hashable(v.u.l->v[i]))
            return false;
    return v.t != V_LIST && v.t != V_DICT && v.t != V_SLICE && v.t != V_VIEW;
}

static bool find_item(struct jx *x, struct val obj, struct val key, struct val *out)
{
    if (obj.t == V_DICT) {
        struct pair *p = is_hashable(key) ? jd_find(x, obj.u.d, key) : NULL;
        if (p)
            *out = p->v;
        return p != NULL;
    }
    if (!(is_sequence(obj) || obj.t == V_RANGE) || !jv_is_int(key))
        return false;
    int64_t len = jv_len(x, obj), i = jv_index(x, key, "index");
    i = i < 0 ? i + len : i;
    if (i < 0 || i >= len)
        return false;
    if (obj.t == V_STR) {
        *out = str_slice(x, obj.u.s, i, 1, 1);
        out->markup = obj.markup;
    } else {
        *out = obj.t == V_BYTES   ? jv_int((uint8_t)obj.u.s->p[i])
               : obj.t == V_RANGE ? jv_int(obj.u.range->start + i * obj.u.range->step)
                                  : obj.u.l->v[i];
    }
    return true;
}

struct val jx_item(struct jx *x, struct val obj, struct val key)
{
    struct val v;
    if (obj.t == V_UNDEF)
        jx_fail_undef(x, obj);
    if (find_item(x, obj, key, &v) || (key.t == V_STR && jx_own_attr(x, obj, key, &v)))
        return v;
    return jv_undef_name(x, obj, key, false);
}

struct val jx_path(struct jx *x, struct val obj, struct val path, struct val dflt)
{
    if (path.t == V_NONE || path.t == V_MISSING)
        return obj;
    if (path.t != V_STR) {
        obj = jx_item(x, obj, path);
        return obj.t == V_UNDEF && dflt.t != V_MISSING && dflt.t != V_NONE ? dflt : obj;
    }
    const struct str *s = path.u.s;
    for (size_t i = 0; i <= s->n;) {
        const char *dot = memchr(s->p + i, '.', s->n - i);
        size_t end = dot ? (size_t)(dot - s->p) : s->n;
        bool ok = end > i, all_digits = ok;
        for (size_t k = i; k < end; k++)
            all_digits &= s->p[k] >= '0' && s->p[k] <= '9';
        struct val key = all_digits ? jn_parse_int(x, s->p + i, end - i, 10, &ok) : js_part(x, s, i, end);
        obj = jx_item(x, obj, key);
        if (obj.t == V_UNDEF && dflt.t != V_MISSING && dflt.t != V_NONE)
            obj = dflt;
        i = end + 1;
    }
    return obj;
}

/* ---- sorting -------------------------------------------------------------------------------------- */

void jx_sort(struct jx *x, struct val *items, struct val *keys, size_t n, bool reverse)
{
    if (n < 2)
        return;
    size_t *a = jx_alloc(x, (n + 1) * sizeof *a), *b = jx_alloc(x, (n + 1) * sizeof *b);
    for (size_t i = 0; i < n; i++)
        a[i] = i;
    for (size_t width = 1; width < n; width *= 2) { // merges from the bottom up, which keeps equals in order
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = lo + width < n ? lo + width : n, hi = lo + 2 * width < n ? lo + 2 * width : n;
            size_t i = lo, j = mid, k = lo;
            while (i < mid && j < hi) {
                struct val left = keys[a[i]], right = keys[a[j]];
                bool take_right =
                    (reverse ? jv_compare(x, left, right, "<") : jv_compare(x, right, left, "<")) < 0;
                b[k++] = take_right ? a[j++] : a[i++];
            }
            while (i < mid)
                b[k++] = a[i++];
            while (j < hi)
                b[k++] = a[j++];
        }
        size_t *t = a;
        a = b;
        b = t;
    }
    struct val *out = jx_alloc(x, 2 * (n + 1) * sizeof *out);
    for (size_t i = 0; i < n; i++) {
        out[i] = items[a[i]];
        out[n + i] = keys[a[i]];
    }
    memcpy(items, out, n * sizeof *items);
    memcpy(keys, out + n, n * sizeof *keys);
}
