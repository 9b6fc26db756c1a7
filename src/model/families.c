/* Which architectures there are, and what the known families lack that can't be run. */
#include <stdio.h>
#include <string.h>

#include "model/model.h"

static const struct arch *const archs[] = {&arch_qwen35, &arch_qwen35_moe, &arch_qwen3, &arch_qwen3_moe, &arch_bailing, &arch_llama, &arch_qwen2, &arch_smollm3, &arch_gemma3, &arch_gemma4};

/* Values of model_type and names of GGUF architectures, separated by spaces, a star for any ending. The first
 * entry that fits counts. */
static const struct {
    const char *types, *lacks;
} not_run[] = {
    {"gemma4_assistant gemma4-assistant qwen3_5_mtp dflash* eagle*", "it is a draft head, not a model of its own"},
    {"prism_hadamard*", "the rotated basis of its weights is not implemented"},
    {"qwen4* qwen4exp*", "hyper-connections and n-gram embeddings are not implemented"},
    {"qwen3_next qwen3next", "its grouped linear-attention projections beside experts are not implemented"},
    {"qwen2_vl* qwen2_5_vl* qwen3_vl* qwen2vl* qwen3vl*", "its image positions (rotation by three axes) are not implemented"},
    {"qwen2_moe qwen2moe", "shared experts with Qwen2's routing are not implemented"},
    {"deepseek_v3* deepseek_v2* deepseek2 deepseek_v4* kimi* longcat* glm_moe_dsa", "multi-head latent attention is not implemented"},
    {"gpt_oss gpt-oss", "attention sinks and MXFP4 experts are not implemented"},
    {"mixtral olmoe phimoe deepseek dbrx grok* minimax* ernie4_5_moe glm4_moe* llama4*", "its experts are not implemented"},
    {"gemma3n*", "AltUp, LAuReL and sparse activations are not implemented"},
    {"gemma2", "soft caps on attention scores are not implemented"},
    {"gemma", "the first Gemma's norms are not implemented; Gemma 3 and 4 are"},
    {"phi3* phi4*", "fused projections and its long rotary scaling are not implemented"},
    {"granite* minicpm*", "scaled embeddings, residuals and logits are not implemented"},
    {"cohere* command-r", "parallel blocks and LayerNorm are not implemented"},
    {"olmo* glm4 chatglm*", "its order of norms is not implemented"},
    {"mllama", "cross-attention to images is not implemented"},
    {"mamba* jamba falcon_h1 falcon-h1 nemotron_h* lfm2* zamba* bamba rwkv*", "its state-space or convolution layers are not implemented"},
    {"gpt2 gpt_neox gptneox gptj opt bloom falcon mpt phi phi2 stablelm starcoder*", "LayerNorm with means is not implemented"},
    {"t5* bart* whisper* bert* roberta* nomic* modernbert*", "encoders are not implemented"},
};

const struct arch *arch_find(const char *type)
{
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        for (int k = 0; k < 4 && archs[i]->types[k]; k++)
            if (!strcmp(type, archs[i]->types[k]))
                return archs[i];
    return NULL;
}

static bool fits(const char *types, const char *type)
{
    for (const char *s = types; *s; s += strspn(s, " ")) {
        size_t n = strcspn(s, " ");
        if (s[n - 1] == '*' ? !strncmp(s, type, n - 1) : strlen(type) == n && !strncmp(s, type, n))
            return true;
        s += n;
    }
    return false;
}

int arch_refuse(const char *file, const char *type, struct err *e)
{
    char runs[400];
    size_t n = 0;
    const char *lacks = "nothing is known of this family here", *bare = strncmp(type, "gguf:", 5) ? type : type + 5;
    for (size_t i = 0; i < sizeof archs / sizeof *archs && n < sizeof runs; i++)
        n += (size_t)snprintf(runs + n, sizeof runs - n, "%s%s", i ? ", " : "", archs[i]->name);
    for (size_t i = 0; i < sizeof not_run / sizeof *not_run; i++)
        if (fits(not_run[i].types, bare)) {
            lacks = not_run[i].lacks;
            break;
        }
    return err_set(e, ERR_UNSUPPORTED, "%s: unsupported architecture \"%.80s\": %s; supported are %s", file, bare, lacks, runs);
}
