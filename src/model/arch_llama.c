/* Llama, SmolLM2 and their like: pre-norm decoder, rotary attention with grouped keys, SwiGLU. Norms are plain
 * (no +1), projections have no bias. Source: transformers' LlamaForCausalLM; GGUF architecture "llama", whose
 * query and key rows stand in the order of the adjacent rotary pairing. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct layer {
    struct attn_layer attn;
    struct mlp_layer mlp;
};

static int bind(struct model *m, struct err *e)
{
    const struct package *p = m->pkg;
    int64_t inter;
    bool attn_bias, mlp_bias;
    if (cfg_int(p, "intermediate_size", 1, 1 << 24, &inter, e) || cfg_bool_or(p, "attention_bias", false, &attn_bias, e) ||
        cfg_bool_or(p, "mlp_bias", false, &mlp_bias, e))
        return e->code;
    if (attn_bias || mlp_bias)
        return err_set(e, ERR_UNSUPPORTED, "%s: unsupported: projections with biases in a llama model", p->path);
    struct bvec *freq = model_rope(m, m->head_dim, e);
    if (!freq || !(m->final_norm = model_vector(m, e, m->hidden, 0, "norm.weight")))
        return e->code;
    struct layer *l = m->layers = arena_alloc(&m->arena, (size_t)m->n_layers * sizeof *l);
    memset(l, 0, (size_t)m->n_layers * sizeof *l);
    for (int i = 0; i < m->n_layers; i++) {
        char key[32];
        snprintf(key, sizeof key, "layers.%d.", i);
        l[i].attn.p = (struct attn_params){
            .heads = m->heads, .kv_heads = m->kv_heads, .dim = m->head_dim, .rot_dim = m->head_dim, .freq = freq, .eps = m->eps,
            .scale = 1.0f / sqrtf((float)m->head_dim),
            .pairs_adjacent = !strcmp(json_str(json_get(p->config, "foresay_rope_pairs"), ""), "adjacent"),
        };
        if (attn_bind(m, &l[i].attn, key, 0, false, i, e) || mlp_bind(m, &l[i].mlp, key, inter, e))
            return e->code;
    }
    weights_ignore(p->weights, "rotary_emb", "recomputed from the configuration");
    return 0;
}

static void forward(const struct model *m, const struct step *s, int layer0, int layer1)
{
    const struct layer *l = m->layers;
    for (int i = layer0; i < layer1; i++) {
        attn_forward(m, s, &l[i].attn);
        mlp_forward(m, s, l[i].attn.norm_post, &l[i].mlp);
    }
}

const struct arch arch_llama = {.name = "Llama", .types = {"llama"}, .bind = bind, .forward = forward};
