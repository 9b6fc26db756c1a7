/* The engine on the demo model: what a step refuses, commit, fork, save and load, the head's rows, and the
 * account of pages. Whatever was done before, the logits after a prefix must be those of reading it token by
 * token, bit for bit. Runs from the repository's root. */
#include <limits.h>
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

enum { TEXT = 200, V = 4096, LD = 128, PAGES = 10, SEQS = 4 };

static struct instance in;
static struct engine *g;
static int32_t text[TEXT];
static float *ref, *hidden; // logits and hidden after each token of the text, read one by one
static struct err e;

static int step(const struct row *rows, int n, struct out *out)
{
    e = (struct err){0};
    return engine_step(g, rows, n, out, &e);
}

/* Reads text[from..to) as rows of the given kind; the last gives logits. */
static struct out feed(int seq, int from, int to, int want)
{
    struct row rows[TEXT];
    struct out out;
    for (int i = from; i < to; i++)
        rows[i - from] = (struct row){seq, text[i], (uint8_t)want};
    rows[to - from - 1].want |= WANT_LOGITS;
    assert_int_equal(step(rows, to - from, &out), 0);
    return out;
}

/* The sequence holds text[0..len): its next tokens must give the reference's logits. */
static void check_at(int seq, int len)
{
    assert_int_equal(seq_len(g, seq), len);
    struct out out = feed(seq, len, len + 1, ROW_FINAL);
    assert_memory_equal(out.logits, ref + (size_t)len * V, V * 4);
    out = feed(seq, len + 1, len + 3, 0);
    assert_int_equal(seq_len(g, seq), len + 1);
    assert_memory_equal(out.logits, ref + (size_t)(len + 2) * V, V * 4);
    seq_commit(g, seq, 0);
}

static int seq_of(int len)
{
    int seq = seq_new(g);
    assert_true(seq >= 0);
    for (int at = 0, n; at < len; at += n) {
        n = len - at < 100 ? len - at : 100;
        feed(seq, at, at + n, ROW_FINAL);
        seq_commit(g, seq, n);
    }
    return seq;
}

static void free_all(void)
{
    for (int i = 0; i < SEQS; i++)
        seq_free(g, i);
    assert_int_equal(engine_pages_free(g), PAGES);
}

static int open_all(void **state)
{
    (void)state;
    struct instance_options io = {.threads = 1};
    struct engine_options eo = {.n_ctx = (PAGES - SEQS) * PAGE_TOKENS - 5, .n_seqs = SEQS, .max_rows = 128, .with_mtp = true};
    if (instance_open(&in, "models/demo", &io, &e) || engine_open(&g, in.m, &in.head, &eo, &e)) {
        print_error("%s\n", e.msg);
        return -1;
    }
    ref = xcalloc((size_t)TEXT * V, 4);
    hidden = xcalloc((size_t)TEXT * LD, 4);
    for (uint32_t i = 0; i < TEXT; i++) {
        uint32_t key[2] = {3, 4}, ctr[4] = {i, 0, 0, 0}, r[4];
        philox4x32(key, ctr, r);
        text[i] = (int32_t)(r[0] % 4000);
    }
    int seq = seq_new(g);
    for (int i = 0; i < TEXT; i++) {
        struct out out = feed(seq, i, i + 1, ROW_FINAL | WANT_HIDDEN);
        memcpy(ref + (size_t)i * V, out.logits, V * 4);
        memcpy(hidden + (size_t)i * LD, out.hidden, LD * 4);
        seq_commit(g, seq, 1);
    }
    free_all();
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    engine_close(g);
    instance_close(&in);
    free(ref);
    free(hidden);
    return 0;
}

