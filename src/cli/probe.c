/* `foresay probe`: every layer reachable from a script. The contract is docs/probe.md. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "cli/cli.h"

static const struct verb verbs[] = {
    {"tokenize", "MODEL", "text to token ids", probe_tokenize},
    {"detokenize", "MODEL", "token ids to text, as a stream shows it", probe_detokenize},
    {"render", "TEMPLATE", "a chat through a template", probe_render},
    {"jinja", "", "a template with any context", probe_jinja},
    {"generate", "MODEL", "answers, with seeds, drafts and a hash of the logits", probe_generate},
    {"logits", "MODEL ...", "logits of token sequences, to .npy files", probe_logits},
    {"product", "MODEL ...", "one stored weight times rows of activations", probe_product},
    {"state", "MODEL", "declared state and weight catalogue", probe_state},
    {"sample", "", "logits and settings to probabilities", probe_sample},
};

enum { LINE_MAX_BYTES = 256 * 1024 * 1024 };

/* Reads one line of any length up to the limit. Returns 1, 0 at the end, -1 past the limit. */
static int read_line(struct buf *b)
{
    int c;
    buf_clear(b);
    while ((c = getchar_unlocked()) != EOF && c != '\n')
        buf_chr(b, (char)c);
    return b->is_full ? -1 : c == EOF && !b->n ? 0 : 1;
}

int probe_lines(void *ud, int (*fn)(void *ud, const struct json *in, struct buf *out, struct err *e))
{
    struct buf line, out;
    int rc;
    buf_init(&line, LINE_MAX_BYTES);
    buf_init(&out, LINE_MAX_BYTES);
    while ((rc = read_line(&line)) != 0) {
        struct arena a = {.max_bytes = (size_t)8 * LINE_MAX_BYTES};
        struct err e = {0};
        struct json *in;
        buf_clear(&out);
        if (rc < 0)
            err_set(&e, ERR_LIMIT, "input line is longer than the limit of %d bytes", LINE_MAX_BYTES);
        else if (!json_parse(&in, &a, line.p, line.n, "input line", &e))
            fn(ud, in, &out, &e);
        if (!e.code && out.is_full)
            err_set(&e, ERR_LIMIT, "answer is longer than the limit of %d bytes", LINE_MAX_BYTES);
        if (e.code) {
            buf_clear(&out);
            buf_str(&out, "{\"error\":");
            json_write_str(&out, e.msg, strlen(e.msg));
            buf_chr(&out, '}');
        }
        fwrite(out.p, 1, out.n, stdout);
        putchar('\n');
        fflush(stdout);
        arena_free(&a);
    }
    buf_free(&line);
    buf_free(&out);
    return 0;
}

int cmd_probe(int argc, char **argv)
{
    int n = (int)(sizeof verbs / sizeof *verbs);
    for (int i = 0; argc > 0 && i < n; i++)
        if (!strcmp(argv[0], verbs[i].name))
            return verbs[i].run(argc - 1, argv + 1);
    FILE *f = argc > 0 && !strcmp(argv[0], "--help") ? stdout : stderr;
    if (f == stderr && argc > 0)
        fprintf(f, "foresay: probe has no verb \"%s\"\n", argv[0]);
    fprintf(f, "usage: foresay probe VERB ...\n");
    for (int i = 0; i < n; i++)
        fprintf(f, "  %-10s %-10s %s\n", verbs[i].name, verbs[i].args, verbs[i].help);
    return f == stdout ? 0 : 2;
}
