/* GGUF's tensor names as canonical keys, and the opening of a GGUF file (with its parts, if it is split) as a
 * package. Names of architectures that aren't known here stay as they are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/package.h"

struct pair {
    const char *gguf, *key;
};

static const struct pair global_names[] = {
    {"token_embd.weight", "embed_tokens.weight"},
    {"output_norm.weight", "norm.weight"},
    {"output.weight", "lm_head.weight"},
    {"rope_freqs.weight", "rope_freqs.weight"},
    {"per_layer_token_embd.weight", "embed_tokens_per_layer.weight"},
    {"per_layer_model_proj.weight", "per_layer_model_projection.weight"},
    {"per_layer_proj_norm.weight", "per_layer_projection_norm.weight"},
};

static const struct pair block_names[] = {
    {"attn_norm.weight", "input_layernorm.weight"},    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},      {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"}, {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.bias", "self_attn.k_proj.bias"},          {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_output.bias", "self_attn.o_proj.bias"},     {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"}, {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},           {"ffn_down.weight", "mlp.down_proj.weight"},
};

static const struct pair plain_names[] = {
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
};

static const struct pair gemma_names[] = {
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_norm.weight", "pre_feedforward_layernorm.weight"},
    {"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
    {"layer_output_scale.weight", "layer_scalar"}, // from here on only Gemma 4
    {"inp_gate.weight", "per_layer_input_gate.weight"},
    {"proj.weight", "per_layer_projection.weight"},
    {"post_norm.weight", "post_per_layer_input_norm.weight"},
    {"pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"},
    {"post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"},
    {"post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"},
    {"ffn_gate_inp.weight", "router.proj.weight"},
    {"ffn_gate_inp.scale", "router.scale"},
    {"ffn_gate_up_exps.weight", "experts.gate_up_proj"},
    {"ffn_down_exps.weight", "experts.down_proj"},
    {"ffn_down_exps.scale", "router.per_expert_scale"},
};

#define QWEN35                                                                                                         \
    {"post_attention_norm.weight", "post_attention_layernorm.weight"}, {"attn_qkv.weight", "linear_attn.in_proj_qkv.weight"}, \
        {"attn_gate.weight", "linear_attn.in_proj_z.weight"}, {"ssm_beta.weight", "linear_attn.in_proj_b.weight"},       \
        {"ssm_alpha.weight", "linear_attn.in_proj_a.weight"}, {"ssm_conv1d.weight", "linear_attn.conv1d.weight"},        \
        {"ssm_dt.bias", "linear_attn.dt_bias"}, {"ssm_a", "linear_attn.A"}, {"ssm_norm.weight", "linear_attn.norm.weight"}, \
        {"ssm_out.weight", "linear_attn.out_proj.weight"}

static const struct pair qwen35_names[] = {QWEN35};

#define EXPERTS                                                                                                        \
    {"ffn_gate_inp.weight", "mlp.gate.weight"}, {"ffn_gate_exps.weight", "mlp.switch_mlp.gate_proj.weight"},            \
        {"ffn_up_exps.weight", "mlp.switch_mlp.up_proj.weight"}, {"ffn_down_exps.weight", "mlp.switch_mlp.down_proj.weight"}
#define SHARED_EXPERT(name)                                                                                            \
    {"ffn_gate_shexp.weight", "mlp." name ".gate_proj.weight"}, {"ffn_up_shexp.weight", "mlp." name ".up_proj.weight"},  \
        {"ffn_down_shexp.weight", "mlp." name ".down_proj.weight"}

static const struct pair qwen3moe_names[] = {{"ffn_norm.weight", "post_attention_layernorm.weight"}, EXPERTS};

static const struct pair qwen35moe_names[] = {
    QWEN35, EXPERTS, SHARED_EXPERT("shared_expert"), {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"},
};

/* The MTP block is one more layer. */
static const struct pair bailing_names[] = {
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"attn_qkv.weight", "attention.query_key_value.weight"},
    {"attn_output.weight", "attention.dense.weight"},
    {"attn_q_norm.weight", "attention.query_layernorm.weight"},
    {"attn_k_norm.weight", "attention.key_layernorm.weight"},
    {"exp_probs_b.bias", "mlp.gate.expert_bias"},
    {"nextn.eh_proj.weight", "eh_proj.weight"},
    {"nextn.enorm.weight", "enorm.weight"},
    {"nextn.hnorm.weight", "hnorm.weight"},
    {"layer_output_norm.weight", "final_layernorm.weight"},
    EXPERTS,
    SHARED_EXPERT("shared_experts"),
};

