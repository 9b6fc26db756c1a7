/* Typed, checked reading of a package's configuration. A key may be a path: "rope_parameters.rope_theta".
 * Failures name the file, the key, the limits and the value found. JSON null counts as absent. */
#ifndef FORMAT_CONFIG_H
#define FORMAT_CONFIG_H

#include "format/weights.h"

const struct json *cfg_get(const struct package *p, const char *key); // NULL if absent

MUST_CHECK int cfg_int(const struct package *p, const char *key, int64_t min, int64_t max, int64_t *out,
                       struct err *e);
MUST_CHECK int cfg_int_or(const struct package *p, const char *key, int64_t min, int64_t max, int64_t dflt,
                          int64_t *out, struct err *e);
MUST_CHECK int cfg_num(const struct package *p, const char *key, double min, double max, double *out,
                       struct err *e);
MUST_CHECK int cfg_num_or(const struct package *p, const char *key, double min, double max, double dflt,
                          double *out, struct err *e);
MUST_CHECK int cfg_bool_or(const struct package *p, const char *key, bool dflt, bool *out, struct err *e);
/* *out lives as long as the package (or is dflt). */
MUST_CHECK int cfg_str_or(const struct package *p, const char *key, const char *dflt, const char **out,
                          struct err *e);
/* Adds the members of a JSON object that the configuration lacks, and notes which: for families whose packages leave
 * out what their reference implementation has as a default. */
MUST_CHECK int cfg_defaults(struct package *p, const char *object, struct err *e);

#endif
