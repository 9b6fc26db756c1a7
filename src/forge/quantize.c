#include "forge/quantize.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/human.h"
#include "base/os.h"
#include "forge/affine.h"
#include "forge/plan.h"
#include "forge/text.h"
#include "token/tokenizer.h"

static const uint64_t shard_max = (uint64_t)5 << 30, spare = 64 << 20;
enum { ROWS = 64, MAX_PLAN = 64 << 20, MAX_TEXT = 16 << 20 };

struct job {
    const struct quantize_options *o;
    struct quantize_report *r;
    struct package *pkg;
    struct plan plan;
    char *dir;         // DST.partial
    struct ids tokens; // calibration, then held out
};

static bool stopped(const struct job *j) { return j->o->cancel && atomic_load(j->o->cancel); }
static int cancel(struct err *e) { return err_set(e, ERR_CANCEL, "interrupted: the same command goes on from here"); }

static void progress(const struct job *j, const char *what, double share)
{
    if (j->o->on_progress)
        j->o->on_progress(j->o->ud, what, share);
}

/* ---- choosing bits ---------------------------------------------------------------------------------------------- */

static int read_tokens(struct job *j, struct err *e)
{
    const char *text = forge_text;
    char *own = NULL;
    size_t n = strlen(text);
    struct tokenizer *t = NULL;
    int rc = 0;
    if (j->o->text) {
        if ((rc = file_read(j->o->text, MAX_TEXT, &own, &n, e)))
            return rc;
        text = own;
    }
    rc = tokenizer_present(j->o->src) ? tokenizer_open(&t, j->o->src, e) : tokenizer_open_bytes(&t, e);
    if (!rc)
        rc = tokenizer_encode(t, text, n, ADDED_NONE, &j->tokens, e);
    tokenizer_close(t);
    free(own);
    if (!rc && j->tokens.n < 64)
        rc = err_set(e, ERR_ARG, "%s: expected a text of at least 64 tokens, found %zu", j->o->text ? j->o->text : "the built-in text", (size_t)j->tokens.n);
    return rc;
}

/* A fresh look at the source, with the target's tensors quantized to 4 bits in *mem. */
static int open_with(const struct job *j, const struct plan_target *t, struct package **out, void **mem, struct err *e)
{
    int rc = package_open(out, j->o->src, e);
    for (int i = 0; t && i < t->n_parts && !rc; i++) {
        struct weight *w = (struct weight *)(uintptr_t)weights_at((*out)->weights, t->part[i].index); // this package is ours alone
        if (w->fmt == WF_MLX)
            continue;
        int64_t rows = 1, n = w->ne[w->ndim - 1];
        for (int k = 0; k < w->ndim - 1; k++)
            rows *= w->ne[k];
        size_t codes = (size_t)n / 2, parts = (size_t)(n / j->plan.group) * (w->fmt == WF_F32 ? 4 : 2);
        uint8_t *p = malloc((size_t)rows * (codes + 2 * parts) + sizeof(void *) + 64);
        float *row = xmalloc((size_t)n * sizeof *row);
        if (!p) {
            free(row);
            package_close(*out);
            return err_set(e, ERR_NOMEM, "%s: no memory to try %s at 4 bits", j->o->src, t->name);
        }
        memcpy(p, mem, sizeof *mem); // a chain, freed by free_chain
        *mem = p;
        uint8_t *q = p + 64, *s = q + (size_t)rows * codes, *b = s + (size_t)rows * parts;
        for (int64_t r = 0; r < rows; r++) {
            weight_row(w, r, row);
            affine_quantize(row, n, 4, j->plan.group, w->fmt, q + (size_t)r * codes, s + (size_t)r * parts, b + (size_t)r * parts);
        }
        free(row);
        w->scale_fmt = w->fmt, w->fmt = WF_MLX, w->bits = 4, w->group = j->plan.group;
        w->q = q, w->scale = s, w->bias = b, w->row_bytes = codes;
    }
    return rc;
}

static void free_chain(void *p)
{
    while (p) {
        void *next;
        memcpy(&next, p, sizeof next);
        free(p);
        p = next;
    }
}

