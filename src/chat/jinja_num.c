/* Numbers as Python has them: integers of any size (int64 with a fallback to magnitude arrays), floats, their
 * text in both directions, and arithmetic that mixes them. Sizes are limited, so schoolbook methods will do. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/jinja_value.h"

/* ---- big integers --------------------------------------------------------------------------------- */

static struct big *big_new(struct jx *x, size_t n)
{
    if (n > JX_MAX_INT_BITS / 32 + 2)
        jx_fail(x, JINJA_LIMIT, "an integer grows beyond the limit of %d bits", JX_MAX_INT_BITS);
    jx_spend(x, n / 8);
    struct big *b = jx_alloc(x, sizeof *b + n * sizeof *b->d);
    b->n = (uint32_t)n;
    return b;
}

static void trim(struct big *b)
{
    while (b->n && !b->d[b->n - 1])
        b->n--;
}

static const struct big *to_big(struct jx *x, struct val v)
{
    if (v.t == V_BIG)
        return v.u.big;
    int64_t i = v.t == V_BOOL ? v.u.b : v.u.i;
    uint64_t m = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    struct big *b = big_new(x, 2);
    b->neg = i < 0;
    b->d[0] = (uint32_t)m;
    b->d[1] = (uint32_t)(m >> 32);
    trim(b);
    return b;
}

static struct val from_big(struct big *b)
{
    trim(b);
    if (b->n <= 2) {
        uint64_t m = (b->n > 0 ? b->d[0] : 0) | (b->n > 1 ? (uint64_t)b->d[1] << 32 : 0);
        if (m <= INT64_MAX || (b->neg && m == (uint64_t)INT64_MAX + 1))
            return jv_int(b->neg ? (int64_t)(0 - m) : (int64_t)m);
    }
    return (struct val){.t = V_BIG, .from = FROM_TPL, .u.big = b};
}

static int mag_compare(const struct big *a, const struct big *b)
{
    if (a->n != b->n)
        return a->n < b->n ? -1 : 1;
    for (uint32_t i = a->n; i-- > 0;)
        if (a->d[i] != b->d[i])
            return a->d[i] < b->d[i] ? -1 : 1;
    return 0;
}

static struct big *mag_add(struct jx *x, const struct big *a, const struct big *b)
{
    uint32_t n = a->n > b->n ? a->n : b->n;
    struct big *r = big_new(x, n + 1);
    uint64_t carry = 0;
    for (uint32_t i = 0; i < n + 1; i++) {
        carry += (i < a->n ? (uint64_t)a->d[i] : 0) + (i < b->n ? b->d[i] : 0);
        r->d[i] = (uint32_t)carry;
        carry >>= 32;
    }
    trim(r);
    return r;
}

static struct big *mag_sub(struct jx *x, const struct big *a, const struct big *b) // a >= b
{
    struct big *r = big_new(x, a->n);
    int64_t borrow = 0;
    for (uint32_t i = 0; i < a->n; i++) {
        int64_t v = (int64_t)a->d[i] - (i < b->n ? b->d[i] : 0) - borrow;
        borrow = v < 0;
        r->d[i] = (uint32_t)v;
    }
    trim(r);
    return r;
}

static struct big *add_signed(struct jx *x, const struct big *a, const struct big *b, bool negate_b)
{
    bool bneg = b->neg != negate_b;
    struct big *r;
    if (a->neg == bneg) {
        r = mag_add(x, a, b);
        r->neg = a->neg;
    } else if (mag_compare(a, b) >= 0) {
        r = mag_sub(x, a, b);
        r->neg = a->neg;
    } else {
        r = mag_sub(x, b, a);
        r->neg = bneg;
    }
    return r;
}

static struct big *mag_mul(struct jx *x, const struct big *a, const struct big *b)
{
    struct big *r = big_new(x, (size_t)a->n + b->n);
    jx_spend(x, (uint64_t)a->n * b->n / 32);
    for (uint32_t i = 0; i < a->n; i++) {
        uint64_t carry = 0;
        for (uint32_t j = 0; j < b->n; j++) {
            carry += (uint64_t)a->d[i] * b->d[j] + r->d[i + j];
            r->d[i + j] = (uint32_t)carry;
            carry >>= 32;
        }
        r->d[i + b->n] = (uint32_t)carry;
    }
    trim(r);
    return r;
}

