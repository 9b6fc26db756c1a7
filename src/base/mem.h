/* Memory. Small control objects come from x*(), which end the program with a sentence when the system has none left; anything whose
 * size depends on input comes from mem_big() and may fail. Arenas hold objects that die together. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stddef.h>

void *xmalloc(size_t n);
void *xcalloc(size_t n, size_t size);
void *xrealloc(void *p, size_t n);
char *xstrdup(const char *s);
char *xstrndup(const char *s, size_t n);

/* Zeroed, 64-byte aligned; sizes of a huge page or more ask the system for huge pages. NULL if refused.
 * Free with mem_big_free and the same size. */
void *mem_big(size_t n);
void mem_big_free(void *p, size_t n);

/* Arena: bump allocation, freed at once. Not thread-safe. Zero-initialised is empty and valid. */
struct arena_block;
struct arena {
    struct arena_block *head;
    size_t used_bytes; // handed out so far
    size_t max_bytes;  // 0: no limit
};
void *arena_alloc(struct arena *a, size_t n); // 16-byte aligned; NULL once max_bytes would be passed
char *arena_strndup(struct arena *a, const char *s, size_t n); // NUL-terminated copy, NULL as above
void arena_free(struct arena *a);

/* x * y into *out; nonzero on overflow. */
static inline int mul_overflow(size_t x, size_t y, size_t *out) { return __builtin_mul_overflow(x, y, out); }

#endif
