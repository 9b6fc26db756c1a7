/* `probe render` and `probe jinja`: templates reachable from a script. The contract is docs/probe.md. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/template.h"
#include "chat/template_set.h"
#include "cli/cli.h"

/* A JSON string in which nothing looks like the end of a line: U+0085, U+2028 and U+2029 may stand in JSON, but
 * many readers of lines split there. */
static void write_str(struct buf *out, const char *s, size_t n)
{
    struct buf b;
    buf_init(&b, out->max);
    json_write_str(&b, s, n);
    size_t run = 0;
    for (size_t i = 0; i + 1 < b.n; i++) {
        const unsigned char *p = (const unsigned char *)b.p + i;
        bool nel = p[0] == 0xC2 && p[1] == 0x85,
             sep = p[0] == 0xE2 && p[1] == 0x80 && (p[2] == 0xA8 || p[2] == 0xA9);
        if (!nel && !sep)
            continue;
        buf_add(out, b.p + run, i - run);
        buf_str(out, nel ? "\\u0085" : p[2] == 0xA8 ? "\\u2028" : "\\u2029");
        run = i + (nel ? 2 : 3);
    }
    buf_add(out, b.p + run, b.n - run);
    out->is_full |= b.is_full;
    buf_free(&b);
}

static void write_error(struct buf *out, struct jinja_error *je)
{
    buf_str(out, "{\"error\":");
    write_str(out, je->msg, strlen(je->msg));
    buf_str(out, ",\"class\":");
    write_str(out, jinja_class_name(je->cls), strlen(jinja_class_name(je->cls)));
    buf_chr(out, '}');
    jinja_error_free(je);
}

static void write_rendered(struct buf *out, const struct rendered *r, bool with_spans)
{
    size_t start = 0, end = 0;
    buf_str(out, "{\"text\":");
    write_str(out, buf_cstr(&r->text), r->text.n);
    if (with_spans)
        buf_str(out, ",\"spans\":[");
    for (int i = 0; with_spans && i < r->n_spans; i++) {
        end += r->spans[i].n;
        if (i + 1 < r->n_spans && r->spans[i + 1].trust == r->spans[i].trust)
            continue; // parts of one trust are one span, whichever messages they came from
        buf_fmt(out, "%s[%zu,%zu,\"%s\"]", start ? "," : "", start, end,
                r->spans[i].trust == TRUST_TPL ? "tpl" : "user");
        start = end;
    }
    buf_str(out, with_spans ? "]}" : "}");
}

/* now: absent or a string; anything else is the line's error. */
static int get_now(const struct json *in, const char **now, struct err *e)
{
    const struct json *v = json_get(in, "now");
    *now = json_str(v, NULL);
    if (v && !json_is(v, JSON_STRING) && !json_is(v, JSON_NULL))
        return err_set(e, ERR_ARG, "\"now\" must be a string such as \"2026-03-09T08:05:07\"");
    return 0;
}

/* One template, or why it can't be parsed: every request that it is for meets that error. */
struct parsed {
    struct template *t;
    struct jinja_error error;
};

struct render {
    struct parsed plain, tools; // tools: what a chat with tools gets, if that is another one
    bool has_tools;
};

static void parse(struct parsed *p, const struct template_text *text)
{
    const struct jinja_options o = {.trim_blocks = true, .lstrip_blocks = true};
    if (text && template_parse(&p->t, text->text, text->n, &o, text->source, &p->error))
        p->t = NULL;
}

static void parsed_free(struct parsed *p)
{
    template_free(p->t);
    jinja_error_free(&p->error);
}

static int render_line(void *ud, const struct json *in, struct buf *out, struct err *e)
{
    const struct render *r = ud;
    const struct json *tools = json_get(in, "tools");
    const struct parsed *p = r->has_tools && tools && !json_is(tools, JSON_NULL) ? &r->tools : &r->plain;
    struct rendered result;
    struct jinja_error je;
    const char *now;
    if (!json_is(in, JSON_OBJECT))
        return err_set(e, ERR_ARG, "expected an object with \"messages\"");
    if (get_now(in, &now, e))
        return e->code;
    if (!p->t && !p->error.msg)
        return err_set(e, ERR_FORMAT, "the package has no chat template for chats without tools");
    if (!p->t) {
        je = p->error;
        je.msg = xstrdup(je.msg);
        write_error(out, &je);
        return 0;
    }
    if (template_chat(p->t, in, json_get(in, "special_tokens"), now, &result, &je)) {
        write_error(out, &je);
        return 0;
    }
    write_rendered(out, &result, true);
    rendered_free(&result);
    return 0;
}

int probe_render(int argc, char **argv)
{
    struct render r = {0};
    struct template_set set;
    struct err e = {0};
    if (argc != 1 || argv[0][0] == '-') {
        fprintf(stderr, "usage: foresay probe render TEMPLATE\n");
        return 2;
    }
    int rc = template_set_find(&set, argv[0], &e);
    if (!rc && !set.n)
        rc = err_set(&e, ERR_FORMAT, "%s: the package has no chat template", argv[0]);
    if (rc)
        return cli_fail(&e);
    const struct template_text *plain = template_set_pick(&set, false), *tools = template_set_pick(&set, true);
    r.has_tools = tools != plain;
    parse(&r.plain, plain);
    parse(&r.tools, r.has_tools ? tools : NULL);
    rc = probe_lines(&r, render_line);
    parsed_free(&r.plain);
    parsed_free(&r.tools);
    template_set_free(&set);
    return rc;
}

static int jinja_line(void *ud, const struct json *in, struct buf *out, struct err *e)
{
    const struct json *text = json_get(in, "template");
    struct jinja_options o = {json_bool(json_get(in, "trim_blocks"), true),
                              json_bool(json_get(in, "lstrip_blocks"), true)};
    struct template *t;
    struct rendered result;
    struct jinja_error je;
    const char *now;
    (void)ud;
    if (!json_is(text, JSON_STRING))
        return err_set(e, ERR_ARG, "expected an object with \"template\", a string");
    if (get_now(in, &now, e))
        return e->code;
    if (template_parse(&t, text->s, text->n, &o, "template", &je)) {
        write_error(out, &je);
        return 0;
    }
    if (template_render(t, json_get(in, "context"), NULL, now, &result, &je)) {
        write_error(out, &je);
    } else {
        write_rendered(out, &result, false);
        rendered_free(&result);
    }
    template_free(t);
    return 0;
}

int probe_jinja(int argc, char **argv)
{
    (void)argv;
    if (argc) {
        fprintf(stderr, "usage: foresay probe jinja\n");
        return 2;
    }
    return probe_lines(NULL, jinja_line);
}
