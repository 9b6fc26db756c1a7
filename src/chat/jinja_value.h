/* Values of the template language, and the state of one parse or one rendering (struct jx).
 * Everything is allocated from that state's arena and dies with it; values are immutable once made, except
 * namespaces, cyclers, joiners and one-shot iterators. Failing functions do not return: jx_fail jumps back to
 * the module's entry (template_parse, template_render), the one place that frees the arena. No function here
 * owns anything else, so nothing can leak. */
#ifndef CHAT_JINJA_VALUE_H
#define CHAT_JINJA_VALUE_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "chat/template.h"

/* Limits of one rendering; all are counted, so the same template and input always end the same way. */
enum {
    JX_MAX_STEPS = 30 * 1000 * 1000,   // nodes evaluated, items walked, 64 bytes of text each
    JX_MAX_DEPTH = 800,                // nested evaluations: expressions, statements, macro calls
    JX_MAX_NEST = 200,                 // nesting of the template text itself
    JX_MAX_TREE = 400,                 // height of the parsed tree (chains such as a + b + ... grow it too)
    JX_MAX_TEMPLATE = 4 * 1024 * 1024, // bytes of template text
    JX_MAX_TEXT = 64 * 1024 * 1024,    // bytes of one string, and of the output
    JX_MAX_ITEMS = 4 * 1024 * 1024,    // items of one list
    JX_MAX_BYTES = 512 * 1024 * 1024,  // memory of a rendering
    JX_MAX_RANGE = 100000,             // items of range(), as the reference's sandbox has it
    JX_MAX_INT_BITS = 64 * 1024,       // any integer
    JX_MAX_INT_DIGITS = 4300, // decimal digits of an integer turned into text or read from it (Python's)
};

/* Where text came from: the template, a context value outside messages, or message 0, 1, ... Larger is less
 * trusted, so that max() joins the origins of two numbers. */
enum { FROM_TPL = -2, FROM_USER = -1 };

enum vtype {
    V_MISSING, // no value at all: an argument that was not given
    V_UNDEF,
    V_NONE,
    V_BOOL,
    V_INT,
    V_BIG, // an integer outside int64
    V_FLOAT,
    V_STR,
    V_BYTES,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_VIEW, // dict.keys(), .values(), .items()
    V_RANGE,
    V_SLICE,
    V_ITER, // a generator: can be walked once
    V_NS,
    V_FUNC, // a global, or a method bound to its object
    V_MACRO,
    V_LOOP,
    V_CYCLER,
    V_JOINER,
    V_SELF, // block references
};

struct val {
    uint8_t t;    // enum vtype
    bool markup;  // V_STR: marked as safe
    int32_t from; // numbers, booleans, none: origin; strings keep theirs
    union {
        bool b;
        int64_t i;
        double f;
        const struct big *big;
        const struct str *s;
        const struct list *l;
        const struct dict *d;
        const struct view *view;
        const struct range *range;
        const struct slice *slice;
        const struct undef *undef; // NULL: nothing to say about it
        const struct func *func;
        const struct macro *macro;
        struct iter *iter;
        struct dict *ns;
        struct loop *loop;
        struct cycler *cycler;
        struct joiner *joiner;
    } u;
};

struct run { // bytes [previous end, end) have this origin; the last one may reach past its string's end
    size_t end;
    int32_t from;
};

struct str {
    const char *p; // UTF-8, need not end in NUL
    size_t n;
    size_t n_chars;
    const struct run *runs; // NULL: all of it has origin from
    int n_runs;
    int32_t from;
    struct sb *store; // the builder it was made with, if it may still grow (see js_concat)
};

struct list {
    struct val *v;
    size_t n;
    struct list_store *store; // see list_concat
    bool is_group;            // of groupby: its items are also .grouper and .list
};

struct pair {
    struct val k, v;
    uint32_t hash;
};
struct dict { // in order of insertion, never shrinks
    struct pair *e;
    size_t n, cap;
    uint32_t *index, mask; // open addressing over e, position + 1; NULL for small ones
};

