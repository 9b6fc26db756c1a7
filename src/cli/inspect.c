/* `foresay inspect`: what a package holds and what it needs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/human.h"
#include "base/os.h"
#include "chat/template_set.h"
#include "cli/cli.h"
#include "cli/model_arg.h"
#include "cli/opt.h"
#include "cli/session.h"
#include "measure/inspect.h"
#include "pull/mirror.h"

static const char usage[] =
    "usage: foresay inspect MODEL | hf:ORG/NAME[@REVISION][:QUANT] | URL [--json]\n\n"
    "Says what a model holds: architecture, sizes, formats, tokenizer, template, MTP head, state and memory, unused tensors. MODEL is a\n"
    "folder, a GGUF file or a name that `foresay list` shows. Of a model elsewhere only headers and configurations are fetched, never its\n"
    "weights, and how much that was is said. Exit status: 0 it can be served, 1 it can't (the reason is given).\n\n"
    "  foresay inspect ~/models/Qwen3.5-4B-MLX-4bit\n  foresay inspect model.gguf --json\n"
    "  foresay inspect hf:unsloth/Qwen3.5-4B-GGUF:Q8_0\n  foresay inspect https://example.org/models/model.gguf\n";

struct memory {
    size_t kv_per_token, per_sequence; // bytes; kv_per_token: of the layers that see all tokens
    uint64_t kv_windows;               // a sequence, once all windows are full
    uint64_t weights;
};

static struct memory memory_of(const struct model *m)
{
    struct memory x = {0};
    for (int i = 0; i < m->n_specs; i++) {
        const struct state_spec *s = &m->specs[i];
        if (s->kind == STATE_KV && !s->window)
            x.kv_per_token += (size_t)s->heads * (size_t)(s->dk + s->dv) * 2;
        else if (s->kind == STATE_REC)
            x.per_sequence += (size_t)s->heads * (size_t)s->dk * (size_t)s->dv * 4;
    }
    x.kv_windows = model_kv_bytes(m, m->max_ctx) - (uint64_t)m->max_ctx * x.kv_per_token;
    for (int i = 0; i < weights_count(m->pkg->weights); i++)
        if (weights_at(m->pkg->weights, i)->used)
            x.weights += weights_at(m->pkg->weights, i)->bytes;
    return x;
}

static const int contexts[] = {4096, 32768, 131072};

static void memory_json(const struct model *m, const struct memory *x, struct buf *b)
{
    buf_fmt(b, "\"state\":{\"kv_bytes_per_token\":%zu,\"window_kv_bytes_per_sequence\":%llu,\"recurrent_bytes_per_sequence\":%zu,\"weights_bytes\":%llu,"
               "\"memory_bytes\":{",
            x->kv_per_token, (unsigned long long)x->kv_windows, x->per_sequence, (unsigned long long)x->weights);
    for (int i = 0; i < 4; i++) {
        int n = i < 3 ? contexts[i] : m->max_ctx;
        if (i < 3 && n > m->max_ctx)
            continue;
        buf_fmt(b, "%s\"%s\":%llu", b->p[b->n - 1] == '{' ? "" : ",", i == 0 ? "4K" : i == 1 ? "32K" : i == 2 ? "128K" : "max",
                (unsigned long long)(x->weights + x->per_sequence + model_kv_bytes(m, n)));
    }
    buf_fmt(b, "}},\"max_context\":%d", m->max_ctx);
}

static const char *health_name(enum mtp_health h)
{
    static const char *const names[] = {"absent", "promised but absent", "incomplete", "dead", "ok"};
    return names[h];
}

/* Members for the JSON report that only a bound model knows. */
static void bound_members(const struct instance *in, const char *template_source, struct buf *b)
{
    struct memory x = memory_of(in->m);
    buf_str(b, "\"architecture_name\":");
    json_write_str(b, in->m->arch->name, strlen(in->m->arch->name));
    buf_fmt(b, ",\"mtp_health\":\"%s\",\"mtp_norms_suspicious\":%s", health_name(in->head.health), in->head.suspicious ? "true" : "false");
    if (in->head.why[0]) {
        buf_str(b, ",\"mtp_note\":");
        json_write_str(b, in->head.why, strlen(in->head.why));
    }
    buf_str(b, ",\"tokenizer_name\":");
    const char *kind = in->tok ? tokenizer_kind(in->tok) : "none";
    json_write_str(b, kind, strlen(kind));
    buf_str(b, ",\"template_source\":");
    json_write_str(b, template_source, strlen(template_source));
    buf_str(b, ",\"sampling\":{");
    for (int f = 0; f < N_SAMPLING; f++) {
        buf_fmt(b, "%s\"%s\":{\"value\":%g,\"source\":", f ? "," : "", sampling_names[f], sampling_value(&in->sampling, f));
        json_write_str(b, in->sampling_source[f], strlen(in->sampling_source[f]));
        buf_chr(b, '}');
    }
    buf_str(b, "},\"eos_ids\":[");
    for (int i = 0; i < in->n_eos; i++)
        buf_fmt(b, "%s%d", i ? "," : "", (int)in->eos[i]);
    buf_str(b, "],");
    memory_json(in->m, &x, b);
}

