/* Chat templates: the entry to the Jinja engine (the only place that catches its failures and frees its arena) and what
 * a chat's variables are. */
#include "chat/template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/jinja_eval.h"

const char *jinja_class_name(enum jinja_class c)
{
    static const char *const names[] = {"ok",    "syntax",   "undefined", "type",
                                        "value", "security", "limit",     "raise"};
    return names[c];
}

void jinja_error_free(struct jinja_error *e)
{
    free(e->msg);
    *e = (struct jinja_error){0};
}

static int code_of(const struct jinja_error *e) { return e->cls == JINJA_LIMIT ? ERR_LIMIT : ERR_FORMAT; }

static struct jx *jx_new(const char *name, struct jinja_error *je)
{
    struct jx *x = xcalloc(1, sizeof *x);
    *je = (struct jinja_error){0};
    x->a.max_bytes = JX_MAX_BYTES;
    x->je = je;
    x->name = name;
    return x;
}

int template_parse(struct template **t, const char *s, size_t n, const struct jinja_options *o,
                   const char *name, struct jinja_error *je)
{
    struct template *tp = xcalloc(1, sizeof *tp);
    struct jx *x = jx_new(name, je);
    int rc = 0;
    tp->name = xstrdup(name);
    if (!setjmp(x->env)) {
        jinja_parse(x, tp, s, n, o);
        jinja_check(x, tp);
        jinja_scopes(x, tp);
    }
    tp->a = x->a;
    free(x);
    if (je->cls) {
        rc = code_of(je);
        template_free(tp);
        tp = NULL;
    }
    *t = tp;
    return rc;
}

void template_free(struct template *t)
{
    if (!t)
        return;
    arena_free(&t->a);
    free(t->name);
    free(t);
}

void rendered_free(struct rendered *r)
{
    buf_free(&r->text);
    free(r->spans);
    *r = (struct rendered){0};
}

static struct dict *make_context(struct jx *x, const struct json *context, const struct json *special)
{
    struct dict *d = jd_new(x, 16);
    for (const struct json *c = json_is(special, JSON_OBJECT) ? special->child : NULL; c; c = c->next)
        jd_set(x, d, jv_str(x, c->key, c->n_key, FROM_TPL), jv_from_json(x, c, FROM_TPL, false));
    if (!json_is(context, JSON_OBJECT))
        return d;
    const struct dict *vars = jv_from_json(x, context, FROM_USER, true).u.d;
    for (size_t i = 0; i < vars->n; i++)
        jd_set(x, d, vars->e[i].k, vars->e[i].v);
    return d;
}

/* Copies the output out of the arena, with one span for every run of one origin. */
static void take_output(struct jx *x, struct rendered *out)
{
    const struct sb *b = x->out;
    buf_init(&out->text, JX_MAX_TEXT);
    buf_add(&out->text, b->p, b->n);
    out->spans = xcalloc((size_t)b->n_runs, sizeof *out->spans);
    out->n_spans = b->n_runs;
    size_t start = 0;
    for (int i = 0; i < b->n_runs; i++) {
        int32_t from = b->runs[i].from;
        out->spans[i] = (struct span){.s = out->text.p + start,
                                      .n = b->runs[i].end - start,
                                      .msg = from < 0 ? -1 : from,
                                      .trust = from == FROM_TPL ? TRUST_TPL : TRUST_USER};
        start = b->runs[i].end;
    }
}

int template_render(const struct template *t, const struct json *context, const struct json *special,
                    const char *now, struct rendered *out, struct jinja_error *je)
{
    struct jx *x = jx_new(t->name, je);
    *out = (struct rendered){0};
    x->t = t;
    x->now = now;
    if (!setjmp(x->env)) {
        x->out = sb_new(x);
        x->context = make_context(x, context, special);
        jinja_run(x);
        take_output(x, out);
    }
    if (out->text.is_full) {
        je->cls = JINJA_LIMIT;
        je->msg = xstrdup("there is not enough memory for the rendered text");
        rendered_free(out);
    }
    arena_free(&x->a);
    free(x);
    return je->cls ? code_of(je) : 0;
}

