/* Gemma 4 text: plain norms (no +1) before and after each block, attention scale 1, values normed without a weight,
 * soft cap on the logits. Layers with a window have heads of head_dim, those that see all tokens of global_head_dim,
 * with a rotary embedding that turns only a part of the pairs. Per-layer inputs (PLE): every layer adds a gated share
 * of a second, wide embedding of the token. The last num_kv_shared_layers layers read the keys and values of the last
 * layer of their kind before them. Larger models have experts beside each MLP. Source: transformers' Gemma4ForCausalLM; GGUF architecture "gemma4". */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct layer {
    struct attn_layer attn; // norm_post: of the block's output
    struct mlp_layer mlp;
    struct bvec *norm_mlp, *norm_mlp_out;
    struct mlp_layer experts; // beside the MLP, moe NULL: none
    struct bvec *norm_1, *norm_2; // of the MLP's and the experts' outputs, before they are added
    struct bweight *ple_gate, *ple_out; // NULL: no per-layer inputs
    struct bvec *norm_ple;
    float scalar; // of the layer's output
};

struct gemma4 {
    struct bweight *ple_embed, *ple_project;
    struct bvec *norm_project;
    int ple; // width of a layer's input, 0: none
    struct layer layer[];
};

struct shape {
    int64_t inter, global_dim, global_kv, n_shared, ple, ple_vocab;
    bool k_eq_v, double_wide, has_experts;
    struct moe_params moe;
    enum activation act;
    struct bvec *freq_full, *freq_sliding, *ones[2]; // ones: value norms of both widths
};

static struct bvec *ones(struct model *m, int n, struct err *e)
{
    double x[1024];
    struct bvec *v = NULL;
    for (int i = 0; i < n; i++)
        x[i] = 1;
    return m->be->ops->vec(m->be, x, n, &v, e) ? NULL : v;
}

static int read_shape(struct model *m, struct shape *d, struct err *e)
{
    const struct package *p = m->pkg;
    double softcap;
    bool bias;
    if (cfg_int(p, "intermediate_size", 1, 1 << 24, &d->inter, e) || cfg_int_or(p, "global_head_dim", 2, 1024, m->head_dim, &d->global_dim, e) ||
        cfg_int_or(p, "num_global_key_value_heads", 1, 1024, m->kv_heads, &d->global_kv, e) ||
        cfg_int_or(p, "num_kv_shared_layers", 0, m->n_layers - 1, 0, &d->n_shared, e) ||
        cfg_int_or(p, "hidden_size_per_layer_input", 0, 1 << 16, 0, &d->ple, e) ||
        cfg_int_or(p, "vocab_size_per_layer_input", 1, 1 << 24, m->n_vocab, &d->ple_vocab, e) ||
        cfg_bool_or(p, "attention_k_eq_v", false, &d->k_eq_v, e) || cfg_bool_or(p, "use_double_wide_mlp", false, &d->double_wide, e) ||
        cfg_bool_or(p, "attention_bias", false, &bias, e) || cfg_bool_or(p, "enable_moe_block", false, &d->has_experts, e) ||
        cfg_num_or(p, "final_logit_softcapping", 1e-3, 1e6, 0, &softcap, e) || model_activation(m, "hidden_activation", &d->act, e))
        return e->code;
    if (bias)
        return err_set(e, ERR_UNSUPPORTED, "%s: unsupported in a Gemma 4 model: attention_bias", p->config_file);
    if (d->has_experts && moe_read(m, &d->moe, "top_k_experts", true, e))
        return e->code;
    d->moe.act = d->act;
    if (!cfg_get(p, "layer_types"))
        return err_set(e, ERR_FORMAT, "%s: missing layer_types", p->config_file);
    if (d->global_dim % 2 || m->heads % d->global_kv || m->heads / d->global_kv > 64)
        return err_set(e, ERR_UNSUPPORTED, "%s: unsupported attention shape (%d heads on %d, width %d)", p->config_file, m->heads, (int)d->global_kv,
                       (int)d->global_dim);
    if (d->ple && d->ple_vocab < m->n_vocab)
        return err_set(e, ERR_UNSUPPORTED, "%s: unsupported vocab_size_per_layer_input %d below vocab_size %d", p->config_file, (int)d->ple_vocab,
                       m->n_vocab);
    m->softcap = (float)softcap;
    m->embed_scale = bf16_to_f32(f32_to_bf16((float)sqrt(m->hidden)));
    if (!(d->freq_full = model_rope_of(m, (int)d->global_dim, ROPE_FULL, e)) ||
        !(d->freq_sliding = model_rope_of(m, m->head_dim, ROPE_SLIDING, e)) || !(d->ones[0] = ones(m, (int)d->global_dim, e)) ||
        !(d->ones[1] = ones(m, m->head_dim, e)))
        return e->code;
    return 0;
}