static void test_sizes(void **state)
{
    (void)state;
    assert_int_equal(engine_max_rows(g), 128);
    assert_int_equal(engine_max_tokens(g), (PAGES - SEQS) * PAGE_TOKENS);
    assert_int_equal(engine_hidden_ld(g), LD);
    assert_true(engine_has_mtp(g));
    assert_ptr_equal(engine_model(g), in.m);
    assert_null(engine_draft_subset(g)); // 4,096 tokens are drafted from whole
    for (int i = 0; i < SEQS; i++)
        assert_int_equal(seq_new(g), i);
    assert_int_equal(seq_new(g), -1);
    assert_int_equal(seq_fork(g, 0), -1);
    seq_free(g, -1);
    seq_free(g, 2);
    seq_free(g, 2);
    assert_int_equal(seq_new(g), 2);
    free_all();
}

/* A refused step changes nothing: not even what still waits for its commit. */
static void test_refusals(void **state)
{
    struct row rows[200];
    struct out out;
    (void)state;
    int a = seq_of(40), b = seq_of(3);
    struct row pending[3] = {{a, text[40], ROW_FINAL}, {a, text[41], 0}, {a, text[42], 0}};
    for (int bad = 0; bad < 9; bad++) {
        int n = 2, want = ERR_ARG, pages = engine_pages_free(g);
        assert_int_equal(step(pending, 3, &out), 0);
        for (int i = 0; i < 200; i++)
            rows[i] = (struct row){a, text[i], ROW_FINAL};
        rows[1].seq = b;
        switch (bad) {
        case 0: rows[1].tok = V; break;
        case 1: rows[1].tok = -1; break;
        case 2: rows[1].seq = 2; break; // not in use
        case 3: rows[1].seq = SEQS; break;
        case 4: rows[1].seq = -1; break;
        case 5: rows[0].want = 0, rows[2].want = ROW_FINAL, rows[2].seq = a, n = 3; break; // final after provisional
        case 6:
            for (n = 0; n < PROVISIONAL_MAX + 1; n++)
                rows[n] = (struct row){b, text[n], 0};
            break;
        case 7:
            n = 129;
            break;
        default: // more rows with logits than a step gives
            for (n = 0; n < 65; n++)
                rows[n] = (struct row){a, text[n], ROW_FINAL | WANT_LOGITS};
        }
        assert_int_equal(step(rows, n, &out), want);
        assert_true(e.msg[0]);
        assert_int_equal(engine_pages_free(g), pages);
        seq_commit(g, a, 2);
        assert_int_equal(seq_len(g, a), 42);
        check_at(a, 42);
        seq_free(g, a);
        a = seq_of(40);
    }
    assert_int_equal(step(rows, 0, &out), ERR_ARG);
    free_all();
}

/* A context that is full, and memory that is. */
static void test_limits(void **state)
{
    struct row rows[128];
    struct out out;
    (void)state;
    int a = seq_new(g), max = engine_max_tokens(g);
    for (int at = 0; at < max; at += 128) {
        for (int i = 0; i < 128; i++)
            rows[i] = (struct row){a, 1, ROW_FINAL};
        assert_int_equal(step(rows, 128, &out), 0);
        seq_commit(g, a, 128);
    }
    assert_int_equal(step(rows, 1, &out), ERR_LIMIT);
    assert_int_equal(seq_len(g, a), max);
    assert_int_equal(engine_pages_free(g), SEQS);
    int b = seq_new(g);
    for (int i = 0; i < 128; i++)
        rows[i].seq = b;
    for (int at = 0; at < SEQS * PAGE_TOKENS; at += 128) {
        assert_int_equal(step(rows, 128, &out), 0);
        seq_commit(g, b, 128);
    }
    assert_int_equal(engine_pages_free(g), 0);
    assert_int_equal(step(rows, 1, &out), ERR_NOMEM);
    int c = seq_new(g);
    struct row two[2] = {{c, 1, ROW_FINAL}, {b, 1, ROW_FINAL}};
    assert_int_equal(step(two, 2, &out), ERR_NOMEM);
    assert_int_equal(seq_len(g, b), SEQS * PAGE_TOKENS);
    seq_free(g, a);
    assert_int_equal(step(two, 2, &out), 0);
    assert_int_equal(engine_pages_free(g), PAGES - SEQS - 2);
    free_all();
}

