/* auto MODEL [--tokens N] [--reps N] [--threads N] [--isa NAME] [--depth N]: decoding with drafts over plain decoding,
 * greedy, by kind of text. The prompts are those of eval.json in the model's folder where it has one (depth auto; every
 * kind), else arithmetic sequences of ids, for models made by mkmodel --agree. Plain and drafting runs alternate; per
 * prompt the medians count, per kind the sum over prompts. Conditions are printed. With one thread the ratio of processor time is printed too, which
 * says more on a machine that does other things; it includes the reading of the prompt. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/os.h"
#include "infer/gen.h"

enum { MAX_REPS = 51, MAX_PROMPTS = 64, OTHER = 4 };
static const char *const kinds[] = {"code", "json", "en", "zh", "other"};

struct prompt {
    int kind, n;
    int32_t *ids;
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static void fail(const char *what)
{
    fprintf(stderr, "auto: %s\n", what);
    exit(1);
}

/* The first `each` prompts of every kind. */
static int read_prompts(const char *model, int each, struct prompt *p)
{
    char *path = path_join(model, "eval.json");
    struct arena a = {0};
    struct err e = {0};
    struct json *top;
    struct filemap m;
    int n = 0;
    if (file_exists(path)) {
        if (file_map(&m, path, &e) || json_parse(&top, &a, (const char *)m.p, m.n, path, &e))
            fail(e.msg);
        for (int k = 0; k < OTHER; k++) {
            const struct json *c = json_get(json_get(json_get(top, "kinds"), kinds[k]), "cases");
            int i = 0;
            for (c = c ? c->child : NULL; c && i < each && n < MAX_PROMPTS; c = c->next, i++) {
                const struct json *ids = json_get(c, "prompt");
                p[n] = (struct prompt){.kind = k, .ids = xcalloc(ids ? ids->n + 1 : 1, sizeof(int32_t))};
                for (const struct json *x = ids ? ids->child : NULL; x; x = x->next)
                    p[n].ids[p[n].n++] = (int32_t)json_num(x, 0);
                n++;
            }
        }
        file_unmap(&m);
        arena_free(&a);
    }
    for (int i = 0; !n || (p[0].kind == OTHER && n < each); i++) {
        p[n] = (struct prompt){.kind = OTHER, .n = 48, .ids = xcalloc(48, sizeof(int32_t))};
        for (int k = 0; k < 48; k++)
            p[n].ids[k] = (11 * i + 7 * k) % 94;
        n++;
    }
    free(path);
    return n;
}

static double decode_seconds(struct gen *q, const struct prompt *p, int depth, int tokens, double *per_round, double *cpu)
{
    clock_t c0 = clock();
    struct gen_request r = {.prompt = p->ids, .n_prompt = p->n, .sampling = sampling_neutral(), .has_seed = true, .max_tokens = tokens,
                            .ignore_eos = true, .depth = depth, .use_mtp = true, .use_copy = depth < 0};
    struct err e = {0};
    r.sampling.temperature = 0;
    gen_forget(q);
    if (gen_run(q, &r, NULL, NULL, NULL, &e))
        fail(e.msg);
    *cpu = (double)(clock() - c0) / CLOCKS_PER_SEC;
    const struct gen_stats *st = gen_stats(q);
    *per_round = st->rounds ? (double)(st->emitted - 1) / (double)st->rounds : 1;
    return (double)(st->last_ns - st->first_ns) * 1e-9;
}

int main(int argc, char **argv)
{
    struct instance in;
    struct engine *g;
    struct gen *q;
    struct err e = {0};
    struct instance_options io = {0};
    struct engine_options eo = {.n_ctx = 2048, .n_seqs = 2, .with_mtp = true};
    static struct prompt p[MAX_PROMPTS];
    int tokens = 256, reps = 5, each = 4, depth = -1;
    const char *path = NULL;
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-') {
            path = argv[i];
            continue;
        }
        const char *name = argv[i], *v = i + 1 < argc ? argv[++i] : "";
        int x = (int)strtol(v, NULL, 10);
        if (!strcmp(name, "--tokens"))
            tokens = x;
        else if (!strcmp(name, "--reps"))
            reps = x;
        else if (!strcmp(name, "--prompts"))
            each = x;
        else if (!strcmp(name, "--threads"))
            io.threads = x;
        else if (!strcmp(name, "--depth"))
            depth = x;
        else if (!strcmp(name, "--isa"))
            io.isa = v;
        else
            path = NULL, i = argc;
    }
    if (!path || reps < 1 || reps > MAX_REPS || tokens < 2 || tokens > 1800 || each < 1 || each > 16 || depth < -1 || depth > DEPTH_MAX) {
        fprintf(stderr, "usage: auto MODEL [--tokens N] [--reps N] [--prompts N] [--depth N] [--threads N] [--isa NAME]\n");
        return 2;
    }
    if (instance_open(&in, path, &io, &e) || engine_open(&g, in.m, &in.head, &eo, &e) || gen_new(&q, g, &in, &e))
        fail(e.msg);
    int n = read_prompts(path, each, p);
    double plain[OTHER + 1] = {0}, drafting[OTHER + 1] = {0}, rounds[OTHER + 1] = {0}, cpu[2][OTHER + 1] = {{0}};
    int count[OTHER + 1] = {0};
    for (int i = 0; i < n; i++) {
        double t[2][MAX_REPS], c[2][MAX_REPS], per_round = 1, unused, x, y;
        for (int k = -1; k < reps; k++) { // the first pass warms up
            double a = decode_seconds(q, &p[i], 0, tokens, &unused, &x), b = decode_seconds(q, &p[i], depth, tokens, &per_round, &y);
            if (k >= 0)
                t[0][k] = a, t[1][k] = b, c[0][k] = x, c[1][k] = y;
        }
        plain[p[i].kind] += median(t[0], reps);
        drafting[p[i].kind] += median(t[1], reps);
        cpu[0][p[i].kind] += median(c[0], reps);
        cpu[1][p[i].kind] += median(c[1], reps);
        rounds[p[i].kind] += per_round;
        count[p[i].kind]++;
        free(p[i].ids);
    }
    printf("model %s, %s, %s, %d threads, %s; %d tokens a run, medians of %d alternating runs, depth ", path, in.m->arch->name, in.be->isa,
           in.be->threads, os_cpu_name(), tokens, reps);
    printf(depth < 0 ? "auto\n" : "%d\n", depth);
    for (int k = 0; k <= OTHER; k++)
        if (count[k]) {
            printf("%-6s %d prompts: plain %.1f tok/s, with drafts %.1f tok/s, ratio %.3f, %.2f tokens per round", kinds[k], count[k],
                   count[k] * (tokens - 1) / plain[k], count[k] * (tokens - 1) / drafting[k], plain[k] / drafting[k], rounds[k] / count[k]);
            if (in.be->threads == 1)
                printf(", ratio of processor time %.3f", cpu[0][k] / cpu[1][k]);
            putchar('\n');
        }
    gen_free(q);
    engine_close(g);
    instance_close(&in);
    return 0;
}
