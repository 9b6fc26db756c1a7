/* format/: containers, folders, the catalogue and stored formats, on small files the test writes itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "format/config.h"
#include "format/gguf.h"
#include "format/safetensors.h"
#include "format/weights.h"

static char dir[64];

// ---- files -----------------------------------------------------------------------------------------------

static void clear(const char *path)
{
    struct filelist l;
    struct err e = {0};
    if (!file_is_dir(path)) {
        unlink(path);
        return;
    }
    assert_int_equal(file_list(&l, path, &e), 0);
    for (int i = 0; i < l.n; i++) {
        char *sub = path_join(path, l.name[i]);
        clear(sub);
        free(sub);
    }
    file_list_free(&l);
    rmdir(path);
}

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/foresay-format-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}
static int teardown(void **state)
{
    (void)state;
    clear(dir);
    return 0;
}

static void put(const char *name, const void *p, size_t n)
{
    struct err e = {0};
    char *path = path_join(dir, name);
    if (file_write(path, p, n, &e))
        fail_msg("%s", e.msg);
    free(path);
}
static void put_text(const char *name, const char *s) { put(name, s, strlen(s)); }

/* A safetensors file: header text, then n bytes of data 0, 1, 2, ... */
static struct buf st_bytes(const char *header, size_t n)
{
    struct buf b;
    uint64_t len = strlen(header);
    buf_init(&b, 1 << 20);
    buf_add(&b, &len, 8);
    buf_str(&b, header);
    for (size_t i = 0; i < n; i++)
        buf_chr(&b, (char)i);
    return b;
}

static void put_st(const char *name, const char *header, size_t n)
{
    struct buf b = st_bytes(header, n);
    put(name, b.p, b.n);
    buf_free(&b);
}

static struct package *open_ok(const char *name)
{
    struct package *p;
    struct err e = {0};
    char *path = path_join(dir, name);
    if (package_open(&p, path, &e))
        fail_msg("%s: %s", name, e.msg);
    free(path);
    return p;
}

static void check_words(const struct err *e, const char *words)
{
    assert_true(e->code < 0);
    assert_true(strlen(e->msg) < 400 && !strchr(e->msg, '\n'));
    if (!strstr(e->msg, words))
        fail_msg("expected \"%s\" in: %s", words, e->msg);
}

static void open_bad(const char *name, const char *words)
{
    struct package *p;
    struct err e = {0};
    char *path = path_join(dir, name);
    assert_true(package_open(&p, path, &e) < 0);
    assert_null(p);
    check_words(&e, words);
    free(path);
}

static bool has_note(const struct package *p, const char *words)
{
    for (int i = 0; i < p->n_notes; i++)
        if (strstr(p->notes[i], words))
            return true;
    return false;
}

// ---- safetensors -----------------------------------------------------------------------------------------

static void st_bad(const char *header, size_t n, const char *words)
{
    struct st_file f;
    struct err e = {0};
    struct buf b = st_bytes(header, n);
    char *exact = malloc(b.n); // so that reading past the end is seen
    memcpy(exact, b.p, b.n);
    assert_true(st_open_bytes(&f, exact, b.n, "file", &e) < 0);
    check_words(&e, words);
    free(exact);
    buf_free(&b);
}

static void test_safetensors(void **state)
{
    (void)state;
    struct st_file f;
    struct err e = {0};
    struct buf b = st_bytes("{\"__metadata__\":{\"format\":\"mlx\"},\"b\":{\"dtype\":\"BF16\",\"shape\":[2,2]"
                            ",\"data_offsets\":[4,12]},"
                            "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                            "\"z\":{\"dtype\":\"U8\",\"shape\":[0,5],\"data_offsets\":[12,12]}}  ",
                            12);
    assert_int_equal(st_open_bytes(&f, b.p, b.n, "file", &e), 0);
    assert_int_equal(f.n_tensors, 3);
    assert_string_equal(f.format, "mlx");
    assert_string_equal(f.tensor[0].name, "a");
    assert_int_equal(f.tensor[0].ndim, 0);
    assert_string_equal(f.tensor[1].name, "b");
    assert_int_equal(f.tensor[1].offset, b.n - 8);
    st_close(&f);
    for (size_t n = 0; n < b.n; n++) { // every cut is refused, none crashes
        struct err cut = {0};
        char *exact = malloc(n ? n : 1);
        memcpy(exact, b.p, n);
        assert_true(st_open_bytes(&f, exact, n, "file", &cut) < 0);
        free(exact);
    }
    uint64_t lengths[] = {UINT64_MAX, (uint64_t)1 << 40, 100000001, b.n - 7};
    for (size_t i = 0; i < 4; i++) {
        struct err le = {0};
        memcpy(b.p, &lengths[i], 8);
        assert_true(st_open_bytes(&f, b.p, b.n, "file", &le) < 0);
        check_words(&le, "header length");
    }
    buf_free(&b);
}

#define T(dtype, shape, a, b) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #a "," #b "]}"

