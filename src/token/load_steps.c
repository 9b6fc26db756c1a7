/* The steps of a tokenizer.json around its model: normalizer, pre-tokenizer, decoder. Each is one step or a sequence of
 * them; a step that isn't known is refused by its name. */
#include <string.h>

#include "token/fields.h"
#include "token/model.h"
#include "base/utf8.h"

enum { MAX_NESTED = 4 };

static int unsupported(struct err *e, const char *what, const char *name)
{
    return err_set(e, ERR_UNSUPPORTED, "unsupported %s \"%.60s\"", what, name);
}

typedef int (*step_fn)(void *ud, const struct json *v, const char *type, struct err *e);

/* Runs fn over the steps of v in order. what: "normalizer", ...; list: the member that holds a sequence's steps. */
static int each_step(const struct json *v, const char *what, const char *list, int depth, step_fn fn, void *ud,
                     struct err *e)
{
    const struct json *type, *steps;
    int rc = 0;
    if (!v || json_is(v, JSON_NULL))
        return 0;
    if (!json_is(v, JSON_OBJECT))
        return err_set(e, ERR_FORMAT, "%s is %s, expected an object", what, json_type_name(v));
    if ((rc = field_of(v, what, "type", JSON_STRING, &type, e)))
        return rc;
    if (!type)
        return err_set(e, ERR_FORMAT, "a %s has no type", what);
    if (strcmp(type->s, "Sequence"))
        return fn(ud, v, type->s, e);
    if ((rc = field_of(v, what, list, JSON_ARRAY, &steps, e)))
        return rc;
    if (!steps)
        return err_set(e, ERR_FORMAT, "a %s of type Sequence has no %s", what, list);
    if (depth == MAX_NESTED)
        return err_set(e, ERR_LIMIT, "%s: sequences nest deeper than %d", what, MAX_NESTED);
    for (const struct json *c = steps->child; c && !rc; c = c->next)
        rc = each_step(c, what, list, depth + 1, fn, ud, e);
    return rc;
}

/* A string member that must be there. */
static int need_str(const struct json *v, const char *what, const char *key, const struct json **out, struct err *e)
{
    int rc = field_of(v, what, key, JSON_STRING, out, e);
    return rc || *out ? rc : err_set(e, ERR_FORMAT, "%s.%s is missing, expected a string", what, key);
}

/* {"String": s} or {"Regex": s}. */
static int get_pattern(const struct json *v, const char *what, const struct json **literal, const struct json **regex,
                       struct err *e)
{
    const struct json *pattern;
    int rc = field_of(v, what, "pattern", JSON_OBJECT, &pattern, e);
    if (rc || (rc = field_of(pattern, "pattern", "String", JSON_STRING, literal, e)) ||
        (rc = field_of(pattern, "pattern", "Regex", JSON_STRING, regex, e)))
        return rc;
    return !*literal == !*regex ? err_set(e, ERR_FORMAT, "%s.pattern is neither a String nor a Regex", what) : 0;
}

/* ---- normalizer ------------------------------------------------------------------------------------ */

static int normalizer_step(void *ud, const struct json *v, const char *type, struct err *e)
{
    static const char what[] = "normalizer";
    struct norm *m = &((struct tokenizer *)ud)->norm;
    const struct json *literal, *regex, *s;
    int rc;
    if (!strcmp(type, "NFC"))
        return norm_add(m, NORM_NFC, NULL, 0, NULL, 0, e);
    if (!strcmp(type, "Prepend")) {
        rc = need_str(v, what, "prepend", &s, e);
        return rc ? rc : norm_add(m, NORM_PREPEND, NULL, 0, s->s, s->n, e);
    }
    if (!strcmp(type, "Replace")) {
        if ((rc = get_pattern(v, what, &literal, &regex, e)) || (rc = need_str(v, what, "content", &s, e)))
            return rc;
        if (regex)
            return unsupported(e, what, "Replace with a Regex");
        return norm_add(m, NORM_REPLACE, literal->s, literal->n, s->s, s->n, e);
    }
    return unsupported(e, what, type);
}

