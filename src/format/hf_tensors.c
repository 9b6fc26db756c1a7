/* A name may stand in several files; the one that the index points to counts, then the first in file order. A
 * module is quantized the MLX way iff PATH.scales exists: PATH.weight (U32), .scales and .biases become one
 * entry. Bits and group come from the configuration and are checked against the shapes, which win. */
#include "format/hf_tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct raw {
    const struct st_tensor *t;
    int file_no;
    bool is_named; // the index places the tensor in this file
};

struct rule { // per-module override of the quantization
    const char *key;
    const struct json *v;
};

struct builder {
    struct package *p;
    const struct hf_files *f;
    struct raw *raw; // by name, one per name after drop_copies
    size_t n;
    struct rule *rule; // by key
    size_t n_rules;
    const struct json *mtp_quantization;
    int n_dropped, n_inferred;
    char dropped[400], inferred[400];
};

// ---- names -----------------------------------------------------------------------------------------------

static int by_name(const void *a, const void *b)
{
    const struct raw *x = a, *y = b;
    int c = strcmp(x->t->name, y->t->name);
    if (c)
        return c;
    if (x->is_named != y->is_named)
        return x->is_named ? -1 : 1;
    return x->file_no - y->file_no;
}

static struct raw *find_raw(const struct builder *b, const char *name)
{
    size_t lo = 0, hi = b->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(b->raw[mid].t->name, name);
        if (!c)
            return &b->raw[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

/* The sibling of "PATH.weight" with another last part. */
static struct raw *find_sibling(const struct builder *b, const char *name, const char *last)
{
    char other[1024];
    int n = snprintf(other, sizeof other, "%.*s%s", (int)(strlen(name) - strlen("weight")), name, last);
    return n > 0 && n < (int)sizeof other ? find_raw(b, other) : NULL;
}

static bool has_suffix(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n > m && !strcmp(s + n - m, suffix);
}

static const char *file_name(const struct builder *b, const struct raw *r)
{
    return b->f->file[r->file_no].name;
}

static void drop(struct builder *b, const struct raw *r, const struct raw *kept)
{
    if (!b->n_dropped++)
        snprintf(b->dropped, sizeof b->dropped, "%.120s of %.80s, already in %.80s", r->t->name,
                 file_name(b, r), kept ? file_name(b, kept) : "another file under a longer name");
}

/* weight_map sorted by tensor name and walked beside the sorted tensors: linear, whatever the file says. */
static int by_key(const void *a, const void *b)
{
    return strcmp((*(const struct json *const *)a)->key, (*(const struct json *const *)b)->key);
}

static int mark_named(struct builder *b, struct err *e)
{
    size_t n = b->f->map ? b->f->map->n : 0, i = 0, lost = 0;
    if (!n)
        return 0;
    const struct json **map = malloc(n * sizeof *map), *example = NULL;
    if (!map)
        return err_set(e, ERR_NOMEM, "%s: no memory for the index", b->f->dir);
    for (const struct json *v = b->f->map->child; v; v = v->next)
        map[i++] = v;
    qsort(map, n, sizeof *map, by_key);
    for (size_t m = 0, r = 0; m < n; m++) {
        bool is_there = false;
        while (r < b->n && strcmp(b->raw[r].t->name, map[m]->key) < 0)
            r++;
        for (size_t k = r; k < b->n && !strcmp(b->raw[k].t->name, map[m]->key); k++) {
            is_there = true;
            b->raw[k].is_named = !strcmp(file_name(b, &b->raw[k]), map[m]->s);
        }
        if (!is_there && !lost++)
            example = map[m];
    }
    if (lost)
        package_note(b->p, "the index names %zu tensors that no file holds, for example %.120s in %.80s",
                     lost, example->key, example->s);
    free(map);
    return 0;
}

static int collect(struct builder *b, struct err *e)
{
    const struct weights *w = b->p->weights;
    size_t n = 0;
    for (int i = 0; i < w->n_st; i++)
        n += w->st[i].n_tensors;
    b->raw = malloc((n + 1) * sizeof *b->raw);
    if (!b->raw)
        return err_set(e, ERR_NOMEM, "%s: no memory for %zu tensors", b->f->dir, n);
    for (int i = 0; i < w->n_st; i++)
        for (size_t k = 0; k < w->st[i].n_tensors; k++)
            b->raw[b->n++] = (struct raw){&w->st[i].tensor[k], i, false};
    if (n)
        qsort(b->raw, n, sizeof *b->raw, by_name);
    int rc = mark_named(b, e);
    if (rc || !n)
        return rc;
    qsort(b->raw, n, sizeof *b->raw, by_name);
    b->n = 0;
    for (size_t i = 0; i < n; i++) {
        const struct raw *last = b->n ? &b->raw[b->n - 1] : NULL;
        if (last && !strcmp(last->t->name, b->raw[i].t->name))
            drop(b, &b->raw[i], last);
        else
            b->raw[b->n++] = b->raw[i];
    }
    return 0;
}

// ---- quantization rules ----------------------------------------------------------------------------------

static int by_rule(const void *a, const void *b)
{
    return strcmp(((const struct rule *)a)->key, ((const struct rule *)b)->key);
}

static int collect_rules(struct builder *b, struct err *e)
{
    const struct json *q = b->p->quantization;
    if (!q)
        return 0;
    b->rule = malloc((q->n + 1) * sizeof *b->rule);
    if (!b->rule)
        return err_set(e, ERR_NOMEM, "%s: no memory for its quantization", b->p->config_file);
    for (const struct json *v = q->child; v; v = v->next)
        if (v->type == JSON_OBJECT || v->type == JSON_TRUE || v->type == JSON_FALSE)
            b->rule[b->n_rules++] = (struct rule){weights_canonical(v->key), v};
    if (b->n_rules)
        qsort(b->rule, b->n_rules, sizeof *b->rule, by_rule);
    return 0;
}

/* Object that governs the module of a canonical key "PATH.weight"; NULL if the configuration says nothing. */
static const struct json *rule_for(const struct builder *b, const char *key)
{
    char path[1024];
    size_t n = strlen(key) - strlen(".weight");
    const struct json *global = b->p->quantization;
    if (b->mtp_quantization && !strncmp(key, "mtp.", 4))
        global = b->mtp_quantization;
    if (n >= sizeof path || !b->n_rules)
        return global;
    memcpy(path, key, n);
    path[n] = 0;
    const struct rule want = {.key = path}, *r = bsearch(&want, b->rule, b->n_rules, sizeof want, by_rule);
    return r && r->v->type == JSON_OBJECT ? r->v : global;
}

static bool is_bits(int64_t v) { return (v >= 1 && v <= 6) || v == 8; }
static bool is_group(int64_t v) { return v == 32 || v == 64 || v == 128; }

/* Shapes give only the product bits * group. The configuration splits it; where it contradicts the shapes the
 * group size is believed first, then the bits, then the usual sizes in turn. */
static bool split_product(int64_t product, int64_t bits, int64_t group, int *out_bits, int *out_group)
{
    int64_t b = 0, g = 0;
    const int64_t tries[] = {group, is_bits(bits) && product % bits == 0 ? product / bits : 0, 64, 32, 128};
    if (is_bits(bits) && is_group(group) && bits * group == product) {
        b = bits, g = group;
    } else {
        for (size_t i = 0; i < sizeof tries / sizeof *tries && !g; i++)
            if (is_group(tries[i]) && product % tries[i] == 0 && is_bits(product / tries[i]))
                g = tries[i], b = product / g;
    }
    *out_bits = (int)b;
    *out_group = (int)g;
    return g != 0;
}

static enum wfmt float_fmt(const char *dtype)
{
    return !strcmp(dtype, "F32")    ? WF_F32
           : !strcmp(dtype, "F16")  ? WF_F16
           : !strcmp(dtype, "BF16") ? WF_BF16
                                    : WF_OTHER;
}

// ---- entries ---------------------------------------------------------------------------------------------

static void copy_shape(struct weight *t, const struct st_tensor *s)
{
    t->ndim = s->ndim ? s->ndim : 1;
    for (int i = 0; i < 4; i++)
        t->ne[i] = i < t->ndim ? s->ne[i] : 1;
    for (int i = 4; i < t->ndim; i++) // only image towers have so many: listed, never computed with
        t->ne[3] = s->bytes ? t->ne[3] * s->ne[i] : 0;
    if (t->ndim > 4)
        t->ndim = 4;
}

static const uint8_t *data(const struct builder *b, const struct raw *r)
{
    const struct filemap *m = &b->p->weights->st[r->file_no].map;
    return m->p + r->t->offset;
}

/* A scale or bias tensor has the weight's shape but for the last dimension. */
static int check_part(const struct builder *b, const struct raw *w, const struct raw *s,
                      const struct raw *like, struct err *e)
{
    bool is_same = s->t->ndim == w->t->ndim && w->t->ndim >= 2;
    for (int i = 0; i < w->t->ndim - 1 && is_same; i++)
        is_same = s->t->ne[i] == w->t->ne[i];
    if (is_same && like)
        is_same = s->t->ne[w->t->ndim - 1] == like->t->ne[w->t->ndim - 1];
    if (!is_same)
        return err_set(e, ERR_FORMAT, "%s: shape of tensor %.120s doesn't fit %.120s", file_name(b, s),
                       s->t->name, like ? like->t->name : w->t->name);
    if (like && s->t->dtype != like->t->dtype)
        return err_set(e, ERR_FORMAT, "%s: dtype of tensor %.120s: expected %s as in its scales, found %s",
                       file_name(b, s), s->t->name, like->t->dtype, s->t->dtype);
    return 0;
}

static void note_inferred(struct builder *b, const struct weight *t, int64_t bits, int64_t group)
{
    if (t->bits == bits && t->group == group)
        return;
    if (!b->n_inferred++)
        snprintf(b->inferred, sizeof b->inferred,
                 "%.120s: %s says %lld bits in groups of %lld, its shapes say %d in groups of %d", t->name,
                 b->p->config_file, (long long)bits, (long long)group, t->bits, t->group);
}

/* Floats of 4 or 8 bits with byte scales; the mode fixes all but the shapes. */
static int read_fp(struct builder *b, struct weight *t, char type[64], const char *mode, const struct raw *w, const struct raw *scales, struct err *e)
{
    static const struct {
        const char *mode;
        enum wfmt fmt, scale;
        int bits, group;
    } modes[] = {{"mxfp4", WF_MLX_FP4, WF_E8M0, 4, 32}, {"nvfp4", WF_MLX_FP4, WF_E4M3, 4, 16}, {"mxfp8", WF_MLX_FP8, WF_E8M0, 8, 32}};
    int64_t cols = w->t->ne[w->t->ndim ? w->t->ndim - 1 : 0];
    size_t i = 0;
    while (i < sizeof modes / sizeof *modes && strcmp(modes[i].mode, mode))
        i++;
    snprintf(type, 64, "U32 %.40s", *mode ? mode : "without biases");
    if (i == sizeof modes / sizeof *modes || find_sibling(b, w->t->name, "global_scale"))
        return 0; // listed as WF_OTHER; a lookup refuses it
    int rc = check_part(b, w, scales, NULL, e);
    if (rc)
        return rc;
    if (strcmp(scales->t->dtype, "U8"))
        return err_set(e, ERR_FORMAT, "%s: dtype of tensor %.120s: expected U8, found %s", file_name(b, scales), scales->t->name, scales->t->dtype);
    int64_t parts = scales->t->ne[scales->t->ndim - 1], in;
    if (cols < 1 || __builtin_mul_overflow(cols, 32 / modes[i].bits, &in) || in % modes[i].group || parts != in / modes[i].group)
        return err_set(e, ERR_FORMAT, "%s: tensor %.120s: %lld words a row in %s need a scale for every %d values, found %lld scales", file_name(b, w),
                       t->name, (long long)cols, mode, modes[i].group, (long long)parts);
    t->fmt = modes[i].fmt;
    t->scale_fmt = modes[i].scale;
    t->bits = modes[i].bits;
    t->group = modes[i].group;
    t->ne[t->ndim - 1] = in;
    t->scale = data(b, scales);
    return 0;
}

static int read_triple(struct builder *b, struct weight *t, char type[64], const struct raw *w,
                       const struct raw *scales, const struct raw *biases, struct err *e)
{
    const struct json *rule = rule_for(b, t->key);
    const char *mode = json_str(json_get(rule, "mode"), biases ? "affine" : "");
    int64_t bits = 0, group = 0, cols = w->t->ne[w->t->ndim ? w->t->ndim - 1 : 0],
            parts = scales->t->ne[scales->t->ndim ? scales->t->ndim - 1 : 0];
    json_int(json_get(rule, "bits"), &bits);
    json_int(json_get(rule, "group_size"), &group);
    t->bytes += scales->t->bytes + (biases ? biases->t->bytes : 0);
    if (strcmp(mode, "affine") && (*mode || !strcmp(scales->t->dtype, "U8")))
        return read_fp(b, t, type, mode, w, scales, e);
    if (!biases)
        return err_set(e, ERR_FORMAT, "%s: missing tensor %.*s.biases", file_name(b, w),
                       (int)(strlen(w->t->name) - 7), w->t->name);
    int rc = check_part(b, w, scales, NULL, e);
    if (rc || (rc = check_part(b, w, biases, scales, e)))
        return rc;
    t->scale_fmt = float_fmt(scales->t->dtype);
    if (t->scale_fmt == WF_OTHER)
        return err_set(e, ERR_FORMAT, "%s: dtype of tensor %.120s: expected F16, BF16 or F32, found %s",
                       file_name(b, scales), scales->t->name, scales->t->dtype);
    if (cols < 1 || parts < 1 || cols > INT64_MAX / 32 || cols * 32 % parts ||
        !split_product(cols * 32 / parts, bits, group, &t->bits, &t->group))
        return err_set(
            e, ERR_FORMAT,
            "%s: tensor %.120s has %lld words and %lld scales a row, which no bits and group size fit",
            file_name(b, w), t->name, (long long)cols, (long long)parts);
    t->fmt = WF_MLX;
    t->ne[t->ndim - 1] = parts * t->group;
    t->scale = data(b, scales);
    t->bias = data(b, biases);
    note_inferred(b, t, bits, group);
    snprintf(type, 64, "U32 %d-bit g%d", t->bits, t->group);
    return 0;
}

static int add_raw(struct builder *b, const struct raw *r, struct err *e)
{
    char key[1200], type[64];
    const char *name = r->t->name, *file = file_name(b, r);
    const struct raw *scales = NULL, *biases = NULL;
    struct weight t = {
        .name = name, .file = file, .fmt = float_fmt(r->t->dtype), .q = data(b, r), .bytes = r->t->bytes};
    bool in_head = !strncmp(file, "mtp/", 4) && strncmp(weights_canonical(name), "mtp.", 4);
    if (strlen(name) >= 1000)
        return err_set(e, ERR_LIMIT, "%s: tensor name of more than 1000 bytes: %.60s...", file, name);
    snprintf(key, sizeof key, "%s%s", in_head ? "mtp." : "", weights_canonical(name));
    t.key = key;
    snprintf(type, sizeof type, "%s", r->t->dtype);
    t.type = type;
    copy_shape(&t, r->t);
    if (!strcmp(r->t->dtype, "U32") && has_suffix(name, ".weight")) {
        scales = find_sibling(b, name, "scales");
        biases = find_sibling(b, name, "biases");
        if (!scales && (biases || json_get(b->p->quantization, "group_size")))
            return err_set(e, ERR_FORMAT, "%s: missing tensor %.*s.scales", file, (int)(strlen(name) - 7),
                           name);
    }
    if (scales) {
        int rc = read_triple(b, &t, type, r, scales, biases, e);
        if (rc)
            return rc;
        b->p->kind = PACKAGE_MLX;
    }
    weight_layout(&t);
    int rc = weights_add(b->p->weights, &t, r->file_no, e);
    if (rc == 1)
        drop(b, r, NULL);
    return rc < 0 ? rc : 0;
}

/* Scales and biases belong to the entry of their weight. */
static bool is_part(const struct builder *b, const char *name)
{
    char weight[1024];
    if (!has_suffix(name, ".scales") && !has_suffix(name, ".biases"))
        return false;
    int n = snprintf(weight, sizeof weight, "%.*s.weight", (int)(strlen(name) - 7), name);
    const struct raw *w = n > 0 && n < (int)sizeof weight ? find_raw(b, weight) : NULL;
    return w && !strcmp(w->t->dtype, "U32");
}

static void add_notes(struct builder *b)
{
    struct package *p = b->p;
    for (int i = 0; i < b->f->n; i++)
        if (b->f->file[i].is_extra) {
            size_t n = 0;
            for (size_t k = 0; k < b->n; k++)
                n += b->raw[k].file_no == i;
            package_note(p, "%.200s is used though %s: %zu tensors", b->f->file[i].name,
                         b->f->map ? "the index doesn't name it" : "it is not model.safetensors", n);
        }
    if (b->n_dropped)
        package_note(p, "%d duplicate tensors are ignored, first %s", b->n_dropped, b->dropped);
    if (b->n_inferred)
        package_note(p, "%d quantized tensors follow their shapes, not the configuration; first %s",
                     b->n_inferred, b->inferred);
}

int hf_catalogue(struct package *p, const struct hf_files *f, const struct json *mtp_quantization,
                 struct err *e)
{
    struct builder b = {
        .p = p, .f = f, .mtp_quantization = json_is(mtp_quantization, JSON_OBJECT) ? mtp_quantization : NULL};
    p->kind = PACKAGE_HF;
    for (int i = 0; i < p->weights->n_st; i++)
        if (!strcmp(p->weights->st[i].format, "mlx"))
            p->kind = PACKAGE_MLX;
    int rc = collect(&b, e);
    if (!rc)
        rc = collect_rules(&b, e);
    for (size_t i = 0; i < b.n && !rc; i++)
        if (!is_part(&b, b.raw[i].t->name))
            rc = add_raw(&b, &b.raw[i], e);
    if (!rc) {
        weights_seal(p->weights);
        add_notes(&b);
    }
    free(b.raw);
    free(b.rule);
    return rc;
}
