/* What a MODEL argument means: a path, or the name of a model on this machine (`foresay list`). */
#ifndef CLI_MODEL_ARG_H
#define CLI_MODEL_ARG_H

#include "base/err.h"

/* *path: what package_open takes; the caller frees it. Paths win over names. Nothing is ever downloaded. */
MUST_CHECK int model_arg(const char *arg, char **path, struct err *e);
/* After a failure to open path: if it is known where it came from, a second line says how to complete it. */
void model_arg_hint(const char *path, const struct err *e);

#endif
