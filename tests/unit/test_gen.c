/* Generation on the demo model: a greedy or seeded answer is the same whatever drafts, threads, company or kept
 * prefixes had to do with it; its end falls exactly where it must. Runs from the repository's root. */
#include "gen_fixture.h"

#include <stdio.h>

#include "base/rng.h"

static struct bench one, two; // one and two threads
enum { DRAFT_MTP = 1, DRAFT_COPY = 2 };
static const int depths[] = {1, 2, 3, 5, 8, -1};

static int open_all(void **state)
{
    (void)state;
    return read_prompts() && bench_open(&one, 1, 3, 3072, 128) && bench_open(&two, 2, 1, 1024, 0) ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    bench_close(&one);
    bench_close(&two);
    return 0;
}

static void set_drafters(struct gen_request *r, int depth, int with)
{
    r->depth = depth;
    r->use_mtp = with & DRAFT_MTP;
    r->use_copy = with & DRAFT_COPY;
}

static void test_greedy(void **state)
{
    (void)state;
    int64_t from[N_DRAFTERS] = {0};
    for (int p = 0; p < PROMPTS; p += 17) {
        struct answer want, got;
        struct gen_request r = request(p, 36);
        r.ignore_eos = p == 17;
        set_drafters(&r, 0, 3);
        answer_cold(one.q[0], &r, &want);
        assert_int_equal(want.drafted, 0);
        assert_true(want.hash != 0);
        for (int d = 0; d < 6; d++)
            for (int with = 1; with <= 3; with++) {
                if (with != 1 + (d + p) % 3 && depths[d] != 8)
                    continue;
                set_drafters(&r, depths[d], with);
                answer_cold(one.q[0], &r, &got);
                assert_same_answer(&want, &got);
                for (int k = 0; k < N_DRAFTERS; k++)
                    from[k] += got.st.kept_from[k];
                int64_t total = 1; // the first token comes from the prompt
                for (int i = 0; i < COPY_MAX; i++) {
                    assert_true(got.st.accepted[i] <= got.st.proposed[i]);
                    assert_true(!i || got.st.proposed[i] <= got.st.accepted[i - 1]);
                    total += got.st.accepted[i];
                }
                assert_int_equal(total, 1 + got.drafted);
                assert_true(got.n <= 1 + got.drafted + got.st.rounds);
                if (with == 3 && d >= 4) {
                    answer_cold(two.q[0], &r, &got);
                    assert_same_answer(&want, &got);
                }
            }
    }
    assert_true(from[DRAFTER_MTP] > 100 && from[DRAFTER_COPY] > 10); // drafts did take part
}

