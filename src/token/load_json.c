/* tokenizer.json and tokenizer_config.json (Hugging Face). Both are untrusted. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "text/json.h"
#include "token/model.h"

enum { MAX_CONFIG = 16 * 1024 * 1024, MAX_DOM = 1024 * 1024 * 1024, MAX_NESTED = 4 };

static int unsupported(struct err *e, const char *what, const char *name)
{
    return err_set(e, ERR_UNSUPPORTED, "unsupported %s \"%.60s\"", what, name);
}

static const char *type_of(const struct json *v) { return json_str(json_get(v, "type"), ""); }

static int check_model(const struct json *model, bool is_byte_level, struct err *e)
{
    const char *type = json_str(json_get(model, "type"), json_get(model, "merges") ? "BPE" : "(no type)");
    if (!json_is(model, JSON_OBJECT))
        return err_set(e, ERR_FORMAT, "no object \"model\"");
    if (strcmp(type, "BPE"))
        return unsupported(e, "tokenizer model", type);
    if (json_bool(json_get(model, "byte_fallback"), false))
        return unsupported(e, "tokenizer model", "SentencePiece-style BPE with byte fallback");
    if (!is_byte_level)
        return unsupported(e, "tokenizer model", "BPE over characters (no ByteLevel pre-tokenizer)");
    if (json_num(json_get(model, "dropout"), 0) > 0)
        return unsupported(e, "tokenizer model", "BPE with dropout");
    if (*json_str(json_get(model, "continuing_subword_prefix"), "") ||
        *json_str(json_get(model, "end_of_word_suffix"), ""))
        return unsupported(e, "tokenizer model", "BPE with word affixes");
    return 0;
}

static int load_vocab(struct tokenizer *t, const struct json *vocab, struct err *e)
{
    if (!json_is(vocab, JSON_OBJECT))
        return err_set(e, ERR_FORMAT, "no object \"model.vocab\"");
    if (vocab->n > VOCAB_MAX_TOKENS)
        return err_set(e, ERR_LIMIT, "%zu tokens, the limit is %d", vocab->n, VOCAB_MAX_TOKENS);
    if (vocab_reserve(&t->vocab, vocab->n))
        return err_set(e, ERR_NOMEM, "no memory for %zu tokens", vocab->n);
    for (const struct json *c = vocab->child; c; c = c->next) {
        int64_t id;
        if (!json_int(c, &id))
            return err_set(e, ERR_FORMAT, "token \"%.60s\" has no whole number as its id", c->key);
        int rc = vocab_add_written(&t->vocab, c->key, c->n_key, id, e);
        if (rc)
            return rc;
    }
    return 0;
}

/* ["a", "b"] or, in older files, "a b". */
static int load_merge(struct tokenizer *t, const struct json *m, int32_t number, struct err *e)
{
    const struct json *a = json_at(m, 0), *b = a ? a->next : NULL;
    if (json_is(m, JSON_ARRAY) && m->n == 2 && json_is(a, JSON_STRING) && json_is(b, JSON_STRING))
        return model_add_merge(t, a->s, a->n, b->s, b->n, number, e);
    const char *space = json_is(m, JSON_STRING) ? memchr(m->s, ' ', m->n) : NULL;
    size_t n_a = space ? (size_t)(space - m->s) : 0;
    if (!space || memchr(space + 1, ' ', m->n - n_a - 1))
        return err_set(e, ERR_FORMAT, "merge %d is neither a pair of strings nor \"token token\"", (int)number);
    return model_add_merge(t, m->s, n_a, space + 1, m->n - n_a - 1, number, e);
}

static int load_merges(struct tokenizer *t, const struct json *model, struct err *e)
{
    const struct json *merges = json_get(model, "merges"), *unk = json_get(model, "unk_token");
    int32_t number = 0;
    if (!json_is(merges, JSON_ARRAY))
        return err_set(e, ERR_FORMAT, "no array \"model.merges\"");
    if (merges->n > VOCAB_MAX_TOKENS)
        return err_set(e, ERR_LIMIT, "%zu merges, the limit is %d", merges->n, VOCAB_MAX_TOKENS);
    if (bpe_init(&t->bpe, &t->vocab, merges->n))
        return err_set(e, ERR_NOMEM, "no memory for %zu merges", merges->n);
    for (const struct json *m = merges->child; m; m = m->next) {
        if (json_is(m, JSON_STRING) && m->n >= 8 && !memcmp(m->s, "#version", 8))
            continue; // the head line of the old merges.txt
        int rc = load_merge(t, m, number++, e);
        if (rc)
            return rc;
    }
    t->bpe.ignore_merges = json_bool(json_get(model, "ignore_merges"), false);
    t->bpe.fuse_unk = json_bool(json_get(model, "fuse_unk"), false);
    if (json_is(unk, JSON_STRING))
        t->bpe.unk = vocab_find_written(&t->vocab, unk->s, unk->n);
    return 0;
}