static void print_text(const struct package *p, const struct instance *in, const struct json *r, const char *template_source, const char *refusal)
{
    char a[32], c[32];
    cli_print(stdout, "%s\n", json_str(json_get(r, "path"), p->path));
    if (in)
        cli_print(stdout, "  architecture   %s, hidden %d, %d layers, vocabulary %d, window %d tokens\n", in->m->arch->name, in->m->hidden, in->m->n_layers,
               in->m->n_vocab, in->m->max_ctx);
    else
        cli_print(stdout, "  architecture   %s\n", json_str(json_get(p->config, "model_type"), "unknown"));
    double parameters = json_num(json_get(r, "parameters"), 0);
    uint64_t bytes = 0;
    for (int i = 0; i < weights_count(p->weights); i++)
        bytes += weights_at(p->weights, i)->bytes;
    cli_print(stdout, "  weights        %d tensors, %s", weights_count(p->weights), human_bytes((double)bytes, a, sizeof a));
    if (parameters > 0)
        cli_print(stdout, ", %.1f M parameters", parameters / 1e6);
    printf("\n");
    for (const struct json *f = json_get(r, "formats") ? json_get(r, "formats")->child : NULL; f; f = f->next) {
        cli_print(stdout, "    %-22s %4.0f tensors  %s\n", json_str(json_get(f, "format"), "?"), json_num(json_get(f, "tensors"), 0),
               human_bytes(json_num(json_get(f, "bytes"), 0), c, sizeof c));
    }
    if (in) {
        struct inspect_head head;
        struct memory x = memory_of(in->m);
        inspect_find_head(p, &head);
        struct buf sampling;
        if (in->tok)
            cli_print(stdout, "  tokenizer      %s, %d tokens\n", tokenizer_kind(in->tok), tokenizer_n_tokens(in->tok));
        buf_init(&sampling, 4096);
        sampling_describe(&in->sampling, in->sampling_source, &sampling);
        cli_print(stdout, "  template       %s\n", template_source);
        cli_print(stdout, "  sampling       %s\n", buf_cstr(&sampling));
        buf_free(&sampling);
        cli_print(stdout, "  MTP head       %s", health_name(in->head.health));
        if (head.n_tensors)
            cli_print(stdout, ": %d logical tensors (%d stored), %s", head.n_tensors, head.n_stored, human_bytes((double)head.bytes, a, sizeof a));
        printf("\n");
        if (in->head.why[0])
            cli_print(stdout, "                 %s%s\n", in->head.suspicious ? "warning: " : "", in->head.why);
        cli_print(stdout, "  state          %s a token of KV", human_bytes((double)x.kv_per_token, a, sizeof a));
        if (x.kv_windows)
            cli_print(stdout, ", %s a sequence of KV within windows", human_bytes((double)x.kv_windows, a, sizeof a));
        cli_print(stdout, ", %s a sequence of recurrent state\n", human_bytes((double)x.per_sequence, c, sizeof c));
        for (int i = 0; i < 4; i++) {
            int n = i < 3 ? contexts[i] : in->m->max_ctx;
            if (i < 3 && n > in->m->max_ctx)
                continue;
            uint64_t kv = model_kv_bytes(in->m, n), total = x.weights + x.per_sequence + kv;
            cli_print(stdout, "  memory %-7d %s = weights %s", n, human_bytes((double)total, a, sizeof a), human_bytes((double)x.weights, c, sizeof c));
            cli_print(stdout, " + state %s", human_bytes((double)x.per_sequence, c, sizeof c));
            cli_print(stdout, " + KV %s%s\n", human_bytes((double)kv, c, sizeof c), os_mem_total() && total > os_mem_total() ? "  (more than this machine has)" : "");
        }
        for (int i = 0, n = 0; i < weights_count(p->weights); i++) {
            const struct weight *w = weights_at(p->weights, i);
            if (!w->used)
                cli_print(stdout, "%s%s (%s): %s\n", n++ ? "                 " : "  unused         ", w->name, w->type,
                       w->unused_why ? w->unused_why : "no part of this architecture reads it");
        }
    }
    for (int i = 0; i < p->n_notes; i++)
        cli_print(stdout, "  note           %s\n", p->notes[i]);
    if (refusal)
        cli_print(stdout, "  can't be served: %s\n", refusal);
}

