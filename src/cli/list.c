/* `foresay list` and `foresay rm`: the models on this machine. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/human.h"
#include "cli/cli.h"
#include "cli/opt.h"
#include "pull/store.h"

static const char list_usage[] =
    "usage: foresay list [--paths] [--json]\n\n"
    "Models on this machine: foresay's own, the Hugging Face cache, LM Studio's, Ollama's and MLX folders, and the folders in\n"
    "FORESAY_MODELS (separated by colons). All can be used in place by their names. Copies of the same content are marked.\n\n"
    "  foresay list\n  foresay run Qwen3.5-4B-MLX-4bit\n  FORESAY_MODELS=/data/models foresay list --json\n";

static const char rm_usage[] =
    "usage: foresay rm NAME [--yes]\n\n"
    "Deletes a model that `foresay pull` fetched, or what an unfinished pull left. Other tools' models are theirs to delete.\n\n"
    "  foresay rm mlx-community/Qwen3.5-4B-MLX-4bit\n  foresay rm unsloth/Qwen3.5-4B-GGUF:Q8_0 --yes\n";

static const char *how_same(const struct store_model *m)
{
    return m->same_how == STORE_SAME_FILES ? "links to the files of" : m->same_how == STORE_SAME_SHA ? "same content as" : "same size, begin and end as";
}

static void put(struct buf *b, const char *key, const char *s)
{
    buf_fmt(b, "%s\"%s\":", b->p[b->n - 1] == '{' ? "" : ",", key);
    if (s)
        json_write_str(b, s, strlen(s));
    else
        buf_str(b, "null");
}

static void print_json(const struct store *s)
{
    struct buf b;
    buf_init(&b, 64 << 20);
    buf_str(&b, "{\"models\":[");
    for (int i = 0; i < s->n; i++) {
        const struct store_model *m = &s->model[i];
        buf_str(&b, i ? ",\n{" : "\n{");
        put(&b, "name", m->name);
        put(&b, "path", m->path);
        put(&b, "source", store_place_name(m->place));
        buf_fmt(&b, ",\"bytes\":%llu", (unsigned long long)m->bytes);
        put(&b, "format", *m->format ? m->format : NULL);
        put(&b, "architecture", *m->arch ? m->arch : NULL);
        put(&b, "trouble", m->trouble);
        put(&b, "pull", m->origin);
        put(&b, "commit", m->commit);
        put(&b, "same_as", m->same_as < 0 ? NULL : s->model[m->same_as].path);
        if (m->same_as >= 0)
            put(&b, "same_by", m->same_how == STORE_SAME_FILES ? "link" : m->same_how == STORE_SAME_SHA ? "sha256" : "ends");
        buf_chr(&b, '}');
    }
    buf_str(&b, "],\n\"folders\":[");
    for (int i = 0; i < s->n_roots; i++) {
        buf_str(&b, i ? ",{" : "{");
        put(&b, "source", store_place_name(s->root_place[i]));
        put(&b, "path", s->root[i]);
        buf_chr(&b, '}');
    }
    printf("%s]}\n", buf_cstr(&b));
    buf_free(&b);
}

static void print_text(const struct store *s, bool paths)
{
    char size[32];
    int width = 4;
    double total = 0, twice = 0;
    for (int i = 0; i < s->n; i++)
        width = (int)strlen(s->model[i].name) > width && strlen(s->model[i].name) < 60 ? (int)strlen(s->model[i].name) : width;
    if (s->n)
        printf("%-*s %10s  %-20s %-14s %s\n", width, "NAME", "SIZE", "FORMAT", "ARCHITECTURE", "SOURCE");
    for (int i = 0; i < s->n; i++) {
        const struct store_model *m = &s->model[i];
        cli_print(stdout, "%-*s %10s  %-20s %-14s %s", width, m->name, human_bytes((double)m->bytes, size, sizeof size), *m->format ? m->format : "-",
               *m->arch ? m->arch : "-", store_place_name(m->place));
        if (m->same_as >= 0)
            cli_print(stdout, ", %s %s (%s)", how_same(m), s->model[m->same_as].name, store_place_name(s->model[m->same_as].place));
        printf("\n");
        if (m->trouble)
            cli_print(stdout, "  %s%s%s\n", m->trouble, m->origin ? ": foresay pull hf:" : "", m->origin ? m->origin : "");
        if (paths)
            cli_print(stdout, "  %s\n", m->path);
        total += (double)m->bytes;
        twice += m->same_as >= 0 && m->same_how != STORE_SAME_FILES ? (double)m->bytes : 0;
    }
    if (s->n) {
        printf("\n%d model%s, %s", s->n, s->n == 1 ? "" : "s", human_bytes(total, size, sizeof size));
        if (twice > 0)
            printf(", %s of it copies", human_bytes(twice, size, sizeof size));
        printf("\n");
        return;
    }
    printf("No models on this machine yet. `foresay pull hf:ORG/NAME` downloads one; folders looked at:%s\n", s->n_roots ? "" : " none of the usual ones exists");
    for (int i = 0; i < s->n_roots; i++)
        cli_print(stdout, "  %s (%s)\n", s->root[i], store_place_name(s->root_place[i]));
}

int cmd_list(int argc, char **argv)
{
    bool json = false, paths = false;
    struct opt opts[] = {{"paths", OPT_FLAG, &paths, .help = "where each lies"}, {"json", OPT_FLAG, &json, .help = "machine-readable"}};
    const char *none;
    int n = opt_parse(opts, 2, argc, argv, &none, 0, list_usage);
    if (n < 0)
        return n == -2 ? 0 : 2;
    struct store s;
    store_scan(&s);
    store_mark_same(&s);
    if (json)
        print_json(&s);
    else
        print_text(&s, paths);
    store_free(&s);
    return 0;
}

// ---- rm --------------------------------------------------------------------------------------------------

/* The model of ours that a word names, unfinished ones included. */
static int find_ours(const struct store *s, const char *word, const struct store_model **m, struct err *e)
{
    struct store ours = {.model = xcalloc((size_t)s->n + 1, sizeof *ours.model)};
    struct err why = {0};
    for (int i = 0; i < s->n; i++)
        if (s->model[i].place == STORE_OURS)
            ours.model[ours.n++] = s->model[i];
    int rc = store_find(&ours, word, m, &why);
    if (rc && *m && (*m)->trouble && rc != ERR_ARG)
        rc = 0; // troubled models may go, too
    if (rc && !*m && (!store_find(s, word, m, NULL) || *m))
        rc = err_set(e, ERR_ARG, "%s lies in another tool's folder (%s: %s); foresay deletes only what it pulled, that tool deletes its own", (*m)->name,
                     store_place_name((*m)->place), (*m)->path);
    else if (rc && !*m)
        rc = err_set(e, ERR_IO, "%.200s: no model of that name was pulled; `foresay list` names all", word);
    else if (rc)
        rc = err_set(e, rc, "%s", why.msg);
    for (int i = 0; !rc && i < s->n; i++)
        if (s->model[i].path && !strcmp(s->model[i].path, (*m)->path))
            *m = &s->model[i];
    free(ours.model);
    return rc;
}

