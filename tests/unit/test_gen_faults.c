/* Generation where something is short or broken: logits that are not numbers, in the trunk or the head; memory
 * for no drafts or for no token more; more answers than a step takes; an engine of few rows. And the law of
 * exact acceptance, by a G-test against probabilities computed row by row. */
#include "gen_fixture.h"

#include <math.h>

#include "infer/gen_internal.h"
#include "kernel/cpu/internal.h"
#include "measure/stats.h"

static struct bench b;

static int open_all(void **state)
{
    (void)state;
    return read_prompts() && bench_open(&b, 1, 3, 2048, 128) ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    bench_close(&b);
    return 0;
}

static const struct sampling neutral = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
static const struct sampling penalized = {.temperature = 0, .top_p = 1, .repetition_penalty = 1.2};
static const struct sampling greedy = {.temperature = 0, .top_p = 1, .repetition_penalty = 1};

/* A head of NaNs drafts nothing that counts and costs no answer. */
static void test_broken_head(void **state)
{
    (void)state;
    const struct sampling *all[] = {&greedy, &penalized, &neutral};
    float *w = b.in.head.norm->f, kept = w[0];
    for (int s = 0; s < 3; s++)
        for (int acceptance = 0; acceptance < 2; acceptance++) {
            struct answer want, got;
            struct gen_request r = request(40 + s, 12);
            r.sampling = *all[s];
            r.depth = 0;
            answer_cold(b.q[0], &r, &want);
            r.depth = 3;
            r.acceptance = acceptance ? ACCEPT_EXACT : ACCEPT_SEEDED;
            w[0] = NAN;
            answer_cold(b.q[0], &r, &got);
            w[0] = kept;
            if (!acceptance || s < 2)
                assert_same_answer(&want, &got);
        }
}

/* Logits that are not numbers end the answer with an error; the next one finds everything in order. */
static void test_broken_trunk(void **state)
{
    (void)state;
    float *w = b.in.m->final_norm->f, kept = w[0];
    for (int depth = 0; depth < 5; depth += 2)
        for (int when = 0; when < 4; when++) { // rounds before; 0: while the prompt is read
            struct answer want[3], got[3];
            struct gen_request r[3];
            int rc = 0;
            for (int i = 0; i < 3; i++) {
                r[i] = request(10 + 7 * i, 16);
                r[i].sampling = i == 1 ? neutral : greedy;
                r[i].depth = depth;
                r[i].ignore_eos = true;
                answer_cold(b.q[i], &r[i], &want[i]);
                gen_forget(b.q[i]);
                got[i] = (struct answer){0};
                assert_int_equal(gen_start(b.q[i], &r[i], on_token, &got[i], &e), 0);
                if (when)
                    assert_int_equal(gen_prefill(b.q[i], 0, NULL, &e), 0);
            }
            for (int k = 1; k < when; k++)
                assert_int_equal(gen_round(b.q, 3, &e), 0);
            w[0] = NAN;
            e = (struct err){0};
            for (int i = 0; i < 3 && !when; i++)
                rc = gen_prefill(b.q[i], 0, NULL, &e);
            if (when)
                rc = gen_round(b.q, 3, &e);
            w[0] = kept;
            assert_int_equal(rc, ERR_NUMERIC);
            assert_true(e.msg[0]);
            for (int i = 0; i < 3; i++) {
                assert_int_equal(gen_stop_reason(b.q[i]), STOP_CANCELLED);
                struct gen_request again = r[i]; // the next turn repeats what was said so far, and goes on
                int32_t text[PROMPT_MAX + OUT_MAX];
                int said = got[i].n > 2 ? got[i].n - (when & 1) : 0;
                memcpy(text, r[i].prompt, (size_t)r[i].n_prompt * sizeof *text);
                memcpy(text + r[i].n_prompt, got[i].id, (size_t)said * sizeof *text);
                again.prompt = text;
                again.n_prompt = r[i].n_prompt + said;
                text[again.n_prompt++] = 77;
                struct answer warm, cold;
                answer_warm(b.q[i], &again, &warm);
                answer_cold(b.q[i], &again, &cold);
                assert_same_answer(&cold, &warm);
                assert_memory_equal(got[i].id, want[i].id, (size_t)got[i].n * sizeof *got[i].id);
            }
        }
}

