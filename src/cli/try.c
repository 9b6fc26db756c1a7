/* `foresay try`: one prompt plain and speculative side by side, tokens coloured by the draft position they came
 * from, ends with "identical: yes, N.Nx". */
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "cli/session.h"

static const char usage[] = "usage: foresay try [MODEL] [-p TEXT]\n\n"
                            "Answers a prompt twice, plain and with drafts, shows both side by side and compares them token by token (seed 1\n"
                            "unless --seed gives another). Each side runs once: `foresay verify` measures speed.\n\n"
                            "  foresay try\n  foresay try ~/models/Qwen3.5-4B -p \"Explain quicksort.\" --temperature 0\n";

static const char default_prompt[] = "Write a Python function that reads a file and counts its words.";

/* One answer's text with the colour of every piece. */
struct pane {
    struct buf text;
    struct piece {
        size_t end;
        int draft;
    } *pieces;
    int n, cap;
    bool live; // print while it comes
};

static const char *colour(int draft)
{
    static const char *const c[] = {"\033[0m", "\033[32m", "\033[36m", "\033[34m", "\033[35m", "\033[33m", "\033[31m", "\033[92m", "\033[96m"};
    return c[draft < 8 ? draft : 8];
}

static void keep_token(void *ud, const struct token_event *ev)
{
    struct pane *p = ud;
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 256;
        p->pieces = xrealloc(p->pieces, (size_t)p->cap * sizeof *p->pieces);
    }
    char *piece = xmalloc(ev->n_text + 1);
    memcpy(piece, ev->text, ev->n_text);
    buf_add(&p->text, piece, utf8_clean(piece, ev->n_text, true));
    free(piece);
    p->pieces[p->n++] = (struct piece){p->text.n, ev->draft};
}

/* Writes up to `width` columns of the pane from *at; a line ends at '\n' or when full. Returns columns used. */
static int print_cells(const struct pane *p, size_t *at, int width, bool colours)
{
    int used = 0, piece = 0, shown = -1;
    while (*at < p->text.n && used < width) {
        unsigned char c = (unsigned char)p->text.p[*at];
        while (piece < p->n && p->pieces[piece].end <= *at)
            piece++;
        if (c == '\n') {
            (*at)++;
            break;
        }
        int draft = piece < p->n ? p->pieces[piece].draft : 0, len = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
        int cells = len >= 3 ? 2 : 1; // close enough for East Asian text
        if (used + cells > width)
            break;
        if (colours && draft != shown)
            fputs(colour(draft), stdout);
        shown = draft;
        fwrite(c == '\t' ? " " : p->text.p + *at, 1, (size_t)len, stdout);
        *at += (size_t)len;
        used += cells;
    }
    if (colours)
        fputs("\033[0m", stdout);
    return used;
}

static void print_side_by_side(const struct pane *a, const struct pane *b, bool colours)
{
    struct winsize ws;
    int columns = !ioctl(1, TIOCGWINSZ, &ws) && ws.ws_col >= 60 ? ws.ws_col : 100, half = (columns - 3) / 2;
    size_t at = 0, bt = 0;
    printf("%-*s | %s\n", half, "plain", "with drafts");
    while (at < a->text.n || bt < b->text.n) {
        int used = print_cells(a, &at, half, false);
        printf("%*s | ", half - used, "");
        print_cells(b, &bt, half, colours);
        putchar('\n');
    }
    if (colours) {
        printf("\ncolours: the target's own ");
        for (int d = 1; d <= 4; d++)
            printf("%sdraft %d\033[0m ", colour(d), d);
        printf("...\n");
    }
}

/* Answers and returns the ids, a copy. */
static int take(struct session *s, const struct ids *ids, int depth, struct pane *p, int32_t **out, int *n, double *rate, struct err *e)
{
    struct gen_request r = s->request;
    r.prompt = ids->v;
    r.n_prompt = (int)ids->n;
    r.depth = depth;
    gen_forget(s->gen);
    interrupt_begin(true);
    int rc = gen_run(s->gen, &r, keep_token, p, &interrupted, e);
    if (!rc && atomic_load(&interrupted)) // half an answer proves nothing
        rc = err_set(e, ERR_CANCEL, "interrupted");
    interrupt_end();
    const int32_t *v = gen_output(s->gen, n);
    *out = xmalloc((size_t)(*n + 1) * sizeof **out);
    memcpy(*out, v, (size_t)*n * sizeof **out);
    *rate = gen_decode_rate(gen_stats(s->gen));
    return rc;
}

