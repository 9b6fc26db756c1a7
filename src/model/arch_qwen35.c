/* Qwen3.5, 3.6 and 3.8, dense and with experts: a hybrid of Gated DeltaNet layers and gated full attention, zero-centred norms
 * (the GDN output norm is plain). Source: transformers' Qwen3_5ForCausalLM; GGUF architectures "qwen35" and "qwen35moe", whose
 * value heads are tiled. The recurrence is docs/arithmetic.md §6. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/math64.h"

struct layer {
    bool is_full;
    struct attn_layer attn; // full attention; its norms serve GDN layers too
    struct mlp_layer mlp;
    struct bweight *qkv, *z, *b, *a, *out;
    struct gdn_params gdn;
};

struct gdn_dims {
    int64_t k_heads, v_heads, dk, dv, taps;
};

static bool layer_is_full(const struct package *p, int i, int64_t interval, bool *known)
{
    const struct json *types = json_get(p->config, "layer_types");
    const char *t = json_str(json_at(types, (size_t)i), NULL);
    *known = !types || (t && (!strcmp(t, "linear_attention") || !strcmp(t, "full_attention")));
    return types ? t && !strcmp(t, "full_attention") : (i + 1) % interval == 0;
}

/* HF packages hold norms without the +1, converted ones with it. The sign is the convolution's layout: HF's
 * [channels, 1, taps] against MLX's [channels, taps, 1]. */
static bool norms_are_raw(const struct model *m)
{
    if (!strcmp(json_str(json_get(m->pkg->config, "foresay_norms"), ""), "effective"))
        return false;
    for (int i = 0; i < m->n_layers; i++) {
        const struct weight *w = weights_find(m->pkg->weights, "layers.%d.linear_attn.conv1d.weight", i);
        if (w)
            return w->ndim < 3 || w->ne[w->ndim - 1] != 1;
    }
    return true;
}

/* [channels, taps] as stored to [taps, channels] as the kernels read it. */
static struct bvec *conv_vector(struct model *m, struct err *e, int64_t channels, int64_t taps, int layer)
{
    const float *w = weights_floats(m->pkg->weights, e, channels * taps, "layers.%d.linear_attn.conv1d.weight", layer);
    struct bvec *v = NULL;
    if (!w)
        return NULL;
    double *t = xmalloc((size_t)(channels * taps) * sizeof *t);
    for (int64_t c = 0; c < channels; c++)
        for (int64_t i = 0; i < taps; i++)
            t[i * channels + c] = w[c * taps + i];
    if (m->be->ops->vec(m->be, t, (int)(channels * taps), &v, e))
        v = NULL;
    free(t);
    return v;
}

/* A = -exp(A_log); GGUF stores A itself. */
static struct bvec *decay_vector(struct model *m, struct err *e, int64_t n, int layer)
{
    bool is_log = !weights_find(m->pkg->weights, "layers.%d.linear_attn.A", layer);
    const float *w = weights_floats(m->pkg->weights, e, n, "layers.%d.linear_attn.%s", layer, is_log ? "A_log" : "A");
    struct bvec *v = NULL;
    double a[1024];
    if (!w)
        return NULL;
    for (int64_t i = 0; i < n; i++)
        a[i] = is_log ? -exp64((double)w[i]) : (double)w[i];
    return m->be->ops->vec(m->be, a, (int)n, &v, e) ? NULL : v;
}

