#include "forge/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "format/config.h"

static bool has(const char *s, const char *part) { return strstr(s, part) != NULL; }

static bool ends(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

/* A drafter's tensors: mtp.*, or layers behind the trunk's. */
static bool in_head(const char *key, int64_t n_layers)
{
    return !strncmp(key, "mtp.", 4) || (!strncmp(key, "layers.", 7) && strtoll(key + 7, NULL, 10) >= n_layers);
}

static bool is_fused(const struct weight *w) { return w->ndim == 3 && (ends(w->name, "experts.gate_up_proj") || ends(w->name, "experts.down_proj")); }

static bool is_wanted(const struct weight *w, int group, int64_t n_layers)
{
    static const char *const kept[] = {"conv1d", "norm", "mlp.gate.", "router.", "shared_expert_gate", "in_proj_a.", "in_proj_b.", "visual.", "vision",
                                       "audio", "multi_modal", "rotary"};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (has(w->key, kept[i]))
            return false;
    bool is_matrix = (w->ndim == 2 && ends(w->name, ".weight")) || is_fused(w);
    return is_matrix && w->ne[w->ndim - 1] % group == 0 && !in_head(w->key, n_layers);
}

static struct plan_target *add(struct plan *p, const char *name, size_t n_name, const char *end)
{
    p->target = xrealloc(p->target, (size_t)(p->n + 1) * sizeof *p->target);
    struct plan_target *t = &p->target[p->n++];
    *t = (struct plan_target){.name = xmalloc(n_name + strlen(end) + 1), .kl = -1};
    snprintf(t->name, n_name + strlen(end) + 1, "%.*s%s", (int)n_name, name, end);
    return t;
}

static void add_part(struct plan_target *t, int index, int64_t row0, int64_t rows)
{
    t->part = xrealloc(t->part, (size_t)(t->n_parts + 1) * sizeof *t->part);
    t->part[t->n_parts++] = (struct plan_part){index, row0, rows};
}

/* experts.gate_up_proj [E, 2I, H] as two stacks, experts.down_proj as one. */
static void add_fused(struct plan *p, const struct weight *w, int index)
{
    bool is_pair = ends(w->name, "gate_up_proj");
    size_t base = strlen(w->name) - strlen(is_pair ? "experts.gate_up_proj" : "experts.down_proj");
    bool in_mlp = base >= 4 && !strncmp(w->name + base - 4, "mlp.", 4);
    static const char *const ends_of[2][3] = {{"experts.switch_glu.gate_proj.weight", "experts.switch_glu.up_proj.weight", "experts.switch_glu.down_proj.weight"},
                                              {"switch_mlp.gate_proj.weight", "switch_mlp.up_proj.weight", "switch_mlp.down_proj.weight"}};
    for (int k = is_pair ? 0 : 2; k < (is_pair ? 2 : 3); k++) {
        struct plan_target *t = add(p, w->name, base, ends_of[in_mlp][k]);
        int64_t rows = is_pair ? w->ne[1] / 2 : w->ne[1];
        for (int64_t x = 0; x < w->ne[0]; x++)
            add_part(t, index, x * w->ne[1] + (k == 1 ? rows : 0), rows);
        t->ndim = 3;
        t->ne[0] = w->ne[0], t->ne[1] = rows, t->ne[2] = w->ne[2];
        t->bits = p->bits;
    }
}

/* "...mlp.experts.7.gate_proj.weight": 7, and where "experts." begins; -1 for other names. */
static int64_t expert_of(const char *name, size_t *base, const char **rest)
{
    const char *s = strstr(name, "mlp.experts.");
    char *end;
    if (!s || s[12] < '0' || s[12] > '9')
        return -1;
    int64_t x = strtoll(s + 12, &end, 10);
    *base = (size_t)(s + 4 - name);
    *rest = end;
    return *end == '.' ? x : -1;
}

/* All experts of one kind and layer, in order; the first one brings the others. */
static void add_single_experts(struct plan *p, const struct package *pkg, int index)
{
    const struct weight *w = weights_at(pkg->weights, index);
    size_t base;
    const char *rest;
    if (expert_of(w->name, &base, &rest) != 0)
        return;
    char end[1200];
    snprintf(end, sizeof end, "switch_mlp%s", rest);
    struct plan_target *t = add(p, w->name, base, end);
    t->ndim = 3;
    t->ne[1] = w->ne[0], t->ne[2] = w->ne[1];
    t->bits = p->bits;
    int n_base = (int)(base + strlen(w->key) - strlen(w->name)); // of the key, which is the name less a prefix
    for (int64_t x = 0; x < 1 << 16; x++) {
        const struct weight *other = weights_find(pkg->weights, "%.*sexperts.%lld%s", n_base, w->key, (long long)x, rest);
        int at = -1;
        for (int i = 0; other && i < weights_count(pkg->weights) && at < 0; i++)
            at = weights_at(pkg->weights, i) == other ? i : -1;
        if (at < 0 || other->ne[0] != w->ne[0] || other->ne[1] != w->ne[1])
            break;
        add_part(t, at, 0, w->ne[0]);
        t->ne[0]++;
    }
}

int plan_make(struct plan *p, const struct package *pkg, int bits, int group, struct err *e)
{
    int64_t n_layers;
    *p = (struct plan){.group = group, .bits = bits};
    if (cfg_int(pkg, "num_hidden_layers", 1, 1 << 16, &n_layers, e))
        return e->code;
    for (int i = 0; i < weights_count(pkg->weights); i++) {
        const struct weight *w = weights_at(pkg->weights, i);
        size_t base;
        const char *rest;
        if (w->fmt != WF_F32 && w->fmt != WF_F16 && w->fmt != WF_BF16 && w->fmt != WF_OTHER)
            return err_set(e, ERR_UNSUPPORTED, "%s: tensor %.120s is quantized already (%s): quantizing twice is unsupported, take the original package",
                           w->file, w->name, w->type);
        bool wanted = is_wanted(w, group, n_layers);
        if (wanted && w->ndim == 3) {
            add_fused(p, w, i);
        } else if (wanted && expert_of(w->name, &base, &rest) >= 0) {
            add_single_experts(p, pkg, i);
        } else {
            struct plan_target *t = add(p, w->name, strlen(w->name), "");
            add_part(t, i, 0, -1);
            t->ndim = w->ndim;
            memcpy(t->ne, w->ne, sizeof t->ne);
            t->bits = wanted ? bits : 0;
        }
    }
    return 0;
}

enum wfmt plan_scale_fmt(const struct package *pkg, const struct plan_target *t) { return weights_at(pkg->weights, t->part[0].index)->fmt; }

static int64_t elements(const struct plan_target *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++)
        n *= t->ne[i];
    return n;
}