static void test_safetensors_damage(void **state)
{
    (void)state;
    st_bad("[]", 0, "not a JSON object");
    st_bad("{\"a\":1}", 8, "not an object");
    st_bad("{\"a\":" T("F7", "[2]", 0, 8) "}", 8, "unknown dtype of tensor a");
    st_bad("{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "unknown dtype of tensor a");
    st_bad("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "no shape");
    st_bad("{\"a\":" T("F32", "[-1,-2]", 0, 8) "}", 8, "negative size in tensor a");
    st_bad("{\"a\":" T("F32", "[8589934592,4294967296,2]", 0, 8) "}", 8, "shape of tensor a overflows");
    st_bad("{\"a\":" T("F32", "[9223372036854775807,0]", 0, 0) ","
                                                               "\"b\":" T("F32", "[9223372036854775807,2,0]",
                                                                          0, 0) "}",
           8, "shape of tensor b overflows");
    st_bad("{\"a\":" T("F32", "[2305843009213693952]", 0, 8) "}", 8, "overflows");
    st_bad("{\"a\":" T("F32", "[18446744073709551616]", 0, 8) "}", 8, "no integer of 64 bits");
    st_bad("{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,2]", 0, 8) "}", 8, "bad rank of tensor a");
    st_bad("{\"a\":" T("F4", "[3]", 0, 2) "}", 8, "whole bytes");
    st_bad("{\"a\":" T("F32", "[2]", 8, 0) "}", 8, "bad offsets of tensor a");
    st_bad("{\"a\":" T("F32", "[2]", -8, 0) "}", 8, "bad offsets of tensor a");
    st_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, "bad offsets of tensor a");
    st_bad("{\"a\":" T("F32", "[2]", 0, 12) "}", 12, "size of tensor a: expected 8");
    st_bad("{\"a\":" T("F32", "[2]", 4, 12) "}", 8, "tensor a ends beyond the file");
    st_bad("{\"a\":" T("F32", "[2]", 100, 108) "}", 8, "tensor a lies outside the file");
    st_bad("{\"a\":" T("F32", "[2]", 0, 8) ",\"b\":" T("F32", "[2]", 4, 12) "}", 12,
           "overlapping tensors a and b");
    st_bad("{\"a\":" T("F32", "[2]", 0, 8) ",\"a\":" T("F32", "[2]", 8, 16) "}", 16, "\"a\" is listed twice");
    st_bad("{\"a\\u0000b\":" T("F32", "[2]", 0, 8) "}", 8, "control character");
    st_bad("{'a':1}", 0, "bad JSON");
}

// ---- GGUF ------------------------------------------------------------------------------------------------

struct gg { // a writer: metadata and tensor infos in memory, then the file
    struct buf kv, ti;
    uint64_t n_kv, n_ti;
    size_t data;
};

static void add_str(struct buf *b, const char *s)
{
    uint64_t n = strlen(s);
    buf_add(b, &n, 8);
    buf_str(b, s);
}
static void add_u32(struct buf *b, uint32_t v) { buf_add(b, &v, 4); }
static void add_u64(struct buf *b, uint64_t v) { buf_add(b, &v, 8); }

static void gg_init(struct gg *g)
{
    *g = (struct gg){0};
    buf_init(&g->kv, 1 << 20);
    buf_init(&g->ti, 1 << 20);
}
static void gg_u32(struct gg *g, const char *key, uint32_t v)
{
    add_str(&g->kv, key), add_u32(&g->kv, GGUF_U32), add_u32(&g->kv, v);
    g->n_kv++;
}
static void gg_f32(struct gg *g, const char *key, float v)
{
    add_str(&g->kv, key), add_u32(&g->kv, GGUF_F32), buf_add(&g->kv, &v, 4);
    g->n_kv++;
}
static void gg_str(struct gg *g, const char *key, const char *v)
{
    add_str(&g->kv, key), add_u32(&g->kv, GGUF_STRING), add_str(&g->kv, v);
    g->n_kv++;
}
static void gg_ints(struct gg *g, const char *key, uint32_t n, const uint32_t *v)
{
    add_str(&g->kv, key), add_u32(&g->kv, GGUF_ARRAY), add_u32(&g->kv, GGUF_U32), add_u64(&g->kv, n);
    buf_add(&g->kv, v, 4 * (size_t)n);
    g->n_kv++;
}
static void gg_tensor(struct gg *g, const char *name, int type, int64_t ne0, int64_t ne1)
{
    const struct gguf_type_info *t = gguf_type_info(type);
    add_str(&g->ti, name);
    add_u32(&g->ti, ne1 ? 2 : 1);
    add_u64(&g->ti, (uint64_t)ne0);
    if (ne1)
        add_u64(&g->ti, (uint64_t)ne1);
    add_u32(&g->ti, (uint32_t)type);
    add_u64(&g->ti, g->data);
    g->data += ((size_t)(ne0 / t->block * (ne1 ? ne1 : 1)) * (size_t)t->bytes + 31) / 32 * 32;
    g->n_ti++;
}
static struct buf gg_bytes(struct gg *g)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_str(&b, "GGUF");
    add_u32(&b, 3);
    add_u64(&b, g->n_ti);
    add_u64(&b, g->n_kv);
    buf_add(&b, g->kv.p, g->kv.n);
    buf_add(&b, g->ti.p, g->ti.n);
    while (b.n % 32)
        buf_chr(&b, 0);
    for (size_t i = 0; i < g->data; i++)
        buf_chr(&b, (char)(i * 7 % 60)); // small exponents: all floats are finite
    buf_free(&g->kv);
    buf_free(&g->ti);
    return b;
}

static struct buf small_gguf(void)
{
    struct gg g;
    static const uint32_t heads[] = {2, 2, 0};
    gg_init(&g);
    gg_str(&g, "general.architecture", "qwen35");
    gg_u32(&g, "qwen35.block_count", 3);
    gg_u32(&g, "qwen35.nextn_predict_layers", 1);
    gg_u32(&g, "qwen35.embedding_length", 64);
    gg_u32(&g, "qwen35.full_attention_interval", 2);
    gg_u32(&g, "qwen35.attention.head_count", 4);
    gg_ints(&g, "qwen35.attention.head_count_kv", 3, heads);
    gg_u32(&g, "qwen35.attention.key_length", 16);
    gg_u32(&g, "qwen35.rope.dimension_count", 4);
    gg_f32(&g, "qwen35.rope.freq_base", 1e7f);
    gg_f32(&g, "qwen35.attention.layer_norm_rms_epsilon", 1e-6f);
    gg_u32(&g, "qwen35.ssm.inner_size", 64);
    gg_u32(&g, "qwen35.ssm.time_step_rank", 4);
    gg_u32(&g, "tokenizer.ggml.eos_token_id", 7);
    gg_u32(&g, "tokenizer.ggml.eot_token_id", 9);
    gg_str(&g, "tokenizer.chat_template", "{{ x }}");
    gg_tensor(&g, "token_embd.weight", 8, 64, 40);
    gg_tensor(&g, "output_norm.weight", 0, 64, 0);
    gg_tensor(&g, "blk.0.ssm_a", 0, 4, 0);
    gg_tensor(&g, "blk.1.attn_k.weight", 17, 256, 32);
    gg_tensor(&g, "blk.2.nextn.eh_proj.weight", 1, 128, 64);
    gg_tensor(&g, "blk.2.attn_norm.weight", 0, 64, 0);
    gg_tensor(&g, "strange.weight", 0, 64, 0);
    return gg_bytes(&g);
}

