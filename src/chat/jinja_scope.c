/* The reference decides when it compiles a template where each name lives. Mostly that is what looking names up
 * from the inside out gives too; with one exception, found here. A name that a scope assigns, outside of any
 * `if`, without having read it before, is the scope's own from the start: until the assignment, scopes inside
 * (loops, macros) find it undefined, even if the context has a value of that name. Such names are called late. */
#include <string.h>

#include "chat/jinja_eval.h"

struct names { // that a scope refers to
    struct names *up;
    const struct sym **v;
    bool *is_late;
    int n, cap;
};

struct walk {
    struct jx *x;
    struct names *names;
    bool in_branch;
};

static void analyse(struct jx *x, struct node *owner, struct names *up);

static bool known(struct jx *x, const struct names *s, const struct sym *name, bool outside)
{
    for (; s; s = outside ? s->up : NULL) {
        jx_spend(x, 1 + (uint64_t)s->n / 8);
        for (int i = 0; i < s->n; i++)
            if (s->v[i] == name)
                return true;
    }
    return false;
}

static void add(struct walk *w, const struct sym *name, bool is_late)
{
    struct names *s = w->names;
    if (s->n == s->cap) {
        int cap = s->cap ? 2 * s->cap : 16;
        const struct sym **v = jx_alloc(w->x, (size_t)cap * sizeof *v);
        bool *late = jx_alloc(w->x, (size_t)cap);
        if (s->n) {
            memcpy(v, s->v, (size_t)s->n * sizeof *v);
            memcpy(late, s->is_late, (size_t)s->n);
        }
        s->v = v;
        s->is_late = late;
        s->cap = cap;
    }
    s->v[s->n] = name;
    s->is_late[s->n++] = is_late;
}

static void load(struct walk *w, const struct sym *name)
{
    if (!known(w->x, w->names, name, true))
        add(w, name, false);
}

static void store(struct walk *w, const struct sym *name)
{
    if (!known(w->x, w->names, name, false))
        add(w, name, !w->in_branch && !known(w->x, w->names->up, name, true));
}

static void loads(struct walk *w, const struct node *n) // of an expression
{
    for (; n; n = n->next) {
        if (n->type == N_NAME)
            load(w, n->name);
        loads(w, n->a);
        loads(w, n->b);
        loads(w, n->c);
        loads(w, n->kids);
    }
}

static void target(struct walk *w, const struct node *n, bool is_param)
{
    if (n->type == N_TUPLE) {
        for (const struct node *k = n->kids; k; k = k->next)
            target(w, k, is_param);
    } else if (n->type == N_NSREF) {
        load(w, n->name);
    } else if (!is_param) {
        store(w, n->name);
    } else if (!known(w->x, w->names, n->name, false)) {
        add(w, n->name, false);
    }
}

/* What the statements of one scope read and assign, in order; scopes inside count with their heads only. */
static void statements(struct walk *w, const struct node *n)
{
    for (; n; n = n->next) {
        switch (n->type) {
        case S_SET:
            loads(w, n->b);
            target(w, n->a, false);
            break;
        case S_SET_BLOCK:
            target(w, n->a, false);
            break;
        case S_MACRO:
            store(w, n->name);
            break;
        case S_FOR:
        case S_FILTER:
            loads(w, n->b);
            break;
        case S_WITH:
            for (const struct node *k = n->kids; k; k = k->next)
                loads(w, k->b);
            break;
        case S_IF: {
            struct walk inner = *w;
            inner.in_branch = true;
            for (; n; n = n->orelse) {
                loads(&inner, n->a);
                statements(&inner, n->body);
                if (!(n->orelse && n->orelse->type == S_IF && n->orelse->flag)) {
                    statements(&inner, n->orelse);
                    break;
                }
            }
            break;
        }
        case S_PRINT:
        case S_CALL:
        case S_LOADER:
            loads(w, n->a);
            break;
        default:
            break;
        }
    }
}

static void inner_scopes(struct jx *x, struct node *n, struct names *up)
{
    for (; n; n = n->next) {
        struct node *branch = n;
        switch (n->type) {
        case S_IF:
            for (; branch; branch = branch->orelse) {
                inner_scopes(x, branch->body, up);
                if (!(branch->orelse && branch->orelse->type == S_IF && branch->orelse->flag)) {
                    inner_scopes(x, branch->orelse, up);
                    break;
                }
            }
            break;
        case S_FOR:
        case S_SET_BLOCK:
        case S_MACRO:
        case S_CALL:
        case S_FILTER:
        case S_WITH:
        case S_SCOPE:
        case S_AUTOESCAPE:
            analyse(x, n, up);
            break;
        case S_BLOCK:
            analyse(x, n, NULL);
            break;
        default:
            break;
        }
    }
}

static const struct sym **late_names(struct jx *x, const struct names *s)
{
    const struct sym **v = NULL;
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        if (!s->is_late[i])
            continue;
        v = v ? v : jx_alloc(x, ((size_t)s->n + 1) * sizeof *v);
        v[n++] = s->v[i];
    }
    return v;
}

static void analyse(struct jx *x, struct node *owner, struct names *up)
{
    struct names *s = jx_alloc(x, sizeof *s);
    struct walk w = {x, s, false};
    s->up = up;
    if (owner->type == S_FOR)
        target(&w, owner->a, true);
    for (const struct node *k = owner->kids; k; k = k->next) {
        if (owner->type == S_WITH)
            target(&w, k->a, true);
        else
            add(&w, k->name, false); // a macro's parameter
    }
    for (const struct node *k = owner->type == S_WITH ? NULL : owner->kids; k; k = k->next)
        loads(&w, k->a);
    statements(&w, owner->body);
    owner->late = late_names(x, s);
    inner_scopes(x, owner->body, s);
    if (owner->type == S_FOR) {
        struct names *otherwise = jx_alloc(x, sizeof *otherwise);
        otherwise->up = up;
        w.names = otherwise;
        statements(&w, owner->orelse);
        inner_scopes(x, owner->orelse, otherwise);
    }
}

void jinja_scopes(struct jx *x, struct template *t)
{
    struct node root = {.type = S_SCOPE, .body = t->body};
    analyse(x, &root, NULL);
    t->late = root.late;
}
