/* Identity runs and the sampler's law on the demo model with a small budget: what `identity` does in full. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "eval_file.h"
#include "measure/law.h"

#include "../slow_build.h"

#ifdef SLOW
enum { PER_KIND = 1, TOKENS = 10, DRAWS = 500 };
#else
enum { PER_KIND = 2, TOKENS = 32, DRAWS = 20000 };
#endif

static int passed, failed;

static void check(bool ok, const char *what)
{
    passed += ok;
    failed += !ok;
    if (!ok)
        printf("FAIL %s\n", what);
}

static void identity(struct engine *g, const struct instance *in, const struct text_prompt *p, int n)
{
    struct identity_setting set[3] = {{"greedy", sampling_neutral(), 0},
                                      {"temperature 1.0", sampling_neutral(), 0},
                                      {"temperature 0.7, penalties, top-k 40", sampling_neutral(), 0}};
    struct identity_options o = {.prompts = p, .n_prompts = n, .settings = set, .n_settings = 3, .tokens = TOKENS, .slots = 6, .seed = 1};
    struct identity_result r;
    struct err e = {0};
    set[0].sampling.temperature = 0;
    set[2].sampling.temperature = 0.7;
    set[2].sampling.top_k = 40;
    set[2].sampling.repetition_penalty = 1.2;
    set[2].sampling.presence_penalty = 0.3;
    int rc = identity_run(g, in, &o, &r, &e);
    check(!rc, e.msg);
    int64_t answers = 0, tokens = 0, differing = 0;
    for (int k = 0; k < KINDS; k++) {
        answers += r.answers[k];
        tokens += r.tokens[k];
        differing += r.differing[k];
    }
    check(!rc && !differing && answers == (int64_t)n * 12 * 3, r.first[0] ? r.first : "identity: answers are missing");
    check(TOKENS < 32 || r.copied > 0, "identity: the copy drafter never helped, so it was not tested");
    printf("%lld answers, %lld tokens, %lld differing\n", (long long)answers, (long long)tokens, (long long)differing);
}

static void law(struct engine *g, const struct instance *in, const struct text_prompt *p)
{
    struct law_options o = {.prompts = p, .n_prompts = 2, .top_k = 4, .draws = DRAWS, .seed = 1};
    struct law_result r;
    struct err e = {0};
    int rc = law_run(g, in, &o, &r, &e);
    check(!rc, e.msg);
    check(r.n_tests == 20 && r.n_planted == 8, "law: tests are missing");
    check(r.worst > 1e-3, "law: a sound rule fails");
    check(r.planted_best < 1e-3, "law: the planted rule is not seen");
    printf("law: %d tests of %d draws on %d rows, smallest p %.3g, planted %.3g\n", r.n_tests, DRAWS, r.rows, r.worst, r.planted_best);
}

int main(void)
{
    char *model = eval_demo();
    struct eval_file f;
    struct instance in;
    struct engine *g;
    struct err e = {0};
    int n;
    int64_t t0 = clock_ns();
    if (!file_exists(model)) {
        printf("SKIP the demo model is not there\n0 passed, 0 failed, 1 skipped\n");
        return 0;
    }
    eval_read(&f, model);
    struct text_prompt *p = eval_prompts(&f, PER_KIND, 1, &n);
    struct instance_options io = {.threads = 1};
    struct engine_options eo = {.n_seqs = 12 + LAW_SEQS, .n_ctx = 13 * 320, .with_mtp = true};
    if (instance_open(&in, model, &io, &e) || engine_open(&g, in.m, &in.head, &eo, &e)) {
        printf("FAIL %s\n", e.msg);
        return 1;
    }
    identity(g, &in, p, n);
    law(g, &in, p);
    engine_close(g);
    instance_close(&in);
    free((void *)(uintptr_t)p[0].ids);
    free(p);
    eval_free(&f);
    free(model);
    printf("%.1f s\n%d passed, %d failed, 0 skipped\n", (double)(clock_ns() - t0) * 1e-9, passed, failed);
    return failed != 0;
}
