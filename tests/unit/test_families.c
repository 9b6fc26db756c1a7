/* Families and their configurations: other spellings mean the same, what can't be run is refused in so many words.
 * Packages are made of the golden ones, with parts of config.json exchanged. Runs from the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "infer/engine.h"
#include "infer/instance.h"

enum { TOKENS = 90 };

static char folder[] = "/tmp/foresay-families-XXXXXX", config[64], weights[64];

/* Makes of the folder a golden package with pieces of its configuration replaced: old, new, old, new, ..., NULL. */
static void make_package_v(const char *golden, va_list edits)
{
    char *text, *from, cwd[2048], path[4096];
    size_t n;
    struct err e = {0};
    unlink(config);
    unlink(weights);
    assert_non_null(getcwd(cwd, sizeof cwd));
    snprintf(path, sizeof path, "%s/tests/golden/models/%s/model.safetensors", cwd, golden);
    assert_int_equal(symlink(path, weights), 0);
    snprintf(path, sizeof path, "tests/golden/models/%s/config.json", golden);
    if (file_read(path, 1 << 20, &text, &n, &e))
        fail_msg("%s", e.msg);
    for (const char *old; (old = va_arg(edits, const char *));) {
        struct buf b;
        buf_init(&b, 1 << 20);
        if (!(from = strstr(text, old)))
            fail_msg("%s holds no %s", path, old);
        buf_add(&b, text, (size_t)(from - text));
        buf_str(&b, va_arg(edits, const char *));
        buf_str(&b, from + strlen(old));
        free(text);
        text = xstrdup(buf_cstr(&b));
        buf_free(&b);
    }
    assert_int_equal(file_write(config, text, strlen(text), &e), 0);
    free(text);
}

static void make_package(const char *golden, ...)
{
    va_list edits;
    va_start(edits, golden);
    make_package_v(golden, edits);
    va_end(edits);
}

/* Logits of some text; the caller frees. notes: what the package says of itself, appended. */
static float *logits_of(const char *path, size_t *n, struct buf *notes)
{
    struct instance in;
    struct engine *g;
    struct err e = {0};
    struct row rows[TOKENS];
    struct out out;
    struct instance_options io = {.threads = 1, .without_tokenizer = true};
    struct engine_options eo = {.n_ctx = 256, .n_seqs = 1};
    if (instance_open(&in, path, &io, &e) || engine_open(&g, in.m, NULL, &eo, &e))
        fail_msg("%s: %s", path, e.msg);
    int seq = seq_new(g);
    for (int i = 0; i < TOKENS; i++)
        rows[i] = (struct row){seq, i * 37 % 250, (uint8_t)(ROW_FINAL | (i % 2 ? WANT_LOGITS : 0))};
    if (engine_step(g, rows, TOKENS, &out, &e))
        fail_msg("%s", e.msg);
    *n = (size_t)out.n_logits * (size_t)in.m->n_vocab * sizeof(float);
    float *copy = xmalloc(*n);
    memcpy(copy, out.logits, *n);
    for (int i = 0; notes && i < in.m->pkg->n_notes; i++)
        buf_str(notes, in.m->pkg->notes[i]);
    engine_close(g);
    instance_close(&in);
    return copy;
}

/* The edited package computes what the golden one does, or something else. */
static void compare(const char *golden, bool same, const char *note, ...)
{
    char original[128];
    size_t n, m;
    struct buf notes;
    va_list ap;
    buf_init(&notes, 1 << 16);
    va_start(ap, note);
    make_package_v(golden, ap);
    va_end(ap);
    snprintf(original, sizeof original, "tests/golden/models/%s", golden);
    float *x = logits_of(original, &n, NULL), *y = logits_of(folder, &m, &notes);
    assert_int_equal(n, m);
    if (same != !memcmp(x, y, n))
        fail_msg("%s: the logits are %s", golden, same ? "different" : "the same");
    if (!strstr(buf_cstr(&notes), note))
        fail_msg("%s: the notes lack \"%s\": %s", golden, note, buf_cstr(&notes));
    free(x), free(y);
    buf_free(&notes);
}

static void expect_refusal(const char *sentence)
{
    struct instance in;
    struct err e = {0};
    struct instance_options io = {.threads = 1, .without_tokenizer = true};
    assert_true(instance_open(&in, folder, &io, &e) < 0);
    if (!strstr(e.msg, sentence))
        fail_msg("expected \"%s\", found \"%s\"", sentence, e.msg);
}