static uint32_t mag_div_small(struct big *b, uint32_t by) // in place, returns the remainder
{
    uint64_t rest = 0;
    for (uint32_t i = b->n; i-- > 0;) {
        rest = rest << 32 | b->d[i];
        b->d[i] = (uint32_t)(rest / by);
        rest %= by;
    }
    trim(b);
    return (uint32_t)rest;
}

static struct big *copy(struct jx *x, const struct big *a, size_t room)
{
    struct big *r = big_new(x, a->n + room);
    memcpy(r->d, a->d, a->n * sizeof *a->d);
    return r;
}

static bool bit(const struct big *b, int64_t i) { return b->d[i / 32] >> i % 32 & 1; }

static int64_t mag_bits(const struct big *b)
{
    return b->n ? (int64_t)b->n * 32 - __builtin_clz(b->d[b->n - 1]) : 0;
}

/* Magnitudes: *q = a / b, returns a mod b. One bit at a time: exact and short; sizes are limited. */
static struct big *mag_divmod(struct jx *x, const struct big *a, const struct big *b, struct big **q)
{
    *q = big_new(x, a->n);
    struct big *r = big_new(x, b->n + 1);
    jx_spend(x, (uint64_t)mag_bits(a) * (b->n + 1) / 32);
    r->n = 0;
    for (int64_t i = mag_bits(a) - 1; i >= 0; i--) {
        uint32_t carry = bit(a, i);
        for (uint32_t j = 0; j < r->n; j++) { // r = 2r + bit
            uint32_t next = r->d[j] >> 31;
            r->d[j] = r->d[j] << 1 | carry;
            carry = next;
        }
        if (carry)
            r->d[r->n++] = carry;
        if (mag_compare(r, b) >= 0) {
            int64_t borrow = 0;
            for (uint32_t j = 0; j < r->n; j++) {
                int64_t v = (int64_t)r->d[j] - (j < b->n ? b->d[j] : 0) - borrow;
                borrow = v < 0;
                r->d[j] = (uint32_t)v;
            }
            trim(r);
            (*q)->d[i / 32] |= 1u << i % 32;
        }
    }
    trim(*q);
    return r;
}

/* ---- conversions ---------------------------------------------------------------------------------- */

static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'z' ? c - 'a' + 10
           : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                  : 99;
}

static void strip_space(const char **s, size_t *n)
{
    while (*n && strchr(" \t\n\v\f\r\x1c\x1d\x1e\x1f", **s) && **s)
        ++*s, --*n;
    while (*n && strchr(" \t\n\v\f\r\x1c\x1d\x1e\x1f", (*s)[*n - 1]) && (*s)[*n - 1])
        --*n;
}

struct val jn_parse_int(struct jx *x, const char *s, size_t n, int base, bool *ok)
{
    struct val bad = jv_int(0);
    bool neg = false, is_dec;
    *ok = false;
    strip_space(&s, &n);
    if (n && (*s == '-' || *s == '+')) {
        neg = *s == '-';
        s++, n--;
    }
    if (n > 1 && *s == '0' && base != 10) {
        char c = s[1] | 0x20;
        int b = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
        if (b && (base == 0 || base == b)) {
            base = b;
            s += 2, n -= 2;
            if (n && *s == '_')
                s++, n--;
        } else if (base == 0) {
            for (size_t i = 0; i < n; i++)
                if (s[i] != '0' && s[i] != '_')
                    return bad; // 012 is no integer
        }
    }
    base = base ? base : 10;
    is_dec = base == 10;
    if (!n || (is_dec && n > 2 * (size_t)JX_MAX_INT_DIGITS) || n > 4 * (size_t)JX_MAX_INT_DIGITS)
        return bad;
    struct big *b = big_new(x, n / 5 + 2); // at most 6 bits a digit, and some room
    int n_digits = 0;
    uint32_t used = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '_') {
            if (i == 0 || i + 1 == n || s[i - 1] == '_')
                return bad;
            continue;
        }
        int d = digit(s[i]);
        if (d >= base || (is_dec && ++n_digits > JX_MAX_INT_DIGITS))
            return bad;
        uint64_t carry = (uint64_t)d;
        for (uint32_t j = 0; j < used; j++) {
            carry += (uint64_t)b->d[j] * (uint32_t)base;
            b->d[j] = (uint32_t)carry;
            carry >>= 32;
        }
        if (carry)
            b->d[used++] = (uint32_t)carry;
    }
    b->neg = neg;
    *ok = true;
    return from_big(b);
}

