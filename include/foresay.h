/* libforesay: language models that draft with their own multi-token-prediction head, as a library.
 *
 *     struct foresay *f = foresay_open("model/", NULL, err, sizeof err);
 *     struct foresay_request r = {.chat = "[{\"role\": \"user\", \"content\": \"Hello\"}]"};
 *     foresay_answer(f, &r, print, NULL, NULL, err, sizeof err);
 *     foresay_close(f);
 *
 * Link with -lforesay and what `pkg-config --libs libpcre2-8 libutf8proc` says, -lpthread -lm. One object answers
 * one request at a time and belongs to one thread at a time; several objects are independent. Strings are UTF-8.
 * Functions that can fail return NULL or nonzero and put one sentence into err. The text of a greedy answer, or of
 * one with a seed, does not depend on drafts, threads or instruction set (docs/why-the-output-cannot-change.md). */
#ifndef FORESAY_H
#define FORESAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct foresay;

struct foresay_options {
    int threads; /* 0: all CPUs */
    int context; /* tokens, 0: the model's window */
    int plain;   /* nonzero: reserve nothing for the draft head, never draft */
};

/* model: a folder as downloaded (Hugging Face, MLX) or a GGUF file. options may be NULL. */
struct foresay *foresay_open(const char *model, const struct foresay_options *options, char *err, size_t n_err);
void foresay_close(struct foresay *f); /* NULL is fine */

/* One of chat (a JSON array of messages, rendered by the model's template) and text (continued as it is) is set.
 * settings: JSON object over the package's own recommendations: temperature, top_k, top_p, min_p,
 * repetition_penalty, presence_penalty, frequency_penalty, logit_bias; NULL: none. */
struct foresay_request {
    const char *chat, *text, *settings;
    int max_tokens; /* 0: up to the context */
    int fixed_depth; /* nonzero: draft exactly depth tokens a round instead of measuring what pays */
    int depth;       /* 0 to 8, with fixed_depth */
    int has_seed;
    uint64_t seed;   /* drawn, and reported, if has_seed is 0 */
};

struct foresay_result {
    uint64_t seed;
    int64_t prompt_tokens, cached_tokens, output_tokens, rounds, drafted, accepted;
    double prefill_tok_s, decode_tok_s; /* 0: too short to tell */
    const char *stop; /* "end of text", "max tokens", "context limit", "cancelled" */
};

/* Receives text as it comes, whole characters only. Return nonzero to stop the answer. */
typedef int foresay_text_fn(void *ud, const char *text, size_t n);

/* Answers. A chat that continues the previous one reuses what was read. result may be NULL. */
int foresay_answer(struct foresay *f, const struct foresay_request *r, foresay_text_fn *fn, void *ud,
                   struct foresay_result *result, char *err, size_t n_err);

/* State of the draft head as a sentence, "" if all is well. Lives as long as f. */
const char *foresay_head_note(const struct foresay *f);
const char *foresay_version(void);

#ifdef __cplusplus
}
#endif

#endif
