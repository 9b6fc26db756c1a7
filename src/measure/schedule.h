/* The schedule fuzzer. It draws random schedules over the engine (chunks, mixed batches, drafts that are right,
 * wrong or absent, acceptance, forks, evictions, saves and restores, rows and drafts of the MTP head) and compares
 * every row of logits and every recurrent state with one-token-at-a-time decoding on one thread. By
 * docs/arithmetic.md nothing may differ by a bit. */
#ifndef MEASURE_SCHEDULE_H
#define MEASURE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

struct schedule_options {
    const char *model;
    uint64_t seed;    // of texts and schedules
    int64_t rows;     // rows of logits to compare
    int max_tokens;   // of the longest text
    int branches;     // texts that leave the longest one somewhere
    int threads;      // 0: rounds with 1, 2 and 3
    const char *isa;  // NULL: the best, and some rows with "scalar"
    void (*say)(void *ud, const char *text);    // differences and their schedule; NULL: standard error
    bool (*progress)(void *ud, double done);    // NULL: none; false ends the run with ERR_CANCEL
    void *ud;
};

struct schedule_result {
    int64_t trunk, mtp, drafts, hidden, states; // compared, by kind; rows of logits are the first three
    int64_t steps, forks, evictions, restores, rejected;
    double ref_seconds, seconds;
};

/* 0: nothing differs. 1: a difference, described by say with the schedule that led to it. Negative: the model
 * can't be opened or the engine refused a legal step; described by say. */
int schedule_run(const struct schedule_options *o, struct schedule_result *r);

#endif