/* One of three fails; the others go on as if nothing had been. */
static void test_broken_neighbour(void **state)
{
    (void)state;
    struct answer want[3], got[3];
    for (int i = 0; i < 3; i++) {
        struct gen_request r = request(20 + i, 14);
        r.depth = i == 1 ? 0 : 3;
        r.ignore_eos = true;
        answer_cold(b.q[i], &r, &want[i]);
        gen_forget(b.q[i]);
        got[i] = (struct answer){0};
        assert_int_equal(gen_start(b.q[i], &r, on_token, &got[i], &e), 0);
        assert_int_equal(gen_prefill(b.q[i], 0, NULL, &e), 0);
    }
    struct instance none = b.in; // as one whose logits are all padding
    none.n_valid = 0;
    b.q[1]->in = &none;
    e = (struct err){0};
    assert_int_equal(gen_round(b.q, 3, &e), ERR_NUMERIC);
    b.q[1]->in = &b.in;
    assert_int_equal(gen_stop_reason(b.q[1]), STOP_CANCELLED);
    struct gen *rest[2] = {b.q[0], b.q[2]};
    for (int n; (n = (gen_stop_reason(rest[0]) == STOP_NONE) + (gen_stop_reason(rest[1]) == STOP_NONE)) > 0;)
        assert_int_equal(gen_round(n == 2 || gen_stop_reason(rest[0]) == STOP_NONE ? rest : rest + 1, n, &e), 0);
    for (int i = 0; i < 3; i += 2) {
        finish(b.q[i], &got[i]);
        assert_same_answer(&want[i], &got[i]);
    }
}

/* Two answers over so little memory that drafts meet its end before tokens do: no text changes, and none ends
 * before the last page is full. */
static void test_little_memory(void **state)
{
    (void)state;
    struct bench s;
    assert_true(bench_open(&s, 1, 2, 64, 64));
    struct answer want, got;
    for (int depth = 0; depth <= 8; depth += 4)
        for (int start = 40; start < 44; start++) {
            int32_t text[64];
            memcpy(text, prompt[0], 22 * sizeof *text);
            memcpy(text + 22, prompt[1], 22 * sizeof *text);
            struct gen_request r = request(0, 0);
            r.prompt = text;
            r.n_prompt = start;
            r.depth = depth;
            r.ignore_eos = true;
            for (int i = 0; i < 2; i++) {
                answer_cold(s.q[i], &r, &got);
                assert_int_equal(got.why, STOP_CONTEXT);
                r.max_tokens = 64 - start;
                r.depth = 0;
                answer_cold(b.q[0], &r, &want);
                assert_memory_equal(got.id, want.id, (size_t)want.n * sizeof *want.id);
                r.max_tokens = 0;
                r.depth = depth;
            }
        }
    bench_close(&s);
}

/* No page is left beyond the one the answer writes to: drafts that would cross its border are given up, the
 * answer goes on to the very border, and past it once there is memory again. */
