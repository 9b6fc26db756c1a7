/* `foresay run`: an answer, or on a terminal a chat. */
#include <histedit.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "cli/session.h"

static const char usage[] =
    "usage: foresay run [MODEL] [-p TEXT | -f FILE]\n\n"
    "Answers one prompt (from -p, -f or standard input), or chats on a terminal. MODEL is a model folder as downloaded\n"
    "(Hugging Face or MLX) or a GGUF file; without one the small demo model that comes with foresay is used.\n\n"
    "  foresay run -p \"Write a haiku about rivers.\"\n"
    "  foresay run ~/models/Qwen3.5-4B-MLX-4bit --depth 3 < question.txt\n"
    "  foresay run model.gguf -p \"2+2=\" --temperature 0 --json\n";

enum { PROMPT_MAX = 64 << 20 };

struct run_options {
    struct session_options s;
    const char *prompt, *file, *system;
    bool raw, json, verbose, quiet;
};

/* A file or a pipe gets the model's text as it is; a terminal gets no control characters that it would obey. */
static void print_token(void *ud, const struct token_event *ev)
{
    (void)ud;
    if (isatty(1)) {
        char *piece = xmalloc(ev->n_text + 1);
        memcpy(piece, ev->text, ev->n_text);
        fwrite(piece, 1, utf8_clean(piece, ev->n_text, true), stdout);
        free(piece);
    } else {
        fwrite(ev->text, 1, ev->n_text, stdout);
    }
    fflush(stdout);
}

static void tell_settings(const struct session *s)
{
    struct buf b;
    buf_init(&b, 4096);
    sampling_describe(&s->request.sampling, s->sampling_source, &b);
    cli_print(stderr, "foresay: template: %s%s%s\n", s->chat.source, s->chat.tools ? ", with tools " : "", s->chat.tools ? s->chat.tools_source : "");
    cli_print(stderr, "foresay: sampling: %s\n", buf_cstr(&b));
    buf_free(&b);
}

/* What is worth knowing before the first answer: the head's state, notes on the package. */
static void tell_model(const struct session *s, bool verbose)
{
    const struct mtp_head *h = &s->in.head;
    if (s->is_demo)
        fprintf(stderr, "foresay: the demo model: it is tiny (2.9 M parameters), knows little and is often wrong; it shows speculative decoding\n");
    if (s->in.bytes_only)
        fprintf(stderr, "foresay: warning: the package holds no tokenizer: text is read and shown as bytes, ids 0 to 255\n");
    if (*s->in.sampling_complaint)
        cli_print(stderr, "foresay: warning: %s\n", s->in.sampling_complaint);
    if (!s->chat.t)
        cli_print(stderr, "foresay: warning: chat template: %s\n", s->chat.source);
    if (h->health != MTP_OK && (h->health != MTP_ABSENT || verbose))
        cli_print(stderr, "foresay: %s\n", h->why);
    if (h->suspicious)
        cli_print(stderr, "foresay: warning: %s\n", h->why);
    for (int i = 0; verbose && i < s->in.m->pkg->n_notes; i++)
        cli_print(stderr, "foresay: note: %s\n", s->in.m->pkg->notes[i]);
    if (verbose)
        tell_settings(s);
}

static void say(const char *what, struct buf *b)
{
    cli_print(stderr, "%s%s\n", what, buf_cstr(b));
    buf_clear(b);
}

/* One answer to *ids on standard output. */
static int answer(struct session *s, const struct ids *ids, bool show_text, bool report, bool verbose, struct err *e)
{
    struct gen_request r = s->request;
    struct buf line;
    int n_out;
    r.prompt = ids->v;
    r.n_prompt = (int)ids->n;
    buf_init(&line, 1 << 20);
    atomic_store(&interrupted, 0);
    int rc = gen_start(s->gen, &r, show_text ? print_token : NULL, NULL, e);
    struct gen_forecast f = {0};
    if (!rc) {
        f = gen_forecast(s->gen);
        report_forecast(s, s->gen, &line);
        if (report)
            say("", &line);
        buf_clear(&line);
    }
    while (!rc && !gen_stop_reason(s->gen)) {
        int more = gen_prefill(s->gen, 512, NULL, e);
        rc = more < 0 ? more : 0;
        while (!rc && !more && !gen_stop_reason(s->gen)) {
            rc = gen_round(&s->gen, 1, e);
            if (atomic_load(&interrupted))
                gen_cancel(s->gen);
        }
        if (atomic_load(&interrupted))
            gen_cancel(s->gen);
    }
    if (show_text && gen_output(s->gen, &n_out) && n_out)
        printf("\n");
    fflush(stdout);
    if (!rc && report) {
        report_line(s, s->gen, &line);
        say("", &line);
        const struct gen_stats *st = gen_stats(s->gen);
        if (verbose && f.prefill_s > 0 && st->prefill_ns > 0) {
            buf_fmt(&line, "forecast error: prefill %+.0f %%", (f.prefill_s * 1e9 / (double)st->prefill_ns - 1) * 100);
            if (gen_decode_rate(st) > 0)
                buf_fmt(&line, ", decode %+.0f %%", (f.decode_rate / gen_decode_rate(st) - 1) * 100);
            say("", &line);
        }
    }
    buf_free(&line);
    return rc;
}

