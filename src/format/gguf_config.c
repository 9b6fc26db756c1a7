/* GGUF metadata as a configuration in HF's spelling: JSON text is composed and parsed, so that the model
 * layer sees one kind of configuration. What the metadata lack is left out, and the model layer refuses by name.
 * Architectures without a mapping get model_type "gguf:NAME". */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/package.h"

enum { MAX_LAYERS = 4096, MAX_CONFIG = 1 << 20 };

struct writer {
    struct package *p;
    const struct gguf *g;
    const char *arch;
    struct buf b;
};

// ---- reading metadata ------------------------------------------------------------------------------------

const struct gguf_kv *gguf_arch_find(const struct gguf *g, const char *arch, const char *key)
{
    char name[160];
    int n = snprintf(name, sizeof name, "%s.%s", arch, key);
    return n > 0 && n < (int)sizeof name ? gguf_find(g, name) : NULL;
}

/* Per-layer arrays of head counts hold 0 for layers without such heads (and, by an old writer's mistake, for
 * the MTP block): the other values must agree. */
bool gguf_arch_int(const struct gguf *g, const char *arch, const char *key, int64_t *v)
{
    const struct gguf_kv *kv = gguf_arch_find(g, arch, key);
    if (!kv || kv->type != GGUF_ARRAY)
        return gguf_int(kv, v);
    if (kv->n < 1 || kv->n > MAX_LAYERS)
        return false;
    int64_t *all = xmalloc((size_t)kv->n * sizeof *all), found = 0;
    bool ok = kv->elem != GGUF_BOOL && gguf_ints(kv, all);
    for (uint64_t i = 0; i < kv->n && ok; i++) {
        ok = !all[i] || !found || all[i] == found;
        found = all[i] ? all[i] : found;
    }
    free(all);
    if (ok && found)
        *v = found;
    return ok && found;
}

int gguf_names_init(struct gguf_names *m, const struct gguf *g, struct err *e)
{
    struct gguf_str s;
    int64_t n = 0, next = 0;
    *m = (struct gguf_names){0};
    if (!gguf_string(gguf_find(g, "general.architecture"), &s))
        return err_set(e, ERR_FORMAT, "%s: missing general.architecture", g->name);
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.s[i] <= 0x20 || (unsigned char)s.s[i] >= 0x7f)
            return err_set(e, ERR_FORMAT, "%s: general.architecture holds a byte 0x%02x", g->name,
                           (unsigned char)s.s[i]);
    if (s.n < 1 || s.n >= sizeof m->arch)
        return err_set(e, ERR_UNSUPPORTED, "%s: unsupported general.architecture of %zu bytes", g->name, s.n);
    memcpy(m->arch, s.s, s.n);
    gguf_arch_int(g, m->arch, "block_count", &n);
    gguf_arch_int(g, m->arch, "nextn_predict_layers", &next);
    bool has_mtp;
    m->arch_no = gguf_find_arch(m->arch, &has_mtp);
    m->n_layers = next > 0 && next <= n ? n - next : n;
    if (m->arch_no >= 0 && !has_mtp)
        m->n_layers = INT64_MAX;
    return 0;
}

// ---- writing ---------------------------------------------------------------------------------------------

static void put_key(struct writer *w, const char *key)
{
    if (w->b.n > 1 && w->b.p[w->b.n - 1] != '{')
        buf_chr(&w->b, ',');
    buf_fmt(&w->b, "\"%s\":", key);
}

static void put_int(struct writer *w, const char *key, int64_t v)
{
    put_key(w, key);
    buf_fmt(&w->b, "%" PRId64, v);
}

static void put_raw(struct writer *w, const char *key, const char *json)
{
    put_key(w, key);
    buf_str(&w->b, json);
}

static void put_text(struct writer *w, const char *key, const char *s)
{
    put_key(w, key);
    json_write_str(&w->b, s, strlen(s));
}