static void test_commit(void **state)
{
    (void)state;
    struct out out;
    for (int keep = -1; keep <= 6; keep++) { // 2 final rows, 3 that are right, 1 that is wrong
        for (int start = 0; start < 120; start += 61) {
            int seq = seq_of(start);
            struct row rows[6];
            for (int i = 0; i < 6; i++)
                rows[i] = (struct row){seq, i == 5 ? 7 : text[start + i], i < 2 ? ROW_FINAL : 0};
            assert_int_equal(step(rows, 6, &out), 0);
            if (keep >= 0) // -1: never committed
                seq_commit(g, seq, keep > 5 ? 5 : keep);
            int len = start + (keep < 2 ? 2 : keep > 5 ? 5 : keep);
            if (keep < 0) { // the next step settles it
                out = feed(seq, start + 2, start + 3, ROW_FINAL);
                assert_memory_equal(out.logits, ref + (size_t)(start + 2) * V, V * 4);
                assert_int_equal(seq_len(g, seq), start + 2);
                seq_commit(g, seq, 99);
                len = start + 3;
            }
            check_at(seq, len);
            seq_free(g, seq);
        }
    }
    free_all();
}

/* Drafts of every length, right and wrong, for many rounds: the tape and the ring go around. */
static void test_many_rounds(void **state)
{
    (void)state;
    uint32_t key[2] = {9, 9};
    for (uint32_t run = 0; run < 6; run++) {
        int seq = seq_of(0), len = 0;
        for (uint32_t round = 0; len < TEXT - 40; round++) {
            struct row rows[2 + PROVISIONAL_MAX];
            struct out out;
            uint32_t ctr[4] = {run, round, 0, 0}, r[4];
            philox4x32(key, ctr, r);
            int n_final = (int)(r[0] % 3), n = n_final + (int)(r[1] % (PROVISIONAL_MAX + 1)), right;
            n += !n;
            right = (int)(r[2] % (uint32_t)(n + 1));
            for (int i = 0; i < n; i++)
                rows[i] = (struct row){seq, i < n_final || i < right ? text[len + i] : 17, (uint8_t)(WANT_LOGITS | (i < n_final ? ROW_FINAL : 0))};
            right = right < n_final ? n_final : right;
            assert_int_equal(step(rows, n, &out), 0);
            for (int i = 0; i < right; i++)
                assert_memory_equal(out.logits + (size_t)i * V, ref + (size_t)(len + i) * V, V * 4);
            int keep = (int)(r[3] % (uint32_t)(right + 1));
            seq_commit(g, seq, keep);
            len += keep > n_final ? keep : n_final;
            assert_int_equal(seq_len(g, seq), len);
        }
        seq_free(g, seq);
    }
    free_all();
}

/* Copies part ways at and around the border of a page; neither sees what the other writes. */
static void test_fork(void **state)
{
    (void)state;
    static const int lens[] = {0, 1, 5, 62, 63, 64, 65, 127, 128, 129};
    for (size_t t = 0; t < sizeof lens / sizeof *lens; t++) {
        int len = lens[t], a = seq_of(len), before = engine_pages_free(g);
        struct row wrong[3] = {{a, 11, ROW_FINAL}, {a, 12, ROW_FINAL}, {a, 13, ROW_FINAL}};
        struct out out;
        int b = seq_fork(g, a);
        assert_int_equal(engine_pages_free(g), before); // shared
        assert_int_equal(step(wrong, 3, &out), 0);
        seq_commit(g, a, 3);
        assert_int_equal(seq_len(g, b), len);
        int crosses = (len + 63) / 64 * 64 < len + 3 && len % 64; // one page copied, and one new if the border is passed
        assert_int_equal(engine_pages_free(g), before - 1 - crosses);
        int c = seq_fork(g, b);
        check_at(b, len);
        check_at(c, len);
        seq_free(g, b);
        seq_free(g, c);
        seq_reset(g, a);
        assert_int_equal(seq_len(g, a), 0);
        feed(a, 0, 10, ROW_FINAL);
        seq_commit(g, a, 10);
        check_at(a, 10);
        free_all();
    }
    int a = seq_of(30); // what was not committed is not copied
    feed(a, 30, 35, 0);
    int b = seq_fork(g, a);
    check_at(b, 30);
    check_at(a, 30);
    free_all();
}

