/* Files of a repository into a folder: in parallel ranges, resumed from whatever an earlier run left (part.h), each
 * proved by its checksum. One thread; whatever happens, the folder's state can be gone on with. */
#ifndef PULL_DOWNLOAD_H
#define PULL_DOWNLOAD_H

#include "pull/hub.h"

struct download_progress {
    uint64_t total, done;    // bytes of all files; of blocks that lie on disk
    uint64_t checked;        // bytes of done that the checksums have seen
    uint64_t fetched;        // bytes of content that came in this run
    uint64_t again;          // of them, those that were there before
    const char *waiting;     // why nothing moves, or NULL
    const char *name;        // a file on its way
};

struct download {
    struct hub *hub;
    const struct hub_repo *repo;
    const int *file; // indices into repo's files
    int n_files;
    const char *dir;      // exists
    const char *journals; // folder for journals, exists
    int connections;      // 1 to DOWNLOAD_MAX_CONNECTIONS
    void *ud;
    void (*on_progress)(void *ud, const struct download_progress *p); // several times a second; may be NULL
};
enum { DOWNLOAD_MAX_CONNECTIONS = 32 };

/* Bytes still to come, by what lies in the folder now. */
uint64_t download_left(const struct download *d);
/* 0: every file is there, whole, with the right checksum, and no journal is left. */
MUST_CHECK int download_run(const struct download *d, struct download_progress *p, struct err *e);

#endif
