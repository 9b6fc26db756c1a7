/* strftime_now: the given time, or the clock, through strftime's conversions in the C locale. Own code, so that the
 * process's locale can't reach a prompt and glibc's flags (%-d) work everywhere. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "chat/jinja_eval.h"

static int monday_first(int wday) { return (wday + 6) % 7; }
static bool is_leap(int y) { return (y % 4 == 0 && y % 100 != 0) || y % 400 == 0; }

static int field(const char *s, int n) // n digits, -1 if they are none
{
    int v = 0;
    for (int i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9')
            return -1;
        v = v * 10 + (s[i] - '0');
    }
    return v;
}

/* "2026-03-09T08:05:07" or the clock's local time; the day of the week and of the year follow from the date. */
static struct tm current_time(struct jx *x)
{
    struct tm t = {0};
    if (!x->now) {
        time_t now = time(NULL);
        localtime_r(&now, &t);
        return t;
    }
    const char *s = x->now;
    size_t n = strlen(s);
    bool ok = n >= 10 && s[4] == '-' && s[7] == '-';
    int year = ok ? field(s, 4) : -1, month = ok ? field(s + 5, 2) : -1, day = ok ? field(s + 8, 2) : -1;
    if (n >= 16) {
        t.tm_hour = field(s + 11, 2);
        t.tm_min = field(s + 14, 2);
        t.tm_sec = n >= 19 ? field(s + 17, 2) : 0;
    }
    if (year < 1 || month < 1 || month > 12 || day < 1 || day > 31 || t.tm_hour < 0 || t.tm_hour > 23 ||
        t.tm_min < 0 || t.tm_sec < 0)
        jx_fail(x, JINJA_VALUE, "the time given as \"now\" is not of the form 2026-03-09T08:05:07");
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    int y = year - 1;
    t.tm_year = year - 1900;
    t.tm_mon = month - 1;
    t.tm_mday = day;
    t.tm_yday = before[month - 1] + day - 1 + (is_leap(year) && month > 2);
    t.tm_wday = (y + y / 4 - y / 100 + y / 400 + t.tm_yday + 1) % 7;
    return t;
}

static int weeks_in(int y) // by ISO 8601
{
    int jan1 = monday_first((y + (y - 1) / 4 - (y - 1) / 100 + (y - 1) / 400) % 7);
    return jan1 == 3 || (jan1 == 2 && is_leap(y)) ? 53 : 52;
}

/* ISO 8601: week 1 is the one with the year's first Thursday. */
static int iso_week(const struct tm *t, int *year)
{
    int week = (t->tm_yday - monday_first(t->tm_wday) + 10) / 7;
    *year = t->tm_year + 1900;
    if (week < 1)
        return weeks_in(--*year);
    if (week > weeks_in(*year)) {
        ++*year;
        return 1;
    }
    return week;
}

/* The number that conversion c stands for; false if it stands for none. */
static bool time_number(const struct tm *t, char c, int *v)
{
    int year = t->tm_year + 1900, h12 = t->tm_hour % 12 ? t->tm_hour % 12 : 12, iso_year,
        week = iso_week(t, &iso_year);
    const struct {
        char c;
        int v;
    } numbers[] = {
        {'C', year / 100},
        {'d', t->tm_mday},
        {'e', t->tm_mday},
        {'f', 0},
        {'g', iso_year % 100},
        {'G', iso_year},
        {'H', t->tm_hour},
        {'I', h12},
        {'j', t->tm_yday + 1},
        {'k', t->tm_hour},
        {'l', h12},
        {'m', t->tm_mon + 1},
        {'M', t->tm_min},
        {'S', t->tm_sec},
        {'u', t->tm_wday ? t->tm_wday : 7},
        {'U', (t->tm_yday + 7 - t->tm_wday) / 7},
        {'V', week},
        {'w', t->tm_wday},
        {'W', (t->tm_yday + 7 - monday_first(t->tm_wday)) / 7},
        {'y', year % 100},
        {'Y', year},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].c == c) {
            *v = numbers[i].v;
            return true;
        }
    return false;
}

static void put_time(struct sb *b, const struct tm *t, const char *fmt, int depth);

/* One conversion; returns false if c is none. */
static bool time_field(struct sb *b, const struct tm *t, char c, char flag, int depth)
{
    static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                       "Thursday", "Friday", "Saturday"};
    static const char *const months[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};
    static const struct {
        char c;
        const char *fmt;
    } composed[] = {{'c', "%a %b %e %H:%M:%S %Y"}, {'D', "%m/%d/%y"}, {'x', "%m/%d/%y"}, {'F', "%Y-%m-%d"},
                    {'r', "%I:%M:%S %p"},          {'R', "%H:%M"},    {'T', "%H:%M:%S"}, {'X', "%H:%M:%S"}};
    char s[32];
    int v;
    for (size_t i = 0; i < sizeof composed / sizeof *composed; i++)
        if (composed[i].c == c) {
            if (depth < 2)
                put_time(b, t, composed[i].fmt, depth + 1);
            return true;
        }
    if (time_number(t, c, &v)) {
        int width = strchr("uwY", c) ? 1 : c == 'j' ? 3 : c == 'G' ? 4 : c == 'f' ? 6 : 2;
        bool spaces = flag == '_' || (flag != '0' && strchr("ekl", c));
        snprintf(s, sizeof s, spaces ? "%*d" : "%0*d", flag == '-' ? 1 : width, v);
    } else if (c == 'a' || c == 'A') {
        snprintf(s, sizeof s, c == 'a' ? "%.3s" : "%s", days[t->tm_wday]);
    } else if (c == 'b' || c == 'h' || c == 'B') {
        snprintf(s, sizeof s, c == 'B' ? "%s" : "%.3s", months[t->tm_mon]);
    } else if (c == 'p' || c == 'P') {
        snprintf(s, sizeof s, "%s",
                 c == 'p'          ? (t->tm_hour < 12 ? "AM" : "PM")
                 : t->tm_hour < 12 ? "am"
                                   : "pm");
    } else if (c == 'n' || c == 't' || c == '%') {
        snprintf(s, sizeof s, "%c", c == 'n' ? '\n' : c == 't' ? '\t' : '%');
    } else if (c == 'z' || c == 'Z') {
        s[0] = 0; // the reference's clock has no zone
    } else {
        return false;
    }
    sb_text(b, s);
    return true;
}

static void put_time(struct sb *b, const struct tm *t, const char *fmt, int depth)
{
    while (*fmt) {
        const char *start = fmt;
        size_t plain = strcspn(fmt, "%");
        sb_add(b, fmt, plain, FROM_TPL);
        fmt += plain;
        if (!*fmt)
            break;
        start = fmt++;
        char flag = *fmt && strchr("-_0", *fmt) ? *fmt++ : 0;
        if (!*fmt || !time_field(b, t, *fmt, flag, depth))
            sb_add(b, start, (size_t)(fmt - start) + (*fmt != 0), FROM_TPL);
        fmt += *fmt != 0;
    }
}

struct val jx_strftime(struct jx *x, const char *fmt)
{
    struct tm t = current_time(x);
    struct sb *b = sb_new(x);
    put_time(b, &t, fmt, 0);
    return sb_take(b);
}
