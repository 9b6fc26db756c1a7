/* Layers with a window: pages before it go back to their pool, whatever is forked, saved, rejected or left
 * uncommitted, and no bit changes. On a tiny model whose every layer has a window of 20 tokens and on one that has
 * layers of both kinds. Runs from the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "infer/engine.h"
#include "infer/instance.h"

enum { TEXT = 1300, SEQS = 3, MAX_ROWS = 128, MAX_WINDOW = 24 };

static struct instance in;
static struct engine *g;
static int32_t text[TEXT];
static float *ref; // logits after each token of the text, read one by one
static int V;
static struct err e;

static int step(const struct row *rows, int n, struct out *out)
{
    e = (struct err){0};
    return engine_step(g, rows, n, out, &e);
}

/* Rows for text[from..to), n_final of them certain; every row's logits are compared. */
static void feed(int seq, int from, int to, int n_final)
{
    struct row rows[64];
    struct out out;
    for (int i = from; i < to; i++)
        rows[i - from] = (struct row){seq, text[i], (uint8_t)(WANT_LOGITS | (i - from < n_final ? ROW_FINAL : 0))};
    assert_int_equal(step(rows, to - from, &out), 0);
    assert_memory_equal(out.logits, ref + (size_t)from * (size_t)V, (size_t)(to - from) * (size_t)V * sizeof *ref);
}

/* A sequence of the text's first len tokens, read in chunks of different sizes. */
static int seq_of(int len)
{
    int seq = seq_new(g);
    assert_true(seq >= 0);
    for (int at = 0, n = 1; at < len; at += n) {
        n = at % 61 + 1 < len - at ? at % 61 + 1 : len - at;
        feed(seq, at, at + n, n);
        seq_commit(g, seq, n);
    }
    return seq;
}

static struct pool_use window_pool(void)
{
    struct pool_use u = {0};
    for (int i = 0; engine_pool(g, i, &u) && !u.window; i++)
        ;
    assert_true(u.window > 0 && u.window <= MAX_WINDOW);
    return u;
}

static void free_all(void)
{
    struct pool_use u;
    for (int i = 0; i < SEQS; i++)
        seq_free(g, i);
    for (int i = 0; engine_pool(g, i, &u); i++)
        assert_int_equal(u.n_free, u.n_pages);
}

static void open_model(const char *path)
{
    struct instance_options io = {.threads = 1, .without_tokenizer = true};
    struct engine_options eo = {.n_ctx = SEQS * TEXT, .n_seqs = SEQS, .max_rows = MAX_ROWS};
    if (instance_open(&in, path, &io, &e) || engine_open(&g, in.m, NULL, &eo, &e))
        fail_msg("%s", e.msg);
    V = in.m->n_vocab;
    ref = xcalloc((size_t)TEXT * (size_t)V, sizeof *ref);
    int seq = seq_new(g);
    for (uint32_t i = 0; i < TEXT; i++) {
        uint32_t key[2] = {8, 1}, ctr[4] = {i, 0, 0, 0}, r[4];
        struct out out;
        philox4x32(key, ctr, r);
        text[i] = (int32_t)(r[0] % (uint32_t)V);
        struct row row = {seq, text[i], WANT_LOGITS | ROW_FINAL};
        assert_int_equal(step(&row, 1, &out), 0);
        seq_commit(g, seq, 1);
        memcpy(ref + (size_t)i * (size_t)V, out.logits, (size_t)V * sizeof *ref);
    }
    /* 1,300 tokens later: the window lies across two pages, or in one where it ends at a border */
    struct pool_use u = window_pool();
    assert_int_equal(u.n_peak, 2);
    assert_int_equal(u.n_pages - u.n_free, (TEXT - 1) / PAGE_TOKENS - (TEXT - u.window + 1) / PAGE_TOKENS + 1);
    assert_true(u.n_pages <= SEQS * 3 + MAX_ROWS / PAGE_TOKENS);
    free_all();
}

static void close_model(void)
{
    engine_close(g);
    instance_close(&in);
    free(ref);
}

/* What a long text holds does not grow, however it is read. */
static void check_bound(void)
{
    int most = 0;
    for (int turn = 0; turn < 2; turn++) {
        int seq = seq_new(g), len = 0;
        for (uint32_t i = 0; len < TEXT - 64; i++) {
            uint32_t key[2] = {9, (uint32_t)turn}, ctr[4] = {i, 0, 0, 0}, r[4];
            philox4x32(key, ctr, r);
            int n_final = (int)(r[0] % 3), n = n_final + (int)(r[1] % 33);
            n += !n;
            feed(seq, len, len + n, n_final);
            int keep = n_final + (int)(r[2] % (uint32_t)(n - n_final + 1));
            if (turn) // else only the final rows happened
                seq_commit(g, seq, keep);
            len += turn ? keep : n_final;
            struct pool_use u = window_pool();
            most = u.n_pages - u.n_free > most ? u.n_pages - u.n_free : most;
        }
        seq_free(g, seq);
    }
    assert_in_range(most, 2, (2 * MAX_WINDOW + 2 * PROVISIONAL_MAX + 2) / PAGE_TOKENS + 2);
    free_all();
}