/* Logits of the reference over tokens [0, n), all of them: n * n_vocab floats. */
static int reference(const struct job *j, int n, float **out, int *n_vocab, struct err *e)
{
    struct package *pkg;
    struct reader *r;
    const float *logits;
    int rc = package_open(&pkg, j->o->src, e);
    if (rc || (rc = reader_open(&r, pkg, j->o->threads, n, e)))
        return rc;
    size_t V = (size_t)(*n_vocab = reader_n_vocab(r));
    if (!(*out = malloc((size_t)n * V * sizeof **out)))
        rc = err_set(e, ERR_NOMEM, "no memory for the logits of %d tokens", n);
    for (int at = 0; at < n && !rc; at += READER_BLOCK) {
        int k = n - at < READER_BLOCK ? n - at : READER_BLOCK;
        if (!(rc = stopped(j) ? cancel(e) : reader_step(r, j->tokens.v + at, k, &logits, e)))
            memcpy(*out + (size_t)at * V, logits, (size_t)k * V * sizeof *logits);
    }
    reader_close(r);
    return rc;
}

static int measure(const struct job *j, const struct plan_target *t, const float *ref, int n, int V, double *work, double *kl, struct err *e)
{
    struct package *pkg;
    struct reader *r = NULL;
    struct agreement a = {0};
    void *mem = NULL;
    const float *logits;
    int rc = open_with(j, t, &pkg, &mem, e);
    if (!rc)
        rc = reader_open(&r, pkg, j->o->threads, n, e);
    for (int at = 0; at < n && !rc; at += READER_BLOCK) {
        int k = n - at < READER_BLOCK ? n - at : READER_BLOCK;
        rc = stopped(j) ? cancel(e) : reader_step(r, j->tokens.v + at, k, &logits, e);
        for (int i = 0; i < k && !rc; i++)
            if (!agreement_add(&a, ref + (size_t)(at + i) * (size_t)V, logits + (size_t)i * (size_t)V, V, work))
                rc = err_set(e, ERR_NUMERIC, "%s: the logits at token %d are not numbers", j->o->src, at + i);
    }
    reader_close(r);
    free_chain(mem);
    agreement_finish(&a);
    *kl = a.kl;
    return rc;
}

/* What earlier runs measured: lines "NAME KL" of the same source, text and length. */
static void recall(struct job *j, const char *path, const char *key)
{
    char *text = NULL, *at, *end;
    size_t n;
    if (file_read(path, MAX_PLAN, &text, &n, NULL))
        return;
    if (!strncmp(text, key, strlen(key)))
        for (at = strchr(text, '\n'); at && at[1]; at = end) {
            char *name = at + 1, *space = strchr(name, ' ');
            end = strchr(name, '\n');
            if (!space || !end || space > end)
                break;
            for (int i = 0; i < j->plan.n; i++)
                if (strlen(j->plan.target[i].name) == (size_t)(space - name) && !strncmp(j->plan.target[i].name, name, (size_t)(space - name)))
                    j->plan.target[i].kl = strtod(space + 1, NULL);
        }
    free(text);
}

static int choose_bits(struct job *j, const char *key, struct err *e)
{
    int n = j->o->calibration < (int)j->tokens.n / 2 ? j->o->calibration : (int)j->tokens.n / 2, V = 0, done = 0, total = 0, rc = 0;
    char *path = path_join(j->dir, "sensitivity");
    float *ref = NULL;
    double *work = NULL;
    recall(j, path, key);
    for (int i = 0; i < j->plan.n; i++)
        total += j->plan.target[i].bits > 0 && j->plan.target[i].kl < 0;
    if (total)
        rc = reference(j, n, &ref, &V, e);
    if (total && !rc)
        work = xmalloc(2 * (size_t)V * sizeof *work);
    for (int i = 0; i < j->plan.n && !rc && total; i++) {
        struct plan_target *t = &j->plan.target[i];
        if (!t->bits || t->kl >= 0)
            continue;
        progress(j, "measuring tensors at 4 bits", (double)done++ / total);
        if ((rc = measure(j, t, ref, n, V, work, &t->kl, e)))
            break;
        struct buf b;
        buf_init(&b, MAX_PLAN);
        buf_str(&b, key);
        for (int k = 0; k < j->plan.n; k++)
            if (j->plan.target[k].kl >= 0)
                buf_fmt(&b, "\n%s %.9g", j->plan.target[k].name, j->plan.target[k].kl);
        buf_chr(&b, '\n');
        rc = file_write(path, b.p, b.n, e);
        buf_free(&b);
    }
    free(ref);
    free(work);
    free(path);
    if (!rc)
        plan_spend(&j->plan, j->pkg, j->o->bpw);
    return rc;
}

