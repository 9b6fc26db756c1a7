#include "base/utf8.h"

#include <string.h>

int utf8_next(const char *str, size_t n, int32_t *cp)
{
    const uint8_t *s = (const uint8_t *)str;
    uint8_t c = s[0], lo = 0x80, hi = 0xBF; // bounds of the second byte (Unicode table 3-7)
    int len;
    *cp = -1;
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    if (c >= 0xC2 && c <= 0xDF)
        len = 2;
    else if (c >= 0xE0 && c <= 0xEF)
        len = 3;
    else if (c >= 0xF0 && c <= 0xF4)
        len = 4;
    else
        return 1;
    if (c == 0xE0)
        lo = 0xA0;
    else if (c == 0xED)
        hi = 0x9F;
    else if (c == 0xF0)
        lo = 0x90;
    else if (c == 0xF4)
        hi = 0x8F;
    int32_t v = c & (0x7F >> len);
    for (int i = 1; i < len; i++) {
        if ((size_t)i == n)
            return 0;
        if (s[i] < lo || s[i] > hi)
            return i;
        v = v << 6 | (s[i] & 0x3F);
        lo = 0x80, hi = 0xBF;
    }
    *cp = v;
    return len;
}

int utf8_put(int32_t cp, char *out)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

static bool is_unseen(int32_t cp)
{
    bool is_control = cp < 0x20 || (cp >= 0x7F && cp < 0xA0);
    bool is_bidi = cp == 0x061C || cp == 0x200E || cp == 0x200F || (cp >= 0x202A && cp <= 0x202E) || (cp >= 0x2066 && cp <= 0x2069);
    return is_control || is_bidi || cp == 0x2028 || cp == 0x2029;
}

size_t utf8_clean(char *s, size_t n, bool keep_lines)
{
    size_t to = 0;
    int32_t cp;
    for (size_t at = 0; at < n;) {
        int len = utf8_next(s + at, n - at, &cp);
        if (!len)
            break;
        if (cp == '\n' || cp == '\t')
            s[to++] = keep_lines ? (char)cp : ' ';
        else if (cp < 0 || is_unseen(cp)) // cp < 0: invalid
            s[to++] = cp == '\r' ? ' ' : '?';
        else {
            memmove(s + to, s + at, (size_t)len);
            to += (size_t)len;
        }
        at += (size_t)len;
    }
    s[to] = 0;
    return to;
}