bool jn_parse_float(const char *s, size_t n, double *f)
{
    char t[512];
    size_t m = 0;
    strip_space(&s, &n);
    if (!n || n >= sizeof t)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '_') { // only between digits
            if (i == 0 || i + 1 == n || digit(s[i - 1]) > 9 || digit(s[i + 1]) > 9)
                return false;
            continue;
        }
        if (s[i] == '(' || (s[i] | 0x20) == 'x' || (uint8_t)s[i] <= ' ')
            return false; // forms that strtod takes but Python doesn't
        t[m++] = s[i];
    }
    t[m] = 0;
    char *end;
    *f = strtod(t, &end);
    return end == t + m && m;
}

struct val jn_from_double(struct jx *x, double f)
{
    if (isnan(f))
        jx_fail(x, JINJA_VALUE, "cannot convert float NaN to integer");
    if (isinf(f))
        jx_fail(x, JINJA_VALUE, "cannot convert float infinity to integer");
    f = trunc(f);
    if (fabs(f) < 0x1p62)
        return jv_int((int64_t)f);
    int e;
    uint64_t m = (uint64_t)ldexp(frexp(fabs(f), &e), 53);
    int shift = e - 53;
    struct big *b = big_new(x, (size_t)shift / 32 + 4);
    for (int i = 0; i < 53; i++)
        if (m >> i & 1)
            b->d[(i + shift) / 32] |= 1u << (i + shift) % 32;
    b->neg = f < 0;
    return from_big(b);
}

/* Nearest double, ties to even; infinity if out of range. extra: some lower bits were cut off. */
static double mag_double(const struct big *b, int64_t shift, bool extra)
{
    int64_t bits = mag_bits(b), low = bits - 64;
    uint64_t top = 0;
    if (!bits)
        return 0;
    for (int64_t i = bits - 1; i >= 0 && i >= low; i--)
        top |= (uint64_t)bit(b, i) << (i - low);
    for (int64_t i = 0; i < low && !extra; i++)
        extra = bit(b, i);
    uint64_t m = top >> 11, rest = top & 0x7FF;
    if (rest > 0x400 || (rest == 0x400 && (extra || (m & 1))))
        m++;
    int64_t e = low + 11 + shift;
    return e > 2000 ? INFINITY : ldexp((double)m, (int)(e < -2200 ? -2200 : e));
}

double jn_double(struct jx *x, struct val v)
{
    (void)x;
    if (v.t == V_FLOAT)
        return v.u.f;
    if (v.t == V_BIG)
        return (v.u.big->neg ? -1 : 1) * mag_double(v.u.big, 0, false);
    return v.t == V_BOOL ? (double)v.u.b : (double)v.u.i;
}

/* An int operand of float arithmetic must fit. */
static double need_double(struct jx *x, struct val v)
{
    double f = jn_double(x, v);
    if (isinf(f) && v.t != V_FLOAT)
        jx_fail(x, JINJA_VALUE, "int too large to convert to float");
    return f;
}

int jn_sign(struct val v)
{
    if (v.t == V_BIG)
        return v.u.big->neg ? -1 : 1;
    if (v.t == V_FLOAT)
        return v.u.f < 0 ? -1 : v.u.f > 0;
    int64_t i = v.t == V_BOOL ? v.u.b : v.u.i;
    return i < 0 ? -1 : i > 0;
}

int64_t jn_bits(struct val v)
{
    if (v.t == V_BIG)
        return mag_bits(v.u.big);
    int64_t i = v.t == V_BOOL ? v.u.b : v.u.i;
    uint64_t m = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    return m ? 64 - __builtin_clzll(m) : 0;
}

static int compare_big_double(const struct big *b, double f)
{
    if (isinf(f))
        return f < 0 ? 1 : -1;
    double d = (b->neg ? -1 : 1) * mag_double(b, 0, false);
    if (d != f || isinf(d))
        return d < f ? -1 : 1;
    /* Same nearest double: equal only if b has no more than 53 significant bits; else the cut tells. */
    int64_t bits = mag_bits(b);
    int e;
    uint64_t m = (uint64_t)ldexp(frexp(fabs(f), &e), 53);
    int up = 0; // |b| against |f|
    if (e != bits)
        up = bits < e ? -1 : 1;
    for (int64_t i = bits - 1; i >= 0 && !up; i--) {
        int64_t k = i - (bits - 53);
        up = (int)bit(b, i) - (k >= 0 ? (int)(m >> k & 1) : 0);
    }
    return b->neg ? -up : up;
}