/* The folder that a pull made for the model: the one with the description. */
static char *folder_of(const struct store_model *m)
{
    char *dir = xstrdup(m->path);
    for (;;) {
        char *mark = path_join(dir, MANIFEST_NAME), *slash = strrchr(dir, '/');
        bool found = file_exists(mark);
        free(mark);
        if (found)
            return dir;
        if (!slash || slash == dir) {
            free(dir);
            return NULL;
        }
        *slash = 0;
    }
}

static bool confirm(const char *name, const char *dir, double bytes, bool yes)
{
    char size[32], answer[16] = "";
    if (yes)
        return true;
    cli_print(stderr, "Delete %s (%s, %s)? [y/N] ", name, human_bytes(bytes, size, sizeof size), dir);
    return fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

static int remove_model(const struct store_model *m, bool yes, struct err *e)
{
    char *dir = folder_of(m), size[32];
    int rc = 0, lock = -1;
    if (!dir)
        return err_set(e, ERR_ARG, "%s: %s wasn't pulled by foresay, so it isn't foresay's to delete", m->name, m->path);
    char *lock_path = path_join(dir, ".lock");
    if (file_exists(lock_path) && file_lock(lock_path, &lock, e))
        rc = err_set(e, ERR_IO, "%s is being pulled right now", m->name);
    else if (!yes && !isatty(0))
        rc = err_set(e, ERR_ARG, "%s: deleting needs a yes: run it on a terminal, or with --yes", m->name);
    else if (!confirm(m->name, dir, (double)m->bytes, yes))
        rc = err_set(e, ERR_IO, "nothing was deleted");
    else if (!(rc = store_delete(dir, e)))
        cli_print(stderr, "foresay: %s is deleted (%s)\n", m->name, human_bytes((double)m->bytes, size, sizeof size));
    if (lock >= 0)
        close(lock);
    free(lock_path);
    free(dir);
    return rc;
}

int cmd_rm(int argc, char **argv)
{
    bool yes = false;
    struct opt opts[] = {{"yes", OPT_FLAG, &yes, .help = "without asking"}};
    const char *name;
    int n = opt_parse(opts, 1, argc, argv, &name, 1, rm_usage);
    if (n < 0)
        return n == -2 ? 0 : 2;
    if (n != 1) {
        fprintf(stderr, "foresay: rm needs the name of a model; `foresay list` names them\n");
        return 2;
    }
    struct store s;
    struct err e = {0};
    const struct store_model *m;
    store_scan(&s);
    int rc = find_ours(&s, name, &m, &e);
    if (!rc)
        rc = remove_model(m, yes, &e);
    store_sweep();
    store_free(&s);
    return rc ? cli_fail(&e) : 0;
}
