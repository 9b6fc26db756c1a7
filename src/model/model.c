#include "model/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/math64.h"

/* What every architecture has: sizes, embedding, final norm, head. */
static int bind_common(struct model *m, struct err *e)
{
    struct package *p = m->pkg;
    int64_t hidden, layers, vocab, ctx, heads, kv, dim;
    double eps;
    const struct weight *embed = weights_find(p->weights, "embed_tokens.weight");
    if (cfg_int(p, "hidden_size", 1, 1 << 20, &hidden, e) || cfg_int(p, "num_hidden_layers", 1, MODEL_MAX_LAYERS, &layers, e) ||
        cfg_int_or(p, "vocab_size", 1, 1 << 24, embed ? embed->ne[0] : 0, &vocab, e) || cfg_int(p, "num_attention_heads", 1, 1024, &heads, e) ||
        cfg_int_or(p, "num_key_value_heads", 1, 1024, heads, &kv, e) || cfg_num(p, "rms_norm_eps", 0, 1, &eps, e) ||
        cfg_int_or(p, "max_position_embeddings", 1, 1 << 30, 4096, &ctx, e))
        return e->code;
    if (heads % kv)
        return err_set(e, ERR_FORMAT, "%s: %d attention heads are not divisible by %d key/value heads", p->path, (int)heads, (int)kv);
    if (cfg_int_or(p, "head_dim", 1, 1024, hidden / heads, &dim, e))
        return e->code;
    if (heads / kv > 64 || (dim & 1))
        return err_set(e, ERR_UNSUPPORTED, "%s: unsupported attention shape (%d heads on %d, width %d)", p->path, (int)heads, (int)kv, (int)dim);
    m->hidden = (int)hidden, m->n_layers = (int)layers, m->n_vocab = (int)vocab, m->max_ctx = (int)ctx;
    m->heads = (int)heads, m->kv_heads = (int)kv, m->head_dim = (int)dim, m->eps = (float)eps;
    const char *embed_key = embed || !weights_find(p->weights, "word_embeddings.weight") ? "embed_tokens.weight" : "word_embeddings.weight";
    if (!(m->embed = model_matrix(m, e, vocab, hidden, "%s", embed_key)))
        return e->code;
    bool tied = !weights_find(m->pkg->weights, "lm_head.weight");
    m->head = tied ? m->embed : model_matrix(m, e, vocab, hidden, "lm_head.weight");
    if (!m->head)
        return e->code;
    model_width(m, BUF_X, hidden);
    model_width(m, BUF_NORM, hidden);
    model_width(m, BUF_HIDDEN, hidden);
    return 0;
}

int model_open(struct model **out, struct package *p, struct backend *be, struct err *e)
{
    struct err local = {0};
    struct model *m = xcalloc(1, sizeof *m);
    e = e ? e : &local;
    m->pkg = p;
    m->be = be;
    const char *type = json_str(json_get(p->config, "model_type"), NULL);
    if (!type)
        err_set(e, ERR_FORMAT, "%s: config.json: missing model_type", p->path);
    else if (!(m->arch = arch_find(type)))
        arch_refuse(p->path, type, e);
    else if (!(m->arch->defaults && cfg_defaults(p, m->arch->defaults, e)) && !bind_common(m, e))
        m->arch->bind(m, e);
    if (e->code) {
        model_close(m);
        return e->code;
    }
    static const char *const towers[] = {"visual.", "vision_tower.", "vision_model.", "multi_modal_projector.", "embed_vision.", "audio_tower.", "embed_audio."};
    for (size_t i = 0; i < sizeof towers / sizeof *towers; i++)
        weights_ignore(p->weights, towers[i], strstr(towers[i], "audio") ? "audio tower: sound is not read" : "vision tower: images are not read");
    *out = m;
    return 0;
}

void model_close(struct model *m)
{
    if (!m)
        return;
    package_close(m->pkg);
    arena_free(&m->arena);
    free(m);
}

