/* What strangers' text may do to a terminal or a log: nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/rng.h"
#include "base/utf8.h"

static void expect(const char *in, bool keep_lines, const char *out)
{
    char s[256];
    strcpy(s, in);
    size_t n = utf8_clean(s, strlen(s), keep_lines);
    assert_string_equal(s, out);
    assert_int_equal(n, strlen(out));
}

static void test_clean(void **state)
{
    (void)state;
    expect("", false, "");
    expect("plain, \xC3\xA9, \xE4\xB8\xAD, \xF0\x9F\x99\x82", false, "plain, \xC3\xA9, \xE4\xB8\xAD, \xF0\x9F\x99\x82");
    expect("\033[31mred\033[0m\a\b\x7F", false, "?[31mred?[0m???");
    expect("a\nb\r\nc\td", false, "a b  c d");
    expect("a\nb\r\nc\td", true, "a\nb \nc\td");
    expect("\xC2\x9B 31m", false, "? 31m");                                 // C1's one-character escape
    expect("\xE2\x80\xAE" "txt\xE2\x81\xA6 \xE2\x80\xA8", false, "?txt? ?"); // right-to-left, isolate, line separator
    expect("bad \xFF\xC0\xAF \xED\xA0\x80 end", false, "bad ??? ??? end");  // no UTF-8, overlong, a surrogate
    expect("cut \xF0\x9F\x99", false, "cut ");
}

/* Of any bytes: valid UTF-8 without controls remains, no longer than before, and cleaning it again changes nothing. */
static void test_clean_any(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 20000; i++) {
        const uint32_t key[2] = {1, 2};
        uint32_t bits[8];
        char s[33], again[33];
        for (uint32_t j = 0; j < 2; j++)
            philox4x32(key, (uint32_t[4]){i, j}, bits + 4 * j);
        size_t n = i % 32;
        memcpy(s, bits, n);
        size_t m = utf8_clean(s, n, false);
        assert_true(m <= n && strlen(s) == m);
        memcpy(again, s, m + 1);
        assert_int_equal(utf8_clean(again, m, false), m);
        assert_memory_equal(again, s, m + 1);
        for (size_t j = 0; j < m; j++)
            assert_true((uint8_t)s[j] >= 0x20 && s[j] != 0x7F);
    }
}

static void test_sentences(void **state)
{
    (void)state;
    struct err e = {0};
    err_set(&e, ERR_FORMAT, "%s: a \033]0;title\a model", "dir\nname");
    assert_string_equal(e.msg, "dir name: a ?]0;title? model");
    err_prefix(&e, "\033[2J%s", "config");
    assert_string_equal(e.msg, "?[2Jconfig: dir name: a ?]0;title? model");

    struct err full = {0}; // cut at a whole character
    char longer[2 * sizeof full.msg];
    for (size_t i = 0; i + 3 < sizeof longer; i += 3)
        memcpy(longer + i, "\xE4\xB8\xAD", 4);
    err_set(&full, ERR_FORMAT, "x%s", longer);
    size_t n = strlen(full.msg);
    assert_int_equal((n - 1) % 3, 0);
    assert_true(n > sizeof full.msg - 5);
    for (int i = 0; i < 3; i++) {
        err_prefix(&full, "%.*s", i + 1, "yyy");
        assert_memory_equal(full.msg + strlen(full.msg) - 3, "\xE4\xB8\xAD", 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_clean), cmocka_unit_test(test_clean_any), cmocka_unit_test(test_sentences)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
