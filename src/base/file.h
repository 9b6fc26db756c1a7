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
/* The same of anything that can be opened: a pipe, a terminal, a regular file. */
MUST_CHECK int stream_read(const char *path, size_t max, char **out, size_t *n, struct err *e);
/* Reads everything from a descriptor (standard input), same rules. name is for messages. */
MUST_CHECK int fd_read_all(int fd, const char *name, size_t max, char **out, size_t *n, struct err *e);
/* Writes a whole new file: temporary name, flush to disk, rename. */
MUST_CHECK int file_write(const char *path, const void *p, size_t n, struct err *e);

/* Whole reads and writes at a place of an open file: 0, or -1 with errno (ENODATA: the file ends before). */
MUST_CHECK int fd_read_at(int fd, void *p, size_t n, uint64_t offset);
MUST_CHECK int fd_write_at(int fd, const void *p, size_t n, uint64_t offset);

MUST_CHECK int file_make_dirs(const char *path, struct err *e); // with the folders above it
/* Deletes a file, or a folder with all it holds; follows no links. */
MUST_CHECK int file_remove_tree(const char *path, struct err *e);
/* Creates path if need be and locks it for this process until *fd is closed, at the latest at its end. 1: another holds it. */
MUST_CHECK int file_lock(const char *path, int *fd, struct err *e);
void file_sync_dir(const char *path); // what was renamed in it survives a power cut

bool file_exists(const char *path); // anything there, be it a link that leads nowhere
bool file_is_regular(const char *path);
bool file_is_dir(const char *path);
bool file_is_plain(const char *path); // a regular file itself, no link to one
bool file_is_link(const char *path);
uint64_t file_size(const char *path); // 0 if it is no regular file

/* Names in a folder, sorted, without "." and ".."; freed with file_list_free. */
struct filelist {
    char **name;
    int n;
};
MUST_CHECK int file_list(struct filelist *l, const char *dir, struct err *e);
void file_list_free(struct filelist *l);

char *path_join(const char *dir, const char *name); // caller frees
const char *path_base(const char *path);            // part after the last '/'
bool path_ends(const char *path, const char *suffix); // in any case of letters, with something before it
char *path_expand(const char *path);                // a leading ~ becomes the home folder; caller frees
/* Names come from strangers: a relative path of n bytes that stays inside its folder and has no bytes that
 * systems or terminals read otherwise. */
bool path_is_inside(const char *name, size_t n);

#endif
