/* Tokenizer metadata of a GGUF file (keys tokenizer.ggml.*). Three schemes: "gpt2", byte-level BPE whose pre-tokenizer is
 * only named (gguf_pre.h says what a name means); "llama", SentencePiece BPE by scores; "gemma4", the same spelling with a
 * list of merges. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "format/gguf.h"
#include "token/gguf_pre.h"
#include "token/model.h"

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE }; // tokenizer.ggml.token_type

enum scheme { SCHEME_BYTES, SCHEME_SCORES, SCHEME_MERGES };

/* What is read along the way; arrays have an entry for each of the n tokens. */
struct source {
    const struct gguf *g;
    enum scheme scheme;
    const struct gguf_pre *pre; // of SCHEME_BYTES
    struct gguf_str *tok;
    int64_t *type;
    size_t n;
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

static int find_scheme(struct source *x, struct err *e)
{
    static const struct {
        const char *name, *what;
    } others[] = {{"bert", " (WordPiece)"}, {"t5", " (Unigram)"}, {"rwkv", " (RWKV trie)"}, {"plamo2", ""}};
    struct gguf_str model;
    if (!gguf_string(find(x->g, "model"), &model))
        return err_set(e, ERR_FORMAT, "no tokenizer in this file (key tokenizer.ggml.model, a string)");
    x->scheme = is_str(&model, "llama") ? SCHEME_SCORES : is_str(&model, "gemma4") ? SCHEME_MERGES : SCHEME_BYTES;
    if (x->scheme != SCHEME_BYTES || is_str(&model, "gpt2"))
        return 0;
    const char *what = "";
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (is_str(&model, others[i].name))
            what = others[i].what;
    return err_set(e, ERR_UNSUPPORTED, "unsupported tokenizer model \"%.*s\"%s", (int)(model.n < 60 ? model.n : 60),
                   model.s, what);
}

static int find_pre(struct source *x, struct err *e)
{
    struct gguf_str pre;
    if (!gguf_string(find(x->g, "pre"), &pre))
        return err_set(e, ERR_UNSUPPORTED,
                       "unsupported pre-tokenizer: the file doesn't name one (key tokenizer.ggml.pre)");
    x->pre = gguf_pre_find(pre.s, pre.n);
    return x->pre ? 0
                  : err_set(e, ERR_UNSUPPORTED, "unsupported pre-tokenizer \"%.*s\" (key tokenizer.ggml.pre)",
                            (int)(pre.n < 60 ? pre.n : 60), pre.s);
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

static int load_types(struct source *x, struct err *e)
{
    const struct gguf_kv *kv = find(x->g, "token_type");
    x->type = malloc((x->n + 1) * sizeof *x->type);
    if (!x->type)
        return err_set(e, ERR_NOMEM, "no memory for %zu token types", x->n);
    for (size_t i = 0; i < x->n; i++)
        x->type[i] = TYPE_NORMAL;
    if (!kv)
        return 0;
    if (kv->type != GGUF_ARRAY || kv->n != x->n)
        return err_set(e, ERR_FORMAT, "tokenizer.ggml.token_type doesn't have one entry for each of the %zu tokens",
                       x->n);
    return gguf_ints(kv, x->type) ? 0 : err_set(e, ERR_FORMAT, "tokenizer.ggml.token_type is no array of whole numbers");
}

static bool is_blank(const struct gguf_str *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (!strchr(" \t\r\n", s->s[i]))
            return false;
    return s->n > 0;
}

/* Gemma's spare tokens are no control tokens to the family's own tokenizer. */
static bool is_spare(const struct gguf_str *s)
{
    size_t i = 7;
    if (s->n < 9 || memcmp(s->s, "<unused", 7))
        return false;
    while (i < s->n && s->s[i] >= '0' && s->s[i] <= '9')
        i++;
    return i == s->n - 1 && s->s[i] == '>';
}

/* Runs of spaces that users defined stand in the file as spaces; the vocabulary writes them as U+2581. Returns the
 * content, in *owned if it had to be written. */
static struct gguf_str marked_spaces(const struct gguf_str *s, char **owned)
{
    size_t i = 0;
    while (i < s->n && s->s[i] == ' ')
        i++;
    *owned = s->n && i == s->n && i <= TOKEN_MAX_ADDED ? malloc(3 * s->n) : NULL;
    for (i = 0; *owned && i < s->n; i++)
        memcpy(*owned + 3 * i, "\xE2\x96\x81", 3);
    return *owned ? (struct gguf_str){*owned, 3 * s->n} : *s;
}

static int load_token(struct tokenizer *t, const struct source *x, size_t i, struct err *e)
{
    char *owned = NULL;
    bool is_user = x->type[i] == TYPE_USER, by_chars = x->scheme != SCHEME_BYTES;
    struct gguf_str s = is_user && by_chars ? marked_spaces(&x->tok[i], &owned) : x->tok[i];
    int rc = vocab_add_written(&t->vocab, s.s, s.n, (int64_t)i, e);
    free(owned);
    return rc;
}

static int load_tokens(struct tokenizer *t, const struct source *x, struct err *e)
{
    int rc = 0;
    if (vocab_reserve(&t->vocab, x->n + x->n / 8))
        return err_set(e, ERR_NOMEM, "no memory for %zu tokens", x->n);
    for (size_t i = 0; i < x->n && !rc; i++)
        rc = load_token(t, x, i, e);
    return rc;
}

struct scored {
    double score;
    int32_t id;
};

static int by_score(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    return x->score > y->score ? -1 : x->score < y->score ? 1 : (x->id > y->id) - (x->id < y->id);
}

/* Two neighbours that spell a token merge, the one of the highest score first. Equal scores are equal ranks. What users
 * defined is found as a whole in the text, not merged, but for runs of white space: those come before all else, the
 * longest first. */
static int load_scores(struct tokenizer *t, const struct source *x, struct err *e)
{
    const struct gguf_kv *kv = find(x->g, "scores");
    double *score = malloc((x->n + 1) * sizeof *score);
    struct scored *order = malloc((x->n + 1) * sizeof *order);
    int32_t *rank = malloc((x->n + 1) * sizeof *rank), r = 0;
    int rc = 0;
    if (!score || !order || !rank || bpe_init(&t->bpe, &t->vocab, 0))
        rc = err_set(e, ERR_NOMEM, "no memory for the scores of %zu tokens", x->n);
    else if (!kv || kv->type != GGUF_ARRAY || kv->n != x->n || !gguf_nums(kv, score))
        rc = err_set(e, ERR_FORMAT, "tokenizer.ggml.scores is no array of %zu numbers", x->n);
    for (size_t i = 0; i < x->n && !rc; i++) {
        if (!isfinite(score[i]))
            rc = err_set(e, ERR_FORMAT, "tokenizer.ggml.scores[%zu] is not finite", i);
        if (x->type[i] == TYPE_USER && is_blank(&x->tok[i]))
            score[i] = 1e30 * (double)x->tok[i].n;
        order[i] = (struct scored){score[i], (int32_t)i};
    }
    if (!rc) {
        qsort(order, x->n, sizeof *order, by_score);
        for (size_t k = 0; k < x->n; k++) {
            size_t i = (size_t)order[k].id;
            r += k && order[k].score < order[k - 1].score;
            bool merges = x->type[i] == TYPE_NORMAL || (x->type[i] == TYPE_USER && is_blank(&x->tok[i]));
            rank[i] = merges ? r : -1;
        }
        bpe_set_ranks(&t->bpe, rank);
        rank = NULL;
    }
    free(rank);
    free(order);
    free(score);
    return rc;
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
static int load_added(struct tokenizer *t, const struct source *x, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; i < x->n && !rc; i++) {
        int64_t type = x->type[i];
        bool is_user = type == TYPE_USER || (type == TYPE_CONTROL && is_spare(&x->tok[i]));
        if (!is_user && type != TYPE_UNKNOWN && type != TYPE_CONTROL)
            continue;
        struct added_token a = {.is_special = !is_user};
        char *owned = NULL;
        struct gguf_str s = is_user && x->scheme != SCHEME_BYTES ? marked_spaces(&x->tok[i], &owned) : x->tok[i];
        rc = model_add_token(t, s.s, s.n, (int64_t)i, &a, e);
        free(owned);
    }
    return rc;
}

static int load_id(const struct tokenizer *t, const struct gguf *g, const char *key, int32_t *id, struct err *e)
{
    const struct gguf_kv *kv = find(g, key);
    int64_t v;
    if (kv && !gguf_int(kv, &v))
        return err_set(e, ERR_FORMAT, "tokenizer.ggml.%s is no whole number", key);
    if (kv && v >= 0 && v <= t->vocab.max_id) // some files write -1 for none
        *id = (int32_t)v;
    return 0;
}

static int load_flag(const struct gguf *g, const char *key, bool *out, struct err *e)
{
    const struct gguf_kv *kv = find(g, key);
    return !kv || gguf_bool(kv, out) ? 0 : err_set(e, ERR_FORMAT, "tokenizer.ggml.%s is neither true nor false", key);
}

static int load_specials(struct tokenizer *t, const struct source *x, struct err *e)
{
    struct special_ids *s = &t->specials;
    int rc;
    s->add_bos = !x->pre || (x->pre->flags & PRE_ADD_BOS);
    if ((rc = load_id(t, x->g, "bos_token_id", &s->bos, e)) || (rc = load_id(t, x->g, "eos_token_id", &s->eos, e)) ||
        (rc = load_id(t, x->g, "padding_token_id", &s->pad, e)) ||
        (rc = load_id(t, x->g, "unknown_token_id", &t->bpe.unk, e)) ||
        (rc = load_flag(x->g, "add_bos_token", &s->add_bos, e)))
        return rc;
    s->add_bos = s->add_bos && s->bos >= 0;
    if (x->scheme == SCHEME_BYTES)
        t->bpe.unk = -1; // every byte has a token; where one lacks, the reference drops it
    return 0;
}

static int load_spelling(struct tokenizer *t, const struct source *x, struct err *e)
{
    bool prefix = x->scheme == SCHEME_SCORES;
    int rc = 0;
    if (x->scheme == SCHEME_BYTES) {
        t->bpe.ignore_merges = x->pre->flags & PRE_IGNORE_MERGES;
        return x->pre->flags & PRE_NFC ? norm_add(&t->norm, NORM_NFC, NULL, 0, NULL, 0, e) : 0;
    }
    t->bpe.by_char = t->bpe.byte_fallback = t->bpe.fuse_unk = true;
    if (prefix && (rc = load_flag(x->g, "add_space_prefix", &prefix, e)))
        return rc;
    return model_spaces(t, prefix ? SPACES_PREFIXED : SPACES_AS_TEXT, e);
}

static const char *pre_name(const struct gguf_pre *p)
{
    const char *last = p->step[0], *known;
    if (last == PATTERN_DIGIT && p->step[1] == PATTERN_GPT2)
        return "single digits, GPT-2";
    known = p->step[1] ? NULL : pattern_name(last, strlen(last));
    return known ? known : p->name;
}

static int load_all(struct tokenizer *t, struct source *x, struct err *e)
{
    int rc = find_scheme(x, e);
    if (!rc && x->scheme == SCHEME_BYTES)
        rc = find_pre(x, e);
    t->vocab.form = x->scheme == SCHEME_BYTES ? FORM_ALPHABET : FORM_FALLBACK;
    if (rc || (rc = get_strings(x->g, "tokens", &x->tok, &x->n, e)) || (rc = load_types(x, e)) ||
        (rc = load_tokens(t, x, e)) || (rc = x->scheme == SCHEME_SCORES ? load_scores(t, x, e) : load_merges(t, x->g, e)) ||
        (rc = load_spelling(t, x, e)) || (rc = load_added(t, x, e)))
        return rc;
    for (int i = 0; x->pre && i < GGUF_PRE_MAX_STEPS && x->pre->step[i] && !rc; i++)
        rc = pretok_add(&t->pretok, x->pre->step[i], strlen(x->pre->step[i]), SPLIT_ISOLATED, false, e);
    if (rc || (rc = load_specials(t, x, e)))
        return rc;
    return model_finish(t, x->pre ? pre_name(x->pre) : NULL, e);
}

int load_gguf(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    struct source x = {.g = g};
    int rc = load_all(t, &x, e);
    free(x.tok);
    free(x.type);
    return rc;
}
