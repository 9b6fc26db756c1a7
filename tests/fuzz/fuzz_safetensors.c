/* Opens bytes as a safetensors file and touches the ends of every tensor. */
#include <stdlib.h>

#include "format/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

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
    return 0;
}
