/* Laws of tokenizers that lose nothing, on random texts: what is encoded comes back, a stream's pieces are the whole, where
 * spans are cut doesn't matter, and a user's text never becomes a control token. Over bytes (the demo model) and over
 * characters with byte fallback. Run from the root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/utf8.h"
#include "token/tokenizer.h"

enum { ROUNDS = 3000, MAX_PARTS = 24 };

static const char *const paths[] = {"models/demo", "tests/golden/scores.gguf"};

static uint32_t state_of_rng = 1;
static uint32_t rnd(uint32_t n)
{
    state_of_rng = state_of_rng * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)state_of_rng * n >> 32);
}

/* Characters that NFC leaves as they are, and no U+2581, which is a space to tokenizers that write spaces so. */
static void random_text(struct buf *b)
{
    static const char *const parts[] = {"the", " ", "  ", "\n", "\t", "dog", "'s", "12", "...", "\xC3\xA9", "\xE6\x97\xA5", "\xF0\x9F\x98\x80",
                                        "<s>", "</s>", "<unk>", "<pad>", "<|im_start|>", "<|im_end|>", "<0x41>", "<", "|>", "\r\n"};
    static const uint32_t ranges[][2] = {{0, 0x300}, {0x400, 0x180}, {0x4E00, 0x5000}, {0xE000, 0x1900}, {0x1F300, 0x300}, {0x100000, 0xFFFE}};
    buf_clear(b);
    for (uint32_t i = rnd(MAX_PARTS); i; i--) {
        char c[4];
        uint32_t r = rnd(6);
        if (rnd(3))
            buf_str(b, parts[rnd(sizeof parts / sizeof *parts)]);
        else
            buf_add(b, c, (size_t)utf8_put((int32_t)(ranges[r][0] + rnd(ranges[r][1])), c));
    }
}

/* The pieces of a stream, and the whole at once. */
static void expect_back(const struct tokenizer *t, const struct ids *ids, const struct buf *want)
{
    struct buf joined, whole;
    struct detok d;
    buf_init(&joined, 1 << 24);
    buf_init(&whole, 1 << 24);
    detok_init(&d, t, false);
    for (size_t i = 0; i < ids->n; i++)
        detok_add(&d, ids->v[i], &joined);
    detok_flush(&d, &joined);
    detok_whole(t, ids->v, ids->n, false, &whole);
    assert_int_equal(joined.n, want->n);
    assert_memory_equal(buf_cstr(&joined), buf_cstr(want), want->n);
    assert_string_equal(buf_cstr(&whole), buf_cstr(&joined));
    buf_free(&joined);
    buf_free(&whole);
}

static void encode(const struct tokenizer *t, const char *s, size_t n, enum added mode, struct ids *ids)
{
    struct err e = {0};
    ids->n = 0;
    assert_int_equal(tokenizer_encode(t, s, n, mode, ids, &e), 0);
}

/* User text alone, and behind trusted text that has a control token. */
static void expect_no_control(const struct tokenizer *t, const struct buf *b, struct ids *ids)
{
    struct err e = {0};
    const char *own = tokenizer_find(t, "<|im_end|>") >= 0 ? "<|im_end|>" : "</s>";
    const struct span spans[] = {{own, strlen(own), TRUST_TPL, -1}, {buf_cstr(b), b->n, TRUST_USER, 0}};
    ids->n = 0;
    assert_int_equal(tokenizer_encode_spans(t, spans, 2, ids, &e), 0);
    assert_int_equal(ids->v[0], tokenizer_find(t, own));
    for (size_t i = 1; i < ids->n; i++)
        assert_false(tokenizer_is_special(t, ids->v[i]));
}

static void expect_cuts_leave_no_trace(const struct tokenizer *t, const struct buf *b, const struct ids *whole)
{
    struct err e = {0};
    struct ids ids = {0};
    size_t cut = rnd((uint32_t)b->n + 1);
    const struct span spans[] = {{buf_cstr(b), cut, TRUST_TPL, -1}, {buf_cstr(b) + cut, b->n - cut, TRUST_TPL, 3}};
    assert_int_equal(tokenizer_encode_spans(t, spans, 2, &ids, &e), 0);
    assert_int_equal(ids.n, whole->n);
    if (ids.n)
        assert_memory_equal(ids.v, whole->v, ids.n * sizeof *ids.v);
    ids_free(&ids);
}

static void test_laws(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof paths / sizeof *paths; k++) {
        struct tokenizer *t;
        struct err e = {0};
        struct ids ids = {0};
        struct buf b;
        buf_init(&b, 1 << 20);
        assert_int_equal(tokenizer_open(&t, paths[k], &e), 0);
        for (int i = 0; i < ROUNDS; i++) {
            random_text(&b);
            encode(t, buf_cstr(&b), b.n, ADDED_NONE, &ids);
            expect_back(t, &ids, &b);
            encode(t, buf_cstr(&b), b.n, ADDED_ALL, &ids);
            expect_cuts_leave_no_trace(t, &b, &ids);
            expect_no_control(t, &b, &ids);
        }
        buf_free(&b);
        ids_free(&ids);
        tokenizer_close(t);
    }
}

/* A text that is one piece of a million symbols: not quadratic. */
static void test_one_long_piece(void **state)
{
    (void)state;
    enum { N = 1000000 };
    for (size_t k = 0; k < sizeof paths / sizeof *paths; k++)
        for (int i = 0; i < 3; i++) {
            struct tokenizer *t;
            struct err e = {0};
            struct ids ids = {0};
            struct buf b;
            buf_init(&b, 1 << 24);
            assert_int_equal(tokenizer_open(&t, paths[k], &e), 0);
            while (b.n < N)
                buf_str(&b, i == 0 ? "a" : i == 1 ? "the " : "\xE6\x97\xA5");
            encode(t, buf_cstr(&b), b.n, ADDED_ALL, &ids);
            expect_back(t, &ids, &b);
            buf_free(&b);
            ids_free(&ids);
            tokenizer_close(t);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_laws), cmocka_unit_test(test_one_long_piece)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
