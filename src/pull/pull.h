/* `foresay pull`: from a name to a model in our folder. The partial folder lies beside the final one and becomes it by one
 * rename; whatever ends the program before, the next pull goes on from there. */
#ifndef PULL_PULL_H
#define PULL_PULL_H

#include "pull/choose.h"
#include "pull/download.h"

struct pull_options {
    const char *name, *set, *file; // set and file may be NULL
    bool anyway;                   // also if another tool's folder holds it
    int connections;               // 0: 8
    struct fetch_options fetch;
    void *ud;
    void (*on_progress)(void *ud, const struct download_progress *p);
    void (*on_note)(void *ud, const char *sentence);
    void (*on_wait)(const char *why, int ms);
};

struct pull_report {
    char *name, *path; // as `foresay list` shows it; the folder or GGUF file to use
    char *left_out;    // lines "FILE: why"
    char *offers;      // after a failure for want of --quant: what there is
    char commit[41];
    uint64_t bytes, fetched, again, api_bytes;
    int n_files, n_requests;
    bool was_here;     // nothing had to be fetched
};

MUST_CHECK int pull_run(const struct pull_options *o, struct pull_report *r, struct err *e);
void pull_report_free(struct pull_report *r);

#endif
