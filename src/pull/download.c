#include "pull/download.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/clock.h"
#include "base/file.h"
#include "pull/part.h"

/* A run of blocks that one request asks for. */
enum { MIN_RUN = 4, MAX_RUN = 256, CHECK_BLOCKS = 16 };

struct item {
    const struct hub_file *f;
    char *path, *journal, *url;
    struct part part;
    bool is_open, is_finished;
    char etag[160];      // of the answers so far
    bool must_restart;   // the tag changed: the server has another file now
    bool ignores_tags;   // that happened before: the checksum decides
    bool was_wrong;      // fetched a second time after a wrong checksum
    struct slot *whole;  // the server ignores ranges: this slot alone fetches the file from its begin
    bool has_data;       // some came in this run
};

/* One connection's work: bytes [pos, end) of a file. */
struct slot {
    struct work *w;
    struct item *it; // NULL: idle
    uint64_t pos, end;
    uint64_t pos_before, done_before; // when the request was started: what it got on with
    XXH3_state_t *hash;               // of the block that pos is in
    bool is_busy, is_dropped;
    int attempt;
    int64_t wake_ns;
    struct err e; // the request's own trouble
};

struct work {
    const struct download *d;
    struct item *item;
    struct slot slot[DOWNLOAD_MAX_CONNECTIONS];
    struct download_progress p;
    int n_finished, n_open;
    char waiting[200];
    int64_t told_ns;
    struct err e; // ends it all
};

static uint64_t block_of(uint64_t pos) { return pos / PART_BLOCK; }
static uint64_t blocks_bytes(uint64_t n, uint64_t size) { return n * PART_BLOCK < size ? n * PART_BLOCK : size; }

// ---- files -----------------------------------------------------------------------------------------------

static void name_item(const struct download *d, int i, struct item *it)
{
    char journal[32];
    it->f = &d->repo->file[d->file[i]];
    it->path = path_join(d->dir, it->f->path);
    snprintf(journal, sizeof journal, "%016llx", (unsigned long long)XXH3_64bits(it->f->path, strlen(it->f->path)));
    it->journal = path_join(d->journals, journal);
}

static void free_item(struct item *it)
{
    if (it->is_open)
        part_close(&it->part);
    free(it->path);
    free(it->journal);
    free(it->url);
}

uint64_t download_left(const struct download *d)
{
    uint64_t left = 0;
    for (int i = 0; i < d->n_files; i++) {
        struct item it = {0};
        name_item(d, i, &it);
        left += it.f->size - part_present(it.path, it.journal, it.f->size, it.f->kind, it.f->digest);
        free_item(&it);
    }
    return left;
}

static int open_item(struct work *w, struct item *it)
{
    char *dir = xstrndup(it->path, (size_t)(path_base(it->path) - it->path));
    int rc = file_make_dirs(dir, &w->e);
    free(dir);
    w->p.done -= part_present(it->path, it->journal, it->f->size, it->f->kind, it->f->digest);
    if (!rc)
        rc = part_open(&it->part, it->path, it->journal, it->f->path, it->f->size, it->f->kind, it->f->digest, &w->e);
    if (rc)
        return rc;
    it->is_open = true;
    it->url = hub_file_url(w->d->hub, w->d->repo, it->f->path);
    w->n_open++;
    w->p.done += blocks_bytes(it->part.n_done, it->f->size);
    return 0;
}

/* Everything of the file is fetched anew. */
static int restart_item(struct work *w, struct item *it)
{
    uint64_t had = blocks_bytes(it->part.n_done, it->f->size);
    w->p.done -= had;
    w->p.again += had;
    w->p.checked -= blocks_bytes(it->part.front, it->f->size);
    it->etag[0] = 0;
    it->must_restart = false;
    for (int i = 0; i < w->d->connections; i++)
        if (w->slot[i].it == it)
            w->slot[i].is_dropped = true;
    return part_reset(&it->part, &w->e);
}

