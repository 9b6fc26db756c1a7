/* Evaluator: walks the tree. Scopes form a chain; for, with, macro, call and capturing blocks open one, `if`
 * does not. Every node costs a step and every level of nesting counts against the depth limit. */
#include <math.h>
#include <string.h>

#include "chat/jinja_eval.h"

enum flow { GO_ON, BREAK, CONTINUE };

static enum flow run_list(struct jx *x, const struct node *n);

/* ---- names ---------------------------------------------------------------------------------------- */

static struct scope *open_scope(struct jx *x, struct scope *up)
{
    struct scope *s = jx_alloc(x, sizeof *s);
    s->up = up;
    x->scope = s;
    return s;
}

static void set_name(struct jx *x, const struct sym *name, struct val v)
{
    struct scope *s = x->scope;
    jx_spend(x, (uint64_t)s->n / 16);
    for (int i = 0; i < s->n; i++)
        if (s->vars[i].name == name) {
            s->vars[i].v = v;
            return;
        }
    if (s->n == s->cap) {
        int cap = s->cap ? 2 * s->cap : 4;
        struct var *p = jx_alloc(x, (size_t)cap * sizeof *p);
        if (s->n)
            memcpy(p, s->vars, (size_t)s->n * sizeof *p);
        s->vars = p;
        s->cap = cap;
    }
    s->vars[s->n++] = (struct var){name, v};
}

/* Names that the evaluator itself defines are no symbols of the template: they have no hash and are compared
 * by their text. */
static const struct sym name_loop = {.s = "loop", .n = 4}, name_caller = {.s = "caller", .n = 6},
                        name_kwargs = {.s = "kwargs", .n = 6}, name_varargs = {.s = "varargs", .n = 7};

static bool same_name(const struct sym *a, const struct sym *b)
{
    return a == b || (!a->hash && a->n == b->n && !memcmp(a->s, b->s, a->n));
}

static struct val get_name(struct jx *x, const struct sym *name)
{
    for (const struct scope *s = x->scope; s; s = s->up) {
        jx_spend(x, (uint64_t)s->n / 16);
        for (int i = 0; i < s->n; i++)
            if (same_name(s->vars[i].name, name)) {
                if (s->vars[i].v.t == V_MISSING) // late: not assigned yet
                    return jv_undef_name(x, (struct val){0}, name->text, false);
                return s->vars[i].v;
            }
    }
    struct pair *p = jd_find_text(x, x->context, name->s, name->n);
    if (p)
        return p->v;
    const struct builtin *b = jinja_find_global(name->s, name->n);
    if (b)
        return jv_func(x, b, (struct val){0});
    if (name->n == 4 && !memcmp(name->s, "self", 4))
        return (struct val){.t = V_SELF};
    return jv_undef_name(x, (struct val){0}, name->text, false);
}

static void declare_late(struct jx *x, const struct sym *const *late)
{
    for (; late && *late; late++)
        set_name(x, *late, (struct val){0});
}

static void assign(struct jx *x, const struct node *target, struct val v)
{
    if (target->type == N_NAME) {
        set_name(x, target->name, v);
        return;
    }
    if (target->type == N_NSREF) {
        struct val ns = get_name(x, target->name);
        if (ns.t != V_NS)
            jx_fail(x, JINJA_TYPE, "cannot assign attribute on non-namespace object");
        if (target->v.u.s->p[0] == '_')
            jx_fail(x, JINJA_SECURITY, "underscore-prefixed attribute '%.100s'", jx_cstr(x, target->v));
        jd_set(x, ns.u.ns, target->v, v);
        return;
    }
    if (!jv_is_iterable(v))
        jx_fail(x, JINJA_TYPE, "cannot unpack non-iterable %s object", jv_type_name(v));
    const struct list *l = jv_items(x, v);
    size_t want = 0;
    for (const struct node *k = target->kids; k; k = k->next)
        want++;
    if (l->n != want)
        jx_fail(x, JINJA_VALUE,
                l->n > want ? "too many values to unpack (expected %zu)"
                            : "not enough values to unpack (expected %zu, got %zu)",
                want, l->n);
    size_t i = 0;
    for (const struct node *k = target->kids; k; k = k->next)
        assign(x, k, l->v[i++]);
}