static int bind_gdn(struct model *m, struct layer *l, int i, const struct gdn_dims *d, float plus, struct err *e)
{
    int64_t H = m->hidden, K = d->k_heads * d->dk, V = d->v_heads * d->dv, C = 2 * K + V;
    struct gdn_params *p = &l->gdn;
    *p = (struct gdn_params){
        .k_heads = (int)d->k_heads, .v_heads = (int)d->v_heads, .dk = (int)d->dk, .dv = (int)d->dv, .taps = (int)d->taps, .eps = m->eps,
        .tiled = !strcmp(json_str(json_get(m->pkg->config, "foresay_v_heads"), ""), "tiled"),
    };
    if (!(l->attn.norm_in = model_vector(m, e, H, plus, "layers.%d.input_layernorm.weight", i)) ||
        !(l->attn.norm_post = model_vector(m, e, H, plus, "layers.%d.post_attention_layernorm.weight", i)) ||
        !(l->qkv = model_matrix(m, e, C, H, "layers.%d.linear_attn.in_proj_qkv.weight", i)) ||
        !(l->z = model_matrix(m, e, V, H, "layers.%d.linear_attn.in_proj_z.weight", i)) ||
        !(l->b = model_matrix(m, e, d->v_heads, H, "layers.%d.linear_attn.in_proj_b.weight", i)) ||
        !(l->a = model_matrix(m, e, d->v_heads, H, "layers.%d.linear_attn.in_proj_a.weight", i)) ||
        !(l->out = model_matrix(m, e, H, V, "layers.%d.linear_attn.out_proj.weight", i)) ||
        !(p->conv = conv_vector(m, e, C, d->taps, i)) || !(p->a = decay_vector(m, e, d->v_heads, i)) ||
        !(p->dt_bias = model_vector(m, e, d->v_heads, 0, "layers.%d.linear_attn.dt_bias", i)) ||
        !(p->norm = model_vector(m, e, d->dv, 0, "layers.%d.linear_attn.norm.weight", i)))
        return e->code;
    p->rec = model_state(m, (struct state_spec){.kind = STATE_REC, .layer = i, .heads = p->v_heads, .dk = p->dk, .dv = p->dv,
                                                .conv = (int)C, .k_heads = p->k_heads});
    model_width(m, BUF_Q, C);
    model_width(m, BUF_Z, V);
    model_width(m, BUF_B, d->v_heads);
    model_width(m, BUF_A, d->v_heads);
    model_width(m, BUF_MIX, V);
    return 0;
}

static int read_dims(struct model *m, struct gdn_dims *d, struct err *e)
{
    const struct package *p = m->pkg;
    const char *gate, *act;
    bool gated, biased;
    if (cfg_str_or(p, "output_gate_type", "swish", &gate, e) || cfg_str_or(p, "hidden_act", "silu", &act, e) ||
        cfg_bool_or(p, "attn_output_gate", true, &gated, e) || cfg_bool_or(p, "attention_bias", false, &biased, e))
        return e->code;
    if (strcmp(gate, "swish") && strcmp(gate, "silu"))
        return err_set(e, ERR_UNSUPPORTED, "%s: unsupported output_gate_type \"%.40s\"; expected \"swish\"", p->path, gate);
    if (!gated || biased)
        return err_set(e, ERR_UNSUPPORTED, "%s: unsupported: attention without output gate, or with biases", p->path);
    if (strcmp(act, "silu"))
        return err_set(e, ERR_UNSUPPORTED, "%s: unsupported hidden_act \"%.40s\"", p->path, act);
    if (cfg_int(p, "linear_num_key_heads", 1, 1024, &d->k_heads, e) || cfg_int(p, "linear_num_value_heads", 1, 1024, &d->v_heads, e) ||
        cfg_int(p, "linear_key_head_dim", 4, 512, &d->dk, e) || cfg_int(p, "linear_value_head_dim", 16, 512, &d->dv, e) ||
        cfg_int(p, "linear_conv_kernel_dim", 2, 8, &d->taps, e))
        return e->code;
    if (d->v_heads % d->k_heads || d->dk % 4 || d->dv % 16)
        return err_set(e, ERR_UNSUPPORTED, "%s: unsupported linear attention shape: %d value heads on %d key heads, widths %d and %d", p->path,
                       (int)d->v_heads, (int)d->k_heads, (int)d->dk, (int)d->dv);
    return 0;
}

/* Attention of the trunk and of the MTP layer alike. */
int qwen35_attn_shape(struct model *m, struct attn_params *out, struct err *e)
{
    double part;
    const char *key = json_get(json_get(m->pkg->config, "rope_parameters"), "partial_rotary_factor") ? "rope_parameters.partial_rotary_factor"
                                                                                                   : "partial_rotary_factor";
    if (cfg_num_or(m->pkg, key, 0, 1, 0.25, &part, e))
        return e->code;
    int rot = (int)lrint(part * m->head_dim); // GGUF gives the factor as a quotient
    *out = (struct attn_params){.heads = m->heads, .kv_heads = m->kv_heads, .dim = m->head_dim, .rot_dim = rot & ~1, .eps = m->eps,
                                .scale = 1.0f / sqrtf((float)m->head_dim), .gated = true};
    out->freq = model_rope(m, rot & ~1, e);
    return out->freq ? 0 : e->code;
}

