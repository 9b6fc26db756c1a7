/* Parser: tokens to tree, by recursive descent for statements and primaries and by precedence climbing for
 * operators. Nesting and the height of the tree are limited, so that neither this pass nor a walk over the tree
 * can run out of stack. */
#include <stdlib.h>
#include <string.h>

#include "chat/jinja_eval.h"

enum { MAX_OPEN = 3 };

struct parser {
    struct jx *x;
    struct template *t;
    const struct token *tok;
    struct sym *syms[256];
    int nest;
    int uses; // USES_* names seen since the innermost macro began
};

static struct node *expression(struct parser *p);
static struct node *binary(struct parser *p, int min);
static struct node *body(struct parser *p, const char *const *ends, const char **found);

/* ---- small tools ---------------------------------------------------------------------------------- */

static _Noreturn void unexpected(struct parser *p, const char *want)
{
    const struct token *t = p->tok;
    p->x->line = t->line;
    if (t->type == TOK_EOF)
        jx_fail(p->x, JINJA_SYNTAX, "unexpected end of template, expected %s", want);
    if (t->type == TOK_VAR_END || t->type == TOK_BLOCK_END)
        jx_fail(p->x, JINJA_SYNTAX, "unexpected end of tag, expected %s", want);
    jx_fail(p->x, JINJA_SYNTAX, "expected %s, got '%.*s'", want, (int)(t->n > 40 ? 40 : t->n), t->s);
}

static void enter(struct parser *p)
{
    if (++p->nest > JX_MAX_NEST)
        jx_fail(p->x, JINJA_LIMIT, "the template is nested deeper than the limit of %d levels", JX_MAX_NEST);
}

static struct node *node(struct parser *p, enum node_type type)
{
    struct node *n = jx_alloc(p->x, sizeof *n);
    n->type = (uint8_t)type;
    n->line = p->tok->line;
    n->height = 1;
    n->varies = type == N_NAME || type == N_CALL;
    return n;
}

static void grow(struct parser *p, struct node *n, const struct node *child)
{
    if (child && child->height >= n->height)
        n->height = (uint16_t)(child->height + 1);
    n->varies |= child && child->varies;
    if (n->height > JX_MAX_TREE)
        jx_fail(p->x, JINJA_LIMIT, "an expression of the template is longer than the limit of %d steps",
                JX_MAX_TREE);
}

static struct node *node2(struct parser *p, enum node_type type, struct node *a, struct node *b)
{
    struct node *n = node(p, type);
    n->a = a;
    n->b = b;
    grow(p, n, a);
    grow(p, n, b);
    return n;
}

/* Appends to a chain; *tail is where the next one goes. */
static void chain(struct parser *p, struct node *n, struct node ***tail, struct node *kid)
{
    grow(p, n, kid);
    **tail = kid;
    *tail = &kid->next;
}

static struct sym *intern(struct parser *p, const char *s, size_t n)
{
    uint32_t h = js_hash(s, n);
    struct sym **at = &p->syms[h & 255];
    for (; *at; at = &(*at)->next)
        if ((*at)->n == n && !memcmp((*at)->s, s, n))
            return *at;
    struct sym *y = jx_alloc(p->x, sizeof *y);
    char *copy = jx_alloc(p->x, n + 1);
    memcpy(copy, s, n);
    *y = (struct sym){.s = copy, .n = n, .hash = h, .text = jv_str(p->x, copy, n, FROM_TPL)};
    return *at = y;
}

static bool text_is(const char *s, size_t n, const char *what)
{
    return strlen(what) == n && !memcmp(s, what, n);
}
static bool is_name(const struct token *t, const char *name)
{
    return t->type == TOK_NAME && text_is(t->s, t->n, name);
}
static bool is_op(const struct token *t, int op) { return t->type == TOK_OP && t->op == op; }

static bool take_op(struct parser *p, int op)
{
    if (!is_op(p->tok, op))
        return false;
    p->tok++;
    return true;
}