static int one_shot(struct session *s, const struct run_options *o, struct err *e)
{
    char *text = NULL;
    size_t n = 0;
    int rc = 0;
    if (o->prompt) {
        text = xstrdup(o->prompt);
        n = strlen(text);
    } else if (o->file && strcmp(o->file, "-")) {
        rc = stream_read(o->file, PROMPT_MAX, &text, &n, e);
    } else {
        rc = fd_read_all(0, "standard input", PROMPT_MAX, &text, &n, e);
    }
    struct ids ids = {0};
    if (!rc)
        rc = session_prompt(s, o->system, text, n, o->raw, &ids, e);
    interrupt_begin(true);
    if (!rc)
        rc = answer(s, &ids, !o->json, !o->json && !o->quiet, o->verbose, e);
    interrupt_end();
    if (!rc && o->json) {
        struct buf b;
        buf_init(&b, 256 << 20);
        buf_chr(&b, '{');
        report_json(s, s->gen, &b);
        buf_str(&b, "}\n");
        fwrite(b.p, 1, b.n, stdout);
        buf_free(&b);
    }
    if (!rc && gen_stop_reason(s->gen) == STOP_CANCELLED)
        rc = 130; // as a shell reports an interrupted command
    ids_free(&ids);
    free(text);
    return rc;
}

/* ---- chat ------------------------------------------------------------------------------------------------------------- */

struct talk {
    struct session *s;
    const struct run_options *o;
    struct session_options settings; // as /set changes them
    struct buf messages; // JSON objects, comma separated
    bool has_answer;
};

static char *prompt_first(EditLine *el)
{
    static char p[] = "> ";
    (void)el;
    return p;
}

static char *prompt_more(EditLine *el)
{
    static char p[] = ". ";
    (void)el;
    return p;
}

static void message(struct talk *t, const char *role, const char *s, size_t n)
{
    buf_fmt(&t->messages, "%s{\"role\": \"%s\", \"content\": ", t->messages.n ? ", " : "", role);
    json_write_str(&t->messages, s, n);
    buf_chr(&t->messages, '}');
}

static void restart(struct talk *t)
{
    buf_clear(&t->messages);
    t->has_answer = false;
    if (t->o->system)
        message(t, "system", t->o->system, strlen(t->o->system));
}

static int turn(struct talk *t, const char *text, size_t n, struct err *e)
{
    struct arena a = {0};
    struct json *request;
    struct ids ids = {0};
    struct buf b;
    size_t before = t->messages.n;
    message(t, "user", text, n);
    buf_init(&b, 256 << 20);
    buf_fmt(&b, "{\"add_generation_prompt\": true, \"messages\": [%s]}", buf_cstr(&t->messages));
    int rc = json_parse(&request, &a, buf_cstr(&b), b.n, "chat", e);
    if (!rc)
        rc = chat_encode(&t->s->chat, request, &ids, NULL, e);
    if (!rc)
        rc = answer(t->s, &ids, true, true, t->o->verbose, e);
    if (!rc) {
        message(t, "assistant", buf_cstr(gen_text(t->s->gen)), gen_text(t->s->gen)->n);
        t->has_answer = true;
    } else if (t->messages.n > before) { // a turn that failed never happened
        t->messages.n = before;
        t->messages.p[before] = 0;
    }
    buf_free(&b);
    ids_free(&ids);
    arena_free(&a);
    return rc;
}

/* A line that begins with '/'. Returns 1 to leave the chat. */
static int command(struct talk *t, const char *line)
{
    char what[32];
    if (!strcmp(line, "/bye") || !strcmp(line, "/quit") || !strcmp(line, "/exit"))
        return 1;
    if (!strcmp(line, "/reset")) {
        restart(t);
        gen_forget(t->s->gen);
        fprintf(stderr, "the chat starts anew\n");
    } else if (!strcmp(line, "/stats")) {
        struct buf b;
        buf_init(&b, 1 << 20);
        if (t->has_answer)
            report_line(t->s, t->s->gen, &b);
        else
            buf_str(&b, "no answer yet");
        say("", &b);
        buf_free(&b);
    } else if (!strncmp(line, "/set ", 5)) {
        const char *p = line + 5 + strspn(line + 5, " ");
        size_t n = strcspn(p, " ");
        snprintf(what, sizeof what, "%.*s", (int)n, p);
        p += n + strspn(p + n, " ");
        if (!session_set(t->s, &t->settings, what, p))
            cli_print(stderr, "%s is now %s\n", what, p);
    } else {
        if (strcmp(line, "/help"))
            cli_print(stderr, "foresay: there is no command \"%s\" here:\n", line);
        fprintf(stderr, "/stats        figures of the last answer\n/reset        forget the chat\n"
                        "/set X VALUE  any setting of answers that `foresay run --help` lists: depth, temperature, max-tokens, seed ...\n/bye          leave\n"
                        "A line that ends with \\ continues on the next one. Ctrl-C stops an answer, Ctrl-D leaves.\n");
    }
    return 0;
}

