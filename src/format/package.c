/* Finds out what a path is and hands it to the reader of that kind. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/package.h"

enum { MAX_NOTES = 256, MAX_NOTE_BYTES = 1000 };
static const size_t max_config_arena = (size_t)256 << 20;

void package_note(struct package *p, const char *fmt, ...)
{
    char text[MAX_NOTE_BYTES];
    if (p->n_notes >= MAX_NOTES)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    p->notes = xrealloc(p->notes, ((size_t)p->n_notes + 1) * sizeof *p->notes);
    p->notes[p->n_notes++] = xstrdup(text);
}

int package_json(struct package *p, const char *text, size_t n, const char *name, struct json **out,
                 struct err *e)
{
    int rc = json_parse(out, p->arena, text, n, name, e);
    if (rc)
        return rc;
    if (!json_is(*out, JSON_OBJECT))
        return err_set(e, ERR_FORMAT, "%s: expected a JSON object", name);
    return 0;
}

static bool has_suffix(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n > m && !strcmp(s + n - m, suffix);
}

/* A folder without config.json may hold one GGUF file (with its parts, if it is split). */
static int open_folder(struct package *p, const char *dir, struct err *e)
{
    struct filelist l;
    char *config = path_join(dir, "config.json"), *file = NULL;
    bool is_hf = file_exists(config);
    free(config);
    if (is_hf)
        return hf_open(p, dir, e);
    int n = 0, rc = file_list(&l, dir, e);
    if (rc)
        return rc;
    for (int i = 0; i < l.n; i++) {
        const char *part = strstr(l.name[i], "-of-");
        bool is_later_part = part && part - l.name[i] >= 6 && strncmp(part - 6, "-00001", 6);
        if (has_suffix(l.name[i], ".gguf") && !is_later_part && !n++)
            file = path_join(dir, l.name[i]);
    }
    file_list_free(&l);
    if (n == 1)
        rc = gguf_package_open(p, file, e);
    else if (n > 1)
        rc = err_set(e, ERR_ARG, "%s: holds %d GGUF files and no config.json: name the file", dir, n);
    else
        rc = err_set(e, ERR_FORMAT, "%s: not a model: expected config.json with safetensors, or a .gguf file",
                     dir);
    free(file);
    return rc;
}

struct package *package_new(const char *path)
{
    struct package *p = xcalloc(1, sizeof *p);
    p->path = xstrdup(path);
    p->arena = xcalloc(1, sizeof *p->arena);
    p->arena->max_bytes = max_config_arena;
    p->config_file = "config.json";
    return p;
}

int package_open_gguf_bytes(struct package **out, const void *bytes, size_t n, const char *name,
                            struct err *e)
{
    struct package *p = package_new(name);
    *out = NULL;
    p->weights = weights_new(name);
    p->weights->gguf = xcalloc(1, sizeof(struct gguf *));
    int rc = gguf_open_bytes(&p->weights->gguf[0], bytes, n, name, e);
    if (!rc) {
        p->weights->n_gguf = 1;
        rc = gguf_package_fill(p, e);
    }
    if (rc)
        package_close(p);
    else
        *out = p;
    return rc;
}

int package_open(struct package **out, const char *path, struct err *e)
{
    struct err local = {0};
    struct package *p = package_new(path);
    int rc;
    *out = NULL;
    if (!file_exists(path))
        rc = err_set(&local, ERR_IO, "%s: no such file or folder", path);
    else if (file_is_dir(path))
        rc = open_folder(p, path, &local);
    else if (has_suffix(path, ".safetensors"))
        rc = err_set(&local, ERR_ARG, "%s: a single safetensors file is not a model: name its folder", path);
    else
        rc = gguf_package_open(p, path, &local);
    if (rc) {
        package_close(p);
        return err_set(e, local.code, "%s", local.msg);
    }
    *out = p;
    return 0;
}

void package_close(struct package *p)
{
    if (!p)
        return;
    weights_free(p->weights);
    for (int i = 0; i < p->n_notes; i++)
        free(p->notes[i]);
    free(p->notes);
    arena_free(p->arena);
    free(p->arena);
    free(p->path);
    free(p);
}