/* ---- calls ---------------------------------------------------------------------------------------- */

static void add_key(struct jx *x, struct dict *kw, struct val name, struct val v)
{
    if (name.t != V_STR)
        jx_fail(x, JINJA_TYPE, "keywords must be strings");
    if (jd_find(x, kw, name))
        jx_fail(x, JINJA_TYPE, "got multiple values for keyword argument '%.100s'", jx_cstr(x, name));
    jd_set(x, kw, name, v);
}

static struct args eval_args(struct jx *x, const struct node *kids)
{
    struct list_builder b = {0};
    struct dict *kw = NULL;
    for (const struct node *k = kids; k; k = k->next) {
        struct val v = jx_eval(x, k->a);
        if (k->op == ARG_POS) {
            lb_add(x, &b, v);
            continue;
        }
        if (k->op == ARG_STAR) {
            const struct list *l = jv_items(x, v);
            for (size_t i = 0; i < l->n; i++)
                lb_add(x, &b, l->v[i]);
            continue;
        }
        kw = kw ? kw : jd_new(x, 4);
        if (k->op == ARG_KEY) {
            add_key(x, kw, k->name->text, v);
            continue;
        }
        if (v.t == V_UNDEF)
            jx_fail_undef(x, v);
        if (v.t != V_DICT)
            jx_fail(x, JINJA_TYPE, "argument after ** must be a mapping, not %s", jv_type_name(v));
        for (size_t i = 0; i < v.u.d->n; i++)
            add_key(x, kw, v.u.d->e[i].k, v.u.d->e[i].v);
    }
    return (struct args){b.v, (int)b.n, kw ? kw->e : NULL, kw ? (int)kw->n : 0};
}

/* Text that running the body makes. */
static struct val capture(struct jx *x, const struct node *n)
{
    struct sb *outer = x->out;
    x->out = sb_new(x);
    declare_late(x, n->late);
    run_list(x, n->body);
    struct val v = sb_take(x->out);
    x->out = outer;
    v.markup = x->autoescape;
    return v;
}

static const struct val *take_key(struct jx *x, const struct args *args, bool *taken, const char *name,
                                  size_t n)
{
    jx_spend(x, (uint64_t)args->n_kw / 16);
    for (int i = 0; i < args->n_kw; i++)
        if (!taken[i] && args->kw[i].k.u.s->n == n && !memcmp(args->kw[i].k.u.s->p, name, n)) {
            taken[i] = true;
            return &args->kw[i].v;
        }
    return NULL;
}