/* The last layer of the same kind that has keys and values of its own. */
static const struct layer *owner_of(const struct layer *l, int i, int n_own)
{
    for (int k = n_own - 1; k >= 0; k--)
        if (!l[k].attn.p.window == !l[i].attn.p.window)
            return &l[k];
    return NULL;
}

/* The router's own norm is the residual's without a weight, times router.scale / sqrt(H). */
static int bind_experts(struct model *m, struct layer *l, const struct shape *d, const char *key, struct err *e)
{
    struct moe_params p = d->moe;
    char name[64];
    int H = m->hidden;
    const float *scale = weights_floats(m->pkg->weights, e, H, "%srouter.scale", key);
    if (!scale)
        return e->code;
    double *x = xmalloc((size_t)H * sizeof *x);
    struct bvec *v = NULL, *norm;
    for (int i = 0; i < H; i++)
        x[i] = (double)scale[i] / sqrt(H);
    int rc = m->be->ops->vec(m->be, x, H, &v, e);
    free(x);
    p.router_norm = v;
    snprintf(name, sizeof name, "%srouter.proj.weight", key);
    if (rc || !(p.router = moe_router(m, p.n_experts, e, name)) ||
        !(p.expert_scale = model_vector(m, e, p.n_experts, 0, "%srouter.per_expert_scale", key)) ||
        !(norm = model_vector(m, e, H, 0, "%spre_feedforward_layernorm_2.weight", key)) ||
        !(l->norm_1 = model_vector(m, e, H, 0, "%spost_feedforward_layernorm_1.weight", key)) ||
        !(l->norm_2 = model_vector(m, e, H, 0, "%spost_feedforward_layernorm_2.weight", key)))
        return e->code;
    model_width(m, BUF_MIX, H);
    return moe_bind(m, &l->experts, &p, key, norm, e);
}

static int bind_layer(struct model *m, struct layer *l, int i, const struct shape *d, struct err *e)
{
    struct attn_params *p = &l[i].attn.p;
    int n_own = m->n_layers - (int)d->n_shared, window;
    bool shared = i >= n_own;
    char key[32];
    snprintf(key, sizeof key, "layers.%d.", i);
    if (model_window(m, i, false, &window, e))
        return e->code;
    *p = (struct attn_params){
        .heads = m->heads, .kv_heads = m->kv_heads, .dim = window ? m->head_dim : (int)d->global_dim, .eps = m->eps, .scale = 1, .window = window,
        .freq = window ? d->freq_sliding : d->freq_full, .v_norm = d->ones[window > 0], .shared = shared, .v_from_k = d->k_eq_v && !window,
    };
    p->rot_dim = p->dim;
    if (p->v_from_k)
        p->kv_heads = (int)d->global_kv;
    if (shared) {
        const struct layer *owner = owner_of(l, i, n_own);
        if (!owner)
            return err_set(e, ERR_FORMAT, "%s: layer %d shares keys and values, but no layer of its kind before layer %d has any",
                           m->pkg->config_file, i, n_own);
        p->kv = owner->attn.p.kv;
    }
    l[i].mlp.act = d->act;
    int64_t H = m->hidden, inter = d->inter * (shared && d->double_wide ? 2 : 1);
    const float *scalar = weights_floats(m->pkg->weights, e, 1, "%slayer_scalar", key);
    if (!scalar || attn_bind(m, &l[i].attn, key, 0, true, i, e) || mlp_bind(m, &l[i].mlp, key, inter, e) ||
        !(l[i].norm_mlp = model_vector(m, e, H, 0, "%spre_feedforward_layernorm.weight", key)) ||
        !(l[i].norm_mlp_out = model_vector(m, e, H, 0, "%spost_feedforward_layernorm.weight", key)))
        return e->code;
    l[i].scalar = scalar[0];
    if (d->has_experts && bind_experts(m, &l[i], d, key, e))
        return e->code;
    if (d->ple && (!(l[i].ple_gate = model_matrix(m, e, d->ple, H, "%sper_layer_input_gate.weight", key)) ||
                   !(l[i].ple_out = model_matrix(m, e, H, d->ple, "%sper_layer_projection.weight", key)) ||
                   !(l[i].norm_ple = model_vector(m, e, H, 0, "%spost_per_layer_input_norm.weight", key))))
        return e->code;
    if (shared) {
        snprintf(key, sizeof key, "layers.%d.self_attn.", i);
        weights_ignore(m->pkg->weights, key, "this layer reads the keys and values of an earlier one");
    }
    return 0;
}

