/* Gemma 3 text: zero-centred norms before and after each block, q/k norms, GELU, embeddings times sqrt(hidden) rounded
 * to bf16 as they were trained. Most layers look through a window with a rotary base of their own; every sixth sees
 * all tokens. Source: transformers' Gemma3ForCausalLM; GGUF architecture "gemma3", whose norms hold the +1. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct layer {
    struct attn_layer attn; // norm_post: of the block's output
    struct mlp_layer mlp;
    struct bvec *norm_mlp, *norm_mlp_out;
};

/* Packages with a vision tower state of the text model only what differs from Gemma3TextConfig. */
static const char defaults[] = "{\"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 256, \"query_pre_attn_scalar\": 256,"
                               " \"rms_norm_eps\": 1e-06, \"rope_theta\": 1000000, \"rope_local_base_freq\": 10000,"
                               " \"sliding_window_pattern\": 6, \"max_position_embeddings\": 131072,"
                               " \"hidden_activation\": \"gelu_pytorch_tanh\"}";

struct shape {
    int64_t inter, pattern;
    double q_scalar;
    float plus; // added to stored norms
    enum activation act;
    struct bvec *freq_full, *freq_sliding;
};

static int read_shape(struct model *m, struct shape *d, struct err *e)
{
    const struct package *p = m->pkg;
    double softcap;
    int64_t window;
    bool bias;
    if (cfg_get(p, "attn_logit_softcapping"))
        return err_set(e, ERR_UNSUPPORTED, "%s: unsupported attn_logit_softcapping: attention scores with a soft cap", p->config_file);
    if (cfg_int(p, "intermediate_size", 1, 1 << 24, &d->inter, e) || cfg_num(p, "query_pre_attn_scalar", 1e-3, 1e6, &d->q_scalar, e) ||
        cfg_int(p, "sliding_window", 1, 1 << 30, &window, e) || cfg_int(p, "sliding_window_pattern", 1, 1 << 16, &d->pattern, e) ||
        cfg_num_or(p, "final_logit_softcapping", 1e-3, 1e6, 0, &softcap, e) || cfg_bool_or(p, "attention_bias", false, &bias, e) ||
        model_activation(m, "hidden_activation", &d->act, e))
        return e->code;
    if (bias)
        return err_set(e, ERR_UNSUPPORTED, "%s: unsupported attention_bias in a Gemma 3 model", p->config_file);
    m->norms_raw = strcmp(json_str(json_get(p->config, "foresay_norms"), ""), "effective") != 0;
    d->plus = m->norms_raw ? 1 : 0;
    m->softcap = (float)softcap;
    m->embed_scale = bf16_to_f32(f32_to_bf16((float)sqrt(m->hidden)));
    d->freq_full = model_rope_of(m, m->head_dim, ROPE_FULL, e);
    d->freq_sliding = d->freq_full ? model_rope_of(m, m->head_dim, ROPE_SLIDING, e) : NULL;
    return d->freq_sliding ? 0 : e->code;
}

static int bind(struct model *m, struct err *e)
{
    struct shape d;
    if (read_shape(m, &d, e) || !(m->final_norm = model_vector(m, e, m->hidden, d.plus, "norm.weight")))
        return e->code;
    struct layer *l = m->layers = arena_alloc(&m->arena, (size_t)m->n_layers * sizeof *l);
    memset(l, 0, (size_t)m->n_layers * sizeof *l);
    for (int i = 0; i < m->n_layers; i++) {
        struct attn_params *p = &l[i].attn.p;
        char key[32];
        snprintf(key, sizeof key, "layers.%d.", i);
        l[i].mlp.act = d.act;
        *p = (struct attn_params){.heads = m->heads, .kv_heads = m->kv_heads, .dim = m->head_dim, .rot_dim = m->head_dim, .eps = m->eps,
                                  .scale = (float)(1 / sqrt(d.q_scalar))};
        if (model_window(m, i, (i + 1) % d.pattern != 0, &p->window, e))
            return e->code;
        p->freq = p->window ? d.freq_sliding : d.freq_full;
        if (attn_bind(m, &l[i].attn, key, d.plus, true, i, e) || mlp_bind(m, &l[i].mlp, key, d.inter, e) ||
            !(l[i].norm_mlp = model_vector(m, e, m->hidden, d.plus, "%spre_feedforward_layernorm.weight", key)) ||
            !(l[i].norm_mlp_out = model_vector(m, e, m->hidden, d.plus, "%spost_feedforward_layernorm.weight", key)))
            return e->code;
    }
    model_width(m, BUF_OUT, m->hidden);
    return 0;
}

static void forward(const struct model *m, const struct step *s, int layer0, int layer1)
{
    const struct backend_ops *op = m->be->ops;
    const struct layer *layers = m->layers;
    for (int i = layer0; i < layer1; i++) {
        const struct layer *l = &layers[i];
        attn_block(m, s, &l->attn, BUF_OUT);
        op->norm_add(m->be, s, BUF_OUT, l->attn.norm_post, m->eps, 1, BUF_X);
        mlp_block(m, s, l->norm_mlp, &l->mlp, BUF_OUT);
        op->norm_add(m->be, s, BUF_OUT, l->norm_mlp_out, m->eps, 1, BUF_X);
    }
}

const struct arch arch_gemma3 = {
    .name = "Gemma 3", .types = {"gemma3_text", "gemma3"}, .defaults = defaults, .bind = bind, .forward = forward,
};
