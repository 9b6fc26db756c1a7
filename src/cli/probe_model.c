/* probe logits, product, state. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/cli.h"
#include "cli/opt.h"
#include "infer/instance.h"
#include "measure/logits.h"
#include "measure/npy.h"

/* "on" or "off"; the fast layout is not built yet, so both serve in place, with the same bits by contract. */
static int check_pack(const char *pack)
{
    if (!pack || !strcmp(pack, "on") || !strcmp(pack, "off") || !strcmp(pack, "auto"))
        return 0;
    fprintf(stderr, "foresay: --pack: expected on, off or auto, found \"%s\"\n", pack);
    return 2;
}

static int run_logits(const char *path, const char *ids_path, const char *dir, const struct instance_options *io, const struct logits_options *lo,
                      struct err *e)
{
    struct instance in;
    struct engine *g = NULL;
    struct arena a = {.max_bytes = (size_t)1 << 30};
    struct json *ids;
    char *text = NULL;
    size_t n;
    int longest, total, seqs, depth, rc;
    if ((rc = instance_open(&in, path, io, e)))
        return rc;
    rc = file_read(ids_path, 64 << 20, &text, &n, e);
    if (!rc)
        rc = json_parse(&ids, &a, text, n, ids_path, e);
    if (!rc)
        rc = logits_size(ids, in.m->n_vocab, &longest, &total, &seqs, &depth, e);
    if (!rc) {
        struct engine_options eo = {.n_ctx = total + seqs * (depth + 2 + PAGE_TOKENS), .n_seqs = seqs, .with_mtp = true};
        rc = engine_open(&g, in.m, &in.head, &eo, e);
    }
    if (!rc)
        rc = logits_write(g, ids, dir, lo, e);
    engine_close(g);
    instance_close(&in);
    arena_free(&a);
    free(text);
    return rc;
}

int probe_logits(int argc, char **argv)
{
    const char *model, *ids = NULL, *out = NULL, *isa = NULL, *pack = NULL;
    int chunk = 0, threads = 0;
    bool batch = false, is_float = false;
    struct opt opts[] = {
        {"ids", OPT_STR, &ids, .arg = "FILE", .help = "sequences, rows, starts, drafts, depth as JSON"},
        {"out", OPT_STR, &out, .arg = "DIR", .help = "folder for the .npy files"},
        {"float", OPT_FLAG, &is_float, .help = "activations are not quantized"},
        {"chunk", OPT_INT, &chunk, 0, 1 << 20, .arg = "N", .help = "rows of a sequence per step, 0: as many as fit"},
        {"batch", OPT_FLAG, &batch, .help = "all sequences interleaved in one batch"},
        {"threads", OPT_INT, &threads, 0, 256, .arg = "N", .help = "0: all CPUs"},
        {"isa", OPT_STR, &isa, .arg = "NAME", .help = "scalar, avx2"},
        {"pack", OPT_STR, &pack, .arg = "on|off", .help = "fast weight layout"},
    };
    struct err e = {0};
    int n = opt_parse(opts, sizeof opts / sizeof *opts, argc, argv, &model, 1, "usage: foresay probe logits MODEL --ids FILE --out DIR");
    if (n < 0)
        return n == -2 ? 0 : 2;
    if (n != 1 || !ids || !out) {
        fprintf(stderr, "foresay: probe logits needs MODEL, --ids FILE and --out DIR\n");
        return 2;
    }
    if (check_pack(pack))
        return 2;
    struct instance_options io = {.threads = threads, .isa = isa, .float_mode = is_float, .without_tokenizer = true};
    struct logits_options lo = {chunk, batch};
    return run_logits(model, ids, out, &io, &lo, &e) ? cli_fail(&e) : 0;
}

