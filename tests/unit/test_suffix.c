/* The copy drafter's matcher against a search through all of the text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "infer/suffix.h"

static uint32_t test_counter;
static uint32_t rand_below(uint32_t n)
{
    uint32_t key[2] = {17, 3}, ctr[4] = {test_counter++, 0, 0, 0}, out[4];
    philox4x32(key, ctr, out);
    return out[0] % n;
}

/* The definition: of the SUFFIX_WALK last earlier occurrences of the last 6-gram (of the last 3-gram if
 * there is none) the longest match, the most recent among equals. */
static struct suffix_match search(const int32_t *tok, int n)
{
    struct suffix_match best = {0, 0};
    for (int gram = 6; gram >= 3 && !best.len; gram -= 3) {
        int seen = 0;
        for (int end = n - 1; end >= gram && seen < SUFFIX_WALK; end--) {
            int len = 0;
            while (len < end && len < SUFFIX_MATCH_MAX && tok[end - 1 - len] == tok[n - 1 - len])
                len++;
            if (len < gram)
                continue;
            seen++;
            if (len > best.len)
                best = (struct suffix_match){len, end};
        }
    }
    return best;
}

static void add(struct suffix *s, int32_t tok) { assert_int_equal(suffix_append(s, tok), 0); }

enum { N = 1500 };

static void test_against_search(void **state)
{
    (void)state;
    for (uint32_t alphabet = 1; alphabet <= 40; alphabet += alphabet < 4 ? 1 : 9) {
        int32_t tok[N];
        struct suffix *s = suffix_new(N);
        test_counter = alphabet * 100000;
        for (int n = 0; n < N;) {
            int run = 1;
            if (n > 50 && rand_below(20) == 0) { // an echo of something earlier
                int from = (int)rand_below((uint32_t)n - 40);
                run = 1 + (int)rand_below(40);
                run = run < N - n ? run : N - n;
                memcpy(tok + n, tok + from, (size_t)run * sizeof *tok);
            } else {
                tok[n] = (int32_t)rand_below(alphabet);
            }
            for (; run > 0; run--) {
                add(s, tok[n++]);
                struct suffix_match got = suffix_query(s), want = search(tok, n);
                assert_int_equal(got.len, want.len);
                assert_int_equal(got.pos, want.pos);
            }
        }
        assert_int_equal(suffix_append(s, 1), ERR_LIMIT);
        assert_int_equal(suffix_len(s), N);
        suffix_free(s);
    }
}

/* Appending and cutting at random leaves what appending alone would. */
static void test_cut(void **state)
{
    int32_t tok[N];
    struct suffix *s = suffix_new(N);
    (void)state;
    test_counter = 7000000;
    int n = 0;
    for (int round = 0; round < 4000; round++) {
        int more = (int)rand_below(9), back = (int)rand_below(9);
        for (; more > 0 && n < N; more--) {
            tok[n] = (int32_t)rand_below(3);
            add(s, tok[n++]);
        }
        n = n > back ? n - back : 0;
        if (round % 500 == 499)
            n /= 3;
        suffix_cut(s, n);
        assert_int_equal(suffix_len(s), n);
        struct suffix_match got = suffix_query(s), want = search(tok, n);
        assert_int_equal(got.len, want.len);
        assert_int_equal(got.pos, want.pos);
    }
    suffix_cut(s, -1);
    assert_int_equal(suffix_len(s), 0);
    assert_int_equal(suffix_query(s).len, 0);
    suffix_free(s);
}

static void test_propose(void **state)
{
    struct suffix *s = suffix_new(1000);
    struct suffix_rule r = suffix_rule_default();
    int32_t out[64];
    (void)state;
    assert_int_equal(suffix_propose(s, &r, out, 64), 0);
    for (int i = 0; i < 100; i++)
        add(s, i);
    assert_int_equal(suffix_propose(s, &r, out, 64), 0);
    for (int i = 20; i < 27; i++)
        add(s, i);
    assert_int_equal(suffix_query(s).len, 7);
    assert_int_equal(suffix_propose(s, &r, out, 64), 0); // shorter than the rule trusts
    add(s, 27);
    assert_int_equal(suffix_propose(s, &r, out, 64), 16); // twice the match
    for (int i = 0; i < 16; i++)
        assert_int_equal(out[i], 28 + i);
    assert_int_equal(suffix_propose(s, &r, out, 5), 5);
    assert_int_equal(suffix_propose(s, &r, out, 0), 0);
    for (int i = 28; i < 60; i++)
        add(s, i);
    assert_int_equal(suffix_propose(s, &r, out, 64), 24);
    r.min_match = 50;
    assert_int_equal(suffix_propose(s, &r, out, 64), 0);
    // a period of four goes on as a period
    r = suffix_rule_default();
    suffix_cut(s, 0);
    for (int i = 0; i < 20; i++)
        add(s, i % 4);
    int n = suffix_propose(s, &r, out, 64);
    assert_int_equal(n, 24);
    for (int i = 0; i < n; i++)
        assert_int_equal(out[i], i % 4);
    suffix_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_search),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_propose),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