/* ---- writing ------------------------------------------------------------------------------------------------------ */

static void shard_name(const struct plan *p, int shard, char out[64])
{
    if (p->n_shards == 1)
        snprintf(out, 64, "model.safetensors");
    else
        snprintf(out, 64, "model-%05d-of-%05d.safetensors", shard + 1, p->n_shards);
}

/* The name of a target's tensor k: codes, scales, biases. */
static void part_name(const struct plan_target *t, int k, struct buf *out)
{
    static const char *const ends[] = {"weight", "scales", "biases"};
    buf_clear(out);
    buf_add(out, t->name, strlen(t->name) - (k ? 6 : 0));
    if (k)
        buf_str(out, ends[k]);
}

static const char *dtype_of(const struct job *j, const struct plan_target *t, int k)
{
    static const char *const names[] = {"F32", "F16", "BF16"};
    const struct weight *w = weights_at(j->pkg->weights, t->part[0].index);
    return t->bits ? k ? names[plan_scale_fmt(j->pkg, t)] : "U32" : w->type;
}

/* The header of one shard, padded so that data begin at a multiple of 8. */
static void header(const struct job *j, int shard, struct buf *b)
{
    struct buf name;
    buf_init(&name, 1 << 16);
    uint64_t n = 0;
    buf_add(b, &n, 8);
    buf_str(b, "{\"__metadata__\":{\"format\":\"mlx\"}");
    for (int i = 0; i < j->plan.n; i++) {
        const struct plan_target *t = &j->plan.target[i];
        for (int k = 0; k < (t->bits ? 3 : 1) && t->shard == shard; k++) {
            part_name(t, k, &name);
            buf_chr(b, ',');
            json_write_str(b, name.p, name.n);
            buf_fmt(b, ":{\"dtype\":\"%s\",\"shape\":[", dtype_of(j, t, k));
            for (int d = 0; d < t->ndim; d++) {
                int64_t ne = t->ne[d];
                if (t->bits && d == t->ndim - 1)
                    ne = k ? ne / j->plan.group : ne * t->bits / 32;
                buf_fmt(b, "%s%" PRId64, d ? "," : "", ne);
            }
            buf_fmt(b, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->at[k], t->at[k] + t->bytes[k]);
        }
    }
    buf_chr(b, '}');
    while (b->n % 8)
        buf_chr(b, ' ');
    n = b->n - 8;
    memcpy(b->p, &n, 8);
    buf_free(&name);
}

static int write_failed(const struct job *j, const char *name, struct err *e)
{
    char why[128];
    return err_set(e, ERR_IO, "%s/%s: cannot write: %s", j->dir, name, err_os(errno, why, sizeof why));
}

static int write_target(struct job *j, const struct plan_target *t, int fd, uint64_t base, const char *file, struct err *e)
{
    const struct weight *w = weights_at(j->pkg->weights, t->part[0].index);
    if (!t->bits)
        return fd_write_at(fd, w->q, t->bytes[0], base + t->at[0]) ? write_failed(j, file, e) : 0;
    int64_t n = t->ne[t->ndim - 1];
    size_t codes = (size_t)(n * t->bits / 8), parts = (size_t)(n / j->plan.group) * (w->fmt == WF_F32 ? 4 : 2);
    float *row = xmalloc((size_t)n * sizeof *row);
    uint8_t *q = xmalloc(ROWS * (codes + 2 * parts)), *s = q + ROWS * codes, *b = s + ROWS * parts;
    int64_t done = 0;
    int rc = 0;
    for (int i = 0; i < t->n_parts && !rc; i++) {
        const struct plan_part *p = &t->part[i];
        int64_t all = p->rows >= 0 ? p->rows : w->ne[0];
        w = weights_at(j->pkg->weights, p->index);
        for (int64_t r = 0; r < all && !rc; r += ROWS) {
            size_t k = (size_t)(all - r < ROWS ? all - r : ROWS);
            for (size_t x = 0; x < k; x++) {
                weight_row(w, p->row0 + r + (int64_t)x, row);
                affine_quantize(row, n, t->bits, j->plan.group, w->fmt, q + x * codes, s + x * parts, b + x * parts);
            }
            if (stopped(j))
                rc = cancel(e);
            else if (fd_write_at(fd, q, k * codes, base + t->at[0] + (uint64_t)done * codes) ||
                     fd_write_at(fd, s, k * parts, base + t->at[1] + (uint64_t)done * parts) ||
                     fd_write_at(fd, b, k * parts, base + t->at[2] + (uint64_t)done * parts))
                rc = write_failed(j, file, e);
            done += (int64_t)k;
        }
    }
    free(row);
    free(q);
    return rc;
}