static int load_normalizer(struct tokenizer *t, const struct json *v, int depth, struct err *e)
{
    const char *type = type_of(v);
    if (!v || json_is(v, JSON_NULL))
        return 0;
    if (!strcmp(type, "NFC")) {
        t->nfc = true;
        return 0;
    }
    if (strcmp(type, "Sequence") || depth == MAX_NESTED)
        return unsupported(e, "normalizer", type);
    const struct json *list = json_get(v, "normalizers");
    for (const struct json *c = list ? list->child : NULL; c; c = c->next) {
        int rc = load_normalizer(t, c, depth + 1, e);
        if (rc)
            return rc;
    }
    return 0;
}

struct steps {
    struct tokenizer *t;
    const char *name; // of the last known pattern
    bool is_byte_level, has_own, has_digits;
};

static int load_split(struct steps *st, const struct json *v, struct err *e)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                        "Contiguous"}; // in the order of enum split
    const struct json *pattern = json_get(v, "pattern");
    const struct json *regex = json_get(pattern, "Regex"), *literal = json_get(pattern, "String");
    const char *behavior = json_str(json_get(v, "behavior"), "");
    bool invert = json_bool(json_get(v, "invert"), false);
    int k = 0;
    while (k < 5 && strcmp(behavior, names[k]))
        k++;
    if (k == 5)
        return unsupported(e, "split behavior", behavior);
    if (json_is(literal, JSON_STRING)) {
        st->has_own = true;
        return pretok_add_literal(&st->t->pretok, literal->s, literal->n, (enum split)k, invert, e);
    }
    if (!json_is(regex, JSON_STRING))
        return err_set(e, ERR_FORMAT, "a Split pre-tokenizer without a pattern");
    const char *name = k || invert ? NULL : pattern_name(regex->s, regex->n);
    if (name)
        st->name = name;
    else
        st->has_own = true;
    return pretok_add(&st->t->pretok, regex->s, regex->n, (enum split)k, invert, e);
}

static int load_pre_tokenizer(struct steps *st, const struct json *v, int depth, struct err *e)
{
    const char *type = type_of(v);
    struct pretok *p = &st->t->pretok;
    if (!v || json_is(v, JSON_NULL))
        return 0;
    if (st->is_byte_level) // it would see the byte-level alphabet instead of the text
        return unsupported(e, "pre-tokenizer after ByteLevel", type);
    if (!strcmp(type, "Split"))
        return load_split(st, v, e);
    if (!strcmp(type, "Digits")) {
        st->has_digits = true;
        return json_bool(json_get(v, "individual_digits"), false)
                   ? pretok_add(p, PATTERN_DIGIT, strlen(PATTERN_DIGIT), SPLIT_ISOLATED, false, e)
                   : pretok_add(p, PATTERN_DIGITS, strlen(PATTERN_DIGITS), SPLIT_ISOLATED, false, e);
    }
    if (!strcmp(type, "ByteLevel")) {
        st->is_byte_level = true;
        if (json_bool(json_get(v, "add_prefix_space"), true))
            return unsupported(e, "pre-tokenizer", "ByteLevel with add_prefix_space");
        if (!json_bool(json_get(v, "use_regex"), true))
            return 0;
        st->name = pattern_name(PATTERN_GPT2, strlen(PATTERN_GPT2));
        return pretok_add(p, PATTERN_GPT2, strlen(PATTERN_GPT2), SPLIT_ISOLATED, false, e);
    }
    if (strcmp(type, "Sequence") || depth == MAX_NESTED)
        return unsupported(e, "pre-tokenizer", type);
    const struct json *list = json_get(v, "pretokenizers");
    for (const struct json *c = list ? list->child : NULL; c; c = c->next) {
        int rc = load_pre_tokenizer(st, c, depth + 1, e);
        if (rc)
            return rc;
    }
    return 0;
}

/* Said before the details are read, so that another family is refused by its name. */
static bool has_byte_level(const struct json *v, int depth)
{
    if (!strcmp(type_of(v), "ByteLevel"))
        return true;
    const struct json *list = json_get(v, "pretokenizers");
    for (const struct json *c = list && depth < MAX_NESTED ? list->child : NULL; c; c = c->next)
        if (has_byte_level(c, depth + 1))
            return true;
    return false;
}

