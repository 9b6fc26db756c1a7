/* What an open tokenizer consists of. Filled by the loaders (load_json.c, load_gguf.c), read by the rest. */
#ifndef TOKEN_MODEL_H
#define TOKEN_MODEL_H

#include "token/added.h"
#include "token/bpe.h"
#include "token/pretok.h"
#include "token/tokenizer.h"
#include "token/vocab.h"

enum {
    TOKEN_MAX_FILE = 64 * 1024 * 1024,
    TOKEN_MAX_TEXT = 64 * 1024 * 1024, // a text that is one piece takes some 50 bytes of work space a byte
    TOKEN_MAX_ADDED = 1024,            // bytes in an added token: what one position of a text can cost
};

struct tokenizer {
    struct vocab vocab;
    struct bpe bpe;
    struct pretok pretok;
    struct added_set raw, normalized; // added tokens, by the text they are sought in
    bool nfc;
    struct special_ids specials;
    char kind[96];
};

/* Each fills a zeroed tokenizer whose vocab and added sets are initialised. */
MUST_CHECK int load_json(struct tokenizer *t, const char *text, size_t n, struct err *e);
MUST_CHECK int load_config(struct tokenizer *t, const char *path, struct err *e); // tokenizer_config.json
MUST_CHECK int load_gguf(struct tokenizer *t, const char *path, struct err *e);

/* For loaders, in this order: vocabulary, bpe_init, merges, nfc, added tokens, pre-tokenizer, finish. */

/* Merge of two entries as written in a file. number is its rank. */
MUST_CHECK int model_add_merge(struct tokenizer *t, const char *a, size_t n_a, const char *b, size_t n_b,
                               int32_t number, struct err *e);
/* An added token by its literal content. One that the vocabulary has too keeps the vocabulary's id. */
MUST_CHECK int model_add_token(struct tokenizer *t, const char *s, size_t n, int64_t id,
                               const struct added_token *a, struct err *e);
/* pattern: how people call the pre-tokenizer; NULL for one of the file's own. */
MUST_CHECK int model_finish(struct tokenizer *t, const char *pattern, struct err *e);

#endif
