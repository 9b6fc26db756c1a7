#include "chat/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/template_set.h"

enum { TEXT_LIMIT = 64 << 20 };

static void add_special(struct buf *b, const struct tokenizer *t, const char *name, int32_t id)
{
    const char *s;
    size_t n;
    if (id < 0 || !tokenizer_bytes(t, id, &s, &n))
        return;
    buf_str(b, b->n > 1 ? "," : "");
    json_write_str(b, name, strlen(name));
    buf_chr(b, ':');
    json_write_str(b, s, n);
}

static int parse(struct template **t, const struct template_text *text, char *source, size_t n_source, struct err *e)
{
    const struct jinja_options o = {true, true};
    struct jinja_error je = {0};
    int rc = 0;
    snprintf(source, n_source, "%s", text->source);
    if (template_parse(t, text->text, text->n, &o, source, &je))
        rc = err_set(e, ERR_FORMAT, "%s: chat template line %d: %s", source, je.line, je.msg);
    jinja_error_free(&je);
    return rc;
}

static int find_templates(struct chat *c, const char *path, struct err *e)
{
    struct template_set set;
    int rc = template_set_find(&set, path, e);
    if (rc)
        return rc;
    const struct template_text *plain = template_set_pick(&set, false), *tools = template_set_pick(&set, true);
    if (plain) {
        rc = parse(&c->t, plain, c->source, sizeof c->source, e);
    } else if (set.n) {
        template_set_names(&set, c->others, sizeof c->others);
        snprintf(c->source, sizeof c->source, "none for chats without tools: the package has %s", c->others);
    } else {
        snprintf(c->source, sizeof c->source, "none: the package has no chat template, a plain form is used");
    }
    if (!rc && tools != plain)
        rc = parse(&c->tools, tools, c->tools_source, sizeof c->tools_source, e);
    template_set_free(&set);
    return rc;
}

int chat_open(struct chat *c, const char *path, const struct instance *in, struct err *e)
{
    *c = (struct chat){.tok = in->tok};
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_chr(&b, '{');
    add_special(&b, in->tok, "bos_token", in->specials.bos);
    add_special(&b, in->tok, "eos_token", in->specials.eos);
    add_special(&b, in->tok, "pad_token", in->specials.pad);
    buf_chr(&b, '}');
    int rc = json_parse(&c->special, &c->arena, b.p, b.n, "special tokens", e);
    buf_free(&b);
    if (!rc)
        rc = find_templates(c, path, e);
    if (rc)
        chat_close(c);
    return rc;
}

void chat_close(struct chat *c)
{
    template_free(c->t);
    template_free(c->tools);
    arena_free(&c->arena);
    *c = (struct chat){0};
}

/* For packages without a template: roles as words, which a base model continues well enough. */
static int encode_plain(const struct chat *c, const struct json *request, struct ids *ids, struct buf *text, struct err *e)
{
    struct buf b;
    buf_init(&b, TEXT_LIMIT);
    const struct json *messages = json_get(request, "messages");
    for (const struct json *m = json_is(messages, JSON_ARRAY) ? messages->child : NULL; m; m = m->next) {
        const struct json *content = json_get(m, "content");
        buf_fmt(&b, "%s: ", json_str(json_get(m, "role"), "user"));
        if (json_is(content, JSON_STRING))
            buf_add(&b, content->s, content->n);
        buf_str(&b, "\n\n");
    }
    buf_str(&b, "assistant:");
    int rc = b.is_full ? err_set(e, ERR_LIMIT, "the chat is longer than %d bytes", TEXT_LIMIT)
                       : tokenizer_encode(c->tok, b.p, b.n, ADDED_NONE, ids, e);
    if (text)
        buf_add(text, b.p, b.n);
    buf_free(&b);
    return rc;
}

/* The request with its messages as HF's callers hand them over (template_messages). NULL: no memory. */
static const struct json *normalized(struct arena *a, const struct json *request)
{
    struct json *out = arena_alloc(a, sizeof *out), **tail;
    if (!out)
        return NULL;
    *out = *request;
    tail = &out->child;
    for (const struct json *m = request->child; m; m = m->next) {
        bool is_messages = !strcmp(m->key, "messages");
        const struct json *v = is_messages ? template_messages(a, m) : m;
        struct json *copy = v ? arena_alloc(a, sizeof *copy) : NULL;
        if (!copy)
            return NULL;
        *copy = *v;
        copy->key = m->key;
        copy->n_key = m->n_key;
        copy->next = NULL;
        *tail = copy;
        tail = &copy->next;
    }
    return out;
}

int chat_encode(const struct chat *c, const struct json *request, struct ids *ids, struct buf *text, struct err *e)
{
    struct rendered r = {0};
    struct jinja_error je = {0};
    const struct json *tools = json_get(request, "tools");
    bool for_tools = c->tools && tools && !json_is(tools, JSON_NULL);
    const struct template *t = for_tools ? c->tools : c->t;
    const char *source = for_tools ? c->tools_source : c->source;
    if (!t && *c->others)
        return err_set(e, ERR_FORMAT, "the package has no chat template for chats without tools, only %s", c->others);
    if (!t)
        return encode_plain(c, request, ids, text, e);
    struct arena a = {.max_bytes = (size_t)1 << 30};
    const struct json *chat = normalized(&a, request);
    int rc = chat ? template_chat(t, chat, c->special, NULL, &r, &je) : err_set(e, ERR_NOMEM, "no memory for the chat's messages");
    arena_free(&a);
    if (!chat)
        return rc;
    if (rc) {
        rc = je.cls == JINJA_RAISE ? err_set(e, ERR_FORMAT, "the chat template refuses: %s", je.msg)
                                   : err_set(e, ERR_FORMAT, "%s: %s error in line %d: %s", source, jinja_class_name(je.cls), je.line, je.msg);
        jinja_error_free(&je);
        return rc;
    }
    rc = tokenizer_encode_spans(c->tok, r.spans, r.n_spans, ids, e);
    if (text)
        buf_add(text, r.text.p, r.text.n);
    rendered_free(&r);
    return rc;
}

int chat_encode_raw(const struct chat *c, const struct instance *in, const char *s, size_t n, struct ids *ids, struct err *e)
{
    if (in->specials.add_bos && in->specials.bos >= 0)
        ids_add(ids, in->specials.bos);
    return tokenizer_encode(c->tok, s, n, ADDED_NONE, ids, e);
}
