#include "cli/session.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/os.h"
#include "cli/cli.h"
#include "cli/model_arg.h"

#ifndef FORESAY_DATA
#define FORESAY_DATA "/usr/local/share/foresay"
#endif

struct session_options session_defaults(void)
{
    return (struct session_options){.depth = "auto", .acceptance = "seeded", .drafters = "mtp,copy", .pack = "auto", .temperature = NAN,
                                    .top_p = NAN, .min_p = NAN, .repetition = NAN, .presence = NAN, .frequency = NAN, .seed = NAN, .top_k = -1};
}

int session_opts(struct session_options *o, struct opt *opts)
{
    const struct opt all[SESSION_OPTS] = {
        {"max-tokens", OPT_INT, &o->max_tokens, 0, 1 << 30, .arg = "N", .help = "longest answer, 0: up to the context"},
        {"temperature", OPT_NUM, &o->temperature, 0, 100, .arg = "T", .help = "0: greedy (default: the package's)"},
        {"top-k", OPT_INT, &o->top_k, -1, 1 << 30, .arg = "K", .help = "0: off, -1: the package's"},
        {"top-p", OPT_NUM, &o->top_p, 1e-9, 1, .arg = "P", .help = "nucleus (default: the package's)"},
        {"min-p", OPT_NUM, &o->min_p, 0, 1, .arg = "P", .help = "least share of the best token's probability"},
        {"repetition-penalty", OPT_NUM, &o->repetition, 1e-3, 1e3, .arg = "R", .help = "1: off"},
        {"presence-penalty", OPT_NUM, &o->presence, -100, 100, .arg = "X", .help = "0: off"},
        {"frequency-penalty", OPT_NUM, &o->frequency, -100, 100, .arg = "X", .help = "0: off"},
        {"seed", OPT_NUM, &o->seed, 0, 9007199254740991.0, .arg = "N", .help = "the same seed gives the same text (default: drawn, and shown)"},
        {"stop", OPT_STR, &o->stop, .arg = "TEXT", .help = "end the answer before this text"},
        {"depth", OPT_STR, &o->depth, .arg = "N|auto", .help = "tokens drafted a round, 0 to 8; auto measures (default auto)", .env = "FORESAY_DEPTH"},
        {"drafters", OPT_STR, &o->drafters, .arg = "LIST", .help = "mtp,copy or one of them (default mtp,copy)"},
        {"acceptance", OPT_STR, &o->acceptance, .arg = "RULE", .help = "seeded: the text doesn't depend on drafts; exact: longest drafts, same distribution, a seed repeats it at a fixed --depth only"},
        {"ctx", OPT_INT, &o->ctx, 0, 1 << 30, .arg = "N", .help = "context in tokens, in pages of 64; 0: the model's, as far as memory allows", .env = "FORESAY_CTX"},
        {"threads", OPT_INT, &o->threads, 0, 256, .arg = "N", .help = "0: all CPUs", .env = "FORESAY_THREADS"},
        {"isa", OPT_STR, &o->isa, .arg = "NAME", .help = "instruction set of the kernels: scalar, avx2 (same answers)"},
        {"pack", OPT_STR, &o->pack, .arg = "auto|off", .help = "fast weight layout (this version serves weights in place)"},
        {"model", OPT_STR, &o->model, .arg = "MODEL", .help = "the same as the MODEL argument", .env = "FORESAY_MODEL"},
    };
    memcpy(opts, all, sizeof all);
    return SESSION_OPTS;
}

/* The demo model: beside the binary's checkout, or installed. Caller frees; NULL if nowhere. */
static char *find_demo(void)
{
    char exe[4096];
    const char *const tries[] = {"models/demo", FORESAY_DATA "/models/demo"};
    if (!os_exe_path(exe, sizeof exe)) {
        for (int up = 0; up < 4; up++) { // build/<config>/foresay and links to it
            char *slash = strrchr(exe, '/');
            if (!slash)
                break;
            *slash = 0;
            for (int i = 0; i < 2; i++) {
                char *p = path_join(exe, i ? "share/foresay/models/demo" : "models/demo");
                if (file_exists(p))
                    return p;
                free(p);
            }
        }
    }
    for (int i = 0; i < 2; i++)
        if (file_exists(tries[i]))
            return xstrdup(tries[i]);
    return NULL;
}

