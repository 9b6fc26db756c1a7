/* One file per verb; each verb gets the arguments after its name and returns the exit status:
 * 0 done, 1 the job failed (one sentence on standard error), 2 unusable arguments, 130 interrupted. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <stdio.h>

#include "base/err.h"
#include "text/json.h"

struct verb {
    const char *name, *args, *help;
    int (*run)(int argc, char **argv);
};

int cmd_run(int argc, char **argv);
int cmd_try(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_pull(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
int cmd_list(int argc, char **argv);
int cmd_rm(int argc, char **argv);
int cmd_probe(int argc, char **argv);

/* probe's own verbs */
int probe_tokenize(int argc, char **argv);
int probe_detokenize(int argc, char **argv);
int probe_render(int argc, char **argv);
int probe_jinja(int argc, char **argv);
int probe_sample(int argc, char **argv);
int probe_generate(int argc, char **argv);
int probe_logits(int argc, char **argv);
int probe_product(int argc, char **argv);
int probe_state(int argc, char **argv);

/* fprintf for all that people read: what file names, packages and hubs put into a line can't steer the terminal
 * (utf8_clean). Newlines at the end of fmt stay. */
void cli_print(FILE *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Prints "foresay: sentence" on standard error, returns the exit status: 1, 2 for ERR_ARG, 130 for ERR_CANCEL. */
int cli_fail(const struct err *e);

/* Says on standard error that the network is waited for; callers of what retries hand it down. */
void cli_waiting(const char *why, int ms);

/* Line protocol of probe: one JSON value a line in, one out, flushed; a line that can't be served answers
 * {"error": sentence} and the next goes on. fn appends the answer (an object, no newline) or fills *e. */
int probe_lines(void *ud, int (*fn)(void *ud, const struct json *in, struct buf *out, struct err *e));

#endif