/* A stored float is written with the fewest digits that give it back, as its author wrote it: 1e-06. */
static void put_kv_num(struct writer *w, const char *key, const struct gguf_kv *kv)
{
    double v;
    char text[40];
    if (!gguf_num(kv, &v))
        return;
    put_key(w, key);
    if (kv->type != GGUF_F32 || !isfinite(v)) {
        json_write_double(&w->b, v);
        return;
    }
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtof(text, NULL) == (float)v)
            break;
    }
    buf_str(&w->b, text);
}

static void copy_int(struct writer *w, const char *key, const char *from)
{
    int64_t v;
    if (gguf_arch_int(w->g, w->arch, from, &v))
        put_int(w, key, v);
}

static void copy_num(struct writer *w, const char *key, const char *from)
{
    put_kv_num(w, key, gguf_arch_find(w->g, w->arch, from));
}

static bool has_tensor(const struct writer *w, const char *key)
{
    return weights_find(w->p->weights, "%s", key) != NULL;
}

/* Heads of keys and values; where the metadata say nothing usable, the rows of a k_proj do. */
static void put_kv_heads(struct writer *w, int64_t heads, int64_t key_length)
{
    int64_t v = 0;
    const struct weights *all = w->p->weights;
    if (!gguf_arch_int(w->g, w->arch, "attention.head_count_kv", &v)) {
        for (int i = 0; i < weights_count(all) && !v && key_length > 0; i++) {
            const struct weight *t = weights_at(all, i);
            const char *end = strstr(t->key, ".self_attn.k_proj.weight");
            if (end && t->ne[0] % key_length == 0)
                v = t->ne[0] / key_length;
        }
        if (gguf_arch_find(w->g, w->arch, "attention.head_count_kv"))
            package_note(w->p,
                         "%s: %s.attention.head_count_kv is unusable; %lld heads follow from the shapes",
                         w->g->name, w->arch, (long long)v);
        else if (!v)
            v = heads;
    }
    if (v)
        put_int(w, "num_key_value_heads", v);
}

/* Sizes of architectures whose layers are all alike. */
static void put_sizes(struct writer *w)
{
    int64_t n, heads = 0, key_length = 0;
    copy_int(w, "intermediate_size", "feed_forward_length");
    if (gguf_arch_int(w->g, w->arch, "attention.head_count", &heads))
        put_int(w, "num_attention_heads", heads);
    if (gguf_arch_int(w->g, w->arch, "attention.key_length", &key_length))
        put_int(w, "head_dim", key_length);
    else if (gguf_arch_int(w->g, w->arch, "embedding_length", &n) && heads > 0 && n % heads == 0)
        key_length = n / heads;
    put_kv_heads(w, heads, key_length);
}

static void put_common(struct writer *w)
{
    const struct weight *embed = weights_find(w->p->weights, "embed_tokens.weight");
    copy_int(w, "hidden_size", "embedding_length");
    copy_int(w, "max_position_embeddings", "context_length");
    copy_num(w, "rms_norm_eps", "attention.layer_norm_rms_epsilon");
    if (embed)
        put_int(w, "vocab_size", embed->ne[0]);
    else
        copy_int(w, "vocab_size", "vocab_size");
    put_text(w, "hidden_act", "silu");
    put_raw(w, "tie_word_embeddings", has_tensor(w, "lm_head.weight") ? "false" : "true");
}

/* Dimensions that rotate, as a share of the head; nothing if all do. */
static bool rotary_share(const struct writer *w, double *share)
{
    int64_t rope, head, hidden, heads;
    if (!gguf_arch_int(w->g, w->arch, "rope.dimension_count", &rope) || rope < 1)
        return false;
    if (!gguf_arch_int(w->g, w->arch, "attention.key_length", &head)) {
        if (!gguf_arch_int(w->g, w->arch, "embedding_length", &hidden) ||
            !gguf_arch_int(w->g, w->arch, "attention.head_count", &heads) || heads < 1)
            return false;
        head = hidden / heads;
    }
    if (head < 1 || rope >= head)
        return false;
    *share = (double)rope / (double)head;
    return true;
}

