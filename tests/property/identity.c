/* Identity runs over the prompts of the demo model's eval.json: `identity [MODEL]`. Every prompt is decoded plainly
 * and alone, then with depths 0 to 4 and auto and each drafter in company of others; greedy, seeded at temperatures
 * 0.7 and 1.0, and some with penalties and truncation. Exits with 1 if a token or a logits row differs. Worker
 * processes share the prompts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/os.h"
#include "eval_file.h"

enum { JOBS_MAX = 64, N_SETTINGS = 4 };

struct teller {
    const char *what;
    int64_t t0, last;
};

static int usage(void)
{
    fprintf(stderr, "usage: identity [MODEL] [--prompts N] [--ending N] [--tokens N] [--slots N] [--jobs N] [--threads N]\n"
                    "                        [--isa NAME] [--seed N]\n"
                    "  --prompts  of each kind, at most 64 (56)\n"
                    "  --ending   of these, that end at an end-of-text token (6)\n"
                    "  --tokens   of an answer (128)\n"
                    "  --slots    answers that advance together in a process (8)\n"
                    "  --jobs     processes (one per CPU), each with --threads threads (1)\n"
                    "MODEL must share the demo model's vocabulary; default: the demo model.\n");
    return 2;
}

static bool tell(void *ud, double done)
{
    struct teller *t = ud;
    int64_t now = clock_ns();
    if (now - t->last > 20000000000) {
        printf("%s: %.0f %%, %.0f s\n", t->what, done * 100, (double)(now - t->t0) * 1e-9);
        fflush(stdout);
        t->last = now;
    }
    return true;
}

static void make_settings(struct identity_setting *s)
{
    s[0] = (struct identity_setting){"greedy", sampling_neutral(), 0};
    s[0].sampling.temperature = 0;
    s[1] = (struct identity_setting){"temperature 0.7", sampling_neutral(), 0};
    s[1].sampling.temperature = 0.7;
    s[2] = (struct identity_setting){"temperature 1.0", sampling_neutral(), 0};
    s[3] = (struct identity_setting){"penalties, top-k 40, top-p 0.9", sampling_neutral(), 5};
    s[3].sampling.temperature = 0.9;
    s[3].sampling.top_k = 40;
    s[3].sampling.top_p = 0.9;
    s[3].sampling.repetition_penalty = 1.2;
    s[3].sampling.frequency_penalty = 0.1;
}

static int work(const char *model, const struct instance_options *io, const struct identity_options *all, int job, int jobs,
                struct identity_result *r)
{
    struct identity_options o = *all;
    struct instance in;
    struct engine *g;
    struct err e = {0};
    struct text_prompt *mine = xcalloc((size_t)all->n_prompts + 1, sizeof *mine);
    o.n_prompts = 0;
    for (int i = job; i < all->n_prompts; i += jobs)
        mine[o.n_prompts++] = all->prompts[i];
    o.prompts = mine;
    o.seed += (uint64_t)job << 32;
    struct engine_options eo = {.with_mtp = true};
    identity_needs(&o, &eo.n_ctx, &eo.n_seqs);
    int rc = instance_open(&in, model, io, &e);
    if (!rc) {
        if (!(rc = engine_open(&g, in.m, &in.head, &eo, &e))) {
            rc = identity_run(g, &in, &o, r, &e);
            engine_close(g);
        }
        instance_close(&in);
    }
    if (rc)
        fprintf(stderr, "identity: %s\n", e.msg);
    free(mine);
    return rc;
}

static int report(const struct identity_setting *settings, const struct identity_result *r)
{
    int64_t answers = 0, tokens = 0, differing = 0;
    for (int k = 0; k < KINDS; k++) {
        printf("%-5s %lld prompts, %lld answers, %lld tokens: %lld differing\n", kind_names[k], (long long)r->prompts[k],
               (long long)r->answers[k], (long long)r->tokens[k], (long long)r->differing[k]);
        answers += r->answers[k];
        tokens += r->tokens[k];
        differing += r->differing[k];
        for (int s = 0; s < N_SETTINGS; s++) {
            struct buf b;
            buf_init(&b, 4096);
            counts_acceptance(&r->counts[s][k], &b, " ");
            if (b.n)
                printf("      %-32s depth 3: acceptance %s, %.3f tokens per round\n", settings[s].name, buf_cstr(&b),
                       counts_tokens_per_round(&r->counts[s][k]));
            buf_free(&b);
        }
    }
    printf("%lld answers, %lld tokens (%lld from copied drafts), %lld differing\n", (long long)answers, (long long)tokens,
           (long long)r->copied, (long long)differing);
    if (r->first[0])
        printf("first: %s\n", r->first);
    return differing != 0;
}

/* One process per job; each sends its result through a pipe. */
static int run_jobs(const char *model, const struct instance_options *io, const struct identity_options *o, int jobs)
{
    struct identity_result sum = {0}, r;
    int from[JOBS_MAX], rc = 0;
    fflush(stdout);
    for (int j = 0; j < jobs; j++) {
        int fd[2];
        if (pipe(fd))
            return 1;
        from[j] = fd[0];
        if (!fork()) {
            char name[32];
            snprintf(name, sizeof name, "worker %d", j);
            struct teller t = {name, clock_ns(), clock_ns()};
            struct identity_options mine = *o;
            mine.progress = tell;
            mine.ud = &t;
            int bad = work(model, io, &mine, j, jobs, &r);
            _exit(bad || write(fd[1], &r, sizeof r) != (ssize_t)sizeof r);
        }
        close(fd[1]);
    }
    for (int j = 0; j < jobs; j++) {
        if (read(from[j], &r, sizeof r) == (ssize_t)sizeof r)
            identity_add(&sum, &r);
        else
            rc = 1; // it said why
        close(from[j]);
    }
    while (wait(NULL) > 0)
        ;
    int differs = report(o->settings, &sum);
    return rc || differs;
}

