/* Opens bytes as a GGUF file, reads every value in every way, maps it to a package and reads the ends of
 * every tensor and a row of those that have one. */
#include <stdlib.h>
#include <string.h>

#include "format/package.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void read_values(const struct gguf *g)
{
    volatile double sum = 0;
    for (size_t i = 0; i < g->n_kv; i++) {
        const struct gguf_kv *kv = &g->kv[i];
        int64_t v = 0;
        double d = 0;
        bool b = false;
        struct gguf_str s = {"", 0};
        if (gguf_find(g, kv->key) != kv)
            abort();
        gguf_int(kv, &v);
        gguf_num(kv, &d);
        gguf_bool(kv, &b);
        if (gguf_string(kv, &s) && s.n)
            sum = sum + s.s[0] + s.s[s.n - 1];
        sum = sum + (double)v + d + b;
        if (kv->type != GGUF_ARRAY || kv->n > 1 << 16)
            continue;
        void *out = malloc((size_t)(kv->n + 1) * sizeof(struct gguf_str));
        gguf_ints(kv, out);
        gguf_nums(kv, out);
        struct gguf_str *all = out;
        if (!gguf_strings(kv, all) && kv->n && all[kv->n - 1].n)
            sum = sum + all[kv->n - 1].s[all[kv->n - 1].n - 1];
        free(out);
    }
}

static void open_package(const uint8_t *bytes, size_t n)
{
    struct package *p;
    struct err e = {0};
    if (package_open_gguf_bytes(&p, bytes, n, "input", &e)) {
        if (!e.code || !e.msg[0])
            abort();
        return;
    }
    if (!p->config)
        abort();
    for (int i = 0; i < weights_count(p->weights); i++) {
        const struct weight *w = weights_at(p->weights, i);
        if (weights_find(p->weights, "%s", w->key) != w && __builtin_strlen(w->key) < 256)
            abort();
        float *row = malloc((size_t)w->ne[w->ndim - 1] * sizeof *row + 1);
        if (row && w->fmt != WF_OTHER)
            weight_row(w, 0, row);
        free(row);
    }
    (void)!weights_check_finite(p->weights, &e);
    package_close(p);
}

/* What a file's begin says alone never contradicts the whole, and isn't read beyond. */
static void probe(const uint8_t *p, size_t n, bool opens)
{
    struct err e = {0};
    uint8_t *begin = malloc(n / 2 + 1);
    memcpy(begin, p, n / 2);
    int rc = gguf_probe(begin, n / 2, n, "input", &e);
    if (opens ? rc < 0 : !rc)
        abort();
    free(begin);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct gguf *g;
    struct err e = {0};
    volatile unsigned sum = 0;
    int rc = gguf_open_bytes(&g, p, n, "input", &e);
    probe(p, n, !rc);
    if (rc) {
        if (!e.code || !e.msg[0])
            abort();
        return 0;
    }
    read_values(g);
    for (size_t i = 0; i < g->n_tensors; i++)
        sum = sum + p[g->tensor[i].offset] + p[g->tensor[i].offset + g->tensor[i].n_bytes - 1];
    gguf_close(g);
    open_package(p, n);
    return 0;
}