static bool take_name(struct parser *p, const char *name)
{
    if (!is_name(p->tok, name))
        return false;
    p->tok++;
    return true;
}

static void need_op(struct parser *p, int op, const char *want)
{
    if (!take_op(p, op))
        unexpected(p, want);
}

static struct sym *need_name(struct parser *p)
{
    if (p->tok->type != TOK_NAME)
        unexpected(p, "a name");
    struct sym *y = intern(p, p->tok->s, p->tok->n);
    p->tok++;
    return y;
}

/* ---- expressions ---------------------------------------------------------------------------------- */

static bool is_tuple_end(struct parser *p, const char *end_name)
{
    return p->tok->type == TOK_VAR_END || p->tok->type == TOK_BLOCK_END || is_op(p->tok, ')') ||
           (end_name && is_name(p->tok, end_name));
}

enum { TUPLE_PAREN = 1, TUPLE_NO_COND = 2, TUPLE_TARGET = 4, TUPLE_NS = 8 };
static struct node *primary(struct parser *p, bool may_be_ns);

/* One expression, or a tuple if commas follow. */
static struct node *tuple(struct parser *p, int how, const char *end_name)
{
    struct node *t = node(p, N_TUPLE), **tail = &t->kids;
    bool is_tuple = false;
    int n = 0;
    for (;; n++) {
        if (n)
            need_op(p, ',', "','");
        if (is_tuple_end(p, end_name))
            break;
        enter(p);
        struct node *e = how & TUPLE_TARGET    ? primary(p, how & TUPLE_NS)
                         : how & TUPLE_NO_COND ? binary(p, 0)
                                               : expression(p);
        p->nest--;
        chain(p, t, &tail, e);
        if (!is_op(p->tok, ',')) {
            n++;
            break;
        }
        is_tuple = true;
    }
    if (!is_tuple && n)
        return t->kids;
    if (!is_tuple && !(how & TUPLE_PAREN))
        unexpected(p, "an expression");
    return t;
}

static struct node *list_or_dict(struct parser *p)
{
    bool is_dict = is_op(p->tok, '{');
    int close = is_dict ? '}' : ']';
    struct node *n = node(p, is_dict ? N_DICT : N_LIST), **tail = &n->kids;
    p->tok++;
    while (!is_op(p->tok, close)) {
        if (n->kids)
            need_op(p, ',', "','");
        if (is_op(p->tok, close))
            break;
        chain(p, n, &tail, expression(p));
        if (is_dict) {
            need_op(p, ':', "':'");
            chain(p, n, &tail, expression(p));
        }
    }
    p->tok++;
    return n;
}

static struct node *constant(struct parser *p, struct val v)
{
    struct node *n = node(p, N_CONST);
    n->v = v;
    if (v.t ==
        V_STR) { // without its builder: the tree outlives it, and nothing may grow in a tree that threads share
        struct str *s = jx_alloc(p->x, sizeof *s);
        *s = *v.u.s;
        s->store = NULL;
        n->v.u.s = s;
    }
    return n;
}

static struct node *name_or_word(struct parser *p, bool may_be_ns)
{
    static const struct {
        const char *word;
        int value;
    } words[] = {{"true", 1}, {"True", 1}, {"false", 0}, {"False", 0}, {"none", -1}, {"None", -1}};
    const struct token *t = p->tok;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (is_name(t, words[i].word)) {
            p->tok++;
            return constant(p, words[i].value < 0 ? jv_none() : jv_bool(words[i].value));
        }
    struct node *n = node(p, N_NAME);
    n->name = need_name(p);
    if (may_be_ns && take_op(p, '.')) {
        n->type = N_NSREF;
        n->v = need_name(p)->text;
        return n;
    }
    p->uses |= is_name(t, "caller")    ? USES_CALLER
               : is_name(t, "kwargs")  ? USES_KWARGS
               : is_name(t, "varargs") ? USES_VARARGS
                                       : 0;
    return n;
}

