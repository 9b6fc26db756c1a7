/* Denormals never arise: the scalar kernels on one thread, with the underflow flag looked at after every operation
 * of the backend (docs/arithmetic.md §8). The operations are watched from outside, through a table of wrappers. */
#include <fenv.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/rng.h"
#include "infer/engine.h"

static const struct backend_ops *real;
static int raised, calls;

/* The flag after one operation. */
static void look(const char *op, const struct step *s)
{
    calls++;
    if (!fetestexcept(FE_UNDERFLOW))
        return;
    if (raised++ < 10)
        print_error("%s underflows in a step of %d rows at position %d\n", op, s ? s->n_rows : 0, s && s->pos ? (int)s->pos[0] : -1);
    feclearexcept(FE_ALL_EXCEPT);
}

static void w_embed(struct backend *b, const struct step *s, const struct bweight *w, enum buffer dst)
{
    real->embed(b, s, w, dst);
    look("embed", s);
}
static void w_norm(struct backend *b, const struct step *s, enum buffer src, const struct bvec *w, float eps, enum buffer dst, int col)
{
    real->norm(b, s, src, w, eps, dst, col);
    look("norm", s);
}
static void w_norm_add(struct backend *b, const struct step *s, enum buffer src, const struct bvec *w, float eps, int n_parts, enum buffer dst)
{
    real->norm_add(b, s, src, w, eps, n_parts, dst);
    look("norm_add", s);
}
static void w_scale(struct backend *b, const struct step *s, enum buffer dst, int n, float factor)
{
    real->scale(b, s, dst, n, factor);
    look("scale", s);
}
static void w_act_mul(struct backend *b, const struct step *s, enum activation act, enum buffer gate, enum buffer up, int up_col, int n)
{
    real->act_mul(b, s, act, gate, up, up_col, n);
    look("act_mul", s);
}
static void w_norm_mm(struct backend *b, const struct step *s, enum buffer src, const struct bvec *w, float eps, const struct product *p,
                      int n)
{
    real->norm_mm(b, s, src, w, eps, p, n);
    look("norm_mm", s);
}
static void w_mm(struct backend *b, const struct step *s, enum buffer src, const struct bweight *w, enum buffer dst)
{
    real->mm(b, s, src, w, dst);
    look("mm", s);
}
static void w_mm_add(struct backend *b, const struct step *s, enum buffer src, const struct bweight *w, enum buffer dst)
{
    real->mm_add(b, s, src, w, dst);
    look("mm_add", s);
}
static void w_attn(struct backend *b, const struct step *s, const struct attn_params *p, enum buffer dst)
{
    real->attn(b, s, p, dst);
    look("attn", s);
}
static void w_gdn(struct backend *b, const struct step *s, const struct gdn_params *p, enum buffer dst)
{
    real->gdn(b, s, p, dst);
    look("gdn", s);
}
static void w_mlp(struct backend *b, const struct step *s, const struct bvec *norm, float eps, const struct bweight *gate,
                  const struct bweight *up, const struct bweight *down, enum activation act, enum buffer dst)
{
    real->mlp(b, s, norm, eps, gate, up, down, act, dst);
    look("mlp", s);
}
static void w_head(struct backend *b, const struct step *s, enum buffer src, const int32_t *sel, int n, const struct bweight *w,
                   const struct head_out *out)
{
    real->head(b, s, src, sel, n, w, out);
    look("head", s);
}

/* A text in chunks, verifies with rejected drafts, and pairs of the head. */
static void run(struct engine *g, int n_tokens)
{
    uint32_t key[2] = {5, 0};
    int vocab = engine_model(g)->n_vocab, seq = seq_new(g), ld = engine_hidden_ld(g);
    struct row rows[40];
    struct err e = {0};
    float pair[8192];
    for (uint32_t i = 0; seq_len(g, seq) < n_tokens; i++) {
        uint32_t r[4];
        philox4x32(key, (uint32_t[4]){i, 0, 0, 0}, r);
        int n = i % 3 ? 1 + (int)(r[0] % 7) : 33;
        for (int k = 0; k < n; k++) {
            uint32_t t[4];
            philox4x32(key, (uint32_t[4]){i, 1 + (uint32_t)k, 0, 0}, t);
            rows[k] = (struct row){seq, (int32_t)(t[0] % (uint32_t)vocab), (uint8_t)(k == 0 ? WANT_LOGITS | WANT_HIDDEN | ROW_FINAL : 0)};
            if (n == 33 && k)
                rows[k].want = ROW_FINAL;
        }
        struct out out;
        if (engine_step(g, rows, n, &out, &e))
            fail_msg("%s", e.msg);
        seq_commit(g, seq, n == 33 ? 33 : 1 + (int)(r[1] % (uint32_t)n));
        memcpy(pair, out.hidden, (size_t)ld * sizeof *pair);
        struct mtp_row mr = {seq, rows[0].tok, pair, WANT_LOGITS};
        struct mtp_out mo;
        if (engine_has_mtp(g) && seq_mtp_len(g, seq) < seq_len(g, seq) && mtp_step(g, &mr, 1, NULL, true, &mo, &e))
            fail_msg("%s", e.msg);
    }
}

static void watch(const char *path, int n_tokens)
{
    struct err e = {0};
    struct package *p;
    struct backend *be = NULL;
    struct model *m = NULL;
    struct mtp_head head;
    struct engine *g;
    struct backend_options bo = {.threads = 1, .isa = "scalar"};
    struct engine_options eo = {.n_ctx = n_tokens + 128, .n_seqs = 1, .with_mtp = true};
    if (!file_exists(path)) {
        print_message("%s is not there\n", path);
        skip();
    }
    if (package_open(&p, path, &e) || backend_cpu_open(&be, &bo, &e) || model_open(&m, p, be, &e))
        fail_msg("%s", e.msg);
    mtp_bind(m, &head);
    if (engine_open(&g, m, &head, &eo, &e))
        fail_msg("%s", e.msg);
    real = be->ops;
    struct backend_ops watched = *real;
    watched.embed = w_embed, watched.norm = w_norm, watched.norm_mm = w_norm_mm, watched.mm = w_mm, watched.mm_add = w_mm_add;
    watched.norm_add = w_norm_add, watched.scale = w_scale, watched.act_mul = w_act_mul;
    watched.attn = w_attn, watched.gdn = w_gdn, watched.mlp = w_mlp, watched.head = w_head;
    be->ops = &watched;
    raised = calls = 0;
    feclearexcept(FE_ALL_EXCEPT);
    run(g, n_tokens);
    be->ops = real;
    print_message("%s: %d operations, %d underflows\n", path, calls, raised);
    engine_close(g);
    model_close(m);
    be->ops->close(be);
    assert_int_equal(raised, 0);
}

static void test_tiny(void **state)
{
    (void)state;
    watch("build/models/tiny", 1500);
}

static void test_demo(void **state)
{
    (void)state;
    watch("models/demo", 300);
}

static void test_gemma(void **state)
{
    (void)state;
    watch("tests/golden/models/gemma3-mlx-4bit", 600);
    watch("tests/golden/models/gemma4-ple", 600);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tiny), cmocka_unit_test(test_demo), cmocka_unit_test(test_gemma)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
