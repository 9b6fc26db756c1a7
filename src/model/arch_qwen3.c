/* Qwen3: the plain decoder with normed queries and keys, dense or with experts in every layer that mlp_only_layers and
 * decoder_sparse_step leave them (softmax over all experts, the chosen ones' weights normalized where the
 * configuration says so). Source: transformers' Qwen3ForCausalLM and Qwen3MoeForCausalLM; GGUF architectures "qwen3"
 * and "qwen3moe", rows in HF's order. */
#include "model/model.h"

#include <stdio.h>

static bool is_dense(const struct package *p, int layer, int64_t step)
{
    const struct json *only = cfg_get(p, "mlp_only_layers");
    for (size_t i = 0; json_at(only, i); i++)
        if (json_num(json_at(only, i), -1) == layer)
            return true;
    return (layer + 1) % step != 0;
}

static int bind(struct model *m, struct err *e)
{
    struct decoder d;
    struct moe_params moe = {0};
    int64_t first_sliding = 0, step;
    bool slides, has_experts = m->arch == &arch_qwen3_moe;
    if (decoder_read(m, &d, e) || cfg_bool_or(m->pkg, "use_sliding_window", false, &slides, e) ||
        cfg_int_or(m->pkg, "decoder_sparse_step", 1, MODEL_MAX_LAYERS, 1, &step, e) || (has_experts && moe_read(m, &moe, "num_experts_per_tok", false, e)))
        return e->code;
    if (slides && !cfg_get(m->pkg, "layer_types") && cfg_int(m->pkg, "max_window_layers", 0, MODEL_MAX_LAYERS, &first_sliding, e))
        return e->code;
    d.qk_norm = true;
    for (int i = 0; i < m->n_layers; i++) {
        d.moe = has_experts && !is_dense(m->pkg, i, step) ? &moe : NULL;
        if (model_window(m, i, slides && i >= first_sliding, &d.attn.window, e) || decoder_bind(m, &d, i, e))
            return e->code;
    }
    return 0;
}

const struct arch arch_qwen3 = {.name = "Qwen3", .types = {"qwen3"}, .bind = bind, .forward = decoder_forward};
const struct arch arch_qwen3_moe = {.name = "Qwen3 MoE", .types = {"qwen3_moe"}, .bind = bind, .forward = decoder_forward};