static void gguf_bad(const char *p, size_t n, const char *words)
{
    struct gguf *g;
    struct err e = {0};
    char *exact = malloc(n ? n : 1);
    memcpy(exact, p, n);
    assert_true(gguf_open_bytes(&g, exact, n, "file", &e) < 0);
    assert_null(g);
    check_words(&e, words);
    free(exact);
}

static void test_gguf(void **state)
{
    (void)state;
    struct buf b = small_gguf();
    struct gguf *g;
    struct err e = {0};
    struct gguf_str s;
    int64_t v = 0;
    double d = 0;
    bool flag;
    assert_int_equal(gguf_open_bytes(&g, b.p, b.n, "file", &e), 0);
    assert_int_equal(g->n_tensors, 7);
    assert_true(gguf_string(gguf_find(g, "general.architecture"), &s) && s.n == 6 &&
                !memcmp(s.s, "qwen35", 6));
    assert_true(gguf_int(gguf_find(g, "qwen35.block_count"), &v) && v == 3);
    assert_true(gguf_num(gguf_find(g, "qwen35.rope.freq_base"), &d) && d == 1e7);
    assert_false(gguf_int(gguf_find(g, "qwen35.rope.freq_base"), &v));
    assert_false(gguf_bool(gguf_find(g, "qwen35.block_count"), &flag));
    assert_false(gguf_int(gguf_find(g, "absent"), &v));
    int64_t heads[3];
    assert_true(gguf_ints(gguf_find(g, "qwen35.attention.head_count_kv"), heads) && heads[1] == 2 &&
                heads[2] == 0);
    assert_true(gguf_strings(gguf_find(g, "qwen35.attention.head_count_kv"), &s) < 0);
    gguf_close(g);
    for (size_t n = 0; n < b.n; n += n < 900 ? 1 : 97) {
        struct err cut = {0};
        char *exact = malloc(n ? n : 1);
        memcpy(exact, b.p, n);
        assert_true(gguf_open_bytes(&g, exact, n, "file", &cut) < 0);
        free(exact);
    }
    put("m.gguf", b.p, b.n);
    char *path = path_join(dir, "m.gguf"), *value;
    assert_int_equal(gguf_find_string(path, "tokenizer.chat_template", &value, &e), 0);
    assert_string_equal(value, "{{ x }}");
    free(value);
    assert_int_equal(gguf_find_string(path, "absent", &value, &e), 1);
    assert_null(value);
    free(path);
    buf_free(&b);
}

static char *find_bytes(struct buf *b, const char *s)
{
    for (size_t i = 0; i + strlen(s) <= b->n; i++)
        if (!memcmp(b->p + i, s, strlen(s)))
            return b->p + i + strlen(s);
    fail_msg("no %s", s);
    return NULL;
}

/* Overwrites n bytes at distance off behind the text after, checks the refusal, and restores. */
static void damage(struct buf *b, const char *after, int off, const void *bytes, size_t n, const char *words)
{
    char saved[16], *at = (after ? find_bytes(b, after) : b->p) + off;
    memcpy(saved, at, n);
    memcpy(at, bytes, n);
    gguf_bad(b->p, b->n, words);
    memcpy(at, saved, n);
}

static void test_gguf_damage(void **state)
{
    (void)state;
    struct buf b = small_gguf();
    uint64_t big = (uint64_t)1 << 60, odd = 4, zero = 0;
    uint32_t v1 = 1, big_endian = 0x03000000, nine = 9, type = 250, q4k = 12;
    damage(&b, NULL, 0, "GGUX", 4, "not a GGUF file");
    damage(&b, NULL, 4, &v1, 4, "unsupported GGUF version 1");
    damage(&b, NULL, 4, &big_endian, 4, "big-endian GGUF");
    damage(&b, NULL, 8, &big, 8, "tensor count out of range");
    damage(&b, NULL, 16, &big, 8, "metadata count out of range");
    damage(&b, NULL, 24, &big, 8, "string length out of range");
    damage(&b, "general.architecture", 4, &big, 8,
           "string length out of range in value general.architecture");
    damage(&b, "general.architecture", 0, &type, 4, "unknown type 250");
    damage(&b, "head_count_kv", 8, &big, 8, "array length out of range");
    damage(&b, "head_count_kv", 4, &nine, 4, "element type 9");
    damage(&b, "blk.0.ssm_a", 0, &nine, 4, "bad rank of tensor blk.0.ssm_a");
    damage(&b, "blk.0.ssm_a", 0, &zero, 4, "bad rank of tensor blk.0.ssm_a");
    damage(&b, "blk.0.ssm_a", 4, &zero, 8, "size 0 in dimension 0");
    damage(&b, "blk.0.ssm_a", 12, &type, 4, "unknown type of tensor blk.0.ssm_a");
    damage(&b, "blk.0.ssm_a", 12, &q4k, 4, "multiple of 256");
    damage(&b, "blk.0.ssm_a", 16, &odd, 8, "unaligned tensor blk.0.ssm_a");
    damage(&b, "blk.0.ssm_a", 16, &big, 8, "tensor blk.0.ssm_a lies outside the file");
    damage(&b, "blk.0.ssm_a", 16, &zero, 8, "overlapping tensors");
    damage(&b, "blk.1.attn_k.weight", 4, &big, 8, "overflows");
    damage(&b, "qwen35.block_coun", 0, "\n", 1, "control character");
    memcpy(find_bytes(&b, "output_nor") - 10, "blk.2.attn", 10); // "blk.2.attnm.weight": still unique
    gguf_bad(b.p, b.n - 300, "ends beyond the file");
    buf_free(&b);
    struct gg g;
    gg_init(&g);
    gg_u32(&g, "general.alignment", 0);
    b = gg_bytes(&g);
    gguf_bad(b.p, b.n, "bad alignment");
    buf_free(&b);
    gg_init(&g);
    gg_u32(&g, "a", 0), gg_u32(&g, "a", 0);
    b = gg_bytes(&g);
    gguf_bad(b.p, b.n, "a is listed twice");
    buf_free(&b);
    gg_init(&g);
    gg_tensor(&g, "t", 0, 8, 0), gg_tensor(&g, "t", 0, 8, 0);
    b = gg_bytes(&g);
    gguf_bad(b.p, b.n, "t is listed twice");
    buf_free(&b);
}