/* How many targets an earlier run of the same plan has written. */
static int done_before(const struct job *j, const struct buf *plan)
{
    char *path = path_join(j->dir, "plan"), *text = NULL, *count = NULL;
    size_t n;
    int done = 0;
    bool same = !file_read(path, MAX_PLAN, &text, &n, NULL) && n == plan->n && !memcmp(text, plan->p, n);
    free(path);
    path = path_join(j->dir, "done");
    if (same && !file_read(path, 64, &count, &n, NULL))
        done = (int)strtol(count, NULL, 10);
    free(path);
    free(text);
    free(count);
    return done < 0 || done > j->plan.n ? 0 : done;
}

static int note_done(const struct job *j, int n, struct err *e)
{
    char *path = path_join(j->dir, "done"), text[32];
    int k = snprintf(text, sizeof text, "%d\n", n), rc = file_write(path, text, (size_t)k, e);
    free(path);
    return rc;
}

static int write_weights(struct job *j, const struct buf *plan, struct err *e)
{
    int done = done_before(j, plan), fd = -1, open_shard = -1, rc = 0;
    uint64_t base = 0, unsynced = 0;
    char file[64], *path = path_join(j->dir, "plan");
    j->r->n_resumed = done;
    if (!done)
        rc = file_write(path, plan->p, plan->n, e);
    free(path);
    for (int i = done; i < j->plan.n && !rc; i++) {
        const struct plan_target *t = &j->plan.target[i];
        progress(j, "writing", (double)i / j->plan.n);
        if (t->shard != open_shard) {
            struct buf head;
            buf_init(&head, MAX_PLAN);
            header(j, t->shard, &head);
            shard_name(&j->plan, open_shard = t->shard, file);
            path = path_join(j->dir, file);
            if (fd >= 0 && (fsync(fd) || close(fd)))
                rc = write_failed(j, file, e);
            fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
            base = head.n;
            if (!rc && (fd < 0 || fd_write_at(fd, head.p, head.n, 0)))
                rc = write_failed(j, file, e);
            buf_free(&head);
            free(path);
        }
        if (!rc)
            rc = write_target(j, t, fd, base, file, e);
        unsynced += t->bytes[0] + t->bytes[1] + t->bytes[2];
        if (!rc && (unsynced > spare || i + 1 == j->plan.n)) {
            rc = fsync(fd) ? write_failed(j, file, e) : note_done(j, i + 1, e);
            unsynced = 0;
        }
    }
    if (fd >= 0 && close(fd) && !rc)
        rc = write_failed(j, file, e);
    return rc;
}

/* ---- the other files ---------------------------------------------------------------------------------------------- */

static void put_quantization(const struct job *j, struct buf *b)
{
    buf_fmt(b, "{\"group_size\":%d,\"bits\":%d,\"mode\":\"affine\"", j->plan.group, j->plan.bits);
    for (int i = 0; i < j->plan.n; i++) {
        const struct plan_target *t = &j->plan.target[i];
        if (!t->bits || t->bits == j->plan.bits)
            continue;
        buf_chr(b, ',');
        json_write_str(b, t->name, strlen(t->name) - 7); // less ".weight"
        buf_fmt(b, ":{\"group_size\":%d,\"bits\":%d}", j->plan.group, t->bits);
    }
    buf_chr(b, '}');
}

