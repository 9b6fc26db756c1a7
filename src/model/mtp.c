/* Multi-token-prediction heads, whatever the family calls their tensors:
 *
 *     x = fc [ N(Emb[t_j]; norm_e) ; N(h_{j-1}; norm_h) ]     embedding first
 *     x = one full-attention layer (own KV) with its MLP or experts, rotary position j-1
 *     m = N(x; norm);  the shared LM head on m proposes t_{j+1};  m is the hidden of the next recursive step
 *
 * h is the trunk's hidden after its final norm. Row j of the head's KV belongs to token j and depends on tokens
 * 0..j only, so that its pages align with the trunk's; row 0 doesn't exist. Wiring checked against llama.cpp. */
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>

static void verdict(struct model *m, struct mtp_head *h, const char *key, enum mtp_health health, const char *what)
{
    h->health = health;
    snprintf(h->why, sizeof h->why, "%s; speculation with this head is off, answers are the same without it", what);
    weights_ignore(m->pkg->weights, key, what);
}

/* A matrix that holds only zeros: nothing was ever trained or copied there. */
static bool is_dead(struct model *m, const char *key, const char *name)
{
    const struct weight *w = weights_find(m->pkg->weights, "%s%s", key, name);
    if (!w || w->ndim != 2 || w->fmt == WF_OTHER)
        return false;
    float *row = xmalloc((size_t)w->ne[1] * sizeof *row);
    bool zero = true;
    for (int64_t r = 0; zero && r < w->ne[0]; r++) {
        weight_row(w, r, row);
        for (int64_t i = 0; zero && i < w->ne[1]; i++)
            zero = row[i] == 0;
    }
    free(row);
    return zero;
}

bool mtp_look(struct model *m, struct mtp_head *h, const struct mtp_names *n, bool promised)
{
    char what[300];
    int found = 0, missing = -1;
    for (int i = 0; i < n->n; i++)
        if (weights_find(m->pkg->weights, "%s%s", n->key, n->tensor[i]))
            found++;
        else if (missing < 0)
            missing = i;
    if (!found && !promised) {
        h->health = MTP_ABSENT;
        snprintf(h->why, sizeof h->why, "this model has no MTP head: plain decoding, or drafts copied from the context");
    } else if (!found) {
        verdict(m, h, n->key, MTP_PROMISED, "the configuration promises an MTP head, the weights lack it (lost in conversion)");
    } else if (missing >= 0) {
        snprintf(what, sizeof what, "the MTP head is incomplete: tensor %s%s is missing (%d of %d are there)", n->key, n->tensor[missing], found, n->n);
        verdict(m, h, n->key, MTP_INCOMPLETE, what);
    } else if (!m->pkg->is_headers_only && (is_dead(m, n->key, n->tensor[0]) || is_dead(m, n->key, n->tensor[1]))) {
        verdict(m, h, n->key, MTP_DEAD, "the MTP head is dead: its weights are all zeros");
    } else {
        return true;
    }
    return false;
}

void mtp_done(struct model *m, struct mtp_head *h, const char *key, int n_specs, const struct err *e)
{
    char what[300];
    if (!e->code) {
        h->health = MTP_OK;
        if (m->pkg->is_headers_only)
            snprintf(h->why, sizeof h->why, "judged by its tensors' names and shapes: the weights weren't fetched");
        model_width(m, BUF_PAIR, 2 * (int64_t)m->hidden);
        return;
    }
    m->n_specs = n_specs;
    snprintf(what, sizeof what, "the MTP head can't be used: %.200s", e->msg);
    verdict(m, h, key, MTP_INCOMPLETE, what);
}

void mtp_bind(struct model *m, struct mtp_head *h)
{
    static const struct mtp_names none = {.key = "mtp."};
    *h = (struct mtp_head){0};
    if (m->arch->bind_head)
        m->arch->bind_head(m, h);
    else
        mtp_look(m, h, &none, false);
}

void mtp_forward(const struct model *m, const struct mtp_head *h, const struct step *s)
{
    const struct backend_ops *op = m->be->ops;
    op->embed(m->be, s, m->embed, BUF_X);
    op->norm(m->be, s, BUF_X, h->norm_e, m->eps, BUF_PAIR, 0);
    op->norm(m->be, s, BUF_HIDDEN, h->norm_h, m->eps, BUF_PAIR, m->hidden);
    op->mm(m->be, s, BUF_PAIR, h->fc, BUF_X);
    attn_forward(m, s, &h->attn);
    mlp_forward(m, s, h->attn.norm_post, &h->mlp);
    op->norm(m->be, s, BUF_X, h->norm, m->eps, BUF_HIDDEN, 0);
}
