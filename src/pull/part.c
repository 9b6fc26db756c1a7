#include "pull/part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/file.h"
#include "base/mem.h"

/* Journal: one line of text padded to HEAD bytes, which says what file it belongs to, then a hash for each block as
 * u64 of this machine, 0 for blocks that aren't there. A hash is written after its block; one that was torn by a
 * crash fits no block. */
enum { HEAD = 160 };

static int os_failed(struct part *p, const char *what, struct err *e)
{
    char why[128];
    if (errno == ENOSPC)
        return err_set(e, ERR_IO, "%s: no space left on the volume; what is there stays: free some and pull again", p->name);
    return err_set(e, ERR_IO, "%s: cannot %s: %s", p->path, what, err_os(errno, why, sizeof why));
}

static void head_of(const struct part *p, char head[HEAD])
{
    memset(head, 0, HEAD);
    snprintf(head, HEAD, "foresay journal 1: %llu bytes, %s %s, blocks of %d\n", (unsigned long long)p->size,
             p->kind == DIGEST_SHA256 ? "sha256" : "git", p->want, PART_BLOCK);
}

static uint64_t block_bytes(const struct part *p, uint64_t block) { return part_block_end(p, block) - block * PART_BLOCK; }

uint64_t part_block_end(const struct part *p, uint64_t block)
{
    return block + 1 == p->n_blocks ? p->size : (block + 1) * PART_BLOCK;
}

uint64_t part_hash(const void *data, size_t n) { return part_hash_nonzero(XXH3_64bits(data, n)); }

static int restart_digest(struct part *p, struct err *e)
{
    digest_free(p->digest);
    p->front = 0;
    p->digest = digest_new(p->kind, p->size);
    return p->digest ? 0 : err_set(e, ERR_UNSUPPORTED, "%s: this system's libcrypto has no %s", p->name, p->kind == DIGEST_GIT ? "SHA-1" : "SHA-256");
}

static int write_fresh_journal(struct part *p, struct err *e)
{
    char head[HEAD];
    head_of(p, head);
    if (p->journal_fd < 0 && (p->journal_fd = open(p->journal, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644)) < 0)
        return os_failed(p, "create the journal of", e);
    if (ftruncate(p->journal_fd, 0) || fd_write_at(p->journal_fd, head, HEAD, 0) ||
        ftruncate(p->journal_fd, (off_t)(HEAD + p->n_blocks * sizeof *p->hash)))
        return os_failed(p, "write the journal of", e);
    return 0;
}

/* What an earlier run left of the file, without changing anything. *fits: there is a journal, and it is this file's. */
static void look(struct part *p, uint64_t bytes_there, bool *fits)
{
    char head[HEAD], found[HEAD];
    size_t n = (size_t)p->n_blocks * sizeof *p->hash;
    bool has_journal = file_exists(p->journal);
    head_of(p, head);
    p->journal_fd = open(p->journal, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    *fits = p->journal_fd >= 0 && !fd_read_at(p->journal_fd, found, HEAD, 0) && !memcmp(head, found, HEAD) &&
            (!n || !fd_read_at(p->journal_fd, p->hash, n, HEAD));
    // without a journal: finished by an earlier run, or put there by somebody; the checksum will tell
    p->is_trusted = has_journal || bytes_there != p->size;
    for (uint64_t i = 0; i < p->n_blocks; i++) {
        bool is_done = p->is_trusted ? *fits && p->hash[i] && part_block_end(p, i) <= bytes_there : true;
        p->mark[i] = is_done ? PART_DONE : PART_OPEN;
        p->hash[i] = is_done && p->is_trusted ? p->hash[i] : 0;
        p->n_done += is_done;
    }
}

/* All that needs no file. */
static int prepare(struct part *p, const char *path, const char *journal, const char *name, uint64_t size, enum digest_kind kind,
                   const char *want, struct err *e)
{
    *p = (struct part){.path = xstrdup(path), .journal = xstrdup(journal), .name = name, .fd = -1, .journal_fd = -1, .size = size, .kind = kind};
    snprintf(p->want, sizeof p->want, "%s", want);
    if (size > PART_MAX)
        return err_set(e, ERR_LIMIT, "%s: %llu bytes, at most %llu are allowed", name, (unsigned long long)size, (unsigned long long)PART_MAX);
    p->n_blocks = (size + PART_BLOCK - 1) / PART_BLOCK;
    p->hash = calloc((size_t)p->n_blocks + 1, sizeof *p->hash);
    p->mark = calloc((size_t)p->n_blocks + 1, 1);
    return p->hash && p->mark ? 0 : err_set(e, ERR_NOMEM, "%s: no memory for its journal", name);
}

uint64_t part_present(const char *path, const char *journal, uint64_t size, enum digest_kind kind, const char *want)
{
    struct part p;
    bool fits;
    uint64_t n = 0;
    if (file_is_regular(path) && !prepare(&p, path, journal, "", size, kind, want, NULL)) {
        look(&p, file_size(path), &fits);
        n = p.n_done * PART_BLOCK < size ? p.n_done * PART_BLOCK : size;
        part_close(&p);
    }
    return n;
}

int part_open(struct part *p, const char *path, const char *journal, const char *name, uint64_t size, enum digest_kind kind,
              const char *want, struct err *e)
{
    struct stat st;
    bool fits;
    int rc = prepare(p, path, journal, name, size, kind, want, e);
    if (!rc && (p->fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644)) < 0)
        rc = os_failed(p, "open", e);
    if (!rc && (fstat(p->fd, &st) || !S_ISREG(st.st_mode)))
        rc = err_set(e, ERR_IO, "%s: expected a regular file", path);
    if (!rc) {
        look(p, (uint64_t)st.st_size, &fits);
        if (p->is_trusted && !fits)
            rc = write_fresh_journal(p, e);
    }
    if (!rc && (uint64_t)st.st_size != size && ftruncate(p->fd, (off_t)size))
        rc = os_failed(p, "reserve", e);
    if (!rc)
        rc = restart_digest(p, e);
    if (rc)
        part_close(p);
    return rc;
}

