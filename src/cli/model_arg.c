#include "cli/model_arg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/cli.h"
#include "pull/hub.h"
#include "pull/store.h"

int model_arg(const char *arg, char **path, struct err *e)
{
    char *given = path_expand(arg);
    if (file_exists(given)) {
        char *inside = store_snapshot(given);
        *path = inside ? inside : xstrdup(given);
        free(given);
        return 0;
    }
    free(given);
    struct store s;
    const struct store_model *m;
    struct hub_name web;
    *path = NULL;
    store_scan(&s);
    int rc = hub_parse_name(arg, &web, e);
    if (rc >= 0) {
        char *name = rc ? xstrdup(arg) : manifest_name(web.repo, web.revision, web.set);
        rc = store_find(&s, name, &m, e);
        free(name);
    }
    if (!rc)
        *path = xstrdup(m->path);
    store_free(&s);
    return rc;
}

void model_arg_hint(const char *path, const struct err *e)
{
    char *origin = e->code == ERR_IO || e->code == ERR_FORMAT ? store_origin(path) : NULL;
    if (origin)
        cli_print(stderr, "foresay: to fetch what is missing or damaged: foresay pull hf:%s\n", origin);
    free(origin);
}
