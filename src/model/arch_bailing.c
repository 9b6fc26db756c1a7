/* BailingMoeV2: Ling-mini-2.0 and Ring-mini-2.0. Plain norms, queries and keys normed by head, rotary embedding of a part
 * of each head, one product for queries, keys and values. The first layers are dense, the others a mixture routed by
 * sigmoid scores within the best groups, its choice steered by a bias, and an ungated shared expert. The MTP block
 * stands behind the trunk as one more layer; its graph is that of model/mtp.c. Source: the family's
 * modeling_bailing_moe_v2.py and llama.cpp's "bailingmoe2". */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct shape {
    int64_t inter, n_dense, shared_inter;
    struct attn_params attn;
    struct moe_params moe;
};

static int read_shape(struct model *m, struct shape *d, struct err *e)
{
    const struct package *p = m->pkg;
    const char *score;
    bool qk_norm, bias, qkv_bias, norm_head;
    int64_t groups, used, n_shared, inter;
    double scale;
    int rot;
    if (cfg_int(p, "intermediate_size", 1, 1 << 24, &d->inter, e) || cfg_int_or(p, "first_k_dense_replace", 0, m->n_layers, 0, &d->n_dense, e) ||
        moe_read(m, &d->moe, "num_experts_per_tok", true, e) || cfg_str_or(p, "score_function", "sigmoid", &score, e) ||
        cfg_int_or(p, "n_group", 1, d->moe.n_experts, 1, &groups, e) || cfg_int_or(p, "topk_group", 1, groups, groups, &used, e) ||
        cfg_num_or(p, "routed_scaling_factor", 1e-6, 1e6, 1, &scale, e) || cfg_int_or(p, "num_shared_experts", 0, 1024, 0, &n_shared, e) ||
        cfg_int_or(p, "moe_shared_expert_intermediate_size", 1, 1 << 24, d->moe.inter * (n_shared ? n_shared : 1), &inter, e) ||
        cfg_bool_or(p, "use_qk_norm", true, &qk_norm, e) || cfg_bool_or(p, "use_bias", false, &bias, e) ||
        cfg_bool_or(p, "use_qkv_bias", false, &qkv_bias, e) || cfg_bool_or(p, "norm_head", false, &norm_head, e) ||
        model_activation(m, "hidden_act", &d->moe.act, e) || model_rot_dim(m, &rot, e))
        return e->code;
    const char *odd = strcmp(score, "sigmoid") ? "score_function other than sigmoid" : !qk_norm ? "use_qk_norm false" : bias || qkv_bias ? "biases" : norm_head ? "norm_head" : NULL;
    if (odd)
        return err_set(e, ERR_UNSUPPORTED, "%s: unsupported in a BailingMoeV2 model: %s", p->config_file, odd);
    if (d->moe.n_experts % groups || d->moe.n_used > d->moe.n_experts / groups * used)
        return err_set(e, ERR_FORMAT, "%s: %d experts don't divide into %d groups of which %d hold %d", p->config_file, d->moe.n_experts, (int)groups,
                       (int)used, d->moe.n_used);
    d->moe.is_sigmoid = true;
    d->moe.n_groups = (int)groups, d->moe.n_used_groups = (int)used;
    d->moe.scale = (float)scale;
    d->shared_inter = n_shared ? inter : 0;
    d->attn = (struct attn_params){.heads = m->heads, .kv_heads = m->kv_heads, .dim = m->head_dim, .rot_dim = rot, .eps = m->eps,
                                   .scale = 1.0f / sqrtf((float)m->head_dim)};
    d->attn.freq = model_rope(m, rot, e);
    return d->attn.freq ? 0 : e->code;
}

static int bind_attn(struct model *m, struct attn_layer *l, const char *key, int layer, struct err *e)
{
    struct attn_params *p = &l->p;
    int64_t q = (int64_t)p->heads * p->dim, kv = (int64_t)p->kv_heads * p->dim, H = m->hidden;
    char qkv[64];
    snprintf(qkv, sizeof qkv, "%sattention.query_key_value.weight", key);
    if (!(l->norm_in = model_vector(m, e, H, 0, "%sinput_layernorm.weight", key)) ||
        !(l->norm_post = model_vector(m, e, H, 0, "%spost_attention_layernorm.weight", key)) ||
        !(l->q = model_rows(m, e, q + 2 * kv, 0, q, H, qkv)) || !(l->k = model_rows(m, e, q + 2 * kv, q, kv, H, qkv)) ||
        !(l->v = model_rows(m, e, q + 2 * kv, q + kv, kv, H, qkv)) || !(l->o = model_matrix(m, e, H, q, "%sattention.dense.weight", key)) ||
        !(p->q_norm = model_vector(m, e, p->dim, 0, "%sattention.query_layernorm.weight", key)) ||
        !(p->k_norm = model_vector(m, e, p->dim, 0, "%sattention.key_layernorm.weight", key)))
        return e->code;
    attn_state(m, l, layer);
    return 0;
}