void model_forward(const struct model *m, const struct step *s)
{
    const struct backend_ops *op = m->be->ops;
    op->embed(m->be, s, m->embed, BUF_X);
    if (m->embed_scale != 0)
        op->scale(m->be, s, BUF_X, m->hidden, m->embed_scale);
    m->arch->forward(m, s, 0, m->n_layers);
    op->norm(m->be, s, BUF_X, m->final_norm, m->eps, BUF_HIDDEN, 0);
}

int model_state(struct model *m, struct state_spec spec)
{
    int index = 0;
    for (int i = 0; i < m->n_specs; i++)
        index += m->specs[i].kind == spec.kind;
    if (spec.kind == STATE_KV) {
        while (spec.page_class < m->n_windows && m->windows[spec.page_class] != spec.window)
            spec.page_class++;
        if (spec.page_class == m->n_windows && m->n_windows < PAGE_CLASSES)
            m->windows[m->n_windows++] = spec.window;
    }
    m->specs[m->n_specs++] = spec;
    return index;
}

uint64_t model_kv_bytes(const struct model *m, int64_t n)
{
    uint64_t bytes = 0;
    for (int i = 0; i < m->n_specs; i++) {
        const struct state_spec *s = &m->specs[i];
        int64_t most = s->window ? s->window + 2 * PAGE_TOKENS : n; // a window lies across pages that it doesn't fill
        if (s->kind == STATE_KV)
            bytes += (uint64_t)s->heads * (uint64_t)(s->dk + s->dv) * 2 * (uint64_t)(n < most ? n : most);
    }
    return bytes;
}

void model_width(struct model *m, enum buffer b, int64_t width)
{
    if (width > m->widths[b])
        m->widths[b] = (int)width;
}

struct bweight *model_matrix(struct model *m, struct err *e, int64_t out, int64_t in, const char *key, ...)
{
    char k[256];
    va_list ap;
    struct bweight *b = NULL;
    va_start(ap, key);
    vsnprintf(k, sizeof k, key, ap);
    va_end(ap);
    const struct weight *w = weights_matrix(m->pkg->weights, e, out, in, "%s", k);
    return w && !m->be->ops->weight(m->be, w, &b, e) ? b : NULL;
}

struct bweight *model_rows(struct model *m, struct err *e, int64_t all, int64_t row0, int64_t out, int64_t in, const char *key)
{
    const struct weight *w = weights_matrix(m->pkg->weights, e, all, in, "%s", key);
    struct bweight *b = NULL;
    if (!w)
        return NULL;
    struct weight *part = arena_alloc(&m->arena, sizeof *part);
    *part = *w;
    weight_rows(part, row0, out);
    return m->be->ops->weight(m->be, part, &b, e) ? NULL : b;
}

int model_bias(struct model *m, struct bweight *w, struct err *e, int64_t n, const char *key, ...)
{
    char k[256];
    va_list ap;
    va_start(ap, key);
    vsnprintf(k, sizeof k, key, ap);
    va_end(ap);
    const struct bvec *v = model_vector(m, e, n, 0, "%s", k);
    if (!v)
        return e->code;
    m->be->ops->bias(m->be, w, v);
    return 0;
}

static struct bvec *vector_of(struct model *m, const double *x, int n, struct err *e)
{
    struct bvec *v = NULL;
    return m->be->ops->vec(m->be, x, n, &v, e) ? NULL : v;
}

struct bvec *model_vector(struct model *m, struct err *e, int64_t n, float plus, const char *key, ...)
{
    char k[256];
    va_list ap;
    va_start(ap, key);
    vsnprintf(k, sizeof k, key, ap);
    va_end(ap);
    const float *f = weights_floats(m->pkg->weights, e, n, "%s", k);
    if (!f)
        return NULL;
    double *x = xmalloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = plus != 0 ? f[i] + plus : f[i];
    struct bvec *v = vector_of(m, x, (int)n, e);
    free(x);
    return v;
}