static void test_memory_ends(void **state)
{
    (void)state;
    for (int depth = 0; depth <= 8; depth += 4)
        for (int with_copy = 0; with_copy < 2; with_copy++) {
            struct bench s;
            struct answer want, got = {0};
            struct row rows[128];
            struct out out;
            int32_t text[55];
            int hog[3], rc = 0;
            memcpy(text, prompt[0], 30 * sizeof *text);
            memcpy(text + 30, prompt[with_copy ? 0 : 1], 25 * sizeof *text);
            struct gen_request r = request(0, 24);
            r.prompt = text;
            r.n_prompt = 55;
            r.ignore_eos = true;
            answer_cold(b.q[0], &r, &want);
            r.depth = depth;
            r.use_mtp = !with_copy;
            r.use_copy = with_copy;
            assert_true(bench_open(&s, 1, 3, 128, 128));
            gen_free(s.q[1]);
            gen_free(s.q[2]);
            s.n = 1;
            assert_int_equal(gen_start(s.q[0], &r, on_token, &got, &e), 0);
            assert_int_equal(gen_prefill(s.q[0], 0, NULL, &e), 0);
            assert_int_equal(gen_round(s.q, 1, &e), 0); // has a page of its own now
            for (int h = 0; h < 3; h++) {
                hog[h] = seq_new(s.g);
                for (int i = 0; i < 128; i++)
                    rows[i] = (struct row){hog[h], 1, ROW_FINAL};
                int n = engine_pages_free(s.g) * PAGE_TOKENS;
                n = n > 128 ? 128 : n;
                if (n && got.n + 55 <= 64)
                    assert_int_equal(engine_step(s.g, rows, n, &out, &e), 0);
            }
            while (!rc && !gen_stop_reason(s.q[0])) {
                e = (struct err){0};
                rc = gen_round(s.q, 1, &e);
            }
            if (rc) { // unless the first round's drafts had passed the border
                assert_int_equal(rc, ERR_NOMEM);
                assert_int_equal(got.n + 55, 65);
                seq_free(s.g, hog[1]);
            }
            while (!gen_stop_reason(s.q[0]))
                assert_int_equal(gen_round(s.q, 1, &e), 0);
            finish(s.q[0], &got);
            assert_same_answer(&want, &got);
            bench_close(&s);
        }
}

/* 62 answers at once: all of them get drafts, and the text they would have alone. */
static void test_many_answers(void **state)
{
    (void)state;
    enum { N = 62, TOKENS = 48 };
    static struct answer got[N];
    struct bench s;
    struct answer want;
    assert_true(bench_open(&s, 1, N, N * 128, 128));
    for (int i = 0; i < N; i++) {
        struct gen_request r = request(i % 8, TOKENS);
        r.n_prompt = 8;
        r.depth = 1;
        r.use_copy = false;
        r.ignore_eos = true;
        got[i] = (struct answer){0};
        assert_int_equal(gen_start(s.q[i], &r, on_token, &got[i], &e), 0);
        assert_int_equal(gen_prefill(s.q[i], 0, NULL, &e), 0);
    }
    for (;;) {
        struct gen *live[N];
        int n = 0;
        for (int i = 0; i < N; i++)
            if (gen_stop_reason(s.q[i]) == STOP_NONE)
                live[n++] = s.q[i];
        if (!n)
            break;
        assert_int_equal(gen_round(live, n, &e), 0);
    }
    for (int i = 0; i < N; i++) {
        finish(s.q[i], &got[i]);
        assert_true(got[i].st.drafted_by[DRAFTER_MTP] >= TOKENS / 2 - 2);
        if (i >= 8) {
            assert_same_answer(&got[i % 8], &got[i]);
            continue;
        }
        struct gen_request r = request(i, TOKENS);
        r.n_prompt = 8;
        r.ignore_eos = true;
        answer_cold(b.q[0], &r, &want);
        assert_same_answer(&want, &got[i]);
    }
    bench_close(&s);
}

/* The smallest engine: steps of 64 rows, a prompt of several steps. */
static void test_few_rows(void **state)
{
    (void)state;
    struct bench s;
    struct answer want, got;
    int32_t text[200];
    for (int i = 0; i < 200; i++)
        text[i] = prompt[i / 20][i % 10];
    struct gen_request r = request(0, 12);
    r.prompt = text;
    r.n_prompt = 200;
    answer_cold(b.q[0], &r, &want);
    assert_true(bench_open(&s, 1, 1, 512, 1));
    assert_int_equal(engine_max_rows(s.g), 64);
    r.depth = 4;
    answer_cold(s.q[0], &r, &got);
    assert_same_answer(&want, &got);
    bench_close(&s);
}

