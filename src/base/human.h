/* Quantities as people read them. Both write into out and return it. */
#ifndef BASE_HUMAN_H
#define BASE_HUMAN_H

#include <stddef.h>

const char *human_bytes(double bytes, char *out, size_t n);     // 1234567 -> "1.2 MiB"
const char *human_seconds(double seconds, char *out, size_t n); // 151 -> "2 min 31 s"

#endif
