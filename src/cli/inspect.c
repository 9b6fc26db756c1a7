/* `foresay inspect`: what a package holds and what it needs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "chat/template_set.h"
#include "cli/cli.h"
#include "cli/opt.h"
#include "infer/instance.h"
#include "measure/inspect.h"

static const char usage[] = "usage: foresay inspect PATH [--json]\n\n"
                            "Says what a model folder or GGUF file holds: architecture, sizes, formats, tokenizer, template, MTP head, state and\n"
                            "memory, unused tensors. Exit status: 0 it can be served, 1 it can't (the reason is given).\n\n"
                            "  foresay inspect ~/models/Qwen3.5-4B-MLX-4bit\n  foresay inspect model.gguf --json\n";

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

/* 1234567 -> "1.2 MiB" */
static const char *human(double bytes, char *out, size_t n)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    for (; bytes >= 1024 && u < 4; u++)
        bytes /= 1024;
    snprintf(out, n, u ? "%.1f %s" : "%.0f %s", bytes, unit[u]);
    return out;
}

static void print_text(const struct package *p, const struct instance *in, const struct json *r, const char *template_source, const char *refusal)
{
    char a[32], c[32];
    const struct json *cls = json_get(r, "classes");
    (void)cls;
    printf("%s\n", p->path);
    if (in)
        printf("  architecture   %s, hidden %d, %d layers, vocabulary %d, window %d tokens\n", in->m->arch->name, in->m->hidden, in->m->n_layers,
               in->m->n_vocab, in->m->max_ctx);
    else
        printf("  architecture   %s\n", json_str(json_get(p->config, "model_type"), "unknown"));
    double parameters = json_num(json_get(r, "parameters"), 0);
    uint64_t bytes = 0;
    for (int i = 0; i < weights_count(p->weights); i++)
        bytes += weights_at(p->weights, i)->bytes;
    printf("  weights        %d tensors, %s", weights_count(p->weights), human((double)bytes, a, sizeof a));
    if (parameters > 0)
        printf(", %.1f M parameters", parameters / 1e6);
    printf("\n");
    for (const struct json *f = json_get(r, "formats") ? json_get(r, "formats")->child : NULL; f; f = f->next) {
        printf("    %-22s %4.0f tensors  %s\n", json_str(json_get(f, "format"), "?"), json_num(json_get(f, "tensors"), 0),
               human(json_num(json_get(f, "bytes"), 0), c, sizeof c));
    }
    if (in) {
        struct inspect_head head;
        struct memory x = memory_of(in->m);
        inspect_find_head(p, &head);
        printf("  tokenizer      %s, %d tokens\n", in->tok ? tokenizer_kind(in->tok) : "none", in->tok ? tokenizer_n_tokens(in->tok) : 0);
        struct buf sampling;
        buf_init(&sampling, 4096);
        sampling_describe(&in->sampling, in->sampling_source, &sampling);
        printf("  template       %s\n", template_source);
        printf("  sampling       %s\n", buf_cstr(&sampling));
        buf_free(&sampling);
        printf("  MTP head       %s", health_name(in->head.health));
        if (head.n_tensors)
            printf(": %d logical tensors (%d stored), %s", head.n_tensors, head.n_stored, human((double)head.bytes, a, sizeof a));
        printf("\n");
        if (in->head.why[0])
            printf("                 %s%s\n", in->head.suspicious ? "warning: " : "", in->head.why);
        printf("  state          %s a token of KV", human((double)x.kv_per_token, a, sizeof a));
        if (x.kv_windows)
            printf(", %s a sequence of KV within windows", human((double)x.kv_windows, a, sizeof a));
        printf(", %s a sequence of recurrent state\n", human((double)x.per_sequence, c, sizeof c));
        for (int i = 0; i < 4; i++) {
            int n = i < 3 ? contexts[i] : in->m->max_ctx;
            if (i < 3 && n > in->m->max_ctx)
                continue;
            uint64_t kv = model_kv_bytes(in->m, n), total = x.weights + x.per_sequence + kv;
            printf("  memory %-7d %s = weights %s", n, human((double)total, a, sizeof a), human((double)x.weights, c, sizeof c));
            printf(" + state %s", human((double)x.per_sequence, c, sizeof c));
            printf(" + KV %s%s\n", human((double)kv, c, sizeof c), os_mem_total() && total > os_mem_total() ? "  (more than this machine has)" : "");
        }
        for (int i = 0, n = 0; i < weights_count(p->weights); i++) {
            const struct weight *w = weights_at(p->weights, i);
            if (!w->used)
                printf("%s%s (%s): %s\n", n++ ? "                 " : "  unused         ", w->name, w->type,
                       w->unused_why ? w->unused_why : "no part of this architecture reads it");
        }
    }
    for (int i = 0; i < p->n_notes; i++)
        printf("  note           %s\n", p->notes[i]);
    if (refusal)
        printf("  can't be served: %s\n", refusal);
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

int cmd_inspect(int argc, char **argv)
{
    const char *path;
    bool json = false;
    struct opt opts[] = {{"json", OPT_FLAG, &json, .help = "machine-readable"}};
    struct err e = {0}, why = {0};
    int n = opt_parse(opts, 1, argc, argv, &path, 1, usage);
    if (n < 0)
        return n == -2 ? 0 : 2;
    if (n != 1) {
        fprintf(stderr, "foresay: inspect needs the path of a model\n");
        return 2;
    }
    struct instance in;
    struct instance_options io = {.threads = 1};
    struct package *p = NULL;
    bool bound = !instance_open(&in, path, &io, &why);
    if (bound)
        p = in.m->pkg;
    else if (package_open(&p, path, &e))
        return cli_fail(&e);
    char source[640];
    find_template(path, source, sizeof source);
    struct buf members, report;
    buf_init(&members, 16 << 20);
    buf_init(&report, 64 << 20);
    if (bound)
        bound_members(&in, source, &members);
    struct inspect_facts facts = {bound, bound ? NULL : why.msg, bound ? buf_cstr(&members) : NULL};
    inspect_catalogue(p, &facts, &report);
    if (json) {
        printf("%s\n", buf_cstr(&report));
    } else {
        struct arena a = {0};
        struct json *r = NULL;
        if (!json_parse(&r, &a, report.p, report.n, "report", &e))
            print_text(p, bound ? &in : NULL, r, source, bound ? NULL : why.msg);
        arena_free(&a);
    }
    buf_free(&members);
    buf_free(&report);
    if (bound)
        instance_close(&in);
    else
        package_close(p);
    if (!bound && !json)
        return cli_fail(&why);
    return !bound;
}
