#include "base/digest.h"

#include <stdio.h>
#include <stdlib.h>

#include <openssl/evp.h>

#include "base/mem.h"

struct digest {
    EVP_MD_CTX *ctx;
};

struct digest *digest_new(enum digest_kind kind, uint64_t size)
{
    struct digest *d = xcalloc(1, sizeof *d);
    char head[32];
    int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)size);
    d->ctx = EVP_MD_CTX_new();
    if (!d->ctx || !EVP_DigestInit_ex(d->ctx, kind == DIGEST_GIT ? EVP_sha1() : EVP_sha256(), NULL)) {
        digest_free(d);
        return NULL;
    }
    if (kind == DIGEST_GIT)
        digest_add(d, head, (size_t)n + 1);
    return d;
}

void digest_add(struct digest *d, const void *p, size_t n) { EVP_DigestUpdate(d->ctx, p, n); }

void digest_end(struct digest *d, char out[DIGEST_HEX])
{
    unsigned char md[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    EVP_DigestFinal_ex(d->ctx, md, &n);
    for (unsigned i = 0; i < n && 2 * i + 2 < DIGEST_HEX; i++)
        snprintf(out + 2 * i, 3, "%02x", md[i]);
    digest_free(d);
}

void digest_free(struct digest *d)
{
    if (d)
        EVP_MD_CTX_free(d->ctx);
    free(d);
}
