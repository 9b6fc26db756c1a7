/* Llama, SmolLM2, Mistral and their like: pre-norm decoder, rotary attention with grouped keys, SwiGLU. Norms are
 * plain (no +1), projections have biases only where the configuration says so. Mistral is the same graph with a
 * window on every layer. Source: transformers' LlamaForCausalLM and MistralForCausalLM; GGUF architecture "llama",
 * whose query and key rows stand in the order of the adjacent rotary pairing. */
#include "model/model.h"

static int bind(struct model *m, struct err *e)
{
    struct decoder d;
    int rc = decoder_read(m, &d, e);
    for (int i = 0; i < m->n_layers && !rc; i++) {
        rc = model_window(m, i, true, &d.attn.window, e);
        if (!rc)
            rc = decoder_bind(m, &d, i, e);
    }
    return rc;
}

const struct arch arch_llama = {.name = "Llama", .types = {"llama", "mistral"}, .bind = bind, .forward = decoder_forward};
