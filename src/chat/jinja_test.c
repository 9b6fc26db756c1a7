/* Tests: what may stand behind `is`. */
#include <math.h>
#include <string.h>

#include "chat/jinja_str.h"

#define TEST(name) \
    static struct val name(struct jx *x, struct val self, const struct val *a, const struct args *raw)
#define UNUSED_ARGS (void)x, (void)self, (void)a, (void)raw

TEST(t_defined)
{
    UNUSED_ARGS;
    return jv_bool(self.t != V_UNDEF);
}
TEST(t_undefined)
{
    UNUSED_ARGS;
    return jv_bool(self.t == V_UNDEF);
}
TEST(t_none)
{
    UNUSED_ARGS;
    return jv_bool(self.t == V_NONE);
}
TEST(t_boolean)
{
    UNUSED_ARGS;
    return jv_bool(self.t == V_BOOL);
}
TEST(t_true)
{
    UNUSED_ARGS;
    return jv_bool(self.t == V_BOOL && self.u.b);
}
TEST(t_false)
{
    UNUSED_ARGS;
    return jv_bool(self.t == V_BOOL && !self.u.b);
}
TEST(t_integer)
{
    UNUSED_ARGS;
    return jv_bool(self.t == V_INT || self.t == V_BIG);
}
TEST(t_float)
{
    UNUSED_ARGS;
    return jv_bool(self.t == V_FLOAT);
}
TEST(t_number)
{
    UNUSED_ARGS;
    return jv_bool(jv_is_num(self));
}
TEST(t_string)
{
    UNUSED_ARGS;
    return jv_bool(self.t == V_STR);
}
TEST(t_mapping)
{
    UNUSED_ARGS;
    return jv_bool(self.t == V_DICT);
}
TEST(t_iterable)
{
    UNUSED_ARGS;
    return jv_bool(jv_is_iterable(self));
}
TEST(t_escaped)
{
    UNUSED_ARGS;
    return jv_bool(self.t == V_STR && self.markup);
}
TEST(t_callable)
{
    UNUSED_ARGS;
    return jv_bool(self.t == V_FUNC || self.t == V_MACRO || self.t == V_LOOP || self.t == V_JOINER ||
                   self.t == V_UNDEF);
}

TEST(t_sequence) // has a length and items by number
{
    UNUSED_ARGS;
    return jv_bool(self.t == V_UNDEF || self.t == V_STR || self.t == V_BYTES || self.t == V_LIST ||
                   self.t == V_TUPLE || self.t == V_DICT || self.t == V_RANGE);
}

TEST(t_divisibleby)
{
    UNUSED_ARGS;
    return jv_bool(jv_equal(x, jx_binary(x, '%', self, a[0]), jv_int(0)));
}
TEST(t_odd)
{
    UNUSED_ARGS;
    return jv_bool(jv_equal(x, jx_binary(x, '%', self, jv_int(2)), jv_int(1)));
}
TEST(t_even)
{
    UNUSED_ARGS;
    return jv_bool(jv_equal(x, jx_binary(x, '%', self, jv_int(2)), jv_int(0)));
}
TEST(t_eq)
{
    UNUSED_ARGS;
    return jv_bool(jv_equal(x, self, a[0]));
}
TEST(t_ne)
{
    UNUSED_ARGS;
    return jv_bool(!jv_equal(x, self, a[0]));
}
TEST(t_lt)
{
    UNUSED_ARGS;
    return jv_bool(jv_compare(x, self, a[0], "<") < 0);
}
TEST(t_le)
{
    UNUSED_ARGS;
    return jv_bool(jv_compare(x, self, a[0], "<=") <= 0);
}
TEST(t_gt)
{
    UNUSED_ARGS;
    return jv_bool(jv_compare(x, self, a[0], ">") == 1);
}
TEST(t_ge)
{
    UNUSED_ARGS;
    int c = jv_compare(x, self, a[0], ">=");
    return jv_bool(c == 0 || c == 1);
}
TEST(t_in)
{
    UNUSED_ARGS;
    return jv_bool(jv_in(x, self, a[0]));
}

TEST(t_sameas)
{
    UNUSED_ARGS;
    if (self.t != a[0].t)
        return jv_bool(false);
    switch (self.t) {
    case V_NONE:
        return jv_bool(true);
    case V_BOOL:
    case V_INT:
    case V_FLOAT:
        return jv_bool(jv_equal(x, self, a[0]));
    default:
        return jv_bool(self.u.s == a[0].u.s);
    }
}

TEST(t_lower)
{
    UNUSED_ARGS;
    struct args none = {0};
    struct val s = jv_to_str(x, self);
    return jx_run_builtin(x, jinja_find_method(s, "islower", 7), s, &none);
}
TEST(t_upper)
{
    UNUSED_ARGS;
    struct args none = {0};
    struct val s = jv_to_str(x, self);
    return jx_run_builtin(x, jinja_find_method(s, "isupper", 7), s, &none);
}
TEST(t_filter)
{
    UNUSED_ARGS;
    jv_hash(x, self);
    return jv_bool(self.t == V_STR && jinja_find_filter(self.u.s->p, self.u.s->n));
}
TEST(t_test)
{
    UNUSED_ARGS;
    jv_hash(x, self);
    return jv_bool(self.t == V_STR && jinja_find_test(self.u.s->p, self.u.s->n));
}

static const struct builtin tests[] = {
    {"odd", "", t_odd},
    {"even", "", t_even},
    {"divisibleby", "num", t_divisibleby},
    {"defined", "", t_defined},
    {"undefined", "", t_undefined},
    {"filter", "", t_filter},
    {"test", "", t_test},
    {"none", "", t_none},
    {"boolean", "", t_boolean},
    {"false", "", t_false},
    {"true", "", t_true},
    {"integer", "", t_integer},
    {"float", "", t_float},
    {"lower", "", t_lower},
    {"upper", "", t_upper},
    {"string", "", t_string},
    {"mapping", "", t_mapping},
    {"number", "", t_number},
    {"sequence", "", t_sequence},
    {"iterable", "", t_iterable},
    {"callable", "", t_callable},
    {"sameas", "other", t_sameas},
    {"escaped", "", t_escaped},
    {"in", "seq", t_in},
    {"==", "/ other", t_eq},
    {"eq", "/ other", t_eq},
    {"equalto", "/ other", t_eq},
    {"!=", "/ other", t_ne},
    {"ne", "/ other", t_ne},
    {">", "/ other", t_gt},
    {"gt", "/ other", t_gt},
    {"greaterthan", "/ other", t_gt},
    {"ge", "/ other", t_ge},
    {">=", "/ other", t_ge},
    {"<", "/ other", t_lt},
    {"lt", "/ other", t_lt},
    {"lessthan", "/ other", t_lt},
    {"<=", "/ other", t_le},
    {"le", "/ other", t_le},
};

const struct builtin *jinja_find_test(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strlen(tests[i].name) == n && !memcmp(tests[i].name, name, n))
            return &tests[i];
    return NULL;
}
