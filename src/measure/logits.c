#include "measure/logits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "measure/npy.h"

enum { MAX_SEQS = 64, MAX_LEN = 1 << 20, MAX_DEPTH = 16 };

struct job {
    int32_t *tok, *rows; // rows: positions whose logits are kept, ascending
    int n, n_rows;
    float *hidden; // [n, ld]
    float *trunk, *mtp;
    int32_t next; // the trunk's argmax after the last token
    int seq, done, kept;
};

static int read_ints(const struct json *v, const char *what, int64_t max, int32_t **out, int *n, struct err *e)
{
    if (!json_is(v, JSON_ARRAY) || v->n > MAX_LEN)
        return err_set(e, ERR_FORMAT, "%s: expected an array of at most %d integers", what, MAX_LEN);
    *out = xcalloc(v->n, sizeof **out);
    *n = 0;
    for (const struct json *c = v->child; c; c = c->next) {
        int64_t x;
        if (!json_int(c, &x) || x < 0 || x >= max)
            return err_set(e, ERR_FORMAT, "%s[%d]: expected an integer from 0 to %lld", what, *n, (long long)max - 1);
        (*out)[(*n)++] = (int32_t)x;
    }
    return 0;
}

int logits_size(const struct json *ids, int n_vocab, int *longest, int *total, int *n_seqs, int *depth, struct err *e)
{
    const struct json *seqs = json_get(ids, "sequences");
    int64_t d = 1;
    if (!json_is(seqs, JSON_ARRAY) || !seqs->n || seqs->n > MAX_SEQS)
        return err_set(e, ERR_FORMAT, "sequences: expected an array of 1 to %d arrays of token ids", MAX_SEQS);
    if (json_get(ids, "depth") && (!json_int(json_get(ids, "depth"), &d) || d < 1 || d > MAX_DEPTH))
        return err_set(e, ERR_FORMAT, "depth: expected an integer from 1 to %d", MAX_DEPTH);
    *longest = *total = 0;
    *n_seqs = (int)seqs->n;
    *depth = (int)d;
    for (const struct json *c = seqs->child; c; c = c->next) {
        int32_t *t = NULL;
        int n, rc = read_ints(c, "sequences", n_vocab, &t, &n, e);
        free(t);
        if (rc)
            return rc;
        if (!n)
            return err_set(e, ERR_FORMAT, "sequences: an empty sequence has no logits");
        *longest = n > *longest ? n : *longest;
        *total += n;
    }
    return 0;
}

static int argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

/* Logits are limited per step, so wanted rows bound the step as well as the chunk. */
static int trunk(struct engine *g, struct job *j, int n, const struct logits_options *o, struct err *e)
{
    int V = engine_model(g)->n_vocab, ld = engine_hidden_ld(g), room = engine_max_rows(g), left = n;
    struct row *rows = xcalloc((size_t)room, sizeof *rows);
    int *owner = xcalloc((size_t)room, sizeof *owner), first = 0, rc = 0;
    while (left && !rc) {
        struct out out;
        int used = 0, wants = 0, chunk = o->chunk > 0 ? o->chunk : room, share = o->batch ? (room / left > 0 ? room / left : 1) : room;
        int taken[MAX_SEQS] = {0};
        chunk = chunk < share ? chunk : share;
        while (first < n && j[first].done == j[first].n)
            first++;
        for (int r = 0; r < chunk && used < room; r++) // interleaved when batching
            for (int k = first; k < (o->batch ? n : first + 1) && used < room; k++) {
                int p = j[k].done + taken[k];
                if (p >= j[k].n || taken[k] < r)
                    continue;
                bool keep = j[k].kept + 0 < j[k].n_rows || p == j[k].n - 1;
                bool wanted = p == j[k].n - 1;
                for (int i = j[k].kept; keep && !wanted && i < j[k].n_rows && j[k].rows[i] <= p; i++)
                    wanted = j[k].rows[i] == p;
                if (wanted && wants == 60)
                    continue;
                wants += wanted;
                rows[used] = (struct row){j[k].seq, j[k].tok[p], (uint8_t)(ROW_FINAL | WANT_HIDDEN | (wanted ? WANT_LOGITS : 0))};
                owner[used++] = k;
                taken[k]++;
            }
        if ((rc = engine_step(g, rows, used, &out, e)))
            break;
        for (int i = 0, l = 0; i < used; i++) {
            struct job *q = &j[owner[i]];
            memcpy(q->hidden + (size_t)q->done * (size_t)ld, out.hidden + (size_t)i * (size_t)ld, (size_t)ld * 4);
            if (rows[i].want & WANT_LOGITS) {
                const float *x = out.logits + (size_t)l++ * (size_t)V;
                if (q->kept < q->n_rows && q->rows[q->kept] == q->done)
                    memcpy(q->trunk + (size_t)q->kept++ * (size_t)V, x, (size_t)V * 4);
                if (q->done == q->n - 1)
                    q->next = argmax(x, V);
            }
            if (++q->done == q->n)
                left--;
        }
        for (int k = 0; k < n; k++)
            if (taken[k])
                seq_commit(g, j[k].seq, taken[k]);
    }
    free(rows);
    free(owner);
    return rc;
}