static void test_gguf_package(void **state)
{
    (void)state;
    struct buf b = small_gguf();
    struct err e = {0};
    int64_t v;
    double d;
    put("m.gguf", b.p, b.n);
    buf_free(&b);
    struct package *p = open_ok("m.gguf");
    assert_int_equal(p->kind, PACKAGE_GGUF);
    assert_string_equal(p->config_file, "m.gguf");
    assert_int_equal(cfg_int(p, "num_hidden_layers", 1, 10, &v, &e), 0);
    assert_int_equal(v, 2);
    assert_int_equal(cfg_int(p, "num_key_value_heads", 1, 10, &v, &e), 0);
    assert_int_equal(v, 2);
    assert_int_equal(cfg_int(p, "linear_value_head_dim", 1, 100, &v, &e), 0);
    assert_int_equal(v, 16);
    assert_int_equal(cfg_num(p, "rope_parameters.rope_theta", 1, 1e9, &d, &e), 0);
    assert_true(d == 1e7);
    assert_int_equal(cfg_num(p, "rope_parameters.partial_rotary_factor", 0, 1, &d, &e), 0);
    assert_true(d == 0.25);
    assert_string_equal(json_get(p->config, "rms_norm_eps")->s, "1e-06");
    assert_string_equal(json_str(json_at(json_get(p->config, "layer_types"), 0), ""), "linear_attention");
    assert_string_equal(json_str(json_at(json_get(p->config, "layer_types"), 1), ""), "full_attention");
    assert_string_equal(json_str(json_get(p->config, "foresay_mtp_norm"), ""), "output_norm");
    assert_int_equal(json_get(p->generation, "eos_token_id")->n, 2);
    assert_int_equal(cfg_int(p, "linear_num_key_heads", 1, 9, &v, &e), ERR_FORMAT);
    check_words(&e, "m.gguf: missing linear_num_key_heads");
    const struct weight *t = weights_find(p->weights, "mtp.fc.weight");
    assert_non_null(t);
    assert_string_equal(t->name, "blk.2.nextn.eh_proj.weight");
    assert_true(t->ne[0] == 64 && t->ne[1] == 128 && t->row_bytes == 256);
    assert_non_null(weights_find(p->weights, "mtp.layers.0.input_layernorm.weight"));
    assert_non_null(weights_find(p->weights, "layers.%d.linear_attn.A", 0));
    assert_non_null(weights_find(p->weights, "strange.weight"));
    struct err u = {0};
    assert_null(weights_matrix(p->weights, &u, 32, 256, "layers.1.self_attn.k_proj.weight"));
    assert_int_equal(u.code, ERR_UNSUPPORTED);
    check_words(&u, "blk.1.attn_k.weight is stored as IQ2_XS, an unsupported format");
    package_close(p);
    p = open_ok(""); // a folder that holds nothing but one GGUF file
    assert_string_equal(p->config_file, "m.gguf");
    package_close(p);
}

/* Metadata of an architecture under its prefix: "key value" with u for integers, f for floats, a for arrays. */
struct meta {
    char kind;
    const char *key;
    double v;
    uint32_t all[6];
};

/* Opens a GGUF of the metadata and of an embedding, ne1 of every tensor being 40, and compares the configuration. */
static void gguf_family(const char *arch, const struct meta *m, const char *const *tensors, const char *const *keys, const char *const *want)
{
    struct gg g;
    char name[80];
    struct err e = {0};
    gg_init(&g);
    gg_str(&g, "general.architecture", arch);
    for (; m->kind; m++) {
        snprintf(name, sizeof name, "%s.%s", arch, m->key);
        if (m->kind == 'u')
            gg_u32(&g, name, (uint32_t)m->v);
        else if (m->kind == 'f')
            gg_f32(&g, name, (float)m->v);
        else
            gg_ints(&g, name, 6, m->all);
    }
    gg_tensor(&g, "token_embd.weight", 8, 64, 40);
    for (const char *const *t = tensors; *t; t++)
        gg_tensor(&g, *t, 0, 64, strstr(*t, "norm") ? 0 : 40);
    struct buf b = gg_bytes(&g);
    put("m.gguf", b.p, b.n);
    buf_free(&b);
    struct package *p = open_ok("m.gguf");
    for (; *keys; keys++)
        if (!weights_find(p->weights, "%s", *keys))
            fail_msg("%s: no tensor %s", arch, *keys);
    for (; *want; want += 2) {
        const struct json *v = cfg_get(p, want[0]);
        const char *found = !v ? "nothing" : json_is(v, JSON_ARRAY) ? json_str(json_at(v, v->n - 1), "?") : v->type == JSON_TRUE ? "true" : v->type == JSON_FALSE ? "false" : v->s;
        if (strcmp(found, want[1]))
            fail_msg("%s: %s is %s, expected %s", arch, want[0], found, want[1]);
    }
    int64_t n;
    assert_int_equal(cfg_int(p, "vocab_size", 40, 40, &n, &e), 0);
    package_close(p);
}

#define LIST(...) (const char *const[]){__VA_ARGS__, NULL}

