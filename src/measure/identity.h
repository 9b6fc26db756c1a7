/* Identity runs: a prompt decoded plainly and alone, then with every depth and drafter in company of other answers.
 * Greedy and seeded answers must agree token by token, and so must the chained hash of the logits rows that decided
 * them (docs/arithmetic.md). */
#ifndef MEASURE_IDENTITY_H
#define MEASURE_IDENTITY_H

#include "infer/gen.h"

enum { KINDS = 4, IDENTITY_SETTINGS_MAX = 8 };
extern const char *const kind_names[KINDS]; // code, json, en, zh

struct text_prompt {
    int kind; // index of kind_names
    const int32_t *ids;
    int n;
    bool ends; // stop at an end-of-text token; else every answer has the full length
};

struct identity_setting {
    const char *name;
    struct sampling sampling;
    int every; // only prompts whose index is a multiple of it; 0: all
};

/* false ends the run early with ERR_CANCEL. done in [0, 1]. */
typedef bool measure_progress_fn(void *ud, double done);

struct identity_options {
    const struct text_prompt *prompts;
    int n_prompts;
    const struct identity_setting *settings;
    int n_settings;
    int tokens; // longest answer
    int slots;  // answers that advance together
    uint64_t seed;
    bool quick; // only depths 1, 3 and auto
    measure_progress_fn *progress;
    void *ud;
};

/* Counts of one kind of text under one setting, from answers with MTP drafts of depth 3. */
struct identity_counts {
    int64_t rounds, emitted, proposed[DEPTH_MAX], accepted[DEPTH_MAX];
};

struct identity_result {
    int64_t answers[KINDS], tokens[KINDS], differing[KINDS]; // compared with their plain ones
    int64_t prompts[KINDS];
    struct identity_counts counts[IDENTITY_SETTINGS_MAX][KINDS];
    int64_t copied;       // drafts of the copy drafter that were kept, over all answers
    char first[512];      // the first difference, a sentence; empty without one
};

/* Tokens of KV memory and sequences that an engine needs for these options. */
void identity_needs(const struct identity_options *o, int *n_ctx, int *n_seqs);
/* 0 also when answers differ: see r->differing. */
MUST_CHECK int identity_run(struct engine *g, const struct instance *in, const struct identity_options *o, struct identity_result *r,
                            struct err *e);
/* Adds the counts of b to a; keeps a's first difference if it has one. */
void identity_add(struct identity_result *a, const struct identity_result *b);

double counts_tokens_per_round(const struct identity_counts *c);
/* "0.892 0.749 0.849", as far as drafts were proposed. */
void counts_acceptance(const struct identity_counts *c, struct buf *out, const char *sep);

#endif
