/* Generation: one answer in progress over one sequence of the engine. Draft, verify, accept, with text, stop
 * rules and statistics. Several answers advance together in one round.
 *
 * The text of a greedy or seeded answer does not depend on drafter, depth or company; an exact one has the
 * law of plain sampling (docs/why-the-output-cannot-change.md). */
#ifndef INFER_GEN_H
#define INFER_GEN_H

#include <stdatomic.h>

#include "infer/accept.h"
#include "infer/depth.h"
#include "infer/instance.h"
#include "infer/stop.h"

enum acceptance { ACCEPT_SEEDED, ACCEPT_EXACT };
enum stop_reason { STOP_NONE, STOP_EOS, STOP_STRING, STOP_MAX_TOKENS, STOP_CONTEXT, STOP_CANCELLED };
const char *stop_reason_name(enum stop_reason r);

/* Index of a drafter in depth plans and statistics. */
enum { DRAFTER_MTP, DRAFTER_COPY, N_DRAFTERS };
extern const char *const drafter_names[N_DRAFTERS];

struct gen_request {
    const int32_t *prompt;
    int n_prompt;
    struct sampling sampling;
    enum acceptance acceptance; // for temperature > 0
    bool has_seed;
    uint64_t seed; // drawn and reported if not given
    uint32_t choice;
    int max_tokens; // 0: up to the context limit
    struct stop_strings stop;
    bool ignore_eos;
    int depth;        // -1: auto, 0: plain, else fixed
    bool use_mtp, use_copy;
    bool want_hash;   // chain the logits rows of emitted tokens
};

struct gen_stats {
    int64_t prompt_tokens, cached_tokens, computed_tokens, emitted, rounds; // computed: prompt tokens read, not cached
    int64_t proposed[COPY_MAX], accepted[COPY_MAX]; // by position
    int64_t drafted_by[N_DRAFTERS], kept_from[N_DRAFTERS];
    int64_t prefill_ns, first_ns, last_ns, start_ns; // first, last: times of the first and last emitted token
    int64_t draft_ns, verify_ns, decide_ns;
    int64_t undraftable; // emitted tokens that the draft vocabulary lacked: what its reduction costs
    int prior_agreed, prior_n; // head against the prompt's own last tokens
    int reread_at;             // -1, or the first token index at which the kept prefix differed
};

/* Called for each emitted token. draft: 0 if the target produced it, else its position (1..) in an accepted
 * draft. text: what can be shown after it (may be empty; held back text comes with a later token). */
struct token_event {
    int32_t id;
    const char *text;
    size_t n_text;
    int draft, drafter;
};
typedef void gen_token_fn(void *ud, const struct token_event *ev);

struct gen;

/* Reserves all working memory for answers on this engine. */
MUST_CHECK int gen_new(struct gen **out, struct engine *g, const struct instance *in, struct err *e);
void gen_free(struct gen *q);

/* Begins an answer. The kept prefix of the previous one is used as far as the prompt agrees with it.
 * The request is copied, its prompt too; stop strings and biases stay the caller's. */
MUST_CHECK int gen_start(struct gen *q, const struct gen_request *r, gen_token_fn *fn, void *ud, struct err *e);
/* Reads up to max_rows more prompt tokens (0: all). Returns 1 while some are left, 0 when the first token has
 * been emitted. progress: tokens read so far in *done if not NULL. */
MUST_CHECK int gen_prefill(struct gen *q, int max_rows, int *done, struct err *e);
/* One round for n answers that are past prefill and not finished. After an error the answers whose own logits
 * were at fault are cancelled; the others can go on. */
MUST_CHECK int gen_round(struct gen **q, int n, struct err *e);
/* Everything at once; cancel may be set from a signal handler or another thread. */
MUST_CHECK int gen_run(struct gen *q, const struct gen_request *r, gen_token_fn *fn, void *ud, atomic_int *cancel, struct err *e);

/* What an answer is expected to take, by measured costs; call between gen_start and gen_prefill. */
struct gen_forecast {
    double prefill_s, decode_rate, plain_rate; // seconds; tokens per second; 0: unknown
};
struct gen_forecast gen_forecast(const struct gen *q);

enum stop_reason gen_stop_reason(const struct gen *q); // STOP_NONE while running
void gen_cancel(struct gen *q);                         // stop with what has been emitted
const struct gen_stats *gen_stats(const struct gen *q);
/* Tokens per second, 0 if too short to tell. decode: (emitted - 1) / (time of last - time of first). */
double gen_decode_rate(const struct gen_stats *st);
double gen_prefill_rate(const struct gen_stats *st); // computed prompt tokens, cached ones excluded
uint64_t gen_seed(const struct gen *q);
uint64_t gen_logits_hash(const struct gen *q);
const int32_t *gen_output(const struct gen *q, int *n);  // emitted ids, EOS included
const struct buf *gen_text(const struct gen *q);         // shown text
int gen_context(const struct gen *q, int *max);          // tokens in the sequence, and the most there may be
void gen_forget(struct gen *q);                          // drop the kept prefix

#endif