static void put_rope_scaling(struct writer *w)
{
    struct gguf_str s;
    if (!gguf_string(gguf_arch_find(w->g, w->arch, "rope.scaling.type"), &s) ||
        (s.n == 4 && !memcmp(s.s, "none", 4)))
        return;
    put_key(w, "rope_scaling");
    buf_str(&w->b, "{\"rope_type\":");
    json_write_str(&w->b, s.s, s.n);
    copy_num(w, "factor", "rope.scaling.factor");
    copy_int(w, "original_max_position_embeddings", "rope.scaling.original_context_length");
    buf_chr(&w->b, '}');
}

static void put_llama(struct writer *w)
{
    int64_t experts = 0;
    double share;
    bool is_moe = gguf_arch_int(w->g, w->arch, "expert_count", &experts) && experts > 0;
    put_text(w, "model_type", is_moe ? "mixtral" : "llama");
    copy_int(w, "num_hidden_layers", "block_count");
    if (is_moe)
        put_int(w, "num_local_experts", experts);
    copy_num(w, "rope_theta", "rope.freq_base");
    if (rotary_share(w, &share)) {
        put_key(w, "partial_rotary_factor");
        json_write_double(&w->b, share);
    }
    put_rope_scaling(w);
    copy_int(w, "sliding_window", "attention.sliding_window");
    put_raw(w, "attention_bias", has_tensor(w, "layers.0.self_attn.q_proj.bias") ? "true" : "false");
    put_text(w, "foresay_rope_pairs", "adjacent");
}

static void put_qwen2(struct writer *w)
{
    put_text(w, "model_type", "qwen2");
    copy_int(w, "num_hidden_layers", "block_count");
    copy_num(w, "rope_theta", "rope.freq_base");
    put_rope_scaling(w);
}

static void put_experts(struct writer *w)
{
    copy_int(w, "num_experts", "expert_count");
    copy_int(w, "num_experts_per_tok", "expert_used_count");
    copy_int(w, "moe_intermediate_size", "expert_feed_forward_length");
}

static void put_qwen3(struct writer *w, bool has_experts)
{
    put_text(w, "model_type", has_experts ? "qwen3_moe" : "qwen3");
    copy_int(w, "num_hidden_layers", "block_count");
    copy_num(w, "rope_theta", "rope.freq_base");
    put_rope_scaling(w);
    if (has_experts) {
        put_experts(w);
        put_raw(w, "norm_topk_prob", "true"); // llama.cpp's constant: the file doesn't say it
    }
}

static void put_bailing(struct writer *w)
{
    const struct gguf_kv *norm = gguf_arch_find(w->g, w->arch, "expert_weights_norm");
    int64_t gating = 2;
    double share;
    gguf_arch_int(w->g, w->arch, "expert_gating_func", &gating);
    put_text(w, "model_type", "bailing_moe_v2");
    copy_int(w, "num_hidden_layers", "block_count");
    copy_num(w, "rope_theta", "rope.freq_base");
    put_rope_scaling(w);
    if (rotary_share(w, &share)) {
        put_key(w, "partial_rotary_factor");
        json_write_double(&w->b, share);
    }
    put_experts(w);
    put_text(w, "score_function", gating == 2 ? "sigmoid" : "softmax");
    put_raw(w, "norm_topk_prob", norm && norm->type == GGUF_BOOL && !*(const uint8_t *)norm->p ? "false" : "true");
    copy_int(w, "first_k_dense_replace", "leading_dense_block_count");
    copy_int(w, "n_group", "expert_group_count");
    copy_int(w, "topk_group", "expert_group_used_count");
    copy_int(w, "num_shared_experts", "expert_shared_count");
    copy_int(w, "moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length");
    copy_num(w, "routed_scaling_factor", "expert_weights_scale");
    copy_int(w, "num_nextn_predict_layers", "nextn_predict_layers");
}

