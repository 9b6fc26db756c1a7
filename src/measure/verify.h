/* Does the law hold for this model on this machine? Five steps, each with its own evidence:
 *   weights    every stored number is finite
 *   purity     random schedules against one token at a time (schedule.h)
 *   identity   greedy and seeded answers with every depth and drafter against plain ones (identity.h)
 *   law        exact acceptance on the model's own rows against the sampler's law (law.h)
 *   ab         on request: 1,000 continuations of 4 tokens with exact acceptance against as many plain ones
 * and, for information, decoding with auto against plain decoding by kind of text. Budgets follow the measured speed
 * of the model. Time decides how much is tried, never what passes. */
#ifndef MEASURE_VERIFY_H
#define MEASURE_VERIFY_H

#include "measure/law.h"
#include "measure/schedule.h"

enum { AB_CONTINUATIONS = 1000, AB_TOKENS = 4, VERIFY_SLOTS = 4, VERIFY_SEQS = 2 * VERIFY_SLOTS + LAW_SEQS };
/* Tokens of KV memory that an engine for it needs, with prompts of at most n tokens. */
#define VERIFY_CTX(n) (VERIFY_SEQS * ((n) + 128 + COPY_MAX + 2 * PAGE_TOKENS))

/* step: "weights", "purity", ...; done in [0, 1]. false ends the run with ERR_CANCEL. */
typedef bool verify_progress_fn(void *ud, const char *step, double done);

struct verify_options {
    const char *model;  // path, for the schedules' own engines
    const char *isa;
    int threads;
    const struct text_prompt *prompts; // of all kinds, taking turns
    int n_prompts;
    double seconds;     // about as long it may take, without --ab
    int64_t rows;       // of the schedules, 0: by the model's speed
    uint64_t seed;
    bool ab;
    verify_progress_fn *progress;
    void *ud;
};

struct verify_ab {
    int cells[AB_TOKENS];
    double p[AB_TOKENS], distance[AB_TOKENS]; // p: Holm-adjusted; distance: total variation of the two samples
    double noise[AB_TOKENS];                  // what two samples of one law would show on average
    double least;
    double rate_ratio; // tokens per round of the accelerated arm
};

struct verify_report {
    double step_s;     // of one plain row
    bool finite, is_pure, is_identical, is_lawful, ab_done, ab_holds;
    bool law_has_power; // the planted wrong rule was seen; not so where every row is certain of its token
    char not_finite[512];
    struct schedule_options purity_options;
    struct schedule_result purity;
    struct buf purity_text; // a difference, if there is one
    struct identity_result identity;
    int identity_tokens, identity_prompts;
    bool identity_quick;
    struct law_result law;
    int64_t law_draws;
    int law_top_k;
    struct verify_ab ab;
    double plain_rate[KINDS], auto_rate[KINDS]; // tokens per second, medians
    int rate_tokens;
    double seconds[6]; // weights, purity, identity, law, ab, rates
    const char *failed; // the first step that failed, NULL
};

extern const char *const verify_settings[3]; // names of the settings of the identity step

/* Returns an error only where nothing can be said. The report is freed by verify_free in any case. */
MUST_CHECK int verify_run(struct engine *g, const struct instance *in, const struct verify_options *o, struct verify_report *r,
                          struct err *e);
void verify_free(struct verify_report *r);
/* The report as text to post, without the lines on the machine. */
void verify_text(const struct verify_report *r, struct buf *out);
void verify_json(const struct verify_report *r, struct buf *out); // members without braces

#endif
