/* Parses bytes as JSON; what is accepted must survive being written and parsed again. */
#include <stdlib.h>

#include "text/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct arena a = {.max_bytes = 16 << 20};
    struct json *v, *again;
    struct err e = {0};
    struct buf first, second;
    int64_t i;
    buf_init(&first, 64 << 20);
    buf_init(&second, 64 << 20);
    if (!json_parse(&v, &a, (const char *)p, n, "input", &e)) {
        json_int(v, &i);
        json_num(json_at(v, 0), 0);
        json_write(&first, v);
        if (json_parse(&again, &a, first.p, first.n, "output", &e)) {
            if (e.code != ERR_LIMIT)
                abort();
        } else {
            json_write(&second, again);
            if (first.n != second.n || __builtin_memcmp(first.p, second.p, first.n))
                abort();
        }
    } else if (!e.code || !e.msg[0]) {
        abort();
    }
    buf_free(&first);
    buf_free(&second);
    arena_free(&a);
    return 0;
}
