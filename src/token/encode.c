/* Text to ids: repair, added tokens, normalization, added tokens of normalized text, pieces, merges. */
#include <string.h>

#include "token/model.h"

struct encoder {
    const struct tokenizer *t;
    enum added mode;
    struct ids *out;
    struct err *e;
    struct text norm[2], shape[2];
    struct pretok_work pieces;
    struct bpe_work merges;
    const char *s;     // text that the pieces' offsets count from
    const char *start; // where the whole text starts, if what is under way holds that
};

static int no_memory(struct encoder *x)
{
    return err_set(x->e, ERR_NOMEM, "no memory to tokenize this text");
}

static int on_piece(void *ud, size_t from, size_t to)
{
    struct encoder *x = ud;
    return bpe_encode(&x->t->bpe, &x->merges, x->s + from, to - from, x->out) ? no_memory(x) : 0;
}

static int encode_plain(struct encoder *x, const struct view *v)
{
    struct view shaped;
    if (norm_run(&x->t->shape, x->shape, v, v->s == x->start, &shaped))
        return no_memory(x);
    x->s = shaped.s;
    return pretok_run(&x->t->pretok, &x->pieces, shaped.s, shaped.n, on_piece, x, x->e);
}

/* Cuts v at the matches of one set; what lies between goes on to `rest`. */
static int encode_between(struct encoder *x, const struct added_set *set, const struct view *v,
                          int (*rest)(struct encoder *, const struct view *))
{
    struct added_scan scan = {.set = set, .v = v, .mode = x->mode};
    struct added_match m;
    size_t done = 0;
    int rc = 0;
    while (!rc && added_next(&scan, &m)) {
        if (m.from > done) {
            struct view part = view_part(v, done, m.from);
            rc = rest(x, &part);
        }
        if (!rc)
            rc = ids_reserve(x->out, 1) ? no_memory(x) : 0;
        if (!rc)
            ids_add(x->out, m.id);
        done = m.to;
    }
    if (!rc && done < v->n) {
        struct view part = view_part(v, done, v->n);
        rc = rest(x, &part);
    }
    return rc;
}

static int encode_normalized(struct encoder *x, const struct view *v)
{
    bool is_first = !v->base;
    struct view norm;
    if (norm_run(&x->t->norm, x->norm, v, is_first, &norm))
        return no_memory(x);
    x->start = is_first ? norm.s : NULL;
    return encode_between(x, &x->t->normalized, &norm, encode_plain);
}

static int encode_view(const struct tokenizer *t, const struct view *v, enum added mode, struct ids *out,
                       struct err *e)
{
    struct encoder x = {.t = t, .mode = mode, .out = out, .e = e};
    struct text repaired = {0};
    struct view valid = *v;
    size_t before = out->n;
    int rc;
    if (v->n > TOKEN_MAX_TEXT)
        return err_set(e, ERR_LIMIT, "text of %zu bytes, the tokenizer's limit is %d", v->n, TOKEN_MAX_TEXT);
    if (text_repair(&repaired, v))
        valid = text_view(&repaired);
    rc = repaired.is_full ? no_memory(&x) : encode_between(&x, &t->raw, &valid, encode_normalized);
    if (rc)
        out->n = before;
    text_free(&repaired);
    for (int i = 0; i < 2; i++) {
        text_free(&x.norm[i]);
        text_free(&x.shape[i]);
    }
    pretok_work_free(&x.pieces);
    bpe_work_free(&x.merges);
    return rc;
}

int tokenizer_encode(const struct tokenizer *t, const char *s, size_t n, enum added added, struct ids *out,
                     struct err *e)
{
    struct region all = {n, true};
    struct view v = {.s = n ? s : "", .n = n, .r = &all, .n_r = 1};
    return encode_view(t, &v, added, out, e);
}

int tokenizer_encode_spans(const struct tokenizer *t, const struct span *spans, int n, struct ids *out,
                           struct err *e)
{
    struct text all = {0};
    for (int i = 0; i < n; i++)
        text_add(&all, spans[i].s, spans[i].n, spans[i].trust == TRUST_TPL);
    struct view v = text_view(&all);
    int rc = all.is_full ? err_set(e, ERR_NOMEM, "no memory to tokenize this text")
                         : encode_view(t, &v, ADDED_ALL, out, e);
    text_free(&all);
    return rc;
}
