/* The generated models: every format opens, binds its head and computes finite logits; a seed gives the same
 * bytes; in the agreeing variant trunk and head follow one successor map. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "infer/engine.h"

static const char *tool;
static char folder[64];

static char *make_model(const char *shape, const char *format, const char *name, const char *option)
{
    char *out = path_join(folder, name);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        execl(tool, tool, shape, format, out, "--vocab", "400", option, (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return out;
}

struct fixture {
    struct backend *be;
    struct model *m;
    struct mtp_head head;
    struct engine *g;
};

static void open_model(struct fixture *f, const char *path)
{
    struct err e = {0};
    struct package *p;
    struct backend_options bo = {.threads = 1};
    struct engine_options eo = {.n_ctx = 256, .n_seqs = 2, .with_mtp = true};
    if (package_open(&p, path, &e) || backend_cpu_open(&f->be, &bo, &e) || model_open(&f->m, p, f->be, &e))
        fail_msg("%s", e.msg);
    mtp_bind(f->m, &f->head);
    assert_string_equal(f->head.why, "");
    assert_int_equal(f->head.health, MTP_OK);
    assert_int_equal(weights_check_finite(p->weights, &e), 0);
    for (int i = 0; i < weights_count(p->weights); i++)
        if (!weights_at(p->weights, i)->used)
            fail_msg("%s: tensor %s is not used", path, weights_at(p->weights, i)->name);
    if (engine_open(&f->g, f->m, &f->head, &eo, &e))
        fail_msg("%s", e.msg);
}

static void close_model(struct fixture *f)
{
    engine_close(f->g);
    model_close(f->m);
    f->be->ops->close(f->be);
}

static int argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 0; i < n; i++) {
        assert_true(isfinite(x[i]));
        best = x[i] > x[best] ? i : best;
    }
    return best;
}

/* Decodes n tokens greedily from tok; counts the drafts that the next step confirms. */
static int follow(struct fixture *f, int tok, int n, int *text)
{
    struct err e = {0};
    int seq = seq_new(f->g), ld = engine_hidden_ld(f->g), right = 0, draft = -1;
    float *pair = xcalloc((size_t)ld, sizeof *pair);
    for (int i = 0; i < n; i++) {
        struct out out;
        struct row row = {seq, tok, WANT_LOGITS | WANT_HIDDEN | ROW_FINAL};
        if (engine_step(f->g, &row, 1, &out, &e))
            fail_msg("%s", e.msg);
        seq_commit(f->g, seq, 1);
        memcpy(pair, out.hidden, (size_t)ld * sizeof *pair);
        int next = argmax(out.logits, f->m->n_vocab);
        right += i && next == draft;
        struct mtp_row mr = {seq, next, pair, WANT_LOGITS};
        struct mtp_out mo;
        if (mtp_step(f->g, &mr, 1, NULL, true, &mo, &e))
            fail_msg("%s", e.msg);
        draft = argmax(mo.logits, f->m->n_vocab);
        text[i] = tok = next;
    }
    free(pair);
    seq_free(f->g, seq);
    return right;
}

static void test_formats(void **state)
{
    static const struct {
        const char *shape, *format, *name;
    } all[] = {{"tiny", "bf16", "b"}, {"tiny", "mlx4", "m"}, {"tiny", "q4_0", "q.gguf"}, {"thin-0.8B", "mlx4", "w"}, {"tiny-moe", "mlx4", "e"}};
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct fixture f;
        int text[40], distinct = 0;
        char *path = make_model(all[i].shape, all[i].format, all[i].name, NULL);
        open_model(&f, path);
        follow(&f, 7, 40, text);
        for (int k = 1; k < 40; k++)
            distinct += text[k] != text[k - 1];
        assert_true(distinct > 10); // not a model that says one thing
        close_model(&f);
        free(path);
    }
}

static void test_agree(void **state)
{
    static const char *const formats[] = {"bf16", "mlx4", "q4_0"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct fixture f;
        int text[200], at = 300;
        char *path = make_model("tiny", formats[i], i == 2 ? "agree.gguf" : formats[i], "--agree");
        open_model(&f, path);
        assert_int_equal(follow(&f, at, 200, text), 199);
        for (int k = 0; k < 200; k++) {
            at = (at + 7) % 94;
            assert_int_equal(text[k], at);
        }
        close_model(&f);
        free(path);
    }
}

static void test_same_bytes(void **state)
{
    struct err e = {0};
    char *a = make_model("tiny", "q4_0", "one.gguf", NULL), *b = make_model("tiny", "q4_0", "two.gguf", NULL), *pa, *pb;
    size_t na, nb;
    (void)state;
    assert_int_equal(file_read(a, 1 << 30, &pa, &na, &e), 0);
    assert_int_equal(file_read(b, 1 << 30, &pb, &nb, &e), 0);
    assert_true(na == nb && !memcmp(pa, pb, na));
    free(a);
    free(b);
    free(pa);
    free(pb);
}

int main(int argc, char **argv)
{
    /* build/CONFIG/tests/property/test_mkmodel stands beside build/CONFIG/tools/mkmodel */
    char path[4096];
    (void)argc;
    const char *end = strstr(argv[0], "tests/property/");
    snprintf(path, sizeof path, "%.*stools/mkmodel", end ? (int)(end - argv[0]) : 0, argv[0]);
    tool = path;
    snprintf(folder, sizeof folder, "/tmp/foresay-mkmodel-XXXXXX");
    if (access(tool, X_OK) || !mkdtemp(folder)) {
        fprintf(stderr, "test_mkmodel: %s is not there\n", tool);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_formats), cmocka_unit_test(test_agree), cmocka_unit_test(test_same_bytes)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    pid_t pid = fork();
    if (!pid) {
        execlp("rm", "rm", "-rf", folder, (char *)NULL);
        _exit(127);
    }
    waitpid(pid, NULL, 0);
    return failed;
}