int load_normalizer(struct tokenizer *t, const struct json *v, struct err *e)
{
    return each_step(v, "normalizer", "normalizers", 0, normalizer_step, t, e);
}

/* ---- pre-tokenizer --------------------------------------------------------------------------------- */

/* Characters that the Punctuation step splits at. */
static const char PATTERN_PUNCTUATION[] = "[\\p{P}$+<=>^`|~]";

struct pre {
    struct tokenizer *t;
    const char *name; // of the last known pattern
    bool is_byte_level, has_own, has_digits;
};

static int get_behavior(const struct json *v, enum split *out, struct err *e)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                        "Contiguous"}; // in the order of enum split
    const struct json *s;
    int k = 0, rc = field_of(v, "pre_tokenizer", "behavior", JSON_STRING, &s, e);
    if (rc)
        return rc;
    while (s && k < 5 && strcmp(s->s, names[k]))
        k++;
    *out = (enum split)k;
    return k == 5 ? unsupported(e, "split behavior", s->s) : 0;
}

static int load_split(struct pre *st, const struct json *v, struct err *e)
{
    const struct json *literal, *regex;
    enum split split;
    bool invert;
    int rc = get_behavior(v, &split, e);
    if (rc || (rc = field_bool(v, "pre_tokenizer", "invert", false, &invert, e)) ||
        (rc = get_pattern(v, "pre_tokenizer", &literal, &regex, e)))
        return rc;
    if (!json_get(v, "behavior"))
        return err_set(e, ERR_FORMAT, "pre_tokenizer.behavior is missing, expected a string");
    const char *name = literal || split != SPLIT_ISOLATED || invert ? NULL : pattern_name(regex->s, regex->n);
    if (name)
        st->name = name;
    else
        st->has_own = true;
    return literal ? pretok_add_literal(&st->t->pretok, literal->s, literal->n, split, invert, e)
                   : pretok_add(&st->t->pretok, regex->s, regex->n, split, invert, e);
}

static int load_byte_level(struct pre *st, const struct json *v, struct err *e)
{
    bool prefix, use_regex;
    int rc = field_bool(v, "pre_tokenizer", "add_prefix_space", true, &prefix, e);
    if (rc || (rc = field_bool(v, "pre_tokenizer", "use_regex", true, &use_regex, e)))
        return rc;
    st->is_byte_level = true;
    if (prefix && st->t->pretok.n) // it would go in front of every piece
        return unsupported(e, "pre-tokenizer", "ByteLevel with add_prefix_space after another step");
    if (prefix && (rc = norm_add(&st->t->shape, NORM_PREPEND_NEW, NULL, 0, " ", 1, e)))
        return rc;
    if (!use_regex)
        return 0;
    st->name = pattern_name(PATTERN_GPT2, strlen(PATTERN_GPT2));
    return pretok_add(&st->t->pretok, PATTERN_GPT2, strlen(PATTERN_GPT2), SPLIT_ISOLATED, false, e);
}

/* Spaces become `replacement`, one more goes in front (always, or where the text starts), pieces start at them. */
static int load_metaspace(struct pre *st, const struct json *v, struct err *e)
{
    const struct json *mark, *scheme;
    struct norm *shape = &st->t->shape;
    bool prefix, split;
    int rc = need_str(v, "pre_tokenizer", "replacement", &mark, e);
    if (rc || (rc = field_of(v, "pre_tokenizer", "prepend_scheme", JSON_STRING, &scheme, e)) ||
        (rc = field_bool(v, "pre_tokenizer", "add_prefix_space", true, &prefix, e)) ||
        (rc = field_bool(v, "pre_tokenizer", "split", true, &split, e)))
        return rc;
    const char *when = scheme ? scheme->s : prefix ? "always" : "never"; // older files have the flag only
    if (strcmp(when, "always") && strcmp(when, "first") && strcmp(when, "never"))
        return unsupported(e, "prepend_scheme", when);
    if (st->t->pretok.n)
        return unsupported(e, "pre-tokenizer", "Metaspace after another step");
    if (!mark->n)
        return err_set(e, ERR_FORMAT, "pre_tokenizer.replacement is empty, expected a character");
    rc = norm_add(shape, NORM_REPLACE, " ", 1, mark->s, mark->n, e);
    if (!rc && strcmp(when, "never"))
        rc = norm_add(shape, strcmp(when, "first") ? NORM_PREPEND_NEW : NORM_PREPEND_FIRST, NULL, 0, mark->s, mark->n, e);
    st->has_own |= split;
    return rc || !split ? rc
                        : pretok_add_literal(&st->t->pretok, mark->s, mark->n, SPLIT_MERGED_WITH_NEXT, false, e);
}

