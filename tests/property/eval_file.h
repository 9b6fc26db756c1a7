/* eval.json of the demo model: prompts of four kinds as token ids, greedy continuations, and the figures of a
 * decoder with draft depth 3 on them. */
#ifndef TESTS_EVAL_FILE_H
#define TESTS_EVAL_FILE_H

#include "measure/identity.h"

enum { EVAL_CASES = 16, EVAL_DEPTH = 3 };

struct eval_ids {
    int32_t *v;
    int n;
};

struct eval_file {
    int new_tokens;
    struct eval_kind {
        double acceptance[EVAL_DEPTH], tokens_per_round;
        struct eval_ids prompt[EVAL_CASES], continuation[EVAL_CASES];
        int n_cases;
    } kind[KINDS];
};

/* Exits with a sentence if the file is not as expected. */
void eval_read(struct eval_file *f, const char *model);
void eval_free(struct eval_file *f);

/* The checkout's demo model, found beside the running program; caller frees. */
char *eval_demo(void);

/* Prompts for identity runs, n_per_kind of each kind, at most 4 * EVAL_CASES: the prompts, then prefixes of prompt
 * and continuation. The last `ending` of each kind end at an end-of-text token. Caller frees the array and the ids of
 * its first element, which hold all. */
struct text_prompt *eval_prompts(const struct eval_file *f, int n_per_kind, int ending, int *n);

#endif
