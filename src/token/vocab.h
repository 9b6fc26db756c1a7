/* Token table: content <-> id. Knows nothing about how text becomes tokens. */
#ifndef TOKEN_VOCAB_H
#define TOKEN_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum {
    VOCAB_MAX_TOKENS = 2 * 1000 * 1000,
    VOCAB_MAX_ID = (1 << 24) - 1,        // ids index tables, so a stray huge one must not size them
    VOCAB_MAX_BYTES = 256 * 1024 * 1024, // contents together
};

/* Contents of different kinds never meet: text that spells an added token must not find it by its bytes. */
enum token_kind {
    TOKEN_BYTES,    // what a text spells: bytes (undone from the byte-level alphabet) or characters
    TOKEN_RAW,      // a vocabulary entry outside that alphabet: no text produces it
    TOKEN_FALLBACK, // one byte of a character that has no token
    TOKEN_ADDED,    // an added token's literal content
};

/* How a file writes its entries. */
enum vocab_form {
    FORM_ALPHABET, // one printable character a byte
    FORM_TEXT,     // as they are
    FORM_FALLBACK, // as they are, but <0xNN> is the byte NN
};

enum { TOKEN_IS_ADDED = 1, TOKEN_IS_SPECIAL = 2 }; // flags by id

struct token {
    uint32_t off, n; // content in blob
    int32_t id;
    uint32_t kind;
};

struct vocab {
    enum vocab_form form; // set before the first entry
    char *blob;
    size_t n_blob, cap_blob;
    struct token *tok;
    size_t n, cap;
    uint64_t *slot; // open addressing: half of the hash << 32 | index in tok + 1; 0 is free
    size_t n_slots;
    int32_t *by_id; // index in tok, -1 for a gap
    uint8_t *flags; // by id
    int32_t max_id; // -1: empty
    size_t cap_ids;
    int n_ids;
    uint64_t seed; // hash seed, so that a file can't be made to collide
};

void vocab_init(struct vocab *v);
void vocab_deinit(struct vocab *v);
/* An id that is already taken shows the content added last; both contents lead to it. */
MUST_CHECK int vocab_add(struct vocab *v, const char *s, size_t n, int64_t id, enum token_kind kind,
                         struct err *e);
MUST_CHECK int vocab_reserve(struct vocab *v, size_t n_tokens); // 0 or ERR_NOMEM
int32_t vocab_find(const struct vocab *v, const char *s, size_t n, enum token_kind kind); // -1: absent
bool vocab_bytes(const struct vocab *v, int32_t id, const char **s, size_t *n);

enum token_kind vocab_kind(const struct vocab *v, int32_t id); // of an id that exists

/* Undoes the file's way of writing. Returns the bytes written to out (at most n). */
size_t vocab_decode(const struct vocab *v, const char *s, size_t n, char *out, enum token_kind *kind);

/* A vocabulary entry as written in a file. */
MUST_CHECK int vocab_add_written(struct vocab *v, const char *s, size_t n, int64_t id, struct err *e);
int32_t vocab_find_written(const struct vocab *v, const char *s, size_t n); // -1: absent

#endif