static int bind_experts(struct model *m, struct mlp_layer *l, const struct shape *d, const char *key, struct bvec *norm, struct err *e)
{
    struct moe_params p = d->moe;
    char mlp[48], name[96];
    bool is_mlx = weights_find(m->pkg->weights, "%smlp.gate.gate_proj.weight", key) != NULL;
    snprintf(mlp, sizeof mlp, "%smlp.", key);
    snprintf(name, sizeof name, "%sgate.%sweight", mlp, is_mlx ? "gate_proj." : "");
    if (!(p.router = moe_router(m, p.n_experts, e, name)))
        return e->code;
    if (weights_find(m->pkg->weights, "%sgate.expert_bias", mlp) && !(p.bias = model_vector(m, e, p.n_experts, 0, "%sgate.expert_bias", mlp)))
        return e->code;
    snprintf(name, sizeof name, "%sshared_experts.", mlp);
    if (moe_bind(m, l, &p, mlp, norm, e))
        return e->code;
    return d->shared_inter ? moe_bind_shared(m, l, name, d->shared_inter, false, NULL, e) : 0;
}

static int bind_layer(struct model *m, struct decoder_layer *l, int i, const struct shape *d, struct err *e)
{
    char key[32];
    snprintf(key, sizeof key, "layers.%d.", i);
    l->attn.p = d->attn;
    l->mlp.act = d->moe.act;
    if (bind_attn(m, &l->attn, key, i, e))
        return e->code;
    return i < d->n_dense ? mlp_bind(m, &l->mlp, key, d->inter, e) : bind_experts(m, &l->mlp, d, key, l->attn.norm_post, e);
}

/* Some configurations count the MTP block among the layers. */
static void uncount_head(struct model *m)
{
    while (m->n_layers > 1 && weights_find(m->pkg->weights, "layers.%d.eh_proj.weight", m->n_layers - 1))
        m->n_layers--;
}

static int bind(struct model *m, struct err *e)
{
    struct shape d = {0};
    uncount_head(m);
    if (read_shape(m, &d, e) || !(m->final_norm = model_vector(m, e, m->hidden, 0, "norm.weight")))
        return e->code;
    size_t bytes = (size_t)m->n_layers * sizeof(struct decoder_layer);
    struct decoder_layer *l = m->layers = memset(arena_alloc(&m->arena, bytes), 0, bytes);
    for (int i = 0; i < m->n_layers; i++)
        if (bind_layer(m, &l[i], i, &d, e))
            return e->code;
    weights_ignore(m->pkg->weights, "rotary_emb", "recomputed from the configuration");
    return 0;
}

static void bind_head(struct model *m, struct mtp_head *h)
{
    static const char *const tensors[] = {"eh_proj.weight", "attention.dense.weight", "enorm.weight", "hnorm.weight", "final_layernorm.weight", "input_layernorm.weight",
                                          "post_attention_layernorm.weight", "attention.query_key_value.weight", "attention.query_layernorm.weight", "attention.key_layernorm.weight"};
    struct err e = {0};
    struct shape d = {0};
    int64_t promised = 0;
    char key[32];
    snprintf(key, sizeof key, "layers.%d.", m->n_layers);
    if (cfg_int_or(m->pkg, "num_nextn_predict_layers", 0, 64, 0, &promised, &e))
        promised = 0; // said by the binding of the head, if there is one
    struct mtp_names names = {.key = key, .tensor = tensors, .n = sizeof tensors / sizeof *tensors};
    if (!mtp_look(m, h, &names, promised > 0))
        return;
    int64_t H = m->hidden;
    int before = m->n_specs;
    e = (struct err){0};
    if (!read_shape(m, &d, &e)) {
        h->attn.p = d.attn;
        h->attn.p.pos_shift = -1, h->attn.p.first_key = 1;
        h->mlp.act = d.moe.act;
        if ((h->norm_e = model_vector(m, &e, H, 0, "%senorm.weight", key)) && (h->norm_h = model_vector(m, &e, H, 0, "%shnorm.weight", key)) &&
            (h->norm = model_vector(m, &e, H, 0, "%sfinal_layernorm.weight", key)) && (h->fc = model_matrix(m, &e, H, 2 * H, "%seh_proj.weight", key)) &&
            !bind_attn(m, &h->attn, key, -1, &e))
            bind_experts(m, &h->mlp, &d, key, h->attn.norm_post, &e);
    }
    mtp_done(m, h, key, before, &e);
}

const struct arch arch_bailing = {
    .name = "BailingMoeV2", .types = {"bailing_moe_v2", "bailing_moe"}, .bind = bind, .forward = decoder_forward, .bind_head = bind_head,
};