static int compare(struct session *s, const char *prompt, bool raw, bool json, struct err *e)
{
    struct ids ids = {0};
    struct pane plain = {0}, spec = {0};
    int32_t *a = NULL, *b = NULL;
    int na = 0, nb = 0, same = 0;
    double ra = 0, rb = 0;
    buf_init(&plain.text, 64 << 20);
    buf_init(&spec.text, 64 << 20);
    if (!s->request.has_seed) { // both sides draw with the same noise
        s->request.has_seed = true;
        s->request.seed = 1;
    }
    int rc = session_prompt(s, NULL, prompt, strlen(prompt), raw, &ids, e);
    if (!rc)
        rc = take(s, &ids, 0, &plain, &a, &na, &ra, e);
    if (!rc)
        rc = take(s, &ids, s->request.depth, &spec, &b, &nb, &rb, e);
    while (!rc && same < na && same < nb && a[same] == b[same])
        same++;
    bool identical = same == na && na == nb;
    if (!rc && !json) {
        print_side_by_side(&plain, &spec, isatty(1));
        struct buf line;
        buf_init(&line, 1 << 20);
        report_line(s, s->gen, &line);
        printf("%s\n", buf_cstr(&line));
        buf_free(&line);
        const struct gen_stats *st = gen_stats(s->gen);
        if (!st->drafted_by[DRAFTER_MTP] && !st->drafted_by[DRAFTER_COPY])
            cli_print(stdout, "nothing was drafted%s%s: both sides are plain decoding\n", s->in.head.health == MTP_OK ? "" : ", ",
                   s->in.head.health == MTP_OK ? "" : s->in.head.why);
        if (identical)
            printf("identical: yes, %.1fx (%.1f against %.1f tok/s, %d tokens)\n", ra > 0 ? rb / ra : 0, rb, ra, nb);
        else if (s->request.acceptance == ACCEPT_EXACT && s->request.sampling.temperature > 0)
            printf("identical: not expected, exact acceptance draws other tokens of the same law; %.1fx\n", ra > 0 ? rb / ra : 0);
        else
            printf("identical: NO, they part at token %d; please report this with `foresay verify`\n", same);
    }
    if (!rc && json)
        printf("{\"identical\": %s, \"tokens\": %d, \"plain_tok_s\": %.3f, \"tok_s\": %.3f, \"ratio\": %.3f}\n", identical ? "true" : "false", nb,
               ra, rb, ra > 0 ? rb / ra : 0);
    bool is_exact = s->request.acceptance == ACCEPT_EXACT && s->request.sampling.temperature > 0;
    if (!rc && !identical && !is_exact)
        rc = err_set(e, ERR_NUMERIC, "the two answers differ at token %d", same);
    free(a);
    free(b);
    free(plain.pieces);
    free(spec.pieces);
    buf_free(&plain.text);
    buf_free(&spec.text);
    ids_free(&ids);
    return rc;
}

int cmd_try(int argc, char **argv)
{
    struct session_options so = session_defaults();
    const char *prompt = default_prompt;
    bool raw = false, json = false;
    so.max_tokens = 256;
    struct opt opts[SESSION_OPTS + 4] = {
        {"p", OPT_STR, &prompt, .arg = "TEXT", .help = "the prompt"},
        {"raw", OPT_FLAG, &raw, .help = "continue the text as it is, without the chat template"},
        {"json", OPT_FLAG, &json, .help = "only the verdict, as JSON"},
    };
    int n_opts = 3 + session_opts(&so, opts + 3);
    struct err e = {0};
    int n = opt_parse(opts, n_opts, argc, argv, &so.model, 1, usage);
    if (n < 0)
        return n == -2 ? 0 : 2;
    struct session s;
    if (!strcmp(so.depth, "0"))
        err_set(&e, ERR_ARG, "--depth 0 drafts nothing: there would be nothing to compare");
    if (e.code || session_open(&s, &so, 2, &e))
        return cli_fail(&e);
    int rc = compare(&s, prompt, raw, json, &e);
    session_close(&s);
    return rc ? cli_fail(&e) : 0;
}