static struct node *primary(struct parser *p, bool may_be_ns)
{
    const struct token *t = p->tok;
    struct node *n;
    switch (t->type) {
    case TOK_NAME:
        return name_or_word(p, may_be_ns);
    case TOK_STRING: {
        struct val v = t->v;
        p->tok++;
        for (; p->tok->type == TOK_STRING; p->tok++) // adjacent literals are one
            v = js_concat(p->x, v.u.s, p->tok->v.u.s);
        return constant(p, v);
    }
    case TOK_NUMBER:
        p->tok++;
        return constant(p, t->v);
    default:
        if (take_op(p, '(')) {
            n = tuple(p, TUPLE_PAREN, NULL);
            need_op(p, ')', "')'");
            return n;
        }
        if (is_op(t, '[') || is_op(t, '{'))
            return list_or_dict(p);
        unexpected(p, "an expression");
    }
}

static struct node *subscript(struct parser *p)
{
    struct node *n = node(p, N_SLICE), *first = NULL;
    if (!is_op(p->tok, ':')) {
        first = expression(p);
        if (!is_op(p->tok, ':'))
            return first;
    }
    p->tok++;
    n->a = first;
    if (!is_op(p->tok, ':') && !is_op(p->tok, ']') && !is_op(p->tok, ','))
        n->b = expression(p);
    if (take_op(p, ':') && !is_op(p->tok, ']') && !is_op(p->tok, ','))
        n->c = expression(p);
    grow(p, n, n->a);
    grow(p, n, n->b);
    grow(p, n, n->c);
    return n;
}

static struct node *attribute_or_item(struct parser *p, struct node *obj)
{
    struct node *n;
    if (take_op(p, '.')) {
        if (p->tok->type == TOK_NUMBER && p->tok->v.t != V_FLOAT) {
            n = node2(p, N_ITEM, obj, constant(p, p->tok->v));
            p->tok++;
            return n;
        }
        n = node2(p, N_ATTR, obj, NULL);
        n->v = need_name(p)->text;
        return n;
    }
    n = node2(p, N_ITEM, obj, NULL);
    p->tok++;
    struct node *t = node(p, N_TUPLE), **tail = &t->kids;
    int count = 0;
    for (; !is_op(p->tok, ']'); count++) {
        if (count)
            need_op(p, ',', "','");
        chain(p, t, &tail, subscript(p));
    }
    p->tok++;
    n->b = count == 1 ? t->kids : t;
    grow(p, n, n->b);
    return n;
}

static void call_args(struct parser *p, struct node *n)
{
    struct node **tail = &n->kids;
    int worst = ARG_POS; // argument kinds come in order
    need_op(p, '(', "'('");
    while (!is_op(p->tok, ')')) {
        if (n->kids) {
            need_op(p, ',', "','");
            if (is_op(p->tok, ')'))
                break;
        }
        struct node *arg = node(p, N_ARG);
        if (take_op(p, '*'))
            arg->op = ARG_STAR;
        else if (take_op(p, OP2('*', '*')))
            arg->op = ARG_STAR2;
        else if (p->tok->type == TOK_NAME && is_op(p->tok + 1, '=')) {
            arg->op = ARG_KEY;
            arg->name = need_name(p);
            p->tok++;
            for (const struct node *k = n->kids; k; k = k->next, jx_spend(p->x, 1))
                if (k->name == arg->name)
                    jx_fail(p->x, JINJA_SYNTAX, "keyword argument repeated: %s", arg->name->s);
        }
        if ((arg->op == ARG_POS && worst != ARG_POS) || (arg->op == ARG_STAR && worst >= ARG_STAR) ||
            worst == ARG_STAR2)
            jx_fail(p->x, JINJA_SYNTAX, "invalid syntax for function call expression");
        worst = arg->op > worst ? arg->op : worst;
        arg->a = expression(p);
        grow(p, arg, arg->a);
        chain(p, n, &tail, arg);
    }
    p->tok++;
}

static struct node *call(struct parser *p, struct node *f)
{
    struct node *n = node2(p, N_CALL, f, NULL);
    call_args(p, n);
    return n;
}

