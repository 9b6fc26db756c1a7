#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

static int os_error(struct err *e, const char *path, const char *what)
{
    char why[128];
    return err_set(e, ERR_IO, "%s: cannot %s: %s", path, what, err_os(errno, why, sizeof why));
}

static int open_regular(const char *path, size_t *size, struct err *e)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a FIFO without a writer must not hang us
    if (fd < 0)
        return os_error(e, path, "open");
    if (fstat(fd, &st)) {
        int rc = os_error(e, path, "read");
        close(fd);
        return rc;
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return err_set(e, ERR_IO, "%s: expected a regular file, found %s", path,
                       S_ISDIR(st.st_mode) ? "a folder" : "a special file");
    }
    *size = (size_t)st.st_size;
    return fd;
}

int file_map(struct filemap *m, const char *path, struct err *e)
{
    *m = (struct filemap){0};
    size_t n;
    int fd = open_regular(path, &n, e);
    if (fd < 0)
        return fd;
    if (n) {
        void *p = mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            int rc = os_error(e, path, "map");
            close(fd);
            return rc;
        }
        m->p = p;
        m->n = n;
    }
    close(fd);
    return 0;
}

void file_unmap(struct filemap *m)
{
    if (m->p)
        munmap((void *)(uintptr_t)m->p, m->n);
    *m = (struct filemap){0};
}

int fd_read_all(int fd, const char *name, size_t max, char **out, size_t *n, struct err *e)
{
    size_t cap = 4096, used = 0;
    char *p = xmalloc(cap + 1);
    for (;;) {
        ssize_t got = read(fd, p + used, cap - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            int rc = os_error(e, name, "read");
            free(p);
            return rc;
        }
        if (!got)
            break;
        used += (size_t)got;
        if (used > max) {
            free(p);
            return err_set(e, ERR_LIMIT, "%s: larger than the limit of %zu bytes", name, max);
        }
        if (used == cap) {
            char *q = realloc(p, 2 * cap + 1);
            if (!q) {
                free(p);
                return err_set(e, ERR_NOMEM, "%s: no memory for more than %zu bytes", name, used);
            }
            p = q;
            cap *= 2;
        }
    }
    p[used] = 0;
    *out = p;
    *n = used;
    return 0;
}

int file_read(const char *path, size_t max, char **out, size_t *n, struct err *e)
{
    size_t size;
    int fd = open_regular(path, &size, e);
    if (fd < 0)
        return fd;
    int rc = size > max ? err_set(e, ERR_LIMIT, "%s: %zu bytes, larger than the limit of %zu", path, size, max)
                        : fd_read_all(fd, path, max, out, n, e);
    close(fd);
    return rc;
}

int stream_read(const char *path, size_t max, char **out, size_t *n, struct err *e)
{
    char why[128];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(e, ERR_IO, "%s: %s", path, err_os(errno, why, sizeof why));
    int rc = fd_read_all(fd, path, max, out, n, e);
    close(fd);
    return rc;
}

static int write_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return -1;
        p += w;
        n -= (size_t)w;
    }
    return 0;
}

int file_write(const char *path, const void *p, size_t n, struct err *e)
{
    char *tmp = xmalloc(strlen(path) + 32);
    sprintf(tmp, "%s.tmp.%ld", path, (long)getpid());
    int rc = 0, fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        rc = os_error(e, tmp, "create");
        free(tmp);
        return rc;
    }
    if (write_all(fd, p, n) || fsync(fd))
        rc = os_error(e, tmp, "write");
    if (close(fd) && !rc)
        rc = os_error(e, tmp, "write");
    if (!rc && rename(tmp, path))
        rc = os_error(e, path, "replace");
    if (rc)
        unlink(tmp);
    free(tmp);
    return rc;
}

int fd_read_at(int fd, void *p, size_t n, uint64_t offset)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(fd, (char *)p + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            errno = got ? errno : ENODATA;
            return -1;
        }
        done += (size_t)got;
    }
    return 0;
}

