/* Fork-join thread pool for data-parallel ranges. One owner thread calls pool_run; it works too. Threads take
 * chunks from a shared counter, so a preempted core delays one chunk and not a fixed share. Waiting threads
 * spin briefly, then sleep. No nesting. */
#ifndef BASE_POOL_H
#define BASE_POOL_H

struct pool;

/* n_threads >= 1 counts the owner. Never NULL; fewer threads if the system refuses some. */
struct pool *pool_new(int n_threads);
void pool_free(struct pool *p);
int pool_threads(const struct pool *p);

/* fn handles items [first, last) as thread number `thread` (0 is the owner). */
typedef void pool_fn(void *ud, int first, int last, int thread);

/* Runs fn over [0, n) in chunks of at most `chunk` items; returns when all are done. Results must not depend
 * on which thread takes which chunk. */
void pool_run(struct pool *p, pool_fn *fn, void *ud, int n, int chunk);

#endif