static void over(double *out, double value, const char **source)
{
    if (isnan(value))
        return;
    *out = value;
    *source = "flag";
}

static int read_request(struct session *s, const struct session_options *o, struct err *e)
{
    struct gen_request *r = &s->request;
    r->sampling = s->in.sampling;
    memcpy(s->sampling_source, s->in.sampling_source, sizeof s->sampling_source);
    struct sampling *sp = &r->sampling;
    over(&sp->temperature, o->temperature, &s->sampling_source[SAMPLING_TEMPERATURE]);
    over(&sp->top_p, o->top_p, &s->sampling_source[SAMPLING_TOP_P]);
    over(&sp->min_p, o->min_p, &s->sampling_source[SAMPLING_MIN_P]);
    over(&sp->repetition_penalty, o->repetition, &s->sampling_source[SAMPLING_REPETITION]);
    over(&sp->presence_penalty, o->presence, &s->sampling_source[SAMPLING_PRESENCE]);
    over(&sp->frequency_penalty, o->frequency, &s->sampling_source[SAMPLING_FREQUENCY]);
    if (o->top_k >= 0) {
        sp->top_k = o->top_k;
        s->sampling_source[SAMPLING_TOP_K] = "flag";
    }
    r->max_tokens = o->max_tokens;
    r->has_seed = !isnan(o->seed);
    if (r->has_seed && o->seed != rint(o->seed))
        return err_set(e, ERR_ARG, "--seed: expected a whole number, found %g", o->seed);
    r->seed = r->has_seed ? (uint64_t)o->seed : 0;
    char *end;
    long depth = strtol(o->depth, &end, 10);
    r->depth = !strcmp(o->depth, "auto") ? -1 : (int)depth;
    if (r->depth >= 0 && (*end || end == o->depth || depth < 0 || depth > DEPTH_MAX))
        return err_set(e, ERR_ARG, "--depth or FORESAY_DEPTH: expected auto or 0 to %d, found \"%s\"", DEPTH_MAX, o->depth);
    if (r->depth < 0 && strcmp(o->depth, "auto"))
        return err_set(e, ERR_ARG, "--depth or FORESAY_DEPTH: expected auto or 0 to %d, found \"%s\"", DEPTH_MAX, o->depth);
    if (strcmp(o->acceptance, "seeded") && strcmp(o->acceptance, "exact"))
        return err_set(e, ERR_ARG, "--acceptance: expected seeded or exact, found \"%s\"", o->acceptance);
    r->acceptance = !strcmp(o->acceptance, "exact") ? ACCEPT_EXACT : ACCEPT_SEEDED;
    r->use_mtp = strstr(o->drafters, "mtp") != NULL;
    r->use_copy = strstr(o->drafters, "copy") != NULL;
    if (strcmp(o->drafters, "mtp") && strcmp(o->drafters, "copy") && strcmp(o->drafters, "mtp,copy") && strcmp(o->drafters, "copy,mtp"))
        return err_set(e, ERR_ARG, "--drafters: expected mtp, copy or mtp,copy, found \"%s\"", o->drafters);
    if (strcmp(o->pack, "auto") && strcmp(o->pack, "off") && strcmp(o->pack, "on"))
        return err_set(e, ERR_ARG, "--pack: expected auto, on or off, found \"%s\"", o->pack);
    if (o->stop && !*o->stop)
        return err_set(e, ERR_ARG, "--stop: expected some text, found none");
    free(s->stop_text);
    s->stop_text = NULL;
    r->stop = (struct stop_strings){0};
    if (o->stop) {
        s->stop_text = xstrdup(o->stop);
        r->stop = (struct stop_strings){&s->stop_text, 1};
    }
    return 0;
}