static int finish_item(struct work *w, struct item *it)
{
    char found[DIGEST_HEX];
    int rc = part_verify(&it->part, found, &w->e);
    if (rc < 0)
        return rc;
    if (rc && it->was_wrong)
        return err_set(&w->e, ERR_FORMAT, "%.150s: wrong checksum: expected %s, found %s, twice", it->f->path, it->f->digest, found);
    if (rc) {
        it->was_wrong = true;
        return restart_item(w, it);
    }
    part_close(&it->part);
    it->is_open = false;
    it->is_finished = true;
    w->n_open--;
    w->n_finished++;
    return 0;
}

/* Lets the checksums catch up. Returns whether there was something to do, or an error. */
static int check_items(struct work *w)
{
    int busy = 0;
    for (int i = 0; i < w->d->n_files; i++) {
        struct item *it = &w->item[i];
        if (!it->is_open)
            continue;
        uint64_t front = it->part.front, n_done = it->part.n_done;
        int n = part_advance(&it->part, CHECK_BLOCKS, &w->e);
        if (n < 0)
            return n;
        w->p.checked += blocks_bytes(it->part.front, it->f->size) - blocks_bytes(front, it->f->size);
        w->p.done -= blocks_bytes(n_done, it->f->size) - blocks_bytes(it->part.n_done, it->f->size); // wasn't what its hash says
        busy |= n > 0;
        if (part_is_whole(&it->part) && finish_item(w, it))
            return w->e.code;
    }
    return busy;
}

// ---- answers ---------------------------------------------------------------------------------------------

static void begin_block(struct slot *s) { XXH3_64bits_reset(s->hash); }

/* The server sends the whole file whatever was asked: this slot takes all of it, the file's others stop. */
static void take_whole(struct slot *s)
{
    struct item *it = s->it;
    for (int i = 0; i < s->w->d->connections; i++)
        if (&s->w->slot[i] != s && s->w->slot[i].it == it)
            s->w->slot[i].is_dropped = true;
    it->whole = s;
    for (uint64_t b = 0; b < it->part.n_blocks; b++)
        if (it->part.mark[b] == PART_OPEN)
            it->part.mark[b] = PART_TAKEN;
    s->pos = 0;
    s->end = it->f->size;
    begin_block(s);
}

static int on_head(void *ud, const struct http_head *h)
{
    struct slot *s = ud;
    struct item *it = s->it;
    int64_t size = (int64_t)it->f->size;
    if (s->is_dropped || (it->whole && it->whole != s))
        return ERR_CANCEL;
    if (it->etag[0] && h->etag[0] && strcmp(it->etag, h->etag) && !it->ignores_tags) {
        it->must_restart = it->ignores_tags = true;
        return err_set(&s->e, ERR_FORMAT, "the file changed on the server while it was fetched");
    }
    snprintf(it->etag, sizeof it->etag, "%s", h->etag);
    if (h->status == 200) {
        if (h->length >= 0 && h->length != size)
            return err_set(&s->e, ERR_FORMAT, "expected %lld bytes, the server has %lld", (long long)size, (long long)h->length);
        if (s->pos || s->end != it->f->size)
            take_whole(s);
        return 0;
    }
    if (h->first != (int64_t)s->pos || h->last >= (int64_t)s->end || (h->total >= 0 && h->total != size))
        return err_set(&s->e, ERR_FORMAT, "expected bytes %llu to %llu of %lld, the server sends %lld to %lld of %lld", (unsigned long long)s->pos,
                       (unsigned long long)s->end - 1, (long long)size, (long long)h->first, (long long)h->last, (long long)h->total);
    return 0;
}

static int on_data(void *ud, const void *data, size_t n)
{
    struct slot *s = ud;
    struct part *p = &s->it->part;
    const uint8_t *at = data;
    if (s->is_dropped)
        return ERR_CANCEL;
    s->w->p.fetched += n;
    s->it->has_data = true;
    while (n) {
        if (s->pos == s->end)
            return ERR_CANCEL; // more than was asked for: not wanted
        uint64_t block = block_of(s->pos), block_end = part_block_end(p, block), end = block_end < s->end ? block_end : s->end;
        size_t take = n < end - s->pos ? n : (size_t)(end - s->pos);
        bool is_there = p->mark[block] == PART_DONE;
        if (is_there)
            s->w->p.again += take;
        else if (part_write(p, s->pos, at, take, &s->w->e))
            return s->w->e.code;
        XXH3_64bits_update(s->hash, at, take);
        s->pos += take;
        at += take;
        n -= take;
        if (s->pos < block_end)
            continue;
        if (!is_there && part_block_done(p, block, part_hash_nonzero(XXH3_64bits_digest(s->hash)), &s->w->e))
            return s->w->e.code;
        s->w->p.done += is_there ? 0 : block_end - block * PART_BLOCK;
        begin_block(s);
    }
    return 0;
}

