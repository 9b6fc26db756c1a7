/* Where a package keeps its chat templates, and which one a chat gets: as Hugging Face's library does it. A package has
 * none, one, or several by name ("default", "tool_use", ...). */
#ifndef CHAT_TEMPLATE_SET_H
#define CHAT_TEMPLATE_SET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct template_text {
    char *name, *text;
    size_t n;     // bytes of text
    char *source; // file and, where that holds several, the name
};

struct template_set {
    struct template_text *v;
    int n; // 0: the package has none
};

enum { TEMPLATES_MAX = 64 };

/* The first of these that has any: chat_template.jinja with additional_chat_templates/NAME.jinja, tokenizer_config.json
 * (a text, or a list of names and texts), chat_template.json, a GGUF's tokenizer.chat_template and
 * tokenizer.chat_template.NAME. path: a model folder, a GGUF, or a template's own file. Freed by template_set_free. */
MUST_CHECK int template_set_find(struct template_set *s, const char *path, struct err *e);
void template_set_free(struct template_set *s);

/* "tool_use" for a chat with tools, where there is such; else "default", or the only one. NULL: none of these. */
const struct template_text *template_set_pick(const struct template_set *s, bool has_tools);
/* "a, b, c" of the names, for messages. */
void template_set_names(const struct template_set *s, char *out, size_t n);

#endif