int fd_write_at(int fd, const void *p, size_t n, uint64_t offset)
{
    for (size_t done = 0; done < n;) {
        ssize_t put = pwrite(fd, (const char *)p + done, n - done, (off_t)(offset + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return -1;
        done += (size_t)put;
    }
    return 0;
}

int file_make_dirs(const char *path, struct err *e)
{
    char *p = xstrdup(path);
    int rc = 0;
    for (char *s = p + 1; *p && !rc; s++) {
        char c = *s;
        if (c && c != '/')
            continue;
        *s = 0;
        if (mkdir(p, 0755) && !file_is_dir(p))
            rc = os_error(e, p, "create folder");
        *s = c;
        if (!c)
            break;
    }
    free(p);
    return rc;
}

int file_remove_tree(const char *path, struct err *e)
{
    struct stat st;
    struct filelist l;
    if (lstat(path, &st))
        return errno == ENOENT ? 0 : os_error(e, path, "delete");
    if (!S_ISDIR(st.st_mode))
        return unlink(path) ? os_error(e, path, "delete") : 0;
    int rc = file_list(&l, path, e);
    if (rc)
        return rc;
    for (int i = 0; i < l.n && !rc; i++) {
        char *p = path_join(path, l.name[i]);
        rc = file_remove_tree(p, e);
        free(p);
    }
    file_list_free(&l);
    return rc ? rc : rmdir(path) ? os_error(e, path, "delete") : 0;
}

int file_lock(const char *path, int *fd, struct err *e)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    *fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (*fd < 0)
        return os_error(e, path, "open");
    if (!fcntl(*fd, F_SETLK, &whole))
        return 0;
    int rc = errno == EACCES || errno == EAGAIN ? 1 : os_error(e, path, "lock");
    close(*fd);
    *fd = -1;
    return rc;
}

void file_sync_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)!fsync(fd); // some file systems refuse it for folders: nothing more can be done then
    close(fd);
}

bool file_exists(const char *path)
{
    struct stat st;
    return !lstat(path, &st);
}

bool file_is_regular(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISREG(st.st_mode);
}

bool file_is_dir(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

bool file_is_plain(const char *path)
{
    struct stat st;
    return !lstat(path, &st) && S_ISREG(st.st_mode);
}

bool file_is_link(const char *path)
{
    struct stat st;
    return !lstat(path, &st) && S_ISLNK(st.st_mode);
}

uint64_t file_size(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISREG(st.st_mode) && st.st_size > 0 ? (uint64_t)st.st_size : 0;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

int file_list(struct filelist *l, const char *dir, struct err *e)
{
    *l = (struct filelist){0};
    DIR *d = opendir(dir);
    if (!d)
        return os_error(e, dir, "open folder");
    int cap = 0;
    for (struct dirent *x; (x = readdir(d));) {
        if (!strcmp(x->d_name, ".") || !strcmp(x->d_name, ".."))
            continue;
        if (l->n == cap) {
            cap = cap ? 2 * cap : 32;
            l->name = xrealloc(l->name, (size_t)cap * sizeof *l->name);
        }
        l->name[l->n++] = xstrdup(x->d_name);
    }
    closedir(d);
    if (l->n)
        qsort(l->name, (size_t)l->n, sizeof *l->name, by_name);
    return 0;
}

void file_list_free(struct filelist *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->name[i]);
    free(l->name);
    *l = (struct filelist){0};
}

char *path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir);
    char *p = xmalloc(n + strlen(name) + 2);
    sprintf(p, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
    return p;
}

const char *path_base(const char *path)
{
    const char *s = strrchr(path, '/');
    return s ? s + 1 : path;
}

bool path_ends(const char *path, const char *suffix)
{
    size_t n = strlen(path), m = strlen(suffix);
    return n > m && !strcasecmp(path + n - m, suffix);
}

char *path_expand(const char *path)
{
    const char *home = getenv("HOME");
    return path[0] == '~' && (!path[1] || path[1] == '/') && home && *home ? path_join(home, path + 1 + (path[1] == '/')) : xstrdup(path);
}

bool path_is_inside(const char *name, size_t n)
{
    if (!n || name[0] == '/' || strlen(name) != n || strchr(name, '\\') || strchr(name, ':'))
        return false;
    for (const char *s = name; s; s = strchr(s, '/')) {
        s += *s == '/';
        size_t len = strcspn(s, "/");
        if (!len || (len == 1 && s[0] == '.') || (len == 2 && s[0] == '.' && s[1] == '.'))
            return false;
    }
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return false;
    return true;
}
