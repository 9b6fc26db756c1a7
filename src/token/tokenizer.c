/* Opening, closing and looking into a tokenizer; the parts that both loaders share. */
#include "token/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "format/gguf.h"
#include "token/model.h"

/* Files list merges in the order of the tokens they make: the one after the last merge's is nearly always
 * right, and lies in the cache. */
static int32_t find_made(const struct vocab *v, const char *s, size_t n, int32_t last)
{
    const char *next;
    size_t n_next;
    if (vocab_bytes(v, last + 1, &next, &n_next) && n_next == n && !memcmp(next, s, n) &&
        v->tok[v->by_id[last + 1]].kind == TOKEN_BYTES)
        return last + 1;
    return vocab_find(v, s, n, TOKEN_BYTES);
}

int model_add_merge(struct tokenizer *t, const char *a, size_t n_a, const char *b, size_t n_b, int32_t number,
                    struct err *e)
{
    char small[512], *both = 2 * (n_a + n_b) > sizeof small ? malloc(2 * (n_a + n_b)) : small;
    int32_t left, right, into;
    int rc = 0;
    if (!both)
        return err_set(e, ERR_NOMEM, "no memory for merge %d", (int)number);
    char *bytes = both + n_a + n_b;
    enum token_kind kind_a, kind_b;
    memcpy(both, a, n_a);
    memcpy(both + n_a, b, n_b);
    size_t m_a = vocab_decode(&t->vocab, a, n_a, bytes, &kind_a),
           m_b = vocab_decode(&t->vocab, b, n_b, bytes + m_a, &kind_b);
    if (kind_a == TOKEN_BYTES && kind_b == TOKEN_BYTES) {
        left = vocab_find(&t->vocab, bytes, m_a, TOKEN_BYTES);
        right = vocab_find(&t->vocab, bytes + m_a, m_b, TOKEN_BYTES);
        into = find_made(&t->vocab, bytes, m_a + m_b, t->bpe.last_into);
    } else {
        left = vocab_find_written(&t->vocab, a, n_a);
        right = vocab_find_written(&t->vocab, b, n_b);
        into = vocab_find_written(&t->vocab, both, n_a + n_b);
    }
    if (left < 0 || right < 0 || into < 0) {
        const char *s = left < 0 ? a : right < 0 ? b : both;
        size_t n = left < 0 ? n_a : right < 0 ? n_b : n_a + n_b;
        rc = err_set(e, ERR_FORMAT, "merge %d names the token \"%.*s\", which the vocabulary lacks",
                     (int)number, (int)(n < 100 ? n : 100), s);
    } else {
        bpe_add_merge(&t->bpe, left, right, into, number);
    }
    if (both != small)
        free(both);
    return rc;
}

int model_add_token(struct tokenizer *t, const char *s, size_t n, int64_t id, const struct added_token *a,
                    struct err *e)
{
    struct added_token token = *a;
    int32_t known = vocab_find_written(&t->vocab, s, n);
    if (!n || vocab_find(&t->vocab, s, n, TOKEN_ADDED) >= 0)
        return 0; // as the reference: empty ones don't count, of equal ones the first does
    if (n > TOKEN_MAX_ADDED)
        return err_set(e, ERR_LIMIT, "an added token of %zu bytes, the limit is %d", n, TOKEN_MAX_ADDED);
    if (known >= 0)
        id = known;
    int rc = vocab_add(&t->vocab, s, n, id, TOKEN_ADDED, e);
    if (rc)
        return rc;
    token.id = (int32_t)id;
    t->vocab.flags[id] |= TOKEN_IS_ADDED | (token.is_special ? TOKEN_IS_SPECIAL : 0);
    if (!token.normalized)
        return added_add(&t->raw, s, n, &token, e);
    struct region all = {n, true};
    struct view v = {.s = s, .n = n, .r = &all, .n_r = 1}, norm;
    struct text work[2] = {{0}};
    if (norm_run(&t->norm, work, &v, false, &norm))
        rc = err_set(e, ERR_NOMEM, "no memory for an added token of %zu bytes", n);
    else
        rc = added_add(&t->normalized, norm.s, norm.n, &token, e);
    if (!rc && norm.s != s) // shown as it is sought, which is what the reference does
        rc = vocab_add(&t->vocab, norm.s, norm.n, id, TOKEN_ADDED, e);
    text_free(&work[0]);
    text_free(&work[1]);
    return rc;
}