static void test_gguf_families(void **state)
{
    (void)state;
    const struct meta sizes[] = {{'u', "block_count", 6, {0}}, {'u', "embedding_length", 64, {0}}, {'u', "attention.head_count", 4, {0}},
                                 {'u', "attention.key_length", 24, {0}}, {'f', "rope.freq_base", 5e5, {0}}, {0}};
    gguf_family("qwen2", sizes, LIST("blk.3.attn_q.bias", "blk.0.ffn_norm.weight"),
                LIST("layers.3.self_attn.q_proj.bias", "layers.0.post_attention_layernorm.weight"),
                LIST("model_type", "qwen2", "num_hidden_layers", "6", "rope_theta", "5e+05", "head_dim", "24"));
    gguf_family("smollm3", sizes, LIST("blk.0.ffn_norm.weight"), LIST("layers.0.post_attention_layernorm.weight"),
                LIST("model_type", "smollm3", "no_rope_layer_interval", "4", "foresay_rope_pairs", "adjacent"));
    gguf_family("gemma3", sizes, LIST("blk.0.ffn_norm.weight", "blk.0.post_attention_norm.weight", "blk.5.post_ffw_norm.weight"),
                LIST("layers.0.pre_feedforward_layernorm.weight", "layers.0.post_attention_layernorm.weight", "layers.5.post_feedforward_layernorm.weight"),
                LIST("model_type", "gemma3_text", "query_pre_attn_scalar", "24", "rope_local_base_freq", "10000", "sliding_window_pattern", "6",
                     "foresay_norms", "effective", "hidden_activation", "gelu_pytorch_tanh"));
    const struct meta big[] = {{'u', "block_count", 62, {0}}, {'u', "embedding_length", 64, {0}}, {'u', "attention.head_count", 4, {0}},
                               {'u', "attention.key_length", 24, {0}}, {'f', "rope.freq_base_swa", 9000, {0}},
                               {'u', "attention.sliding_window_pattern", 5, {0}}, {0}};
    gguf_family("gemma3", big, LIST("output_norm.weight"), LIST("norm.weight"),
                LIST("query_pre_attn_scalar", "16", "rope_local_base_freq", "9e+03", "sliding_window_pattern", "5"));
    const struct meta flags[] = {{'u', "block_count", 6, {0}}, {'a', "attention.sliding_window_pattern", 0, {1, 1, 0, 1, 1, 0}}, {0}};
    gguf_family("gemma3", flags, LIST("output_norm.weight"), LIST("norm.weight"), LIST("layer_types", "full_attention"));
    const struct meta mixed[] = {{'u', "block_count", 6, {0}}, {'a', "attention.sliding_window_pattern", 0, {1, 1, 0, 1, 1, 0}},
                                 {'a', "attention.head_count_kv", 0, {8, 8, 2, 8, 8, 2}}, {'u', "attention.head_count", 16, {0}},
                                 {'u', "attention.key_length", 80, {0}}, {'u', "attention.key_length_swa", 40, {0}},
                                 {'u', "feed_forward_length", 96, {0}}, {'u', "expert_count", 8, {0}}, {'u', "expert_used_count", 2, {0}},
                                 {'f', "final_logit_softcapping", 30, {0}}, {'f', "rope.freq_base", 1e6, {0}},
                                 {'f', "rope.freq_base_swa", 1e4, {0}}, {0}};
    gguf_family("gemma4", mixed, LIST("blk.0.attn_v.weight", "blk.2.attn_k.weight", "blk.1.layer_output_scale.weight"),
                LIST("layers.0.self_attn.v_proj.weight", "layers.2.self_attn.k_proj.weight", "layers.1.layer_scalar"),
                LIST("num_key_value_heads", "8", "num_global_key_value_heads", "2", "attention_k_eq_v", "true", "head_dim", "40",
                     "global_head_dim", "80", "intermediate_size", "96", "use_double_wide_mlp", "false", "enable_moe_block", "true", "num_experts", "8",
                     "top_k_experts", "2", "final_logit_softcapping", "3e+01", "rope_parameters.full_attention.rope_theta", "1e+06",
                     "rope_parameters.full_attention.partial_rotary_factor", "1", "rope_parameters.sliding_attention.rope_theta", "1e+04",
                     "num_kv_shared_layers", "0", "hidden_size_per_layer_input", "nothing"));
}

static void test_gguf_split(void **state)
{
    (void)state;
    struct gg g;
    for (int i = 0; i < 2; i++) {
        gg_init(&g);
        gg_str(&g, "general.architecture", "llama");
        gg_u32(&g, "split.count", 2);
        gg_u32(&g, "split.no", (uint32_t)i);
        gg_tensor(&g, i ? "output.weight" : "token_embd.weight", 2, 32, 4);
        struct buf b = gg_bytes(&g);
        put(i ? "m-00002-of-00002.gguf" : "m-00001-of-00002.gguf", b.p, b.n);
        buf_free(&b);
    }
    struct package *p = open_ok("m-00001-of-00002.gguf");
    assert_int_equal(weights_count(p->weights), 2);
    assert_string_equal(json_str(json_get(p->config, "foresay_rope_pairs"), ""), "adjacent");
    assert_false(json_bool(json_get(p->config, "tie_word_embeddings"), true));
    package_close(p);
    open_bad("m-00002-of-00002.gguf", "name the first");
    char *second = path_join(dir, "m-00002-of-00002.gguf");
    unlink(second);
    free(second);
    open_bad("m-00001-of-00002.gguf", "missing file m-00002-of-00002.gguf");
}

// ---- folders ---------------------------------------------------------------------------------------------