static void put_smollm3(struct writer *w)
{
    put_text(w, "model_type", "smollm3");
    copy_int(w, "num_hidden_layers", "block_count");
    copy_num(w, "rope_theta", "rope.freq_base");
    put_rope_scaling(w);
    put_int(w, "no_rope_layer_interval", 4); // llama.cpp's constant: the file doesn't say it
    put_text(w, "foresay_rope_pairs", "adjacent");
}

/* Which layers look through a window: a flag for each, or one full layer in so many. */
static void put_sliding_layers(struct writer *w, int64_t n_layers, int64_t usual)
{
    const struct gguf_kv *kv = gguf_arch_find(w->g, w->arch, "attention.sliding_window_pattern");
    int64_t period, *slides = NULL;
    if (kv && kv->type == GGUF_ARRAY && n_layers > 0 && n_layers <= MAX_LAYERS && kv->n >= (uint64_t)n_layers && kv->n <= MAX_LAYERS) {
        slides = xmalloc((size_t)kv->n * sizeof *slides);
        put_key(w, "layer_types");
        bool ok = gguf_ints(kv, slides);
        for (int64_t i = 0; ok && i < n_layers; i++)
            buf_fmt(&w->b, "%s\"%s\"", i ? "," : "[", slides[i] ? "sliding_attention" : "full_attention");
        buf_str(&w->b, ok ? "]" : "null");
    } else if (gguf_int(kv, &period)) {
        put_int(w, "sliding_window_pattern", period);
    } else if (usual) {
        put_int(w, "sliding_window_pattern", usual);
    }
    free(slides);
}

/* Whatever llama.cpp's "gemma3" has as a constant stands here: the file doesn't say it. */
static void put_gemma3(struct writer *w)
{
    int64_t layers = 0, heads = 0, dim = 0, hidden = 0;
    put_text(w, "model_type", "gemma3_text");
    if (gguf_arch_int(w->g, w->arch, "block_count", &layers))
        put_int(w, "num_hidden_layers", layers);
    copy_num(w, "rope_theta", "rope.freq_base");
    if (gguf_arch_find(w->g, w->arch, "rope.freq_base_swa"))
        copy_num(w, "rope_local_base_freq", "rope.freq_base_swa");
    else
        put_int(w, "rope_local_base_freq", 10000);
    put_rope_scaling(w);
    copy_int(w, "sliding_window", "attention.sliding_window");
    put_sliding_layers(w, layers, 6);
    copy_num(w, "final_logit_softcapping", "final_logit_softcapping");
    put_text(w, "hidden_activation", "gelu_pytorch_tanh");
    bool is_27b = layers == 62 && gguf_arch_int(w->g, w->arch, "attention.head_count", &heads) && heads > 0 &&
                  gguf_arch_int(w->g, w->arch, "embedding_length", &hidden);
    if (is_27b || gguf_arch_int(w->g, w->arch, "attention.key_length", &dim))
        put_int(w, "query_pre_attn_scalar", is_27b ? hidden / heads : dim);
    put_text(w, "foresay_norms", "effective");
}

/* Value of a layer, from an array or a number for all; 0 if there is none. */
static int64_t layer_int(const struct writer *w, const char *key, int64_t layer)
{
    const struct gguf_kv *kv = gguf_arch_find(w->g, w->arch, key);
    int64_t v = 0;
    if (!kv || kv->type != GGUF_ARRAY || kv->n > MAX_LAYERS || (uint64_t)layer >= kv->n)
        return gguf_int(kv, &v) ? v : 0;
    int64_t *all = xmalloc((size_t)kv->n * sizeof *all);
    v = gguf_ints(kv, all) ? all[layer] : 0;
    free(all);
    return v;
}

static void put_layer_int(struct writer *w, const char *key, const char *from, int64_t layer)
{
    int64_t v = layer_int(w, from, layer);
    if (v)
        put_int(w, key, v);
}

