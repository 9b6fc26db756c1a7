/* Checksums of content as model hubs state them: SHA-256, and the SHA-1 by which git names a blob (that of
 * "blob SIZE\0" and the content). By OpenSSL's libcrypto. */
#ifndef BASE_DIGEST_H
#define BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

enum digest_kind { DIGEST_SHA256, DIGEST_GIT };
enum { DIGEST_HEX = 65 }; // bytes of a checksum written out, with its NUL

struct digest;
/* size: of the whole content (only git's needs it). NULL if the system forbids this kind. */
struct digest *digest_new(enum digest_kind kind, uint64_t size);
void digest_add(struct digest *d, const void *p, size_t n);
void digest_end(struct digest *d, char out[DIGEST_HEX]); // lower-case hexadecimal; frees d
void digest_free(struct digest *d);                      // NULL is fine

/* Hexadecimal digits a checksum of this kind has. */
static inline int digest_hex_length(enum digest_kind kind) { return kind == DIGEST_SHA256 ? 64 : 40; }

#endif
