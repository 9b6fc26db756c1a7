/* Names, addresses and answers of hubs: net/url.h, net/header.h, pull/hub.h, pull/choose.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/url.h"
#include "pull/choose.h"
#include "pull/store.h"

static void origins(void **state)
{
    static const char *const good[][2] = {{"HTTPS://Hub.Example:443/a?b", "https://hub.example"},
                                          {"http://127.0.0.1:8000", "http://127.0.0.1:8000"},
                                          {"http://[::1]:80/x", "http://[::1]"}};
    static const char *const bad[] = {"", "hub.example", "ftp://hub.example/", "file:///etc/passwd", "https://", "https://user:secret@hub.example/"};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char *origin;
        assert_int_equal(url_origin(good[i][0], &origin, NULL), 0);
        assert_string_equal(origin, good[i][1]);
        free(origin);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *origin;
        struct err e = {0};
        assert_int_equal(url_origin(bad[i], &origin, &e), ERR_ARG);
        assert_null(origin);
        assert_null(strstr(e.msg, "secret"));
    }
}

static void redirects(void **state)
{
    static const char *const good[][3] = {{"https://a.example/x/y?q", "z", "https://a.example/x/z"},
                                          {"https://a.example/x/y", "/z?s=1", "https://a.example/z?s=1"},
                                          {"https://a.example/x", "//b.example/z", "https://b.example/z"},
                                          {"http://a.example/x", "https://b.example/", "https://b.example/"}};
    static const char *const bad[][2] = {{"https://a.example/", "http://a.example/"}, {"https://a.example/", "ftp://b.example/"},
                                         {"https://a.example/", "https://user@b.example/"}};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char *to;
        assert_int_equal(url_resolve(good[i][0], good[i][1], &to, NULL), 0);
        assert_string_equal(to, good[i][2]);
        free(to);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *to;
        assert_int_equal(url_resolve(bad[i][0], bad[i][1], &to, NULL), ERR_FORMAT);
        assert_null(to);
    }
}

/* Where a token may travel. */
static void private_addresses(void **state)
{
    (void)state;
    assert_true(url_is_private("https://hub.example/"));
    assert_true(url_is_private("http://localhost:80/"));
    assert_true(url_is_private("http://127.0.0.1/"));
    assert_true(url_is_private("http://[::1]/"));
    assert_false(url_is_private("http://hub.example/"));
    assert_false(url_is_private("http://127.0.0.1.hub.example/"));
    assert_false(url_is_private("http://10.0.0.1/"));
}

static struct http_head head_of(const char *text)
{
    struct http_head h;
    http_head_init(&h);
    for (const char *s = text; *s;) {
        size_t n = strcspn(s, "\n");
        http_head_line(&h, s, n + (s[n] == '\n'), 1000);
        s += n + (s[n] == '\n');
    }
    return h;
}

static void heads(void **state)
{
    (void)state;
    struct http_head h = head_of("HTTP/1.1 200 Connection established\r\nETag: \"proxy\"\r\n\r\nHTTP/1.1 206 Partial Content\r\n"
                                 "content-range: bytes 5-9/10\r\nContent-Length: 5\r\netag: W/\"x\"\r\nX-Linked-Etag: \"y\"\r\n"
                                 "Link: <https://a/1>; rel=\"prev\", <https://a/2>; rel=\"next\"\r\n");
    assert_int_equal(h.status, 206);
    assert_true(h.first == 5 && h.last == 9 && h.total == 10 && h.length == 5);
    assert_string_equal(h.etag, "x");
    assert_string_equal(h.linked_etag, "y");
    assert_string_equal(h.next, "https://a/2");
    static const char *const no_range[] = {"bytes 9-5/10", "bytes 5-9/9", "bytes -9/10", "bytes 5-9", "bytes 5-99999999999999999999/*", "items 5-9/10"};
    for (size_t i = 0; i < sizeof no_range / sizeof *no_range; i++) {
        char line[100];
        snprintf(line, sizeof line, "Content-Range: %s\r\n", no_range[i]);
        h = head_of(line);
        assert_true(h.first == -1 && h.last == -1 && h.total == -1);
    }
    h = head_of("Content-Range: bytes */10\r\n");
    assert_true(h.first == -1 && h.total == 10);
    assert_int_equal(head_of("Retry-After: 30\r\n").retry_after_s, 30);
    assert_int_equal(head_of("Retry-After: Thu, 01 Jan 1970 00:17:10 GMT\r\n").retry_after_s, 30);
    assert_int_equal(head_of("Retry-After: Thu, 01 Jan 1970 00:00:10 GMT\r\n").retry_after_s, 0);
    assert_int_equal(head_of("Retry-After: soon\r\n").retry_after_s, -1);
    assert_int_equal(head_of("RateLimit: \"api\";r=0;t=17\r\n").retry_after_s, 17);
    assert_true(head_of("Content-Encoding: gzip\r\n").is_encoded);
    assert_false(head_of("Content-Encoding: identity\r\n").is_encoded);
    assert_string_equal(head_of("X-Error-Message: a\x1b[2J\r\n").error_message, "");
}

