#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

int err_set(struct err *e, int code, const char *fmt, ...)
{
    if (e && !e->code) {
        va_list ap;
        va_start(ap, fmt);
        e->code = code;
        vsnprintf(e->msg, sizeof e->msg, fmt, ap);
        va_end(ap);
        utf8_clean(e->msg, strlen(e->msg), false);
    }
    return code;
}

int err_prefix(struct err *e, const char *fmt, ...)
{
    char head[sizeof e->msg], whole[2 * sizeof e->msg + 4];
    va_list ap;
    if (!e)
        return ERR_ARG;
    va_start(ap, fmt);
    vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    snprintf(whole, sizeof whole, "%s: %s", head, e->msg);
    memcpy(e->msg, whole, sizeof e->msg - 1);
    e->msg[sizeof e->msg - 1] = 0;
    utf8_clean(e->msg, strlen(e->msg), false);
    return e->code;
}

const char *err_os(int errnum, char *buf, int n)
{
    if (strerror_r(errnum, buf, (size_t)n))
        snprintf(buf, (size_t)n, "system error %d", errnum);
    return buf;
}
