/* Stop strings across token borders: text that might still turn into a stop string is held back. */
#ifndef INFER_STOP_H
#define INFER_STOP_H

#include <stdbool.h>

#include "base/buf.h"

struct stop_strings {
    char **s;
    int n;
};

/* Looks at text[from..n): *cut is where a complete stop string begins (the earliest) and true is returned;
 * otherwise *safe is how much of the text can be shown: what follows may be the beginning of a stop string.
 * from: bytes already known to be free of complete ones. */
bool stop_find(const struct stop_strings *st, const char *text, size_t from, size_t n, size_t *cut, size_t *safe, int *which);

#endif