static int load_added(struct tokenizer *t, const struct json *list, struct err *e)
{
    if (json_is(list, JSON_ARRAY) && list->n > VOCAB_MAX_TOKENS)
        return err_set(e, ERR_LIMIT, "%zu added tokens, the limit is %d", list->n, VOCAB_MAX_TOKENS);
    for (const struct json *c = json_is(list, JSON_ARRAY) ? list->child : NULL; c; c = c->next) {
        const struct json *content = json_get(c, "content");
        int64_t id;
        if (!json_is(content, JSON_STRING) || !json_int(json_get(c, "id"), &id))
            return err_set(e, ERR_FORMAT, "an added token lacks its content or its id");
        struct added_token a = {
            .is_special = json_bool(json_get(c, "special"), false),
            .single_word = json_bool(json_get(c, "single_word"), false),
            .lstrip = json_bool(json_get(c, "lstrip"), false),
            .rstrip = json_bool(json_get(c, "rstrip"), false),
            .normalized = json_bool(json_get(c, "normalized"), !json_bool(json_get(c, "special"), false)),
        };
        int rc = model_add_token(t, content->s, content->n, id, &a, e);
        if (rc)
            return rc;
    }
    return 0;
}

/* A template that starts with a special token adds that token in front: the BOS. */
static void load_post_processor(struct tokenizer *t, const struct json *v, int depth)
{
    const struct json *list = json_get(v, "processors");
    for (const struct json *c = list && depth < MAX_NESTED ? list->child : NULL; c; c = c->next)
        load_post_processor(t, c, depth + 1);
    if (strcmp(type_of(v), "TemplateProcessing"))
        return;
    const struct json *first = json_at(json_get(v, "single"), 0);
    const char *bos = json_str(json_get(json_get(first, "SpecialToken"), "id"), NULL);
    int32_t id = bos ? tokenizer_find(t, bos) : -1;
    if (id >= 0) {
        t->specials.bos = id;
        t->specials.add_bos = true;
    }
}

static int load_root(struct tokenizer *t, const struct json *root, struct err *e)
{
    const struct json *model = json_get(root, "model"), *pre = json_get(root, "pre_tokenizer");
    struct steps st = {.t = t};
    int rc;
    if (!json_is(root, JSON_OBJECT))
        return err_set(e, ERR_FORMAT, "not a JSON object");
    if ((rc = check_model(model, has_byte_level(pre, 0), e)) ||
        (rc = load_vocab(t, json_get(model, "vocab"), e)) || (rc = load_merges(t, model, e)) ||
        (rc = load_normalizer(t, json_get(root, "normalizer"), 0, e)) ||
        (rc = load_added(t, json_get(root, "added_tokens"), e)) || (rc = load_pre_tokenizer(&st, pre, 0, e)))
        return rc;
    load_post_processor(t, json_get(root, "post_processor"), 0);
    if (st.has_digits && st.name && !strcmp(st.name, "GPT-2"))
        st.name = "single digits, GPT-2";
    return model_finish(t, st.has_own ? NULL : st.name, e);
}

int load_json(struct tokenizer *t, const char *text, size_t n, struct err *e)
{
    struct arena a = {.max_bytes = MAX_DOM};
    struct json *root;
    int rc = json_parse(&root, &a, text, n, "tokenizer", e);
    if (!rc)
        rc = load_root(t, root, e);
    arena_free(&a);
    return rc;
}

/* A token is given as a string or as an object with its content. */
static void config_token(const struct tokenizer *t, const struct json *v, int32_t *id)
{
    if (json_is(v, JSON_OBJECT))
        v = json_get(v, "content");
    if (json_is(v, JSON_STRING))
        *id = tokenizer_find(t, v->s);
}

int load_config(struct tokenizer *t, const char *path, struct err *e)
{
    struct arena a = {.max_bytes = MAX_DOM};
    struct json *root;
    char *text = NULL;
    size_t n;
    int rc = file_read(path, MAX_CONFIG, &text, &n, e);
    if (!rc && (rc = json_parse(&root, &a, text, n, path, e)) == 0) {
        config_token(t, json_get(root, "bos_token"), &t->specials.bos);
        config_token(t, json_get(root, "eos_token"), &t->specials.eos);
        config_token(t, json_get(root, "pad_token"), &t->specials.pad);
        t->specials.add_bos = json_bool(json_get(root, "add_bos_token"), t->specials.add_bos);
        t->specials.add_bos = t->specials.add_bos && t->specials.bos >= 0;
    }
    free(text);
    arena_free(&a);
    return rc;
}
