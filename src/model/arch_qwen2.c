/* Qwen2 and Qwen2.5: the plain pre-norm decoder with biases on the query, key and value products. A window, where
 * use_sliding_window asks for one, holds from layer max_window_layers on. Source: transformers' Qwen2ForCausalLM;
 * GGUF architecture "qwen2", rows in HF's order. */
#include "model/model.h"

static int bind(struct model *m, struct err *e)
{
    struct decoder d;
    int64_t first_sliding = 0;
    bool slides;
    if (decoder_read(m, &d, e) || cfg_bool_or(m->pkg, "use_sliding_window", false, &slides, e))
        return e->code;
    if (slides && !cfg_get(m->pkg, "layer_types") && cfg_int(m->pkg, "max_window_layers", 0, MODEL_MAX_LAYERS, &first_sliding, e))
        return e->code;
    d.qkv_bias = true; // whatever attention_bias says; the output product has none
    d.o_bias = false;
    for (int i = 0; i < m->n_layers; i++)
        if (model_window(m, i, slides && i >= first_sliding, &d.attn.window, e) || decoder_bind(m, &d, i, e))
            return e->code;
    return 0;
}

const struct arch arch_qwen2 = {.name = "Qwen2.5", .types = {"qwen2"}, .bind = bind, .forward = decoder_forward};
