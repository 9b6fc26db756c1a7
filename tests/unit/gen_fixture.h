/* What the tests of generation share: the demo model behind an engine and some answers, the prompts of its
 * evaluation file, and running one answer while everything it emits is written down. */
#ifndef TESTS_UNIT_GEN_FIXTURE_H
#define TESTS_UNIT_GEN_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "infer/gen.h"
#include "text/json.h"

enum { PROMPTS = 64, PROMPT_MAX = 400, OUT_MAX = 512, GENS_MAX = 70 };

struct bench {
    struct instance in;
    struct engine *g;
    struct gen *q[GENS_MAX];
    int n;
};

static struct err e; // of the last call

static inline bool bench_open(struct bench *b, int threads, int n_gens, int n_ctx, int max_rows)
{
    struct instance_options io = {.threads = threads};
    struct engine_options eo = {.n_ctx = n_ctx, .n_seqs = 2 * n_gens, .max_rows = max_rows, .with_mtp = true};
    *b = (struct bench){.n = n_gens};
    e = (struct err){0};
    bool ok = !instance_open(&b->in, "models/demo", &io, &e) && !engine_open(&b->g, b->in.m, &b->in.head, &eo, &e);
    for (int i = 0; ok && i < n_gens; i++)
        ok = !gen_new(&b->q[i], b->g, &b->in, &e);
    if (!ok)
        print_error("%s\n", e.msg);
    return ok;
}

static inline void bench_close(struct bench *b)
{
    for (int i = 0; i < b->n; i++)
        gen_free(b->q[i]);
    engine_close(b->g);
    instance_close(&b->in);
}

static int32_t prompt[PROMPTS][PROMPT_MAX];
static int n_prompt[PROMPTS];

static inline bool read_prompts(void)
{
    struct arena a = {0};
    struct json *o;
    char *s;
    size_t n;
    int k = 0;
    if (file_read("models/demo/eval.json", 1 << 20, &s, &n, &e) || json_parse(&o, &a, s, n, "eval.json", &e)) {
        print_error("%s\n", e.msg);
        return false;
    }
    for (const struct json *kind = json_get(o, "kinds")->child; kind; kind = kind->next)
        for (const struct json *c = json_get(kind, "cases")->child; c && k < PROMPTS; c = c->next, k++)
            for (const struct json *t = json_get(c, "prompt")->child; t && n_prompt[k] < PROMPT_MAX; t = t->next) {
                int64_t id;
                if (json_int(t, &id))
                    prompt[k][n_prompt[k]++] = (int32_t)id;
            }
    arena_free(&a);
    free(s);
    return k == PROMPTS;
}

/* One answer as its reader sees it. */
struct answer {
    int32_t id[OUT_MAX];
    int n, drafted, last_draft; // emitted; of them from drafts; position of the last token in its draft
    char text[8192];            // what was shown
    size_t n_text;
    enum stop_reason why;
    uint64_t hash;
    struct gen_stats st;
    atomic_int *cancel;
    int cancel_at; // tokens after which the reader cancels
};

static inline void on_token(void *ud, const struct token_event *ev)
{
    struct answer *a = ud;
    assert_in_range(a->n, 0, OUT_MAX - 1);
    assert_true(a->n_text + ev->n_text < sizeof a->text);
    a->id[a->n++] = ev->id;
    a->drafted += ev->draft > 0;
    a->last_draft = ev->draft;
    assert_true(ev->draft ? ev->drafter >= 0 && ev->drafter < N_DRAFTERS : ev->drafter < 0);
    memcpy(a->text + a->n_text, ev->text, ev->n_text);
    a->n_text += ev->n_text;
    if (a->cancel && a->n == a->cancel_at)
        atomic_store(a->cancel, 1);
}

static inline void finish(struct gen *q, struct answer *a)
{
    int n;
    const int32_t *v = gen_output(q, &n);
    assert_int_equal(n, a->n);
    assert_memory_equal(v, a->id, (size_t)n * sizeof *v);
    a->why = gen_stop_reason(q);
    a->hash = gen_logits_hash(q);
    a->st = *gen_stats(q);
    assert_int_equal(a->st.emitted, n);
    assert_int_not_equal(a->why, STOP_NONE);
    if (a->why != STOP_CANCELLED) { // held back text is not shown then
        assert_int_equal(gen_text(q)->n, a->n_text);
        assert_memory_equal(buf_cstr(gen_text(q)), a->text, a->n_text);
    }
}

static inline struct gen_request request(int p, int max_tokens)
{
    return (struct gen_request){.prompt = prompt[p], .n_prompt = n_prompt[p], .sampling = {.top_p = 1, .repetition_penalty = 1},
                                .has_seed = true, .seed = 1000 + (uint64_t)p, .max_tokens = max_tokens, .use_mtp = true,
                                .use_copy = true, .want_hash = true};
}

static inline void answer_warm(struct gen *q, const struct gen_request *r, struct answer *a)
{
    *a = (struct answer){0};
    e = (struct err){0};
    int rc = gen_run(q, r, on_token, a, NULL, &e);
    if (rc)
        print_error("%s\n", e.msg);
    assert_int_equal(rc, 0);
    finish(q, a);
}

static inline void answer_cold(struct gen *q, const struct gen_request *r, struct answer *a)
{
    gen_forget(q);
    answer_warm(q, r, a);
    assert_int_equal(a->st.cached_tokens, 0);
}

/* Company, drafts and caches must not show. */
static inline void assert_same_answer(const struct answer *a, const struct answer *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->id, b->id, (size_t)a->n * sizeof *a->id);
    assert_int_equal(a->n_text, b->n_text);
    assert_memory_equal(a->text, b->text, a->n_text);
    assert_int_equal(a->why, b->why);
    assert_true(a->hash == b->hash);
}

#endif
