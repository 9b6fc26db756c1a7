/* The part of os.h that Linux and macOS share, and the calls that differ only in a constant. */
#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/os.h"

#ifdef __APPLE__
#include <mach-o/dyld.h>
#include <sys/sysctl.h>
#endif

enum { HUGE = 2 * 1024 * 1024 };

void *os_map_anon(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
#ifdef MADV_HUGEPAGE
    if (n >= HUGE)
        madvise(p, n, MADV_HUGEPAGE);
#endif
    return p;
}

void os_unmap(void *p, size_t n) { munmap(p, n); }

char *os_real_path(const char *path) { return realpath(path, NULL); }

uint64_t os_disk_free(const char *path)
{
    struct statvfs v;
    return statvfs(path, &v) ? UINT64_MAX : (uint64_t)v.f_bavail * (uint64_t)v.f_frsize;
}

uint64_t os_peak_rss(void)
{
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u))
        return 0;
#ifdef __APPLE__
    return (uint64_t)u.ru_maxrss; // bytes there, KiB elsewhere
#else
    return (uint64_t)u.ru_maxrss * 1024;
#endif
}

uint64_t os_mem_total(void)
{
#ifdef __APPLE__
    uint64_t v = 0;
    size_t n = sizeof v;
    return sysctlbyname("hw.memsize", &v, &n, NULL, 0) ? 0 : v;
#else
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
#endif
}

#ifdef __APPLE__
int os_cpu_count(void)
{
    int v = 1;
    size_t n = sizeof v;
    // performance cores where the machine tells them apart
    if (sysctlbyname("hw.perflevel0.logicalcpu", &v, &n, NULL, 0))
        v = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return v > 0 ? v : 1;
}

uint64_t os_mem_available(void) { return 0; }

int os_exe_path(char *out, size_t n)
{
    uint32_t size = (uint32_t)n;
    return _NSGetExecutablePath(out, &size);
}

const char *os_cpu_name(void)
{
    static char name[128];
    size_t n = sizeof name - 1;
    if (!name[0] && sysctlbyname("machdep.cpu.brand_string", name, &n, NULL, 0))
        name[0] = 0;
    return name;
}
#else
#include <sched.h>

int os_cpu_count(void)
{
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set))
        return CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

int os_exe_path(char *out, size_t n)
{
    ssize_t len = readlink("/proc/self/exe", out, n - 1);
    if (len < 0)
        return -1;
    out[len] = 0;
    return 0;
}

/* Value after "key" in a "key: value" file of /proc, first match; 0 if absent. */
static int proc_line(const char *path, const char *key, char *out, size_t n)
{
    FILE *f = fopen(path, "r");
    char line[512];
    int found = 0;
    while (f && !found && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) || !colon)
            continue;
        char *v = colon + 1;
        while (*v == ' ' || *v == '\t')
            v++;
        v[strcspn(v, "\n")] = 0;
        snprintf(out, n, "%s", v);
        found = 1;
    }
    if (f)
        fclose(f);
    return found;
}

uint64_t os_mem_available(void)
{
    char v[64];
    unsigned long long kib = 0;
    if (proc_line("/proc/meminfo", "MemAvailable", v, sizeof v))
        for (const char *c = v; *c >= '0' && *c <= '9'; c++)
            kib = kib * 10 + (unsigned)(*c - '0');
    return kib * 1024;
}

const char *os_cpu_name(void)
{
    static char name[128];
    if (!name[0])
        proc_line("/proc/cpuinfo", "model name", name, sizeof name);
    return name;
}
#endif
