/* Llama, SmolLM2, Mistral and their like: pre-norm decoder, rotary attention with grouped keys, SwiGLU. Norms are
 * plain (no +1), projections have biases only where the configuration says so. Mistral is the same graph with a
 * window on every layer. Source: transformers' LlamaForCausalLM and MistralForCausalLM; GGUF architecture "llama",
 * whose query and key rows stand in the order of the adjacent rotary pairing. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int bind(struct model *m, struct err *e)
{
    const struct package *p = m->pkg;
    int64_t inter;
    bool attn_bias, mlp_bias;
    enum activation act;
    if (cfg_int(p, "intermediate_size", 1, 1 << 24, &inter, e) || cfg_bool_or(p, "attention_bias", false, &attn_bias, e) ||
        cfg_bool_or(p, "mlp_bias", false, &mlp_bias, e) || model_activation(m, "hidden_act", &act, e))
        return e->code;
    struct bvec *freq = model_rope(m, m->head_dim, e);
    if (!freq || !(m->final_norm = model_vector(m, e, m->hidden, 0, "norm.weight")))
        return e->code;
    struct decoder_layer *l = decoder_layers(m);
    for (int i = 0; i < m->n_layers; i++) {
        char key[32];
        snprintf(key, sizeof key, "layers.%d.", i);
        l[i].mlp.act = act;
        l[i].attn.p = (struct attn_params){
            .heads = m->heads, .kv_heads = m->kv_heads, .dim = m->head_dim, .rot_dim = m->head_dim, .freq = freq, .eps = m->eps,
            .scale = 1.0f / sqrtf((float)m->head_dim),
            .pairs_adjacent = !strcmp(json_str(json_get(p->config, "foresay_rope_pairs"), ""), "adjacent"),
        };
        if (model_window(m, i, true, &l[i].attn.p.window, e) || attn_bind(m, &l[i].attn, key, 0, false, i, e) ||
            mlp_bind(m, &l[i].mlp, key, inter, e) || (attn_bias && attn_bind_biases(m, &l[i].attn, key, true, e)) ||
            (mlp_bias && mlp_bind_biases(m, &l[i].mlp, key, inter, e)))
            return e->code;
    }
    weights_ignore(p->weights, "rotary_emb", "recomputed from the configuration");
    return 0;
}

const struct arch arch_llama = {.name = "Llama", .types = {"llama", "mistral"}, .bind = bind, .forward = decoder_forward};