struct view {
    const struct dict *d;
    enum { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS } what;
};
struct range {
    int64_t start, stop, step, n;
};
struct slice {
    struct val start, stop, step;
};
struct undef {
    const char *hint; // a whole sentence, or NULL: derive one from obj and name
    struct val obj;   // V_MISSING: name is a variable
    struct val name;
    bool is_security;
};
struct big { // magnitude, least significant first, no leading zeros
    bool neg;
    uint32_t n;
    uint32_t d[];
};

struct jx;
struct args {
    const struct val *v;
    int n;
    const struct pair *kw; // keys are V_STR
    int n_kw;
};
enum { MAX_PARAMS = 8 };
typedef struct val (*builtin_fn)(struct jx *x, struct val self, const struct val *a, const struct args *raw);
/* params names what may be passed, in order: "a ?b" b is optional, "/" first: by position only, "*" the function
 * reads raw itself. a[] holds the bound values, V_MISSING where none was passed. */
struct builtin {
    const char *name, *params;
    builtin_fn fn;
};
struct func {
    const struct builtin *b;
    struct val self;
};
struct iter { // filled when first needed, as Python's generators are
    const struct list *items;
    size_t pos;
    void (*fill)(struct jx *x, struct iter *it);
    const struct builtin *how;
    struct val src;
    struct args args;
    const char *kind;
};
struct cycler {
    const struct list *items;
    size_t pos;
};
struct joiner {
    struct val sep;
    bool used;
};

struct jx {
    jmp_buf env;
    struct arena a;
    struct jinja_error *je;
    const char *name; // of the template, for messages
    int line;
    uint64_t steps;
    int depth;
    struct sb *out;
    const struct template *t;
    struct scope *scope, *root;
    const struct dict *context;
    const char *now;
    bool autoescape;
    struct val block_text; // what a filter block or set block filters
    uint64_t rnd;          // state of the random filter: starts the same in every rendering
};

/* Builder of text with origins. */
struct sb {
    struct jx *x;
    char *p;
    size_t n, cap;
    struct run *runs;
    int n_runs, cap_runs;
    size_t n_chars;
};