void part_close(struct part *p)
{
    if (p->fd >= 0)
        close(p->fd);
    if (p->journal_fd >= 0)
        close(p->journal_fd);
    digest_free(p->digest);
    free(p->hash);
    free(p->mark);
    free(p->path);
    free(p->journal);
    *p = (struct part){.fd = -1, .journal_fd = -1};
}

int part_write(struct part *p, uint64_t offset, const void *data, size_t n, struct err *e)
{
    return fd_write_at(p->fd, data, n, offset) ? os_failed(p, "write", e) : 0;
}

static int set_hash(struct part *p, uint64_t block, uint64_t hash, struct err *e)
{
    p->n_done += hash && p->mark[block] != PART_DONE;
    p->n_done -= !hash && p->mark[block] == PART_DONE;
    p->mark[block] = hash ? PART_DONE : PART_OPEN;
    p->hash[block] = hash;
    return fd_write_at(p->journal_fd, &hash, sizeof hash, HEAD + block * sizeof hash) ? os_failed(p, "write the journal of", e) : 0;
}

int part_block_done(struct part *p, uint64_t block, uint64_t hash, struct err *e) { return set_hash(p, block, hash, e); }

int part_advance(struct part *p, int max_blocks, struct err *e)
{
    uint8_t *data = NULL;
    int n = 0, rc = 0;
    for (; n < max_blocks && p->front < p->n_blocks && p->mark[p->front] == PART_DONE; n++) {
        size_t bytes = (size_t)block_bytes(p, p->front);
        data = data ? data : xmalloc(PART_BLOCK);
        if (fd_read_at(p->fd, data, bytes, p->front * PART_BLOCK)) {
            rc = os_failed(p, "read", e);
            break;
        }
        if (p->is_trusted && part_hash(data, bytes) != p->hash[p->front]) {
            rc = set_hash(p, p->front, 0, e);
            break;
        }
        digest_add(p->digest, data, bytes);
        p->front++;
    }
    free(data);
    return rc ? rc : n;
}

int part_reset(struct part *p, struct err *e)
{
    memset(p->hash, 0, (size_t)p->n_blocks * sizeof *p->hash);
    memset(p->mark, PART_OPEN, (size_t)p->n_blocks);
    p->n_done = 0;
    p->is_trusted = true;
    int rc = write_fresh_journal(p, e);
    return rc ? rc : restart_digest(p, e);
}

int part_verify(struct part *p, char got[DIGEST_HEX], struct err *e)
{
    digest_end(p->digest, got);
    p->digest = NULL;
    if (strcmp(got, p->want))
        return 1;
    if (fsync(p->fd))
        return os_failed(p, "write", e);
    unlink(p->journal);
    return 0;
}