static int pre_tokenizer_step(void *ud, const struct json *v, const char *type, struct err *e)
{
    struct pre *st = ud;
    struct pretok *p = &st->t->pretok;
    enum split split;
    bool single;
    int rc;
    if (st->is_byte_level) // it would see the byte-level alphabet instead of the text
        return unsupported(e, "pre-tokenizer after ByteLevel", type);
    if (!strcmp(type, "Split"))
        return load_split(st, v, e);
    if (!strcmp(type, "ByteLevel"))
        return load_byte_level(st, v, e);
    if (!strcmp(type, "Metaspace"))
        return load_metaspace(st, v, e);
    if (!strcmp(type, "Digits")) {
        st->has_digits = true;
        if ((rc = field_bool(v, "pre_tokenizer", "individual_digits", false, &single, e)))
            return rc;
        const char *pattern = single ? PATTERN_DIGIT : PATTERN_DIGITS;
        return pretok_add(p, pattern, strlen(pattern), SPLIT_ISOLATED, false, e);
    }
    if (!strcmp(type, "Punctuation")) {
        st->has_own = true;
        rc = get_behavior(v, &split, e);
        return rc ? rc : pretok_add(p, PATTERN_PUNCTUATION, strlen(PATTERN_PUNCTUATION), split, false, e);
    }
    return unsupported(e, "pre-tokenizer", type);
}

int load_pre_tokenizer(struct tokenizer *t, const struct json *v, const char **pattern, struct err *e)
{
    struct pre st = {.t = t};
    int rc = each_step(v, "pre_tokenizer", "pretokenizers", 0, pre_tokenizer_step, &st, e);
    if (st.has_digits && st.name && !strcmp(st.name, "GPT-2"))
        st.name = "single digits, GPT-2";
    *pattern = st.has_own ? NULL : st.name;
    return rc;
}

/* ---- decoder --------------------------------------------------------------------------------------- */

struct decoder {
    struct tokenizer *t;
    bool is_fused;
};

static int decode_replace(struct decoder *st, const struct json *v, struct err *e)
{
    struct decoding *c = &st->t->decoding;
    const struct json *literal, *regex, *to;
    int rc = get_pattern(v, "decoder", &literal, &regex, e);
    if (rc || (rc = need_str(v, "decoder", "content", &to, e)))
        return rc;
    if (regex)
        return unsupported(e, "decoder", "Replace with a Regex");
    if (st->is_fused)
        return unsupported(e, "decoder", "Replace after Fuse");
    if (c->n_from)
        return unsupported(e, "decoder", "Replace, more than one");
    if (!literal->n || literal->n > NORM_MAX_TEXT || to->n > NORM_MAX_TEXT)
        return err_set(e, ERR_LIMIT, "a decoder's text of %zu and %zu bytes, expected 1 to %d", literal->n, to->n,
                       NORM_MAX_TEXT);
    memcpy(c->from, literal->s, c->n_from = literal->n);
    memcpy(c->to, to->s, c->n_to = to->n);
    return 0;
}

