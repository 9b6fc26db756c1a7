/* costs MODEL [--threads N] [--reps N]: what the parts of decoding cost on this machine, as ratios and as shares
 * of the read bandwidth measured in the same run. Medians of alternating repetitions; conditions printed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/pool.h"
#include "infer/instance.h"

enum { MAX_REPS = 200, READ_BYTES = 1 << 30 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

struct reader {
    const uint64_t *p;
    uint64_t sum[256];
};

/* Item: 1 MiB, read as four streams of 64-bit words. */
static void read_block(void *ud, int first, int last, int thread)
{
    struct reader *r = ud;
    uint64_t s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
    for (size_t i = (size_t)first << 17, end = (size_t)last << 17; i < end; i += 8) {
        const uint64_t *p = r->p + i;
        s0 += p[0], s1 += p[1], s2 += p[2], s3 += p[3], s4 += p[4], s5 += p[5], s6 += p[6], s7 += p[7];
    }
    r->sum[thread] += s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7;
}

static double read_seconds(struct pool *pool, struct reader *r)
{
    int64_t t0 = clock_ns();
    pool_run(pool, read_block, r, READ_BYTES >> 20, 8);
    return (double)(clock_ns() - t0) * 1e-9;
}

static double step_seconds(struct engine *g, int seq, int n, bool all_logits, bool final)
{
    struct row rows[512];
    struct out out;
    struct err e = {0};
    for (int i = 0; i < n; i++)
        rows[i] = (struct row){seq, 7 + i % 200, (uint8_t)((all_logits || i == n - 1 ? WANT_LOGITS : 0) | (final ? ROW_FINAL : 0))};
    int64_t t0 = clock_ns();
    if (engine_step(g, rows, n, &out, &e)) {
        fprintf(stderr, "costs: %s\n", e.msg);
        exit(1);
    }
    double s = (double)(clock_ns() - t0) * 1e-9;
    seq_commit(g, seq, final ? n : 0);
    return s;
}

static double draft_seconds(struct engine *g, int seq)
{
    struct mtp_row row = {seq, 7, NULL, WANT_LOGITS};
    struct mtp_out out;
    struct err e = {0};
    int64_t t0 = clock_ns();
    if (mtp_step(g, &row, 1, engine_draft_subset(g), false, &out, &e)) {
        fprintf(stderr, "costs: %s\n", e.msg);
        exit(1);
    }
    double s = (double)(clock_ns() - t0) * 1e-9;
    mtp_cut(g, seq, 1);
    return s;
}

/* Bytes of weights that a decode step reads: all but the embedding's unread rows and the head's own. */
static double step_bytes(const struct instance *in)
{
    double b = 0;
    const struct weights *w = in->m->pkg->weights;
    for (int i = 0; i < weights_count(w); i++) {
        const struct weight *x = weights_at(w, i);
        bool is_embedding = !strcmp(x->key, "embed_tokens.weight") && in->m->head != in->m->embed;
        if (x->used && strncmp(x->key, "mtp.", 4) && !is_embedding)
            b += (double)x->bytes;
    }
    return b;
}

int main(int argc, char **argv)
{
    struct instance in;
    struct engine *g;
    struct err e = {0};
    struct instance_options io = {0};
    struct engine_options eo = {.n_ctx = 4096, .n_seqs = 2, .with_mtp = true};
    static double t[12][MAX_REPS];
    static const int rows[] = {1, 2, 3, 4, 6, 8};
    int reps = 9;
    const char *path = NULL;
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--threads") && i + 1 < argc)
            io.threads = (int)strtol(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--isa") && i + 1 < argc)
            io.isa = argv[++i];
        else if (!strcmp(argv[i], "--reps") && i + 1 < argc)
            reps = (int)strtol(argv[++i], NULL, 10);
        else
            path = argv[i];
    if (!path || reps < 1 || reps > MAX_REPS) {
        fprintf(stderr, "usage: costs MODEL [--threads N] [--isa NAME] [--reps N]\n");
        return 2;
    }
    io.without_tokenizer = true;
    if (instance_open(&in, path, &io, &e) || engine_open(&g, in.m, &in.head, &eo, &e)) {
        fprintf(stderr, "costs: %s\n", e.msg);
        return 1;
    }
    struct pool *pool = pool_new(io.threads ? io.threads : os_cpu_count());
    static struct reader r;
    r.p = mem_big(READ_BYTES);
    if (!r.p) {
        fprintf(stderr, "costs: no memory for the read probe\n");
        return 1;
    }
    memset((void *)(uintptr_t)r.p, 1, READ_BYTES);
    struct subset *sub = engine_draft_subset(g);
    for (int32_t id = 0; sub && id < 32768 && id < in.m->n_vocab; id++)
        subset_add(g, sub, id);
    int seq = seq_new(g), long_seq = seq_new(g);
    for (int k = -1; k < reps; k++) { // the first pass warms up
        double v[12];
        v[0] = read_seconds(pool, &r);
        for (int i = 0; i < 6; i++)
            v[1 + i] = step_seconds(g, seq, rows[i], true, false);
        v[7] = engine_has_mtp(g) ? draft_seconds(g, seq) : 0;
        v[8] = step_seconds(g, long_seq, 512, false, true);
        seq_reset(g, long_seq);
        for (int i = 0; i < 9 && k >= 0; i++)
            t[i][k] = v[i];
    }
    double m[12];
    for (int i = 0; i < 9; i++)
        m[i] = median(t[i], reps);
    double bandwidth = READ_BYTES / m[0], bytes = step_bytes(&in);
    printf("model %s, %s, %d threads, medians of %d, %s\n", path, in.m->arch->name, pool_threads(pool), reps, os_cpu_name());
    printf("read bandwidth      %.1f GB/s\n", bandwidth * 1e-9);
    printf("decode, one row     %.2f ms, %.1f tok/s, %.1f MB of weights: %.0f %% of the bandwidth\n", m[1] * 1e3, 1 / m[1], bytes * 1e-6,
           100 * bytes / m[1] / bandwidth);
    for (int i = 1; i < 6; i++)
        printf("%d rows, all logits  %.2f ms, %.2f x one row\n", rows[i], m[1 + i] * 1e3, m[1 + i] / m[1]);
    if (m[7] > 0)
        printf("one draft step      %.2f ms, %.3f x one row\n", m[7] * 1e3, m[7] / m[1]);
    printf("prefill 512         %.1f ms, %.0f tok/s, %.1f x decode\n", m[8] * 1e3, 512 / m[8], 512 / m[8] * m[1]);
    engine_close(g);
    instance_close(&in);
    pool_free(pool);
    return 0;
}
