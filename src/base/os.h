/* What differs between operating systems. One os_<name>.c each; nothing above this file has an OS #ifdef. */
#ifndef BASE_OS_H
#define BASE_OS_H

#include <stddef.h>
#include <stdint.h>

void *os_map_anon(size_t n); // zeroed, page aligned, huge pages where they help; NULL if refused
void os_unmap(void *p, size_t n);
int os_cpu_count(void);          // logical CPUs this process may use
uint64_t os_mem_total(void);     // bytes of physical memory, 0 if unknown
uint64_t os_mem_available(void); // bytes that can be had without swapping, 0 if unknown
uint64_t os_disk_free(const char *path); // bytes this user may still write on the volume that holds path; UINT64_MAX if unknown
uint64_t os_peak_rss(void);      // bytes, highest resident size of this process so far
char *os_real_path(const char *path);    // absolute, without links; NULL if nothing is there; caller frees
int os_exe_path(char *out, size_t n); // absolute path of the running program; nonzero if unknown
const char *os_cpu_name(void);   // static string, "" if unknown

/* Tells the core that this is a spin loop. */
static inline void os_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