static void test_folder(void **state)
{
    (void)state;
    struct err e = {0};
    open_bad("absent", "no such file or folder");
    open_bad("", "not a model");
    put_text(
        "config.json",
        "{\"model_type\":\"qwen3_5\",\"tie_word_embeddings\":true,\"eos_token_id\":[5,6],\"text_config\":"
        "{\"hidden_size\":4,\"big\":1e300,\"half\":0.5,\"eos_token_id\":5,\"s\":\"x\",\"n\":null}}");
    open_bad("", "no weights");
    put_st("model.safetensors",
           "{\"model.language_model.norm.weight\":" T("BF16", "[4]", 0,
                                                      8) ",\"lm_head.weight\":" T("F32", "[2,4]", 8, 40) "}",
           40);
    put_st(
        "mtp.safetensors",
        "{\"mtp.fc.weight\":" T("F16", "[2,4]", 0, 16) ",\"lm_head.weight\":" T("F32", "[1,4]", 16, 32) "}",
        32);
    put_st("consolidated.safetensors", "{\"junk\":" T("F16", "[2,4]", 0, 16) "}", 16);
    char *sub = path_join(dir, "mtp");
    mkdir(sub, 0700);
    free(sub);
    put_st("mtp/weights.safetensors", "{\"pre_fc_norm_hidden.weight\":" T("F16", "[4]", 0, 8) "}", 8);
    struct package *p = open_ok("");
    assert_int_equal(p->kind, PACKAGE_HF);
    assert_int_equal(weights_count(p->weights), 4);
    assert_true(has_note(p, "mtp.safetensors is used"));
    assert_true(has_note(p, "consolidated.safetensors is ignored"));
    assert_true(has_note(p, "1 duplicate tensors are ignored, first lm_head.weight of mtp.safetensors"));
    assert_true(json_bool(json_get(p->config, "tie_word_embeddings"), false));
    assert_int_equal(json_get(p->config, "eos_token_id")->n, 2);
    const struct weight *t = weights_find(p->weights, "mtp.pre_fc_norm_hidden.weight");
    assert_string_equal(t->file, "mtp/weights.safetensors");
    // lookups
    assert_non_null(weights_matrix(p->weights, &e, 2, 4, "%s.weight", "lm_head"));
    assert_non_null(weights_floats(p->weights, &e, 4, "norm.weight"));
    assert_null(weights_matrix(p->weights, &e, 2, 5, "lm_head.weight"));
    check_words(&e, "model.safetensors: shape of tensor lm_head.weight: expected [2, 5], found [2, 4]");
    e = (struct err){0};
    assert_null(weights_matrix(p->weights, &e, 2, 5, "layers.%d.x", 3));
    check_words(&e, "model.safetensors: missing tensor layers.3.x");
    e = (struct err){0};
    assert_null(weights_floats(p->weights, &e, 5, "norm.weight"));
    check_words(&e, "expected 5 values, found [4]");
    weights_ignore(p->weights, "mtp.", "no drafter");
    weights_ignore(p->weights, "", "second reason");
    assert_string_equal(weights_find(p->weights, "mtp.fc.weight")->unused_why, "no drafter");
    assert_null(weights_find(p->weights, "lm_head.weight")->unused_why);
    assert_true(weights_find(p->weights, "lm_head.weight")->used);
    // configuration readers
    int64_t v;
    double d;
    bool flag;
    const char *s;
    struct err c[6] = {{0}};
    assert_int_equal(cfg_int(p, "hidden_size", 1, 10, &v, &c[0]), 0);
    assert_true(cfg_int(p, "hidden_size", 5, 10, &v, &c[0]) < 0);
    check_words(&c[0], "config.json: hidden_size out of range: 4, expected 5 to 10");
    assert_true(cfg_int(p, "half", 0, 10, &v, &c[1]) < 0);
    check_words(&c[1], "half is 0.5, expected an integer");
    assert_true(cfg_int(p, "n", 0, 10, &v, &c[2]) < 0);
    check_words(&c[2], "config.json: missing n");
    assert_true(cfg_num(p, "big", 0, 10, &d, &c[3]) < 0);
    assert_true(cfg_bool_or(p, "s", true, &flag, &c[4]) < 0);
    check_words(&c[4], "s is a string, expected true or false");
    assert_true(cfg_str_or(p, "half", "", &s, &c[5]) < 0);
    assert_int_equal(cfg_int_or(p, "zz.y", 0, 9, 3, &v, &e), 0);
    assert_int_equal(v, 3);
    package_close(p);
    put_text("config.json", "{\"a\":");
    open_bad("", "config.json: bad JSON at byte 5");
    put_text("config.json", "[]");
    open_bad("", "config.json: expected a JSON object");
}

static void test_index(void **state)
{
    (void)state;
    put_text("config.json", "{}");
    put_st("model-00001-of-00002.safetensors",
           "{\"model.a\":" T("F32", "[1]", 0, 4) ",\"model.b\":" T("F32", "[2]", 4, 12) "}", 12);
    put_text("model.safetensors.index.json",
             "{\"weight_map\":{\"model.a\":\"model-00001-of-00002.safetensors\","
             "\"model.b\":\"model-00002-of-00002.safetensors\"}}");
    open_bad("", "missing file model-00002-of-00002.safetensors: by model.safetensors.index.json it holds 1 "
                 "tensors, for example model.b");
    put_st("model-00002-of-00002.safetensors", "{\"model.b\":" T("F32", "[3]", 0, 12) "}", 12);
    put_st("head.safetensors",
           "{\"model.a\":" T("F32", "[4]", 0, 16) ",\"mtp.x\":" T("F32", "[4]", 16, 32) "}", 32);
    struct package *p = open_ok("");
    assert_int_equal(weights_count(p->weights), 3);
    assert_int_equal(weights_find(p->weights, "a")->ne[0], 1);
    assert_int_equal(weights_find(p->weights, "b")->ne[0],
                     3); // where the index says, not where it stands first
    assert_true(has_note(p, "2 duplicate tensors"));
    assert_true(has_note(p, "head.safetensors is used though the index doesn't name it: 1 tensors"));
    package_close(p);
    static const char *const escapes[] = {"../x.safetensors",
                                          "/etc/x.safetensors",
                                          "a/../../x.safetensors",
                                          "..",
                                          "",
                                          "a//b.safetensors",
                                          "a\\\\b.safetensors",
                                          "C:x.safetensors",
                                          "./x.safetensors",
                                          "a\\u0000.safetensors"};
    for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++) {
        char text[200];
        snprintf(text, sizeof text, "{\"weight_map\":{\"model.a\":\"%s\"}}", escapes[i]);
        put_text("model.safetensors.index.json", text);
        open_bad("", "shard name leaves the folder");
    }
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"x.bin\"}}");
    open_bad("", "unsupported shard");
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":3}}");
    open_bad("", "no file name");
    put_text("model.safetensors.index.json", "{}");
    open_bad("", "missing weight_map");
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"gone\":\"head.safetensors\"}}");
    p = open_ok("");
    assert_true(has_note(p, "the index names 1 tensors that no file holds, for example gone"));
    package_close(p);
}

