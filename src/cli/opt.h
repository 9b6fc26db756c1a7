/* Command-line options as a table: name, kind, default, environment variable, help. Every option knows where
 * its value came from. */
#ifndef CLI_OPT_H
#define CLI_OPT_H

#include <stdbool.h>
#include <stdio.h>

#include "base/err.h"

enum opt_kind { OPT_FLAG, OPT_INT, OPT_NUM, OPT_STR };
enum opt_source { FROM_DEFAULT, FROM_ENV, FROM_FLAG };

struct opt {
    const char *name; // without dashes; "p" style single letters are given with one dash
    enum opt_kind kind;
    void *value;      // bool, int, double or const char *, holding the default
    double min, max;  // numbers; both 0: no limits
    const char *env;  // or NULL
    const char *arg, *help;
    enum opt_source source; // filled in
};

/* Reads the arguments; positional ones go to pos[0..max_pos). Returns their number, or -1 with one sentence
 * on standard error, or -2 after printing the help (--help). */
int opt_parse(struct opt *opts, int n_opts, int argc, char **argv, const char **pos, int max_pos, const char *usage);

/* Sets the option of that name ("_" counts as "-") as an argument would: 0, or -1 with one sentence on standard error. */
int opt_set(struct opt *opts, int n_opts, const char *name, const char *value);

#endif
