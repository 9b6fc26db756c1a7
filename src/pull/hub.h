/* The model hub: names, addresses, the token, and what a repository holds. Speaks the Hugging Face hub's API, which
 * mirrors speak, too (HF_ENDPOINT). The token comes from HF_TOKEN or HUGGING_FACE_HUB_TOKEN, the file HF_TOKEN_PATH, or
 * HF_HOME/token; it goes to the hub's own origin only and is never printed. */
#ifndef PULL_HUB_H
#define PULL_HUB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/mem.h"
#include "net/fetch.h"

/* hf:ORG/NAME[@REVISION][:SET]. SET chooses one of several GGUF files by its quantization ("Q4_K_M"). */
struct hub_name {
    char repo[200];     // "ORG/NAME"
    char revision[200]; // "main" if none was given
    char set[100];      // "" if none was given
};
/* Also takes the hub's web address of a repository. 1: text is nothing of that kind. */
MUST_CHECK int hub_parse_name(const char *text, struct hub_name *n, struct err *e);
bool hub_is_repo_name(const char *s, size_t n); // ORG/NAME

struct hub {
    char *endpoint, *origin;
    char *token;              // or NULL
    const char *token_source; // "HF_TOKEN", ...
    struct fetcher *f;
    void (*on_wait)(const char *why, int ms);
};
/* o: stall_s, max_attempts and cancel count; token and origin are filled in here. */
MUST_CHECK int hub_open(struct hub *h, const struct fetch_options *o, struct err *e);
void hub_close(struct hub *h);
/* Where the hub is: HF_ENDPOINT or the public one, without a slash at its end. Caller frees. */
char *hub_endpoint(void);

struct hub_file {
    const char *path; // in the repository; stays inside
    uint64_t size;
    enum digest_kind kind;
    char digest[DIGEST_HEX];
};
struct hub_repo {
    struct hub_name name;
    char commit[41];
    struct hub_file *file; // sorted by path
    int n_files;
    int n_refused;         // whose names would leave the folder: not in file
    struct arena arena;
};
/* All files of a repository at the commit that the revision names now. */
MUST_CHECK int hub_list(struct hub *h, const struct hub_name *name, struct hub_repo *r, struct err *e);
void hub_repo_free(struct hub_repo *r);
const struct hub_file *hub_find(const struct hub_repo *r, const char *path); // NULL if it has none
char *hub_file_url(const struct hub *h, const struct hub_repo *r, const char *path); // caller frees
/* A small file's content, its checksum compared. */
MUST_CHECK int hub_read(struct hub *h, const struct hub_repo *r, const char *path, size_t max, struct buf *out, struct err *e);

/* One page of the tree API into *r, and the commit of the revision API: what hub_list does with answers. */
MUST_CHECK int hub_parse_tree(struct hub_repo *r, const char *text, size_t n, struct err *e);
MUST_CHECK int hub_parse_revision(struct hub_repo *r, const char *text, size_t n, struct err *e);
/* Sorts; refuses files that some systems can't tell apart. */
MUST_CHECK int hub_finish_tree(struct hub_repo *r, struct err *e);

/* What a failed request for something of a repository means, in a sentence. msg: how the request ended. */
int hub_explain(const struct hub *h, const struct hub_repo *r, const char *path, const struct fetch_result *end, const char *msg,
                struct err *e);

#endif