int main(int argc, char **argv)
{
    struct identity_setting settings[N_SETTINGS];
    struct instance_options io = {.threads = 1, .without_tokenizer = false};
    struct identity_options o = {.settings = settings, .n_settings = N_SETTINGS, .tokens = 128, .slots = 8, .seed = 1};
    int per_kind = 56, ending = 6, jobs = os_cpu_count(), first = 1;
    char *model = argc > 1 && argv[1][0] != '-' ? xstrdup(argv[first++]) : eval_demo();
    for (int i = first; i < argc; i += 2) {
        const char *v = argv[i + 1];
        if (!v)
            return usage();
        long x = strtol(v, NULL, 10);
        if (!strcmp(argv[i], "--isa"))
            io.isa = v;
        else if (!strcmp(argv[i], "--prompts"))
            per_kind = (int)x;
        else if (!strcmp(argv[i], "--ending"))
            ending = (int)x;
        else if (!strcmp(argv[i], "--tokens"))
            o.tokens = (int)x;
        else if (!strcmp(argv[i], "--slots"))
            o.slots = (int)x;
        else if (!strcmp(argv[i], "--jobs"))
            jobs = (int)x;
        else if (!strcmp(argv[i], "--threads"))
            io.threads = (int)x;
        else if (!strcmp(argv[i], "--seed"))
            o.seed = (uint64_t)x;
        else
            return usage();
    }
    if (per_kind < 1 || per_kind > 64 || o.tokens < 1 || o.tokens > 4096 || o.slots < 1 || o.slots > 32 || jobs < 1 || jobs > JOBS_MAX ||
        io.threads < 0)
        return usage();
    struct eval_file f;
    int64_t t0 = clock_ns();
    eval_read(&f, model);
    make_settings(settings);
    struct text_prompt *p = eval_prompts(&f, per_kind, ending, &o.n_prompts);
    o.prompts = p;
    printf("%s: %d prompts x %d tokens, %d settings, %d processes of %d threads, %d answers together, seed %llu, %s\n", model, o.n_prompts,
           o.tokens, N_SETTINGS, jobs, io.threads, o.slots, (unsigned long long)o.seed, os_cpu_name());
    int rc = run_jobs(model, &io, &o, jobs);
    printf("%.1f s\n", (double)(clock_ns() - t0) * 1e-9);
    free((void *)(uintptr_t)p[0].ids);
    free(p);
    eval_free(&f);
    free(model);
    return rc;
}