static void test_mlx(void **state)
{
    (void)state;
    struct err e = {0};
    float row[128];
    put_text("config.json", "{\"quantization\":{\"group_size\":64,\"bits\":4,\"language_model.model.k\":{"
                            "\"group_size\":32,\"bits\":8},"
                            "\"model.m\":{\"mode\":\"mxfp4\",\"group_size\":32,\"bits\":4}}}");
    // q: 4 bits in groups of 64; k: 8 in 32 by its own rule; r: 3 in 64, which no rule says; m: another mode
    put_st("model.safetensors",
           "{\"model.q.weight\":" T("U32", "[2,8]", 0, 64)
           ",\"model.q.scales\":" T("F16", "[2,1]", 64, 68)
           ",\"model.q.biases\":" T("F16", "[2,1]", 68, 72)
           ",\"model.k.weight\":" T("U32", "[1,8]", 72, 104)
           ",\"model.k.scales\":" T("F16", "[1,1]", 104, 106)
           ",\"model.k.biases\":" T("F16", "[1,1]", 106, 108)
           ",\"model.r.weight\":" T("U32", "[1,12]", 108, 156)
           ",\"model.r.scales\":" T("F16", "[1,2]", 156, 160)
           ",\"model.r.biases\":" T("F16", "[1,2]", 160, 164)
           ",\"model.m.weight\":" T("U32", "[1,4]", 164, 180)
           ",\"model.m.scales\":" T("U8", "[1,1]", 180, 181) "}",
           181);
    struct package *p = open_ok("");
    assert_int_equal(p->kind, PACKAGE_MLX);
    assert_int_equal(weights_count(p->weights), 4);
    const struct weight *q = weights_find(p->weights, "q.weight"), *k = weights_find(p->weights, "k.weight"),
                        *r = weights_find(p->weights, "r.weight"), *m = weights_find(p->weights, "m.weight");
    assert_true(q->fmt == WF_MLX && q->bits == 4 && q->group == 64 && q->ne[1] == 64 && q->row_bytes == 32 &&
                q->bytes == 72);
    assert_string_equal(q->type, "U32 4-bit g64");
    assert_true(k->bits == 8 && k->group == 32 && k->ne[1] == 32);
    assert_true(r->bits == 3 && r->group == 64 && r->ne[1] == 128);
    assert_true(has_note(p, "1 quantized tensors follow their shapes"));
    assert_true(m->fmt == WF_MLX_FP4 && m->scale_fmt == WF_E8M0 && m->ne[1] == 32);
    assert_ptr_equal(weights_matrix(p->weights, &e, 1, 32, "m.weight"), m);
    weight_row(m, 0, row); // bytes 164, 165, ...: nibbles 4, 10; scale 180
    assert_true(row[0] == 2 * 0x1p53f && row[1] == -1 * 0x1p53f);
    weight_row(q, 1, row); // row 1: bytes 32.. ; scale and bias of row 1 at bytes 66 and 70
    uint16_t s = 66 | 67 << 8, b = 70 | 71 << 8;
    assert_true(row[0] == fmaf(f16_to_f32(s), 0, f16_to_f32(b))); // byte 32 = 0x20
    assert_true(row[1] == fmaf(f16_to_f32(s), 2, f16_to_f32(b)));
    assert_true(row[63] == fmaf(f16_to_f32(s), 3, f16_to_f32(b))); // byte 63 = 0x3f
    weight_row(r, 0, row); // bytes 108, 109, ... as a stream of 3-bit codes
    s = 156 | 157 << 8, b = 160 | 161 << 8;
    assert_true(row[0] == fmaf(f16_to_f32(s), 108 & 7, f16_to_f32(b)));
    assert_true(row[2] == fmaf(f16_to_f32(s), (108 >> 6 | 109 << 2) & 7, f16_to_f32(b)));
    package_close(p);
    put_st("model.safetensors",
           "{\"q.weight\":" T("U32", "[2,8]", 0, 64) ",\"q.biases\":" T("F16", "[2,1]", 64, 68) "}", 68);
    open_bad("", "missing tensor q.scales");
    put_st("model.safetensors",
           "{\"q.weight\":" T("U32", "[2,8]", 0, 64) ",\"q.scales\":" T("F16", "[2,1]", 64, 68) "}", 68);
    open_bad("", "missing tensor q.biases");
    put_st("model.safetensors",
           "{\"q.weight\":" T("U32", "[2,8]", 0, 64) ",\"q.scales\":" T(
               "F16", "[1,2]", 64, 68) ",\"q.biases\":" T("F16", "[2,1]", 68, 72) "}",
           72);
    open_bad("", "shape of tensor q.scales");
    put_st("model.safetensors",
           "{\"q.weight\":" T("U32", "[2,8]", 0, 64) ",\"q.scales\":" T(
               "F16", "[2,1]", 64, 68) ",\"q.biases\":" T("BF16", "[2,1]", 68, 72) "}",
           72);
    open_bad("", "dtype of tensor q.biases");
    put_st("model.safetensors",
           "{\"q.weight\":" T("U32", "[2,7]", 0, 56) ",\"q.scales\":" T(
               "F16", "[2,1]", 56, 60) ",\"q.biases\":" T("F16", "[2,1]", 60, 64) "}",
           64);
    open_bad("", "no bits and group size fit");
    put_text("config.json", "{\"quantization\":{\"group_size\":32,\"bits\":8,\"mode\":\"mxfp8\"}}");
    put_st("model.safetensors", "{\"q.weight\":" T("U32", "[1,8]", 0, 32) ",\"q.scales\":" T("U8", "[1,1]", 32, 33) "}", 33);
    p = open_ok("");
    weight_row(weights_find(p->weights, "q.weight"), 0, row); // E4M3 of bytes 0 to 31, scale 2^(32 - 127)
    assert_true(row[1] == 0x1p-104f && row[8] == 0x1p-101f);
    package_close(p);
    put_st("model.safetensors", "{\"q.weight\":" T("U32", "[1,8]", 0, 32) ",\"q.scales\":" T("U8", "[1,2]", 32, 34) "}", 34);
    open_bad("", "8 words a row in mxfp8 need a scale for every 32 values, found 2 scales");
    put_st("model.safetensors", "{\"q.weight\":" T("U32", "[1,8]", 0, 32) ",\"q.scales\":" T("F16", "[1,1]", 32, 34) "}", 34);
    open_bad("", "expected U8, found F16");
    put_text("config.json", "{\"quantization\":{\"group_size\":16,\"bits\":4,\"mode\":\"nvfp4\"}}");
    put_st("model.safetensors", "{\"q.weight\":" T("U32", "[1,2]", 0, 8) ",\"q.scales\":" T("U8", "[1,1]", 60, 61) "}", 61);
    p = open_ok("");
    weight_row(weights_find(p->weights, "q.weight"), 0, row); // byte 1 is 0x01; E4M3 of 60 = 1.5
    assert_true(row[2] == 0.5f * 1.5f && row[3] == 0);
    package_close(p);
    put_text("config.json", "{\"quantization\":{\"group_size\":16,\"bits\":4,\"mode\":\"fp5\"}}");
    p = open_ok("");
    e = (struct err){0};
    assert_null(weights_matrix(p->weights, &e, 1, 16, "q.weight"));
    check_words(&e, "stored as U32 fp5, an unsupported format");
    package_close(p);
}

