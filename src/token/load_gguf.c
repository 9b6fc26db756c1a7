/* Tokenizer metadata of a GGUF file (keys tokenizer.ggml.*). The pre-tokenizer is only named there; what a
 * name means is fixed here, normalization included where the family's own tokenizer has it. */
#include <stdlib.h>
#include <string.h>

#include "format/gguf.h"
#include "token/model.h"

enum { TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4 }; // tokenizer.ggml.token_type

static const struct pre {
    const char *name, *pattern;
    bool nfc, digits, ignore_merges, add_bos;
} pres[] = {
    {"qwen2", PATTERN_QWEN2, .nfc = true},
    {"deepseek-r1-qwen", PATTERN_QWEN2, .nfc = true},
    {"qwen35", PATTERN_QWEN35, .nfc = true},
    {"llama-bpe", PATTERN_LLAMA3, .ignore_merges = true, .add_bos = true},
    {"llama3", PATTERN_LLAMA3, .ignore_merges = true, .add_bos = true},
    {"llama-v3", PATTERN_LLAMA3, .ignore_merges = true, .add_bos = true},
    {"smollm", PATTERN_GPT2, .digits = true},
    {"starcoder", PATTERN_GPT2, .digits = true},
    {"refact", PATTERN_GPT2, .digits = true},
    {"gpt-2", PATTERN_GPT2, .nfc = false},
};

static const struct gguf_kv *find(const struct gguf *g, const char *key)
{
    char full[64] = "tokenizer.ggml.";
    strncat(full, key, sizeof full - strlen(full) - 1);
    return gguf_find(g, full);
}

static bool is_str(const struct gguf_str *s, const char *want)
{
    return s->n == strlen(want) && !memcmp(s->s, want, s->n);
}

static int find_pre(const struct gguf *g, const struct pre **out, struct err *e)
{
    struct gguf_str model, pre;
    if (!gguf_string(find(g, "model"), &model))
        return err_set(e, ERR_FORMAT, "no tokenizer in this file (key tokenizer.ggml.model)");
    if (!is_str(&model, "gpt2"))
        return err_set(e, ERR_UNSUPPORTED, "unsupported tokenizer model \"%.*s\"%s",
                       (int)(model.n < 60 ? model.n : 60), model.s,
                       is_str(&model, "llama") ? " (SentencePiece style)" : "");
    if (!gguf_string(find(g, "pre"), &pre))
        return err_set(e, ERR_UNSUPPORTED,
                       "unsupported pre-tokenizer: the file doesn't name one (key tokenizer.ggml.pre)");
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++)
        if (is_str(&pre, pres[i].name)) {
            *out = &pres[i];
            return 0;
        }
    return err_set(e, ERR_UNSUPPORTED, "unsupported pre-tokenizer \"%.*s\"", (int)(pre.n < 60 ? pre.n : 60),
                   pre.s);
}

/* An array of strings, freed by the caller. */
static int get_strings(const struct gguf *g, const char *key, struct gguf_str **out, size_t *n, struct err *e)
{
    const struct gguf_kv *kv = find(g, key);
    if (!kv || kv->type != GGUF_ARRAY || kv->elem != GGUF_STRING)
        return err_set(e, ERR_FORMAT, "tokenizer.ggml.%s is no array of strings", key);
    if (kv->n > VOCAB_MAX_TOKENS)
        return err_set(e, ERR_LIMIT, "tokenizer.ggml.%s has %llu entries, the limit is %d", key,
                       (unsigned long long)kv->n, VOCAB_MAX_TOKENS);
    *n = (size_t)kv->n;
    *out = malloc((*n + 1) * sizeof **out);
    if (!*out)
        return err_set(e, ERR_NOMEM, "no memory for %zu strings", *n);
    return gguf_strings(kv, *out) ? err_set(e, ERR_FORMAT, "tokenizer.ggml.%s is damaged", key) : 0;
}

static int load_tokens(struct tokenizer *t, const struct gguf_str *tok, size_t n, struct err *e)
{
    if (vocab_reserve(&t->vocab, n + n / 8))
        return err_set(e, ERR_NOMEM, "no memory for %zu tokens", n);
    for (size_t i = 0; i < n; i++) {
        int rc = vocab_add_written(&t->vocab, tok[i].s, tok[i].n, (int64_t)i, e);
        if (rc)
            return rc;
    }
    return 0;
}

