/* From messages to token ids: the package's template, its special tokens, trust kept to the tokenizer. */
#ifndef CHAT_CHAT_H
#define CHAT_CHAT_H

#include "chat/template.h"
#include "infer/instance.h"

struct chat {
    const struct tokenizer *tok;
    struct template *t;   // NULL: the package has none (a plain form is used), or no default
    struct template *tools; // for chats with tools, where the package has one of its own
    char source[256];     // where the template was found, or why there is none
    char tools_source[256];
    char others[128];     // names of what the package has, if it has templates but no default
    struct arena arena;
    struct json *special; // bos_token, eos_token, pad_token
};

MUST_CHECK int chat_open(struct chat *c, const char *path, const struct instance *in, struct err *e);
void chat_close(struct chat *c);

/* request: {"messages": [..], "tools": .., "add_generation_prompt": true, "kwargs": {..}}. Appends to *ids; *text
 * (may be NULL) receives the rendered text. A template's own refusal is ERR_FORMAT with its message. */
MUST_CHECK int chat_encode(const struct chat *c, const struct json *request, struct ids *ids, struct buf *text, struct err *e);

/* Text without a template: no control tokens in it; BOS in front where the package wants one. */
MUST_CHECK int chat_encode_raw(const struct chat *c, const struct instance *in, const char *s, size_t n, struct ids *ids, struct err *e);

#endif
