/* `foresay verify`: does the law hold for this model on this machine? Progress on standard error, a report to post on
 * standard output. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/os.h"
#include "cli/cli.h"
#include "cli/session.h"
#include "measure/verify.h"

static const char usage[] =
    "usage: foresay verify [MODEL] [--quick] [--ab]\n\n"
    "Proves on this machine, for this model, that drafts don't change the text: random schedules against one token at a\n"
    "time, greedy and seeded answers with every depth and drafter against plain ones, the sampler's law on real rows.\n"
    "Prints a report to post. Exit status 1 if something doesn't hold.\n\n"
    "  foresay verify\n  foresay verify ~/models/Qwen3.5-4B --quick\n  foresay verify ~/models/Qwen3.5-4B --ab --json\n";

/* Two prompts of each kind, taking turns. */
static const struct {
    int kind;
    const char *text;
} prompts[] = {
    {0, "Write a Python function that reads a file and counts how often each word occurs."},
    {1, "Give a JSON object that describes a city: name, country, population, coordinates."},
    {2, "Tell me in a few sentences how a lighthouse works and why ships need it."},
    {3, "请用几句话介绍一下长城的历史。"},
    {0, "def fibonacci(n):\n    \"\"\"Return the first n Fibonacci numbers.\"\"\"\n"},
    {1, "List three fruits as a JSON array of objects with the keys \"name\", \"colour\" and \"price\"."},
    {2, "And it came to pass in those days, that there went out a decree from"},
    {3, "床前明月光，疑是地上霜。请解释这两句诗的意思。"},
};
enum { N_PROMPTS = sizeof prompts / sizeof *prompts, PROMPT_MAX = 200 };

struct shown {
    bool is_tty, is_quiet;
    const char *step;
    int percent;
};

static bool show(void *ud, const char *step, double done)
{
    struct shown *s = ud;
    int percent = (int)(done * 100);
    bool is_new = s->step != step;
    if (!s->is_quiet && (is_new || percent != s->percent)) {
        if (s->is_tty)
            fprintf(stderr, "\r\033[K%s: %d %%", step, percent);
        else if (is_new)
            cli_print(stderr, "%s ...\n", step);
    }
    s->step = step;
    s->percent = percent;
    return !atomic_load(&interrupted);
}

/* The model options of a command line; settings of answers are verify's own. */
static int model_opts(struct session_options *o, struct opt *opts)
{
    static const char *const names[] = {"seed", "ctx", "threads", "isa", "model"};
    struct opt all[SESSION_OPTS];
    int n = session_opts(o, all), m = 0;
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            if (!strcmp(all[i].name, names[k]))
                opts[m++] = all[i];
    for (int i = 0; i < m; i++) {
        if (!strcmp(opts[i].name, "seed"))
            opts[i].help = "of schedules, texts and draws (default 1)";
        if (!strcmp(opts[i].name, "ctx"))
            opts[i].help = "tokens of KV memory, 0: what it takes";
    }
    return m;
}

static int make_prompts(struct session *s, struct ids *ids, struct text_prompt *out, struct err *e)
{
    for (int i = 0; i < N_PROMPTS; i++) {
        int rc = session_prompt(s, NULL, prompts[i].text, strlen(prompts[i].text), !s->chat.t, &ids[i], e);
        if (rc)
            return rc;
        int n = ids[i].n < PROMPT_MAX ? (int)ids[i].n : PROMPT_MAX; // a byte-level vocabulary makes long ones
        out[i] = (struct text_prompt){.kind = prompts[i].kind, .ids = ids[i].v, .n = n};
    }
    return 0;
}

/* "bf16 12, f32 3": formats of the tensors in use. */
static void formats(const struct weights *w, struct buf *out)
{
    const char *types[32];
    int count[32] = {0}, n = 0;
    for (int i = 0; i < weights_count(w); i++) {
        const struct weight *x = weights_at(w, i);
        int k = 0;
        while (k < n && strcmp(types[k], x->type))
            k++;
        if (!x->used || k == 32)
            continue;
        if (k == n)
            types[n++] = x->type;
        count[k]++;
    }
    for (int k = 0; k < n; k++)
        buf_fmt(out, "%s%s x %d", k ? ", " : "", types[k], count[k]);
}