static void bind_macro(struct jx *x, const struct macro *m, const struct args *args)
{
    const struct node *n = m->node;
    bool *taken = jx_alloc(x, (size_t)args->n_kw + 1);
    int i = 0;
    for (const struct node *k = n->kids; k; k = k->next, i++) {
        const struct val *v = i < args->n ? &args->v[i] : take_key(x, args, taken, k->name->s, k->name->n);
        set_name(x, k->name, v ? *v : (struct val){0});
    }
    if (n->op & USES_CALLER) {
        const struct val *v = take_key(x, args, taken, "caller", 6);
        set_name(x, &name_caller, v && v->t != V_NONE ? *v : jv_undef_hint(x, "No caller defined"));
    }
    struct dict *rest = jd_new(x, 0);
    for (int j = 0; j < args->n_kw; j++)
        if (!taken[j])
            jd_set(x, rest, args->kw[j].k, args->kw[j].v);
    if (n->op & USES_KWARGS)
        set_name(x, &name_kwargs, jv_dict(rest));
    else if (rest->n)
        jx_fail(x, JINJA_TYPE, "macro '%s' takes no keyword argument '%.100s'", m->name ? m->name : "None",
                jx_cstr(x, rest->e[0].k));
    struct list_builder b = {0};
    for (int j = i; j < args->n; j++)
        lb_add(x, &b, args->v[j]);
    if (n->op & USES_VARARGS)
        set_name(x, &name_varargs, lb_take(x, &b, V_TUPLE));
    else if (b.n)
        jx_fail(x, JINJA_TYPE, "macro '%s' takes not more than %d argument(s)", m->name ? m->name : "None",
                i);
    i = 0; // the first variables of the scope; defaults are evaluated in it, from left to right
    for (const struct node *k = n->kids; k; k = k->next, i++) {
        if (x->scope->vars[i].v.t != V_MISSING)
            continue;
        if (k->a) {
            set_name(x, k->name, jx_eval(x, k->a));
        } else {
            struct sb *hint = sb_new(x);
            sb_text(hint, "parameter '");
            sb_text(hint, k->name->s);
            sb_text(hint, "' was not provided");
            set_name(x, k->name, jv_undef_hint(x, jx_cstr(x, sb_take(hint))));
        }
    }
}

struct val jx_run_block(struct jx *x, const struct node *block)
{
    struct scope *outer = x->scope;
    jx_enter(x);
    open_scope(x, x->root);
    struct val v = capture(x, block);
    x->scope = outer;
    x->depth--;
    return v;
}

static struct val call_macro(struct jx *x, const struct macro *m, const struct args *args)
{
    struct scope *outer = x->scope;
    if (m->node->type == S_BLOCK)
        return jx_run_block(x, m->node);
    open_scope(x, m->scope);
    bind_macro(x, m, args);
    struct val v = capture(x, m->node);
    x->scope = outer;
    return v;
}

struct val jx_call(struct jx *x, struct val f, const struct args *args)
{
    struct val v;
    jx_enter(x);
    jx_spend(x, 1);
    switch (f.t) {
    case V_FUNC:
        v = jx_run_builtin(x, f.u.func->b, f.u.func->self, args);
        break;
    case V_MACRO:
        v = call_macro(x, f.u.macro, args);
        break;
    case V_LOOP:
        if (args->n != 1 || args->n_kw)
            jx_fail(x, JINJA_TYPE, "loop() takes 1 argument");
        v = jx_loop_run(x, f.u.loop, args->v[0]);
        break;
    case V_JOINER:
        if (args->n || args->n_kw)
            jx_fail(x, JINJA_TYPE, "a joiner takes no arguments");
        v = f.u.joiner->used ? f.u.joiner->sep : jv_text(x, "");
        f.u.joiner->used = true;
        break;
    case V_UNDEF:
        jx_fail_undef(x, f);
    default:
        jx_fail(x, JINJA_TYPE, "'%s' object is not callable", jv_type_name(f));
    }
    x->depth--;
    return v;
}

static struct val make_macro(struct jx *x, const struct node *n, const char *name)
{
    struct macro *m = jx_alloc(x, sizeof *m);
    *m = (struct macro){n, x->scope, name};
    return (struct val){.t = V_MACRO, .u.macro = m};
}

/* ---- expressions ---------------------------------------------------------------------------------- */

static struct val eval_kids(struct jx *x, const struct node *n, enum vtype t)
{
    struct list_builder b = {0};
    for (const struct node *k = n->kids; k; k = k->next)
        lb_add(x, &b, jx_eval(x, k));
    return lb_take(x, &b, t);
}

static struct val eval_dict(struct jx *x, const struct node *n)
{
    struct dict *d = jd_new(x, 4);
    for (const struct node *k = n->kids; k; k = k->next->next) {
        struct val key = jx_eval(x, k);
        jd_set(x, d, key, jx_eval(x, k->next));
    }
    return jv_dict(d);
}

