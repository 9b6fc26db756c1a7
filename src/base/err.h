/* Errors: every fallible function returns 0 or a negative enum err_code and, where the caller gave a
 * struct err, one clear sentence that names the file or field, what was expected and what was found.
 * "Nothing there" and "not now" are positive values of the function concerned, not errors. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

enum err_code {
    ERR_IO = -1,          // the operating system refused: open, read, write, map
    ERR_FORMAT = -2,      // input is damaged or breaks its format
    ERR_UNSUPPORTED = -3, // input is sound but nothing here can serve it; the sentence says "unsupported"
    ERR_NOMEM = -4,       // a size that depends on input could not be reserved
    ERR_LIMIT = -5,       // a limit on untrusted input was reached
    ERR_ARG = -6,         // the caller's argument is out of range
    ERR_NUMERIC = -7,     // a forward pass produced NaN or infinity
    ERR_CANCEL = -8,      // the caller asked to stop
};

struct err {
    int code;
    char msg[512];
};

/* Fills *e (may be NULL) and returns code. The first error wins: a set *e is not overwritten. Sentences are cleaned
 * (utf8_clean): whatever a file or a name holds, a terminal or a log shows it as one line of text. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " in front of the sentence already in *e and returns its code. */
int err_prefix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Thread-safe description of an errno value, in buf. */
const char *err_os(int errnum, char *buf, int n);

#define MUST_CHECK __attribute__((warn_unused_result))

#endif
