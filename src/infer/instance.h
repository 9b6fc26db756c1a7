/* A model ready to use: package, backend, bound model, head, tokenizer; opened and closed together. */
#ifndef INFER_INSTANCE_H
#define INFER_INSTANCE_H

#include "infer/engine.h"
#include "infer/sampler.h"
#include "token/tokenizer.h"

struct instance {
    struct backend *be;
    struct model *m;
    struct mtp_head head;
    struct tokenizer *tok; // NULL if opened without
    bool bytes_only;       // the package holds no tokenizer
    struct special_ids specials;
    int n_valid;       // ids below this exist; the embedding's other rows are padding
    int32_t eos[16];   // every id that ends an answer
    int n_eos;
    /* What the package recommends (generation_config.json, or a GGUF's general.sampling) over neutral settings, and for
     * each field where it is from: a file or "default". Fields that can't be used keep their defaults and are noted with
     * the package, as is whatever else of the file isn't honoured. */
    struct sampling sampling;
    const char *sampling_source[N_SAMPLING];
    char sampling_complaint[256]; // which of them couldn't be used, "" for none
    int64_t load_ns;
};

struct instance_options {
    int threads;
    const char *isa;
    bool float_mode, without_tokenizer;
    bool headers_only; // the package holds no weights, only their headers: for inspection
};

MUST_CHECK int instance_open(struct instance *in, const char *path, const struct instance_options *o, struct err *e);
void instance_close(struct instance *in);
bool instance_is_eos(const struct instance *in, int32_t id);

#endif
