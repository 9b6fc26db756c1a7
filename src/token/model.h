/* What an open tokenizer consists of. Filled by the loaders (load_json.c, load_gguf.c), read by the rest. */
#ifndef TOKEN_MODEL_H
#define TOKEN_MODEL_H

#include "token/added.h"
#include "token/bpe.h"
#include "token/norm.h"
#include "token/pretok.h"
#include "token/tokenizer.h"
#include "token/vocab.h"

enum {
    TOKEN_MAX_FILE = 64 * 1024 * 1024,
    TOKEN_MAX_TEXT = 64 * 1024 * 1024, // a text that is one piece takes some 50 bytes of work space a byte
    TOKEN_MAX_ADDED = 1024,            // bytes in an added token: what one position of a text can cost
};

/* From a token's content to its text, where the content isn't simply bytes. */
struct decoding {
    char from[NORM_MAX_TEXT], to[NORM_MAX_TEXT]; // every `from` becomes `to`, if n_from
    size_t n_from, n_to;
    bool drop_in_first;          // the first token's become nothing
    char strip[NORM_MAX_TEXT];   // up to max_strip of these are taken off the front of the whole text
    size_t n_strip;
    int max_strip;
};

struct tokenizer {
    struct vocab vocab;
    struct bpe bpe;
    struct norm norm;   // what the file calls normalizer
    struct norm shape;  // changes that its pre-tokenizer makes, after added tokens of normalized text are cut out
    struct pretok pretok;
    struct decoding decoding;
    struct added_set raw, normalized; // added tokens, by the text they are sought in
    struct special_ids specials;
    char kind[96];
};

/* Each fills a zeroed tokenizer whose vocab and added sets are initialised. */
MUST_CHECK int load_json(struct tokenizer *t, const char *text, size_t n, struct err *e);
MUST_CHECK int load_config(struct tokenizer *t, const char *path, struct err *e); // tokenizer_config.json
struct json;
MUST_CHECK int load_tekken(struct tokenizer *t, const struct json *root, struct err *e); // tekken.json
struct gguf;
MUST_CHECK int load_gguf(struct tokenizer *t, const struct gguf *g, struct err *e);

/* The members "normalizer", "pre_tokenizer" and "decoder" of a tokenizer.json (load_steps.c). *pattern is how people
 * call the pre-tokenizer, NULL for one of the file's own. steps_form looks ahead: how the vocabulary is written. */
MUST_CHECK int steps_form(const struct json *root, enum vocab_form *form, struct err *e);
MUST_CHECK int load_normalizer(struct tokenizer *t, const struct json *v, struct err *e);
MUST_CHECK int load_pre_tokenizer(struct tokenizer *t, const struct json *v, const char **pattern, struct err *e);
MUST_CHECK int load_decoder(struct tokenizer *t, const struct json *v, struct err *e);

/* For loaders, in this order: vocabulary, bpe_init, merges, norm, added tokens, pre-tokenizer, finish. */

/* Merge of two entries as written in a file. number is its rank. */
MUST_CHECK int model_add_merge(struct tokenizer *t, const char *a, size_t n_a, const char *b, size_t n_b,
                               int32_t number, struct err *e);
/* An added token by its literal content. One that the vocabulary has too keeps the vocabulary's id. */
MUST_CHECK int model_add_token(struct tokenizer *t, const char *s, size_t n, int64_t id,
                               const struct added_token *a, struct err *e);
/* The SentencePiece way to write spaces, added (reading) and undone (showing). */
enum spaces { SPACES_AS_TEXT, SPACES_PREFIXED }; // PREFIXED: one more in front of each section, the first not shown
MUST_CHECK int model_spaces(struct tokenizer *t, enum spaces spaces, struct err *e);
/* pattern: how people call the pre-tokenizer; NULL for one of the file's own. */
MUST_CHECK int model_finish(struct tokenizer *t, const char *pattern, struct err *e);

#endif