static const char SPACE_MARK[] = "\xE2\x96\x81"; // U+2581

int model_spaces(struct tokenizer *t, enum spaces spaces, struct err *e)
{
    int rc = norm_add(&t->norm, NORM_REPLACE, " ", 1, SPACE_MARK, 3, e);
    t->decoding = (struct decoding){.n_from = 3, .to = " ", .n_to = 1, .strip = " ", .n_strip = 1};
    memcpy(t->decoding.from, SPACE_MARK, 3);
    if (rc || spaces != SPACES_PREFIXED)
        return rc;
    t->decoding.max_strip = 1;
    return norm_add(&t->norm, NORM_PREPEND, NULL, 0, SPACE_MARK, 3, e);
}

int model_finish(struct tokenizer *t, const char *pattern, struct err *e)
{
    struct buf b;
    if (t->vocab.max_id < 0)
        return err_set(e, ERR_FORMAT, "the vocabulary is empty");
    buf_init(&b, sizeof t->kind);
    buf_str(&b, t->vocab.form == FORM_ALPHABET ? "byte-level BPE" : "BPE over characters");
    if (t->bpe.by_char && t->bpe.byte_fallback)
        buf_str(&b, " with byte fallback (SentencePiece style)");
    if (t->pretok.n)
        buf_fmt(&b, ", %s pattern", pattern ? pattern : "its own");
    if (norm_has(&t->norm, NORM_NFC))
        buf_str(&b, ", NFC");
    snprintf(t->kind, sizeof t->kind, "%s", buf_cstr(&b));
    buf_free(&b);
    return bpe_finish(&t->bpe) ? err_set(e, ERR_NOMEM, "no memory for %d tokens", t->vocab.n_ids) : 0;
}

/* tokenizer.json or tekken.json and, beside it, tokenizer_config.json. */
static int open_json(struct tokenizer *t, const char *path, struct err *e)
{
    char *text = NULL;
    size_t n, n_dir = (size_t)(path_base(path) - path);
    int rc = file_read(path, TOKEN_MAX_FILE, &text, &n, e);
    if (!rc && (rc = load_json(t, text, n, e)))
        err_prefix(e, "%s", path);
    free(text);
    if (rc)
        return rc;
    char *dir = n_dir ? xstrndup(path, n_dir) : xstrdup(".");
    char *config = path_join(dir, "tokenizer_config.json");
    if (file_exists(config))
        rc = load_config(t, config, e);
    free(dir);
    free(config);
    return rc;
}

static int open_gguf(struct tokenizer *t, const char *path, struct err *e)
{
    struct gguf *g = NULL;
    int rc = gguf_open(&g, path, e);
    if (!rc && (rc = load_gguf(t, g, e)))
        err_prefix(e, "%s", path);
    gguf_close(g);
    return rc;
}

static bool is_gguf(const char *path)
{
    char magic[4] = {0};
    FILE *f = file_is_regular(path) ? fopen(path, "rb") : NULL;
    bool yes = f && fread(magic, 1, 4, f) == 4 && !memcmp(magic, "GGUF", 4);
    if (f)
        fclose(f);
    return yes;
}

/* The first of these counts. */
static const char *const files[] = {"tokenizer.json", "tekken.json", "tokenizer.model"};
enum { N_FILES = sizeof files / sizeof *files, FILE_SPM = N_FILES - 1 };

static char *find_file(const char *dir, int *which)
{
    for (*which = 0; *which < N_FILES; ++*which) {
        char *path = path_join(dir, files[*which]);
        if (file_exists(path))
            return path;
        free(path);
    }
    return NULL;
}