static void test_save(void **state)
{
    (void)state;
    static const int lens[] = {0, 1, 63, 64, 70, 128};
    for (size_t t = 0; t < sizeof lens / sizeof *lens; t++) {
        int len = lens[t], a = seq_of(len > 3 ? len - 3 : len);
        void *p;
        size_t n;
        if (len > 3) { // rows that are accepted but not yet folded into the state
            feed(a, len - 3, len + 1, 0);
            seq_commit(g, a, 3);
        }
        assert_int_equal(seq_save(g, a, &p, &n, &e), 0);
        seq_free(g, a);
        int b = seq_of(5);
        assert_int_equal(seq_load(g, b, p, n, &e), 0);
        check_at(b, len);
        assert_int_equal(seq_load(g, b, p, n, &e), 0); // over itself
        check_at(b, len);
        free(p);
        free_all();
    }
}

/* Damaged files are refused, with the sequence left empty or as it was. */
static void test_load_damaged(void **state)
{
    (void)state;
    int a = seq_of(70), b = seq_new(g);
    void *p;
    size_t n;
    assert_int_equal(seq_save(g, a, &p, &n, &e), 0);
    static const int32_t bad[] = {-1, INT_MIN, INT_MAX, INT_MAX - 62, 6, 129, 100000};
    uint8_t *copy = xmalloc(n);
    for (size_t field = 0; field < 4; field++)
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            if (field == 2 && bad[i] < 70)
                continue; // any count of head rows within the text will do
            memcpy(copy, p, n);
            memcpy(copy + 8 + 4 * field, &bad[i], 4);
            e = (struct err){0};
            assert_int_equal(seq_load(g, b, copy, n, &e), ERR_FORMAT);
            assert_int_equal(seq_len(g, b), 0);
        }
    for (size_t i = 0; i < 40; i++) {
        memcpy(copy, p, n);
        copy[i % 8] ^= (uint8_t)(1 + i);
        e = (struct err){0};
        assert_int_equal(seq_load(g, b, copy, i < 8 ? n : i, &e), ERR_FORMAT);
    }
    memcpy(copy, p, n);
    e = (struct err){0};
    assert_int_equal(seq_load(g, b, copy, n - 1, &e), ERR_FORMAT);
    free(copy);
    check_at(a, 70);
    /* no room */
    int c = seq_new(g), d = seq_new(g);
    struct row rows[128];
    struct out out;
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 128; i++)
            rows[i] = (struct row){k < 2 ? c : d, 1, ROW_FINAL};
        assert_int_equal(step(rows, 128, &out), 0);
        seq_commit(g, k < 2 ? c : d, 128);
    }
    assert_int_equal(engine_pages_free(g), 2);
    for (int i = 0; i < 64; i++)
        rows[i].seq = d;
    assert_int_equal(step(rows, 64, &out), 0);
    e = (struct err){0};
    assert_int_equal(seq_load(g, b, p, n, &e), ERR_NOMEM);
    seq_free(g, c);
    assert_int_equal(seq_load(g, b, p, n, &e), 0);
    check_at(b, 70);
    free(p);
    free_all();
}

