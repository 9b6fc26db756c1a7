/* The sampler's law on a model's own rows: distributions of a prompt's next tokens and of the drafts for them are
 * computed once and kept in a tree; the acceptance rules that serve then run over it many times with fixed seeds, and
 * the first two tokens they emit are compared with their exact law by G-tests, Holm-corrected over all of them. A
 * planted wrong rule must be seen by the same tests. */
#ifndef MEASURE_LAW_H
#define MEASURE_LAW_H

#include "measure/identity.h"

enum { LAW_TESTS_MAX = 256 };

struct law_options {
    const struct text_prompt *prompts;
    int n_prompts;
    int top_k;     // most tokens a distribution keeps: their powers are the rows computed
    int64_t draws; // a test
    uint64_t seed;
    measure_progress_fn *progress;
    void *ud;
};

struct law_test {
    int prompt, depth;
    double temperature;
    const char *rule; // "exact, mtp", "exact, copy", "seeded, mtp", "planted"
    int cells;
    double g, p; // p: Holm-adjusted over the tests of sound rules, or over the planted ones
};

struct law_result {
    struct law_test test[LAW_TESTS_MAX], planted[LAW_TESTS_MAX];
    int n_tests, n_planted;
    int rows;           // of logits computed
    double worst, planted_best; // smallest adjusted p of each group, 1 without tests
};

enum { LAW_SEQS = 1 };
MUST_CHECK int law_run(struct engine *g, const struct instance *in, const struct law_options *o, struct law_result *r, struct err *e);

#endif
