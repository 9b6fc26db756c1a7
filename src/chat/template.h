/* Chat templates: a Jinja engine (own, because no C library exists). template_set.h finds a package's.
 * Semantics: jinja2 3.1 ImmutableSandboxedEnvironment as Hugging Face configures it. Templates come from
 * strangers: every evaluation has step, depth and output limits, counted, never timed. */
#ifndef CHAT_TEMPLATE_H
#define CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"
#include "text/json.h"
#include "token/tokenizer.h"

enum jinja_class { JINJA_OK, JINJA_SYNTAX, JINJA_UNDEFINED, JINJA_TYPE, JINJA_VALUE, JINJA_SECURITY, JINJA_LIMIT, JINJA_RAISE };
const char *jinja_class_name(enum jinja_class c); // "syntax", "undefined", ...

struct jinja_error {
    enum jinja_class cls;
    int line; // in the template, 0 if unknown
    char *msg; // whole sentence, or raise_exception's own text; freed with jinja_error_free
};
void jinja_error_free(struct jinja_error *e);

struct jinja_options {
    bool trim_blocks, lstrip_blocks;
};

struct template; // parsed once, read-only afterwards, usable from any thread

/* name stands in messages. Returns 0 or a negative code with *je filled. */
MUST_CHECK int template_parse(struct template **t, const char *s, size_t n, const struct jinja_options *o,
                              const char *name, struct jinja_error *je);
void template_free(struct template *t);

/* Text produced by one rendering, with its trust: a byte is USER if it came from a value of the context, TPL
 * if it stands in the template. Strings computed from both keep the trust of each part. */
struct rendered {
    struct buf text;
    struct span *spans; // adjacent, covering text; s points into text
    int n_spans;
};
void rendered_free(struct rendered *r);

/* context: JSON object of the variables. now: ISO time that strftime_now sees, NULL for the clock.
 * special: JSON object of special token texts (bos_token, ...): variables too, but trusted. */
MUST_CHECK int template_render(const struct template *t, const struct json *context, const struct json *special,
                               const char *now, struct rendered *out, struct jinja_error *je);

/* What HF does to messages before a template sees them: members that are null are dropped, and the first of
 * reasoning_content, thinking, reasoning is copied to reasoning_content and, if absent, thinking. Callers that
 * speak for a client do this first; template_chat itself shows the template exactly what it is given. The
 * result lives in a and shares what it can with messages. NULL once the arena's limit is reached. */
const struct json *template_messages(struct arena *a, const struct json *messages);

/* Renders a chat: request is an object with "messages" and optionally "tools", "documents",
 * "add_generation_prompt", "kwargs", all as HF's apply_chat_template defines them. */
MUST_CHECK int template_chat(const struct template *t, const struct json *request, const struct json *special,
                             const char *now, struct rendered *out, struct jinja_error *je);

#endif