/* Name of a filter or test; dots belong to it. */
static struct sym *builtin_name(struct parser *p)
{
    struct sym *y = need_name(p);
    while (take_op(p, '.')) {
        struct sym *more = need_name(p);
        struct sb *b = sb_new(p->x);
        sb_add(b, y->s, y->n, FROM_TPL);
        sb_add(b, ".", 1, FROM_TPL);
        sb_add(b, more->s, more->n, FROM_TPL);
        y = intern(p, b->p, b->n);
    }
    return y;
}

static struct node *filters(struct parser *p, struct node *in, bool at_name)
{
    while (at_name || is_op(p->tok, '|')) {
        struct node *n = node2(p, N_FILTER, in, NULL);
        p->tok += !at_name;
        n->name = builtin_name(p);
        if (is_op(p->tok, '('))
            call_args(p, n);
        in = n;
        at_name = false;
    }
    return in;
}

static struct node *test(struct parser *p, struct node *in)
{
    p->tok++;
    bool negated = take_name(p, "not");
    struct node *n = node2(p, N_TEST, in, NULL);
    n->name = builtin_name(p);
    const struct token *t = p->tok;
    if (is_op(t, '(')) {
        call_args(p, n);
    } else if ((t->type == TOK_NAME || t->type == TOK_STRING || t->type == TOK_NUMBER || is_op(t, '[') ||
                is_op(t, '{')) &&
               !is_name(t, "else") && !is_name(t, "or") && !is_name(t, "and")) {
        if (is_name(t, "is"))
            jx_fail(p->x, JINJA_SYNTAX, "You cannot chain multiple tests with is");
        struct node *arg = node(p, N_ARG), **tail = &n->kids;
        arg->a = primary(p, false);
        while (is_op(p->tok, '.') || is_op(p->tok, '[') || is_op(p->tok, '('))
            arg->a = is_op(p->tok, '(') ? call(p, arg->a) : attribute_or_item(p, arg->a);
        grow(p, arg, arg->a);
        chain(p, n, &tail, arg);
    }
    return negated ? node2(p, N_NOT, n, NULL) : n;
}

static struct node *unary(struct parser *p, bool with_filters)
{
    struct node *n;
    if (is_op(p->tok, '-') || is_op(p->tok, '+')) {
        bool neg = is_op(p->tok, '-');
        p->tok++;
        enter(p);
        n = unary(p, false);
        p->nest--;
        n = node2(p, neg ? N_NEG : N_POS, n, NULL);
    } else {
        n = primary(p, false);
    }
    while (is_op(p->tok, '.') || is_op(p->tok, '[') || is_op(p->tok, '('))
        n = is_op(p->tok, '(') ? call(p, n) : attribute_or_item(p, n);
    while (with_filters) {
        if (is_op(p->tok, '|'))
            n = filters(p, n, false);
        else if (is_name(p->tok, "is"))
            n = test(p, n);
        else if (is_op(p->tok, '('))
            n = call(p, n);
        else
            break;
    }
    return n;
}

/* Precedence, low to high; "~" stands between "+" and "*", and "**" binds to the left. */
enum { P_OR, P_AND, P_NOT, P_COMPARE, P_ADD, P_CONCAT, P_MUL, P_POW, P_UNARY };

static int compare_op(struct parser *p)
{
    static const struct {
        int tok;
        char op;
    } ops[] = {{OP2('=', '='), '='}, {OP2('!', '='), '!'}, {OP2('>', '='), 'g'},
               {OP2('<', '='), 'l'}, {'<', '<'},           {'>', '>'}};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (take_op(p, ops[i].tok))
            return ops[i].op;
    if (take_name(p, "in"))
        return 'i';
    if (is_name(p->tok, "not") && is_name(p->tok + 1, "in")) {
        p->tok += 2;
        return 'n';
    }
    return 0;
}

