/* Opens bytes as a safetensors file, touches the ends of every tensor, then catalogues them as the one file
 * of a package and reads the first row of what has rows. */
#include <stdlib.h>

#include "format/hf_tensors.h"
#include "format/package.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void catalogue(const uint8_t *bytes, size_t n)
{
    static const char config[] =
        "{\"group_size\":64,\"bits\":4,\"b\":{\"group_size\":32,\"bits\":8},\"c\":false}";
    struct hf_file file = {.name = (char[]){"model.safetensors"}};
    struct hf_files files = {.dir = ".", .file = &file, .n = 1};
    struct package *p = package_new("input");
    struct err e = {0};
    struct json *q;
    if (bytes[n - 1] & 1 && !package_json(p, config, sizeof config - 1, "config.json", &q, &e))
        p->quantization = q;
    p->weights = weights_new("input");
    p->weights->st = xcalloc(1, sizeof *p->weights->st);
    if (st_open_bytes(p->weights->st, bytes, n, "input", &e))
        abort();
    p->weights->n_st = 1;
    if (!hf_catalogue(p, &files, NULL, &e)) {
        for (int i = 0; i < weights_count(p->weights); i++) {
            const struct weight *w = weights_at(p->weights, i);
            if (w->fmt == WF_OTHER || !w->bytes)
                continue;
            float *row = malloc((size_t)w->ne[w->ndim - 1] * sizeof *row);
            weight_row(w, 0, row);
            free(row);
        }
        (void)!weights_check_finite(p->weights, &e);
    } else if (!e.code || !e.msg[0]) {
        abort();
    }
    package_close(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct st_file f;
    struct err e = {0};
    volatile unsigned sum = 0;
    if (st_open_bytes(&f, p, n, "input", &e)) {
        if (!e.code || !e.msg[0])
            abort();
        return 0;
    }
    for (size_t i = 0; i < f.n_tensors; i++) {
        const struct st_tensor *t = &f.tensor[i];
        if (t->bytes)
            sum = sum + p[t->offset] + p[t->offset + t->bytes - 1] + (unsigned)t->name[0];
    }
    st_close(&f);
    catalogue(p, n);
    return 0;
}
