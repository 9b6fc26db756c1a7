/* tekken.json (Mistral): bytes in base64 with their ranks, a pattern, control tokens with ids of their own in front. A piece
 * that is an entry is taken whole; else neighbours that spell an entry merge, the lowest rank first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "token/fields.h"
#include "token/model.h"

/* Control tokens of the first files, which don't list them. */
static const char *const first_specials[] = {
    "<unk>",          "<s>",            "</s>",            "[INST]",     "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]",   "[IMG]",      "<pad>",   "[IMG_BREAK]",       "[IMG_END]",
    "[PREFIX]",       "[MIDDLE]",       "[SUFFIX]",        "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"};

static int sextet(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

/* Undoes base64 in out (3 bytes for 4 characters). -1: it isn't. */
static int64_t base64_decode(const char *s, size_t n, char *out)
{
    size_t pad = n && s[n - 1] == '=' ? 1 + (n > 1 && s[n - 2] == '=') : 0, w = 0;
    uint32_t bits = 0;
    if (n % 4)
        return -1;
    for (size_t i = 0; i < n; i++) {
        int v = i < n - pad ? sextet(s[i]) : 0;
        if (v < 0)
            return -1;
        bits = bits << 6 | (uint32_t)v;
        if (i % 4 != 3)
            continue;
        out[w++] = (char)(bits >> 16);
        out[w++] = (char)(bits >> 8);
        out[w++] = (char)bits;
    }
    return (int64_t)(w - pad);
}

static int need_int(const struct json *o, const char *where, const char *key, int64_t max, int64_t *out, struct err *e)
{
    const struct json *v;
    int rc = field_of(o, where, key, JSON_NUMBER, &v, e);
    if (!rc && (!json_int(v, out) || *out < 0 || *out > max))
        rc = err_set(e, ERR_FORMAT, "%s.%s is %.40s, expected a whole number from 0 to %lld", where, key,
                     v ? v->s : "missing", (long long)max);
    return rc;
}

/* Ids of text tokens follow those of the n_special control tokens. */
static int load_entry(struct tokenizer *t, const struct json *c, int64_t n_special, int64_t n_text, int32_t *rank,
                      struct err *e)
{
    const struct json *bytes;
    int64_t r, n;
    int rc = need_int(c, "vocab", "rank", VOCAB_MAX_ID, &r, e);
    if (rc || r >= n_text) // the file has more than the model uses
        return rc;
    if ((rc = field_of(c, "vocab", "token_bytes", JSON_STRING, &bytes, e)))
        return rc;
    char *out = xmalloc(bytes ? bytes->n + 1 : 1);
    n = bytes ? base64_decode(bytes->s, bytes->n, out) : -1;
    if (n <= 0)
        rc = err_set(e, ERR_FORMAT, "vocab: the token of rank %lld has no token_bytes in base64", (long long)r);
    else
        rc = vocab_add(&t->vocab, out, (size_t)n, n_special + r, TOKEN_BYTES, e);
    if (!rc)
        rank[n_special + r] = (int32_t)r;
    free(out);
    return rc;
}

/* Its id is its own even if text can spell the same. */
static int add_special(struct tokenizer *t, const char *s, size_t n, int64_t id, bool is_control, struct err *e)
{
    struct added_token a = {.id = (int32_t)id, .is_special = is_control};
    if (!n || n > TOKEN_MAX_ADDED)
        return err_set(e, ERR_LIMIT, "special_tokens: one of %zu bytes, expected 1 to %d", n, TOKEN_MAX_ADDED);
    int rc = vocab_add(&t->vocab, s, n, id, TOKEN_ADDED, e);
    if (rc)
        return rc;
    t->vocab.flags[id] |= TOKEN_IS_ADDED | (is_control ? TOKEN_IS_SPECIAL : 0);
    return added_add(&t->raw, s, n, &a, e);
}

static int load_specials(struct tokenizer *t, const struct json *list, int64_t n_special, struct err *e)
{
    const int64_t n_first = sizeof first_specials / sizeof *first_specials;
    int rc = 0;
    for (const struct json *c = list ? list->child : NULL; c && !rc; c = c->next) {
        const struct json *s;
        bool is_control;
        int64_t id;
        if ((rc = need_int(c, "special_tokens", "rank", n_special - 1, &id, e)) ||
            (rc = field_of(c, "special_tokens", "token_str", JSON_STRING, &s, e)) ||
            (rc = field_bool(c, "special_tokens", "is_control", true, &is_control, e)))
            break;
        rc = s ? add_special(t, s->s, s->n, id, is_control, e)
               : err_set(e, ERR_FORMAT, "special_tokens: one has no token_str");
    }
    for (int64_t id = 0; id < n_special && !rc; id++) {
        char filler[32];
        const char *s = filler, *known;
        size_t n;
        if (vocab_bytes(&t->vocab, (int32_t)id, &known, &n))
            continue;
        snprintf(filler, sizeof filler, "<SPECIAL_%lld>", (long long)id);
        if (!list && id < n_first)
            s = first_specials[id];
        rc = add_special(t, s, strlen(s), id, true, e);
    }
    return rc;
}

int load_tekken(struct tokenizer *t, const struct json *root, struct err *e)
{
    const struct json *config, *pattern, *vocab, *special;
    int64_t n_vocab, n_special;
    int rc;
    if ((rc = field_of(root, "", "config", JSON_OBJECT, &config, e)) ||
        (rc = field_of(root, "", "vocab", JSON_ARRAY, &vocab, e)) ||
        (rc = field_of(root, "", "special_tokens", JSON_ARRAY, &special, e)) ||
        (rc = field_of(config, "config", "pattern", JSON_STRING, &pattern, e)) ||
        (rc = need_int(config, "config", "default_vocab_size", VOCAB_MAX_TOKENS, &n_vocab, e)) ||
        (rc = need_int(config, "config", "default_num_special_tokens", n_vocab, &n_special, e)))
        return rc;
    if (!vocab || !pattern)
        return err_set(e, ERR_FORMAT, "no array \"vocab\", or no string \"config.pattern\"");
    if (vocab->n > VOCAB_MAX_TOKENS)
        return err_set(e, ERR_LIMIT, "%zu tokens, the limit is %d", vocab->n, VOCAB_MAX_TOKENS);
    int32_t *rank = malloc(((size_t)n_vocab + 1) * sizeof *rank);
    if (!rank || vocab_reserve(&t->vocab, (size_t)n_vocab) || bpe_init(&t->bpe, &t->vocab, 0)) {
        free(rank);
        return err_set(e, ERR_NOMEM, "no memory for %lld tokens", (long long)n_vocab);
    }
    bpe_set_ranks(&t->bpe, rank);
    for (int64_t i = 0; i <= n_vocab; i++)
        rank[i] = -1;
    rc = load_specials(t, special, n_special, e);
    for (const struct json *c = vocab->child; c && !rc; c = c->next)
        rc = load_entry(t, c, n_special, n_vocab - n_special, rank, e);
    if (!rc && t->vocab.n_ids != n_vocab)
        rc = err_set(e, ERR_FORMAT, "vocab: %d tokens, expected %lld (config.default_vocab_size)", t->vocab.n_ids,
                     (long long)n_vocab);
    if (!rc)
        rc = pretok_add(&t->pretok, pattern->s, pattern->n, SPLIT_ISOLATED, false, e);
    if (rc)
        return rc;
    t->bpe.ignore_merges = true;
    t->specials = (struct special_ids){.bos = tokenizer_find(t, "<s>"), .eos = tokenizer_find(t, "</s>"),
                                       .pad = tokenizer_find(t, "<pad>")};
    t->specials.add_bos = t->specials.bos >= 0;
    return model_finish(t, pattern_name(pattern->s, pattern->n), e);
}
