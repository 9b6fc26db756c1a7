/* The plain pre-norm decoder, for the families that are little more. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/model.h"

int decoder_read(struct model *m, struct decoder *d, struct err *e)
{
    const struct package *p = m->pkg;
    size_t bytes = (size_t)m->n_layers * sizeof(struct decoder_layer);
    *d = (struct decoder){0};
    int rot_dim;
    bool has_experts = cfg_get(p, "num_experts") != NULL; // an MLP's width may then be absent
    if ((has_experts ? cfg_int_or(p, "intermediate_size", 0, 1 << 24, 0, &d->inter, e) : cfg_int(p, "intermediate_size", 1, 1 << 24, &d->inter, e)) || model_rot_dim(m, &rot_dim, e) || cfg_bool_or(p, "attention_bias", false, &d->qkv_bias, e) ||
        cfg_bool_or(p, "mlp_bias", false, &d->mlp_bias, e) || model_activation(m, "hidden_act", &d->act, e))
        return e->code;
    d->o_bias = d->qkv_bias;
    d->attn = (struct attn_params){
        .heads = m->heads, .kv_heads = m->kv_heads, .dim = m->head_dim, .rot_dim = rot_dim, .eps = m->eps,
        .scale = 1.0f / sqrtf((float)m->head_dim),
        .pairs_adjacent = !strcmp(json_str(json_get(p->config, "foresay_rope_pairs"), ""), "adjacent"),
    };
    if (!(d->attn.freq = model_rope(m, rot_dim, e)) || !(m->final_norm = model_vector(m, e, m->hidden, 0, "norm.weight")))
        return e->code;
    m->layers = memset(arena_alloc(&m->arena, bytes), 0, bytes);
    weights_ignore(p->weights, "rotary_emb", "recomputed from the configuration");
    return 0;
}

static int bind_moe(struct model *m, const struct decoder *d, struct decoder_layer *l, const char *key, struct err *e)
{
    struct moe_params p = *d->moe;
    char prefix[48], router[64];
    snprintf(prefix, sizeof prefix, "%smlp.", key);
    snprintf(router, sizeof router, "%sgate.weight", prefix);
    p.act = d->act;
    return !(p.router = moe_router(m, p.n_experts, e, router)) ? e->code : moe_bind(m, &l->mlp, &p, prefix, l->attn.norm_post, e);
}

int decoder_bind(struct model *m, const struct decoder *d, int layer, struct err *e)
{
    struct decoder_layer *l = (struct decoder_layer *)m->layers + layer;
    char key[32];
    snprintf(key, sizeof key, "layers.%d.", layer);
    l->attn.p = d->attn;
    l->mlp.act = d->act;
    if (attn_bind(m, &l->attn, key, 0, d->qk_norm, layer, e) || (d->moe ? bind_moe(m, d, l, key, e) : mlp_bind(m, &l->mlp, key, d->inter, e)) ||
        (d->qkv_bias && attn_bind_biases(m, &l->attn, key, d->o_bias, e)) || (d->mlp_bias && !d->moe && mlp_bind_biases(m, &l->mlp, key, d->inter, e)))
        return e->code;
    return 0;
}

void decoder_forward(const struct model *m, const struct step *s, int layer0, int layer1)
{
    const struct decoder_layer *l = m->layers;
    for (int i = layer0; i < layer1; i++) {
        attn_forward(m, s, &l[i].attn);
        mlp_forward(m, s, l[i].attn.norm_post, &l[i].mlp);
    }
}