/* ---- the law ------------------------------------------------------------------------------------------------------ */

enum { K = 3, LAW_TOKENS = 4, CELLS = 81, RUNS = 800 }; // top_k leaves 3 tokens a position: 81 texts

/* Probabilities of all texts of LAW_TOKENS tokens, from the plain forward pass and the plain sampler. */
static void enumerate(int seq, const struct sampling *set, struct sampler *s, int32_t *path, int depth, double p, int32_t (*text)[LAW_TOKENS],
                      double *prob, int *n, int32_t last)
{
    struct row row = {seq, last, ROW_FINAL | WANT_LOGITS};
    struct out out;
    struct dist d;
    dist_init(&d, b.in.m->n_vocab);
    assert_int_equal(engine_step(b.g, &row, 1, &out, &e), 0);
    seq_commit(b.g, seq, 1);
    assert_int_equal(dist_build(s, &d, out.logits, b.in.n_valid, set, NULL), 0);
    for (int i = 0; i < d.n; i++) {
        path[depth] = d.id[i];
        if (depth + 1 == LAW_TOKENS) {
            memcpy(text[*n], path, sizeof *text);
            prob[(*n)++] = p * d.p[i];
            continue;
        }
        int branch = seq_fork(b.g, seq);
        assert_true(branch >= 0);
        enumerate(branch, set, s, path, depth + 1, p * d.p[i], text, prob, n, d.id[i]);
        seq_free(b.g, branch);
    }
    dist_free(&d);
}

static void test_exact_law(void **state)
{
    (void)state;
    struct sampling set = {.temperature = 2, .top_k = K, .top_p = 1, .repetition_penalty = 1};
    int32_t text[CELLS][LAW_TOKENS], path[LAW_TOKENS];
    double prob[CELLS];
    int64_t seen[CELLS] = {0};
    int n = 0, kept = 0;
    struct sampler *s = sampler_new(b.in.m->n_vocab);
    for (int i = 0; i < 3; i++) // the enumeration needs the sequences of two answers
        gen_free(b.q[i]);
    int seq = seq_new(b.g);
    struct row first = {seq, prompt[33][0], ROW_FINAL};
    struct out out;
    assert_int_equal(engine_step(b.g, &first, 1, &out, &e), 0);
    seq_commit(b.g, seq, 1);
    enumerate(seq, &set, s, path, 0, 1, text, prob, &n, prompt[33][1]);
    assert_int_equal(n, CELLS);
    seq_free(b.g, seq);
    for (int i = 0; i < 3; i++)
        assert_int_equal(gen_new(&b.q[i], b.g, &b.in, &e), 0);
    for (int run = 0; run < RUNS; run++) {
        struct answer got;
        struct gen_request r = request(33, LAW_TOKENS);
        r.n_prompt = 2;
        r.sampling = set;
        r.acceptance = ACCEPT_EXACT;
        r.depth = 3;
        r.use_copy = false;
        r.want_hash = false;
        r.ignore_eos = true;
        r.seed = 50000 + (uint64_t)run;
        answer_cold(b.q[0], &r, &got);
        kept += got.drafted;
        int cell = 0;
        while (cell < n && memcmp(text[cell], got.id, sizeof *text))
            cell++;
        assert_in_range(cell, 0, n - 1);
        seen[cell]++;
    }
    struct gtest g = stats_gtest(seen, prob, n, 5);
    assert_true(kept > RUNS / 4); // drafts were accepted
    if (g.p < 1e-3)
        print_error("G %.1f, %d degrees of freedom, p %.2g\n", g.g, g.df, g.p);
    assert_true(g.p >= 1e-3);
    sampler_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_broken_head),  cmocka_unit_test(test_broken_trunk), cmocka_unit_test(test_broken_neighbour),
        cmocka_unit_test(test_little_memory), cmocka_unit_test(test_memory_ends), cmocka_unit_test(test_many_answers), cmocka_unit_test(test_few_rows),
        cmocka_unit_test(test_exact_law),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