/* Gives back what the slot had taken and not done. */
static void release(struct slot *s)
{
    struct item *it = s->it;
    if (it && it->is_open) {
        for (uint64_t b = block_of(s->pos); b < it->part.n_blocks && b * PART_BLOCK < s->end; b++)
            if (it->part.mark[b] == PART_TAKEN)
                it->part.mark[b] = PART_OPEN;
        if (it->whole == s)
            it->whole = NULL;
    }
    s->it = NULL;
    s->is_dropped = false;
    s->attempt = 0;
    s->wake_ns = 0;
    s->pos = s->end = 0;
    s->e = (struct err){0};
}

/* The request is over and bytes are missing: again, later, or never. */
static void try_again(struct slot *s, const struct fetch_result *r)
{
    struct work *w = s->w;
    struct item *it = s->it;
    const char *msg = s->e.code ? s->e.msg : r->rc ? r->msg : "the answer ended early";
    bool got_on = it->whole == s ? it->part.n_done > s->done_before : s->pos > s->pos_before;
    // signed addresses run out: one that worked before may be asked for again
    bool may_help = s->e.code || !r->rc || r->is_transient || (r->head.status == 403 && it->has_data);
    s->attempt = got_on ? 1 : s->attempt + 1;
    int ms = fetch_backoff_ms(s->attempt, r->head.retry_after_s);
    if (!may_help || s->attempt >= fetch_max_attempts(w->d->hub->f) || ms < 0) {
        hub_explain(w->d->hub, w->d->repo, it->f->path, r, msg, &w->e);
        return;
    }
    s->wake_ns = clock_ns() + (int64_t)ms * 1000000;
    if (!got_on)
        snprintf(w->waiting, sizeof w->waiting, "%.120s; trying again in %d s", msg, (ms + 999) / 1000);
    s->e = (struct err){0};
}

static void on_done(void *ud, const struct fetch_result *r)
{
    struct slot *s = ud;
    struct work *w = s->w;
    s->is_busy = false;
    if (s->is_dropped || w->e.code)
        return;
    if (s->it->f->kind == DIGEST_SHA256 && strlen(r->linked_etag) == 64 && strcmp(r->linked_etag, s->it->f->digest)) {
        err_set(&w->e, ERR_FORMAT, "%.150s: the hub's list gives the checksum %s, its file server %s", s->it->f->path, s->it->f->digest, r->linked_etag);
        return;
    }
    if (s->it->whole && s->it->whole != s) {
        s->is_dropped = true;
    } else if (s->pos == s->end) {
        w->waiting[0] = 0;
        release(s);
    } else if (s->it->must_restart) {
        restart_item(w, s->it);
    } else {
        try_again(s, r);
    }
}

// ---- work ------------------------------------------------------------------------------------------------

static uint64_t run_length(const struct work *w)
{
    uint64_t n = (w->p.total - w->p.done) / PART_BLOCK / (2 * (uint64_t)w->d->connections);
    return n < MIN_RUN ? MIN_RUN : n > MAX_RUN ? MAX_RUN : n;
}