/* Most tokens of the model's window whose keys and values fit into so many bytes. */
static int tokens_within(const struct model *m, uint64_t bytes)
{
    int fits = 1, too_many = m->max_ctx + 1;
    while (too_many - fits > 1) {
        int n = fits + (too_many - fits) / 2;
        if (model_kv_bytes(m, n) > bytes)
            too_many = n;
        else
            fits = n;
    }
    return fits;
}

/* Context to reserve: what was asked for, else the model's window within half of the memory that is left. */
static int context_of(const struct session *s, int asked)
{
    uint64_t room = os_mem_available() ? os_mem_available() / 2 : (uint64_t)4 << 30;
    if (asked > s->in.m->max_ctx)
        fprintf(stderr, "foresay: warning: --ctx %d is more than the model's window of %d tokens: answers beyond it may degrade\n", asked,
                s->in.m->max_ctx);
    return asked > 0 ? asked : tokens_within(s->in.m, room);
}

int session_open(struct session *s, const struct session_options *o, int n_seqs, struct err *e)
{
    *s = (struct session){0};
    int rc = o->model ? model_arg(o->model, &s->path, e) : 0;
    if (rc)
        return rc;
    if (!o->model)
        s->path = find_demo();
    s->is_demo = !o->model;
    if (!s->path)
        return err_set(e, ERR_IO, "no MODEL was given and the demo model (models/demo) was not found");
    struct instance_options io = {.threads = o->threads, .isa = o->isa};
    if ((rc = instance_open(&s->in, s->path, &io, e)))
        model_arg_hint(s->path, e);
    if (!rc)
        rc = read_request(s, o, e);
    if (!rc)
        rc = chat_open(&s->chat, s->path, &s->in, e);
    struct engine_options eo = {.n_seqs = n_seqs, .with_mtp = s->request.use_mtp};
    if (!rc) {
        eo.n_ctx = context_of(s, o->ctx);
        rc = engine_open(&s->g, s->in.m, &s->in.head, &eo, e);
        if (rc == ERR_NOMEM)
            err_prefix(e, "a context of %d tokens (--ctx sets it)", eo.n_ctx);
    }
    if (!rc)
        rc = gen_new(&s->gen, s->g, &s->in, e);
    if (rc)
        session_close(s);
    return rc;
}

int session_set(struct session *s, struct session_options *o, const char *name, const char *value)
{
    static const char *const fixed[] = {"ctx", "threads", "isa", "pack", "drafters", "model"};
    struct session_options changed = *o;
    struct opt opts[SESSION_OPTS];
    struct err e = {0};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (!strcmp(name, fixed[i])) {
            cli_print(stderr, "foresay: %s can't change while the model is open\n", name);
            return -1;
        }
    if (opt_set(opts, session_opts(&changed, opts), name, arena_strndup(&s->words, value, strlen(value))))
        return -1;
    int rc = read_request(s, &changed, &e);
    if (!rc) {
        *o = changed;
        return 0;
    }
    cli_fail(&e);
    rc = read_request(s, o, &e); // as before
    return -1;
}

void session_close(struct session *s)
{
    gen_free(s->gen);
    engine_close(s->g);
    if (s->chat.tok)
        chat_close(&s->chat);
    instance_close(&s->in);
    sampling_free(&s->request.sampling);
    arena_free(&s->words);
    free(s->stop_text);
    free(s->path);
    *s = (struct session){0};
}

static void add_message(struct buf *b, const char *role, const char *s, size_t n)
{
    buf_fmt(b, "{\"role\": \"%s\", \"content\": ", role);
    json_write_str(b, s, n);
    buf_chr(b, '}');
}

int session_prompt(struct session *s, const char *system, const char *text, size_t n, bool raw, struct ids *ids, struct err *e)
{
    if (raw)
        return chat_encode_raw(&s->chat, &s->in, text, n, ids, e);
    struct arena a = {0};
    struct json *request;
    struct buf b;
    buf_init(&b, 256 << 20);
    buf_str(&b, "{\"add_generation_prompt\": true, \"messages\": [");
    if (system) {
        add_message(&b, "system", system, strlen(system));
        buf_str(&b, ", ");
    }
    add_message(&b, "user", text, n);
    buf_str(&b, "]}");
    int rc = json_parse(&request, &a, buf_cstr(&b), b.n, "chat", e);
    if (!rc)
        rc = chat_encode(&s->chat, request, ids, NULL, e);
    buf_free(&b);
    arena_free(&a);
    return rc;
}

