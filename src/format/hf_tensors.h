/* From open safetensors files to the catalogue: which copy of a name counts, which three tensors are one
 * quantized module. For hf.c only. */
#ifndef FORMAT_HF_TENSORS_H
#define FORMAT_HF_TENSORS_H

#include "format/catalogue.h"
#include "format/weights.h"

struct hf_file {
    char *name;    // inside the folder
    bool is_extra; // neither named by the index nor the main file
};

struct hf_files {
    const char *dir;
    struct hf_file *file; // in the order of package.weights.st
    int n;
    const struct json *map; // weight_map of the index, or NULL
    struct arena arena;     // owns map
};

/* mtp_quantization: the head's own quantization object, or NULL. */
MUST_CHECK int hf_catalogue(struct package *p, const struct hf_files *f, const struct json *mtp_quantization,
                            struct err *e);

#endif
