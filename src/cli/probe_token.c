/* `foresay probe tokenize|detokenize MODEL`: the tokenizer, line by line. The contract is docs/probe.md. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "token/tokenizer.h"

enum { PIECE_MAX_BYTES = 256 * 1024 * 1024 };

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The input's bytes: "text" as it stands, or "hex" undone into *owned. */
static int input_text(const struct json *in, const char **s, size_t *n, char **owned, struct err *e)
{
    const struct json *text = json_get(in, "text"), *hex = json_get(in, "hex");
    if (json_is(text, JSON_STRING) && !hex) {
        *s = text->s;
        *n = text->n;
        return 0;
    }
    if (!json_is(hex, JSON_STRING) || text)
        return err_set(e, ERR_ARG, "the line needs \"text\" or \"hex\", a string");
    if (hex->n % 2)
        return err_set(e, ERR_ARG, "\"hex\" has an odd number of digits");
    char *p = malloc(hex->n / 2 + 1);
    if (!p)
        return err_set(e, ERR_NOMEM, "no memory for %zu bytes of text", hex->n / 2);
    for (size_t i = 0; i < hex->n / 2; i++) {
        int hi = hex_digit(hex->s[2 * i]), lo = hex_digit(hex->s[2 * i + 1]);
        if (hi < 0 || lo < 0) {
            free(p);
            return err_set(e, ERR_ARG, "\"hex\" has something else than hexadecimal digits");
        }
        p[i] = (char)(hi << 4 | lo);
    }
    *s = *owned = p;
    *n = hex->n / 2;
    return 0;
}

static int input_added(const struct json *in, enum added *mode, struct err *e)
{
    const struct json *v = json_get(in, "added");
    const char *name = v ? json_str(v, "?") : "none";
    if (!strcmp(name, "none"))
        *mode = ADDED_NONE;
    else if (!strcmp(name, "text"))
        *mode = ADDED_TEXT;
    else if (!strcmp(name, "all"))
        *mode = ADDED_ALL;
    else
        return err_set(e, ERR_ARG, "\"added\" is \"%.40s\", expected \"none\", \"text\" or \"all\"", name);
    return 0;
}

static int tokenize_line(void *ud, const struct json *in, struct buf *out, struct err *e)
{
    const struct tokenizer *t = ud;
    struct ids ids = {0};
    enum added mode = ADDED_NONE;
    const char *s = "";
    char *owned = NULL;
    size_t n = 0;
    int rc;
    if (!(rc = input_text(in, &s, &n, &owned, e)) && !(rc = input_added(in, &mode, e)))
        rc = tokenizer_encode(t, s, n, mode, &ids, e);
    if (!rc) {
        buf_str(out, "{\"ids\":[");
        for (size_t i = 0; i < ids.n; i++)
            buf_fmt(out, "%s%d", i ? "," : "", (int)ids.v[i]);
        buf_str(out, "]}");
    }
    ids_free(&ids);
    free(owned);
    return rc;
}

static int detokenize_line(void *ud, const struct json *in, struct buf *out, struct err *e)
{
    const struct json *list = json_get(in, "ids"), *skip = json_get(in, "skip_special");
    struct detok d;
    struct buf piece, text;
    if (!json_is(list, JSON_ARRAY))
        return err_set(e, ERR_ARG, "the line needs \"ids\", an array");
    if (skip && !json_is(skip, JSON_TRUE) && !json_is(skip, JSON_FALSE))
        return err_set(e, ERR_ARG, "\"skip_special\" is neither true nor false");
    struct ids all = {0};
    detok_init(&d, ud, json_bool(skip, false));
    buf_init(&piece, PIECE_MAX_BYTES);
    buf_init(&text, PIECE_MAX_BYTES);
    int rc = 0;
    buf_str(out, "{\"pieces\":[");
    for (const struct json *v = list->child; v && !rc; v = v->next) {
        int64_t id;
        if (!json_int(v, &id)) {
            rc = err_set(e, ERR_ARG, "\"ids\" has something else than whole numbers");
            break;
        }
        buf_clear(&piece);
        ids_add(&all, id < 0 || id > INT32_MAX ? -1 : (int32_t)id);
        detok_add(&d, all.v[all.n - 1], &piece);
        json_write_str(out, buf_cstr(&piece), piece.n);
        buf_chr(out, ',');
    }
    buf_clear(&piece);
    detok_flush(&d, &piece);
    detok_whole(ud, all.v, all.n, d.skip_special, &text);
    json_write_str(out, buf_cstr(&piece), piece.n);
    buf_str(out, "],\"text\":");
    json_write_str(out, buf_cstr(&text), text.n);
    buf_chr(out, '}');
    if (!rc && (piece.is_full || text.is_full))
        rc = err_set(e, ERR_LIMIT, "the text is longer than the limit of %d bytes", PIECE_MAX_BYTES);
    ids_free(&all);
    buf_free(&piece);
    buf_free(&text);
    return rc;
}

static int with_tokenizer(const char *verb, int argc, char **argv,
                          int (*line)(void *ud, const struct json *in, struct buf *out, struct err *e))
{
    struct tokenizer *t;
    struct err e = {0};
    if (argc != 1 || (argv[0][0] == '-' && argv[0][1])) {
        fprintf(stderr, "usage: foresay probe %s MODEL\n", verb);
        return 2;
    }
    if (tokenizer_open(&t, argv[0], &e))
        return cli_fail(&e);
    int rc = probe_lines(t, line);
    tokenizer_close(t);
    return rc;
}

int probe_tokenize(int argc, char **argv)
{
    return with_tokenizer("tokenize", argc, argv, tokenize_line);
}

int probe_detokenize(int argc, char **argv)
{
    return with_tokenizer("detokenize", argc, argv, detokenize_line);
}
