/* The head of Qwen3.5, 3.6 and 3.8, dense and with experts: tensors mtp.*, one gated attention layer. Its graph is
 * model/mtp.c's. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The first two are probed for zeros. */
static const char *const dense[] = {
    "fc.weight", "layers.0.mlp.down_proj.weight", "pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight",
    "layers.0.input_layernorm.weight", "layers.0.post_attention_layernorm.weight",
    "layers.0.self_attn.q_proj.weight", "layers.0.self_attn.k_proj.weight", "layers.0.self_attn.v_proj.weight",
    "layers.0.self_attn.o_proj.weight", "layers.0.self_attn.q_norm.weight", "layers.0.self_attn.k_norm.weight",
    "layers.0.mlp.gate_proj.weight", "layers.0.mlp.up_proj.weight", "norm.weight",
};
static const char *const experts[] = {
    "fc.weight", "layers.0.mlp.shared_expert.down_proj.weight", "pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight",
    "layers.0.input_layernorm.weight", "layers.0.post_attention_layernorm.weight",
    "layers.0.self_attn.q_proj.weight", "layers.0.self_attn.k_proj.weight", "layers.0.self_attn.v_proj.weight",
    "layers.0.self_attn.o_proj.weight", "layers.0.self_attn.q_norm.weight", "layers.0.self_attn.k_norm.weight",
    "layers.0.mlp.gate.weight", "layers.0.mlp.shared_expert.gate_proj.weight", "layers.0.mlp.shared_expert.up_proj.weight",
    "layers.0.mlp.shared_expert_gate.weight", "norm.weight",
};

static double mean_of(struct model *m, int64_t n, const char *key)
{
    const float *f = weights_floats(m->pkg->weights, NULL, n, "%s", key);
    double s = 0;
    for (int64_t i = 0; f && i < n; i++)
        s += (double)f[i];
    return f ? s / (double)n : NAN;
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

static int bind(struct model *m, struct mtp_head *h, bool shares_norm, struct err *e)
{
    float plus = m->norms_raw ? 1 : 0;
    int64_t H = m->hidden;
    if (qwen35_attn_shape(m, &h->attn.p, e))
        return e->code;
    h->attn.p.pos_shift = -1, h->attn.p.first_key = 1;
    if (!(h->norm_e = model_vector(m, e, H, plus, "mtp.pre_fc_norm_embedding.weight")) ||
        !(h->norm_h = model_vector(m, e, H, plus, "mtp.pre_fc_norm_hidden.weight")) ||
        !(h->norm = shares_norm ? m->final_norm : model_vector(m, e, H, plus, "mtp.norm.weight")) ||
        !(h->fc = model_matrix(m, e, H, 2 * H, "mtp.fc.weight")) || attn_bind(m, &h->attn, "mtp.layers.0.", plus, true, -1, e) ||
        qwen35_mlp_bind(m, &h->mlp, "mtp.layers.0.", h->attn.norm_post, e))
        return e->code;
    return 0;
}

void qwen35_bind_head(struct model *m, struct mtp_head *h)
{
    bool has_experts = m->arch == &arch_qwen35_moe;
    struct mtp_names names = {.key = "mtp.", .tensor = has_experts ? experts : dense,
                              .n = has_experts ? sizeof experts / sizeof *experts : sizeof dense / sizeof *dense};
    /* a GGUF head without a norm of its own, the last name, shares the trunk's */
    bool shares_norm = json_get(m->pkg->config, "foresay_mtp_norm") != NULL;
    names.n -= shares_norm;
    if (!mtp_look(m, h, &names, json_num(json_get(m->pkg->config, "mtp_num_hidden_layers"), 0) > 0))
        return;
    struct err e = {0};
    int before = m->n_specs;
    bind(m, h, shares_norm, &e);
    mtp_done(m, h, "mtp.", before, &e);
    if (h->health == MTP_OK && !m->pkg->is_headers_only)
        check_norms(m, h);
}