static void refuse(const char *golden, const char *sentence, ...)
{
    va_list ap;
    va_start(ap, sentence);
    make_package_v(golden, ap);
    va_end(ap);
    expect_refusal(sentence);
}

/* The package with one piece of its tensors' header replaced by another of that length. */
static void damage_weights(const char *golden, const char *old, const char *new)
{
    char *p;
    size_t n, at = 8, len = strlen(old);
    struct err e = {0};
    make_package(golden, NULL);
    assert_int_equal(file_read(weights, 1 << 24, &p, &n, &e), 0);
    while (at + len < n && memcmp(p + at, old, len))
        at++;
    assert_true(at + len < n && strlen(new) == len);
    memcpy(p + at, new, len);
    unlink(weights); // the link, not what it shows
    assert_int_equal(file_write(weights, p, n, &e), 0);
    free(p);
}

static void refuse_weights(const char *golden, const char *sentence, const char *old, const char *new)
{
    damage_weights(golden, old, new);
    expect_refusal(sentence);
}

#define TYPES "\"layer_types\": [\"sliding_attention\", \"sliding_attention\", \"full_attention\", \"sliding_attention\"], "

static void test_spellings(void **state)
{
    (void)state;
    static const char theta[] = "\"rope_theta\": 10000.0,", scaling[] = "\"rope_scaling\": {\n  \"rope_type\": \"linear\",\n  \"factor\": 8.0\n },",
                      local[] = "\"rope_local_base_freq\": 1000,", pattern[] = "\"sliding_window_pattern\": 3,";
    compare("gemma3-mlx-4bit", true, "", pattern, TYPES "\"sliding_window_pattern\": 6,", NULL);
    compare("gemma3-mlx-4bit", false, "", pattern, "\"sliding_window_pattern\": 2,", NULL);
    compare("gemma3-mlx-4bit", true, "", theta, "", scaling, "", local,
            "\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"linear\", \"factor\": 8.0, \"rope_theta\": 10000.0},"
            " \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 1000.0}},", NULL);
    compare("gemma3-mlx-4bit", false, "", local, "\"rope_local_base_freq\": 1001,", NULL);
    compare("gemma3-mlx-4bit", true, "", "{\n \"model_type\"", "{\"model_type\": \"gemma3\", \"text_config\": {\"model_type\"", "\"quantization\"",
            "\"hidden_act\": \"gelu\"}, \"quantization\"", NULL);
    compare("mistral", true, "", "\"rope_theta\": 10000.0", "\"rope_parameters\": {\"rope_theta\": 10000.0, \"rope_type\": \"default\"}", NULL);
    compare("mistral", false, "", "\"sliding_window\": 20", "\"sliding_window\": null", NULL);
    compare("mistral", false, "", "\"rope_theta\"", "\"partial_rotary_factor\": 0.5, \"rope_theta\"", NULL);
    compare("qwen2", false, "", "\"use_sliding_window\": true", "\"use_sliding_window\": false", NULL);
    compare("qwen2", true, "", "\"max_window_layers\": 1", "\"layer_types\": [\"full_attention\", \"sliding_attention\", \"sliding_attention\"]", NULL);
    compare("smollm3", true, "", "\"no_rope_layers\": [\n  1,\n  0,\n  1,\n  0\n ]", "\"no_rope_layer_interval\": 2", NULL);
}

/* What a family's packages leave out is added, and said. */
static void test_defaults(void **state)
{
    (void)state;
    compare("gemma3-mlx-4bit", true, "leaves out rms_norm_eps, hidden_activation: the family's", "\"rms_norm_eps\": 1e-06,", "",
            "\"hidden_activation\": \"gelu_pytorch_tanh\",", "\"hidden_activation\": null,", "\"vocab_size\": 272,", "", NULL);
    refuse("mistral", "missing rms_norm_eps", "\"rms_norm_eps\": 1e-06,", "", NULL);
}

