#include "token/fields.h"

static int wrong(const char *where, const char *key, const char *want, const struct json *v, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s%s%s is %s, expected %s", where, *where ? "." : "", key, json_type_name(v), want);
}

int field_of(const struct json *o, const char *where, const char *key, enum json_type type, const struct json **out,
             struct err *e)
{
    const struct json *v = json_get(o, key), want = {.type = type};
    *out = json_is(v, JSON_NULL) ? NULL : v;
    return !*out || v->type == type ? 0 : wrong(where, key, json_type_name(&want), v, e);
}

int field_bool(const struct json *o, const char *where, const char *key, bool dflt, bool *out, struct err *e)
{
    const struct json *v = json_get(o, key);
    *out = json_bool(v, dflt);
    bool fits = !v || json_is(v, JSON_NULL) || json_is(v, JSON_TRUE) || json_is(v, JSON_FALSE);
    return fits ? 0 : wrong(where, key, "true or false", v, e);
}