int jn_compare(struct val a, struct val b)
{
    if (a.t == V_FLOAT && b.t == V_FLOAT)
        return isnan(a.u.f) || isnan(b.u.f) ? 2 : a.u.f < b.u.f ? -1 : a.u.f > b.u.f;
    if (b.t == V_FLOAT) {
        if (isnan(b.u.f))
            return 2;
        if (a.t == V_BIG)
            return compare_big_double(a.u.big, b.u.f);
        int64_t i = a.t == V_BOOL ? a.u.b : a.u.i;
        if (fabs(b.u.f) >= 0x1p63)
            return b.u.f < 0 ? 1 : -1;
        int64_t t = (int64_t)b.u.f; // toward zero; the fraction decides a tie
        double frac = b.u.f - (double)t;
        return i != t ? (i < t ? -1 : 1) : frac > 0 ? -1 : frac < 0;
    }
    if (a.t == V_FLOAT) {
        int c = jn_compare(b, a);
        return c == 2 ? 2 : -c;
    }
    if (a.t == V_BIG || b.t == V_BIG) {
        int sa = jn_sign(a), sb = jn_sign(b);
        if (sa != sb)
            return sa < sb ? -1 : 1;
        if (a.t != b.t)
            return (a.t == V_BIG) == (sa > 0) ? 1 : -1;
        return mag_compare(a.u.big, b.u.big) * sa;
    }
    int64_t i = a.t == V_BOOL ? a.u.b : a.u.i, j = b.t == V_BOOL ? b.u.b : b.u.i;
    return i < j ? -1 : i > j;
}

/* ---- arithmetic ----------------------------------------------------------------------------------- */

static struct val int_power(struct jx *x, struct val a, struct val b)
{
    int64_t e = jv_index(x, b, "**"), bits = jn_bits(a);
    if (e == 0)
        return jv_int(1);
    if (bits > 1 && bits - 1 > JX_MAX_INT_BITS / e)
        jx_fail(x, JINJA_LIMIT, "a power is larger than the limit of %d bits", JX_MAX_INT_BITS);
    if (bits <= 1) // 0, 1, -1
        return jn_sign(a) < 0 && !(b.t == V_BIG ? bit(b.u.big, 0) : e & 1) ? jv_int(1) : a;
    struct val r = jv_int(1);
    for (; e; e >>= 1) {
        if (e & 1)
            r = jn_arith(x, '*', r, a);
        if (e > 1)
            a = jn_arith(x, '*', a, a);
    }
    if (jn_bits(r) > JX_MAX_INT_BITS)
        jx_fail(x, JINJA_LIMIT, "a power is larger than the limit of %d bits", JX_MAX_INT_BITS);
    return r;
}

static struct val float_arith(struct jx *x, char op, double a, double b)
{
    if (b == 0 && (op == '/' || op == 'f' || op == '%'))
        jx_fail(x, JINJA_VALUE, "float division by zero");
    switch (op) {
    case '+':
        return jv_float(a + b);
    case '-':
        return jv_float(a - b);
    case '*':
        return jv_float(a * b);
    case '/':
        return jv_float(a / b);
    case 'p': {
        if (a == 0 && b < 0)
            jx_fail(x, JINJA_VALUE, "0.0 cannot be raised to a negative power");
        if (a < 0 && b != floor(b) && isfinite(a) && isfinite(b))
            jx_fail(x, JINJA_TYPE, "complex numbers are not supported");
        double r = pow(a, b);
        if (isinf(r) && isfinite(a) && isfinite(b))
            jx_fail(x, JINJA_VALUE, "numerical result out of range");
        return jv_float(r);
    }
    default: {
        double mod = fmod(a, b), div = (a - mod) / b;
        if (mod != 0 && (b < 0) != (mod < 0)) {
            mod += b;
            div -= 1;
        } else if (mod == 0) {
            mod = copysign(0, b);
        }
        if (op == '%')
            return jv_float(mod);
        double whole = floor(div);
        return jv_float(div == 0 ? copysign(0, a / b) : div - whole > 0.5 ? whole + 1 : whole);
    }
    }
}

