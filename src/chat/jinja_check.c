/* The checks that the reference makes when it compiles a template: filters and tests exist (except in what an
 * `if` guards, where a missing one is an error only once it is reached), break and continue stand in loops,
 * nothing assigns to `loop` inside a for. */
#include <string.h>

#include "chat/jinja_eval.h"

struct where {
    struct jx *x;
    bool soft;    // inside a branch that an if guards
    bool in_loop; // a for of the same body is around
    bool in_for;  // some for is around: `loop` is taken
};

static void check_list(struct where w, struct node *n);

static void check(struct where w, struct node *n)
{
    if (!n)
        return;
    struct where hard = w, soft = w;
    hard.soft = false;
    soft.soft = true;
    w.x->line = n->line;
    switch (n->type) {
    case N_FILTER:
    case N_TEST: {
        bool is_filter = n->type == N_FILTER;
        n->fn =
            is_filter ? jinja_find_filter(n->name->s, n->name->n) : jinja_find_test(n->name->s, n->name->n);
        n->lacks_builtin = !n->fn;
        if (!n->fn && !w.soft)
            jx_fail(w.x, JINJA_SYNTAX, "No %s named '%.100s'", is_filter ? "filter" : "test", n->name->s);
        break;
    }
    case N_COND:
        w = soft;
        break;
    case S_IF:
        for (; n->orelse && n->orelse->type == S_IF && n->orelse->flag;
             n = n->orelse) { // elifs, without recursion
            check(soft, n->a);
            check_list(soft, n->body);
        }
        w = soft;
        break;
    case S_FOR:
        check(w, n->b);
        hard.in_for = true;
        check(hard, n->a);
        check(hard, n->c);
        check_list(hard, n->orelse);
        hard.in_loop = true;
        check_list(hard, n->body);
        return;
    case S_SET_BLOCK:
    case S_FILTER:
    case S_WITH:
    case S_AUTOESCAPE:
        w = hard;
        break;
    case S_MACRO:
    case S_CALL:
    case S_BLOCK:
    case S_SCOPE:
        check(w, n->a);
        hard.in_loop = false;
        check_list(hard, n->kids);
        check_list(hard, n->body);
        return;
    case S_BREAK:
    case S_CONTINUE:
        if (!w.in_loop)
            jx_fail(w.x, JINJA_SYNTAX, "'%s' outside loop", n->type == S_BREAK ? "break" : "continue");
        break;
    default:
        break;
    }
    check(w, n->a);
    check(w, n->b);
    if (n->type != S_BLOCK)
        check(w, n->c);
    check_list(w, n->kids);
    check_list(w, n->body);
    check_list(w, n->orelse);
}

static void check_list(struct where w, struct node *n)
{
    for (; n; n = n->next)
        check(w, n);
}

/* Does a target below assign to `loop`? Any set inside a for counts, as in the reference. */
static bool assigns_loop(const struct node *n)
{
    if (n->type == N_NAME)
        return n->name->n == 4 && !memcmp(n->name->s, "loop", 4);
    for (const struct node *k = n->type == N_TUPLE ? n->kids : NULL; k; k = k->next)
        if (assigns_loop(k))
            return true;
    return false;
}

static void check_loop_names(struct jx *x, const struct node *n, bool in_for)
{
    for (; n; n = n->next) {
        bool here = in_for || n->type == S_FOR;
        if (here && (n->type == S_FOR || n->type == S_SET || n->type == S_SET_BLOCK) && assigns_loop(n->a)) {
            x->line = n->line;
            jx_fail(x, JINJA_SYNTAX, "Can't assign to special loop variable in for-loop target");
        }
        check_loop_names(x, n->body, here);
        check_loop_names(x, n->orelse, here);
    }
}

void jinja_check(struct jx *x, struct template *t)
{
    check_list((struct where){.x = x}, t->body);
    check_loop_names(x, t->body, false);
}