static const struct pair nextn_names[] = {
    // of the first MTP block
    {"nextn.eh_proj.weight", "mtp.fc.weight"},
    {"nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight"},
    {"nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight"},
    {"nextn.shared_head_norm.weight", "mtp.norm.weight"},
    {"nextn.embed_tokens.weight", "mtp.embed_tokens.weight"},
    {"nextn.shared_head_head.weight", "mtp.lm_head.weight"},
};

/* Architectures whose names are known, with what they have beyond block_names. */
static const struct {
    const char *arch;
    const struct pair *names;
    size_t n;
    bool has_mtp; // blocks behind the trunk's are MTP blocks
} archs[] = {
#define NAMES(table) table, sizeof table / sizeof *table
    {"llama", NAMES(plain_names), false},
    {"qwen2", NAMES(plain_names), false},
    {"smollm3", NAMES(plain_names), false},
    {"gemma3", NAMES(gemma_names), false},
    {"gemma4", NAMES(gemma_names), false},
    {"qwen3", NAMES(plain_names), false},
    {"qwen3moe", NAMES(qwen3moe_names), false},
    {"qwen35", NAMES(qwen35_names), true},
    {"qwen35moe", NAMES(qwen35moe_names), true},
    {"bailingmoe2", NAMES(bailing_names), false},
#undef NAMES
};

int gguf_find_arch(const char *name, bool *has_mtp)
{
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (!strcmp(name, archs[i].arch)) {
            *has_mtp = archs[i].has_mtp;
            return (int)i;
        }
    *has_mtp = false;
    return -1;
}

#define LOOKUP(table, name) lookup(table, sizeof table / sizeof *table, name)
static const char *lookup(const struct pair *p, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(p[i].gguf, name))
            return p[i].key;
    return NULL;
}

/* "blk.N.rest": N and rest; false for other names. */
static bool split_block(const char *name, int64_t *block, const char **rest)
{
    if (strncmp(name, "blk.", 4))
        return false;
    const char *s = name + 4;
    int64_t v = 0;
    while (*s >= '0' && *s <= '9' && v < 1000000)
        v = v * 10 + (*s++ - '0');
    if (s == name + 4 || *s != '.')
        return false;
    *block = v;
    *rest = s + 1;
    return true;
}

const char *gguf_key(const struct gguf_names *m, const char *name, char out[GGUF_MAX_KEY])
{
    int64_t block;
    const char *rest, *key;
    if (m->arch_no < 0)
        return name;
    if (!split_block(name, &block, &rest)) {
        key = LOOKUP(global_names, name);
        return key ? key : name;
    }
    bool is_head = block >= m->n_layers;
    if (is_head && block == m->n_layers && (key = LOOKUP(nextn_names, rest)))
        return key;
    key = lookup(archs[m->arch_no].names, archs[m->arch_no].n, rest);
    if (!key)
        key = LOOKUP(block_names, rest);
    if (!key)
        return name;
    int n = snprintf(out, GGUF_MAX_KEY, "%slayers.%lld.%s", is_head ? "mtp." : "",
                     (long long)(is_head ? block - m->n_layers : block), key);
    return n > 0 && n < GGUF_MAX_KEY ? out : name;
}