/* a / b to the nearest double, also where both are longer than a double's mantissa. */
static struct val true_divide(struct jx *x, struct val a, struct val b)
{
    if (jn_bits(a) <= 53 && jn_bits(b) <= 53)
        return jv_float(jn_double(x, a) / jn_double(x, b));
    const struct big *p = to_big(x, a), *d = to_big(x, b);
    int64_t shift = 66 - (mag_bits(p) - mag_bits(d)); // the quotient gets at least 65 bits
    int64_t ps = shift > 0 ? shift : 0, ds = shift < 0 ? -shift : 0;
    struct big *ps_ = big_new(x, p->n + (size_t)ps / 32 + 1), *ds_ = big_new(x, d->n + (size_t)ds / 32 + 1),
               *q;
    for (int64_t i = mag_bits(p) - 1; i >= 0; i--)
        if (bit(p, i))
            ps_->d[(i + ps) / 32] |= 1u << (i + ps) % 32;
    for (int64_t i = mag_bits(d) - 1; i >= 0; i--)
        if (bit(d, i))
            ds_->d[(i + ds) / 32] |= 1u << (i + ds) % 32;
    trim(ps_);
    trim(ds_);
    struct big *r = mag_divmod(x, ps_, ds_, &q);
    double f = mag_double(q, -shift, r->n != 0);
    if (isinf(f))
        jx_fail(x, JINJA_VALUE, "integer division result too large for a float");
    return jv_float(p->neg != d->neg ? -f : f);
}

static struct val int_arith(struct jx *x, char op, struct val a, struct val b)
{
    a = a.t == V_BOOL ? jv_int(a.u.b) : a;
    b = b.t == V_BOOL ? jv_int(b.u.b) : b;
    if ((op == '/' || op == 'f' || op == '%') && jn_sign(b) == 0)
        jx_fail(x, JINJA_VALUE, op == '/' ? "division by zero" : "integer division or modulo by zero");
    if (op == '/')
        return true_divide(x, a, b);
    if (op == 'p')
        return jn_sign(b) < 0 ? float_arith(x, 'p', need_double(x, a), need_double(x, b))
                              : int_power(x, a, b);
    if (a.t != V_BIG && b.t != V_BIG) {
        int64_t i = a.t == V_BOOL ? a.u.b : a.u.i, j = b.t == V_BOOL ? b.u.b : b.u.i, r;
        if (op == '+' && !__builtin_add_overflow(i, j, &r))
            return jv_int(r);
        if (op == '-' && !__builtin_sub_overflow(i, j, &r))
            return jv_int(r);
        if (op == '*' && !__builtin_mul_overflow(i, j, &r))
            return jv_int(r);
        if ((op == 'f' || op == '%') && !(i == INT64_MIN && j == -1)) {
            int64_t q = i / j, m = i % j;
            if (m && (m < 0) != (j < 0)) {
                q--;
                m += j;
            }
            return jv_int(op == 'f' ? q : m);
        }
    }
    const struct big *p = to_big(x, a), *q = to_big(x, b);
    struct big *r, *quot;
    if (op == '+' || op == '-') {
        r = add_signed(x, p, q, op == '-');
    } else if (op == '*') {
        r = mag_mul(x, p, q);
        r->neg = p->neg != q->neg;
    } else {
        r = mag_divmod(x, p, q, &quot);
        bool differ = p->neg != q->neg;
        if (differ && r->n) { // floor: one further down, remainder with the divisor's sign
            struct big *one = big_new(x, 1);
            one->d[0] = 1;
            quot = mag_add(x, quot, one);
            r = mag_sub(x, q, r);
        }
        quot->neg = differ;
        r->neg = q->neg;
        if (op == 'f')
            r = quot;
    }
    return from_big(r);
}

struct val jn_arith(struct jx *x, char op, struct val a, struct val b)
{
    struct val r = a.t == V_FLOAT || b.t == V_FLOAT ? float_arith(x, op, need_double(x, a), need_double(x, b))
                                                    : int_arith(x, op, a, b);
    r.from = a.from > b.from ? a.from : b.from;
    return r;
}

struct val jn_neg(struct jx *x, struct val v)
{
    struct val r;
    if (v.t == V_FLOAT)
        r = jv_float(-v.u.f);
    else
        r = int_arith(x, '-', jv_int(0), v);
    r.from = v.from;
    return r;
}