static void test_refusals(void **state)
{
    (void)state;
    refuse("mistral", "unsupported hidden_act \"relu\"", "\"rope_theta\"", "\"hidden_act\": \"relu\", \"rope_theta\"", NULL);
    refuse("mistral", "missing tensor layers.0.self_attn.q_proj.bias", "\"rope_theta\"", "\"attention_bias\": true, \"rope_theta\"", NULL);
    refuse("mistral", "missing tensor layers.0.mlp.gate_proj.bias", "\"rope_theta\"", "\"mlp_bias\": true, \"rope_theta\"", NULL);
    refuse("mistral", "layer_types[1]: expected full_attention or sliding_attention, found chunked_attention", "\"rope_theta\"",
           "\"layer_types\": [\"full_attention\", \"chunked_attention\"], \"rope_theta\"", NULL);
    refuse("mistral", "layer_types[1]: expected full_attention or sliding_attention, found nothing", "\"rope_theta\"",
           "\"layer_types\": [\"full_attention\"], \"rope_theta\"", NULL);
    refuse("mistral", "missing sliding_window: layer_types[0] is sliding_attention", "\"sliding_window\": 20",
           "\"layer_types\": [\"sliding_attention\", \"full_attention\"]", NULL);
    refuse("mistral", "sliding_window out of range: 0", "\"sliding_window\": 20", "\"sliding_window\": 0", NULL);
    refuse("mistral", "unsupported rope type \"yarn\"", "\"rope_theta\"", "\"rope_scaling\": {\"type\": \"yarn\"}, \"rope_theta\"", NULL);
    refuse("qwen2", "missing max_window_layers", "\"max_window_layers\": 1", "\"hidden_act\": \"silu\"", NULL);
    refuse("smollm3", "no_rope_layers[2]: expected 0 or 1", "  0,\n  1,\n", "  0,\n  3,\n", NULL);
    refuse("gemma3-mlx-4bit", "unsupported attn_logit_softcapping", "\"rope_theta\"", "\"attn_logit_softcapping\": 50.0, \"rope_theta\"", NULL);
    refuse("gemma3-mlx-4bit", "missing sliding_window", "\"sliding_window\": 24,", "", NULL);
    refuse("gemma4-ple", "missing layer_types", "\"layer_types\"", "\"layers\"", NULL);
    refuse("gemma4-ple", "vocab_size_per_layer_input 200 below vocab_size 272", "\"vocab_size_per_layer_input\": 272",
           "\"vocab_size_per_layer_input\": 200", NULL);
    refuse("gemma4-ple", "layer 2 shares keys and values, but no layer of its kind before layer 2 has any", "\"num_kv_shared_layers\": 3",
           "\"num_kv_shared_layers\": 4", NULL);
    refuse("gemma4-ple", "num_kv_shared_layers out of range: 6", "\"num_kv_shared_layers\": 3", "\"num_kv_shared_layers\": 6", NULL);
}

/* What experts need, in each of the layouts that packages have. */
static void test_experts(void **state)
{
    (void)state;
    static const char inter[] = "\"moe_intermediate_size\": 12", few[] = "\"num_experts\": 6", used[] = "\"num_experts_per_tok\": 3";
    refuse("qwen3-moe", "num_experts_per_tok out of range: 7, expected 1 to 6", used, "\"num_experts_per_tok\": 7", NULL);
    refuse("qwen3-moe", "num_experts_per_tok out of range: 0, expected 1 to 6", used, "\"num_experts_per_tok\": 0", NULL);
    refuse("qwen35-moe-mtp", "missing num_experts_per_tok", used, "\"n\": 3", NULL);
    refuse("gemma4-moe", "top_k_experts out of range: 7, expected 1 to 6", "\"top_k_experts\": 3", "\"top_k_experts\": 7", NULL);
    refuse("qwen3-moe", "missing num_experts", few, "\"n\": 6", NULL);
    refuse("qwen35-moe-mtp", "missing num_experts", few, "\"n\": 6", NULL);
    refuse("bailing-moe-mtp", "12 experts don't divide into 5 groups of which 2 hold 3", "\"n_group\": 4", "\"n_group\": 5", NULL);
    refuse("bailing-moe-mtp", "topk_group out of range: 5, expected 1 to 4", "\"topk_group\": 2", "\"topk_group\": 5", NULL);
    refuse("bailing-moe-mtp", "score_function other than sigmoid", "\"sigmoid\"", "\"softmax\"", NULL);
    refuse("qwen3-moe", "tensor model.layers.0.mlp.gate.weight: expected [7, 32], found [6, 32]", few, "\"num_experts\": 7", NULL);
    refuse("gemma4-moe", "tensor model.layers.0.router.proj.weight: expected [5, 32], found [6, 32]", few, "\"num_experts\": 5", NULL);
    refuse("qwen3-moe", "experts.0.gate_proj.weight: expected [16, 32], found [12, 32]", inter, "\"moe_intermediate_size\": 16", NULL);
    refuse("qwen35-moe-mtp", "experts.gate_up_proj: expected [6, 32, 32], found [6, 24, 32]", inter, "\"moe_intermediate_size\": 16", NULL);
    refuse("qwen35-moe-mtp", "shared_expert.gate_proj.weight: expected [8, 32], found [16, 32]", "\"shared_expert_intermediate_size\": 16",
           "\"shared_expert_intermediate_size\": 8", NULL);
    refuse_weights("qwen3-moe", "missing tensor layers.2.mlp.experts.3.up_proj.weight, expected a matrix of [12, 32]",
                   "model.layers.2.mlp.experts.3.up_proj", "model.layers.2.mlp.experts.9.up_proj");
    refuse_weights("qwen3-moe", "tensor model.layers.0.mlp.gate.weight: expected [6, 32], found [32, 6]",
                   "layers.0.mlp.gate.weight\":{\"dtype\":\"BF16\",\"shape\":[6,32]", "layers.0.mlp.gate.weight\":{\"dtype\":\"BF16\",\"shape\":[32,6]");
    refuse_weights("qwen35-moe-mtp", "layers.0.mlp.experts.gate_up_proj: expected [6, 24, 32], found [3, 48, 32]",
                   "layers.0.mlp.experts.gate_up_proj\":{\"dtype\":\"BF16\",\"shape\":[6,24,32]",
                   "layers.0.mlp.experts.gate_up_proj\":{\"dtype\":\"BF16\",\"shape\":[3,48,32]");
    refuse_weights("qwen35-moe-mtp", "missing tensor layers.1.mlp.experts.down_proj", "model.layers.1.mlp.experts.down_proj",
                   "model.layers.1.mlp.experts.town_proj");
}

