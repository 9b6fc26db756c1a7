/* SmolLM3: Llama's graph, but every fourth layer doesn't rotate (no positions, "NoPE"), and a window, where
 * use_sliding_window asks for one, holds for those layers. Source: transformers' SmolLM3ForCausalLM; GGUF architecture
 * "smollm3", whose query and key rows stand in the order of the adjacent rotary pairing. */
#include "model/model.h"

static int bind(struct model *m, struct err *e)
{
    const struct package *p = m->pkg;
    const struct json *rotates = cfg_get(p, "no_rope_layers"); // 1: the layer rotates, whatever the key's name says
    struct decoder d;
    int64_t interval;
    bool slides;
    if (decoder_read(m, &d, e) || cfg_int_or(p, "no_rope_layer_interval", 1, 1 << 16, 4, &interval, e) ||
        cfg_bool_or(p, "use_sliding_window", false, &slides, e))
        return e->code;
    int rot_dim = d.attn.rot_dim;
    for (int i = 0; i < m->n_layers; i++) {
        int64_t turns = (i + 1) % interval != 0;
        if (rotates && (!json_int(json_at(rotates, (size_t)i), &turns) || turns < 0 || turns > 1))
            return err_set(e, ERR_FORMAT, "%s: no_rope_layers[%d]: expected 0 or 1", p->config_file, i);
        d.attn.rot_dim = turns ? rot_dim : 0;
        if (model_window(m, i, slides && !turns, &d.attn.window, e) || decoder_bind(m, &d, i, e))
            return e->code;
    }
    return 0;
}

const struct arch arch_smollm3 = {.name = "SmolLM3", .types = {"smollm3"}, .bind = bind, .forward = decoder_forward};