/* Which templates chats get, without and with tools. */
static void find_template(const char *path, char *out, size_t n)
{
    struct template_set set;
    struct err e = {0};
    if (template_set_find(&set, path, &e)) {
        snprintf(out, n, "unusable: %s", e.msg);
        return;
    }
    const struct template_text *plain = template_set_pick(&set, false), *tools = template_set_pick(&set, true);
    if (!set.n)
        snprintf(out, n, "none: a plain form is used");
    else if (plain == tools && plain)
        snprintf(out, n, "%s", plain->source);
    else
        snprintf(out, n, "%s; with tools %s", plain ? plain->source : "none", tools ? tools->source : "none");
    template_set_free(&set);
}

// ---- models elsewhere ------------------------------------------------------------------------------------

static void remote_members(const struct mirror *m, struct buf *b)
{
    buf_str(b, b->n ? ",\"remote\":{\"name\":" : "\"remote\":{\"name\":");
    json_write_str(b, m->name, strlen(m->name));
    buf_fmt(b, ",\"commit\":\"%s\",\"bytes\":%llu,\"fetched_bytes\":%llu,\"tokenizer_bytes\":%llu,\"requests\":%d}", m->commit,
            (unsigned long long)m->total_bytes, (unsigned long long)m->fetched_bytes, (unsigned long long)m->tokenizer_bytes, m->n_requests);
}

static void print_remote(const struct mirror *m)
{
    char fetched[32], total[32], tokenizer[32];
    printf("  fetched        %s of %s in %d requests: headers and configurations", human_bytes((double)m->fetched_bytes, fetched, sizeof fetched),
           human_bytes((double)m->total_bytes, total, sizeof total), m->n_requests);
    if (m->tokenizer_bytes)
        printf(", not the tokenizer (%s)", human_bytes((double)m->tokenizer_bytes, tokenizer, sizeof tokenizer));
    printf("\n");
}