/* A head whose experts are damaged is off, and says why; the model runs. */
static void test_experts_of_heads(void **state)
{
    (void)state;
    static const char *const all[][4] = {
        {"bailing-moe-mtp", "layers.2.mlp.experts.3.up_proj", "layers.2.mlp.experts.x.up_proj", "missing tensor layers.2.mlp.experts.3.up_proj"},
        {"qwen35-moe-mtp", "mtp.layers.0.mlp.experts.gate_up_proj\":{\"dtype\":\"BF16\",\"shape\":[6,24,32]",
         "mtp.layers.0.mlp.experts.gate_up_proj\":{\"dtype\":\"BF16\",\"shape\":[3,48,32]", "expected [6, 24, 32], found [3, 48, 32]"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct instance in;
        struct err e = {0};
        struct instance_options io = {.threads = 1, .without_tokenizer = true};
        damage_weights(all[i][0], all[i][1], all[i][2]);
        if (instance_open(&in, folder, &io, &e))
            fail_msg("%s", e.msg);
        assert_int_equal(in.head.health, MTP_INCOMPLETE);
        if (!strstr(in.head.why, all[i][3]))
            fail_msg("expected \"%s\", found \"%s\"", all[i][3], in.head.why);
        instance_close(&in);
    }
}

/* Families that aren't run are named with what they lack. */
static void test_unknown(void **state)
{
    (void)state;
    static const char *const all[][2] = {
        {"deepseek_v3", "multi-head latent attention"}, {"gguf:deepseek2", "multi-head latent attention"}, {"gpt_oss", "attention sinks"},
        {"gemma2", "soft caps on attention scores"},    {"gemma3n_text", "AltUp"},                         {"gemma", "first Gemma"},
        {"qwen4_exp_text", "hyper-connections"},        {"gemma4_assistant", "draft head"},                {"qwen2_vl", "image positions"},
        {"phi3", "fused projections"},                  {"nonsense", "nothing is known"},                  {"", "nothing is known"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct err e = {0};
        assert_null(arch_find(all[i][0]));
        assert_int_equal(arch_refuse("F", all[i][0], &e), ERR_UNSUPPORTED);
        if (!strstr(e.msg, all[i][1]) || !strstr(e.msg, "supported are ") || !strstr(e.msg, ", Gemma 4"))
            fail_msg("%s", e.msg);
    }
    refuse("mistral", "unsupported architecture \"mixtral\": its experts are not implemented", "\"mistral\"", "\"mixtral\"", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_spellings), cmocka_unit_test(test_defaults), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_experts), cmocka_unit_test(test_experts_of_heads),
                                       cmocka_unit_test(test_unknown)};
    if (!mkdtemp(folder))
        return 1;
    snprintf(config, sizeof config, "%s/config.json", folder);
    snprintf(weights, sizeof weights, "%s/model.safetensors", folder);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(config);
    unlink(weights);
    rmdir(folder);
    return failed;
}