/* ---- failing and memory (jinja_value.c) ---- */
_Noreturn void jx_fail(struct jx *x, enum jinja_class c, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void jx_fail_text(struct jx *x, enum jinja_class c, const char *s, size_t n);
_Noreturn void jx_fail_undef(struct jx *x, struct val v); // v is undefined and was used
void *jx_alloc(struct jx *x, size_t n);                   // zeroed
void jx_spend(struct jx *x, uint64_t steps);
void jx_enter(struct jx *x);                     // one level deeper; leave with x->depth--
const char *jx_cstr(struct jx *x, struct val v); // text of a V_STR, NUL-terminated

/* ---- making ---- */
struct val jv_undef_hint(struct jx *x, const char *hint);
struct val jv_undef_name(struct jx *x, struct val obj, struct val name, bool is_security);
struct val jv_none(void);
struct val jv_bool(bool b);
struct val jv_int(int64_t i);
struct val jv_float(double f);
struct val jv_text(struct jx *x, const char *s);                         // a TPL string that refers to s
struct val jv_str(struct jx *x, const char *s, size_t n, int32_t from);  // refers to s
struct val jv_list(struct jx *x, enum vtype t, struct val *v, size_t n); // takes v over
struct val jv_pair(struct jx *x, struct val a, struct val b);            // a tuple
struct val jv_func(struct jx *x, const struct builtin *b, struct val self);
struct val jv_iter(struct jx *x, const struct list *items, const char *kind);
struct val jv_from_json(struct jx *x, const struct json *j, int32_t from, bool is_context);

struct list_builder {
    struct val *v;
    size_t n, cap;
};
void lb_add(struct jx *x, struct list_builder *b, struct val v);
struct val lb_take(struct jx *x, struct list_builder *b, enum vtype t);

/* ---- asking ---- */
const char *jv_type_name(struct val v); // Python's: "str", "NoneType"
bool jv_truth(struct jx *x, struct val v);
bool jv_equal(struct jx *x, struct val a, struct val b);
int jv_compare(struct jx *x, struct val a, struct val b,
               const char *op); // -1, 0, 1, 2: nan; fails if there is no order
bool jv_in(struct jx *x, struct val item, struct val box);
bool jv_is_int(struct val v); // V_INT, V_BIG, V_BOOL
bool jv_is_num(struct val v);
bool jv_is_iterable(struct val v);
int64_t jv_len(struct jx *x, struct val v); // -1 if it has none
/* All items as a list; fails if v can't be walked. A one-shot iterator is used up. */
const struct list *jv_items(struct jx *x, struct val v);
int64_t jv_index(struct jx *x, struct val v, const char *what); // an int argument, clamped to +-2^62
int32_t jv_from(struct val v);
int64_t js_index_byte(const struct str *s, size_t i); // byte of the i-th character

/* ---- dicts ---- */
uint32_t jv_hash(struct jx *x, struct val v); // fails if v is unhashable
struct dict *jd_new(struct jx *x, size_t room);
void jd_set(struct jx *x, struct dict *d, struct val k, struct val v);
struct pair *jd_find(struct jx *x, const struct dict *d, struct val k);
struct pair *jd_find_text(struct jx *x, const struct dict *d, const char *s, size_t n);
struct val jv_dict(const struct dict *d);
uint32_t js_hash(const char *s, size_t n);

/* ---- strings ---- */
void sb_add(struct sb *b, const char *s, size_t n, int32_t from);
void sb_text(struct sb *b, const char *s); // TPL
void sb_chr(struct sb *b, int32_t cp, int32_t from);
void sb_part(struct sb *b, const struct str *s, size_t i, size_t j); // bytes [i, j) with their origins
void sb_str(struct sb *b, const struct str *s);
void sb_pad(struct sb *b, const struct str *fill, int64_t n); // n copies
struct val sb_take(struct sb *b); // the builder may go on living behind the string: make a new one
struct sb *sb_new(struct jx *x);
struct val js_concat(struct jx *x, const struct str *a, const struct str *b);
struct val js_part(struct jx *x, const struct str *s, size_t i, size_t j); // bytes
int32_t js_from_at(const struct str *s, size_t i);
bool js_is(struct val v, const char *text);
size_t utf8_count(const char *s, size_t n);

/* ---- numbers (jinja_num.c) ---- */
struct val jn_parse_int(struct jx *x, const char *s, size_t n, int base,
                        bool *ok);                       // Python's int(text, base)
bool jn_parse_float(const char *s, size_t n, double *f); // Python's float(text)
struct val jn_from_double(struct jx *x, double f);       // truncates; fails for inf and nan
double jn_double(struct jx *x, struct val v);
struct val jn_arith(struct jx *x, char op, struct val a,
                    struct val b); // + - * / % and 'f' floor division, 'p' power
struct val jn_neg(struct jx *x, struct val v);
int jn_compare(struct val a, struct val b); // 2 if unordered (nan)
int jn_sign(struct val v);
int64_t jn_bits(struct val v);
const char *jn_text(struct jx *x, struct val v, int base, bool limited); // int in base 2..16
void jn_float_repr(double f, char *out);                                 // out: 40 bytes
struct val jn_round(struct jx *x, struct val v, int64_t digits);

/* ---- text of values (jinja_print.c) ---- */
struct val jv_to_str(struct jx *x, struct val v);   // str(v); markup becomes plain
struct val jv_soft_str(struct jx *x, struct val v); // keeps markup
void jv_print(struct sb *b, struct val v);          // appends str(v)
void jv_repr(struct sb *b, struct val v);
struct val jv_escape(struct jx *x, struct val v); // HTML; the result is markup
struct json_style {
    const char *indent; // NULL: one line
    struct val item_sep, key_sep;
    bool ensure_ascii, sort_keys;
};
void jv_to_json(struct sb *b, struct val v, const struct json_style *st);

#endif