int model_rot_dim(const struct model *m, int *rot_dim, struct err *e)
{
    const char *nested = "rope_parameters.partial_rotary_factor";
    double part;
    if (cfg_num_or(m->pkg, cfg_get(m->pkg, nested) ? nested : "partial_rotary_factor", 0, 1, 1, &part, e))
        return e->code;
    *rot_dim = (int)(part * m->head_dim + 0.5) & ~1; // GGUF gives the factor as a quotient
    return 0;
}

int model_activation(const struct model *m, const char *key, enum activation *act, struct err *e)
{
    const char *name;
    if (cfg_str_or(m->pkg, key, "silu", &name, e))
        return e->code;
    bool is_gelu = !strcmp(name, "gelu_pytorch_tanh"), is_silu = !strcmp(name, "silu");
    *act = is_gelu ? ACT_GELU_TANH : ACT_SILU;
    return is_gelu || is_silu ? 0 : err_set(e, ERR_UNSUPPORTED, "%s: unsupported %s \"%.40s\"; expected \"silu\" or \"gelu_pytorch_tanh\"",
                                            m->pkg->config_file, key, name);
}

int model_window(const struct model *m, int layer, bool slides, int *window, struct err *e)
{
    const struct package *p = m->pkg;
    const struct json *types = cfg_get(p, "layer_types");
    const char *type = json_str(json_at(types, (size_t)layer), "nothing");
    int64_t size;
    *window = 0;
    if (cfg_int_or(p, "sliding_window", 1, 1 << 30, 0, &size, e))
        return e->code;
    if (types) {
        slides = !strcmp(type, "sliding_attention");
        if (!slides && strcmp(type, "full_attention"))
            return err_set(e, ERR_UNSUPPORTED, "%s: unsupported layer_types[%d]: expected full_attention or sliding_attention, found %.40s",
                           p->config_file, layer, type);
        if (slides && !size)
            return err_set(e, ERR_FORMAT, "%s: missing sliding_window: layer_types[%d] is sliding_attention", p->config_file, layer);
    }
    *window = slides ? (int)size : 0;
    return 0;
}

/* Llama 3's scaling of one frequency (transformers: rope_type "llama3"). */
static double llama3_scale(double inv, double factor, double low, double high, double ctx)
{
    double lambda = 6.283185307179586 / inv;
    if (lambda < ctx / high)
        return inv;
    if (lambda > ctx / low)
        return inv / factor;
    double s = (ctx / lambda - low) / (high - low);
    return (1 - s) * inv / factor + s * inv;
}

/* Where the configuration keeps the rotary parameters of one kind of layers: {theta, scaling} as keys. The newer
 * spelling has an object for each kind of layers or one for all, the older flat keys. */
static void rope_keys(const struct package *p, const char *kind, char theta[96], char scaling[64])
{
    bool per_kind = json_is(json_get(json_get(p->config, "rope_parameters"), kind), JSON_OBJECT);
    bool is_local = !strcmp(kind, ROPE_SLIDING) && cfg_get(p, "rope_local_base_freq");
    if (per_kind || cfg_get(p, "rope_parameters")) {
        snprintf(scaling, 64, per_kind ? "rope_parameters.%s" : "rope_parameters", kind);
        snprintf(theta, 96, "%s.rope_theta", scaling);
    } else {
        snprintf(scaling, 64, "%s", is_local ? "" : "rope_scaling");
        snprintf(theta, 96, "%s", is_local ? "rope_local_base_freq" : "rope_theta");
    }
}

static int rope_number(const struct package *p, const char *scaling, const char *name, double dflt, double *out, struct err *e)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", scaling, name);
    return cfg_num_or(p, key, 1e-3, 1e9, dflt, out, e);
}

