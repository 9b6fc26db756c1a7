/* Tokenizers: text <-> token ids, and streaming detokenization. One object per vocabulary, read-only after
 * opening (any thread may use it; each caller brings its own output and stream state). */
#ifndef TOKEN_TOKENIZER_H
#define TOKEN_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

struct tokenizer;

/* path: a model folder, a tokenizer.json, a tekken.json or a GGUF file. BPE over bytes (GPT-2, Qwen, Llama 3, DeepSeek,
 * gpt-oss, Tekken, ...) or over characters with byte fallback (Llama 2, Mistral, Gemma); steps are read from the file.
 * What isn't known (Unigram, WordPiece, a step, a pre-tokenizer's name) is refused as unsupported, by name. */
MUST_CHECK int tokenizer_open(struct tokenizer **t, const char *path, struct err *e);
/* For packages that hold no tokenizer at all: ids 0 to 255 are bytes. */
MUST_CHECK int tokenizer_open_bytes(struct tokenizer **t, struct err *e);
bool tokenizer_present(const char *path); // false: a folder without any tokenizer file
void tokenizer_close(struct tokenizer *t); // NULL is fine

int32_t tokenizer_max_id(const struct tokenizer *t);                   // highest id that exists
int32_t tokenizer_find(const struct tokenizer *t, const char *token);  // id of a token by its content, -1
/* Content of one token as bytes (an added token's literal text); false for an id that doesn't exist. */
bool tokenizer_bytes(const struct tokenizer *t, int32_t id, const char **s, size_t *n);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);      // added token flagged special
bool tokenizer_is_added(const struct tokenizer *t, int32_t id);
const char *tokenizer_kind(const struct tokenizer *t);                 // for people: "byte-level BPE, Qwen3.5 pattern, NFC"
int tokenizer_n_tokens(const struct tokenizer *t);

/* Tokens named by the package itself (GGUF metadata or tokenizer_config.json), -1 if none. */
struct special_ids {
    int32_t bos, eos, pad;
    bool add_bos;
};
struct special_ids tokenizer_specials(const struct tokenizer *t);

struct ids {
    int32_t *v;
    size_t n, cap;
};
void ids_add(struct ids *ids, int32_t id);
void ids_free(struct ids *ids);

/* Which added tokens are recognised in a text. */
enum added { ADDED_NONE, ADDED_TEXT, ADDED_ALL }; // none (user text) | those not flagged special | all (template text)

/* Text carries its trust: control tokens are recognised only where they lie wholly inside TPL spans; in USER
 * spans they are plain text. Spans are adjacent and cover the text; normalization, pre-tokenization and
 * merges run across their borders, so that trusted text gets exactly the ids of the reference tokenizer. */
enum trust { TRUST_TPL, TRUST_USER };
struct span {
    const char *s;
    size_t n;
    enum trust trust;
    int msg; // index of the message the text came from, -1 for the template's own
};

/* Append ids to *out. Invalid UTF-8 is read as U+FFFD, one per maximal subpart. No BOS/EOS is added. */
MUST_CHECK int tokenizer_encode(const struct tokenizer *t, const char *s, size_t n, enum added added, struct ids *out,
                                struct err *e);
MUST_CHECK int tokenizer_encode_spans(const struct tokenizer *t, const struct span *spans, int n, struct ids *out,
                                      struct err *e);

/* Streaming detokenization. After each id everything that is complete is appended to out; a sequence that may
 * still become valid UTF-8 is held back; what can't become valid turns into U+FFFD, one per maximal subpart.
 * No allocation beyond out's growth. */
struct detok {
    const struct tokenizer *t;
    bool skip_special; // skip added tokens flagged special
    bool started;      // the first token was shown
    int may_strip;     // spaces that a family takes off the front of the whole text
    uint8_t pending[4];
    int n_pending;
};
void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special);
void detok_add(struct detok *d, int32_t id, struct buf *out); // an id that doesn't exist gives U+FFFD
void detok_flush(struct detok *d, struct buf *out);
/* The whole text at once, as the reference library has it. The pieces of a stream joined differ from it in one case: a
 * run of byte-fallback tokens that isn't valid as a whole becomes one U+FFFD a byte here, which nobody can know before
 * the run has ended. */
void detok_whole(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special, struct buf *out);

#endif
