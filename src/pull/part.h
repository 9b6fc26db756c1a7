/* One file on its way: the bytes lie at their places under the final name, a journal beside it says which blocks of
 * 256 KiB are whole, and the hash of each. So the state on disk describes itself: after a kill at any byte, or a power
 * cut, every block is either proved by its hash or fetched again. The whole is proved by the checksum, which is
 * computed while the finished blocks at the front grow; each is read back and compared on that way. */
#ifndef PULL_PART_H
#define PULL_PART_H

#include <stdbool.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/err.h"

enum { PART_BLOCK = 256 * 1024 };
enum part_mark { PART_OPEN, PART_TAKEN, PART_DONE };

struct part {
    char *path, *journal;
    const char *name; // for messages; the caller's
    int fd, journal_fd;
    uint64_t size, n_blocks, n_done;
    enum digest_kind kind;
    char want[DIGEST_HEX];
    uint64_t *hash;      // of done blocks, 0 otherwise
    uint8_t *mark;       // enum part_mark by block
    uint64_t front;      // blocks [0, front) are in the digest
    struct digest *digest;
    bool is_trusted;     // done blocks carry hashes; false: a whole file without a journal, only the checksum can tell
};

/* path: where the file will lie; the folder exists. journal: its journal. What is there is used if it fits, else it
 * goes. size: at most PART_MAX. */
static const uint64_t PART_MAX = (uint64_t)4 << 40;
MUST_CHECK int part_open(struct part *p, const char *path, const char *journal, const char *name, uint64_t size, enum digest_kind kind,
                         const char *want, struct err *e);
void part_close(struct part *p);
/* Bytes of it that are there, unproved, without changing anything. */
uint64_t part_present(const char *path, const char *journal, uint64_t size, enum digest_kind kind, const char *want);

MUST_CHECK int part_write(struct part *p, uint64_t offset, const void *data, size_t n, struct err *e);
uint64_t part_block_end(const struct part *p, uint64_t block); // offset after its last byte
MUST_CHECK int part_block_done(struct part *p, uint64_t block, uint64_t hash, struct err *e);

/* Moves the front on by at most max_blocks. A block that isn't what its hash says becomes open again. Returns how
 * many were read, 0 at the front's end, or an error. */
MUST_CHECK int part_advance(struct part *p, int max_blocks, struct err *e);
static inline bool part_is_whole(const struct part *p) { return p->front == p->n_blocks; }
/* Once it is whole: 0 if the checksum is right, with the journal gone and the file flushed to disk; 1 if it is wrong:
 * got holds what was found, and only part_reset or part_close may follow. */
MUST_CHECK int part_verify(struct part *p, char got[DIGEST_HEX], struct err *e);
/* Drops everything: the content changed on the server. */
MUST_CHECK int part_reset(struct part *p, struct err *e);

/* Hash of a block for the journal, never 0. */
uint64_t part_hash(const void *data, size_t n);
static inline uint64_t part_hash_nonzero(uint64_t h) { return h ? h : 1; }

#endif
