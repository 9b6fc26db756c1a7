/* text/json.h: what is accepted, what is refused and with which words, numbers, writing, limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/json.h"

static struct arena arena;

static struct json *parse_n(const char *s, size_t n)
{
    struct json *v = NULL;
    struct err e = {0};
    char *exact = malloc(n ? n : 1); // so that reading past the end is seen
    memcpy(exact, s, n);
    int rc = json_parse(&v, &arena, exact, n, "test", &e);
    if (rc)
        fail_msg("%.60s: %s", s, e.msg);
    free(exact); // the tree must not point into the text
    return v;
}
static struct json *parse(const char *s) { return parse_n(s, strlen(s)); }

static void refuse_n(const char *s, size_t n, const char *words)
{
    struct json *v = NULL;
    struct err e = {0};
    char *exact = malloc(n ? n : 1);
    memcpy(exact, s, n);
    assert_true(json_parse(&v, &arena, exact, n, "test", &e) < 0);
    free(exact);
    assert_true(e.code < 0);
    if (!strstr(e.msg, words))
        fail_msg("expected \"%s\" in: %s", words, e.msg);
    assert_null(strchr(e.msg, '\n'));
}
static void refuse(const char *s, const char *words) { refuse_n(s, strlen(s), words); }

static void check_text(const char *json, const char *want, size_t n)
{
    struct json *v = parse(json);
    assert_int_equal(v->type, JSON_STRING);
    assert_int_equal(v->n, n);
    assert_memory_equal(v->s, want, n + 1);
}

static void round_trip(const char *s, const char *want)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    json_write(&b, parse(s));
    assert_string_equal(buf_cstr(&b), want);
    buf_free(&b);
}

static void test_values(void **state)
{
    (void)state;
    struct json *v = parse(" {\"a\" : [1, 2.50, -3e+2, true, false, null, \"x\"], \"b\":{}, \"\":[]}\n");
    assert_int_equal(v->n, 3);
    const struct json *a = json_get(v, "a");
    assert_int_equal(a->n, 7);
    assert_string_equal(json_at(a, 1)->s, "2.50");
    assert_true(json_num(json_at(a, 2), 0) == -300);
    assert_true(json_bool(json_at(a, 3), false));
    assert_false(json_bool(json_at(a, 4), true));
    assert_true(json_is(json_at(a, 5), JSON_NULL));
    assert_string_equal(json_str(json_at(a, 6), ""), "x");
    assert_null(json_at(a, 7));
    assert_true(json_is(json_get(v, "b"), JSON_OBJECT));
    assert_true(json_is(json_get(v, ""), JSON_ARRAY));
    assert_null(json_get(v, "c"));
    assert_null(json_get(json_get(json_get(v, "c"), "d"), "e"));
    assert_string_equal(json_str(a, "dflt"), "dflt");
    assert_true(json_num(NULL, 7) == 7);
    round_trip("{\"a\" : [1.0, -0, 1E5],\"b\":{\"c\":\"\\u00e9\\n\"}}",
               "{\"a\":[1.0,-0,1E5],\"b\":{\"c\":\"é\\n\"}}");
}

static void test_strings(void **state)
{
    (void)state;
    check_text("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8);
    check_text("\"\\u0041\\u00e9\\u20AC\\ud83d\\ude00\"", "A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", 10);
    check_text("\"a\\u0000b\"", "a\0b", 3);
    check_text("\"\\ud83d\"", "\xEF\xBF\xBD", 3);
    check_text("\"\\ude00x\"", "\xEF\xBF\xBDx", 4);
    check_text("\"\\ud83d\\u0041\"",
               "\xEF\xBF\xBD"
               "A",
               4);
    check_text("\"\\ud83d\\ud83d\\ude00\"", "\xEF\xBF\xBD\xF0\x9F\x98\x80", 7);
    check_text("\"\xFFz\"", "\xEF\xBF\xBDz", 4);
    check_text("\"\xE2\x82\"", "\xEF\xBF\xBD", 3);
    check_text("\"\xC0\x80\"", "\xEF\xBF\xBD\xEF\xBF\xBD", 6);
    check_text("\"\xED\xA0\x80\"", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 9);
    check_text("\"\x7F\"", "\x7F", 1);
    refuse("\"\\x\"", "unknown escape");
    refuse("\"\\u12\"", "cut");
    refuse("\"\\u12zz\"", "hexadecimal");
    refuse("\"\\u12", "without an end");
    refuse("\"abc", "without an end");
    refuse("\"abc\\\"", "without an end");
    refuse("\"abc\\", "without an end");
    refuse("\"a\nb\"", "control character");
    refuse_n("\"a\0b\"", 5, "control character");
    refuse_n("\"\\\0\"", 4, "unknown escape");
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      " ",
                                      "{",
                                      "[",
                                      "[1,]",
                                      "{\"a\":1,}",
                                      "{\"a\"}",
                                      "{\"a\":}",
                                      "{a:1}",
                                      "[1 2]",
                                      "nul",
                                      "nulll",
                                      "True",
                                      "NaN",
                                      "Infinity",
                                      "-",
                                      "+1",
                                      "01",
                                      "-01",
                                      "1.",
                                      ".5",
                                      "1e",
                                      "1e+",
                                      "0x10",
                                      "1 1",
                                      "]",
                                      "{]",
                                      "[}",
                                      "\xEF\xBB\xBF{}",
                                      "{\"a\":1 \"b\":2}",
                                      "//x\n1",
                                      "'a'",
                                      "[1,,2]"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refuse(bad[i], "test: bad JSON at byte");
    refuse("[1,\n x]", "at byte 5");
    refuse("{\"k\":1,\"j\":2,\"k\":3}", "\"k\" is listed twice");
    refuse("{\"\\u006b\":1,\"k\":3}", "\"k\" is listed twice");
}

static void test_large_object(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 1 << 22);
    buf_chr(&b, '{');
    for (int i = 0; i < 50000; i++)
        buf_fmt(&b, "\"key%d\":%d,", i, i);
    buf_str(&b, "\"last\":0}");
    struct json *v = parse_n(b.p, b.n);
    assert_int_equal(v->n, 50001);
    b.n -= strlen("\"last\":0}");
    buf_str(&b, "\"key31234\":0}");
    refuse_n(b.p, b.n, "\"key31234\" is listed twice");
    buf_free(&b);
}

static void test_limits(void **state)
{
    (void)state;
    char deep[2 * JSON_MAX_DEPTH + 4];
    memset(deep, '[', JSON_MAX_DEPTH);
    memset(deep + JSON_MAX_DEPTH, ']', JSON_MAX_DEPTH);
    parse_n(deep, 2 * JSON_MAX_DEPTH);
    memset(deep, '[', JSON_MAX_DEPTH + 1);
    memset(deep + JSON_MAX_DEPTH + 1, ']', JSON_MAX_DEPTH + 1);
    refuse_n(deep, 2 * JSON_MAX_DEPTH + 2, "nested too deeply");
    struct arena small = {.max_bytes = 200};
    struct json *v;
    struct err e = {0};
    assert_int_equal(json_parse(&v, &small, "[1,2,3,4,5]", 11, "test", &e), ERR_LIMIT);
    assert_non_null(strstr(e.msg, "200 bytes"));
    arena_free(&small);
}

static void check_int(const char *s, bool ok, int64_t want)
{
    int64_t v = 77;
    assert_int_equal(json_int(parse(s), &v), ok);
    assert_true(v == (ok ? want : 77));
}

static void test_numbers(void **state)
{
    (void)state;
    check_int("0", true, 0);
    check_int("-0", true, 0);
    check_int("5.0", true, 5);
    check_int("5e2", true, 500);
    check_int("5.5", false, 0);
    check_int("1e400", false, 0);
    check_int("\"5\"", false, 0);
    check_int("9223372036854775807", true, INT64_MAX);
    check_int("9223372036854775808", false, 0);
    check_int("-9223372036854775808", true, INT64_MIN);
    check_int("-9223372036854775809", false, 0);
    check_int("123456789012345678901234567890", false, 0);
    static const double values[] = {
        0, 1, -1, 0.1, 1e-6, 1e22, 1.0 / 3, 5e-324, 1.7976931348623157e308, 123456789.125, 1e7};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char s[32];
        json_shortest(values[i], s);
        assert_true(strtod(s, NULL) == values[i]);
    }
    struct buf b;
    buf_init(&b, 100);
    json_write_double(&b, 0.1);
    buf_chr(&b, ' ');
    json_write_double(&b, NAN);
    buf_chr(&b, ' ');
    json_write_double(&b, -INFINITY);
    assert_string_equal(buf_cstr(&b), "0.1 null null");
    buf_free(&b);
}

static void test_writing(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 1000);
    static const char s[] = "a\"\\\b\f\n\r\t\x01\x1f\x7f\xC3\xA9\xFF\xE2\x82";
    json_write_str(&b, s, sizeof s - 1);
    assert_string_equal(buf_cstr(&b),
                        "\"a\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\xC3\xA9\xEF\xBF\xBD\xEF\xBF\xBD\"");
    buf_clear(&b);
    json_write_str(&b, "\0x", 2);
    assert_string_equal(buf_cstr(&b), "\"\\u0000x\"");
    buf_free(&b);
}

static int teardown(void **state)
{
    (void)state;
    arena_free(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_values, teardown),
        cmocka_unit_test_teardown(test_strings, teardown),
        cmocka_unit_test_teardown(test_refusals, teardown),
        cmocka_unit_test_teardown(test_large_object, teardown),
        cmocka_unit_test_teardown(test_limits, teardown),
        cmocka_unit_test_teardown(test_numbers, teardown),
        cmocka_unit_test_teardown(test_writing, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