static struct val eval_slice(struct jx *x, const struct node *n)
{
    struct slice *s = jx_alloc(x, sizeof *s);
    s->start = n->a ? jx_eval(x, n->a) : jv_none();
    s->stop = n->b ? jx_eval(x, n->b) : jv_none();
    s->step = n->c ? jx_eval(x, n->c) : jv_none();
    return (struct val){.t = V_SLICE, .u.slice = s};
}

static struct val eval_concat(struct jx *x, const struct node *n)
{
    struct list_builder b = {0};
    bool markup = false;
    for (const struct node *k = n->kids; k; k = k->next) {
        struct val v = jx_eval(x, k);
        markup |= v.t == V_STR && v.markup;
        lb_add(x, &b, v);
    }
    struct val r = b.v[0];
    markup = markup && x->autoescape;
    for (size_t i = 0; i < b.n; i++) {
        struct val v = markup ? jv_escape(x, b.v[i]) : jv_to_str(x, b.v[i]);
        r = i ? js_concat(x, r.u.s, v.u.s) : v;
    }
    r.markup = markup;
    return r;
}

static bool compare(struct jx *x, int op, struct val a, struct val b)
{
    switch (op) {
    case '=':
        return jv_equal(x, a, b);
    case '!':
        return !jv_equal(x, a, b);
    case 'i':
        return jv_in(x, a, b);
    case 'n':
        return !jv_in(x, a, b);
    case '<':
        return jv_compare(x, a, b, "<") < 0;
    case 'l':
        return jv_compare(x, a, b, "<=") <= 0;
    case '>':
        return jv_compare(x, a, b, ">") == 1; // 2: not a number
    default: {
        int c = jv_compare(x, a, b, ">=");
        return c == 0 || c == 1;
    }
    }
}

static struct val eval_compare(struct jx *x, const struct node *n)
{
    struct val left = jx_eval(x, n->a);
    for (const struct node *k = n->kids; k; k = k->next) {
        struct val right = jx_eval(x, k->a);
        if (!compare(x, k->op, left, right))
            return jv_bool(false);
        left = right;
    }
    return jv_bool(true);
}

static struct val eval_builtin(struct jx *x, const struct node *n)
{
    bool is_filter = n->type == N_FILTER;
    struct val in = n->a ? jx_eval(x, n->a) : x->block_text;
    struct args args = eval_args(x, n->kids);
    x->line = n->line;
    if (n->lacks_builtin)
        jx_fail(x, JINJA_TYPE, "No %s named '%.100s' found", is_filter ? "filter" : "test", n->name->s);
    return jx_run_builtin(x, n->fn, in, &args);
}

static struct val eval_call(struct jx *x, const struct node *n, struct val caller)
{
    struct val f = jx_eval(x, n->a);
    struct args args = eval_args(x, n->kids);
    if (caller.t != V_MISSING) {
        struct dict *kw = jd_new(x, (size_t)args.n_kw + 1);
        for (int i = 0; i < args.n_kw; i++)
            jd_set(x, kw, args.kw[i].k, args.kw[i].v);
        add_key(x, kw, jv_text(x, "caller"), caller);
        args.kw = kw->e;
        args.n_kw = (int)kw->n;
    }
    x->line = n->line;
    return jx_call(x, f, &args);
}

static struct val eval_sign(struct jx *x, const struct node *n)
{
    struct val v = jx_eval(x, n->a);
    if (v.t == V_UNDEF)
        jx_fail_undef(x, v);
    if (!jv_is_num(v))
        jx_fail(x, JINJA_TYPE, "bad operand type for unary %c: '%s'", n->type == N_NEG ? '-' : '+',
                jv_type_name(v));
    if (n->type == N_NEG)
        return jn_neg(x, v);
    return v.t == V_BOOL ? jv_int(v.u.b) : v;
}