// ---- numbers ---------------------------------------------------------------------------------------------

static void test_halves(void **state)
{
    (void)state;
    assert_true(f16_to_f32(0x3c00) == 1 && f16_to_f32(0xc000) == -2 && f16_to_f32(1) == 0x1p-24f &&
                f16_to_f32(0x7bff) == 65504);
    assert_true(isinf(f16_to_f32(0x7c00)) && isnan(f16_to_f32(0x7e00)) && signbit(f16_to_f32(0x8000)));
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = f16_to_f32((uint16_t)h);
        uint16_t back = f32_to_f16(f);
        if (isnan(f))
            assert_true((back & 0x7c00) == 0x7c00 && (back & 0x3ff));
        else
            assert_int_equal(back, h);
        if ((h & 0x7fff) >= 0x7c00)
            continue;
        // halfway to the next value up: to the even one of the two
        float next = (h & 0x7fff) == 0x7bff ? copysignf(65536, f) : f16_to_f32((uint16_t)(h + 1));
        float mid = (f + next) / 2;
        assert_int_equal(f32_to_f16(mid), h & 1 ? h + 1 : h);
        assert_int_equal(f32_to_f16(nextafterf(mid, 0)), h);
        assert_int_equal(f32_to_f16(nextafterf(mid, copysignf(INFINITY, f))), h + 1);
    }
    assert_int_equal(f32_to_f16(1e30f), 0x7c00);
    assert_int_equal(f32_to_f16(-1e-30f), 0x8000);
}

static void test_blocks(void **state)
{
    (void)state;
    uint8_t q[34];
    float out[32];
    struct weight w = {.q = q, .ndim = 2, .ne = {1, 32, 1, 1}, .row_bytes = sizeof q};
    for (int i = 0; i < 34; i++)
        q[i] = (uint8_t)(i * 37 + 11);
    q[1] = 0x2c;
    float d = f16_to_f32((uint16_t)(q[0] | q[1] << 8)), m = f16_to_f32((uint16_t)(q[2] | q[3] << 8));
    w.fmt = WF_Q8_0;
    weight_row(&w, 0, out);
    assert_true(out[0] == d * (float)(int8_t)q[2] && out[31] == d * (float)(int8_t)q[33]);
    w.fmt = WF_Q4_0;
    weight_row(&w, 0, out);
    assert_true(out[0] == d * (float)((q[2] & 15) - 8) && out[16] == d * (float)((q[2] >> 4) - 8) &&
                out[31] == d * (float)((q[17] >> 4) - 8));
    w.fmt = WF_Q4_1;
    weight_row(&w, 0, out);
    assert_true(out[3] == fmaf(d, (float)(q[7] & 15), m) && out[19] == fmaf(d, (float)(q[7] >> 4), m));
}

static void test_finite(void **state)
{
    (void)state;
    struct err e = {0};
    put_text("config.json", "{}");
    put_st("model.safetensors",
           "{\"empty\":" T("F32", "[1000000000000,0]", 0, 0) ",\"a\":" T("BF16", "[2,3]", 0, 12) "}", 12);
    struct package *p = open_ok("");
    assert_int_equal(weights_check_finite(p->weights, &e), 0);
    package_close(p);
    struct buf b = st_bytes("{\"model.a\":" T("BF16", "[2,3]", 0, 12) "}", 12);
    b.p[b.n - 4] = (char)0x80, b.p[b.n - 3] = (char)0xff;
    put("model.safetensors", b.p, b.n);
    buf_free(&b);
    p = open_ok("");
    assert_true(weights_check_finite(p->weights, &e) < 0);
    check_words(&e, "model.safetensors: tensor model.a holds -infinity in row 1, column 1");
    package_close(p);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_safetensors),  TEST(test_safetensors_damage),
        TEST(test_gguf),         TEST(test_gguf_damage),
        TEST(test_gguf_package), TEST(test_gguf_split),  TEST(test_gguf_families),
        TEST(test_folder),       TEST(test_index),
        TEST(test_mlx),          TEST(test_halves),
        TEST(test_blocks),       TEST(test_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