int qwen35_mlp_bind(struct model *m, struct mlp_layer *l, const char *key, struct bvec *norm_post, struct err *e)
{
    int64_t inter;
    struct moe_params p;
    char mlp[48], name[96], gate[96];
    if (m->arch != &arch_qwen35_moe)
        return cfg_int(m->pkg, "intermediate_size", 1, 1 << 24, &inter, e) ? e->code : mlp_bind(m, l, key, inter, e);
    snprintf(mlp, sizeof mlp, "%smlp.", key);
    snprintf(name, sizeof name, "%sgate.weight", mlp);
    if (moe_read(m, &p, "num_experts_per_tok", true, e) || cfg_int(m->pkg, "shared_expert_intermediate_size", 1, 1 << 24, &inter, e) ||
        !(p.router = moe_router(m, p.n_experts, e, name)))
        return e->code;
    snprintf(name, sizeof name, "%sshared_expert.", mlp);
    snprintf(gate, sizeof gate, "%sshared_expert_gate.weight", mlp);
    return moe_bind(m, l, &p, mlp, norm_post, e) || moe_bind_shared(m, l, name, inter, true, gate, e) ? e->code : 0;
}

static int bind(struct model *m, struct err *e)
{
    struct package *p = m->pkg;
    struct gdn_dims d;
    struct attn_params shape;
    int64_t interval;
    if (read_dims(m, &d, e) || cfg_int_or(p, "full_attention_interval", 1, 1 << 16, 4, &interval, e) || qwen35_attn_shape(m, &shape, e))
        return e->code;
    m->norms_raw = norms_are_raw(m);
    float plus = m->norms_raw ? 1 : 0;
    if (!(m->final_norm = model_vector(m, e, m->hidden, plus, "norm.weight")))
        return e->code;
    struct layer *l = m->layers = arena_alloc(&m->arena, (size_t)m->n_layers * sizeof *l);
    memset(l, 0, (size_t)m->n_layers * sizeof *l);
    for (int i = 0; i < m->n_layers; i++) {
        char key[32];
        bool known;
        snprintf(key, sizeof key, "layers.%d.", i);
        l[i].is_full = layer_is_full(p, i, interval, &known);
        if (!known)
            return err_set(e, ERR_UNSUPPORTED, "%s: unsupported layer_types entry %d", p->path, i);
        l[i].attn.p = shape;
        if (l[i].is_full ? attn_bind(m, &l[i].attn, key, plus, true, i, e) : bind_gdn(m, &l[i], i, &d, plus, e))
            return e->code;
        if (qwen35_mlp_bind(m, &l[i].mlp, key, l[i].attn.norm_post, e))
            return e->code;
    }
    return 0;
}

static void forward(const struct model *m, const struct step *s, int layer0, int layer1)
{
    const struct backend_ops *op = m->be->ops;
    const struct layer *layers = m->layers;
    for (int i = layer0; i < layer1; i++) {
        const struct layer *l = &layers[i];
        if (l->is_full) {
            attn_forward(m, s, &l->attn);
        } else {
            const struct product in[] = {{l->qkv, BUF_Q}, {l->z, BUF_Z}, {l->b, BUF_B}, {l->a, BUF_A}};
            op->norm_mm(m->be, s, BUF_X, l->attn.norm_in, m->eps, in, 4);
            op->gdn(m->be, s, &l->gdn, BUF_MIX);
            op->mm_add(m->be, s, BUF_MIX, l->out, BUF_X);
        }
        mlp_forward(m, s, l->attn.norm_post, &l->mlp);
    }
}

const struct arch arch_qwen35 = {
    .name = "Qwen3.5 dense", .types = {"qwen3_5_text", "qwen3_5"}, .bind = bind, .forward = forward, .bind_head = qwen35_bind_head,
};
const struct arch arch_qwen35_moe = {
    .name = "Qwen3.5 MoE", .types = {"qwen3_5_moe_text", "qwen3_5_moe"}, .bind = bind, .forward = forward, .bind_head = qwen35_bind_head,
};