/* The share of rotary pairs that turn: rope_freqs holds 1 for them and something huge for the others. */
static double turning_share(const struct writer *w, int64_t pairs)
{
    const float *f = pairs > 0 && has_tensor(w, "rope_freqs.weight") ? weights_floats(w->p->weights, NULL, pairs, "rope_freqs.weight") : NULL;
    int64_t n = 0;
    while (f && n < pairs && f[n] < 1e9f)
        n++;
    return f ? (double)n / (double)pairs : 1;
}

static void put_gemma4(struct writer *w)
{
    int64_t layers = 0, full = 0, sliding = 0, shared = 0, dim = 0, n;
    put_text(w, "model_type", "gemma4_text");
    if (gguf_arch_int(w->g, w->arch, "block_count", &layers) && layers > 0 && layers <= MAX_LAYERS)
        put_int(w, "num_hidden_layers", layers);
    else
        layers = 1;
    put_sliding_layers(w, layers, 0);
    while (full < layers - 1 && layer_int(w, "attention.sliding_window_pattern", full))
        full++;
    while (sliding < layers - 1 && !layer_int(w, "attention.sliding_window_pattern", sliding))
        sliding++;
    put_layer_int(w, "intermediate_size", "feed_forward_length", 0);
    put_raw(w, "use_double_wide_mlp", layer_int(w, "feed_forward_length", layers - 1) > layer_int(w, "feed_forward_length", 0) ? "true" : "false");
    copy_int(w, "num_attention_heads", "attention.head_count");
    put_layer_int(w, "num_key_value_heads", "attention.head_count_kv", sliding);
    put_layer_int(w, "num_global_key_value_heads", "attention.head_count_kv", full);
    put_raw(w, "attention_k_eq_v", weights_find(w->p->weights, "layers.%d.self_attn.v_proj.weight", (int)full) ? "false" : "true");
    copy_int(w, "head_dim", "attention.key_length_swa");
    if (gguf_arch_int(w->g, w->arch, "attention.key_length", &dim))
        put_int(w, "global_head_dim", dim);
    gguf_arch_int(w->g, w->arch, "attention.shared_kv_layers", &shared);
    put_int(w, "num_kv_shared_layers", shared);
    copy_int(w, "sliding_window", "attention.sliding_window");
    copy_int(w, "hidden_size_per_layer_input", "embedding_length_per_layer_input");
    const struct weight *embed = weights_find(w->p->weights, "embed_tokens_per_layer.weight");
    if (embed)
        put_int(w, "vocab_size_per_layer_input", embed->ne[0]);
    copy_num(w, "final_logit_softcapping", "final_logit_softcapping");
    put_raw(w, "rope_parameters", "{\"full_attention\":{\"rope_type\":\"proportional\"");
    copy_num(w, "rope_theta", "rope.freq_base");
    put_key(w, "partial_rotary_factor");
    json_write_double(&w->b, turning_share(w, dim / 2));
    buf_str(&w->b, "},\"sliding_attention\":{\"rope_type\":\"default\"");
    copy_num(w, "rope_theta", "rope.freq_base_swa");
    buf_str(&w->b, "}}");
    bool is_moe = gguf_arch_int(w->g, w->arch, "expert_count", &n) && n > 0;
    put_raw(w, "enable_moe_block", is_moe ? "true" : "false");
    if (is_moe)
        put_int(w, "num_experts", n);
    copy_int(w, "top_k_experts", "expert_used_count");
    copy_int(w, "moe_intermediate_size", "expert_feed_forward_length");
}

