#include "cli/opt.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static const char *dashes(const struct opt *o) { return o->name[1] ? "--" : "-"; }

static void print_help(const struct opt *opts, int n, const char *usage)
{
    printf("%s\n", usage);
    for (int i = 0; i < n; i++) {
        const struct opt *o = &opts[i];
        char left[64];
        snprintf(left, sizeof left, "%s%s %s", dashes(o), o->name, o->arg ? o->arg : "");
        printf("  %-26s %s", left, o->help);
        if (o->kind == OPT_INT)
            printf(" (default %d)", *(int *)o->value);
        if (o->kind == OPT_NUM && !isnan(*(double *)o->value))
            printf(" (default %g)", *(double *)o->value);
        if (o->env)
            printf(" [%s]", o->env);
        printf("\n");
    }
}

static int set(struct opt *o, const char *what, const char *s, enum opt_source source)
{
    char *end;
    double v;
    if (o->kind == OPT_STR) {
        *(const char **)o->value = s;
    } else if (o->kind == OPT_FLAG) {
        *(bool *)o->value = strcmp(s, "0") && strcmp(s, "off") && strcmp(s, "false");
    } else {
        errno = 0;
        v = strtod(s, &end);
        bool bad = end == s || *end || errno || !isfinite(v) || (o->kind == OPT_INT && (v != rint(v) || fabs(v) > 2147483647));
        if (bad || ((o->min != 0 || o->max != 0) && (v < o->min || v > o->max))) {
            fprintf(stderr, "foresay: %s: expected %s", what, o->kind == OPT_INT ? "a whole number" : "a number");
            if (o->min != 0 || o->max != 0)
                fprintf(stderr, " from %g to %g", o->min, o->max);
            cli_print(stderr, ", found \"%s\"\n", s);
            return -1;
        }
        if (o->kind == OPT_INT)
            *(int *)o->value = (int)v;
        else
            *(double *)o->value = v;
    }
    o->source = source;
    return 0;
}

/* The option that an argument names; *value points after '=' if it has one. */
static struct opt *find(struct opt *opts, int n, const char *arg, const char **value)
{
    int d = arg[1] == '-' ? 2 : 1;
    const char *name = arg + d, *eq = strchr(name, '=');
    size_t len = eq ? (size_t)(eq - name) : strlen(name);
    *value = eq ? eq + 1 : NULL;
    for (int i = 0; i < n; i++)
        if (strlen(opts[i].name) == len && !memcmp(opts[i].name, name, len) && (d == 2 || len == 1))
            return &opts[i];
    return NULL;
}

int opt_set(struct opt *opts, int n, const char *name, const char *value)
{
    char arg[64];
    const char *none;
    snprintf(arg, sizeof arg, "--%s", name);
    for (char *p = arg; *p; p++)
        *p = *p == '_' ? '-' : *p;
    struct opt *o = find(opts, n, arg, &none);
    if (!o || none) {
        cli_print(stderr, "foresay: there is no setting \"%s\"\n", name);
        return -1;
    }
    return set(o, name, value, FROM_FLAG);
}

int opt_parse(struct opt *opts, int n, int argc, char **argv, const char **pos, int max_pos, const char *usage)
{
    int n_pos = 0, only_pos = 0;
    for (int i = 0; i < n; i++) {
        const char *v = opts[i].env ? getenv(opts[i].env) : NULL;
        if (v && *v && set(&opts[i], opts[i].env, v, FROM_ENV))
            return -1;
    }
    for (int i = 0; i < argc; i++) {
        const char *a = argv[i], *value;
        if (!only_pos && !strcmp(a, "--")) {
            only_pos = 1;
            continue;
        }
        if (only_pos || a[0] != '-' || !a[1]) {
            if (n_pos == max_pos) {
                cli_print(stderr, "foresay: unexpected argument \"%s\"\n", a);
                return -1;
            }
            pos[n_pos++] = a;
            continue;
        }
        if (!strcmp(a, "--help") || !strcmp(a, "-h")) {
            print_help(opts, n, usage);
            return -2;
        }
        struct opt *o = find(opts, n, a, &value);
        if (!o) {
            cli_print(stderr, "foresay: unknown option \"%s\"; --help lists them\n", a);
            return -1;
        }
        if (!value && o->kind == OPT_FLAG)
            value = "1";
        if (!value && i + 1 == argc) {
            cli_print(stderr, "foresay: option %s needs a value\n", a);
            return -1;
        }
        if (!value)
            value = argv[++i];
        if (set(o, a, value, FROM_FLAG))
            return -1;
    }
    return n_pos;
}
