#include "base/rng.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/clock.h"

uint64_t rng_entropy(void)
{
    uint64_t v = 0;
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, &v, sizeof v) != sizeof v)
        v = (uint64_t)clock_ns() * 0x9E3779B97F4A7C15u ^ (uint64_t)getpid();
    if (fd >= 0)
        close(fd);
    return v;
}
