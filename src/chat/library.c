/* The public interface (include/foresay.h) over instance, engine, chat and one answer. */
#include "foresay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "chat/chat.h"
#include "infer/gen.h"

struct foresay {
    struct instance in;
    struct engine *g;
    struct gen *gen;
    struct chat chat;
    bool plain;
    foresay_text_fn *fn; // of the answer in progress
    void *ud;
};

enum { CHAT_MAX = 256 << 20 };

static int tell(const struct err *e, char *err, size_t n)
{
    if (err && n)
        snprintf(err, n, "%s", e->msg);
    return e->code ? e->code : ERR_ARG;
}

struct foresay *foresay_open(const char *model, const struct foresay_options *o, char *err, size_t n_err)
{
    static const struct foresay_options none;
    struct foresay *f = xcalloc(1, sizeof *f);
    struct err e = {0};
    o = o ? o : &none;
    struct instance_options io = {.threads = o->threads};
    struct engine_options eo = {.n_ctx = o->context, .n_seqs = 2, .with_mtp = !o->plain};
    f->plain = o->plain != 0;
    int rc = instance_open(&f->in, model, &io, &e);
    if (!rc)
        rc = chat_open(&f->chat, model, &f->in, &e);
    if (!rc)
        rc = engine_open(&f->g, f->in.m, &f->in.head, &eo, &e);
    if (!rc)
        rc = gen_new(&f->gen, f->g, &f->in, &e);
    if (!rc)
        return f;
    tell(&e, err, n_err);
    foresay_close(f);
    return NULL;
}

void foresay_close(struct foresay *f)
{
    if (!f)
        return;
    gen_free(f->gen);
    engine_close(f->g);
    if (f->chat.tok)
        chat_close(&f->chat);
    instance_close(&f->in);
    free(f);
}

const char *foresay_head_note(const struct foresay *f) { return f->in.head.health == MTP_OK && !f->in.head.suspicious ? "" : f->in.head.why; }
const char *foresay_version(void) { return FORESAY_VERSION; }

static void on_token(void *ud, const struct token_event *ev)
{
    struct foresay *f = ud;
    if (ev->n_text && f->fn && f->fn(f->ud, ev->text, ev->n_text))
        gen_cancel(f->gen);
}

/* Ids of the request's chat or text. */
static int read_prompt(struct foresay *f, const struct foresay_request *r, struct arena *a, struct ids *ids, struct err *e)
{
    if (!r->chat == !r->text)
        return err_set(e, ERR_ARG, "a request has either chat or text");
    if (r->text)
        return chat_encode_raw(&f->chat, &f->in, r->text, strlen(r->text), ids, e);
    struct json *request;
    struct buf b;
    buf_init(&b, CHAT_MAX);
    buf_str(&b, "{\"add_generation_prompt\": true, \"messages\": ");
    buf_str(&b, r->chat);
    buf_chr(&b, '}');
    int rc = b.is_full ? err_set(e, ERR_LIMIT, "chat: longer than %d bytes", CHAT_MAX) : json_parse(&request, a, b.p, b.n, "chat", e);
    if (!rc)
        rc = chat_encode(&f->chat, request, ids, NULL, e);
    buf_free(&b);
    return rc;
}

static void fill_result(const struct foresay *f, struct foresay_result *out)
{
    const struct gen_stats *st = gen_stats(f->gen);
    *out = (struct foresay_result){.seed = gen_seed(f->gen), .prompt_tokens = st->prompt_tokens, .cached_tokens = st->cached_tokens,
                                   .output_tokens = st->emitted, .rounds = st->rounds, .prefill_tok_s = gen_prefill_rate(st),
                                   .decode_tok_s = gen_decode_rate(st), .stop = stop_reason_name(gen_stop_reason(f->gen))};
    for (int i = 0; i < N_DRAFTERS; i++) {
        out->drafted += st->drafted_by[i];
        out->accepted += st->kept_from[i];
    }
}

int foresay_answer(struct foresay *f, const struct foresay_request *r, foresay_text_fn *fn, void *ud, struct foresay_result *result,
                   char *err, size_t n_err)
{
    struct err e = {0};
    struct arena a = {0};
    struct ids ids = {0};
    struct json *settings = NULL;
    struct gen_request q = {.max_tokens = r->max_tokens, .depth = f->plain ? 0 : r->fixed_depth ? r->depth : -1, .use_mtp = true,
                            .use_copy = true, .has_seed = r->has_seed != 0, .seed = r->seed};
    int rc = r->max_tokens < 0 || (r->fixed_depth && (r->depth < 0 || r->depth > DEPTH_MAX))
                 ? err_set(&e, ERR_ARG, "max_tokens must be 0 or more and depth 0 to %d", DEPTH_MAX)
                 : 0;
    q.sampling = f->in.sampling;
    if (!rc && r->settings)
        rc = json_parse(&settings, &a, r->settings, strlen(r->settings), "settings", &e);
    if (!rc && settings)
        rc = sampling_read(&q.sampling, settings, &e);
    if (!rc)
        rc = read_prompt(f, r, &a, &ids, &e);
    if (!rc) {
        f->fn = fn;
        f->ud = ud;
        q.prompt = ids.v;
        q.n_prompt = (int)ids.n;
        rc = gen_run(f->gen, &q, on_token, f, NULL, &e);
    }
    if (!rc && result)
        fill_result(f, result);
    sampling_free(&q.sampling);
    ids_free(&ids);
    arena_free(&a);
    return rc ? tell(&e, err, n_err) : 0;
}
