/* tokenizer.json and tokenizer_config.json (Hugging Face). Both are untrusted. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "token/fields.h"
#include "token/model.h"

enum { MAX_CONFIG = 16 * 1024 * 1024, MAX_DOM = 1024 * 1024 * 1024, MAX_NESTED = 4 };

static int unsupported(struct err *e, const char *what, const char *name)
{
    return err_set(e, ERR_UNSUPPORTED, "unsupported %s \"%.60s\"", what, name);
}

static int check_affix(const struct json *model, const char *key, struct err *e)
{
    const struct json *s;
    int rc = field_of(model, "model", key, JSON_STRING, &s, e);
    return rc || !s || !s->n ? rc : unsupported(e, "tokenizer model", "BPE with word affixes");
}

static int check_model(const struct json *model, struct err *e)
{
    const struct json *type, *dropout;
    int rc = field_of(model, "model", "type", JSON_STRING, &type, e);
    if (rc || (rc = field_of(model, "model", "dropout", JSON_NUMBER, &dropout, e)))
        return rc;
    const char *name = type ? type->s : json_get(model, "merges") ? "BPE" : "(no type)";
    if (strcmp(name, "BPE"))
        return unsupported(e, "tokenizer model", name);
    if (json_num(dropout, 0) > 0)
        return unsupported(e, "tokenizer model", "BPE with dropout");
    rc = check_affix(model, "continuing_subword_prefix", e);
    return rc ? rc : check_affix(model, "end_of_word_suffix", e);
}

static int load_vocab(struct tokenizer *t, const struct json *model, struct err *e)
{
    const struct json *vocab;
    int rc = field_of(model, "model", "vocab", JSON_OBJECT, &vocab, e);
    if (rc)
        return rc;
    if (!vocab)
        return err_set(e, ERR_FORMAT, "no object \"model.vocab\"");
    if (vocab->n > VOCAB_MAX_TOKENS)
        return err_set(e, ERR_LIMIT, "%zu tokens, the limit is %d", vocab->n, VOCAB_MAX_TOKENS);
    if (vocab_reserve(&t->vocab, vocab->n))
        return err_set(e, ERR_NOMEM, "no memory for %zu tokens", vocab->n);
    for (const struct json *c = vocab->child; c; c = c->next) {
        int64_t id;
        if (!json_int(c, &id))
            return err_set(e, ERR_FORMAT, "token \"%.60s\" has no whole number as its id", c->key);
        if ((rc = vocab_add_written(&t->vocab, c->key, c->n_key, id, e)))
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
    const struct json *merges;
    int32_t number = 0;
    int rc = field_of(model, "model", "merges", JSON_ARRAY, &merges, e);
    if (rc)
        return rc;
    if (!merges)
        return err_set(e, ERR_FORMAT, "no array \"model.merges\"");
    if (merges->n > VOCAB_MAX_TOKENS)
        return err_set(e, ERR_LIMIT, "%zu merges, the limit is %d", merges->n, VOCAB_MAX_TOKENS);
    if (bpe_init(&t->bpe, &t->vocab, merges->n))
        return err_set(e, ERR_NOMEM, "no memory for %zu merges", merges->n);
    for (const struct json *m = merges->child; m; m = m->next) {
        if (json_is(m, JSON_STRING) && m->n >= 8 && !memcmp(m->s, "#version", 8))
            continue; // the head line of the old merges.txt
        if ((rc = load_merge(t, m, number++, e)))
            return rc;
    }
    return 0;
}

static int load_model_flags(struct tokenizer *t, const struct json *model, struct err *e)
{
    const struct json *unk;
    struct bpe *m = &t->bpe;
    int rc = field_bool(model, "model", "ignore_merges", false, &m->ignore_merges, e);
    if (rc || (rc = field_bool(model, "model", "fuse_unk", false, &m->fuse_unk, e)) ||
        (rc = field_bool(model, "model", "byte_fallback", false, &m->byte_fallback, e)) ||
        (rc = field_of(model, "model", "unk_token", JSON_STRING, &unk, e)))
        return rc;
    m->by_char = t->vocab.form != FORM_ALPHABET; // in the alphabet every byte has a character of its own
    if (unk)
        m->unk = vocab_find_written(&t->vocab, unk->s, unk->n);
    if (m->byte_fallback && t->vocab.form == FORM_TEXT)
        return err_set(e, ERR_UNSUPPORTED, "unsupported tokenizer: byte fallback without its decoder");
    return 0;
}

static int load_added_token(struct tokenizer *t, const struct json *c, struct err *e)
{
    static const char where[] = "added token";
    const struct json *content, *number;
    struct added_token a = {0};
    int64_t id;
    if (!json_is(c, JSON_OBJECT))
        return err_set(e, ERR_FORMAT, "an added token is %s, expected an object", json_type_name(c));
    int rc = field_of(c, where, "content", JSON_STRING, &content, e);
    if (rc || (rc = field_of(c, where, "id", JSON_NUMBER, &number, e)))
        return rc;
    if (!content || !json_int(number, &id))
        return err_set(e, ERR_FORMAT, "an added token lacks its content or its id (a whole number)");
    if ((rc = field_bool(c, where, "special", false, &a.is_special, e)) ||
        (rc = field_bool(c, where, "single_word", false, &a.single_word, e)) ||
        (rc = field_bool(c, where, "lstrip", false, &a.lstrip, e)) ||
        (rc = field_bool(c, where, "rstrip", false, &a.rstrip, e)) ||
        (rc = field_bool(c, where, "normalized", !a.is_special, &a.normalized, e)))
        return rc;
    return model_add_token(t, content->s, content->n, id, &a, e);
}

static int load_added(struct tokenizer *t, const struct json *root, struct err *e)
{
    const struct json *list;
    int rc = field_of(root, "", "added_tokens", JSON_ARRAY, &list, e);
    if (!rc && list && list->n > VOCAB_MAX_TOKENS)
        return err_set(e, ERR_LIMIT, "%zu added tokens, the limit is %d", list->n, VOCAB_MAX_TOKENS);
    for (const struct json *c = list && !rc ? list->child : NULL; c && !rc; c = c->next)
        rc = load_added_token(t, c, e);
    return rc;
}

/* A template that starts with a special token adds that token in front: the BOS. */
static void load_post_processor(struct tokenizer *t, const struct json *v, int depth)
{
    const struct json *list = json_get(v, "processors");
    for (const struct json *c = list && depth < MAX_NESTED ? list->child : NULL; c; c = c->next)
        load_post_processor(t, c, depth + 1);
    if (strcmp(json_str(json_get(v, "type"), ""), "TemplateProcessing"))
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
    const struct json *model, *post;
    const char *pattern;
    int rc;
    if (!json_is(root, JSON_OBJECT))
        return err_set(e, ERR_FORMAT, "the file is %s, expected an object", json_type_name(root));
    if ((rc = field_of(root, "", "model", JSON_OBJECT, &model, e)) ||
        (rc = field_of(root, "", "post_processor", JSON_OBJECT, &post, e)))
        return rc;
    if (!model)
        return err_set(e, ERR_FORMAT, "no object \"model\"");
    if ((rc = check_model(model, e)) || (rc = steps_form(root, &t->vocab.form, e)) || (rc = load_vocab(t, model, e)) ||
        (rc = load_merges(t, model, e)) || (rc = load_model_flags(t, model, e)) ||
        (rc = load_normalizer(t, json_get(root, "normalizer"), e)) || (rc = load_added(t, root, e)) ||
        (rc = load_pre_tokenizer(t, json_get(root, "pre_tokenizer"), &pattern, e)) ||
        (rc = load_decoder(t, json_get(root, "decoder"), e)))
        return rc;
    load_post_processor(t, post, 0);
    return model_finish(t, pattern, e);
}