/* Takes the first open run of blocks for an idle slot; false if there is none now. */
static bool pick(struct work *w, struct slot *s)
{
    for (int i = 0; i < w->d->n_files; i++) {
        struct item *it = &w->item[i];
        if (it->is_finished || it->whole)
            continue;
        if (!it->is_open && (w->n_open > w->d->connections || open_item(w, it)))
            return false;
        uint64_t b = it->part.front, end;
        while (b < it->part.n_blocks && it->part.mark[b] != PART_OPEN)
            b++;
        if (b == it->part.n_blocks)
            continue;
        for (end = b; end < it->part.n_blocks && it->part.mark[end] == PART_OPEN && end - b < run_length(w); end++)
            it->part.mark[end] = PART_TAKEN;
        s->it = it;
        s->pos = b * PART_BLOCK;
        s->end = part_block_end(&it->part, end - 1);
        begin_block(s);
        return true;
    }
    return false;
}

static int start(struct slot *s)
{
    struct item *it = s->it;
    struct fetch_request q = {.url = it->url, .has_range = s->pos || s->end != it->f->size, .first = s->pos, .last = s->end - 1, .ud = s,
                              .on_head = on_head, .on_data = on_data, .on_done = on_done};
    s->pos_before = s->pos;
    s->done_before = it->part.n_done;
    s->is_busy = true;
    return fetch_start(s->w->d->hub->f, &q, &s->w->e);
}

/* All before any new work is given out: their blocks may be what others take next. */
static void release_dropped(struct work *w)
{
    for (int i = 0; i < w->d->connections; i++) {
        struct slot *s = &w->slot[i];
        if (!s->is_dropped)
            continue;
        if (s->is_busy)
            fetch_abort(w->d->hub->f, s);
        s->is_busy = false;
        release(s);
    }
}

/* Gives every connection that may work something to do. Returns how many work. */
static int assign(struct work *w)
{
    int n = 0;
    int64_t now = clock_ns();
    release_dropped(w);
    for (int i = 0; i < w->d->connections && !w->e.code; i++) {
        struct slot *s = &w->slot[i];
        if (!s->is_busy && (!s->it || s->wake_ns <= now) && (s->it || pick(w, s)) && start(s))
            break;
        n += s->is_busy;
    }
    return n;
}

static void tell(struct work *w, bool is_last)
{
    int64_t now = clock_ns();
    if (!w->d->on_progress || (!is_last && now - w->told_ns < 200000000))
        return;
    w->told_ns = now;
    w->p.waiting = w->waiting[0] ? w->waiting : NULL;
    w->p.name = NULL;
    for (int i = 0; i < w->d->n_files && !w->p.name; i++)
        if (w->item[i].is_open)
            w->p.name = w->item[i].f->path;
    w->d->on_progress(w->d->ud, &w->p);
}

static int work(struct work *w)
{
    while (w->n_finished < w->d->n_files) {
        int checked = check_items(w), n = checked < 0 ? 0 : assign(w);
        if (w->e.code)
            return w->e.code;
        if (fetch_is_cancelled(w->d->hub->f))
            return err_set(&w->e, ERR_CANCEL, "stopped; what is there stays, pull again to go on");
        if (fetch_poll(w->d->hub->f, checked ? 0 : 50, &w->e) < 0 || w->e.code)
            return w->e.code;
        if (!n && !checked) // all wait for their next attempt
            fetch_pause(w->d->hub->f, 20);
        tell(w, false);
    }
    return 0;
}

int download_run(const struct download *d, struct download_progress *p, struct err *e)
{
    struct work *w = xcalloc(1, sizeof *w);
    w->d = d;
    w->item = xcalloc((size_t)d->n_files, sizeof *w->item);
    for (int i = 0; i < d->n_files; i++) {
        name_item(d, i, &w->item[i]);
        w->p.total += w->item[i].f->size;
    }
    w->p.done = w->p.total - download_left(d);
    for (int i = 0; i < d->connections; i++) {
        w->slot[i].w = w;
        w->slot[i].hash = XXH3_createState();
    }
    int rc = work(w);
    for (int i = 0; i < d->connections; i++) {
        fetch_abort(d->hub->f, &w->slot[i]);
        XXH3_freeState(w->slot[i].hash);
    }
    tell(w, true);
    for (int i = 0; i < d->n_files; i++)
        free_item(&w->item[i]);
    *p = w->p;
    p->waiting = p->name = NULL;
    if (rc)
        err_set(e, rc, "%s", w->e.msg);
    free(w->item);
    free(w);
    return rc;
}