static void put_layer_types(struct writer *w, int64_t n_layers)
{
    const struct gguf_kv *kv = gguf_arch_find(w->g, w->arch, "attention.recurrent_layers");
    int64_t interval = 4, *recurrent = NULL;
    if (n_layers < 1 || n_layers > MAX_LAYERS)
        return; // refused by the model layer, which knows the limit
    if (kv && kv->type == GGUF_ARRAY && kv->n >= (uint64_t)n_layers && kv->n <= MAX_LAYERS) {
        recurrent = xmalloc((size_t)kv->n * sizeof *recurrent);
        if (!gguf_ints(kv, recurrent)) {
            free(recurrent);
            recurrent = NULL;
        }
    }
    if (kv && !recurrent)
        package_note(w->p, "%s: %s.attention.recurrent_layers is unusable and ignored", w->g->name, w->arch);
    gguf_arch_int(w->g, w->arch, "full_attention_interval", &interval);
    if (recurrent || interval > 0) {
        put_key(w, "layer_types");
        for (int64_t i = 0; i < n_layers; i++) {
            bool is_full = recurrent ? !recurrent[i] : (i + 1) % interval == 0;
            buf_fmt(&w->b, "%s\"%s\"", i ? "," : "[", is_full ? "full_attention" : "linear_attention");
        }
        buf_chr(&w->b, ']');
    }
    free(recurrent);
}

static void put_qwen35_rope(struct writer *w)
{
    const struct gguf_kv *kv = gguf_arch_find(w->g, w->arch, "rope.dimension_sections");
    int64_t s[4] = {0};
    double share = 1;
    rotary_share(w, &share);
    put_raw(w, "rope_parameters", "{\"rope_type\":\"default\"");
    copy_num(w, "rope_theta", "rope.freq_base");
    put_key(w, "partial_rotary_factor");
    json_write_double(&w->b, share);
    if (kv && kv->type == GGUF_ARRAY && kv->n >= 3 && kv->n <= 4 && gguf_ints(kv, s)) {
        put_raw(w, "mrope_interleaved", "true");
        put_key(w, "mrope_section");
        buf_fmt(&w->b, "[%" PRId64 ",%" PRId64 ",%" PRId64 "]", s[0], s[1], s[2]);
    }
    buf_chr(&w->b, '}');
}

static void put_qwen35(struct writer *w, const struct gguf_names *m, bool has_experts)
{
    int64_t blocks, next = 0, inner = 0, heads = 0;
    put_text(w, "model_type", has_experts ? "qwen3_5_moe_text" : "qwen3_5_text");
    if (has_experts) {
        put_experts(w);
        copy_int(w, "shared_expert_intermediate_size", "expert_shared_feed_forward_length");
    }
    if (gguf_arch_int(w->g, w->arch, "block_count", &blocks)) {
        put_int(w, "num_hidden_layers", m->n_layers);
        next = blocks - m->n_layers;
    }
    put_int(w, "mtp_num_hidden_layers", next);
    put_raw(w, "mtp_use_dedicated_embeddings", has_tensor(w, "mtp.embed_tokens.weight") ? "true" : "false");
    if (has_tensor(w, "mtp.fc.weight") && !has_tensor(w, "mtp.norm.weight"))
        put_text(w, "foresay_mtp_norm", "output_norm");
    put_layer_types(w, m->n_layers);
    put_raw(w, "attn_output_gate", "true");
    put_raw(w, "attention_bias", "false");
    copy_int(w, "linear_conv_kernel_dim", "ssm.conv_kernel");
    copy_int(w, "linear_key_head_dim", "ssm.state_size");
    copy_int(w, "linear_num_key_heads", "ssm.group_count");
    copy_int(w, "linear_num_value_heads", "ssm.time_step_rank");
    if (gguf_arch_int(w->g, w->arch, "ssm.inner_size", &inner) &&
        gguf_arch_int(w->g, w->arch, "ssm.time_step_rank", &heads) && heads > 0 && inner % heads == 0)
        put_int(w, "linear_value_head_dim", inner / heads);
    put_qwen35_rope(w);
    put_text(w, "foresay_v_heads", "tiled");
    put_text(w, "foresay_norms", "effective");
}

static int parse(struct writer *w, const struct json **out, struct err *e)
{
    struct json *v;
    if (w->b.is_full)
        return err_set(e, ERR_LIMIT, "%s: metadata make a configuration of more than %d bytes", w->g->name,
                       MAX_CONFIG);
    int rc = package_json(w->p, w->b.p, w->b.n, w->g->name, &v, e);
    *out = rc ? NULL : v;
    return rc;
}