static int load_merges(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    struct gguf_str *m = NULL;
    size_t n = 0;
    int rc = get_strings(g, "merges", &m, &n, e);
    if (!rc && bpe_init(&t->bpe, &t->vocab, n))
        rc = err_set(e, ERR_NOMEM, "no memory for %zu merges", n);
    for (size_t i = 0; i < n && !rc; i++) {
        const char *space = m[i].n > 1 ? memchr(m[i].s + 1, ' ', m[i].n - 1) : NULL;
        size_t n_a = space ? (size_t)(space - m[i].s) : 0;
        if (!space)
            rc = err_set(e, ERR_FORMAT, "merge %zu isn't two tokens with a space between", i);
        else
            rc = model_add_merge(t, m[i].s, n_a, space + 1, m[i].n - n_a - 1, (int32_t)i, e);
    }
    free(m);
    return rc;
}

/* Control and user-defined tokens are sought in the text as they stand. */
static int load_added(struct tokenizer *t, const struct gguf *g, const struct gguf_str *tok, size_t n,
                      struct err *e)
{
    const struct gguf_kv *kv = find(g, "token_type");
    int rc = 0;
    if (!kv)
        return 0;
    if (kv->type != GGUF_ARRAY || kv->n != n)
        return err_set(e, ERR_FORMAT,
                       "tokenizer.ggml.token_type doesn't have one entry for each of the %zu tokens", n);
    int64_t *type = malloc((n + 1) * sizeof *type);
    if (!type)
        return err_set(e, ERR_NOMEM, "no memory for %zu token types", n);
    if (!gguf_ints(kv, type))
        rc = err_set(e, ERR_FORMAT, "tokenizer.ggml.token_type is no array of whole numbers");
    for (size_t i = 0; i < n && !rc; i++)
        if (type[i] == TYPE_UNKNOWN || type[i] == TYPE_CONTROL || type[i] == TYPE_USER) {
            struct added_token a = {.is_special = type[i] != TYPE_USER};
            rc = model_add_token(t, tok[i].s, tok[i].n, (int64_t)i, &a, e);
        }
    free(type);
    return rc;
}

static void load_id(const struct tokenizer *t, const struct gguf *g, const char *key, int32_t *id)
{
    int64_t v;
    if (gguf_int(find(g, key), &v) && v >= 0 && v <= t->vocab.max_id)
        *id = (int32_t)v;
}

static int load_all(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    const struct pre *pre = NULL;
    struct gguf_str *tok = NULL;
    size_t n = 0;
    int rc = find_pre(g, &pre, e);
    if (!rc)
        rc = get_strings(g, "tokens", &tok, &n, e);
    if (!rc)
        rc = load_tokens(t, tok, n, e);
    if (!rc)
        rc = load_merges(t, g, e);
    if (!rc) {
        t->nfc = pre->nfc;
        t->bpe.ignore_merges = pre->ignore_merges;
        rc = load_added(t, g, tok, n, e);
    }
    free(tok);
    if (!rc && pre->digits)
        rc = pretok_add(&t->pretok, PATTERN_DIGIT, strlen(PATTERN_DIGIT), SPLIT_ISOLATED, false, e);
    if (!rc)
        rc = pretok_add(&t->pretok, pre->pattern, strlen(pre->pattern), SPLIT_ISOLATED, false, e);
    if (rc)
        return rc;
    load_id(t, g, "bos_token_id", &t->specials.bos);
    load_id(t, g, "eos_token_id", &t->specials.eos);
    load_id(t, g, "padding_token_id", &t->specials.pad);
    t->specials.add_bos = pre->add_bos;
    gguf_bool(find(g, "add_bos_token"), &t->specials.add_bos);
    t->specials.add_bos = t->specials.add_bos && t->specials.bos >= 0;
    const char *name = pattern_name(pre->pattern, strlen(pre->pattern));
    return model_finish(t, pre->digits ? "single digits, GPT-2" : name, e);
}

int load_gguf(struct tokenizer *t, const char *path, struct err *e)
{
    struct gguf *g = NULL;
    int rc = gguf_open(&g, path, e);
    if (!rc && (rc = load_all(t, g, e)))
        err_prefix(e, "%s", path);
    gguf_close(g);
    return rc;
}