/* Bytes of codes, scales, biases. */
static void sizes(const struct plan *p, const struct package *pkg, const struct plan_target *t, int bits, uint64_t out[3])
{
    uint64_t n = (uint64_t)elements(t), one = plan_scale_fmt(pkg, t) == WF_F32 ? 4 : 2;
    out[0] = bits ? n * (uint64_t)bits / 8 : weights_at(pkg->weights, t->part[0].index)->bytes;
    out[1] = out[2] = bits ? n / (uint64_t)p->group * one : 0;
}

static uint64_t whole(const struct plan *p, const struct package *pkg, const struct plan_target *t, int bits)
{
    uint64_t b[3];
    sizes(p, pkg, t, bits, b);
    return b[0] + b[1] + b[2];
}

double plan_bpw(const struct plan *p, const struct package *pkg)
{
    double bytes = 0, n = 0;
    for (int i = 0; i < p->n; i++)
        if (p->target[i].bits) {
            bytes += (double)whole(p, pkg, &p->target[i], p->target[i].bits);
            n += (double)elements(&p->target[i]);
        }
    return n > 0 ? 8 * bytes / n : 0;
}

static double kl_at(double kl4, int bits)
{
    for (int b = 4; b < bits; b++)
        kl4 /= 4;
    return kl4;
}

void plan_spend(struct plan *p, const struct package *pkg, double bpw)
{
    double left = 0;
    for (int i = 0; i < p->n; i++)
        if (p->target[i].bits)
            left += bpw / 8 * (double)elements(&p->target[i]) - (double)whole(p, pkg, &p->target[i], p->target[i].bits);
    for (;;) {
        int best = -1, best_bits = 0;
        double best_gain = 0, best_cost = 0;
        for (int i = 0; i < p->n; i++) {
            struct plan_target *t = &p->target[i];
            int next = t->bits == 6 ? 8 : t->bits + 1;
            if (!t->bits || t->bits >= 8 || t->kl <= 0)
                continue;
            double cost = (double)(whole(p, pkg, t, next) - whole(p, pkg, t, t->bits)), gain = kl_at(t->kl, t->bits) - kl_at(t->kl, next);
            if (cost <= left && gain / cost > best_gain) {
                best = i, best_bits = next;
                best_gain = gain / cost, best_cost = cost;
            }
        }
        if (best < 0)
            return;
        p->target[best].bits = best_bits;
        left -= best_cost;
    }
}

void plan_place(struct plan *p, const struct package *pkg, uint64_t shard_max)
{
    uint64_t at = 0;
    int shard = 0;
    p->total = 0;
    for (int i = 0; i < p->n; i++) {
        struct plan_target *t = &p->target[i];
        uint64_t n = whole(p, pkg, t, t->bits);
        sizes(p, pkg, t, t->bits, t->bytes);
        if (at && at + n > shard_max)
            shard++, at = 0;
        t->shard = shard;
        for (int k = 0; k < 3; k++) {
            t->at[k] = at;
            at += t->bytes[k];
        }
        p->shard_bytes = xrealloc(p->shard_bytes, (size_t)(shard + 1) * sizeof *p->shard_bytes);
        p->shard_bytes[shard] = at;
        p->total += n;
    }
    p->n_shards = shard + 1;
}

void plan_free(struct plan *p)
{
    for (int i = 0; i < p->n; i++) {
        free(p->target[i].name);
        free(p->target[i].part);
    }
    free(p->target);
    free(p->shard_bytes);
    *p = (struct plan){0};
}