static void conditions(const struct session *s, const struct verify_options *o, struct buf *out)
{
    static const char *const kinds[] = {"Hugging Face", "MLX", "GGUF"};
    const struct model *m = s->in.m;
    buf_fmt(out, "model    %s%s: %s, %s, %d layers, hidden %d, vocabulary %d, ", s->path, s->is_demo ? " (demo)" : "", m->arch->name,
            kinds[m->pkg->kind], m->n_layers, m->hidden, m->n_vocab);
    formats(m->pkg->weights, out);
    buf_fmt(out, "; draft head: %s\n", engine_has_mtp(s->g) ? s->in.head.suspicious ? "present, suspicious" : "present" : "none in use");
    buf_fmt(out, "machine  %s, %s, %d threads, bits %s; seed %llu\n", *os_cpu_name() ? os_cpu_name() : "unknown CPU", s->in.be->isa,
            s->in.be->threads, s->in.be->domain, (unsigned long long)o->seed);
}

static void print_text(const struct session *s, const struct verify_options *o, const struct verify_report *r)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_fmt(&b, "foresay " FORESAY_VERSION " verify: %s%s\n", r->failed ? "FAILS at " : "everything holds", r->failed ? r->failed : "");
    conditions(s, o, &b);
    verify_text(r, &b);
    fputs(buf_cstr(&b), stdout);
    buf_free(&b);
}

static void print_json(const struct session *s, const struct verify_options *o, const struct verify_report *r)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_str(&b, "{\"version\": \"" FORESAY_VERSION "\", \"model\": ");
    json_write_str(&b, s->path, strlen(s->path));
    buf_fmt(&b, ", \"architecture\": \"%s\", \"formats\": \"", s->in.m->arch->name);
    formats(s->in.m->pkg->weights, &b);
    buf_fmt(&b, "\", \"mtp\": %s, \"isa\": \"%s\", \"threads\": %d, \"domain\": \"%s\", \"cpu\": ", engine_has_mtp(s->g) ? "true" : "false",
            s->in.be->isa, s->in.be->threads, s->in.be->domain);
    json_write_str(&b, os_cpu_name(), strlen(os_cpu_name()));
    buf_fmt(&b, ", \"seed\": %llu, ", (unsigned long long)o->seed);
    verify_json(r, &b);
    printf("%s}\n", buf_cstr(&b));
    buf_free(&b);
}

static int prove(struct session *s, struct verify_options *o, bool json, struct err *e)
{
    struct ids ids[N_PROMPTS] = {{0}};
    struct text_prompt p[N_PROMPTS];
    struct verify_report r = {0};
    struct shown shown = {.is_tty = isatty(2)};
    o->prompts = p;
    o->n_prompts = N_PROMPTS;
    o->progress = show;
    o->ud = &shown;
    int rc = make_prompts(s, ids, p, e);
    if (!rc) {
        interrupt_begin(true);
        rc = verify_run(s->g, &s->in, o, &r, e);
        interrupt_end();
        if (shown.is_tty)
            fprintf(stderr, "\r\033[K");
        if (!rc)
            json ? print_json(s, o, &r) : print_text(s, o, &r);
        if (!rc && r.failed)
            rc = err_set(e, ERR_NUMERIC, "verify: %s does not hold", r.failed);
        verify_free(&r);
    }
    for (int i = 0; i < N_PROMPTS; i++)
        ids_free(&ids[i]);
    return rc;
}

int cmd_verify(int argc, char **argv)
{
    struct session_options so = session_defaults();
    struct verify_options o = {.seconds = 120, .seed = 1};
    bool quick = false, json = false;
    int rows = 0;
    struct opt opts[SESSION_OPTS + 5] = {
        {"quick", OPT_FLAG, &quick, .help = "about half a minute instead of two"},
        {"ab", OPT_FLAG, &o.ab, .help = "also 1,000 continuations of 4 tokens with drafts against as many without"},
        {"rows", OPT_INT, &rows, 0, 100000000, .arg = "N", .help = "rows of logits to compare under random schedules, 0: by speed"},
        {"json", OPT_FLAG, &json, .help = "the report as JSON"},
    };
    int n_opts = 4 + model_opts(&so, opts + 4);
    struct err e = {0};
    int n = opt_parse(opts, n_opts, argc, argv, &so.model, 1, usage);
    if (n < 0)
        return n == -2 ? 0 : 2;
    struct session s;
    if (!so.ctx)
        so.ctx = VERIFY_CTX(PROMPT_MAX);
    if (session_open(&s, &so, VERIFY_SEQS + 2, &e))
        return cli_fail(&e);
    o.model = s.path;
    o.isa = so.isa;
    o.threads = so.threads;
    o.seconds = quick ? 30 : 120;
    o.rows = rows;
    if (!isnan(so.seed))
        o.seed = (uint64_t)so.seed;
    int rc = prove(&s, &o, json, &e);
    session_close(&s);
    return rc ? cli_fail(&e) : 0;
}
