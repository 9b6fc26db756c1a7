#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/os.h"

enum { SPIN_NS = 60 * 1000, MAX_THREADS = 256 };

struct worker {
    struct pool *pool;
    pthread_t thread;
    int index;
};

/* The owner publishes a job by raising `job`; workers race for chunks through `next` and the last one out
 * brings `busy` to zero. Counters sit on lines of their own. */
struct pool {
    _Alignas(64) atomic_uint job;   // generation of the current job; odd bit never used, wraps freely
    _Alignas(64) atomic_int next;   // first item not yet taken
    _Alignas(64) atomic_int busy;   // workers that have not finished the current job
    _Alignas(64) atomic_int parked; // workers asleep on `wake`
    pool_fn *fn;
    void *ud;
    int n, chunk, n_threads;
    atomic_int stop;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct worker *workers; // [n_threads], entry 0 unused
};

static void take_chunks(struct pool *p, int thread)
{
    int first;
    while ((first = atomic_fetch_add_explicit(&p->next, p->chunk, memory_order_relaxed)) < p->n) {
        int last = first + p->chunk;
        p->fn(p->ud, first, last < p->n ? last : p->n, thread);
    }
}

/* Waits for a job other than `seen`: spins, then parks. */
static unsigned wait_job(struct pool *p, unsigned seen)
{
    unsigned now;
    int64_t t0 = clock_ns();
    for (int i = 0; (now = atomic_load_explicit(&p->job, memory_order_acquire)) == seen; i++) {
        os_relax();
        if ((i & 255) == 255 && clock_ns() - t0 > SPIN_NS) {
            pthread_mutex_lock(&p->lock);
            atomic_fetch_add(&p->parked, 1);
            while ((now = atomic_load(&p->job)) == seen)
                pthread_cond_wait(&p->wake, &p->lock);
            atomic_fetch_sub(&p->parked, 1);
            pthread_mutex_unlock(&p->lock);
            break;
        }
    }
    return now;
}

static void *worker_main(void *ud)
{
    struct worker *w = ud;
    struct pool *p = w->pool;
    unsigned seen = 0;
    for (;;) {
        seen = wait_job(p, seen);
        if (atomic_load_explicit(&p->stop, memory_order_relaxed))
            return NULL;
        take_chunks(p, w->index);
        atomic_fetch_sub_explicit(&p->busy, 1, memory_order_release);
    }
}

static void publish(struct pool *p)
{
    atomic_fetch_add(&p->job, 1); // sequentially consistent: ordered before the look at `parked`
    if (atomic_load(&p->parked)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
}

struct pool *pool_new(int n_threads)
{
    struct pool *p = aligned_alloc(64, (sizeof *p + 63) & ~(size_t)63);
    if (!p)
        abort();
    *p = (struct pool){0};
    if (n_threads < 1)
        n_threads = 1;
    if (n_threads > MAX_THREADS)
        n_threads = MAX_THREADS;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->workers = xcalloc((size_t)n_threads, sizeof *p->workers);
    p->n_threads = 1;
    for (int i = 1; i < n_threads; i++) {
        struct worker *w = &p->workers[p->n_threads];
        w->pool = p;
        w->index = p->n_threads;
        if (!pthread_create(&w->thread, NULL, worker_main, w))
            p->n_threads++;
    }
    return p;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, 1);
    publish(p);
    for (int i = 1; i < p->n_threads; i++)
        pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p->workers);
    free(p);
}

int pool_threads(const struct pool *p) { return p->n_threads; }

void pool_run(struct pool *p, pool_fn *fn, void *ud, int n, int chunk)
{
    if (n <= 0)
        return;
    if (chunk < 1)
        chunk = 1;
    if (p->n_threads == 1 || n <= chunk) {
        fn(ud, 0, n, 0);
        return;
    }
    p->fn = fn;
    p->ud = ud;
    p->n = n;
    p->chunk = chunk;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->busy, p->n_threads - 1, memory_order_relaxed);
    publish(p);
    take_chunks(p, 0);
    for (int i = 1; atomic_load_explicit(&p->busy, memory_order_acquire); i++) {
        os_relax();
        if (!(i & 4095))
            sched_yield(); // a worker may have lost its core to something else
    }
}