/* Rest of a comparison chain: a < b < c. Each operand carries the operator before it. */
static struct node *comparison(struct parser *p, struct node *left)
{
    struct node *n = NULL, **tail = NULL;
    int op;
    while ((op = compare_op(p))) {
        if (!n) {
            n = node2(p, N_COMPARE, left, NULL);
            tail = &n->kids;
        }
        struct node *o = node2(p, N_ARG, binary(p, P_ADD), NULL);
        o->op = (uint8_t)op;
        chain(p, n, &tail, o);
    }
    return n ? n : left;
}

static struct node *concatenation(struct parser *p, struct node *left)
{
    struct node *n = node(p, N_CONCAT), **tail = &n->kids;
    chain(p, n, &tail, left);
    while (take_op(p, '~'))
        chain(p, n, &tail, binary(p, P_MUL));
    return n;
}

static struct node *binary(struct parser *p, int min)
{
    static const struct {
        int tok, prec;
        char op;
    } ops[] = {{'+', P_ADD, '+'}, {'-', P_ADD, '-'},           {'*', P_MUL, '*'},          {'/', P_MUL, '/'},
               {'%', P_MUL, '%'}, {OP2('/', '/'), P_MUL, 'f'}, {OP2('*', '*'), P_POW, 'p'}};
    struct node *left;
    int operators = 0;
    if (min == P_UNARY)
        return unary(p, true);
    if (min <= P_NOT && is_name(p->tok, "not")) {
        p->tok++;
        enter(p);
        left = binary(p, P_NOT);
        p->nest--;
        left = node2(p, N_NOT, left, NULL);
    } else {
        left = unary(p, true);
    }
    for (int level = P_POW; level >= min; level--) { // operators that bind tighter come first
        if (level == P_COMPARE) {
            left = comparison(p, left);
        } else if (level == P_CONCAT) {
            if (is_op(p->tok, '~'))
                left = concatenation(p, left);
        } else if (level == P_AND || level == P_OR) {
            while (take_name(p, level == P_AND ? "and" : "or"))
                left = node2(p, level == P_AND ? N_AND : N_OR, left, binary(p, level + 1));
        } else {
            for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
                while (ops[i].prec == level && take_op(p, ops[i].tok)) {
                    bool is_tower = level == P_POW && operators++;
                    left = node2(p, N_BINARY, left, binary(p, level + 1));
                    left->op = (uint8_t)ops[i].op;
                    left->flag = is_tower;
                    i = 0;
                }
        }
    }
    return left;
}

static struct node *expression(struct parser *p)
{
    enter(p);
    struct node *n = binary(p, 0);
    while (take_name(p, "if")) {
        struct node *cond = node2(p, N_COND, binary(p, 0), n);
        if (take_name(p, "else")) {
            cond->c = expression(p);
            grow(p, cond, cond->c);
        }
        n = cond;
    }
    p->nest--;
    return n;
}

/* ---- statements ----------------------------------------------------------------------------------- */

static void check_target(struct parser *p, const struct node *n)
{
    if (n->type == N_NAME || n->type == N_NSREF)
        return;
    if (n->type != N_TUPLE)
        jx_fail(p->x, JINJA_SYNTAX, "can't assign to something that is not a name");
    for (const struct node *k = n->kids; k; k = k->next)
        check_target(p, k);
}

static struct node *target(struct parser *p, bool may_be_ns, const char *end_name)
{
    int uses = p->uses; // names that are assigned aren't used
    struct node *n = tuple(p, TUPLE_TARGET | (may_be_ns ? TUPLE_NS : 0), end_name);
    check_target(p, n);
    p->uses = uses;
    return n;
}