static int write_config(const struct job *j, struct err *e)
{
    struct arena a = {.max_bytes = MAX_PLAN};
    char *src = path_join(j->o->src, "config.json"), *dst = path_join(j->dir, "config.json"), *text = NULL;
    struct json *v;
    struct buf b;
    size_t n;
    buf_init(&b, MAX_PLAN);
    int rc = file_read(src, MAX_PLAN, &text, &n, e);
    if (!rc)
        rc = json_parse(&v, &a, text, n, src, e);
    if (!rc) {
        buf_chr(&b, '{');
        for (const struct json *c = v->child; c; c = c->next) {
            if (!strcmp(c->key, "quantization") || !strcmp(c->key, "quantization_config"))
                continue;
            json_write_str(&b, c->key, strlen(c->key));
            buf_chr(&b, ':');
            json_write(&b, c);
            buf_chr(&b, ',');
        }
        for (int k = 0; k < 2; k++) {
            buf_str(&b, k ? ",\"quantization_config\":" : "\"quantization\":");
            put_quantization(j, &b);
        }
        buf_str(&b, "}\n");
        rc = file_write(dst, b.p, b.n, e);
    }
    buf_free(&b);
    arena_free(&a);
    free(src);
    free(dst);
    free(text);
    return rc;
}

static int write_index(const struct job *j, struct err *e)
{
    struct buf b, name;
    char file[64], *path = path_join(j->dir, "model.safetensors.index.json");
    buf_init(&b, MAX_PLAN);
    buf_init(&name, 1 << 16);
    buf_fmt(&b, "{\"metadata\":{\"total_size\":%" PRIu64 "},\"weight_map\":{", j->plan.total);
    for (int i = 0, first = 1; i < j->plan.n; i++)
        for (int k = 0; k < (j->plan.target[i].bits ? 3 : 1); k++, first = 0) {
            part_name(&j->plan.target[i], k, &name);
            shard_name(&j->plan, j->plan.target[i].shard, file);
            buf_str(&b, first ? "" : ",");
            json_write_str(&b, name.p, name.n);
            buf_fmt(&b, ":\"%s\"", file);
        }
    buf_str(&b, "}}\n");
    int rc = file_write(path, b.p, b.n, e);
    buf_free(&b);
    buf_free(&name);
    free(path);
    return rc;
}

/* Tokenizer, template and the like: every small file that isn't weights and isn't written anew. */
static int copy_others(const struct job *j, struct err *e)
{
    static const char *const kinds[] = {".json", ".jinja", ".txt", ".model", ".py"};
    struct filelist l;
    int rc = file_list(&l, j->o->src, e);
    if (rc)
        return rc;
    for (int i = 0; i < l.n && !rc; i++) {
        char *from = path_join(j->o->src, l.name[i]), *to = path_join(j->dir, l.name[i]), *text;
        size_t n;
        bool take = false;
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            take = take || path_ends(l.name[i], kinds[k]);
        if (take && strcmp(l.name[i], "config.json") && !path_ends(l.name[i], ".index.json") && file_is_regular(from) &&
            !(rc = file_read(from, (size_t)256 << 20, &text, &n, e))) {
            rc = file_write(to, text, n, e);
            free(text);
        }
        free(from);
        free(to);
    }
    file_list_free(&l);
    return rc;
}

static int write_others(const struct job *j, struct err *e)
{
    int rc = write_config(j, e);
    if (!rc && j->plan.n_shards > 1)
        rc = write_index(j, e);
    return rc ? rc : copy_others(j, e);
}