/* ---- reports ------------------------------------------------------------------------------------------------------- */

static double tokens_per_round(const struct gen_stats *st)
{
    return st->rounds ? (double)(st->emitted - 1) / (double)st->rounds : 1; // the first token needs no round
}

static void list_acceptance(const struct gen_stats *st, struct buf *out, const char *sep)
{
    for (int i = 0, n = 0; i < COPY_MAX && st->proposed[i]; i++)
        buf_fmt(out, "%s%.3f", n++ ? sep : "", (double)st->accepted[i] / (double)st->proposed[i]);
}

static const char *drafter_summary(const struct gen_stats *st)
{
    bool mtp = st->drafted_by[DRAFTER_MTP] > 0, copy = st->drafted_by[DRAFTER_COPY] > 0;
    return mtp && copy ? "mtp+copy" : mtp ? "mtp" : copy ? "copy" : "none";
}

void report_line(const struct session *s, const struct gen *q, struct buf *out)
{
    const struct gen_stats *st = gen_stats(q);
    int max, used = gen_context(q, &max);
    buf_fmt(out, "prefill %.1f tok/s (%lld tokens, %lld cached) | decode %.1f tok/s | %.2f tokens/round", gen_prefill_rate(st),
            (long long)st->prompt_tokens, (long long)st->cached_tokens, gen_decode_rate(st), tokens_per_round(st));
    if (st->proposed[0]) {
        buf_str(out, " | acceptance ");
        list_acceptance(st, out, " ");
    }
    buf_str(out, s->request.depth < 0 ? " | depth auto" : " | depth ");
    if (s->request.depth >= 0)
        buf_fmt(out, "%d", s->request.depth);
    buf_fmt(out, ", drafter %s | context %d/%d | peak %.0f MiB | seed %llu | stopped: %s", drafter_summary(st), used, max,
            (double)os_peak_rss() / 1048576, (unsigned long long)gen_seed(q), stop_reason_name(gen_stop_reason(q)));
}

