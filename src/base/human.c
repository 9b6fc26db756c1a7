#include "base/human.h"

#include <stdio.h>

const char *human_bytes(double bytes, char *out, size_t n)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    for (; bytes >= 1024 && u < 4; u++)
        bytes /= 1024;
    snprintf(out, n, u ? "%.1f %s" : "%.0f %s", bytes, unit[u]);
    return out;
}

const char *human_seconds(double seconds, char *out, size_t n)
{
    long s = seconds < 0 ? 0 : seconds > 1e9 ? 1000000000 : (long)(seconds + 0.5);
    if (s < 60)
        snprintf(out, n, "%ld s", s);
    else if (s < 3600)
        snprintf(out, n, "%ld min %ld s", s / 60, s % 60);
    else
        snprintf(out, n, "%ld h %ld min", s / 3600, s % 3600 / 60);
    return out;
}
