/* Qwen2 and Qwen2.5: the plain pre-norm decoder with biases on the query, key and value products. A window, where
 * use_sliding_window asks for one, holds from layer max_window_layers on. Source: transformers' Qwen2ForCausalLM;
 * GGUF architecture "qwen2", rows in HF's order. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>

static int bind(struct model *m, struct err *e)
{
    const struct package *p = m->pkg;
    int64_t inter, first_sliding = 0;
    bool slides;
    enum activation act;
    if (cfg_int(p, "intermediate_size", 1, 1 << 24, &inter, e) || cfg_bool_or(p, "use_sliding_window", false, &slides, e) ||
        model_activation(m, "hidden_act", &act, e))
        return e->code;
    if (slides && !cfg_get(p, "layer_types") && cfg_int(p, "max_window_layers", 0, MODEL_MAX_LAYERS, &first_sliding, e))
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
        };
        if (model_window(m, i, slides && i >= first_sliding, &l[i].attn.p.window, e) || attn_bind(m, &l[i].attn, key, 0, false, i, e) ||
            attn_bind_biases(m, &l[i].attn, key, false, e) || mlp_bind(m, &l[i].mlp, key, inter, e))
            return e->code;
    }
    weights_ignore(p->weights, "rotary_emb", "recomputed from the configuration");
    return 0;
}

const struct arch arch_qwen2 = {.name = "Qwen2.5", .types = {"qwen2"}, .bind = bind, .forward = decoder_forward};
