/* The thread pool: every item once, whatever the chunk; jobs that follow at once and after a pause. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/pool.h"

enum { ITEMS = 5000, THREADS = 8 };

struct job {
    uint8_t seen[ITEMS];       // plain bytes: two threads on one item are a race that the thread sanitizer sees
    int64_t by_thread[THREADS * 16]; // a line apart, owned by its thread
    int n, chunk, threads;
    atomic_int calls, bad;
};

static void count(void *ud, int first, int last, int thread)
{
    struct job *j = ud;
    bool whole = j->threads == 1 || j->n <= j->chunk; // then one call does all
    if (first < 0 || last > j->n || first >= last || thread < 0 || thread >= j->threads || (!whole && last - first > j->chunk))
        atomic_fetch_add(&j->bad, 1);
    else
        for (int i = first; i < last; i++)
            j->seen[i]++;
    j->by_thread[thread * 16] += last - first;
    atomic_fetch_add(&j->calls, 1);
}

static void run_once(struct pool *p, struct job *j, int n, int chunk)
{
    memset(j, 0, sizeof *j);
    j->n = n;
    j->chunk = chunk < 1 ? 1 : chunk;
    j->threads = pool_threads(p);
    pool_run(p, count, j, n, chunk);
    int64_t total = 0;
    for (int i = 0; i < THREADS; i++)
        total += j->by_thread[i * 16];
    assert_int_equal(total, n > 0 ? n : 0);
    assert_int_equal(atomic_load(&j->bad), 0);
    for (int i = 0; i < ITEMS; i++)
        assert_int_equal(j->seen[i], i < n);
}

static void pause_ms(int ms)
{
    struct timespec t = {0, ms * 1000000L};
    nanosleep(&t, NULL);
}

static void test_every_item_once(void **state)
{
    static const int sizes[] = {-1, 0, 1, 2, 3, 7, 8, 63, 64, 65, 1000, ITEMS}, chunks[] = {0, 1, 2, 3, 16, 64, 999, ITEMS, 1 << 20};
    static struct job j;
    (void)state;
    for (int threads = 0; threads <= THREADS; threads += threads < 4 ? 1 : 4) {
        struct pool *p = pool_new(threads);
        assert_in_range(pool_threads(p), 1, threads > 1 ? threads : 1);
        for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++)
            for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++)
                run_once(p, &j, sizes[n], chunks[c]);
        pool_free(p);
    }
}

/* Jobs back to back, and after pauses long enough for the workers to sleep (they spin for 60 microseconds). */
static void test_park_and_wake(void **state)
{
    static struct job j;
    (void)state;
    struct pool *p = pool_new(3);
    for (int i = 0; i < 300; i++) {
        run_once(p, &j, 1 + i * 7 % 200, 1 + i % 5);
        if (i % 10 == 0)
            pause_ms(i % 3);
    }
    pause_ms(20);
    run_once(p, &j, 100, 1);
    pool_free(p);
}

/* What a job wrote is there for the next one, on whichever thread. */
struct chain {
    int64_t a[512], b[512];
};
static void forward(void *ud, int first, int last, int thread)
{
    struct chain *c = ud;
    (void)thread;
    for (int i = first; i < last; i++)
        c->b[i] = c->a[(i + 1) % 512] + 1;
}
static void back(void *ud, int first, int last, int thread)
{
    struct chain *c = ud;
    (void)thread;
    for (int i = first; i < last; i++)
        c->a[i] = c->b[(i + 1) % 512] + 1;
}

static void test_results_are_seen(void **state)
{
    static struct chain c;
    (void)state;
    struct pool *p = pool_new(4);
    for (int i = 0; i < 500; i++) {
        pool_run(p, forward, &c, 512, 3);
        pool_run(p, back, &c, 512, 5);
    }
    for (int i = 0; i < 512; i++)
        assert_int_equal(c.a[i], 1000);
    pool_free(p);
}

/* Made and unmade at once, with workers still starting, spinning or asleep. */
static void test_lifetime(void **state)
{
    static struct job j;
    (void)state;
    pool_free(NULL);
    for (int i = 0; i < 60; i++) {
        struct pool *p = pool_new(1 + i % THREADS);
        if (i % 3)
            run_once(p, &j, 50, 1);
        if (i % 5 == 0)
            pause_ms(1);
        pool_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_item_once), cmocka_unit_test(test_park_and_wake), cmocka_unit_test(test_results_are_seen),
        cmocka_unit_test(test_lifetime),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
