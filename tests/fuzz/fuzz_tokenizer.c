/* Input: a text, and a tokenizer.json, a tekken.json or a GGUF after the first zero byte. With a tokenizer that opens,
 * the text must go through every mode, and what comes out must be ids that exist. Without one, a fixed small tokenizer
 * takes it. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "format/gguf.h"
#include "token/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char SMALL[] =
    "{\"added_tokens\":[{\"id\":300,\"content\":\"<x>\",\"special\":true,\"rstrip\":true},"
    "{\"id\":301,\"content\":\"\xC3\xA9x\",\"normalized\":true,\"lstrip\":true,\"single_word\":true}],"
    "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,"
    "\"\xC3\x8C\":3,\"\xC4\xA3\":4,\"e\":5,\"aba\":6,\"\xC4\xA0\":7},"
    "\"merges\":[\"a b\",\"ab a\"]}}";

static int load(struct tokenizer *t, const char *s, size_t n, struct err *e)
{
    struct gguf *g;
    if (n < 4 || memcmp(s, "GGUF", 4))
        return load_json(t, s, n, e);
    int rc = gguf_open_bytes(&g, s, n, "input", e);
    if (!rc) {
        rc = load_gguf(t, g, e);
        gguf_close(g);
    }
    return rc;
}

static struct tokenizer *open_text(const char *s, size_t n)
{
    struct tokenizer *t = calloc(1, sizeof *t);
    struct err e = {0};
    if (!t)
        return NULL;
    vocab_init(&t->vocab);
    added_init(&t->raw);
    added_init(&t->normalized);
    if (!load(t, s, n, &e))
        return t;
    if (!e.code || !*e.msg)
        abort(); // refused without a sentence
    tokenizer_close(t);
    return NULL;
}

static void use(const struct tokenizer *t, const char *s, size_t n)
{
    struct err e = {0};
    struct ids ids = {0};
    struct buf out;
    struct detok d;
    const char *p;
    size_t m;
    int rc = 0;
    buf_init(&out, SIZE_MAX / 2);
    for (int mode = ADDED_NONE; mode <= ADDED_ALL; mode++)
        rc |= tokenizer_encode(t, s, n, (enum added)mode, &ids, &e);
    const struct span spans[] = {{s, n / 3, TRUST_TPL, -1}, {s + n / 3, n / 3, TRUST_USER, 0},
                                 {s + n / 3 * 2, n - n / 3 * 2, TRUST_TPL, -1}};
    rc |= tokenizer_encode_spans(t, spans, 3, &ids, &e);
    if (rc && !*e.msg)
        abort();
    detok_init(&d, t, n & 1);
    for (size_t i = 0; i < ids.n; i++) {
        if (!tokenizer_bytes(t, ids.v[i], &p, &m))
            abort();
        detok_add(&d, ids.v[i], &out);
    }
    detok_flush(&d, &out);
    detok_whole(t, ids.v, ids.n, n & 1, &out);
    buf_free(&out);
    ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tokenizer *fixed;
    if (!fixed && !(fixed = open_text(SMALL, sizeof SMALL - 1)))
        abort();
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t n = zero ? (size_t)(zero - data) : size;
    struct tokenizer *t = zero ? open_text((const char *)zero + 1, size - n - 1) : NULL;
    use(t ? t : fixed, (const char *)data, n);
    tokenizer_close(t);
    return 0;
}