/* Y = X W^T for one stored weight, through the backend's own product. */
static int run_product(const char *path, const char *tensor, const char *x_path, const char *y_path, const struct instance_options *io,
                       struct err *e)
{
    struct package *p;
    struct backend *be = NULL;
    struct bweight *bw = NULL;
    float *x = NULL, *y = NULL;
    int64_t shape[2];
    int rc = package_open(&p, path, e);
    if (rc)
        return rc;
    const struct weight *w = NULL;
    for (int i = 0; i < weights_count(p->weights); i++)
        if (!strcmp(weights_at(p->weights, i)->name, tensor))
            w = weights_at(p->weights, i);
    if (!w)
        rc = err_set(e, ERR_ARG, "%s: there is no tensor %s", path, tensor);
    else if (w->ndim != 2)
        rc = err_set(e, ERR_UNSUPPORTED, "%s: tensor %s has %d dimensions; products of other than matrices are unsupported", path, tensor, w->ndim);
    struct backend_options bo = {.threads = io->threads, .isa = io->isa};
    if (!rc)
        rc = backend_cpu_open(&be, &bo, e);
    if (!rc)
        rc = be->ops->weight(be, w, &bw, e);
    if (!rc)
        rc = npy_read(x_path, &x, shape, e);
    if (!rc && shape[1] != w->ne[1])
        rc = err_set(e, ERR_ARG, "%s: %lld columns, the tensor has %lld", x_path, (long long)shape[1], (long long)w->ne[1]);
    int rows = rc ? 0 : (int)shape[0], block = 256;
    int widths[BUF_COUNT] = {0};
    if (!rc) {
        widths[BUF_NORM] = (int)w->ne[1];
        widths[BUF_X] = (int)w->ne[0];
        rc = be->ops->setup(be, NULL, 0, widths, block, (int[PAGE_CLASSES]){0}, 1, 1, e);
    }
    if (!rc && !(y = malloc((size_t)rows * (size_t)w->ne[0] * 4)))
        rc = err_set(e, ERR_NOMEM, "no memory for %d rows", rows);
    for (int r0 = 0; r0 < rows && !rc; r0 += block) {
        int n = rows - r0 < block ? rows - r0 : block;
        size_t ld_x = ((size_t)w->ne[1] + 15) & ~(size_t)15, ld_y = ((size_t)w->ne[0] + 15) & ~(size_t)15;
        float *row = calloc(ld_x > ld_y ? ld_x : ld_y, 4);
        for (int r = 0; r < n; r++) {
            memcpy(row, x + (int64_t)(r0 + r) * shape[1], (size_t)shape[1] * 4);
            be->ops->write(be, BUF_NORM, r, 1, row);
        }
        struct step s = {.n_rows = n};
        be->ops->mm(be, &s, BUF_NORM, bw, BUF_X);
        for (int r = 0; r < n; r++) {
            be->ops->read(be, BUF_X, r, 1, row);
            memcpy(y + (int64_t)(r0 + r) * w->ne[0], row, (size_t)w->ne[0] * 4);
        }
        free(row);
    }
    if (!rc)
        rc = npy_write(y_path, y, (int64_t[]){rows, w->ne[0]}, 2, e);
    free(x);
    free(y);
    if (be)
        be->ops->close(be);
    package_close(p);
    return rc;
}

int probe_product(int argc, char **argv)
{
    const char *model, *tensor = NULL, *x = NULL, *out = NULL, *isa = NULL, *pack = NULL;
    struct opt opts[] = {
        {"tensor", OPT_STR, &tensor, .arg = "NAME", .help = "name in the file"},
        {"x", OPT_STR, &x, .arg = "X.npy", .help = "float32 [rows, in]"},
        {"out", OPT_STR, &out, .arg = "Y.npy", .help = "float32 [rows, out]"},
        {"isa", OPT_STR, &isa, .arg = "NAME", .help = "scalar, avx2"},
        {"pack", OPT_STR, &pack, .arg = "on|off", .help = "fast weight layout"},
    };
    struct err e = {0};
    int n = opt_parse(opts, sizeof opts / sizeof *opts, argc, argv, &model, 1,
                      "usage: foresay probe product MODEL --tensor NAME --x X.npy --out Y.npy");
    if (n < 0)
        return n == -2 ? 0 : 2;
    if (n != 1 || !tensor || !x || !out) {
        fprintf(stderr, "foresay: probe product needs MODEL, --tensor, --x and --out\n");
        return 2;
    }
    if (check_pack(pack))
        return 2;
    struct instance_options io = {.isa = isa};
    return run_product(model, tensor, x, out, &io, &e) ? cli_fail(&e) : 0;
}