void report_json(const struct session *s, const struct gen *q, struct buf *out)
{
    const struct gen_stats *st = gen_stats(q);
    const struct sampling *sp = &s->request.sampling;
    int max, used = gen_context(q, &max), n_out;
    const int32_t *ids = gen_output(q, &n_out);
    buf_str(out, "\"model\": ");
    json_write_str(out, s->path, strlen(s->path));
    buf_fmt(out, ", \"version\": \"" FORESAY_VERSION "\", \"architecture\": \"%s\", \"stop\": \"%s\", \"seed\": %llu", s->in.m->arch->name,
            stop_reason_name(gen_stop_reason(q)), (unsigned long long)gen_seed(q));
    buf_fmt(out, ", \"prompt_tokens\": %lld, \"cached_tokens\": %lld, \"output_tokens\": %lld", (long long)st->prompt_tokens,
            (long long)st->cached_tokens, (long long)st->emitted);
    if (st->reread_at >= 0)
        buf_fmt(out, ", \"reread_from\": %d", st->reread_at);
    buf_fmt(out, ", \"prefill_tok_s\": %.3f, \"decode_tok_s\": %.3f, \"ttft_s\": %.6f", gen_prefill_rate(st), gen_decode_rate(st),
            (double)(st->first_ns - st->start_ns) * 1e-9);
    buf_fmt(out, ", \"rounds\": %lld, \"tokens_per_round\": %.4f, \"acceptance\": [", (long long)st->rounds, tokens_per_round(st));
    list_acceptance(st, out, ", ");
    buf_str(out, "], \"proposed\": [");
    for (int i = 0; i < COPY_MAX && st->proposed[i]; i++)
        buf_fmt(out, "%s%lld", i ? ", " : "", (long long)st->proposed[i]);
    buf_str(out, "], \"accepted\": [");
    for (int i = 0; i < COPY_MAX && st->proposed[i]; i++)
        buf_fmt(out, "%s%lld", i ? ", " : "", (long long)st->accepted[i]);
    buf_fmt(out, "], \"depth\": \"%s\"", s->request.depth < 0 ? "auto" : "fixed");
    if (s->request.depth >= 0)
        buf_fmt(out, ", \"fixed_depth\": %d", s->request.depth);
    for (int i = 0; i < N_DRAFTERS; i++)
        buf_fmt(out, ", \"%s_drafted\": %lld, \"%s_kept\": %lld", drafter_names[i], (long long)st->drafted_by[i], drafter_names[i],
                (long long)st->kept_from[i]);
    struct subset *drafts = engine_draft_subset(s->g);
    buf_fmt(out, ", \"draft_vocabulary\": %d, \"undraftable_tokens\": %lld", drafts ? subset_size(drafts) : s->in.m->n_vocab,
            (long long)st->undraftable);
    buf_fmt(out, ", \"head_agreement\": {\"agreed\": %d, \"of\": %d}", st->prior_agreed, st->prior_n);
    buf_fmt(out, ", \"seconds\": {\"prefill\": %.6f, \"draft\": %.6f, \"verify\": %.6f, \"decide\": %.6f}", (double)st->prefill_ns * 1e-9,
            (double)st->draft_ns * 1e-9, (double)st->verify_ns * 1e-9, (double)st->decide_ns * 1e-9);
    buf_fmt(out, ", \"context\": {\"used\": %d, \"max\": %d}, \"peak_bytes\": %llu, \"reserved_bytes\": %zu", used, max,
            (unsigned long long)os_peak_rss(), engine_bytes(s->g));
    buf_str(out, ", \"sampling\": {");
    for (int f = 0; f < N_SAMPLING; f++)
        buf_fmt(out, "\"%s\": %g, ", sampling_names[f], sampling_value(sp, f));
    buf_fmt(out, "\"acceptance\": \"%s\", \"source\": {", s->request.acceptance == ACCEPT_EXACT ? "exact" : "seeded");
    for (int f = 0; f < N_SAMPLING; f++) {
        buf_fmt(out, "%s\"%s\": ", f ? ", " : "", sampling_names[f]);
        json_write_str(out, s->sampling_source[f], strlen(s->sampling_source[f]));
    }
    buf_str(out, "}}");
    buf_str(out, ", \"text\": ");
    json_write_str(out, buf_cstr(gen_text(q)), gen_text(q)->n);
    buf_str(out, ", \"ids\": [");
    for (int i = 0; i < n_out; i++)
        buf_fmt(out, "%s%d", i ? ", " : "", (int)ids[i]);
    buf_str(out, "]");
}

void report_forecast(const struct session *s, const struct gen *q, struct buf *out)
{
    struct gen_forecast f = gen_forecast(q);
    buf_fmt(out, "forecast: prompt of %lld tokens (%lld kept) in %.2f s, decode %.1f tok/s", (long long)gen_stats(q)->prompt_tokens,
            (long long)gen_stats(q)->cached_tokens, f.prefill_s, f.decode_rate);
    if (s->request.depth >= 0)
        buf_fmt(out, ", depth %d as asked", s->request.depth);
    else if (!engine_has_mtp(s->g))
        buf_str(out, ", depth auto without an MTP head");
    else
        buf_fmt(out, ", plain %.1f; depth auto starts from the head's agreement with the prompt", f.plain_rate);
}

/* ---- Ctrl-C --------------------------------------------------------------------------------------------------------- */

atomic_int interrupted;
static atomic_bool ends_on_second;

static void on_interrupt(int sig)
{
    (void)sig;
    if (atomic_exchange(&interrupted, 1) && atomic_load(&ends_on_second))
        _exit(130);
}

void interrupt_begin(bool once)
{
    struct sigaction sa = {.sa_handler = on_interrupt};
    atomic_store(&interrupted, 0);
    atomic_store(&ends_on_second, once);
    sigaction(SIGINT, &sa, NULL);
}

void interrupt_end(void)
{
    struct sigaction sa = {.sa_handler = SIG_DFL};
    sigaction(SIGINT, &sa, NULL);
}