/* Three sequences at different places, their rows in turn, against each alone. */
static void test_batch(void **state)
{
    (void)state;
    static const int start[3] = {0, 61, 100};
    int seq[3], len[3];
    for (int s = 0; s < 3; s++) {
        seq[s] = seq_of(start[s]);
        len[s] = start[s];
    }
    for (int round = 0; round < 8; round++) {
        struct row rows[24];
        struct out out;
        int of[24], at[24], used[3] = {0}, n = 0;
        for (int i = 0; i < 18; i++) {
            int s = (i * 7 + round * i + i / 5) % 3;
            of[n] = s;
            at[n] = len[s] + used[s]++;
            rows[n] = (struct row){seq[s], text[at[n]], (uint8_t)(WANT_HIDDEN | (used[s] < 4 ? ROW_FINAL : 0) | (i % 2 ? WANT_LOGITS : 0))};
            n++;
        }
        assert_int_equal(step(rows, n, &out), 0);
        assert_int_equal(out.n_hidden, n);
        assert_int_equal(out.n_logits, n / 2);
        for (int i = 0, k = 0; i < n; i++) {
            assert_memory_equal(out.hidden + (size_t)i * LD, hidden + (size_t)at[i] * LD, LD * 4);
            if (rows[i].want & WANT_LOGITS)
                assert_memory_equal(out.logits + (size_t)k++ * V, ref + (size_t)at[i] * V, V * 4);
            assert_in_range(of[i], 0, 2);
        }
        for (int s = 0; s < 3; s++) {
            int keep = (round + s) % 7;
            seq_commit(g, seq[s], keep);
            keep = keep > used[s] ? used[s] : keep;
            int finals = used[s] < 3 ? used[s] : 3;
            len[s] += keep < finals ? finals : keep;
            assert_int_equal(seq_len(g, seq[s]), len[s]);
        }
    }
    for (int s = 0; s < 3; s++)
        check_at(seq[s], len[s]);
    free_all();
}

/* ---- the head ------------------------------------------------------------------------------------------------------ */

static void pairs(int seq, int from, int to, struct mtp_row *rows)
{
    for (int j = from; j < to; j++)
        rows[j - from] = (struct mtp_row){seq, text[j], hidden + (size_t)(j - 1) * LD, WANT_LOGITS};
}

static int mtp(const struct mtp_row *rows, int n, const struct subset *s, struct mtp_out *out)
{
    e = (struct err){0};
    return mtp_step(g, rows, n, s, true, out, &e);
}

static void test_mtp(void **state)
{
    (void)state;
    struct mtp_row rows[64];
    struct mtp_out out;
    float *one = xcalloc(64 * V, 4);
    int a = seq_of(80);
    assert_int_equal(seq_mtp_len(g, a), 1);
    for (int j = 1; j <= 50; j++) { // row by row
        pairs(a, j, j + 1, rows);
        assert_int_equal(mtp(rows, 1, NULL, &out), 0);
        memcpy(one + (size_t)j * V, out.logits, V * 4);
        int best = 0;
        for (int i = 1; i < V; i++)
            best = out.logits[i] > out.logits[best] ? i : best;
        assert_int_equal(out.best[0], best);
    }
    assert_int_equal(seq_mtp_len(g, a), 51);
    mtp_cut(g, a, 20);
    mtp_cut(g, a, 30); // no way back up
    assert_int_equal(seq_mtp_len(g, a), 20);
    pairs(a, 20, 51, rows);
    assert_int_equal(mtp(rows, 31, NULL, &out), 0);
    assert_int_equal(out.n, 31);
    assert_memory_equal(out.logits, one + (size_t)20 * V, 31 * V * 4);
    mtp_cut(g, a, -5);
    assert_int_equal(seq_mtp_len(g, a), 1);
    pairs(a, 1, 41, rows);
    assert_int_equal(mtp(rows, 40, NULL, &out), 0);
    assert_memory_equal(out.logits, one + V, 40 * V * 4);
    /* recursion, twice over, in company; a fork has the rows of the prefix */
    int b = seq_fork(g, a);
    assert_int_equal(seq_mtp_len(g, b), 41);
    float *deep = xcalloc(3 * V, 4);
    for (int turn = 0; turn < 2; turn++) {
        struct mtp_row two[3];
        pairs(a, 41, 42, two);
        assert_int_equal(mtp(two, 1, NULL, &out), 0);
        for (int d = 0; d < 3; d++) {
            two[0] = (struct mtp_row){a, 5 + d, NULL, WANT_LOGITS};
            int n = 1;
            if (turn) {
                pairs(b, 41 + d, 42 + d, two + 1);
                n = 2;
            }
            assert_int_equal(mtp(two, n, NULL, &out), 0);
            if (turn)
                assert_memory_equal(out.logits + V, one + (size_t)(41 + d) * V, V * 4);
            turn ? assert_memory_equal(out.logits, deep + d * V, V * 4) : (void)memcpy(deep + d * V, out.logits, V * 4);
        }
        mtp_cut(g, a, 41);
    }
    check_at(a, 80); // the trunk doesn't mind
    check_at(b, 80);
    free(one), free(deep);
    free_all();
}