static int open_folder(struct tokenizer *t, const char *dir, struct err *e)
{
    int which, rc;
    char *path = find_file(dir, &which);
    if (!path)
        return err_set(e, ERR_IO, "%s: this folder has no tokenizer.json", dir);
    if (which == FILE_SPM)
        rc = err_set(e, ERR_UNSUPPORTED,
                     "%s: unsupported tokenizer: tokenizer.model (SentencePiece), no tokenizer.json", dir);
    else
        rc = open_json(t, path, e);
    free(path);
    return rc;
}

bool tokenizer_present(const char *path)
{
    int which;
    if (!file_is_dir(path))
        return true;
    free(find_file(path, &which));
    return which < N_FILES;
}

static struct tokenizer *new_empty(void)
{
    struct tokenizer *t = xcalloc(1, sizeof *t);
    vocab_init(&t->vocab);
    added_init(&t->raw);
    added_init(&t->normalized);
    t->specials = (struct special_ids){.bos = -1, .eos = -1, .pad = -1};
    return t;
}

int tokenizer_open_bytes(struct tokenizer **out, struct err *e)
{
    struct tokenizer *t = new_empty();
    struct buf b; // a tokenizer.json whose vocabulary is the byte alphabet alone
    int others = 256;
    buf_init(&b, 64 * 1024);
    buf_str(&b, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int i = 0; i < 256; i++) {
        bool is_itself = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
        buf_fmt(&b, "%s\"\\u%04x\":%d", i ? "," : "", is_itself ? i : others++, i);
    }
    buf_str(&b, "}},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},"
                "\"decoder\":{\"type\":\"ByteLevel\"}}");
    int rc = load_json(t, b.p, b.n, e);
    snprintf(t->kind, sizeof t->kind, "none in the package: bytes are ids 0 to 255");
    buf_free(&b);
    if (rc) {
        tokenizer_close(t);
        t = NULL;
    }
    *out = t;
    return rc;
}

int tokenizer_open(struct tokenizer **out, const char *path, struct err *e)
{
    struct tokenizer *t = new_empty();
    int rc;
    if (file_is_dir(path))
        rc = open_folder(t, path, e);
    else if (is_gguf(path))
        rc = open_gguf(t, path, e);
    else
        rc = open_json(t, path, e);
    if (rc) {
        tokenizer_close(t);
        t = NULL;
    }
    *out = t;
    return rc;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    pretok_deinit(&t->pretok);
    bpe_deinit(&t->bpe);
    added_deinit(&t->raw);
    added_deinit(&t->normalized);
    vocab_deinit(&t->vocab);
    free(t);
}

int32_t tokenizer_max_id(const struct tokenizer *t) { return t->vocab.max_id; }
int tokenizer_n_tokens(const struct tokenizer *t) { return t->vocab.n_ids; }
const char *tokenizer_kind(const struct tokenizer *t) { return t->kind; }
struct special_ids tokenizer_specials(const struct tokenizer *t) { return t->specials; }

int32_t tokenizer_find(const struct tokenizer *t, const char *token)
{
    static const enum token_kind kinds[] = {TOKEN_ADDED, TOKEN_BYTES, TOKEN_RAW};
    int32_t id = -1;
    for (int i = 0; i < 3 && id < 0; i++)
        id = vocab_find(&t->vocab, token, strlen(token), kinds[i]);
    return id;
}

bool tokenizer_bytes(const struct tokenizer *t, int32_t id, const char **s, size_t *n)
{
    return vocab_bytes(&t->vocab, id, s, n);
}

static bool has_flag(const struct tokenizer *t, int32_t id, uint8_t flag)
{
    return id >= 0 && id <= t->vocab.max_id && (t->vocab.flags[id] & flag);
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id) { return has_flag(t, id, TOKEN_IS_SPECIAL); }
bool tokenizer_is_added(const struct tokenizer *t, int32_t id) { return has_flag(t, id, TOKEN_IS_ADDED); }
