#include "infer/stop.h"

#include <string.h>

bool stop_find(const struct stop_strings *st, const char *text, size_t from, size_t n, size_t *cut, size_t *safe, int *which)
{
    bool found = false;
    *safe = n;
    for (int i = 0; i < st->n; i++) {
        size_t len = strlen(st->s[i]), at = from + 1 > len ? from + 1 - len : 0;
        if (!len)
            continue;
        for (; at + len <= n; at++)
            if (!memcmp(text + at, st->s[i], len)) {
                if (!found || at < *cut) {
                    *cut = at;
                    *which = i;
                }
                found = true;
                break;
            }
        for (size_t k = len - 1 < n ? len - 1 : n; k > 0; k--) // the longest tail that begins this string
            if (!memcmp(text + n - k, st->s[i], k)) {
                if (n - k < *safe)
                    *safe = n - k;
                break;
            }
    }
    return found;
}
