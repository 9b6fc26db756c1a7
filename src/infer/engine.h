/* The engine: sequences over one model and its MTP head, stepped together. Owned by one thread.
 *
 * A step's rows are provisional until seq_commit says how many of them happened; rows marked ROW_FINAL are
 * certain beforehand (prompt tokens, a token already emitted). What was not committed never happened: the next
 * step starts from exactly the state of the committed prefix, bit for bit (docs/arithmetic.md §6).
 *
 * Memory is reserved when the engine opens; nothing is allocated afterwards except by seq_save. */
#ifndef INFER_ENGINE_H
#define INFER_ENGINE_H

#include "model/model.h"

enum { WANT_LOGITS = 1, WANT_HIDDEN = 2, ROW_FINAL = 4 };
enum { PROVISIONAL_MAX = 32 }; // provisional rows of one sequence in a step

struct engine;

struct engine_options {
    int n_ctx;    // tokens of KV memory over all sequences, 0: the model's window
    int n_seqs;   // sequences that can exist at once
    int max_rows; // rows of a step, 0: 512
    bool with_mtp; // reserve state for the head if it is usable
};

/* The model and head stay the caller's and must be bound (mtp_bind) before. */
MUST_CHECK int engine_open(struct engine **g, struct model *m, const struct mtp_head *head, const struct engine_options *o, struct err *e);
void engine_close(struct engine *g);
const struct model *engine_model(const struct engine *g);
bool engine_has_mtp(const struct engine *g);
int engine_max_rows(const struct engine *g);
int engine_max_tokens(const struct engine *g); // most tokens of one sequence
int engine_hidden_ld(const struct engine *g); // floats of a hidden row
size_t engine_bytes(const struct engine *g);  // reserved for KV pages and recurrent states
/* KV memory comes in pools of pages, one for each window of the model's layers (0: they keep all tokens). What lies
 * before the window goes back to its pool when a step is committed, so such a pool is bounded by the window, the
 * sequences and the rows of a step, not by the context. */
struct pool_use {
    int window, n_pages, n_free, n_peak; // n_peak: most that were in use at once
    size_t page_bytes;
};
bool engine_pool(const struct engine *g, int i, struct pool_use *u); // false: there is no pool i
int engine_pages_free(const struct engine *g);                       // of the first pool

/* Sequences are small integers. -1: none left. */
int seq_new(struct engine *g);
int seq_fork(struct engine *g, int seq); // an independent copy of the committed prefix; pages are shared until written
void seq_free(struct engine *g, int seq);
void seq_reset(struct engine *g, int seq); // back to the empty prefix
int seq_len(const struct engine *g, int seq);
int seq_mtp_len(const struct engine *g, int seq); // rows 1..len-1 of the head's KV are valid

/* One token position. Rows of one sequence are taken in the order given, at its next positions. */
struct row {
    int32_t seq, tok;
    uint8_t want; // WANT_*, ROW_FINAL
};
struct out {
    const float *logits; // [n_logits, n_vocab], rows that want them, in the order of the rows given
    const float *hidden; // [n_hidden, hidden_ld], after the final norm
    int n_logits, n_hidden;
};
/* Runs rows through the model. ERR_ARG for impossible rows, ERR_NOMEM when no page is left: then nothing
 * changed. *out is valid until the next step. */
MUST_CHECK int engine_step(struct engine *g, const struct row *rows, int n, struct out *out, struct err *e);
/* Keeps the first n rows of the sequence's part of the last step (at least its final ones). Every sequence of
 * a step is committed before its next one; not committing means keeping only the final rows. */
void seq_commit(struct engine *g, int seq, int n);

/* Rows of the head: pair (hidden h_{j-1}, token t_j) at row index j = seq_mtp_len and on. hidden NULL: the
 * head's own output of the previous mtp_step of this sequence (recursion, one row). */
struct mtp_row {
    int32_t seq, tok;
    const float *hidden;
    uint8_t want; // WANT_LOGITS: full logits; see also subset
};
struct mtp_out {
    const float *logits; // [n wanted, subset_size or n_vocab] if asked for
    const int32_t *best; // [n wanted] argmax over the subset or all rows, as token ids
    int n;
};
/* subset: draft vocabulary, NULL: all rows. want_logits false: only argmax is computed. */
struct subset;
MUST_CHECK int mtp_step(struct engine *g, const struct mtp_row *rows, int n, const struct subset *subset, bool want_logits,
                        struct mtp_out *out, struct err *e);
/* Forgets head rows at and after index len. Draft rows must be cut before tokens are committed past them: a fork
 * or a save takes every row below the sequence's length for a true one. */
void mtp_cut(struct engine *g, int seq, int len);

/* Draft vocabulary: some rows of the LM head. Holds up to n_vocab ids; ids are unique, their order is free. */
MUST_CHECK int subset_new(struct engine *g, struct subset **s, struct err *e); // lives as long as the engine
void subset_clear(struct subset *s);
void subset_add(struct engine *g, struct subset *s, int32_t id); // no effect if it is there already
struct subset *engine_draft_subset(struct engine *g); // the one all answers draft from; NULL: vocabulary is small
bool subset_has(const struct subset *s, int32_t id);
int subset_size(const struct subset *s);
const int32_t *subset_ids(const struct subset *s);

/* The committed state as bytes (pages, recurrent state, head rows), and back into an empty sequence of an
 * engine over the same model. Caller frees *p. */
MUST_CHECK int seq_save(struct engine *g, int seq, void **p, size_t *n, struct err *e);
MUST_CHECK int seq_load(struct engine *g, int seq, const void *p, size_t n, struct err *e);

#endif
