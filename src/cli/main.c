#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "cli/cli.h"

static const struct verb verbs[] = {
    {"run", "[MODEL] [-p TEXT | -f FILE]", "answer a prompt, or chat", cmd_run},
    {"try", "[MODEL] [-p TEXT]", "plain and speculative side by side", cmd_try},
    {"verify", "[MODEL] [--quick] [--ab]", "prove on this machine that drafts don't change the text", cmd_verify},
    {"inspect", "MODEL | hf:ORG/NAME | URL", "what a model holds and needs, here or elsewhere", cmd_inspect},
    {"pull", "hf:ORG/NAME [--quant Q]", "download a model", cmd_pull},
    {"list", "", "the models on this machine", cmd_list},
    {"rm", "NAME", "delete a model that was pulled", cmd_rm},
    {"quantize", "SRC DST [--bits 4|8|mixed]", "fewer bits a weight, measured", cmd_quantize},
    {"probe", "VERB ...", "scriptable access to each layer", cmd_probe},
};

static void usage(FILE *f)
{
    fprintf(f, "foresay " FORESAY_VERSION ": runs language models with their own multi-token-prediction heads\n\n"
               "usage: foresay VERB [ARGUMENTS]\n");
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        fprintf(f, "  %-9s %-28s %s\n", verbs[i].name, verbs[i].args, verbs[i].help);
    fprintf(f, "\n`foresay VERB --help` explains one. `foresay --version` prints the version.\n");
}

void cli_print(FILE *f, const char *fmt, ...)
{
    size_t n_fmt = strlen(fmt), n_ends = 0;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    char *text = xmalloc((size_t)n + 1);
    va_start(ap, fmt);
    vsnprintf(text, (size_t)n + 1, fmt, ap);
    va_end(ap);
    while (n_ends < n_fmt && fmt[n_fmt - 1 - n_ends] == '\n')
        n_ends++;
    fwrite(text, 1, utf8_clean(text, (size_t)n - n_ends, false), f);
    fputs(fmt + n_fmt - n_ends, f);
    free(text);
}

int cli_fail(const struct err *e)
{
    fprintf(stderr, "foresay: %s\n", e->msg);
    return e->code == ERR_ARG ? 2 : e->code == ERR_CANCEL ? 130 : 1;
}

void cli_waiting(const char *why, int ms) { cli_print(stderr, "foresay: %s; trying again in %d s\n", why, (ms + 999) / 1000); }

/* Weights are mapped: a file that shrinks while it is in use ends in this signal. */
static void on_bus_error(int sig)
{
    static const char what[] = "foresay: a model file changed or became unreadable while it was in use\n";
    (void)sig;
    if (write(2, what, sizeof what - 1) < 0)
        _exit(2);
    _exit(1);
}

/* Output that could not be written must not pass for success. */
static int finish(int status)
{
    if (!fflush(stdout) && !ferror(stdout))
        return status;
    fprintf(stderr, "foresay: standard output: cannot write everything\n");
    return status ? status : 1;
}

int main(int argc, char **argv)
{
    struct sigaction sa = {.sa_handler = on_bus_error};
    sigaction(SIGBUS, &sa, NULL);
    if (argc > 1 && (!strcmp(argv[1], "--version") || !strcmp(argv[1], "version"))) {
        printf("foresay " FORESAY_VERSION "\n");
        return finish(0);
    }
    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        usage(argc < 2 ? stderr : stdout);
        return finish(argc < 2 ? 2 : 0);
    }
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (!strcmp(argv[1], verbs[i].name))
            return finish(verbs[i].run(argc - 2, argv + 2));
    cli_print(stderr, "foresay: there is no verb \"%s\"; `foresay --help` lists them\n", argv[1]);
    return 2;
}