static void test_mtp_refusals(void **state)
{
    (void)state;
    struct mtp_row rows[3];
    struct mtp_out out;
    int a = seq_of(10), b = seq_of(10);
    for (int bad = 0; bad < 7; bad++) {
        pairs(a, 1, 4, rows);
        switch (bad) {
        case 0: rows[1].tok = V; break;
        case 1: rows[1].tok = -1; break;
        case 2: rows[2].seq = 3; break; // not in use
        case 3: rows[2].seq = SEQS; break;
        case 4: rows[2].seq = -1; break;
        case 5: rows[1].seq = b; break; // rows of one sequence must be neighbours
        default: rows[1].hidden = NULL; break; // the head's last output is not that of the row before
        }
        assert_int_equal(mtp(rows, 3, NULL, &out), ERR_ARG);
        assert_int_equal(seq_mtp_len(g, a), 1);
    }
    assert_int_equal(mtp(rows, 0, NULL, &out), ERR_ARG);
    free_all();
}

static void test_subset(void **state)
{
    (void)state;
    static const int32_t ids[] = {4000, 3, 77, 3, 2048, 9};
    struct subset *s;
    struct mtp_row rows[64];
    struct mtp_out out;
    float *all = xcalloc(20 * V, 4);
    assert_int_equal(subset_new(g, &s, &e), 0);
    pairs(seq_of(5), 1, 2, rows);
    assert_int_equal(mtp(rows, 1, s, &out), ERR_ARG); // nothing to draft from
    free_all();
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 6; i++)
            subset_add(g, s, ids[i]);
        assert_int_equal(subset_size(s), 5);
        int a = seq_of(30);
        pairs(a, 1, 21, rows);
        assert_int_equal(mtp(rows, 20, NULL, &out), 0);
        memcpy(all, out.logits, 20 * V * 4);
        for (int logits = 0; logits < 2; logits++) {
            mtp_cut(g, a, 1);
            assert_int_equal(mtp_step(g, rows, 20, s, logits, &out, &e), 0);
            for (int r = 0; r < 20; r++) {
                int32_t best = subset_ids(s)[0];
                for (int i = 0; i < 5; i++) {
                    int32_t id = subset_ids(s)[i];
                    if (logits)
                        assert_memory_equal(&out.logits[r * 5 + i], &all[(size_t)r * V + (size_t)id], 4);
                    best = all[(size_t)r * V + (size_t)id] > all[(size_t)r * V + (size_t)best] ? id : best;
                }
                assert_int_equal(out.best[r], best);
            }
        }
        seq_free(g, a);
        subset_clear(s);
        assert_int_equal(subset_size(s), 0);
    }
    free(all);
    free_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),  cmocka_unit_test(test_refusals),     cmocka_unit_test(test_limits), cmocka_unit_test(test_commit),
        cmocka_unit_test(test_many_rounds), cmocka_unit_test(test_fork),    cmocka_unit_test(test_save),   cmocka_unit_test(test_load_damaged),
        cmocka_unit_test(test_batch),  cmocka_unit_test(test_mtp),          cmocka_unit_test(test_mtp_refusals), cmocka_unit_test(test_subset),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
