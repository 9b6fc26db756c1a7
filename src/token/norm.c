#include "token/norm.h"

#include <string.h>

#include "token/nfc.h"

int norm_add(struct norm *m, enum norm_kind kind, const char *from, size_t n_from, const char *to, size_t n_to,
             struct err *e)
{
    struct norm_step *s = &m->step[m->n];
    if (m->n == NORM_MAX_STEPS)
        return err_set(e, ERR_LIMIT, "more than %d normalizer steps", NORM_MAX_STEPS);
    if (n_from > NORM_MAX_TEXT || n_to > NORM_MAX_TEXT)
        return err_set(e, ERR_LIMIT, "a normalizer's text of %zu bytes, the limit is %d", n_from > n_to ? n_from : n_to,
                       NORM_MAX_TEXT);
    *s = (struct norm_step){.kind = kind, .n_from = n_from, .n_to = n_to};
    if (n_from)
        memcpy(s->from, from, n_from);
    if (n_to)
        memcpy(s->to, to, n_to);
    m->n++;
    return 0;
}

bool norm_has(const struct norm *m, enum norm_kind kind)
{
    for (int i = 0; i < m->n; i++)
        if (m->step[i].kind == kind)
            return true;
    return false;
}

/* Next occurrence of the step's text at or after `at`; v->n if there is none. */
static size_t find_from(const struct norm_step *s, const struct view *v, size_t at)
{
    while (at + s->n_from <= v->n) {
        const char *p = memchr(v->s + at, s->from[0], v->n - at - s->n_from + 1);
        if (!p)
            break;
        at = (size_t)(p - v->s);
        if (!memcmp(p, s->from, s->n_from))
            return at;
        at++;
    }
    return v->n;
}

/* Returns 1 if the result is in t. */
static int replace(const struct norm_step *s, struct text *t, const struct view *v)
{
    size_t done = 0, at = s->n_from ? find_from(s, v, 0) : v->n;
    if (at == v->n)
        return 0;
    while (at < v->n) {
        text_copy(t, v, done, at);
        text_add(t, s->to, s->n_to, view_is_tpl(v, at, at + s->n_from));
        done = at + s->n_from;
        at = find_from(s, v, done);
    }
    text_copy(t, v, done, v->n);
    return 1;
}

static int prepend(const struct norm_step *s, struct text *t, const struct view *v, bool is_first)
{
    bool starts = v->n >= s->n_to && !memcmp(v->s, s->to, s->n_to);
    if (!v->n || !s->n_to || (s->kind != NORM_PREPEND && starts) || (s->kind == NORM_PREPEND_FIRST && !is_first))
        return 0;
    text_add(t, s->to, s->n_to, view_is_tpl(v, 0, 1));
    text_copy(t, v, 0, v->n);
    return 1;
}

int norm_run(const struct norm *m, struct text t[2], const struct view *v, bool is_first, struct view *out)
{
    int into = 0;
    *out = *v;
    for (int i = 0; i < m->n; i++) {
        const struct norm_step *s = &m->step[i];
        text_clear(&t[into]);
        int rc = s->kind == NORM_NFC       ? nfc_normalize(&t[into], out)
                 : s->kind == NORM_REPLACE ? replace(s, &t[into], out)
                                           : prepend(s, &t[into], out, is_first);
        if (rc < 0 || t[into].is_full)
            return ERR_NOMEM;
        if (rc) {
            *out = text_view(&t[into]);
            into = !into;
        }
    }
    return 0;
}