static struct val eval_cond(struct jx *x, const struct node *n)
{
    if (jv_truth(x, jx_eval(x, n->a)))
        return jx_eval(x, n->b);
    if (n->c)
        return jx_eval(x, n->c);
    return jv_undef_hint(x, "the inline if-expression evaluated to false and no else section was defined.");
}

/* The reference folds constants into program text before it runs it, so that a negative constant before a power
 * that isn't one loses its sign to the power: -2 ** n is -(2 ** n), though -2 ** 2 is 4. */
static struct val power(struct jx *x, const struct node *n, struct val a, struct val b)
{
    if (!n->a->varies && n->b->varies && jv_is_num(a) && jn_sign(a) < 0 && jv_is_num(b))
        return jn_neg(x, jx_binary(x, 'p', jn_neg(x, a), b));
    return jx_binary(x, 'p', a, b);
}

/* a ** b ** c groups to the left here and to the right nearly everywhere else. Where the two readings are worlds
 * apart (2 ** 10 ** 9) nobody can have meant the small one: towers that would be too large are refused. */
static struct val eval_tower(struct jx *x, const struct node *n)
{
    const struct node *left = n;
    struct list_builder b = {0};
    int count = 1;
    for (; left->flag; left = left->a)
        count++;
    const struct node **powers = jx_alloc(x, (size_t)count * sizeof *powers);
    for (int i = count - 1; i >= 0; i--, n = n->a)
        powers[i] = n;
    lb_add(x, &b, jx_eval(x, powers[0]->a));
    for (int i = 0; i < count; i++)
        lb_add(x, &b, jx_eval(x, powers[i]->b));
    double size = 0; // of the tower read to the right
    bool all_ints = true;
    for (size_t i = b.n; i-- > 0;) {
        all_ints &= jv_is_int(b.v[i]);
        if (!all_ints)
            break;
        double bits = (double)jn_bits(b.v[i]);
        if (i + 1 < b.n && size * (bits - 1) > JX_MAX_INT_BITS)
            jx_fail(x, JINJA_LIMIT, "a power is larger than the limit of %d bits", JX_MAX_INT_BITS);
        size = i + 1 < b.n ? ldexp(1, (int)(size * (bits - 1) > 1000 ? 1000 : size * (bits - 1)))
                           : fabs(jn_double(x, b.v[i]));
    }
    struct val r = b.v[0];
    for (size_t i = 1; i < b.n; i++)
        r = power(x, powers[i - 1], r, b.v[i]);
    return r;
}

static struct val eval(struct jx *x, const struct node *n)
{
    struct val a, b;
    switch (n->type) {
    case N_LIST:
        return eval_kids(x, n, V_LIST);
    case N_TUPLE:
        return eval_kids(x, n, V_TUPLE);
    case N_DICT:
        return eval_dict(x, n);
    case N_ATTR:
        a = jx_eval(x, n->a);
        x->line = n->line;
        return jx_attr(x, a, n->v);
    case N_ITEM:
        a = jx_eval(x, n->a);
        b = jx_eval(x, n->b);
        x->line = n->line;
        return b.t == V_SLICE ? jx_slice(x, a, b.u.slice) : jx_item(x, a, b);
    case N_SLICE:
        return eval_slice(x, n);
    case N_CALL:
        return eval_call(x, n, (struct val){0});
    case N_FILTER:
    case N_TEST:
        return eval_builtin(x, n);
    case N_NOT:
        return jv_bool(!jv_truth(x, jx_eval(x, n->a)));
    case N_NEG:
    case N_POS:
        return eval_sign(x, n);
    case N_BINARY:
        if (n->op == 'p' && n->flag)
            return eval_tower(x, n);
        a = jx_eval(x, n->a);
        b = jx_eval(x, n->b);
        x->line = n->line;
        return n->op == 'p' ? power(x, n, a, b) : jx_binary(x, (char)n->op, a, b);
    case N_CONCAT:
        return eval_concat(x, n);
    case N_COMPARE:
        return eval_compare(x, n);
    case N_AND:
        a = jx_eval(x, n->a);
        return jv_truth(x, a) ? jx_eval(x, n->b) : a;
    case N_OR:
        a = jx_eval(x, n->a);
        return jv_truth(x, a) ? a : jx_eval(x, n->b);
    default: // N_COND: the parser puts nothing else here
        return eval_cond(x, n);
    }
}