static int write_card(const struct job *j, struct err *e)
{
    const struct agreement *a = &j->r->agreement;
    char size[32], from[32], *path = path_join(j->dir, "README.md");
    int by_bits[9] = {0};
    struct buf b;
    for (int i = 0; i < j->plan.n; i++)
        by_bits[j->plan.target[i].bits]++;
    buf_init(&b, 1 << 20);
    buf_fmt(&b, "---\nlibrary_name: mlx\ntags:\n- mlx\n- foresay\n---\n# %s\n\nQuantized from %s by `foresay quantize`: %s in %s, %.2f bits a weight with scales, groups of %d.\n\n",
            path_base(j->o->dst), path_base(j->o->src), human_bytes((double)j->r->dst_bytes, size, sizeof size),
            human_bytes((double)j->r->src_bytes, from, sizeof from), j->r->bpw, j->plan.group);
    buf_str(&b, "| bits | tensors |\n|---|---|\n");
    for (int k = 1; k < 9; k++)
        if (by_bits[k])
            buf_fmt(&b, "| %d | %d |\n", k, by_bits[k]);
    buf_fmt(&b, "| as stored (norms, small gates, an MTP head) | %d |\n\n", by_bits[0]);
    buf_fmt(&b, "Against the source, over %d tokens of %s that no bits were chosen on:\n\n| | |\n|---|---|\n| same most likely token | %.2f %% |\n"
                "| KL divergence, mean | %.5f nats |\n| KL divergence, 99.9th percentile | %.4f nats |\n",
            a->n, j->o->text ? "a given text" : "foresay's built-in text", 100 * a->top1, a->kl, a->kl_999);
    int rc = file_write(path, b.p, b.n, e);
    buf_free(&b);
    free(path);
    return rc;
}

/* ---- the run -------------------------------------------------------------------------------------------------------- */

static int judge(struct job *j, struct err *e)
{
    struct package *a = NULL, *b = NULL;
    struct reader *p = NULL, *q = NULL;
    const float *lp, *lq;
    double *work = NULL;
    int all = (int)j->tokens.n, first = all / 2, n = all - first < j->o->held_out ? all - first : j->o->held_out;
    int rc = package_open(&a, j->o->src, e);
    if (!rc)
        rc = reader_open(&p, a, j->o->threads, n, e);
    if (!rc)
        rc = package_open(&b, j->dir, e);
    if (!rc)
        rc = reader_open(&q, b, j->o->threads, n, e);
    if (!rc)
        work = xmalloc(2 * (size_t)reader_n_vocab(p) * sizeof *work);
    for (int at = 0; at < n && !rc; at += READER_BLOCK) {
        int k = n - at < READER_BLOCK ? n - at : READER_BLOCK, V = reader_n_vocab(p);
        progress(j, "comparing with the source", (double)at / n);
        rc = stopped(j) ? cancel(e) : 0;
        if (rc || (rc = reader_step(p, j->tokens.v + first + at, k, &lp, e)) || (rc = reader_step(q, j->tokens.v + first + at, k, &lq, e)))
            break;
        for (int i = 0; i < k && !rc; i++)
            if (!agreement_add(&j->r->agreement, lp + (size_t)i * (size_t)V, lq + (size_t)i * (size_t)V, V, work))
                rc = err_set(e, ERR_NUMERIC, "%s: the logits at token %d are not numbers", j->o->src, at + i);
    }
    agreement_finish(&j->r->agreement);
    free(work);
    reader_close(p);
    reader_close(q);
    return rc;
}

/* What makes two runs the same: source, sizes and choices. */
static void describe(const struct job *j, struct buf *b)
{
    char *real = os_real_path(j->o->src);
    buf_fmt(b, "%s group %d bits %d bpw %g text %s tokens %zu calibration %d source %" PRIu64, real ? real : j->o->src, j->o->group, j->o->bits, j->o->bpw,
            j->o->text ? j->o->text : "-", (size_t)j->tokens.n, j->o->calibration, j->r->src_bytes);
    for (char *s = b->p; s < b->p + b->n; s++)
        *s = *s == '\n' ? '?' : *s;
    free(real);
}