static void backoffs(void **state)
{
    (void)state;
    assert_int_equal(fetch_backoff_ms(1, -1), 250);
    assert_int_equal(fetch_backoff_ms(3, -1), 1000);
    assert_int_equal(fetch_backoff_ms(1000, -1), 30000);
    assert_int_equal(fetch_backoff_ms(1, 600), 600000);
    assert_int_equal(fetch_backoff_ms(1, 601), -1);
}

static void names(void **state)
{
    static const struct {
        const char *text, *repo, *revision, *set;
    } good[] = {{"hf:org/na.me_1-b", "org/na.me_1-b", "main", ""},       {"hf://org/name", "org/name", "main", ""},
                {"hf:org/name@refs/pr/1:Q8_0", "org/name", "refs/pr/1", "Q8_0"}, {"hf:org/name:UD-Q4_K_XL", "org/name", "main", "UD-Q4_K_XL"},
                {"https://huggingface.co/org/name", "org/name", "main", ""}, {"https://huggingface.co/org/name/tree/v1?x", "org/name", "v1", ""}};
    static const char *const bad[] = {"hf:", "hf:name", "hf:/name", "hf:org/", "hf:org/a/b", "hf:org/name@", "hf:org/name:", "hf:org/name@../x", "hf:.x/y"};
    static const char *const other[] = {"org/name", "https://huggingface.co/org/name/resolve/main/a.gguf", "https://example.org/org/name", ""};
    struct hub_name n;
    (void)state;
    unsetenv("HF_ENDPOINT");
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(hub_parse_name(good[i].text, &n, NULL), 0);
        assert_string_equal(n.repo, good[i].repo);
        assert_string_equal(n.revision, good[i].revision);
        assert_string_equal(n.set, good[i].set);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(hub_parse_name(bad[i], &n, NULL), ERR_ARG);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        assert_int_equal(hub_parse_name(other[i], &n, NULL), 1);
    assert_false(hub_is_repo_name("a/\0b", 4));
}

static void quantizations(void **state)
{
    static const char *const of[][2] = {{"M-Q4_K_M.gguf", "Q4_K_M"},          {"dir/M.q8_0.gguf", "q8_0"},     {"M-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"},
                                        {"M-IQ2_XXS-00002-of-00003.gguf", "IQ2_XXS"}, {"M-BF16.gguf", "BF16"}, {"M-MXFP4.gguf", "MXFP4"},
                                        {"M-TQ1_0.gguf", "TQ1_0"},            {"model.gguf", ""},              {"M-Q9_0.gguf", ""},
                                        {"Qwen3-8B.gguf", ""}};
    char set[100];
    int part, parts;
    size_t stem;
    (void)state;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        set[0] = 0;
        assert_int_equal(choose_quant(of[i][0], set, sizeof set), strlen(of[i][1]));
        assert_string_equal(set, of[i][1]);
    }
    assert_true(choose_part("a-00002-of-00003.gguf", &part, &parts, &stem));
    assert_true(part == 2 && parts == 3 && stem == 1);
    assert_false(choose_part("a-00004-of-00003.gguf", &part, &parts, &stem));
    assert_false(choose_part("-00002-of-00003.gguf", &part, &parts, &stem));
    assert_false(choose_part("a-0000x-of-00003.gguf", &part, &parts, &stem));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(origins), cmocka_unit_test(redirects), cmocka_unit_test(private_addresses), cmocka_unit_test(heads),
        cmocka_unit_test(backoffs), cmocka_unit_test(names), cmocka_unit_test(quantizations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