struct bvec *model_rope_of(struct model *m, int rot_dim, const char *kind, struct err *e)
{
    const struct package *p = m->pkg;
    char scaling[64], theta_key[96];
    double theta, factor = 1, low = 1, high = 4, ctx = 8192, part = 1, freq[512];
    rope_keys(p, kind, theta_key, scaling);
    const struct json *o = cfg_get(p, scaling);
    const char *type = json_str(json_get(o, "rope_type"), json_str(json_get(o, "type"), "default"));
    if (cfg_num(p, theta_key, 1, 1e12, &theta, e))
        return NULL;
    bool is_llama3 = !strcmp(type, "llama3"), is_linear = !strcmp(type, "linear"), is_part = !strcmp(type, "proportional");
    if (!is_llama3 && !is_linear && !is_part && strcmp(type, "default")) {
        err_set(e, ERR_UNSUPPORTED, "%s: unsupported rope type \"%.40s\"", p->path, type);
        return NULL;
    }
    if (((is_llama3 || is_linear) && rope_number(p, scaling, "factor", is_llama3 ? 8 : 1, &factor, e)) ||
        (is_llama3 && (rope_number(p, scaling, "low_freq_factor", 1, &low, e) || rope_number(p, scaling, "high_freq_factor", 4, &high, e) ||
                       rope_number(p, scaling, "original_max_position_embeddings", 8192, &ctx, e))) ||
        (is_part && rope_number(p, scaling, "partial_rotary_factor", 1, &part, e)))
        return NULL;
    if (rot_dim > 1024) {
        err_set(e, ERR_UNSUPPORTED, "%s: unsupported rotary width %d", p->path, rot_dim);
        return NULL;
    }
    const float *divisor = NULL; // GGUF carries Llama 3's scaling as divisors
    if (!strcmp(kind, ROPE_FULL) && weights_find(p->weights, "rope_freqs.weight") &&
        !(divisor = weights_floats(p->weights, e, rot_dim / 2, "rope_freqs.weight")))
        return NULL;
    for (int j = 0; j < rot_dim / 2; j++) {
        freq[j] = exp64(-2.0 * j / rot_dim * log64(theta));
        if (is_llama3)
            freq[j] = llama3_scale(freq[j], factor, low, high, ctx);
        else if (is_linear)
            freq[j] /= factor;
        if (divisor)
            freq[j] /= (double)divisor[j];
        if (is_part && j >= (int)(part * rot_dim / 2 + 1e-9))
            freq[j] = 0;
    }
    return vector_of(m, freq, rot_dim / 2, e);
}

struct bvec *model_rope(struct model *m, int rot_dim, struct err *e) { return model_rope_of(m, rot_dim, ROPE_FULL, e); }

/* ---- blocks -------------------------------------------------------------------------------------------------------- */

void attn_state(struct model *m, struct attn_layer *l, int layer)
{
    struct attn_params *p = &l->p;
    int64_t q = (int64_t)p->heads * p->dim, kv = (int64_t)p->kv_heads * p->dim;
    p->kv = model_state(m, (struct state_spec){.kind = STATE_KV, .layer = layer, .heads = p->kv_heads, .dk = p->dim, .dv = p->dim,
                                               .window = layer < 0 ? 0 : p->window});
    model_width(m, BUF_Q, p->gated ? 2 * q : q);
    model_width(m, BUF_MIX, q);
    model_width(m, BUF_K, kv);
    model_width(m, BUF_V, kv);
}