static int chat(struct session *s, const struct run_options *o, const char *name)
{
    struct talk t = {.s = s, .o = o, .settings = o->s};
    struct buf text;
    History *h = history_init();
    HistEvent ev;
    EditLine *el = el_init(name, stdin, stdout, stderr);
    int n = 0;
    buf_init(&t.messages, 128 << 20);
    buf_init(&text, PROMPT_MAX);
    restart(&t);
    history(h, &ev, H_SETSIZE, 1000);
    el_set(el, EL_HIST, history, h);
    el_set(el, EL_EDITOR, "emacs");
    interrupt_begin(false);
    cli_print(stderr, "Chat with %s. /help lists commands, Ctrl-D leaves.\n", s->is_demo ? "the demo model" : path_base(s->path));
    for (;;) {
        el_set(el, EL_PROMPT, text.n ? prompt_more : prompt_first);
        const char *line = el_gets(el, &n);
        if ((!line || n <= 0) && atomic_exchange(&interrupted, 0)) { // Ctrl-C at the prompt: a fresh line
            buf_clear(&text);
            clearerr(stdin);
            fprintf(stderr, "\n");
            continue;
        }
        if (!line || n <= 0)
            break;
        size_t len = strcspn(line, "\n");
        if (!text.n && !len)
            continue;
        history(h, &ev, H_ENTER, line);
        bool more = len && line[len - 1] == '\\';
        buf_add(&text, line, more ? len - 1 : len);
        if (more) {
            buf_chr(&text, '\n');
            continue;
        }
        struct err e = {0};
        if (buf_cstr(&text)[0] == '/') {
            if (command(&t, buf_cstr(&text)))
                break;
        } else if (turn(&t, buf_cstr(&text), text.n, &e)) {
            cli_fail(&e);
            if (e.code == ERR_LIMIT)
                fprintf(stderr, "foresay: /reset starts the chat anew; a larger --ctx gives it more room\n");
        }
        buf_clear(&text);
    }
    fprintf(stderr, "\n");
    el_end(el);
    history_end(h);
    interrupt_end();
    buf_free(&t.messages);
    buf_free(&text);
    return 0;
}

int cmd_run(int argc, char **argv)
{
    struct run_options o = {.s = session_defaults()};
    struct opt opts[SESSION_OPTS + 8] = {
        {"p", OPT_STR, &o.prompt, .arg = "TEXT", .help = "the prompt"},
        {"f", OPT_STR, &o.file, .arg = "FILE", .help = "read the prompt from a file or pipe; -: standard input"},
        {"system", OPT_STR, &o.system, .arg = "TEXT", .help = "system message"},
        {"raw", OPT_FLAG, &o.raw, .help = "continue the text as it is, without the chat template"},
        {"json", OPT_FLAG, &o.json, .help = "print everything about the answer as JSON instead of the text"},
        {"quiet", OPT_FLAG, &o.quiet, .help = "no forecast and no closing line"},
        {"verbose", OPT_FLAG, &o.verbose, .help = "notes on the package, and how far the forecast was off"},
    };
    int n_opts = 7 + session_opts(&o.s, opts + 7);
    struct err e = {0};
    int n = opt_parse(opts, n_opts, argc, argv, &o.s.model, 1, usage);
    if (n < 0)
        return n == -2 ? 0 : 2;
    bool talks = !o.prompt && !o.file && isatty(0) && isatty(1) && !o.json;
    if (o.prompt && o.file)
        err_set(&e, ERR_ARG, "-p and -f both give a prompt: expected one of them");
    else if (talks && o.raw)
        err_set(&e, ERR_ARG, "--raw continues a text: it needs -p, -f or standard input, a chat has a template");
    struct session s;
    if (e.code || session_open(&s, &o.s, 2, &e))
        return cli_fail(&e);
    if (!o.quiet)
        tell_model(&s, o.verbose);
    int rc = talks ? chat(&s, &o, "foresay") : one_shot(&s, &o, &e);
    session_close(&s);
    return rc > 0 ? rc : rc ? cli_fail(&e) : 0;
}