static int run(struct job *j, struct err *e)
{
    struct buf key, plan;
    int rc = plan_make(&j->plan, j->pkg, j->o->bits ? j->o->bits : 4, j->o->group, e);
    for (int i = 0; i < weights_count(j->pkg->weights); i++)
        j->r->src_bytes += weights_at(j->pkg->weights, i)->bytes;
    for (int i = 0; i < j->plan.n; i++)
        j->plan.target[i].bits ? j->r->n_quantized++ : j->r->n_kept++;
    if (!rc && !j->r->n_quantized)
        rc = err_set(e, ERR_UNSUPPORTED, "%s: no matrix has rows that groups of %d divide: nothing to quantize", j->o->src, j->o->group);
    if (!rc)
        rc = read_tokens(j, e);
    if (!rc)
        rc = file_make_dirs(j->dir, e);
    buf_init(&key, 1 << 20);
    buf_init(&plan, MAX_PLAN);
    describe(j, &key);
    if (!rc && !j->o->bits)
        rc = choose_bits(j, buf_cstr(&key), e);
    if (!rc) {
        plan_place(&j->plan, j->pkg, shard_max);
        j->r->bpw = plan_bpw(&j->plan, j->pkg);
        j->r->dst_bytes = j->plan.total;
        buf_add(&plan, key.p, key.n);
        for (int i = 0; i < j->plan.n; i++)
            buf_fmt(&plan, "\n%s %d", j->plan.target[i].name, j->plan.target[i].bits);
        char need[32], have[32];
        uint64_t room = os_disk_free(j->dir);
        if (!done_before(j, &plan) && room < j->plan.total + spare)
            rc = err_set(e, ERR_IO, "%s: needs %s, the volume has %s free", j->o->dst, human_bytes((double)j->plan.total, need, sizeof need),
                         human_bytes((double)room, have, sizeof have));
    }
    if (!rc)
        rc = write_weights(j, &plan, e);
    if (!rc)
        rc = write_others(j, e);
    if (!rc)
        rc = judge(j, e);
    if (!rc)
        rc = write_card(j, e);
    buf_free(&key);
    buf_free(&plan);
    return rc;
}

/* Half-written small files of a run that was killed. */
static int sweep(const struct job *j, struct err *e)
{
    struct filelist l;
    int rc = file_list(&l, j->dir, e);
    if (rc)
        return rc;
    for (int i = 0; i < l.n && !rc; i++)
        if (strstr(l.name[i], ".tmp.")) {
            char *path = path_join(j->dir, l.name[i]);
            rc = file_remove_tree(path, e);
            free(path);
        }
    file_list_free(&l);
    return rc;
}

static int finish(struct job *j, struct err *e)
{
    static const char *const own[] = {"plan", "done", "sensitivity"};
    char why[128];
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        char *path = path_join(j->dir, own[i]);
        unlink(path);
        free(path);
    }
    file_sync_dir(j->dir);
    if (rename(j->dir, j->o->dst))
        return err_set(e, ERR_IO, "%s: cannot be renamed to %s: %s", j->dir, j->o->dst, err_os(errno, why, sizeof why));
    return 0;
}

int quantize_run(const struct quantize_options *o, struct quantize_report *r, struct err *e)
{
    *r = (struct quantize_report){0};
    if (file_exists(o->dst))
        return err_set(e, ERR_ARG, "%s: exists already", o->dst);
    struct job j = {.o = o, .r = r};
    int lock = -1, rc = package_open(&j.pkg, o->src, e);
    if (rc)
        return rc;
    if (j.pkg->kind == PACKAGE_GGUF)
        rc = err_set(e, ERR_UNSUPPORTED, "%s: quantizing a GGUF file is unsupported: take the model's Hugging Face folder", o->src);
    size_t n = strlen(o->dst);
    while (n > 1 && o->dst[n - 1] == '/')
        n--;
    j.dir = xmalloc(n + sizeof ".partial");
    snprintf(j.dir, n + sizeof ".partial", "%.*s.partial", (int)n, o->dst);
    if (!rc)
        rc = file_make_dirs(j.dir, e);
    char *lock_path = path_join(j.dir, "lock");
    if (!rc && (rc = file_lock(lock_path, &lock, e)) == 1)
        rc = err_set(e, ERR_ARG, "%s: another foresay is writing it", o->dst);
    if (!rc)
        rc = sweep(&j, e);
    if (!rc)
        rc = run(&j, e);
    if (!rc) {
        unlink(lock_path);
        rc = finish(&j, e);
    }
    if (lock >= 0)
        close(lock);
    free(lock_path);
    free(j.dir);
    ids_free(&j.tokens);
    plan_free(&j.plan);
    package_close(j.pkg);
    return rc;
}