/* Settings of sampling that take different ways through the sampler. */
static struct logit_bias biases[] = {{198, 2.5}, {2, -4}, {300, 1}, {4095, 9}, {9999, 50}};
static const struct sampling settings[] = {
    {.temperature = 0.7, .top_p = 1, .repetition_penalty = 1},
    {.temperature = 1, .top_p = 0.9, .top_k = 40, .repetition_penalty = 1},
    {.temperature = 1, .top_p = 1, .min_p = 0.05, .repetition_penalty = 1},
    {.temperature = 1.3, .top_p = 0.95, .repetition_penalty = 1.2, .presence_penalty = 0.4, .frequency_penalty = 0.2},
    {.temperature = 0.9, .top_p = 1, .repetition_penalty = 1, .bias = biases, .n_bias = 5},
    {.temperature = 0, .top_p = 1, .repetition_penalty = 1.3, .presence_penalty = 0.5, .bias = biases, .n_bias = 4},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

static void test_seeded(void **state)
{
    (void)state;
    int drafted = 0, others = 0;
    for (int s = 0; s < SETTINGS; s++)
        for (int p = 3 * s; p < PROMPTS; p += 45) {
            struct answer want, got;
            struct gen_request r = request(p, 24);
            r.sampling = settings[s];
            r.choice = (uint32_t)s;
            set_drafters(&r, 0, 3);
            answer_cold(one.q[0], &r, &want);
            for (int d = 0; d < 6; d++) {
                set_drafters(&r, depths[d], 1 + d % 3);
                answer_cold(one.q[0], &r, &got);
                assert_same_answer(&want, &got);
                drafted += got.drafted;
            }
            answer_cold(two.q[0], &r, &got);
            assert_same_answer(&want, &got);
            r.seed++; // another seed, another text
            answer_cold(one.q[0], &r, &got);
            others += got.n != want.n || memcmp(got.id, want.id, (size_t)got.n * sizeof *got.id);
        }
    assert_true(drafted > 100 && others >= SETTINGS / 2);
}

/* Three answers with different settings in one round, some ending before others, against each alone. */
static void test_company(void **state)
{
    (void)state;
    for (int t = 0; t < 4; t++) {
        struct answer want[3], got[3];
        struct gen_request r[3];
        for (int i = 0; i < 3; i++) {
            r[i] = request((7 * t + 21 * i) % PROMPTS, 12 + 9 * i);
            r[i].sampling = settings[(t + 2 * i) % SETTINGS];
            set_drafters(&r[i], 0, 3);
            answer_cold(one.q[i], &r[i], &want[i]);
            set_drafters(&r[i], t % 2 ? -1 : 2 + 3 * i, 1 + (t + i) % 3);
        }
        for (int i = 0; i < 3; i++) {
            got[i] = (struct answer){0};
            gen_forget(one.q[i]);
            assert_int_equal(gen_start(one.q[i], &r[i], on_token, &got[i], &e), 0);
            while (gen_prefill(one.q[i], 16, NULL, &e) == 1) {
            }
        }
        for (;;) {
            struct gen *live[3];
            int n = 0;
            for (int i = 0; i < 3; i++)
                if (gen_stop_reason(one.q[(i + t) % 3]) == STOP_NONE)
                    live[n++] = one.q[(i + t) % 3];
            if (!n)
                break;
            assert_int_equal(gen_round(live, n, &e), 0);
        }
        for (int i = 0; i < 3; i++) {
            finish(one.q[i], &got[i]);
            assert_same_answer(&want[i], &got[i]);
        }
    }
}

/* ---- ends ------------------------------------------------------------------------------------------------------------ */

static void test_eos(void **state)
{
    (void)state;
    static const int ends[] = {43, 44, 52, 63}; // end after some 13 tokens
    int in_draft = 0;
    for (int i = 0; i < 4; i++) {
        struct answer want, got;
        struct gen_request r = request(ends[i], 24);
        set_drafters(&r, 0, 3);
        answer_cold(one.q[0], &r, &want);
        assert_int_equal(want.why, STOP_EOS);
        assert_true(instance_is_eos(&one.in, want.id[want.n - 1]));
        assert_null(strstr(want.text, "<|im_end|>"));
        for (int d = 0; d < 6; d++) {
            set_drafters(&r, depths[d], 3);
            answer_cold(one.q[0], &r, &got);
            assert_same_answer(&want, &got);
            in_draft += got.last_draft > 0;
        }
        r.ignore_eos = true;
        answer_cold(one.q[0], &r, &got);
        assert_int_equal(got.why, STOP_MAX_TOKENS);
        assert_int_equal(got.n, 24);
        assert_memory_equal(got.id, want.id, (size_t)want.n * sizeof *want.id);
    }
    assert_true(in_draft > 0);
}

static void test_stop_strings(void **state)
{
    (void)state;
    for (int p = 2; p < PROMPTS; p += 25) {
        struct answer whole, got, plain;
        struct gen_request r = request(p, 40);
        set_drafters(&r, 0, 3);
        answer_cold(one.q[0], &r, &whole);
        for (int t = 0; t < 5; t++) {
            char word[3][32], *list[3] = {word[0], word[1], word[2]};
            size_t len = 1 + (size_t)t * 2, at = whole.n_text * (size_t)(t + 2) / 10;
            if (at + len > whole.n_text)
                continue;
            snprintf(word[0], sizeof word[0], "%.*s", (int)len, whole.text + at);
            snprintf(word[1], sizeof word[1], "%.*s#", (int)len, whole.text + at / 2); // begins, but never completes
            word[2][0] = 0; // an empty one means nothing
            size_t cut = (size_t)(strstr(whole.text, word[0]) - whole.text);
            r.stop = (struct stop_strings){list, 3};
            set_drafters(&r, 0, 3);
            answer_cold(one.q[0], &r, &plain);
            assert_int_equal(plain.why, STOP_STRING);
            assert_int_equal(plain.n_text, cut);
            assert_memory_equal(plain.text, whole.text, cut);
            for (int d = 2; d < 6; d += 2) {
                set_drafters(&r, depths[d], 3);
                answer_cold(one.q[0], &r, &got);
                assert_same_answer(&plain, &got);
            }
        }
        r.stop.n = 0;
    }
}

static void test_max_tokens(void **state)
{
    (void)state;
    struct answer whole, got;
    struct gen_request r = request(0, 40);
    set_drafters(&r, 0, 3);
    r.ignore_eos = true;
    answer_cold(one.q[0], &r, &whole);
    for (int max = 1; max <= 14; max += 1 + max / 5)
        for (int d = 2; d < 6; d += 2)
            for (int acceptance = 0; acceptance < 2; acceptance++) {
                r.max_tokens = max;
                r.acceptance = acceptance ? ACCEPT_EXACT : ACCEPT_SEEDED;
                r.sampling.temperature = acceptance ? 1 : 0;
                set_drafters(&r, depths[d], 3);
                answer_cold(one.q[0], &r, &got);
                assert_int_equal(got.n, max);
                assert_int_equal(got.why, STOP_MAX_TOKENS);
                if (!acceptance)
                    assert_memory_equal(got.id, whole.id, (size_t)max * sizeof *got.id);
            }
}

/* A context of one page, filled to its last token. */
static void test_context_limit(void **state)
{
    (void)state;
    struct bench small;
    struct answer want, got;
    assert_true(bench_open(&small, 1, 1, 1, 64));
    int max;
    int32_t text[64];
    gen_context(small.q[0], &max);
    assert_int_equal(max, 64);
    memcpy(text, prompt[0], 32 * sizeof *text);
    memcpy(text + 32, prompt[4], 32 * sizeof *text);
    for (int n = 30; n < 64; n += n < 60 ? 15 : 1) {
        struct gen_request r = request(0, 0);
        r.prompt = text;
        r.n_prompt = n;
        r.ignore_eos = true;
        r.max_tokens = 64 - n;
        set_drafters(&r, 0, 3);
        answer_cold(one.q[0], &r, &want);
        r.max_tokens = 0;
        for (int d = 1; d < 6; d += 2) {
            set_drafters(&r, depths[d], 3);
            answer_cold(small.q[0], &r, &got);
            assert_int_equal(got.why, STOP_CONTEXT);
            assert_int_equal(got.n, 64 - n);
            assert_memory_equal(got.id, want.id, (size_t)want.n * sizeof *want.id);
            assert_true(got.hash == want.hash);
        }
    }
    struct gen_request r = request(0, 5);
    r.prompt = text;
    r.n_prompt = 64;
    assert_int_equal(gen_start(small.q[0], &r, NULL, NULL, &e), ERR_LIMIT);
    bench_close(&small);
}

static void test_refused_requests(void **state)
{
    (void)state;
    struct answer a, b;
    struct gen_request r = request(1, 10);
    answer_cold(one.q[0], &r, &a);
    int32_t bad[3] = {5, 4096, 5};
    struct gen_request w = r;
    w.prompt = bad;
    for (int t = 0; t < 3; t++) {
        w.n_prompt = t ? 3 : 0;
        bad[1] = t == 1 ? 4096 : -1;
        e = (struct err){0};
        assert_int_equal(gen_start(one.q[0], &w, NULL, NULL, &e), ERR_ARG);
    }
    answer_warm(one.q[0], &r, &b);
    assert_same_answer(&a, &b);
}

/* ---- turns ----------------------------------------------------------------------------------------------------------- */

/* The next prompt repeats the last one and its answer, with a few tokens more. */
static int next_prompt(int32_t *to, const struct gen_request *r, const struct answer *a, int keep, int more)
{
    int n = r->n_prompt;
    memcpy(to, r->prompt, (size_t)n * sizeof *to);
    memcpy(to + n, a->id, (size_t)keep * sizeof *to);
    n += keep;
    for (int i = 0; i < more; i++)
        to[n++] = 100 + 3 * i;
    return n;
}

static void test_next_turn(void **state)
{
    (void)state;
    for (int with_depth = 0; with_depth < 3; with_depth++)
        for (int t = 0; t < 5; t++) {
            struct answer a, b, cold;
            int32_t next[PROMPT_MAX + OUT_MAX];
            struct gen_request r = request(11 * t, 12), n;
            set_drafters(&r, with_depth == 2 ? -1 : 4 * with_depth, 3);
            answer_cold(one.q[0], &r, &a);
            n = r;
            n.prompt = next;
            int keep = t == 0 ? a.n : t == 1 ? a.n - 1 : t == 2 ? a.n / 2 : 0, cached = r.n_prompt + keep;
            n.n_prompt = next_prompt(next, &r, &a, keep, t == 4 ? 1 : 5);
            if (t == 0) // the newest token was never read
                cached--;
            else if (t > 1) // part of the answer, or another one: back to the prompt's end
                cached = r.n_prompt;
            answer_warm(one.q[0], &n, &b);
            assert_int_equal(b.st.cached_tokens, cached);
            assert_int_equal(b.st.reread_at, t < 2 ? -1 : r.n_prompt + keep);
            answer_cold(one.q[1], &n, &cold);
            assert_same_answer(&cold, &b);
            next[1] = 50; // differs near the start: nothing to keep
            answer_warm(one.q[0], &n, &b);
            assert_int_equal(b.st.cached_tokens, 0);
            assert_int_equal(b.st.reread_at, 1);
            gen_forget(one.q[1]);
            answer_cold(one.q[1], &n, &cold);
            assert_same_answer(&cold, &b);
        }
}

/* Long conversations of changing settings, cut short at any place: while the prompt is read, in the middle of
 * an answer, or refused; always as a cold start. */
static void test_any_turns(void **state)
{
    (void)state;
    uint32_t key[2] = {11, 2};
    int32_t text[2][PROMPT_MAX + OUT_MAX];
    int n = 0;
    for (uint32_t turn = 0; turn < 24; turn++) {
        uint32_t ctr[4] = {turn, 0, 0, 0}, x[4], y[4];
        philox4x32(key, ctr, x);
        ctr[1] = 1;
        philox4x32(key, ctr, y);
        struct answer got = {0}, cold;
        struct gen_request r = request((int)(x[0] % PROMPTS), 1 + (int)(x[1] % 24));
        if (n && n < 200 && x[2] % 4) { // goes on, or back somewhat
            int back = x[2] % 4 == 1 ? (int)(x[3] % 30) : 0;
            n = n - back > 1 ? n - back : n;
            memcpy(text[turn & 1], text[~turn & 1], (size_t)n * sizeof **text);
            for (uint32_t i = 0; i < y[0] % 70; i++)
                text[turn & 1][n++] = (int32_t)((y[1] + i * i) % 4000);
        } else {
            n = r.n_prompt;
            memcpy(text[turn & 1], r.prompt, (size_t)n * sizeof **text);
        }
        r.prompt = text[turn & 1];
        r.n_prompt = n;
        r.sampling = settings[y[2] % SETTINGS];
        set_drafters(&r, (int)(y[3] % 6) - 1, 1 + (int)(y[3] / 8 % 3));
        assert_int_equal(gen_start(one.q[0], &r, on_token, &got, &e), 0);
        int chunks = 0, done, rc;
        do {
            int before = (int)gen_stats(one.q[0])->cached_tokens;
            rc = gen_prefill(one.q[0], 20, &done, &e);
            assert_true(rc >= 0 && done > before && done <= n);
            assert_true(done <= (int)gen_stats(one.q[0])->cached_tokens + 20 * (chunks + 1));
        } while (rc == 1 && (++chunks < 3 || x[1] & 256));
        int rounds = x[1] & 512 ? 3 : 1000;
        while (!rc && gen_stop_reason(one.q[0]) == STOP_NONE && rounds-- > 0)
            assert_int_equal(gen_round(one.q, 1, &e), 0);
        gen_cancel(one.q[0]);
        finish(one.q[0], &got);
        r.depth = 0;
        answer_cold(one.q[1], &r, &cold);
        assert_in_range(got.n, 0, cold.n);
        assert_memory_equal(got.id, cold.id, (size_t)got.n * sizeof *got.id);
        assert_memory_equal(got.text, cold.text, got.n_text);
        if (got.why != STOP_CANCELLED)
            assert_same_answer(&cold, &got);
        memcpy(text[turn & 1] + n, got.id, (size_t)got.n * sizeof *got.id);
        n += got.n;
    }
}

static void test_cancel(void **state)
{
    (void)state;
    for (int at = 0; at < 12; at += 3) {
        struct answer got = {0}, again, cold;
        struct gen_request r = request(5 + at, 30);
        atomic_int cancel = at == 0;
        set_drafters(&r, 3, 3);
        r.ignore_eos = true;
        got.cancel = &cancel;
        got.cancel_at = at;
        gen_forget(one.q[0]);
        assert_int_equal(gen_run(one.q[0], &r, on_token, &got, &cancel, &e), 0);
        finish(one.q[0], &got);
        assert_int_equal(got.why, STOP_CANCELLED);
        assert_in_range(got.n, at, at ? at + 4 : 0); // the round is finished
        answer_cold(one.q[1], &r, &cold);
        assert_memory_equal(got.id, cold.id, (size_t)got.n * sizeof *got.id);
        answer_warm(one.q[0], &r, &again);
        assert_same_answer(&cold, &again);
    }
}

/* ---- stop_find ------------------------------------------------------------------------------------------------------- */

static void check_find(char *a, char *b, const char *text, size_t from, int found, size_t where)
{
    char *list[2] = {a, b};
    struct stop_strings st = {list, b ? 2 : 1};
    size_t cut = 999, safe = 999;
    int which = -1;
    assert_int_equal(stop_find(&st, text, from, strlen(text), &cut, &safe, &which), found >= 0);
    if (found >= 0) {
        assert_int_equal(which, found);
        assert_int_equal(cut, where);
    } else {
        assert_int_equal(safe, where);
    }
}

static void test_stop_find(void **state)
{
    (void)state;
    char abc[] = "abc", aab[] = "aab", a[] = "a", empty[] = "", bcd[] = "bcd", c[] = "c";
    check_find(abc, NULL, "", 0, -1, 0);
    check_find(abc, NULL, "xyz", 0, -1, 3);
    check_find(abc, NULL, "xab", 0, -1, 1);
    check_find(abc, NULL, "xaba", 0, -1, 3);
    check_find(abc, NULL, "ab", 0, -1, 0);
    check_find(abc, NULL, "xabcx", 0, 0, 1);
    check_find(abc, NULL, "xabcabc", 0, 0, 1);
    check_find(abc, NULL, "abcabcx", 3, 0, 3);
    check_find(abc, NULL, "xxabc", 4, 0, 2); // began in what was known to be free of complete ones
    check_find(aab, NULL, "aaa", 0, -1, 1);
    check_find(aab, NULL, "aaab", 0, 0, 1);
    check_find(a, NULL, "xxa", 2, 0, 2);
    check_find(a, NULL, "a", 0, 0, 0);
    check_find(empty, NULL, "ab", 0, -1, 2);
    check_find(empty, abc, "zab", 0, -1, 1);
    check_find(bcd, abc, "xabcd", 0, 1, 1); // the earliest
    check_find(c, abc, "xabcd", 0, 1, 1);
    check_find(abc, bcd, "xxab", 0, -1, 2);
    check_find(abc, bcd, "xxabd", 0, -1, 5);
    check_find(bcd, abc, "xabc", 3, 1, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop_find),     cmocka_unit_test(test_greedy),           cmocka_unit_test(test_seeded),
        cmocka_unit_test(test_company),       cmocka_unit_test(test_eos),              cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_max_tokens),    cmocka_unit_test(test_context_limit),    cmocka_unit_test(test_refused_requests),
        cmocka_unit_test(test_next_turn),     cmocka_unit_test(test_any_turns),        cmocka_unit_test(test_cancel),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