int load_json(struct tokenizer *t, const char *text, size_t n, struct err *e)
{
    struct arena a = {.max_bytes = MAX_DOM};
    struct json *root;
    int rc = json_parse(&root, &a, text, n, "tokenizer", e);
    bool is_tekken = !rc && !json_get(root, "model") && json_is(json_get(root, "config"), JSON_OBJECT);
    if (!rc)
        rc = is_tekken ? load_tekken(t, root, e) : load_root(t, root, e);
    arena_free(&a);
    return rc;
}

/* A token is given as a string or as an object with its content. */
static int config_token(const struct tokenizer *t, const struct json *root, const char *key, int32_t *id, struct err *e)
{
    const struct json *v = json_get(root, key), *content;
    int rc;
    if (json_is(v, JSON_OBJECT))
        rc = field_of(v, key, "content", JSON_STRING, &content, e);
    else
        rc = field_of(root, "", key, JSON_STRING, &content, e);
    if (!rc && content)
        *id = tokenizer_find(t, content->s);
    return rc;
}

static int read_config(struct tokenizer *t, const struct json *root, struct err *e)
{
    struct special_ids *s = &t->specials;
    int rc;
    if (!json_is(root, JSON_OBJECT))
        return err_set(e, ERR_FORMAT, "the file is %s, expected an object", json_type_name(root));
    if ((rc = config_token(t, root, "bos_token", &s->bos, e)) || (rc = config_token(t, root, "eos_token", &s->eos, e)) ||
        (rc = config_token(t, root, "pad_token", &s->pad, e)) ||
        (rc = field_bool(root, "", "add_bos_token", s->add_bos, &s->add_bos, e)))
        return rc;
    s->add_bos = s->add_bos && s->bos >= 0;
    return 0;
}

int load_config(struct tokenizer *t, const char *path, struct err *e)
{
    struct arena a = {.max_bytes = MAX_DOM};
    struct json *root;
    char *text = NULL;
    size_t n;
    int rc = file_read(path, MAX_CONFIG, &text, &n, e);
    if (!rc && !(rc = json_parse(&root, &a, text, n, path, e)) && (rc = read_config(t, root, e)))
        err_prefix(e, "%s", path);
    free(text);
    arena_free(&a);
    return rc;
}