/* round(v, digits): half to even on the exact decimal value. */
struct val jn_round(struct jx *x, struct val v, int64_t digits)
{
    if (v.t != V_FLOAT) {
        if (digits >= 0)
            return v.t == V_BOOL ? jv_int(v.u.b) : v;
        if (digits < -70)
            return jv_int(0);
        struct val p = int_arith(x, 'p', jv_int(10), jv_int(-digits)), m = int_arith(x, '%', v, p);
        struct val twice = int_arith(x, '*', m, jv_int(2));
        int c = jn_compare(twice, p);
        struct val down = int_arith(x, '-', v, m);
        bool odd = jn_sign(int_arith(x, '%', int_arith(x, 'f', v, p), jv_int(2))) != 0;
        return c > 0 || (c == 0 && odd) ? int_arith(x, '+', down, p) : down;
    }
    if (!isfinite(v.u.f) || digits > 308)
        return v;
    if (digits < -308)
        return jv_float(copysign(0, v.u.f));
    char s[700];
    if (digits >= 0) {
        snprintf(s, sizeof s, "%.*f", (int)digits, v.u.f);
    } else { // through the exact integer part; a fraction only breaks ties upward
        struct val whole = jn_from_double(x, v.u.f), p = jn_from_double(x, 1), ten = jv_int(10);
        for (int64_t i = 0; i < -digits; i++)
            p = int_arith(x, '*', p, ten);
        struct val m = int_arith(x, '%', whole, p), down = int_arith(x, '-', whole, m);
        int c = jn_compare(int_arith(x, '*', m, jv_int(2)), p);
        double frac = v.u.f - trunc(v.u.f);
        bool odd = jn_sign(int_arith(x, '%', int_arith(x, 'f', whole, p), jv_int(2))) != 0;
        if (c > 0 || (c == 0 && (frac > 0 || (frac == 0 && odd))))
            down = int_arith(x, '+', down, p);
        return jv_float(copysign(jn_double(x, down), v.u.f));
    }
    return jv_float(strtod(s, NULL));
}

/* ---- text ----------------------------------------------------------------------------------------- */

const char *jn_text(struct jx *x, struct val v, int base, bool limited)
{
    static const char digits[] = "0123456789abcdef";
    if (v.t != V_BIG && base == 10) {
        char *s = jx_alloc(x, 24);
        snprintf(s, 24, "%lld", (long long)(v.t == V_BOOL ? v.u.b : v.u.i));
        return s;
    }
    const struct big *b = to_big(x, v);
    struct big *rest = copy(x, b, 0);
    size_t cap = (size_t)mag_bits(b) / (base == 16 ? 4 : base == 10 ? 3 : base == 8 ? 3 : 1) + 4, at = cap;
    char *s = jx_alloc(x, cap + 1);
    jx_spend(x, (uint64_t)b->n * b->n / 8);
    do {
        uint32_t chunk = 1, m;
        int n = 0;
        while (chunk <= UINT32_MAX / 16 / (uint32_t)base) {
            chunk *= (uint32_t)base;
            n++;
        }
        m = mag_div_small(rest, chunk);
        for (int i = 0; i < n && (i == 0 || m || rest->n); i++) {
            s[--at] = digits[m % (uint32_t)base];
            m /= (uint32_t)base;
        }
    } while (rest->n);
    if (limited && base == 10 && cap - at > JX_MAX_INT_DIGITS)
        jx_fail(x, JINJA_VALUE, "an integer of more than %d digits can't be turned into text",
                JX_MAX_INT_DIGITS);
    if (b->neg)
        s[--at] = '-';
    return s + at;
}

void jn_float_repr(double f, char *out)
{
    char s[40], digits[20];
    int n = 0, exp = 0;
    if (!isfinite(f)) {
        snprintf(out, 40, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    for (int prec = 0; prec < 17; prec++) { // the shortest that reads back
        snprintf(s, sizeof s, "%.*e", prec, f);
        if (strtod(s, NULL) == f)
            break;
    }
    for (const char *p = s; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9' && n < 18)
            digits[n++] = *p;
    exp = (int)strtol(strchr(s, 'e') + 1, NULL, 10);
    char *o = out;
    if (signbit(f))
        *o++ = '-';
    if (exp < -4 || exp >= 16) {
        *o++ = digits[0];
        if (n > 1) {
            *o++ = '.';
            memcpy(o, digits + 1, (size_t)n - 1);
            o += n - 1;
        }
        snprintf(o, 8, "e%c%02u", exp < 0 ? '-' : '+', (unsigned)abs(exp) % 1000u);
        return;
    }
    if (exp < 0) {
        *o++ = '0';
        *o++ = '.';
        for (int i = exp + 1; i < 0; i++)
            *o++ = '0';
        memcpy(o, digits, (size_t)n);
        o[n] = 0;
        return;
    }
    for (int i = 0; i <= exp || i < n || i == exp + 1; i++) {
        if (i == exp + 1)
            *o++ = '.';
        *o++ = i < n ? digits[i] : '0';
    }
    *o = 0;
}
