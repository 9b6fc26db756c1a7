/* Mixtures of experts as packages hold them, under a prefix as "layers.3.mlp.":
 *   experts.gate_up_proj [E, 2I, H] (gate rows first), experts.down_proj [E, H, I]      Hugging Face, fused
 *   switch_mlp.gate_proj.weight [E, I, H] ..., or experts.switch_glu. ...               MLX, GGUF
 *   experts.0.gate_proj.weight [I, H] ...                                              one tensor an expert
 * Router and shared expert have names of their own in each family. */
#include <stdio.h>
#include <string.h>

#include "model/model.h"

static bool has(const struct model *m, const char *prefix, const char *name)
{
    return weights_find(m->pkg->weights, "%s%s", prefix, name) != NULL;
}

/* One tensor of all experts, part by part: expert i's matrix begins at row (parts * i + part) * out. */
static int bind_stack(struct model *m, const char *key, int n, int parts, int64_t out, int64_t in, struct moe_matrix **dst, struct err *e)
{
    const struct weight *w = weights_find(m->pkg->weights, "%s", key);
    if (w && w->fmt != WF_OTHER && w->ndim == 3 && (w->ne[0] != n || w->ne[1] != parts * out || w->ne[2] != in))
        return err_set(e, ERR_FORMAT, "%s: shape of tensor %.120s: expected [%d, %lld, %lld], found [%lld, %lld, %lld]", w->file, w->name, n,
                       (long long)(parts * out), (long long)in, (long long)w->ne[0], (long long)w->ne[1], (long long)w->ne[2]);
    const struct bweight *b = model_matrix(m, e, n * parts * out, in, "%s", key);
    if (!b)
        return e->code;
    for (int p = 0; p < parts; p++)
        for (int i = 0; i < n; i++)
            dst[p][i] = (struct moe_matrix){b, (i * parts + p) * out};
    return 0;
}

static int bind_experts(struct model *m, const struct moe_params *p, const char *key, struct moe_matrix *mat[3], struct err *e)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    static const char *const stacks[] = {"switch_mlp", "experts.switch_glu"};
    int n = p->n_experts;
    char name[160];
    for (int k = 0; k < 2; k++) { // with and without .weight
        const char *end = k ? ".weight" : "";
        snprintf(name, sizeof name, "experts.gate_up_proj%s", end);
        if (!has(m, key, name))
            continue;
        snprintf(name, sizeof name, "%sexperts.gate_up_proj%s", key, end);
        if (bind_stack(m, name, n, 2, p->inter, p->hidden, mat, e))
            return e->code;
        snprintf(name, sizeof name, "%sexperts.down_proj%s", key, end);
        return bind_stack(m, name, n, 1, p->hidden, p->inter, &mat[2], e);
    }
    for (size_t k = 0; k < sizeof stacks / sizeof *stacks; k++) {
        snprintf(name, sizeof name, "%s.gate_proj.weight", stacks[k]);
        if (!has(m, key, name))
            continue;
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "%s%s.%s.weight", key, stacks[k], names[i]);
            if (bind_stack(m, name, n, 1, i < 2 ? p->inter : p->hidden, i < 2 ? p->hidden : p->inter, &mat[i], e))
                return e->code;
        }
        return 0;
    }
    for (int x = 0; x < n; x++)
        for (int i = 0; i < 3; i++) {
            mat[i][x].w = model_matrix(m, e, i < 2 ? p->inter : p->hidden, i < 2 ? p->hidden : p->inter, "%sexperts.%d.%s.weight", key, x, names[i]);
            if (!mat[i][x].w)
                return e->code;
        }
    return 0;
}

int moe_read(struct model *m, struct moe_params *p, const char *used_key, bool normalize, struct err *e)
{
    const struct package *pkg = m->pkg;
    int64_t n, k, inter;
    *p = (struct moe_params){.hidden = m->hidden, .eps = m->eps, .scale = 1};
    if (cfg_int(pkg, "num_experts", 1, 1 << 16, &n, e) || cfg_int(pkg, used_key, 1, n, &k, e) ||
        cfg_int(pkg, "moe_intermediate_size", 1, 1 << 24, &inter, e) || cfg_bool_or(pkg, "norm_topk_prob", normalize, &p->normalize, e))
        return e->code;
    p->n_experts = (int)n, p->n_used = (int)k, p->inter = inter;
    return 0;
}

int moe_bind(struct model *m, struct mlp_layer *l, const struct moe_params *shape, const char *key, struct bvec *norm, struct err *e)
{
    struct moe_params *p = arena_alloc(&m->arena, sizeof *p);
    struct moe_matrix *mat[3];
    *p = *shape;
    p->norm = norm;
    for (int i = 0; i < 3; i++) {
        size_t bytes = (size_t)p->n_experts * sizeof *mat[i];
        mat[i] = memset(arena_alloc(&m->arena, bytes), 0, bytes);
    }
    if (bind_experts(m, p, key, mat, e))
        return e->code;
    p->gate = mat[0], p->up = mat[1], p->down = mat[2];
    l->moe = p;
    return m->be->ops->moe_declare(m->be, p, e);
}

int moe_bind_shared(struct model *m, struct mlp_layer *l, const char *key, int64_t inter, bool gated, const char *gate_key, struct err *e)
{
    struct moe_params *p = l->moe;
    if (!(p->shared_gate = model_matrix(m, e, inter, m->hidden, "%sgate_proj.weight", key)) ||
        !(p->shared_up = model_matrix(m, e, inter, m->hidden, "%sup_proj.weight", key)) ||
        !(p->shared_down = model_matrix(m, e, m->hidden, inter, "%sdown_proj.weight", key)) ||
        (gated && !(p->shared_mix = model_matrix(m, e, 1, m->hidden, "%s", gate_key))))
        return e->code;
    model_width(m, BUF_GATE, inter);
    model_width(m, BUF_OUT, m->hidden);
    model_width(m, BUF_B, 1);
    return 0;
}

/* Router scores are float products: a quantized router is unpacked. */
struct bweight *moe_router(struct model *m, int n_experts, struct err *e, const char *key)
{
    const struct weight *w = weights_matrix(m->pkg->weights, e, n_experts, m->hidden, "%s", key);
    struct bweight *b = NULL;
    if (!w)
        return NULL;
    if (w->fmt != WF_F32 && w->fmt != WF_F16 && w->fmt != WF_BF16) {
        size_t n = (size_t)n_experts * (size_t)m->hidden;
        float *x = arena_alloc(&m->arena, n * sizeof *x);
        struct weight *f = arena_alloc(&m->arena, sizeof *f);
        for (int i = 0; i < n_experts; i++)
            weight_row(w, i, x + (int64_t)i * m->hidden);
        *f = *w;
        f->fmt = WF_F32;
        f->q = x;
        f->row_bytes = (size_t)m->hidden * sizeof *x;
        w = f;
    }
    return m->be->ops->weight(m->be, w, &b, e) ? NULL : b;
}