static int32_t token_after(const struct job *j, int p) { return p + 1 < j->n ? j->tok[p + 1] : j->next; }

/* Depth-1 draft logits of the kept rows, the head fed with true hiddens. Leaves its KV rows 1..n. */
static int head_rows(struct engine *g, struct job *j, int chunk, struct err *e)
{
    int V = engine_model(g)->n_vocab, ld = engine_hidden_ld(g), kept = 0, rc = 0;
    chunk = chunk > 0 && chunk < 32 ? chunk : 32;
    for (int p = 0; p < j->n && !rc;) {
        struct mtp_row rows[32];
        struct mtp_out out;
        int n = 0, k = kept;
        for (; n < chunk && p + n < j->n; n++) {
            bool want = k < j->n_rows && j->rows[k] == p + n;
            k += want;
            rows[n] = (struct mtp_row){j->seq, token_after(j, p + n), j->hidden + (size_t)(p + n) * (size_t)ld, want ? WANT_LOGITS : 0};
        }
        if ((rc = mtp_step(g, rows, n, NULL, true, &out, e)))
            break;
        memcpy(j->mtp + (size_t)kept * (size_t)V, out.logits, (size_t)out.n * (size_t)V * 4);
        kept = k;
        p += n;
    }
    return rc;
}

/* Drafts of real decoding after prefix 0..p: head rows up to p+1 are true, then it feeds itself. */
static int draft_from(struct engine *g, struct job *j, int p, int depth, const struct json *given, float *logits, int32_t *drafts, struct err *e)
{
    int V = engine_model(g)->n_vocab, ld = engine_hidden_ld(g);
    mtp_cut(g, j->seq, p + 1);
    struct mtp_row row = {j->seq, token_after(j, p), j->hidden + (size_t)p * (size_t)ld, WANT_LOGITS};
    for (int d = 0; d < depth; d++) {
        struct mtp_out out;
        int64_t x;
        int rc = mtp_step(g, &row, 1, NULL, true, &out, e);
        if (rc)
            return rc;
        memcpy(logits + (size_t)d * (size_t)V, out.logits, (size_t)V * 4);
        drafts[d] = argmax(out.logits, V);
        row.tok = json_int(json_at(given, (size_t)d), &x) && x >= 0 && x < V ? (int32_t)x : drafts[d];
        if (json_is(json_at(given, (size_t)d), JSON_NUMBER))
            drafts[d] = row.tok;
        row.hidden = NULL;
    }
    return 0;
}

static int write_file(const char *dir, const char *name, int k, const float *x, const int64_t *shape, int ndim, struct err *e)
{
    char base[64];
    snprintf(base, sizeof base, "%s_%d.npy", name, k);
    char *path = path_join(dir, base);
    int rc = npy_write(path, x, shape, ndim, e);
    free(path);
    return rc;
}

