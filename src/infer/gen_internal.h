/* Shared by gen.c (lifetime, prompt, text), round.c (draft, verify, accept) and draft.c (the drafters). */
#ifndef INFER_GEN_INTERNAL_H
#define INFER_GEN_INTERNAL_H

#include "infer/gen.h"
#include "infer/suffix.h"

/* A head that isn't asked is fed seldom, many rows at a time, which costs a small part of feeding it token by token.
 * PEND_ASK: the most that wait when it is asked to draft. */
enum { PEND_MAX = 256, PEND_ASK = PROVISIONAL_MAX + 8, N_COSTS = 4 };

/* Tokens 0..n_tokens-1 are prompt and output; all but the last are in the KV cache once the prompt is read.
 * pend[i] is the trunk's hidden of token mtp_len-1+i: the head row mtp_len+i pairs it with token mtp_len+i. */
struct gen {
    struct engine *g;
    const struct instance *in;
    struct gen_request r;
    gen_token_fn *fn;
    void *ud;
    uint64_t seed, hash;
    bool uses_mtp, uses_copy, greedy, plain_draft; // plain_draft: drafts by argmax, no distribution needed

    int seq;
    int32_t *tokens;
    int n_tokens, n_prompt, max_tokens_total;
    float *pend;
    int n_pend;
    bool mtp_ready; // the head's rows and pend are complete for what the sequence holds

    int base, n_base; // copy of the sequence at the end of the last prompt, -1: none
    float *base_pend;

    struct history *hist;
    struct sampler *samp;
    struct dist p[COPY_MAX + 1], q[COPY_MAX];
    struct accept_scratch scratch;
    int base_level, n_missed; // draft vocabulary: size of its base, tokens outside in the current window
    float *draft_logits; // [n_vocab], -infinity outside the draft vocabulary
    struct suffix *suffix;
    struct depth_ctl depth;
    double cost_verify[N_COSTS], cost_draft; // measured when the engine was new: 1, 2, 4, 16 rows; one draft; 0: not
    /* the current round */
    struct depth_plan plan;
    int32_t x[COPY_MAX], copy[COPY_MAX];
    int n_copy; // what the copy drafter offers this round
    int n_x, n_kept; // proposed; emitted from the draft
    bool has_q;
    int64_t draft_ns;

    struct detok detok;
    struct buf text;
    size_t shown; // bytes of text given to fn
    enum stop_reason why;
    struct gen_stats st;
};

/* round.c */
int gen_decide(struct gen *q, const float *logits, int n_rows, struct err *e); // emits; rows: 1 + n_x
int gen_left(const struct gen *q); // tokens that may still be emitted
/* gen.c */
void gen_emit(struct gen *q, int32_t id, int draft, int drafter);
/* draft.c */
int draft_available(struct gen *q, int drafter); // tokens it could propose now
int draft_mtp(struct gen **q, int n, struct err *e);  // those whose plan names the head
void draft_copy(struct gen *q);
int draft_observe(struct gen *q, int keep, struct err *e); // feeds pending pairs, but the newest keep, to the head without drafting
int draft_prime(struct gen *q, const float *hidden, int n_hidden, int first, struct err *e); // prompt rows
void draft_vocabulary(struct gen *q, const int32_t *ids, int n); // a prompt: makes sure that its tokens can be drafted
void draft_vocabulary_emitted(struct gen *q, int32_t id);

#endif
