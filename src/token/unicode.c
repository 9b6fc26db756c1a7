#include "token/unicode.h"

#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "token/unicode_table.h"

_Static_assert(UNICODE_NUMERIC17 == 0x1FFFF, "UNICODE_NUMERIC17_PATTERN names the generated stand-in");

const char *unicode_skip_ascii(const char *s, const char *end)
{
    uint64_t w;
    while (end - s >= 8 && (memcpy(&w, s, 8), !(w & 0x8080808080808080u)))
        s += 8;
    while (s < end && (uint8_t)*s < 0x80)
        s++;
    return s;
}

/* The stand-in of cp, or cp itself. */
static int32_t stand_in_of(int32_t cp)
{
    // most text lies in blocks without gaps: CJK ideographs and everything below Arabic Extended-B
    if (cp < (int32_t)stand_in[0][0] || (cp >= 0x4E00 && cp < 0xA000))
        return cp;
    size_t lo = 0, hi = sizeof stand_in / sizeof *stand_in;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if ((uint32_t)cp > stand_in[mid][1])
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo < sizeof stand_in / sizeof *stand_in && (uint32_t)cp >= stand_in[lo][0])
        return (int32_t)stand_in[lo][2];
    return cp;
}

bool unicode_needs_stand_ins(const char *s, size_t n)
{
    const char *end = s + n;
    while ((s = unicode_skip_ascii(s, end)) < end) {
        int32_t cp;
        s += utf8_next(s, (size_t)(end - s), &cp);
        if (stand_in_of(cp) != cp)
            return true;
    }
    return false;
}

void unicode_stand_ins(const char *s, size_t n, char *out)
{
    const char *end = s + n, *p = s;
    memcpy(out, s, n);
    while ((p = unicode_skip_ascii(p, end)) < end) {
        int32_t cp;
        int len = utf8_next(p, (size_t)(end - p), &cp);
        int32_t other = stand_in_of(cp);
        if (other != cp)
            utf8_put(other, out + (p - s));
        p += len;
    }
}

bool unicode_is_word(int32_t cp)
{
    if (cp == 0x200C || cp == 0x200D) // Join_Control
        return true;
    switch (utf8proc_category(stand_in_of(cp))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) ||
               (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189); // lettered symbols
    }
}

bool unicode_is_space(int32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == 0x20 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F ||
           cp == 0x3000;
}