/* Copies part ways around borders of pages, segments and windows; what one gives up, the other keeps. */
static void check_forks(void)
{
    static const int lens[] = {0, 1, 19, 20, 21, 63, 64, 65, 83, 84, 85, 86, 127, 128, 1023, 1024, 1025, 1043, 1044, 1045};
    for (size_t t = 0; t < sizeof lens / sizeof *lens; t++) {
        int len = lens[t], a = seq_of(len), b = seq_fork(g, a);
        struct row wrong[40];
        struct out out;
        for (int round = 0; round < 5; round++) { // a goes elsewhere, far beyond its window
            for (int i = 0; i < 40; i++)
                wrong[i] = (struct row){a, (int32_t)(i + 7 * round) % V, ROW_FINAL};
            assert_int_equal(step(wrong, 40, &out), 0);
            seq_commit(g, a, 40);
        }
        int c = seq_fork(g, b);
        seq_free(g, a);
        for (int at = len; at < len + 150; at += 30) {
            feed(b, at, at + 30, 30);
            seq_commit(g, b, 30);
        }
        feed(c, len, len + 40, 10);
        seq_commit(g, c, 12);
        feed(c, len + 12, len + 44, 0);
        seq_free(g, b);
        seq_commit(g, c, 32);
        feed(c, len + 44, len + 50, 6);
        free_all();
    }
}

/* A saved sequence is as long as its window, and goes on as if nothing had happened. */
static void check_saves(void)
{
    static const int lens[] = {0, 5, 20, 64, 84, 148, 1044, 1200};
    size_t size[sizeof lens / sizeof *lens];
    for (size_t t = 0; t < sizeof lens / sizeof *lens; t++) {
        int len = lens[t], a = seq_of(len);
        void *p;
        feed(a, len, len + 20, 0); // never committed: not saved
        assert_int_equal(seq_save(g, a, &p, &size[t], &e), 0);
        int b = seq_of(200);
        assert_int_equal(seq_load(g, b, p, size[t], &e), 0);
        seq_free(g, a);
        assert_int_equal(seq_len(g, b), len);
        feed(b, len, len + 30, 30);
        seq_commit(g, b, 30);
        feed(b, len + 30, len + 64, 2);
        ((int32_t *)p)[6]++; // the window that it was saved with
        assert_int_equal(seq_load(g, b, p, size[t], &e), ERR_FORMAT);
        free(p);
        free_all();
    }
    if (in.m->n_windows == 1)
        assert_int_equal(size[5], size[6]); // both end 20 tokens after a border
}

/* A step that doesn't fit into its pool changes nothing, and the pool is large enough for all sequences at once. */
static void check_full(void)
{
    int seq[SEQS];
    for (int i = 0; i < SEQS; i++)
        seq[i] = seq_of(700 + 20 * i);
    for (int at = 0; at < 6; at++) {
        struct row rows[MAX_ROWS];
        struct out out;
        int n = 0;
        for (int i = 0; i < SEQS; i++)
            for (int k = 0; k < MAX_ROWS / SEQS; k++, n++)
                rows[n] = (struct row){seq[i], text[700 + 20 * i + at * (MAX_ROWS / SEQS) + k], (uint8_t)(ROW_FINAL | (k ? 0 : WANT_LOGITS))};
        assert_int_equal(step(rows, n, &out), 0);
        for (int i = 0; i < SEQS; i++) {
            int pos = 700 + 20 * i + at * (MAX_ROWS / SEQS);
            assert_memory_equal(out.logits + (size_t)i * (size_t)V, ref + (size_t)pos * (size_t)V, (size_t)V * sizeof *ref);
            if (at % 2)
                seq_commit(g, seq[i], MAX_ROWS / SEQS);
        }
    }
    free_all();
}

static void check_model(const char *path)
{
    open_model(path);
    check_bound();
    check_forks();
    check_saves();
    check_full();
    close_model();
}

static void test_all_windowed(void **state)
{
    (void)state;
    check_model("tests/golden/models/mistral");
}

static void test_mixed(void **state)
{
    (void)state;
    check_model("tests/golden/models/gemma3-mlx-4bit");
}

/* Layers that share keys and values, and heads of two widths. */
static void test_shared(void **state)
{
    (void)state;
    check_model("tests/golden/models/gemma4-ple");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_windowed), cmocka_unit_test(test_mixed), cmocka_unit_test(test_shared)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