static struct sym *target_name(struct parser *p)
{
    struct sym *y = need_name(p);
    static const char *const words[] = {"true", "True", "false", "False", "none", "None"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (text_is(y->s, y->n, words[i]))
            jx_fail(p->x, JINJA_SYNTAX, "can't assign to '%s'", y->s);
    return y;
}

/* Body of a statement from the tag's end to one of the ends; the end's name is consumed. */
static struct node *statements(struct parser *p, struct node *n, const char *e1, const char *e2,
                               const char *e3, const char **found)
{
    const char *const ends[MAX_OPEN + 1] = {e1, e2, e3, NULL};
    const char *local;
    take_op(p, ':');
    if (p->tok->type != TOK_BLOCK_END)
        unexpected(p, "the end of the tag");
    p->tok++;
    enter(p);
    struct node *list = body(p, ends, found ? found : &local);
    p->nest--;
    for (const struct node *k = list; k; k = k->next)
        grow(p, n, k);
    return list;
}

static struct node *parse_if(struct parser *p)
{
    struct node *first = node(p, S_IF), *n = first;
    const char *found;
    for (;;) {
        n->a = tuple(p, TUPLE_NO_COND, NULL);
        n->body = statements(p, n, "elif", "else", "endif", &found);
        grow(p, first, n->a);
        grow(p, first, n->body);
        first->height = n->height > first->height ? n->height : first->height;
        if (!strcmp(found, "elif")) {
            n->orelse = node(p, S_IF);
            n = n->orelse;
            n->flag = true; // an elif: stands alone in orelse
            continue;
        }
        if (!strcmp(found, "else"))
            n->orelse = statements(p, first, "endif", NULL, NULL, NULL);
        return first;
    }
}

static struct node *parse_for(struct parser *p)
{
    struct node *n = node(p, S_FOR);
    const char *found;
    n->a = target(p, false, "in");
    if (!take_name(p, "in"))
        unexpected(p, "'in'");
    n->b = tuple(p, TUPLE_NO_COND, "recursive");
    if (take_name(p, "if"))
        n->c = expression(p);
    n->flag = take_name(p, "recursive");
    grow(p, n, n->b);
    grow(p, n, n->c);
    n->body = statements(p, n, "endfor", "else", NULL, &found);
    if (!strcmp(found, "else"))
        n->orelse = statements(p, n, "endfor", NULL, NULL, NULL);
    return n;
}

static struct node *parse_set(struct parser *p)
{
    struct node *n = node(p, S_SET);
    n->a = target(p, true, NULL);
    if (take_op(p, '=')) {
        n->b = tuple(p, 0, NULL);
        grow(p, n, n->b);
        return n;
    }
    n->type = S_SET_BLOCK;
    n->b = filters(p, NULL, false);
    grow(p, n, n->b);
    n->body = statements(p, n, "endset", NULL, NULL, NULL);
    return n;
}

static void signature(struct parser *p, struct node *n)
{
    struct node **tail = &n->kids;
    bool had_default = false;
    need_op(p, '(', "'('");
    while (!is_op(p->tok, ')')) {
        if (n->kids)
            need_op(p, ',', "','");
        struct node *param = node(p, N_ARG);
        param->name = target_name(p);
        for (const struct node *k = n->kids; k; k = k->next, jx_spend(p->x, 1))
            if (k->name == param->name)
                jx_fail(p->x, JINJA_SYNTAX, "duplicate argument '%s'", param->name->s);
        if (take_op(p, '=')) {
            param->a = expression(p);
            grow(p, param, param->a);
            had_default = true;
        } else if (had_default) {
            jx_fail(p->x, JINJA_SYNTAX, "non-default argument follows default argument");
        }
        chain(p, n, &tail, param);
    }
    p->tok++;
}

/* A macro's body says which of the special names it uses; what it takes as parameters is not special. */
static void macro_body(struct parser *p, struct node *n, const char *end)
{
    int outer = p->uses, declared = 0;
    bool caller_lacks_default = false;
    p->uses = 0;
    n->body = statements(p, n, end, NULL, NULL, NULL);
    for (const struct node *k = n->kids; k; k = k->next) {
        bool is_caller = text_is(k->name->s, k->name->n, "caller");
        declared |= is_caller ? USES_CALLER : 0;
        declared |= text_is(k->name->s, k->name->n, "kwargs") ? USES_KWARGS : 0;
        declared |= text_is(k->name->s, k->name->n, "varargs") ? USES_VARARGS : 0;
        caller_lacks_default |= is_caller && !k->a;
    }
    if (caller_lacks_default && p->uses & USES_CALLER)
        jx_fail(p->x, JINJA_SYNTAX, "the special \"caller\" argument must be omitted or be given a default");
    n->op = (uint8_t)(p->uses & ~declared);
    p->uses |= outer;
}

static struct node *parse_macro(struct parser *p)
{
    struct node *n = node(p, S_MACRO);
    n->name = target_name(p);
    signature(p, n);
    macro_body(p, n, "endmacro");
    return n;
}

static struct node *parse_call(struct parser *p)
{
    struct node *n = node(p, S_CALL);
    if (is_op(p->tok, '('))
        signature(p, n);
    n->a = expression(p);
    if (n->a->type != N_CALL)
        jx_fail(p->x, JINJA_SYNTAX, "expected call");
    grow(p, n, n->a);
    macro_body(p, n, "endcall");
    return n;
}

static struct node *parse_generation(struct parser *p)
{
    struct node *n = node(p, S_SCOPE); // marks text for training; here only a scope
    n->flag = true;
    n->body = statements(p, n, "endgeneration", NULL, NULL, NULL);
    return n;
}

static struct node *parse_filter_block(struct parser *p)
{
    struct node *n = node(p, S_FILTER);
    n->b = filters(p, NULL, true);
    grow(p, n, n->b);
    n->body = statements(p, n, "endfilter", NULL, NULL, NULL);
    return n;
}

static struct node *parse_with(struct parser *p)
{
    struct node *n = node(p, S_WITH), **tail = &n->kids;
    while (p->tok->type != TOK_BLOCK_END) {
        if (n->kids)
            need_op(p, ',', "','");
        struct node *one = node(p, N_ARG);
        one->a = target(p, false, NULL);
        need_op(p, '=', "'='");
        one->b = expression(p);
        grow(p, one, one->b);
        chain(p, n, &tail, one);
    }
    n->body = statements(p, n, "endwith", NULL, NULL, NULL);
    return n;
}

static struct node *parse_autoescape(struct parser *p)
{
    struct node *n = node(p, S_AUTOESCAPE);
    n->a = expression(p);
    grow(p, n, n->a);
    n->body = statements(p, n, "endautoescape", NULL, NULL, NULL);
    return n;
}

static struct node *parse_block(struct parser *p)
{
    struct node *n = node(p, S_BLOCK);
    n->name = need_name(p);
    for (const struct node *b = p->t->blocks; b; b = b->c, jx_spend(p->x, 1))
        if (b->name == n->name)
            jx_fail(p->x, JINJA_SYNTAX, "block '%s' defined twice", n->name->s);
    n->c = p->t->blocks;
    p->t->blocks = n;
    n->flag = take_name(p, "scoped");
    bool required = take_name(p, "required");
    n->body = statements(p, n, "endblock", NULL, NULL, NULL);
    if (required)
        jx_fail(p->x, JINJA_SYNTAX, "required block '%s' has no content: templates can't be inherited here",
                n->name->s);
    if (is_name(p->tok, n->name->s))
        p->tok++;
    return n;
}

static struct node *parse_print(struct parser *p)
{
    struct node *first = NULL, **tail = &first;
    while (p->tok->type != TOK_BLOCK_END) {
        if (first)
            need_op(p, ',', "','");
        struct node *n = node2(p, S_PRINT, expression(p), NULL);
        *tail = n;
        tail = &n->next;
    }
    return first;
}

/* include, import, from, extends: there is nothing to load from; an error where they are reached. */
static struct node *parse_loader(struct parser *p)
{
    struct node *n = node(p, S_LOADER);
    const struct token *tag = p->tok - 1;
    n->a = expression(p);
    grow(p, n, n->a);
    if (is_name(tag, "import")) {
        if (!take_name(p, "as"))
            unexpected(p, "'as'");
        target_name(p);
    } else if (is_name(tag, "from")) {
        if (!take_name(p, "import"))
            unexpected(p, "'import'");
        do {
            if (p->tok->type == TOK_BLOCK_END)
                break;
            target_name(p);
            if (take_name(p, "as"))
                target_name(p);
            if ((is_name(p->tok, "with") || is_name(p->tok, "without")) && is_name(p->tok + 1, "context"))
                break;
        } while (take_op(p, ','));
    } else if (is_name(tag, "include") && is_name(p->tok, "ignore") && is_name(p->tok + 1, "missing")) {
        p->tok += 2;
    }
    if ((is_name(p->tok, "with") || is_name(p->tok, "without")) && is_name(p->tok + 1, "context"))
        p->tok += 2;
    return n;
}

static struct node *parse_jump(struct parser *p)
{
    return node(p, is_name(p->tok - 1, "break") ? S_BREAK : S_CONTINUE);
}

static struct node *statement(struct parser *p)
{
    static const struct {
        const char *tag;
        struct node *(*parse)(struct parser *p);
    } tags[] = {
        {"if", parse_if},
        {"for", parse_for},
        {"set", parse_set},
        {"macro", parse_macro},
        {"call", parse_call},
        {"filter", parse_filter_block},
        {"with", parse_with},
        {"autoescape", parse_autoescape},
        {"block", parse_block},
        {"print", parse_print},
        {"generation", parse_generation},
        {"break", parse_jump},
        {"continue", parse_jump},
        {"include", parse_loader},
        {"import", parse_loader},
        {"from", parse_loader},
        {"extends", parse_loader},
    };
    const struct token *t = p->tok;
    if (t->type != TOK_NAME)
        unexpected(p, "the name of a tag");
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        if (is_name(t, tags[i].tag)) {
            p->tok++;
            return tags[i].parse(p);
        }
    p->x->line = t->line;
    jx_fail(p->x, JINJA_SYNTAX, "Encountered unknown tag '%.*s'", (int)(t->n > 40 ? 40 : t->n), t->s);
}

static struct node *body(struct parser *p, const char *const *ends, const char **found)
{
    struct node *first = NULL, **tail = &first;
    for (;;) {
        const struct token *t = p->tok;
        struct node *n;
        switch (t->type) {
        case TOK_EOF:
            p->x->line = t->line;
            if (ends)
                jx_fail(p->x, JINJA_SYNTAX, "Unexpected end of template: '%s' is missing",
                        ends[2] ? ends[2] : ends[0]);
            return first;
        case TOK_DATA:
            n = node(p, S_DATA);
            n->v = jv_str(p->x, t->s, t->n, FROM_TPL);
            p->tok++;
            break;
        case TOK_VAR_BEGIN:
            p->tok++;
            n = node2(p, S_PRINT, tuple(p, 0, NULL), NULL);
            if (p->tok->type != TOK_VAR_END)
                unexpected(p, "the end of the print statement");
            p->tok++;
            break;
        default: // TOK_BLOCK_BEGIN: every other token lies inside a tag
            p->tok++;
            for (int i = 0; ends && ends[i]; i++)
                if (is_name(p->tok, ends[i])) {
                    *found = ends[i];
                    p->tok++;
                    return first;
                }
            p->x->line = p->tok->line;
            n = statement(p);
            if (p->tok->type != TOK_BLOCK_END)
                unexpected(p, "the end of the tag");
            p->tok++;
        }
        *tail = n;
        while (*tail)
            tail = &(*tail)->next;
    }
}

void jinja_parse(struct jx *x, struct template *t, const char *s, size_t n, const struct jinja_options *o)
{
    if (n > JX_MAX_TEMPLATE)
        jx_fail(x, JINJA_LIMIT, "the template is longer than the limit of %d MiB", JX_MAX_TEMPLATE >> 20);
    struct parser p = {.x = x, .t = t, .tok = jinja_lex(x, s, n, o)};
    t->body = body(&p, NULL, NULL);
}