static int write_drafts(struct engine *g, struct job *j, int k, const struct json *starts, const struct json *given, int depth,
                        const char *dir, struct err *e)
{
    int V = engine_model(g)->n_vocab, n, rc;
    int32_t *start;
    if ((rc = read_ints(starts, "starts", j->n, &start, &n, e)))
        return rc;
    float *logits = malloc((size_t)n * (size_t)depth * (size_t)V * 4 + 1);
    struct buf b;
    buf_init(&b, 64 << 20);
    buf_chr(&b, '[');
    /* from the last start to the first, so that the true rows below each are still there */
    int32_t *drafts = xcalloc((size_t)n * (size_t)depth, sizeof *drafts);
    int *order = xcalloc((size_t)n, sizeof *order);
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && start[order[at - 1]] < start[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    for (int q = 0; q < n && !rc && logits; q++) {
        int i = order[q];
        rc = draft_from(g, j, start[i], depth, json_at(given, (size_t)i), logits + (size_t)i * (size_t)depth * (size_t)V,
                        drafts + (size_t)i * (size_t)depth, e);
    }
    for (int i = 0; i < n && !rc; i++) {
        buf_fmt(&b, "%s{\"start\": %d, \"next\": %d, \"drafts\": [", i ? ", " : "", (int)start[i], (int)token_after(j, start[i]));
        for (int d = 0; d < depth; d++)
            buf_fmt(&b, "%s%d", d ? ", " : "", (int)drafts[i * depth + d]);
        buf_str(&b, "]}");
    }
    buf_str(&b, "]\n");
    if (!logits)
        rc = err_set(e, ERR_NOMEM, "no memory for draft logits");
    if (!rc)
        rc = write_file(dir, "mtp_draft", k, logits, (int64_t[]){n, depth, V}, 3, e);
    if (!rc) {
        char base[64];
        snprintf(base, sizeof base, "mtp_draft_%d.json", k);
        char *path = path_join(dir, base);
        rc = file_write(path, b.p, b.n, e);
        free(path);
    }
    buf_free(&b);
    free(logits);
    free(drafts);
    free(order);
    free(start);
    return rc;
}

static int read_job(struct engine *g, struct job *j, const struct json *seq, const struct json *rows, struct err *e)
{
    size_t V = (size_t)engine_model(g)->n_vocab, ld = (size_t)engine_hidden_ld(g);
    int rc = read_ints(seq, "sequences", (int64_t)V, &j->tok, &j->n, e);
    if (!rc && rows)
        rc = read_ints(rows, "rows", j->n, &j->rows, &j->n_rows, e);
    if (rc)
        return rc;
    if (!rows) {
        j->rows = xcalloc((size_t)j->n, sizeof *j->rows);
        for (j->n_rows = 0; j->n_rows < j->n; j->n_rows++)
            j->rows[j->n_rows] = j->n_rows;
    }
    for (int i = 1; i < j->n_rows; i++)
        if (j->rows[i] <= j->rows[i - 1])
            return err_set(e, ERR_FORMAT, "rows: expected ascending positions");
    j->hidden = malloc((size_t)j->n * ld * 4);
    j->trunk = malloc((size_t)j->n_rows * V * 4 + 1);
    j->mtp = malloc((size_t)j->n_rows * V * 4 + 1);
    j->seq = seq_new(g);
    if (!j->hidden || !j->trunk || !j->mtp || j->seq < 0)
        return err_set(e, ERR_NOMEM, "no memory for the logits of %d rows", j->n_rows);
    return 0;
}

int logits_write(struct engine *g, const struct json *ids, const char *dir, const struct logits_options *o, struct err *e)
{
    const struct json *seqs = json_get(ids, "sequences"), *starts = json_get(ids, "starts");
    int longest, total, n, depth, V = engine_model(g)->n_vocab;
    int rc = logits_size(ids, V, &longest, &total, &n, &depth, e);
    if (rc)
        return rc;
    struct job *j = xcalloc((size_t)n, sizeof *j);
    for (int k = 0; k < n && !rc; k++)
        rc = read_job(g, &j[k], json_at(seqs, (size_t)k), json_at(json_get(ids, "rows"), (size_t)k), e);
    if (!rc)
        rc = trunk(g, j, n, o, e);
    for (int k = 0; k < n && !rc; k++) {
        rc = write_file(dir, "trunk", k, j[k].trunk, (int64_t[]){j[k].n_rows, V}, 2, e);
        if (rc || !engine_has_mtp(g))
            continue;
        rc = head_rows(g, &j[k], o->chunk, e);
        if (!rc)
            rc = write_file(dir, "mtp1", k, j[k].mtp, (int64_t[]){j[k].n_rows, V}, 2, e);
        if (!rc && json_at(starts, (size_t)k))
            rc = write_drafts(g, &j[k], k, json_at(starts, (size_t)k), json_at(json_get(ids, "drafts"), (size_t)k), depth, dir, e);
    }
    for (int k = 0; k < n; k++) {
        free(j[k].tok);
        free(j[k].rows);
        free(j[k].hidden);
        free(j[k].trunk);
        free(j[k].mtp);
    }
    free(j);
    return rc;
}