/* ---- a chat's variables --------------------------------------------------------------------------- */

/* Copies a value under a new key; children are shared. */
static struct json *member(struct arena *a, struct json ***tail, const char *key, const struct json *v)
{
    struct json *c = arena_alloc(a, sizeof *c);
    if (!c)
        return NULL;
    *c = v ? *v : (struct json){.type = JSON_NULL};
    c->key = key;
    c->n_key = key ? (uint32_t)strlen(key) : 0;
    c->next = NULL;
    **tail = c;
    *tail = &c->next;
    return c;
}

int template_chat(const struct template *t, const struct json *request, const struct json *special,
                  const char *now, struct rendered *out, struct jinja_error *je)
{
    static const char *const fixed[] = {"messages", "tools", "documents", "add_generation_prompt"};
    static const struct json no = {.type = JSON_FALSE};
    struct arena a = {0};
    struct json vars = {.type = JSON_OBJECT}, **tail = &vars.child;
    const struct json *kwargs = json_get(request, "kwargs");
    bool ok = true;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        const struct json *v = json_get(request, fixed[i]);
        ok &= member(&a, &tail, fixed[i], !v && i == 3 ? &no : v) != NULL;
    }
    for (const struct json *k = json_is(kwargs, JSON_OBJECT) ? kwargs->child : NULL; k; k = k->next) {
        bool is_fixed = false;
        for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
            is_fixed |= !strcmp(k->key, fixed[i]);
        if (is_fixed)
            continue; // a chat's own variables can't be replaced
        struct json *c = member(&a, &tail, k->key, k);
        ok &= c != NULL;
        if (c)
            c->n_key = k->n_key;
    }
    for (const struct json *c = vars.child; c; c = c->next)
        vars.n++;
    int rc;
    if (ok) {
        rc = template_render(t, &vars, special, now, out, je);
    } else {
        *out = (struct rendered){0};
        *je = (struct jinja_error){.cls = JINJA_LIMIT,
                                   .msg = xstrdup("there is not enough memory for the chat's variables")};
        rc = ERR_LIMIT;
    }
    arena_free(&a);
    return rc;
}

static const struct json *normal_message(struct arena *a, const struct json *m, struct json *out)
{
    static const char *const alias[] = {"reasoning_content", "thinking", "reasoning"};
    const struct json *reasoning = NULL;
    struct json **tail = &out->child;
    *out = *m;
    out->next = NULL;
    if (m->type != JSON_OBJECT)
        return out;
    out->child = NULL;
    out->n = 0;
    for (size_t i = 0; i < 3 && !reasoning; i++) {
        reasoning = json_get(m, alias[i]);
        reasoning = json_is(reasoning, JSON_NULL) ? NULL : reasoning;
    }
    for (const struct json *c = m->child; c; c = c->next) {
        bool replaced = reasoning && !strcmp(c->key, alias[0]);
        if (c->type == JSON_NULL || replaced)
            continue;
        struct json *copy = member(a, &tail, c->key, c);
        if (!copy)
            return NULL;
        copy->n_key = c->n_key;
        out->n++;
    }
    for (size_t i = 0; i < 2 && reasoning; i++) {
        if (i && json_get(out, alias[i]))
            break;
        if (!member(a, &tail, alias[i], reasoning))
            return NULL;
        out->n++;
    }
    return out;
}

const struct json *template_messages(struct arena *a, const struct json *messages)
{
    if (!json_is(messages, JSON_ARRAY))
        return messages;
    struct json *out = arena_alloc(a, sizeof *out), **tail;
    if (!out)
        return NULL;
    *out = *messages;
    tail = &out->child;
    for (const struct json *m = messages->child; m; m = m->next) {
        struct json *copy = arena_alloc(a, sizeof *copy);
        if (!copy || !normal_message(a, m, copy))
            return NULL;
        *tail = copy;
        tail = &copy->next;
    }
    *tail = NULL;
    return out;
}