int attn_bind(struct model *m, struct attn_layer *l, const char *key, float plus, bool qk_norm, int layer, struct err *e)
{
    struct attn_params *p = &l->p;
    int64_t q = (int64_t)p->heads * p->dim, kv = (int64_t)p->kv_heads * p->dim, H = m->hidden;
    if (!(l->norm_in = model_vector(m, e, H, plus, "%sinput_layernorm.weight", key)) ||
        !(l->norm_post = model_vector(m, e, H, plus, "%spost_attention_layernorm.weight", key)) ||
        !(l->q = model_matrix(m, e, p->gated ? 2 * q : q, H, "%sself_attn.q_proj.weight", key)) ||
        !(l->o = model_matrix(m, e, H, q, "%sself_attn.o_proj.weight", key)) ||
        (qk_norm && !(p->q_norm = model_vector(m, e, p->dim, plus, "%sself_attn.q_norm.weight", key))))
        return e->code;
    model_width(m, BUF_Q, p->gated ? 2 * q : q);
    model_width(m, BUF_MIX, q);
    if (p->shared)
        return 0;
    if (!(l->k = model_matrix(m, e, kv, H, "%sself_attn.k_proj.weight", key)) ||
        (!p->v_from_k && !(l->v = model_matrix(m, e, kv, H, "%sself_attn.v_proj.weight", key))) ||
        (qk_norm && !(p->k_norm = model_vector(m, e, p->dim, plus, "%sself_attn.k_norm.weight", key))))
        return e->code;
    attn_state(m, l, layer);
    return 0;
}

int attn_bind_biases(struct model *m, struct attn_layer *l, const char *key, bool has_output, struct err *e)
{
    int64_t q = (int64_t)l->p.heads * l->p.dim, kv = (int64_t)l->p.kv_heads * l->p.dim;
    if (model_bias(m, l->q, e, l->p.gated ? 2 * q : q, "%sself_attn.q_proj.bias", key) ||
        model_bias(m, l->k, e, kv, "%sself_attn.k_proj.bias", key) || model_bias(m, l->v, e, kv, "%sself_attn.v_proj.bias", key))
        return e->code;
    return has_output ? model_bias(m, l->o, e, m->hidden, "%sself_attn.o_proj.bias", key) : 0;
}

void attn_block(const struct model *m, const struct step *s, const struct attn_layer *l, enum buffer dst)
{
    const struct backend_ops *op = m->be->ops;
    const struct product qkv[] = {{l->q, BUF_Q}, {l->k, BUF_K}, {l->v, BUF_V}};
    op->norm_mm(m->be, s, BUF_X, l->norm_in, m->eps, qkv, !l->k ? 1 : !l->v ? 2 : 3);
    op->attn(m->be, s, &l->p, BUF_MIX);
    if (dst == BUF_X)
        op->mm_add(m->be, s, BUF_MIX, l->o, dst);
    else
        op->mm(m->be, s, BUF_MIX, l->o, dst);
}

void attn_forward(const struct model *m, const struct step *s, const struct attn_layer *l) { attn_block(m, s, l, BUF_X); }

int mlp_bind(struct model *m, struct mlp_layer *l, const char *key, int64_t inter, struct err *e)
{
    if (!(l->gate = model_matrix(m, e, inter, m->hidden, "%smlp.gate_proj.weight", key)) ||
        !(l->up = model_matrix(m, e, inter, m->hidden, "%smlp.up_proj.weight", key)) ||
        !(l->down = model_matrix(m, e, m->hidden, inter, "%smlp.down_proj.weight", key)))
        return e->code;
    model_width(m, BUF_GATE, inter);
    return 0;
}

int mlp_bind_biases(struct model *m, struct mlp_layer *l, const char *key, int64_t inter, struct err *e)
{
    if (model_bias(m, l->gate, e, inter, "%smlp.gate_proj.bias", key) || model_bias(m, l->up, e, inter, "%smlp.up_proj.bias", key) ||
        model_bias(m, l->down, e, m->hidden, "%smlp.down_proj.bias", key))
        return e->code;
    return 0;
}

void mlp_block(const struct model *m, const struct step *s, const struct bvec *norm, const struct mlp_layer *l, enum buffer dst)
{
    if (l->moe)
        m->be->ops->moe(m->be, s, l->moe, dst);
    else
        m->be->ops->mlp(m->be, s, norm, m->eps, l->gate, l->up, l->down, l->act, dst);
}

void mlp_forward(const struct model *m, const struct step *s, const struct bvec *norm, const struct mlp_layer *l)
{
    mlp_block(m, s, norm, l, BUF_X);
}
