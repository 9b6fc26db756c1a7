/* What a package holds, as JSON: architecture, sizes by class and format, tokenizer and template sources, the
 * draft head (promised, found, complete), unused tensors with their reasons. Facts of the catalogue only; who
 * has bound a model adds what it knows through struct inspect_facts. */
#ifndef MEASURE_INSPECT_H
#define MEASURE_INSPECT_H

#include "base/buf.h"
#include "format/weights.h"

struct inspect_facts {
    bool is_bound;       // an architecture has taken its tensors: what is unused now, stays unused
    const char *refusal; // sentence why the package can't be served, or NULL
    const char *members; // further members as JSON text ("\"a\":1,\"b\":{}"), or NULL
    const char *shown_path; // where people say it is, if not where the package was opened; or NULL
};

/* Appends one JSON object. facts may be NULL. Check out->is_full afterwards. */
void inspect_catalogue(const struct package *p, const struct inspect_facts *facts, struct buf *out);

/* The draft head in the catalogue, whatever the architecture does with it. */
struct inspect_head {
    int64_t promised; // layers by the configuration
    int n_tensors;    // logical
    int n_stored;     // a quantized matrix is stored as three
    int64_t parameters;
    uint64_t bytes;
    const char *missing; // key of the first tensor that a head of this layout can't do without, or NULL
};
void inspect_find_head(const struct package *p, struct inspect_head *h);

#endif