static int decode_strip(struct decoder *st, const struct json *v, struct err *e)
{
    struct decoding *c = &st->t->decoding;
    const struct json *s, *start, *stop;
    int64_t n = 0, n_stop = 0;
    int rc = need_str(v, "decoder", "content", &s, e);
    if (rc || (rc = field_of(v, "decoder", "start", JSON_NUMBER, &start, e)) ||
        (rc = field_of(v, "decoder", "stop", JSON_NUMBER, &stop, e)))
        return rc;
    if ((start && !json_int(start, &n)) || (stop && !json_int(stop, &n_stop)) || n < 0 || n > 1024 || !s->n ||
        s->n > NORM_MAX_TEXT)
        return err_set(e, ERR_FORMAT, "decoder: Strip with start, stop or content out of range");
    if (n_stop)
        return unsupported(e, "decoder", "Strip at the end of a text");
    if (!st->is_fused)
        return unsupported(e, "decoder", "Strip before Fuse");
    memcpy(c->strip, s->s, c->n_strip = s->n);
    c->max_strip = (int)n;
    return 0;
}

static int decode_metaspace(struct decoder *st, const struct json *v, struct err *e)
{
    struct decoding *c = &st->t->decoding;
    const struct json *mark, *scheme;
    bool prefix;
    int rc = need_str(v, "decoder", "replacement", &mark, e);
    if (rc || (rc = field_of(v, "decoder", "prepend_scheme", JSON_STRING, &scheme, e)) ||
        (rc = field_bool(v, "decoder", "add_prefix_space", true, &prefix, e)))
        return rc;
    if (c->n_from || !mark->n || mark->n > NORM_MAX_TEXT)
        return unsupported(e, "decoder", "Metaspace after Replace, or without a character");
    memcpy(c->from, mark->s, c->n_from = mark->n);
    memcpy(c->to, " ", c->n_to = 1);
    c->drop_in_first = scheme ? strcmp(scheme->s, "never") != 0 : prefix;
    return 0;
}

static int decoder_step(void *ud, const struct json *v, const char *type, struct err *e)
{
    struct decoder *st = ud;
    bool is_bytes = st->t->vocab.form == FORM_ALPHABET;
    if (!strcmp(type, "Fuse")) {
        st->is_fused = true;
        return 0;
    }
    if (is_bytes != !strcmp(type, "ByteLevel"))
        return unsupported(e, is_bytes ? "decoder beside a ByteLevel pre-tokenizer" : "decoder", type);
    if (is_bytes || !strcmp(type, "ByteFallback")) // the vocabulary's form does these
        return 0;
    if (!strcmp(type, "Replace"))
        return decode_replace(st, v, e);
    if (!strcmp(type, "Strip"))
        return decode_strip(st, v, e);
    if (!strcmp(type, "Metaspace"))
        return decode_metaspace(st, v, e);
    return unsupported(e, "decoder", type);
}

int load_decoder(struct tokenizer *t, const struct json *v, struct err *e)
{
    struct decoder st = {.t = t};
    if (t->vocab.form != FORM_ALPHABET && (!v || json_is(v, JSON_NULL)))
        return err_set(e, ERR_UNSUPPORTED, "unsupported tokenizer: BPE over characters without a decoder");
    return each_step(v, "decoder", "decoders", 0, decoder_step, &st, e);
}

/* ---- looking ahead --------------------------------------------------------------------------------- */

struct sought {
    const char *type;
    bool found;
};

static int seek(void *ud, const struct json *v, const char *type, struct err *e)
{
    struct sought *s = ud;
    (void)v, (void)e;
    s->found |= !strcmp(type, s->type);
    return 0;
}

int steps_form(const struct json *root, enum vocab_form *form, struct err *e)
{
    struct sought bytes = {.type = "ByteLevel"}, fallback = {.type = "ByteFallback"};
    int rc = each_step(json_get(root, "pre_tokenizer"), "pre_tokenizer", "pretokenizers", 0, seek, &bytes, e);
    if (!rc)
        rc = each_step(json_get(root, "decoder"), "decoder", "decoders", 0, seek, &fallback, e);
    *form = bytes.found ? FORM_ALPHABET : fallback.found ? FORM_FALLBACK : FORM_TEXT;
    return rc;
}
