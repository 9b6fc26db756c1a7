/* Lookups by path and the sentences of their failures. */
#include "format/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "format/package.h"

const struct json *cfg_get(const struct package *p, const char *key)
{
    const struct json *v = p->config;
    char part[128];
    for (const char *s = key; v; s++) {
        size_t n = strcspn(s, ".");
        if (n >= sizeof part)
            return NULL;
        memcpy(part, s, n);
        part[n] = 0;
        v = json_get(v, part);
        s += n;
        if (!*s)
            break;
    }
    return json_is(v, JSON_NULL) ? NULL : v;
}

static int missing(const struct package *p, const char *key, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: missing %s", p->config_file, key);
}

static int read_int(const struct package *p, const char *key, const struct json *v, int64_t min, int64_t max,
                    int64_t *out, struct err *e)
{
    int64_t x;
    if (!json_int(v, &x)) {
        if (json_is(v, JSON_NUMBER))
            return err_set(e, ERR_FORMAT, "%s: %s is %.40s, expected an integer from %lld to %lld",
                           p->config_file, key, v->s, (long long)min, (long long)max);
        return err_set(e, ERR_FORMAT, "%s: %s is %s, expected an integer", p->config_file, key, json_type_name(v));
    }
    if (x < min || x > max)
        return err_set(e, ERR_FORMAT, "%s: %s out of range: %lld, expected %lld to %lld", p->config_file, key,
                       (long long)x, (long long)min, (long long)max);
    *out = x;
    return 0;
}

int cfg_int(const struct package *p, const char *key, int64_t min, int64_t max, int64_t *out, struct err *e)
{
    const struct json *v = cfg_get(p, key);
    return v ? read_int(p, key, v, min, max, out, e) : missing(p, key, e);
}

int cfg_int_or(const struct package *p, const char *key, int64_t min, int64_t max, int64_t dflt, int64_t *out,
               struct err *e)
{
    const struct json *v = cfg_get(p, key);
    *out = dflt;
    return v ? read_int(p, key, v, min, max, out, e) : 0;
}

static int read_num(const struct package *p, const char *key, const struct json *v, double min, double max,
                    double *out, struct err *e)
{
    if (!json_is(v, JSON_NUMBER))
        return err_set(e, ERR_FORMAT, "%s: %s is %s, expected a number", p->config_file, key, json_type_name(v));
    double x = json_num(v, 0);
    if (!isfinite(x) || x < min || x > max)
        return err_set(e, ERR_FORMAT, "%s: %s out of range: %.40s, expected %g to %g", p->config_file, key,
                       v->s, min, max);
    *out = x;
    return 0;
}

int cfg_num(const struct package *p, const char *key, double min, double max, double *out, struct err *e)
{
    const struct json *v = cfg_get(p, key);
    return v ? read_num(p, key, v, min, max, out, e) : missing(p, key, e);
}

int cfg_num_or(const struct package *p, const char *key, double min, double max, double dflt, double *out,
               struct err *e)
{
    const struct json *v = cfg_get(p, key);
    *out = dflt;
    return v ? read_num(p, key, v, min, max, out, e) : 0;
}

int cfg_bool_or(const struct package *p, const char *key, bool dflt, bool *out, struct err *e)
{
    const struct json *v = cfg_get(p, key);
    *out = dflt;
    if (v && v->type != JSON_TRUE && v->type != JSON_FALSE)
        return err_set(e, ERR_FORMAT, "%s: %s is %s, expected true or false", p->config_file, key,
                       json_type_name(v));
    if (v)
        *out = v->type == JSON_TRUE;
    return 0;
}

int cfg_str_or(const struct package *p, const char *key, const char *dflt, const char **out, struct err *e)
{
    const struct json *v = cfg_get(p, key);
    *out = dflt;
    if (v && v->type != JSON_STRING)
        return err_set(e, ERR_FORMAT, "%s: %s is %s, expected a string", p->config_file, key, json_type_name(v));
    if (v)
        *out = v->s;
    return 0;
}

int cfg_defaults(struct package *p, const char *object, struct err *e)
{
    struct json *o, *config = (struct json *)(uintptr_t)p->config;
    char names[400] = "";
    size_t n = 0;
    int rc = package_json(p, object, strlen(object), "defaults", &o, e);
    if (rc)
        return rc;
    for (struct json *v = o->child, *next; v; v = next) {
        struct json **at = &config->child;
        next = v->next;
        if (cfg_get(p, v->key))
            continue;
        while (*at && strcmp((*at)->key, v->key))
            at = &(*at)->next;
        config->n += !*at; // else a null gives way
        v->next = *at ? (*at)->next : NULL;
        *at = v;
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", v->key);
        n = n < sizeof names ? n : sizeof names - 1;
    }
    if (n)
        package_note(p, "%s leaves out %s: the family's usual values are taken", p->config_file, names);
    return 0;
}