/* Recommended settings (general.sampling.*), under the names of generation_config.json. */
static void put_sampling(struct writer *w)
{
    static const struct {
        const char *key, *name;
    } keys[] = {{"temp", "temperature"}, {"top_k", "top_k"}, {"top_p", "top_p"}, {"min_p", "min_p"},
                {"penalty_repeat", "repetition_penalty"}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char key[64];
        double v;
        snprintf(key, sizeof key, "general.sampling.%s", keys[i].key);
        if (!gguf_num(gguf_find(w->g, key), &v) || !isfinite(v))
            continue;
        put_key(w, keys[i].name);
        buf_fmt(&w->b, "%.7g", v); // stored as float: 0.95 is meant, not 0.949999988
    }
}

/* Ids that end a text (the file's end-of-text and end-of-turn tokens, each once) and recommended settings. */
static int put_generation(struct writer *w, int64_t bos, struct err *e)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"};
    int64_t ids[2];
    int n = 0;
    for (int i = 0; i < 2; i++)
        if (gguf_int(gguf_find(w->g, keys[i]), &ids[n]) && ids[n] >= 0 && (!n || ids[0] != ids[1]))
            n++;
    buf_clear(&w->b);
    buf_chr(&w->b, '{');
    if (n)
        put_key(w, "eos_token_id");
    for (int i = 0; i < n; i++)
        buf_fmt(&w->b, "%s%" PRId64 "%s", i ? "," : "[", ids[i], i + 1 == n ? "]" : "");
    if (n && bos >= 0)
        put_int(w, "bos_token_id", bos);
    put_sampling(w);
    if (w->b.n == 1)
        return 0;
    buf_chr(&w->b, '}');
    return parse(w, &w->p->generation, e);
}

int gguf_config(struct package *p, const struct gguf *g, struct err *e)
{
    struct gguf_names m;
    int rc = gguf_names_init(&m, g, e);
    if (rc)
        return rc;
    struct writer w = {.p = p, .g = g, .arch = m.arch};
    int64_t id, bos = -1;
    buf_init(&w.b, MAX_CONFIG);
    buf_chr(&w.b, '{');
    if (!strcmp(m.arch, "llama")) {
        put_llama(&w);
    } else if (!strcmp(m.arch, "qwen2")) {
        put_qwen2(&w);
    } else if (!strcmp(m.arch, "smollm3")) {
        put_smollm3(&w);
    } else if (!strcmp(m.arch, "gemma3")) {
        put_gemma3(&w);
    } else if (!strcmp(m.arch, "gemma4")) {
        put_gemma4(&w);
    } else if (!strcmp(m.arch, "qwen3") || !strcmp(m.arch, "qwen3moe")) {
        put_qwen3(&w, m.arch[5] == 'm');
    } else if (!strcmp(m.arch, "bailingmoe2")) {
        put_bailing(&w);
    } else if (!strcmp(m.arch, "qwen35") || !strcmp(m.arch, "qwen35moe")) {
        put_qwen35(&w, &m, m.arch[6] == 'm');
    } else {
        char name[48];
        snprintf(name, sizeof name, "gguf:%s", m.arch);
        put_text(&w, "model_type", name);
        copy_int(&w, "num_hidden_layers", "block_count");
    }
    if (strcmp(m.arch, "gemma4"))
        put_sizes(&w);
    put_common(&w);
    if (gguf_int(gguf_find(g, "tokenizer.ggml.eos_token_id"), &id) && id >= 0)
        put_int(&w, "eos_token_id", id);
    if (gguf_int(gguf_find(g, "tokenizer.ggml.bos_token_id"), &bos) && bos >= 0)
        put_int(&w, "bos_token_id", bos);
    buf_chr(&w.b, '}');
    rc = parse(&w, &p->config, e);
    if (!rc)
        rc = put_generation(&w, bos, e);
    buf_free(&w.b);
    return rc;
}
