/* The multi-token-prediction head of Qwen3.5/3.6/3.8 dense:
 *
 *     x = fc [ N(Emb[t_j]; pre_fc_norm_embedding) ; N(h_{j-1}; pre_fc_norm_hidden) ]     embedding first
 *     x = one gated full-attention layer (own KV), rotary position j-1
 *     m = N(x; norm);  the shared LM head on m proposes t_{j+1};  m is the hidden of the next recursive step
 *
 * h is the trunk's hidden after its final norm. Row j of the head's KV belongs to token j and depends on tokens
 * 0..j only, so that its pages align with the trunk's; row 0 doesn't exist. Wiring checked against llama.cpp. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const tensors[] = {
    "fc.weight", "pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight", "norm.weight",
    "layers.0.input_layernorm.weight", "layers.0.post_attention_layernorm.weight",
    "layers.0.self_attn.q_proj.weight", "layers.0.self_attn.k_proj.weight", "layers.0.self_attn.v_proj.weight",
    "layers.0.self_attn.o_proj.weight", "layers.0.self_attn.q_norm.weight", "layers.0.self_attn.k_norm.weight",
    "layers.0.mlp.gate_proj.weight", "layers.0.mlp.up_proj.weight", "layers.0.mlp.down_proj.weight",
};
enum { N_TENSORS = sizeof tensors / sizeof *tensors };

static void verdict(struct model *m, struct mtp_head *h, enum mtp_health health, const char *what)
{
    h->health = health;
    snprintf(h->why, sizeof h->why, "%s; speculation with this head is off, answers are the same without it", what);
    weights_ignore(m->pkg->weights, "mtp.", what);
}

static double mean_of(struct model *m, int64_t n, const char *key)
{
    const float *f = weights_floats(m->pkg->weights, NULL, n, "%s", key);
    double s = 0;
    for (int64_t i = 0; f && i < n; i++)
        s += (double)f[i];
    return f ? s / (double)n : NAN;
}

/* Two matrices that hold only zeros: nothing was ever trained or copied there. */
static bool is_dead(struct model *m)
{
    static const char *const probe[] = {"mtp.fc.weight", "mtp.layers.0.mlp.down_proj.weight"};
    for (int k = 0; k < 2; k++) {
        const struct weight *w = weights_find(m->pkg->weights, "%s", probe[k]);
        float *row = xmalloc((size_t)w->ne[1] * sizeof *row);
        bool zero = true;
        for (int64_t r = 0; zero && r < w->ne[0]; r++) {
            weight_row(w, r, row);
            for (int64_t i = 0; zero && i < w->ne[1]; i++)
                zero = row[i] == 0;
        }
        free(row);
        if (zero)
            return true;
    }
    return false;
}

/* Norms of the head follow the trunk's convention. Means near 1 beside a trunk near 0 (or the reverse) say
 * that one of them was converted and the other not: the head would run and never be right. */
static void check_norms(struct model *m, struct mtp_head *h)
{
    double head = mean_of(m, m->hidden, "mtp.norm.weight"), trunk = mean_of(m, m->hidden, "norm.weight");
    double in = mean_of(m, m->hidden, "mtp.pre_fc_norm_hidden.weight");
    bool raw = m->norms_raw;
    if (raw ? head > 0.7 && in > 0.7 && trunk < 0.5 : head < 0.3 && in < 0.3 && trunk > 0.5) {
        h->suspicious = true;
        snprintf(h->why, sizeof h->why,
                 "the MTP head's norms and the trunk's disagree about the convention (means %.2f and %.2f beside %.2f): one of them was "
                 "stored with the +1 and the other without; expect drafts to be rejected",
                 head, in, trunk);
    }
}

void mtp_bind(struct model *m, struct mtp_head *h)
{
    struct weights *w = m->pkg->weights;
    struct err e = {0};
    char what[300];
    int found = 0, missing = -1;
    bool promised = json_num(json_get(m->pkg->config, "mtp_num_hidden_layers"), 0) > 0;
    /* a GGUF head without a norm of its own shares the trunk's */
    bool shares_norm = json_get(m->pkg->config, "foresay_mtp_norm") != NULL;
    *h = (struct mtp_head){0};
    for (int i = 0; i < N_TENSORS; i++)
        if (weights_find(w, "mtp.%s", tensors[i]) || (shares_norm && !strcmp(tensors[i], "norm.weight")))
            found++;
        else if (missing < 0)
            missing = i;
    if (m->arch != &arch_qwen35 || ((!found || (found == 1 && shares_norm)) && !promised)) {
        h->health = MTP_ABSENT;
        snprintf(h->why, sizeof h->why, "this model has no MTP head: plain decoding, or drafts copied from the context");
        return;
    }
    if (!found) {
        snprintf(what, sizeof what, "the configuration promises an MTP head, the weights lack it (lost in conversion)");
        verdict(m, h, MTP_PROMISED, what);
        return;
    }
    if (missing >= 0) {
        snprintf(what, sizeof what, "the MTP head is incomplete: tensor mtp.%s is missing (%d of %d are there)", tensors[missing], found, N_TENSORS);
        verdict(m, h, MTP_INCOMPLETE, what);
        return;
    }
    if (!m->pkg->is_headers_only && is_dead(m)) {
        verdict(m, h, MTP_DEAD, "the MTP head is dead: its weights are all zeros");
        return;
    }
    float plus = m->norms_raw ? 1 : 0;
    int64_t H = m->hidden, inter;
    int before = m->n_specs;
    h->attn.p = (struct attn_params){.heads = m->heads, .kv_heads = m->kv_heads, .dim = m->head_dim, .eps = m->eps,
                                     .scale = 1.0f / sqrtf((float)m->head_dim), .gated = true, .pos_shift = -1, .first_key = 1};
    double part;
    const char *nested = "rope_parameters.partial_rotary_factor";
    bool is_nested = json_get(json_get(m->pkg->config, "rope_parameters"), "partial_rotary_factor") != NULL;
    if (cfg_num_or(m->pkg, is_nested ? nested : "partial_rotary_factor", 0, 1, 0.25, &part, &e) ||
        cfg_int(m->pkg, "intermediate_size", 1, 1 << 24, &inter, &e))
        goto bad;
    h->attn.p.rot_dim = (int)lrint(part * m->head_dim) & ~1;
    if (!(h->attn.p.freq = model_rope(m, h->attn.p.rot_dim, &e)) ||
        !(h->norm_e = model_vector(m, &e, H, plus, "mtp.pre_fc_norm_embedding.weight")) ||
        !(h->norm_h = model_vector(m, &e, H, plus, "mtp.pre_fc_norm_hidden.weight")) ||
        !(h->norm = shares_norm ? m->final_norm : model_vector(m, &e, H, plus, "mtp.norm.weight")) || !(h->fc = model_matrix(m, &e, H, 2 * H, "mtp.fc.weight")) ||
        attn_bind(m, &h->attn, "mtp.layers.0.", plus, true, -1, &e) || mlp_bind(m, &h->mlp, "mtp.layers.0.", inter, &e))
        goto bad;
    model_width(m, BUF_PAIR, 2 * H);
    h->health = MTP_OK;
    if (m->pkg->is_headers_only)
        snprintf(h->why, sizeof h->why, "judged by its tensors' names and shapes: the weights weren't fetched");
    else
        check_norms(m, h);
    return;
bad:
    m->n_specs = before;
    snprintf(what, sizeof what, "the MTP head can't be used: %.200s", e.msg);
    verdict(m, h, MTP_INCOMPLETE, what);
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
