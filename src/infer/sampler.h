/* From logits to a decision, in double precision: penalties and bias, temperature, top-k, top-p, min-p,
 * renormalization; then a draw. Order and definitions (transformers/vLLM where they agree):
 *   1. repetition_penalty r, once per distinct token of the history (prompt and output): x > 0 ? x/r : x*r;
 *      then presence (once) and frequency (times count) are subtracted; then logit_bias is added.
 *   2. temperature: x/T. T = 0: point mass on the argmax of step 1, lowest id on ties; truncation is ignored.
 *   3. top_k: exactly k tokens, lower id first among equals. 0 or >= V: off.
 *   4. top_p on the renormalized rest, descending (ties: lower id first): a token stays while the mass before
 *      it is < top_p; at least one stays.
 *   5. min_p on the renormalized rest: p >= min_p * max p.
 *   6. renormalize.
 * The softmax denominator over the whole vocabulary is a sum in 64-bit fixed point, so it has no order. */
#ifndef INFER_SAMPLER_H
#define INFER_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "text/json.h"

struct logit_bias {
    int32_t id;
    double bias;
};

struct sampling {
    double temperature; // >= 0
    int32_t top_k;      // 0: off
    double top_p;       // (0, 1]
    double min_p;       // [0, 1]
    double repetition_penalty; // > 0, 1: off
    double presence_penalty, frequency_penalty;
    struct logit_bias *bias; // owned by whoever filled it
    int n_bias;
};
struct sampling sampling_neutral(void); // T = 1, everything off

enum sampling_field {
    SAMPLING_TEMPERATURE,
    SAMPLING_TOP_K,
    SAMPLING_TOP_P,
    SAMPLING_MIN_P,
    SAMPLING_REPETITION,
    SAMPLING_PRESENCE,
    SAMPLING_FREQUENCY,
    N_SAMPLING,
};
extern const char *const sampling_names[N_SAMPLING]; // as in JSON
double sampling_value(const struct sampling *s, int field);
/* "temperature 0.6 (generation_config.json), top_k 0 (default), ..." */
void sampling_describe(const struct sampling *s, const char *const source[N_SAMPLING], struct buf *out);
/* Reads the fields present in a JSON object (temperature, top_k, top_p, min_p, repetition_penalty,
 * presence_penalty, frequency_penalty, logit_bias as {"id": bias}) over *s; null counts as absent,
 * top_k -1 as off. Invalid fields are an error that names each and leaves the others applied. A
 * logit_bias present replaces s->bias without freeing the old one (it may be shared with defaults); the
 * new one is the caller's to free. */
MUST_CHECK int sampling_read(struct sampling *s, const struct json *o, struct err *e);
void sampling_free(struct sampling *s);

/* Token counts of prompt and output so far. Push and pop, so that a draft's rows see their own prefix. */
struct history;
struct history *history_new(int n_vocab);
void history_free(struct history *h);
void history_push(struct history *h, int32_t id);
void history_pop(struct history *h, int32_t id);
void history_clear(struct history *h);

/* A sparse distribution: p > 0 in descending order, ties by lower id. Sums to 1 within rounding. */
struct dist {
    int n, cap;
    int32_t *id;
    double *p;
};
void dist_init(struct dist *d, int n_vocab); // reserves for the worst case: no allocation afterwards
void dist_free(struct dist *d);
double dist_p(const struct dist *d, int32_t id); // 0 if absent

/* Working memory of dist_build for one thread. */
struct sampler;
struct sampler *sampler_new(int n_vocab);
void sampler_free(struct sampler *s);
/* logits: fp32 [n_vocab]; ids >= n_valid are padding rows of the embedding and never sampled. Returns
 * ERR_NUMERIC if a logit among the valid ones is NaN or +infinity, or all are -infinity. No allocation. */
MUST_CHECK int dist_build(struct sampler *s, struct dist *d, const float *logits, int n_valid,
                          const struct sampling *set, const struct history *h);

/* argmax by the same definition as step 2 with T = 0 (penalties and bias applied); -1 where dist_build would
 * return ERR_NUMERIC. */
int32_t sampler_argmax(struct sampler *s, const float *logits, int n_valid, const struct sampling *set,
                       const struct history *h);

#endif