struct val jx_eval(struct jx *x, const struct node *n)
{
    jx_spend(x, 1);
    if (n->type == N_CONST)
        return n->v;
    if (n->type == N_NAME)
        return get_name(x, n->name);
    jx_enter(x);
    struct val v = eval(x, n);
    x->depth--;
    return v;
}

/* ---- statements ----------------------------------------------------------------------------------- */

bool jx_loop_pull(struct jx *x, struct loop *l, struct val *v)
{
    if (l->after.t != V_MISSING) {
        *v = l->after;
        l->after = (struct val){0};
        return true;
    }
    while (l->pos < l->src->n) {
        *v = l->src->v[l->pos++];
        jx_spend(x, 1);
        if (!l->node->c)
            return true;
        struct scope *outer = x->scope;
        open_scope(x, l->scope);
        assign(x, l->node->a, *v);
        bool pass = jv_truth(x, jx_eval(x, l->node->c));
        x->scope = outer;
        if (pass)
            return true;
    }
    return false;
}

static enum flow run_loop(struct jx *x, const struct node *n, struct val items, int depth0,
                          struct scope *around)
{
    struct loop *l = jx_alloc(x, sizeof *l);
    struct scope *outer = x->scope;
    bool ran = false;
    struct val v;
    if (!jv_is_iterable(items))
        jx_fail(x, JINJA_TYPE, "'%s' object is not iterable", jv_type_name(items));
    *l = (struct loop){.src = jv_items(x, items), .node = n, .scope = around, .index0 = -1, .depth0 = depth0};
    l->source = items.t == V_ITER ? items.u.iter : NULL;
    l->length = n->c ? -1 : (int64_t)l->src->n;
    while (jx_loop_pull(x, l, &v)) {
        l->index0++;
        l->before = l->current;
        l->current = v;
        open_scope(x, around);
        set_name(x, &name_loop, (struct val){.t = V_LOOP, .u.loop = l});
        assign(x, n->a, v);
        declare_late(x, n->late);
        enum flow f = run_list(x, n->body);
        x->scope = outer;
        if (f == BREAK) {
            if (l->source) // the generator goes on where the loop stopped
                l->source->pos -= l->src->n - l->pos;
            break;
        }
        ran |= f == GO_ON;
    }
    if (ran || !n->orelse)
        return GO_ON;
    open_scope(x, around);
    enum flow f = run_list(x, n->orelse);
    x->scope = outer;
    return f;
}

struct val jx_loop_run(struct jx *x, struct loop *l, struct val items)
{
    struct sb *outer = x->out;
    if (!l->node->flag)
        jx_fail(x, JINJA_TYPE, "The loop must have the 'recursive' marker to be called recursively.");
    x->out = sb_new(x);
    run_loop(x, l->node, items, l->depth0 + 1, l->scope);
    struct val v = sb_take(x->out);
    x->out = outer;
    v.markup = x->autoescape;
    return v;
}

static void print(struct jx *x, struct val v)
{
    if (x->autoescape)
        v = jv_escape(x, v);
    jv_print(x->out, v);
}

static void set_block(struct jx *x, const struct node *n)
{
    struct scope *outer = x->scope;
    open_scope(x, outer);
    struct val v = capture(x, n);
    if (n->b) {
        x->block_text = v;
        v = jx_eval(x, n->b);
    }
    x->scope = outer;
    assign(x, n->a, v);
}