int probe_state(int argc, char **argv)
{
    const char *model;
    struct err e = {0};
    struct instance in;
    int n = opt_parse(NULL, 0, argc, argv, &model, 1, "usage: foresay probe state MODEL");
    if (n < 0)
        return n == -2 ? 0 : 2;
    if (n != 1) {
        fprintf(stderr, "foresay: probe state needs MODEL\n");
        return 2;
    }
    struct instance_options io = {.threads = 1, .without_tokenizer = true};
    if (instance_open(&in, model, &io, &e))
        return cli_fail(&e);
    struct buf b;
    buf_init(&b, 256 << 20);
    size_t per_token = 0, per_seq = 0;
    buf_str(&b, "{\"state\": [");
    for (int i = 0; i < in.m->n_specs; i++) {
        const struct state_spec *s = &in.m->specs[i];
        buf_str(&b, i ? ", " : "");
        if (s->kind == STATE_KV) {
            size_t bytes = (size_t)s->heads * (size_t)(s->dk + s->dv) * 2;
            per_token += s->window ? 0 : bytes;
            buf_fmt(&b, "{\"kind\": \"kv\", \"layer\": %d, \"heads\": %d, \"dk\": %d, \"dv\": %d, \"window\": %d, \"type\": \"f16\", \"bytes_per_token\": %zu}",
                    s->layer, s->heads, s->dk, s->dv, s->window, bytes);
        } else {
            size_t bytes = (size_t)s->heads * (size_t)s->dk * (size_t)s->dv * 4;
            per_seq += bytes;
            buf_fmt(&b, "{\"kind\": \"recurrent\", \"layer\": %d, \"heads\": %d, \"dk\": %d, \"dv\": %d, \"conv_channels\": %d, \"type\": \"f32\", \"bytes\": %zu}",
                    s->layer, s->heads, s->dk, s->dv, s->conv, bytes);
        }
    }
    buf_fmt(&b, "], \"bytes_per_token\": %zu, \"bytes_per_sequence\": %zu, \"weights\": [", per_token, per_seq);
    for (int i = 0; i < weights_count(in.m->pkg->weights); i++) {
        const struct weight *w = weights_at(in.m->pkg->weights, i);
        buf_str(&b, i ? ",\n {\"name\": " : "\n {\"name\": ");
        json_write_str(&b, w->name, strlen(w->name));
        buf_str(&b, ", \"file\": ");
        json_write_str(&b, w->file, strlen(w->file));
        buf_str(&b, ", \"format\": ");
        json_write_str(&b, w->type, strlen(w->type));
        buf_str(&b, ", \"shape\": [");
        for (int d = 0; d < w->ndim; d++)
            buf_fmt(&b, "%s%lld", d ? ", " : "", (long long)w->ne[d]);
        const char *why = w->unused_why ? w->unused_why : "not known to this architecture";
        buf_fmt(&b, "], \"used\": %s", w->used ? "true" : "false");
        if (!w->used) {
            buf_str(&b, ", \"why\": ");
            json_write_str(&b, why, strlen(why));
        }
        buf_chr(&b, '}');
    }
    buf_str(&b, "]}\n");
    fwrite(b.p, 1, b.n, stdout);
    buf_free(&b);
    instance_close(&in);
    return 0;
}
