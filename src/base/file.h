/* Files: read-only mappings, bounded whole-file reads, folder listings, paths. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct filemap {
    const uint8_t *p; // NULL for an empty file
    size_t n;
};
MUST_CHECK int file_map(struct filemap *m, const char *path, struct err *e);
void file_unmap(struct filemap *m);

/* Reads a regular file of at most max bytes. *out is NUL-terminated, freed by the caller. */
MUST_CHECK int file_read(const char *path, size_t max, char **out, size_t *n, struct err *e);
/* Reads everything from a descriptor (standard input), same rules. name is for messages. */
MUST_CHECK int fd_read_all(int fd, const char *name, size_t max, char **out, size_t *n, struct err *e);
/* Writes a whole new file: temporary name, flush to disk, rename. */
MUST_CHECK int file_write(const char *path, const void *p, size_t n, struct err *e);

bool file_exists(const char *path); // anything there, be it a link that leads nowhere
bool file_is_regular(const char *path);
bool file_is_dir(const char *path);

/* Names in a folder, sorted, without "." and ".."; freed with file_list_free. */
struct filelist {
    char **name;
    int n;
};
MUST_CHECK int file_list(struct filelist *l, const char *dir, struct err *e);
void file_list_free(struct filelist *l);

char *path_join(const char *dir, const char *name); // caller frees
const char *path_base(const char *path);            // part after the last '/'

#endif
