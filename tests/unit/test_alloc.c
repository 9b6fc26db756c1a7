/* Decoding allocates nothing: the executable puts its own malloc, calloc, realloc, free, ... in front of the C
 * library's and counts while tokens are decoded; big blocks come from mmap, counted the same way. Needs glibc. */
#define _DEFAULT_SOURCE 1 // syscall
#include "gen_fixture.h"

#include <stdio.h>
#include <unistd.h>

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CAN_COUNT 1
#include <sys/mman.h>
#include <sys/syscall.h>
#endif

static atomic_int counting, n_alloc;

#ifdef CAN_COUNT
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

static void note(void)
{
    if (atomic_load_explicit(&counting, memory_order_relaxed))
        atomic_fetch_add_explicit(&n_alloc, 1, memory_order_relaxed);
}

void *malloc(size_t n)
{
    note();
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    note();
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    note();
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    note();
    return __libc_memalign(align, n);
}

int posix_memalign(void **p, size_t align, size_t n)
{
    note();
    *p = __libc_memalign(align, n);
    return *p ? 0 : 12;
}

void *mmap(void *p, size_t n, int prot, int flags, int fd, off_t at)
{
    note();
    return (void *)syscall(SYS_mmap, p, n, prot, flags, fd, at);
}
#endif

static struct bench b;

static int open_all(void **state)
{
    (void)state;
    return read_prompts() && bench_open(&b, 1, 2, 2048, 128) ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    bench_close(&b);
    return 0;
}

/* The net sees what it must. */
static void test_the_count(void **state)
{
    (void)state;
#ifdef CAN_COUNT
    struct buf t;
    buf_init(&t, 1000);
    atomic_store(&n_alloc, 0);
    atomic_store(&counting, 1);
    void *p = mem_big(1 << 20);
    void *c = xcalloc(3, 3);
    buf_add(&t, "text", 4);
    atomic_store(&counting, 0);
    assert_true(atomic_load(&n_alloc) >= 3);
    mem_big_free(p, 1 << 20);
    free(c);
    buf_free(&t);
#endif
}

static void count_tokens(const struct sampling *s, int depth, enum acceptance acceptance)
{
    char *stop[] = {(char[]){"no such text"}, (char[]){"\n\n\n\n\n\n\n\n\n# never"}};
    static struct answer got[2];
    for (int i = 0; i < 2; i++) {
        struct gen_request r = request(5 + 20 * i, 300);
        r.sampling = *s;
        r.depth = depth;
        r.acceptance = acceptance;
        r.ignore_eos = true;
        r.stop = (struct stop_strings){stop, 2};
        got[i] = (struct answer){0};
        gen_forget(b.q[i]);
        assert_int_equal(gen_start(b.q[i], &r, on_token, &got[i], &e), 0);
        assert_int_equal(gen_prefill(b.q[i], 0, NULL, &e), 0);
    }
    atomic_store(&n_alloc, 0);
    atomic_store(&counting, 1);
    int rc = 0;
    while (!rc && got[0].n + got[1].n < 256 && !gen_stop_reason(b.q[0]) && !gen_stop_reason(b.q[1]))
        rc = gen_round(b.q, 2, &e);
    atomic_store(&counting, 0);
    assert_int_equal(rc, 0);
    assert_true(got[0].n + got[1].n >= 256);
    assert_int_equal(atomic_load(&n_alloc), 0);
    assert_true(got[0].n_text > 100);
}

static void test_no_allocation(void **state)
{
    (void)state;
    struct logit_bias bias = {198, 1};
    struct sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    struct sampling sampled = {.temperature = 0.7, .top_p = 0.95, .top_k = 50, .repetition_penalty = 1.1, .presence_penalty = 0.1,
                               .frequency_penalty = 0.1, .bias = &bias, .n_bias = 1};
    struct sampling whole = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
#ifndef CAN_COUNT
    printf("SKIPPED: allocations can't be counted with this C library or sanitizer; the answers run uncounted\n");
#endif
    count_tokens(&greedy, -1, ACCEPT_SEEDED);
    count_tokens(&sampled, -1, ACCEPT_SEEDED);
    count_tokens(&sampled, 4, ACCEPT_EXACT);
    count_tokens(&whole, 3, ACCEPT_EXACT);
    count_tokens(&whole, 0, ACCEPT_SEEDED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_count), cmocka_unit_test(test_no_allocation)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
