/* The public header alone: what a program that embeds foresay sees. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "foresay.h"

struct text {
    char s[4096];
    size_t n;
    int calls, stop_after;
};

static int keep(void *ud, const char *s, size_t n)
{
    struct text *t = ud;
    assert_true(t->n + n < sizeof t->s);
    memcpy(t->s + t->n, s, n);
    t->n += n;
    t->s[t->n] = 0;
    return t->stop_after && ++t->calls >= t->stop_after;
}

static const char hello[] = "[{\"role\": \"user\", \"content\": \"Who are you?\"}]";

static void answers_do_not_depend_on_drafts(void **state)
{
    char err[512] = "";
    struct foresay *f = foresay_open("models/demo", NULL, err, sizeof err);
    (void)state;
    assert_non_null(f);
    assert_string_equal(foresay_head_note(f), "");
    struct text first = {0};
    for (int depth = 0; depth <= 4; depth++) {
        struct text t = {0};
        struct foresay_result r;
        struct foresay_request q = {.chat = hello, .max_tokens = 40, .fixed_depth = 1, .depth = depth, .has_seed = 1, .seed = 7,
                                    .settings = "{\"temperature\": 0.9}"};
        assert_int_equal(foresay_answer(f, &q, keep, &t, &r, err, sizeof err), 0);
        assert_true(t.n > 0);
        assert_int_equal(r.seed, 7);
        assert_true(depth ? r.drafted > 0 : r.drafted == 0);
        if (!depth)
            first = t;
        assert_string_equal(t.s, first.s);
    }
    foresay_close(f);
}

static void a_callback_stops_an_answer(void **state)
{
    char err[512];
    struct foresay_options o = {.threads = 1, .context = 512, .plain = 1};
    struct foresay *f = foresay_open("models/demo", &o, err, sizeof err);
    struct text t = {.stop_after = 3};
    struct foresay_result r;
    struct foresay_request q = {.text = "def main(", .max_tokens = 100, .settings = "{\"temperature\": 0}"};
    (void)state;
    assert_non_null(f);
    assert_int_equal(foresay_answer(f, &q, keep, &t, &r, err, sizeof err), 0);
    assert_int_equal(t.calls, 3);
    assert_string_equal(r.stop, "cancelled");
    foresay_close(f);
}

static void refusals_are_sentences(void **state)
{
    char err[512] = "";
    (void)state;
    assert_null(foresay_open("models/none", NULL, err, sizeof err));
    assert_non_null(strstr(err, "models/none"));
    struct foresay *f = foresay_open("models/demo", NULL, err, sizeof err);
    const struct foresay_request bad[] = {
        {.chat = NULL}, {.chat = hello, .text = "both"}, {.chat = "not JSON"}, {.chat = hello, .settings = "{\"top_p\": 7}"},
        {.chat = hello, .max_tokens = -1}, {.chat = hello, .fixed_depth = 1, .depth = 9},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err[0] = 0;
        assert_int_not_equal(foresay_answer(f, &bad[i], NULL, NULL, NULL, err, sizeof err), 0);
        assert_true(strlen(err) > 10);
    }
    foresay_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_do_not_depend_on_drafts),
        cmocka_unit_test(a_callback_stops_an_answer),
        cmocka_unit_test(refusals_are_sentences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