static int bind(struct model *m, struct err *e)
{
    struct shape d = {0};
    if (read_shape(m, &d, e) || !(m->final_norm = model_vector(m, e, m->hidden, 0, "norm.weight")))
        return e->code;
    size_t bytes = sizeof(struct gemma4) + (size_t)m->n_layers * sizeof(struct layer);
    struct gemma4 *g = m->layers = memset(arena_alloc(&m->arena, bytes), 0, bytes);
    int64_t all = m->n_layers * d.ple;
    g->ple = (int)d.ple;
    if (g->ple && (!(g->ple_embed = model_matrix(m, e, d.ple_vocab, all, "embed_tokens_per_layer.weight")) ||
                   !(g->ple_project = model_matrix(m, e, all, m->hidden, "per_layer_model_projection.weight")) ||
                   !(g->norm_project = model_vector(m, e, d.ple, 0, "per_layer_projection_norm.weight"))))
        return e->code;
    for (int i = 0; i < m->n_layers; i++)
        if (bind_layer(m, g->layer, i, &d, e))
            return e->code;
    model_width(m, BUF_OUT, m->hidden);
    model_width(m, BUF_LAYERS, all);
    model_width(m, BUF_GATE, all);
    return 0;
}

/* Inputs of all layers: the token's wide embedding and a normed projection of its ordinary one, in equal parts. */
static void layer_inputs(const struct model *m, const struct step *s, const struct gemma4 *g)
{
    const struct backend_ops *op = m->be->ops;
    int all = m->n_layers * g->ple;
    op->embed(m->be, s, g->ple_embed, BUF_LAYERS);
    op->scale(m->be, s, BUF_LAYERS, all, bf16_to_f32(f32_to_bf16((float)sqrt(g->ple))));
    op->mm(m->be, s, BUF_X, g->ple_project, BUF_GATE);
    op->scale(m->be, s, BUF_GATE, all, (float)(1 / sqrt(m->hidden)));
    op->norm_add(m->be, s, BUF_GATE, g->norm_project, m->eps, m->n_layers, BUF_LAYERS);
    op->scale(m->be, s, BUF_LAYERS, all, (float)sqrt(0.5));
}

static void forward(const struct model *m, const struct step *s, int layer0, int layer1)
{
    const struct backend_ops *op = m->be->ops;
    const struct gemma4 *g = m->layers;
    if (g->ple && layer0 == 0)
        layer_inputs(m, s, g);
    for (int i = layer0; i < layer1; i++) {
        const struct layer *l = &g->layer[i];
        attn_block(m, s, &l->attn, BUF_OUT);
        op->norm_add(m->be, s, BUF_OUT, l->attn.norm_post, m->eps, 1, BUF_X);
        mlp_block(m, s, l->norm_mlp, &l->mlp, BUF_OUT);
        if (l->experts.moe) {
            op->norm(m->be, s, BUF_OUT, l->norm_1, m->eps, BUF_MIX, 0);
            mlp_block(m, s, NULL, &l->experts, BUF_OUT);
            op->norm_add(m->be, s, BUF_OUT, l->norm_2, m->eps, 1, BUF_MIX);
        }
        op->norm_add(m->be, s, l->experts.moe ? BUF_MIX : BUF_OUT, l->norm_mlp_out, m->eps, 1, BUF_X);
        if (g->ple) {
            op->mm(m->be, s, BUF_X, l->ple_gate, BUF_GATE);
            op->act_mul(m->be, s, l->mlp.act, BUF_GATE, BUF_LAYERS, i * g->ple, g->ple);
            op->mm(m->be, s, BUF_GATE, l->ple_out, BUF_OUT);
            op->norm_add(m->be, s, BUF_OUT, l->norm_ple, m->eps, 1, BUF_X);
        }
        op->scale(m->be, s, BUF_X, m->hidden, l->scalar);
    }
}

const struct arch arch_gemma4 = {
    .name = "Gemma 4", .types = {"gemma4_text", "gemma4"}, .defaults = "{\"hidden_activation\": \"gelu_pytorch_tanh\"}", .bind = bind, .forward = forward,
};