static enum flow with_block(struct jx *x, const struct node *n)
{
    struct scope *outer = x->scope, *inner = open_scope(x, outer);
    for (const struct node *k = n->kids; k; k = k->next) { // values don't see the names beside them
        x->scope = outer;
        struct val v = jx_eval(x, k->b);
        x->scope = inner;
        assign(x, k->a, v);
    }
    declare_late(x, n->late);
    enum flow f = run_list(x, n->body);
    x->scope = outer;
    return f;
}

static enum flow scoped(struct jx *x, const struct node *n, struct scope *up)
{
    struct scope *outer = x->scope;
    open_scope(x, up);
    declare_late(x, n->late);
    enum flow f = run_list(x, n->body);
    x->scope = outer;
    return f;
}

/* A filter block runs in the loop around it: break and continue pass through it, and its text is dropped then. */
static enum flow filter_block(struct jx *x, const struct node *n)
{
    struct sb *outer = x->out;
    struct scope *scope = x->scope;
    open_scope(x, scope);
    x->out = sb_new(x);
    declare_late(x, n->late);
    enum flow f = run_list(x, n->body);
    struct val v = sb_take(x->out);
    x->out = outer;
    if (f == GO_ON) {
        v.markup = x->autoescape;
        x->block_text = v;
        v = jx_eval(x, n->b);
        if (v.t != V_STR)
            jx_fail(x, JINJA_TYPE, "a filter block must give text, not %s", jv_type_name(v));
        print(x, v);
    }
    x->scope = scope;
    return f;
}

static enum flow run(struct jx *x, const struct node *n)
{
    x->line = n->line;
    switch (n->type) {
    case S_DATA:
        sb_str(x->out, n->v.u.s);
        return GO_ON;
    case S_PRINT:
        print(x, jx_eval(x, n->a));
        return GO_ON;
    case S_IF:
        for (; n; n = n->orelse) {
            if (jv_truth(x, jx_eval(x, n->a)))
                return run_list(x, n->body);
            if (!(n->orelse && n->orelse->type == S_IF && n->orelse->flag))
                return run_list(x, n->orelse);
        }
        return GO_ON;
    case S_FOR: {
        struct val items = jx_eval(x, n->b);
        return run_loop(x, n, items, 0, x->scope);
    }
    case S_SET:
        assign(x, n->a, jx_eval(x, n->b));
        return GO_ON;
    case S_SET_BLOCK:
        set_block(x, n);
        return GO_ON;
    case S_FILTER:
        return filter_block(x, n);
    case S_MACRO:
        set_name(x, n->name, make_macro(x, n, n->name->s));
        return GO_ON;
    case S_CALL:
        print(x, eval_call(x, n->a, make_macro(x, n, NULL)));
        return GO_ON;
    case S_WITH:
        return with_block(x, n);
    case S_SCOPE:
        return scoped(x, n, x->scope);
    case S_BLOCK:
        return scoped(x, n, n->flag ? x->scope : x->root);
    case S_AUTOESCAPE: {
        bool outer = x->autoescape;
        x->autoescape = jv_truth(x, jx_eval(x, n->a));
        enum flow f = scoped(x, n, x->scope);
        x->autoescape = outer;
        return f;
    }
    case S_BREAK:
        return BREAK;
    case S_CONTINUE:
        return CONTINUE;
    default: // S_LOADER
        jx_fail(x, JINJA_TYPE,
                "no loader for this environment specified: include, import and extends are not available");
    }
}

static enum flow run_list(struct jx *x, const struct node *n)
{
    enum flow f = GO_ON;
    jx_enter(x);
    for (; n && f == GO_ON; n = n->next) {
        jx_spend(x, 1);
        f = run(x, n);
    }
    x->depth--;
    return f;
}

void jinja_run(struct jx *x)
{
    x->root = open_scope(x, NULL);
    declare_late(x, x->t->late);
    run_list(x, x->t->body);
}
