/* What run, try and verify share: the model options of a command line, the opened model, one answer at a time,
 * and how an answer is reported. */
#ifndef CLI_SESSION_H
#define CLI_SESSION_H

#include "chat/chat.h"
#include "cli/opt.h"
#include "infer/gen.h"

struct session_options {
    const char *model; // NULL: the demo model
    const char *isa, *depth, *acceptance, *drafters, *pack;
    int threads, ctx, max_tokens;
    double temperature, top_p, min_p, repetition, presence, frequency, seed; // NAN: not given
    int top_k;         // -1: not given
    const char *stop;
};
struct session_options session_defaults(void);
/* Appends the shared options to opts, returns how many. */
int session_opts(struct session_options *o, struct opt *opts);
enum { SESSION_OPTS = 18 };

struct session {
    char *path;
    bool is_demo;
    struct instance in;
    struct engine *g;
    struct gen *gen;
    struct chat chat;
    struct gen_request request; // settings of the command line over those of the package
    const char *sampling_source[N_SAMPLING];
    char *stop_text;
    struct arena words; // values that session_set was given
};

/* n_seqs: sequences the engine holds (answers and kept prefixes). */
MUST_CHECK int session_open(struct session *s, const struct session_options *o, int n_seqs, struct err *e);
/* Changes one setting of answers as its option does (o: those the session was opened with, updated); what the
 * open model was built for can't be changed. A sentence goes to standard error if it fails, and nothing changes. */
MUST_CHECK int session_set(struct session *s, struct session_options *o, const char *name, const char *value);
void session_close(struct session *s);

/* Ids of a one-message chat (with a system text if not NULL), or of raw text. */
MUST_CHECK int session_prompt(struct session *s, const char *system, const char *text, size_t n, bool raw, struct ids *ids, struct err *e);

/* One line for people; everything as JSON members (without braces). */
void report_line(const struct session *s, const struct gen *q, struct buf *out);
void report_json(const struct session *s, const struct gen *q, struct buf *out);
/* What is expected before the first token: seconds of prefill, tokens per second, and why. */
void report_forecast(const struct session *s, const struct gen *q, struct buf *out);

/* Ctrl-C sets this; the handler is installed by interrupt_begin and removed by interrupt_end. once: a second
 * Ctrl-C ends the process (a chat isn't ended so). */
extern atomic_int interrupted;
void interrupt_begin(bool once);
void interrupt_end(void);

#endif
