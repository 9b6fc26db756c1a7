/* Reading eval.json, see eval_file.h. */
#include "eval_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/os.h"
#include "text/json.h"

static void fail(const char *path, const char *what)
{
    fprintf(stderr, "%s: %s\n", path, what);
    exit(1);
}

static struct eval_ids read_ids(const char *path, const struct json *list)
{
    struct eval_ids ids = {0};
    if (!json_is(list, JSON_ARRAY) || !list->n)
        fail(path, "a list of token ids is missing or empty");
    ids.v = xcalloc(list->n, sizeof *ids.v);
    for (const struct json *x = list->child; x; x = x->next) {
        int64_t id;
        if (!json_int(x, &id) || id < 0 || id > INT32_MAX)
            fail(path, "a token id is not a whole number");
        ids.v[ids.n++] = (int32_t)id;
    }
    return ids;
}

void eval_read(struct eval_file *f, const char *model)
{
    struct arena a = {0};
    struct json *top;
    struct err e = {0};
    struct filemap map;
    char *path = path_join(model, "eval.json");
    int64_t n;
    *f = (struct eval_file){0};
    if (file_map(&map, path, &e))
        fail(path, e.msg);
    if (json_parse(&top, &a, (const char *)map.p, map.n, path, &e))
        fail(path, e.msg);
    if (!json_int(json_get(top, "new_tokens"), &n))
        fail(path, "new_tokens is missing");
    f->new_tokens = (int)n;
    for (int k = 0; k < KINDS; k++) {
        const struct json *kind = json_get(json_get(top, "kinds"), kind_names[k]), *list = json_get(kind, "cases");
        struct eval_kind *x = &f->kind[k];
        for (int i = 0; i < EVAL_DEPTH; i++)
            x->acceptance[i] = json_num(json_at(json_get(kind, "acceptance"), (size_t)i), -1);
        x->tokens_per_round = json_num(json_get(kind, "tokens_per_round"), -1);
        for (const struct json *c = list ? list->child : NULL; c && x->n_cases < EVAL_CASES; c = c->next) {
            x->prompt[x->n_cases] = read_ids(path, json_get(c, "prompt"));
            x->continuation[x->n_cases++] = read_ids(path, json_get(c, "continuation"));
        }
        if (x->n_cases != EVAL_CASES)
            fail(path, "expected 16 cases of each kind");
    }
    arena_free(&a);
    file_unmap(&map);
    free(path);
}

void eval_free(struct eval_file *f)
{
    for (int k = 0; k < KINDS; k++)
        for (int i = 0; i < f->kind[k].n_cases; i++) {
            free(f->kind[k].prompt[i].v);
            free(f->kind[k].continuation[i].v);
        }
}

char *eval_demo(void)
{
    char exe[4096];
    if (!os_exe_path(exe, sizeof exe))
        for (char *slash; (slash = strrchr(exe, '/'));) {
            *slash = 0;
            char *p = path_join(exe, "models/demo");
            if (file_exists(p))
                return p;
            free(p);
        }
    return xstrdup("models/demo");
}

struct text_prompt *eval_prompts(const struct eval_file *f, int n_per_kind, int ending, int *n)
{
    enum { CUTS = 4 };
    if (n_per_kind > CUTS * EVAL_CASES)
        n_per_kind = CUTS * EVAL_CASES;
    struct text_prompt *p = xcalloc((size_t)(n_per_kind * KINDS) + 1, sizeof *p);
    size_t room = 0;
    *n = 0;
    for (int k = 0; k < KINDS; k++)
        for (int i = 0; i < EVAL_CASES; i++)
            room += CUTS * (size_t)(f->kind[k].prompt[i].n + f->kind[k].continuation[i].n);
    int32_t *ids = xcalloc(room + 1, sizeof *ids);
    for (int i = 0; i < n_per_kind; i++)
        for (int k = 0; k < KINDS; k++) { // kinds take turns, so that a cut list holds all of them
            const struct eval_ids *head = &f->kind[k].prompt[i % EVAL_CASES], *tail = &f->kind[k].continuation[i % EVAL_CASES];
            int cut = i / EVAL_CASES, n_head = cut == 2 ? (head->n + 1) / 2 : head->n;
            int n_tail = cut == 1 ? tail->n / 3 : cut == 3 ? tail->n * 2 / 3 : 0;
            memcpy(ids, head->v, (size_t)n_head * sizeof *ids);
            memcpy(ids + n_head, tail->v, (size_t)n_tail * sizeof *ids);
            p[(*n)++] = (struct text_prompt){k, ids, n_head + n_tail, i >= n_per_kind - ending};
            ids += n_head + n_tail;
        }
    return p;
}