/* The temporary folder's name means nothing to people. */
static void tell_true_place(struct err *e, const struct mirror *m)
{
    char *at = m->dir ? strstr(e->msg, m->dir) : NULL, whole[sizeof e->msg * 2];
    if (!at)
        return;
    snprintf(whole, sizeof whole, "%.*s%s%s", (int)(at - e->msg), e->msg, m->name, at + strlen(m->dir));
    snprintf(e->msg, sizeof e->msg, "%.*s", (int)sizeof e->msg - 1, whole);
}

static int inspect(const char *path, const struct mirror *remote, bool json, struct err *e)
{
    struct err why = {0};
    struct instance in;
    struct instance_options io = {.threads = 1, .headers_only = remote, .without_tokenizer = remote && file_is_dir(path)};
    struct package *p = NULL;
    bool bound = !instance_open(&in, path, &io, &why);
    if (bound)
        p = in.m->pkg;
    else if (package_open(&p, path, e))
        return e->code;
    char source[640];
    find_template(path, source, sizeof source);
    struct buf members, report;
    buf_init(&members, 16 << 20);
    buf_init(&report, 64 << 20);
    if (bound)
        bound_members(&in, source, &members);
    if (remote) {
        tell_true_place(&why, remote);
        remote_members(remote, &members);
    }
    struct inspect_facts facts = {bound, bound ? NULL : why.msg, members.n ? buf_cstr(&members) : NULL, remote ? remote->name : NULL};
    inspect_catalogue(p, &facts, &report);
    if (json) {
        printf("%s\n", buf_cstr(&report));
    } else {
        struct arena a = {0};
        struct json *r = NULL;
        if (!json_parse(&r, &a, report.p, report.n, "report", e))
            print_text(p, bound ? &in : NULL, r, source, bound ? NULL : why.msg);
        if (remote)
            print_remote(remote);
        arena_free(&a);
    }
    buf_free(&members);
    buf_free(&report);
    if (bound)
        instance_close(&in);
    else
        package_close(p);
    if (!bound)
        err_set(e, why.code, "%s", json ? "" : why.msg);
    return bound ? 0 : why.code;
}

static int inspect_remote(const char *what, const struct choice_options *choice, bool json, struct err *e)
{
    struct mirror m;
    struct fetch_options fetch = {.cancel = &interrupted};
    interrupt_begin(true);
    int rc = mirror_open(&m, what, choice, &fetch, cli_waiting, e);
    if (!rc && (rc = inspect(m.path, &m, json, e)))
        tell_true_place(e, &m);
    mirror_close(&m);
    interrupt_end();
    return rc;
}

static int inspect_local(const char *what, bool json, struct err *e)
{
    char *path;
    int rc = model_arg(what, &path, e);
    if (!rc && (rc = inspect(path, NULL, json, e)))
        model_arg_hint(path, e);
    free(path);
    return rc;
}

int cmd_inspect(int argc, char **argv)
{
    const char *what;
    bool json = false;
    struct choice_options choice = {.set = ""};
    struct opt opts[] = {
        {"json", OPT_FLAG, &json, .help = "machine-readable"},
        {"quant", OPT_STR, &choice.set, .arg = "Q", .help = "which of a repository's GGUF files, by its quantization"},
        {"file", OPT_STR, &choice.file, .arg = "NAME", .help = "the same by its name"},
    };
    struct err e = {0};
    int n = opt_parse(opts, 3, argc, argv, &what, 1, usage);
    if (n < 0)
        return n == -2 ? 0 : 2;
    if (n != 1) {
        fprintf(stderr, "foresay: inspect needs the path or name of a model\n");
        return 2;
    }
    int rc;
    if (mirror_is_remote(what))
        rc = inspect_remote(what, &choice, json, &e);
    else if (*choice.set || choice.file)
        rc = err_set(&e, ERR_ARG, "--quant and --file choose among the files of a repository (hf:ORG/NAME)");
    else
        rc = inspect_local(what, json, &e);
    return !rc ? 0 : e.msg[0] ? cli_fail(&e) : 1; // without a sentence: the report holds it
}
