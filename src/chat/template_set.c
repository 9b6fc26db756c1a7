#include "chat/template_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "chat/jinja_eval.h"
#include "format/gguf.h"
#include "text/json.h"

enum { MAX_CONFIG_BYTES = 64 * 1024 * 1024, MAX_CONFIG_MEMORY = 512 * 1024 * 1024 };

static bool has_suffix(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && !strcmp(s + n - m, suffix);
}

/* file: as messages show it. A name that is there already is replaced. */
static int add(struct template_set *s, const char *name, const char *text, size_t n, const char *file, bool is_named,
               struct err *e)
{
    char source[256];
    int i = 0;
    while (i < s->n && strcmp(s->v[i].name, name))
        i++;
    if (i == TEMPLATES_MAX)
        return err_set(e, ERR_LIMIT, "%s: more than %d chat templates", file, TEMPLATES_MAX);
    if (i == s->n) {
        s->v = xrealloc(s->v, (size_t)(i + 1) * sizeof *s->v);
        s->n++;
    } else {
        free(s->v[i].name);
        free(s->v[i].text);
        free(s->v[i].source);
    }
    snprintf(source, sizeof source, is_named ? "%s (%s)" : "%s", file, name);
    s->v[i] = (struct template_text){xstrdup(name), xstrndup(text, n), n, xstrdup(source)};
    return 0;
}

void template_set_free(struct template_set *s)
{
    for (int i = 0; i < s->n; i++) {
        free(s->v[i].name);
        free(s->v[i].text);
        free(s->v[i].source);
    }
    free(s->v);
    *s = (struct template_set){0};
}

static int from_file(struct template_set *s, const char *path, const char *name, const char *shown, struct err *e)
{
    char *text;
    size_t n;
    int rc = file_read(path, JX_MAX_TEMPLATE, &text, &n, e);
    if (rc)
        return rc;
    rc = add(s, name, text, n, shown, false, e);
    free(text);
    return rc;
}

static int from_jinja_files(struct template_set *s, const char *dir, struct err *e)
{
    static const char folder[] = "additional_chat_templates";
    char *file = path_join(dir, "chat_template.jinja"), *more = path_join(dir, folder);
    struct filelist l = {0};
    int rc = file_exists(file) ? from_file(s, file, "default", "chat_template.jinja", e) : 0;
    if (!rc && file_is_dir(more))
        rc = file_list(&l, more, e);
    for (int i = 0; i < l.n && !rc; i++) {
        if (!has_suffix(l.name[i], ".jinja"))
            continue;
        char *path = path_join(more, l.name[i]), *shown = path_join(folder, l.name[i]),
             *name = xstrndup(l.name[i], strlen(l.name[i]) - 6);
        rc = from_file(s, path, name, shown, e);
        free(path);
        free(shown);
        free(name);
    }
    file_list_free(&l);
    free(file);
    free(more);
    return rc;
}

/* chat_template: a text, or a list of {name, template}. */
static int from_value(struct template_set *s, const struct json *v, const char *file, struct err *e)
{
    int rc = 0;
    if (!v || json_is(v, JSON_NULL))
        return 0;
    if (json_is(v, JSON_STRING))
        return add(s, "default", v->s, v->n, file, false, e);
    if (!json_is(v, JSON_ARRAY))
        return err_set(e, ERR_FORMAT, "%s: chat_template is %s, expected a string or a list of named templates", file,
                       json_type_name(v));
    for (const struct json *c = v->child; c && !rc; c = c->next) {
        const struct json *name = json_get(c, "name"), *text = json_get(c, "template");
        if (!json_is(name, JSON_STRING) || !json_is(text, JSON_STRING))
            rc = err_set(e, ERR_FORMAT, "%s: an entry of chat_template lacks its name or template, both strings", file);
        else
            rc = add(s, name->s, text->s, text->n, file, true, e);
    }
    return rc;
}

static int from_config(struct template_set *s, const char *dir, const char *name, struct err *e)
{
    struct arena a = {.max_bytes = MAX_CONFIG_MEMORY};
    struct json *config;
    char *path = path_join(dir, name), *raw = NULL;
    size_t n;
    int rc = 0;
    if (file_exists(path) && !(rc = file_read(path, MAX_CONFIG_BYTES, &raw, &n, e)) &&
        !(rc = json_parse(&config, &a, raw, n, path, e)))
        rc = from_value(s, json_get(config, "chat_template"), name, e);
    arena_free(&a);
    free(raw);
    free(path);
    return rc;
}

static int from_gguf(struct template_set *s, const char *path, struct err *e)
{
    static const char key[] = "tokenizer.chat_template";
    const size_t n = sizeof key - 1;
    struct gguf *g;
    int rc = gguf_open(&g, path, e);
    for (size_t i = 0; !rc && i < g->n_kv; i++) {
        const struct gguf_kv *kv = &g->kv[i];
        struct gguf_str text;
        bool is_default = !strcmp(kv->key, key), is_named = !strncmp(kv->key, key, n) && kv->key[n] == '.' && kv->key[n + 1];
        if (!is_default && !is_named)
            continue;
        if (!gguf_string(kv, &text))
            rc = err_set(e, ERR_FORMAT, "%s: %s is no string", path_base(path), kv->key);
        else
            rc = add(s, is_default ? "default" : kv->key + n + 1, text.s, text.n, path_base(path), is_named, e);
    }
    gguf_close(g);
    return rc;
}

static int from_gguf_in(struct template_set *s, const char *dir, struct err *e)
{
    struct filelist l;
    int rc = file_list(&l, dir, e);
    if (rc)
        return rc;
    for (int i = 0; i < l.n && !rc && !s->n; i++) {
        if (!has_suffix(l.name[i], ".gguf"))
            continue;
        char *path = path_join(dir, l.name[i]);
        rc = from_gguf(s, path, e);
        free(path);
    }
    file_list_free(&l);
    return rc;
}

int template_set_find(struct template_set *s, const char *path, struct err *e)
{
    int rc;
    *s = (struct template_set){0};
    if (!file_is_dir(path)) {
        rc = has_suffix(path, ".gguf") ? from_gguf(s, path, e) : from_file(s, path, "default", path_base(path), e);
    } else {
        rc = from_jinja_files(s, path, e);
        if (!rc && !s->n)
            rc = from_config(s, path, "tokenizer_config.json", e);
        if (!rc && !s->n)
            rc = from_config(s, path, "chat_template.json", e);
        if (!rc && !s->n)
            rc = from_gguf_in(s, path, e);
    }
    if (rc)
        template_set_free(s);
    return rc;
}

static const struct template_text *by_name(const struct template_set *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->v[i].name, name))
            return &s->v[i];
    return NULL;
}

const struct template_text *template_set_pick(const struct template_set *s, bool has_tools)
{
    const struct template_text *t = has_tools ? by_name(s, "tool_use") : NULL;
    if (!t)
        t = by_name(s, "default");
    return t || s->n != 1 ? t : &s->v[0];
}

void template_set_names(const struct template_set *s, char *out, size_t n)
{
    struct buf b;
    buf_init(&b, n);
    for (int i = 0; i < s->n; i++)
        buf_fmt(&b, "%s%s", i ? ", " : "", s->v[i].name);
    snprintf(out, n, "%s", buf_cstr(&b));
    buf_free(&b);
}
