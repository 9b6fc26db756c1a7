/* The demo model on the prompts of its eval.json at depth 3: greedy continuations against those there (computed in
 * float32 throughout, so that near ties may fall the other way), acceptance by position within two points of the
 * figures there, tokens per round. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "eval_file.h"

#include "../slow_build.h"

enum { SLOTS = 8, FEWEST_IDENTICAL = 56 };
static int passed, failed;

static void check(bool ok, const char *kind, const char *what)
{
    passed += ok;
    failed += !ok;
    if (!ok)
        printf("FAIL %s: %s\n", kind, what);
}

static bool is_same(const struct gen *q, const struct eval_ids *want, int *part)
{
    int n;
    const int32_t *ids = gen_output(q, &n);
    for (*part = 0; *part < n && *part < want->n && ids[*part] == want->v[*part];)
        ++*part;
    return *part == n && n == want->n;
}

/* All cases of a kind, several together. */
static int run_kind(struct gen **q, const struct eval_file *f, int k, struct identity_counts *c, int *identical, struct err *e)
{
    const struct eval_kind *x = &f->kind[k];
    for (int first = 0; first < x->n_cases; first += SLOTS) {
        struct gen *active[SLOTS];
        int n = 0, rc;
        for (int i = 0; i < SLOTS; i++) {
            struct gen_request r = {.prompt = x->prompt[first + i].v, .n_prompt = x->prompt[first + i].n, .sampling = sampling_neutral(),
                                    .has_seed = true, .max_tokens = f->new_tokens, .depth = EVAL_DEPTH, .use_mtp = true};
            r.sampling.temperature = 0;
            if ((rc = gen_start(q[i], &r, NULL, NULL, e)) || (rc = gen_prefill(q[i], 0, NULL, e)))
                return rc;
            if (!gen_stop_reason(q[i]))
                active[n++] = q[i];
        }
        while (n) {
            if ((rc = gen_round(active, n, e)))
                return rc;
            for (int i = 0; i < n;)
                if (gen_stop_reason(active[i]))
                    active[i] = active[--n];
                else
                    i++;
        }
        for (int i = 0; i < SLOTS; i++) {
            const struct gen_stats *st = gen_stats(q[i]);
            int part;
            if (is_same(q[i], &x->continuation[first + i], &part))
                ++*identical;
            else
                printf("%s, case %d: parts from the file's continuation at token %d of %d\n", kind_names[k], first + i, part,
                       x->continuation[first + i].n);
            c->rounds += st->rounds;
            c->emitted += st->emitted - 1;
            for (int d = 0; d < EVAL_DEPTH; d++) {
                c->proposed[d] += st->proposed[d];
                c->accepted[d] += st->accepted[d];
            }
        }
    }
    return 0;
}

static void compare_kind(const struct eval_kind *x, const char *name, const struct identity_counts *c)
{
    struct buf b;
    buf_init(&b, 1024);
    counts_acceptance(c, &b, " ");
    printf("%-5s acceptance %s (file: %.3f %.3f %.3f), %.3f tokens per round (file: %.3f)\n", name, buf_cstr(&b), x->acceptance[0],
           x->acceptance[1], x->acceptance[2], counts_tokens_per_round(c), x->tokens_per_round);
    buf_free(&b);
    for (int d = 0; d < EVAL_DEPTH; d++) {
        double a = c->proposed[d] ? (double)c->accepted[d] / (double)c->proposed[d] : -1;
        char what[96];
        snprintf(what, sizeof what, "acceptance at position %d is %.3f, the file says %.3f", d + 1, a, x->acceptance[d]);
        check(fabs(a - x->acceptance[d]) <= 0.02, name, what);
    }
}

int main(void)
{
#ifdef SLOW
    printf("SKIP too slow in this build\n0 passed, 0 failed, 1 skipped\n");
    return 0;
#endif
    char *model = eval_demo();
    struct eval_file f;
    struct instance in;
    struct engine *g;
    struct gen *q[SLOTS];
    struct err e = {0};
    struct instance_options io = {.threads = 1};
    struct engine_options eo = {.n_seqs = 2 * SLOTS, .n_ctx = 2 * SLOTS * 320, .with_mtp = true};
    int identical = 0, rc = 0;
    int64_t t0 = clock_ns();
    if (!file_exists(model)) {
        printf("SKIP the demo model is not there\n0 passed, 0 failed, 1 skipped\n");
        free(model);
        return 0;
    }
    eval_read(&f, model);
    if (instance_open(&in, model, &io, &e) || engine_open(&g, in.m, &in.head, &eo, &e)) {
        printf("FAIL %s\n", e.msg);
        return 1;
    }
    for (int i = 0; i < SLOTS && !rc; i++)
        rc = gen_new(&q[i], g, &in, &e);
    for (int k = 0; k < KINDS && !rc; k++) {
        struct identity_counts c = {0};
        rc = run_kind(q, &f, k, &c, &identical, &e);
        if (!rc)
            compare_kind(&f.kind[k], kind_names[k], &c);
    }
    check(!rc, "run", e.msg);
    printf("%d of %d continuations are the file's\n", identical, KINDS * EVAL_CASES);
    check(identical >= FEWEST_IDENTICAL, "all kinds", "too few continuations are the file's for near ties to explain it");
    for (int i = 0; i < SLOTS && !rc; i++)
        gen_free(q[i]);
    engine_close(g);
    instance_close(&in);
    eval_free(&f);
    free(model);
    printf("%.1f s\n%d passed, %d failed, 0 skipped\n", (double)(clock_ns() - t0) * 1e-9, passed, failed);
    return failed != 0;
}