static enum wfmt weight_fmt(int type)
{
    static const struct {
        int type;
        enum wfmt fmt;
    } known[] = {{0, WF_F32},   {1, WF_F16},   {2, WF_Q4_0},   {3, WF_Q4_1},    {6, WF_Q5_0},    {7, WF_Q5_1},    {8, WF_Q8_0},
                 {10, WF_Q2_K}, {11, WF_Q3_K}, {12, WF_Q4_K},  {13, WF_Q5_K},   {14, WF_Q6_K},   {20, WF_IQ4_NL}, {23, WF_IQ4_XS},
                 {30, WF_BF16}, {34, WF_TQ1_0}, {35, WF_TQ2_0}, {39, WF_MXFP4}, {40, WF_NVFP4}, {41, WF_Q1_0},   {42, WF_Q2_0}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].type == type)
            return known[i].fmt;
    return WF_OTHER;
}

static int add_tensors(struct weights *w, const struct gguf *g, const struct gguf_names *m, int file_no,
                       struct err *e)
{
    char key[GGUF_MAX_KEY];
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *s = &g->tensor[i];
        struct weight t = {.name = s->name, .file = g->name, .fmt = weight_fmt(s->type), .ndim = s->n_dims};
        t.key = gguf_key(m, s->name, key);
        t.type = gguf_type_info(s->type)->name;
        t.q = g->map.p + s->offset;
        t.bytes = (size_t)s->n_bytes;
        for (int d = 0; d < 4; d++)
            t.ne[d] = d < t.ndim ? s->ne[t.ndim - 1 - d] : 1;
        weight_layout(&t);
        int rc = weights_add(w, &t, file_no, e);
        if (rc == 1)
            return err_set(e, ERR_FORMAT, "%s: tensor %.120s is listed twice", g->name, s->name);
        if (rc)
            return rc;
    }
    return 0;
}

/* Parts of a split model are named NAME-00001-of-00003.gguf; the first holds the metadata. */
static int open_parts(struct weights *w, const char *path, struct err *e)
{
    struct gguf *first;
    int rc = gguf_open(&first, path, e);
    if (rc)
        return rc;
    int64_t n = 1, no = 0;
    gguf_int(gguf_find(first, "split.count"), &n);
    gguf_int(gguf_find(first, "split.no"), &no);
    if (n < 1 || n > 999 || no < 0 || no >= n) {
        rc = err_set(e, ERR_FORMAT, "%s: split.count out of range: part %lld of %lld", first->name,
                     (long long)no, (long long)n);
        gguf_close(first);
        return rc;
    }
    w->gguf = xcalloc((size_t)n, sizeof(struct gguf *));
    w->gguf[w->n_gguf++] = first;
    if (n == 1)
        return 0;
    char tail[32];
    size_t len = strlen(path);
    snprintf(tail, sizeof tail, "-%05d-of-%05d.gguf", (int)no + 1, (int)n);
    if (no || len <= strlen(tail) || strcmp(path + len - strlen(tail), tail))
        return err_set(
            e, ERR_ARG,
            "%s: part %lld of a model in %lld files: name the first, which ends in -00001-of-%05d.gguf",
            first->name, (long long)no + 1, (long long)n, (int)n);
    char *part = xstrdup(path);
    for (int i = 1; i < n && !rc; i++) {
        snprintf(part + len - strlen(tail), strlen(tail) + 1, "-%05d-of-%05d.gguf", i + 1, (int)n);
        if (!file_exists(part))
            rc = err_set(e, ERR_IO, "missing file %.200s: part %d of %lld of %s", path_base(part), i + 1,
                         (long long)n, first->name);
        else if (!(rc = gguf_open(&w->gguf[w->n_gguf], part, e)))
            w->n_gguf++;
    }
    free(part);
    return rc;
}

int gguf_package_fill(struct package *p, struct err *e)
{
    struct gguf_names m;
    struct weights *w = p->weights;
    p->kind = PACKAGE_GGUF;
    p->config_file = w->label;
    int rc = gguf_names_init(&m, w->gguf[0], e);
    for (int i = 0; i < w->n_gguf && !rc; i++)
        rc = add_tensors(w, w->gguf[i], &m, i, e);
    if (rc)
        return rc;
    weights_seal(w);
    return gguf_config(p, w->gguf[0], e);
}

int gguf_package_open(struct package *p, const char *path, struct err *e)
{
    p->weights = weights_new(path_base(path));
    int rc = open_parts(p->weights, path, e);
    return rc ? rc : gguf_package_fill(p, e);
}
