/* The tree of a parsed template, and what the parts of its evaluator share. The tree is read-only once built. */
#ifndef CHAT_JINJA_EVAL_H
#define CHAT_JINJA_EVAL_H

#include "chat/jinja_value.h"

enum token_type {
    TOK_DATA,
    TOK_VAR_BEGIN,
    TOK_VAR_END,
    TOK_BLOCK_BEGIN,
    TOK_BLOCK_END,
    TOK_NAME,
    TOK_STRING,
    TOK_NUMBER,
    TOK_OP,
    TOK_EOF,
};
struct token {
    enum token_type type;
    int op; // TOK_OP: its characters, the second one shifted by 8
    int line;
    const char *s;
    size_t n;
    struct val v; // TOK_STRING, TOK_NUMBER
};
#define OP2(a, b) ((a) | (b) << 8)

/* Tokens of s, the last one TOK_EOF. */
struct token *jinja_lex(struct jx *x, const char *s, size_t n, const struct jinja_options *o);

struct sym { // a name, one object per template
    const char *s;
    size_t n;
    uint32_t hash;
    struct val text;
    struct sym *next;
};

enum node_type {
    // expressions: operands in a, b, c; lists are chained from kids
    N_CONST,
    N_NAME,
    N_LIST,
    N_TUPLE,
    N_DICT,
    N_ATTR,
    N_ITEM,
    N_SLICE,
    N_CALL,
    N_FILTER,
    N_TEST,
    N_NOT,
    N_NEG,
    N_POS,
    N_BINARY,
    N_CONCAT,
    N_COMPARE,
    N_AND,
    N_OR,
    N_COND,
    N_ARG,
    N_NSREF,
    // statements
    S_DATA,
    S_PRINT,
    S_IF,
    S_FOR,
    S_SET,
    S_SET_BLOCK,
    S_MACRO,
    S_CALL,
    S_FILTER,
    S_WITH,
    S_BLOCK,
    S_SCOPE,
    S_AUTOESCAPE,
    S_BREAK,
    S_CONTINUE,
    S_LOADER,
};
enum { ARG_POS, ARG_KEY, ARG_STAR, ARG_STAR2 };
enum { USES_CALLER = 1, USES_KWARGS = 2, USES_VARARGS = 4 };

struct node {
    uint8_t type;
    uint8_t op; // N_BINARY, N_COMPARE operand: operator; N_ARG: ARG_*; S_MACRO, S_CALL: USES_*
    bool flag; // S_FOR: recursive; S_BLOCK: scoped; S_IF: an elif; N_BINARY: its left operand is a bare power
    bool varies;        // not a constant: a name or a call is part of it
    bool lacks_builtin; // N_FILTER, N_TEST: unknown, an error once it is reached
    uint16_t height;
    int line;
    struct sym *name;
    const struct builtin *fn; // N_FILTER, N_TEST
    struct val v;             // N_CONST, S_DATA
    struct node *a, *b, *c, *kids, *body, *orelse, *next;
    const struct sym **late; // of the body's scope, see jinja_scope.c; NULL ends it
};

struct template
{
    struct arena a;
    char *name;
    struct node *body;
    struct node *blocks; // S_BLOCK nodes, chained by c
    const struct sym **late;
};

/* Both passes fail through x. Everything is allocated from x->a. */
void jinja_parse(struct jx *x, struct template *t, const char *s, size_t n, const struct jinja_options *o);
void jinja_check(struct jx *x,
                 struct template *t); // resolves filters and tests, misplaced break and continue
void jinja_scopes(struct jx *x, struct template *t); // finds late names
void jinja_run(struct jx *x);                        // renders x->t into x->out

/* ---- run time objects ---- */
struct var {
    const struct sym *name;
    struct val v;
};
struct scope {
    struct scope *up;
    struct var *vars;
    int n, cap;
};
struct macro {
    const struct node *node;
    struct scope *scope; // where it was defined
    const char *name;
};
struct
    loop { // a for in progress; items are pulled one by one, since its test may depend on what the body did
    const struct list *src;
    size_t pos; // next of src
    const struct node *node;
    struct scope *scope;               // around the for
    struct iter *source;               // the generator being walked, if it is one
    int64_t index0, length;            // length -1: not known yet
    struct val before, current, after; // after: V_MISSING unless looked ahead
    struct val changed;                // what loop.changed() saw last
    int depth0;
};
bool jx_loop_pull(struct jx *x, struct loop *l, struct val *v);         // next item that passes the test
struct val jx_loop_run(struct jx *x, struct loop *l, struct val items); // loop(items) of a recursive for
bool jx_runtime_attr(struct jx *x, struct val obj, const char *name, size_t n,
                     struct val *out); // loop.index, ...
struct val jx_run_block(struct jx *x, const struct node *block);

struct val jx_eval(struct jx *x, const struct node *n);
struct val jx_call(struct jx *x, struct val f, const struct args *args);
struct val jx_binary(struct jx *x, char op, struct val a, struct val b); // jinja_ops.c
struct val jx_slice(struct jx *x, struct val obj, const struct slice *s);
struct val jx_attr(struct jx *x, struct val obj, struct val name); // obj.name
struct val jx_item(struct jx *x, struct val obj, struct val key);  // obj[key]
/* Value of a dotted path such as "function.name" or 0; dflt (V_MISSING: none) replaces what is undefined. */
struct val jx_path(struct jx *x, struct val obj, struct val path, struct val dflt);
void jx_repr_runtime(struct sb *b, struct val v);
/* Stable sort of items by the keys beside them. */
void jx_sort(struct jx *x, struct val *items, struct val *keys, size_t n, bool reverse);
bool jx_is_space(int32_t cp);

struct val jx_strftime(struct jx *x, const char *fmt);
/* Binds arguments to b's parameters and runs it. */
struct val jx_run_builtin(struct jx *x, const struct builtin *b, struct val self, const struct args *args);
int64_t jx_len(struct jx *x, struct val v); // len(); fails if v has none
bool jx_own_attr(struct jx *x, struct val obj, struct val name, struct val *out); // without obj's items
const struct builtin *jinja_find_filter(const char *name, size_t n);
const struct builtin *jinja_find_test(const char *name, size_t n);
const struct builtin *jinja_find_global(const char *name, size_t n);
const struct builtin *jinja_find_method(struct val obj, const char *name, size_t n); // NULL if it has none
bool jx_is_mutator(struct val obj, const char *name, size_t n); // methods that the sandbox refuses
struct val js_format(struct jx *x, const struct str *s, const struct args *args,
                     struct val mapping);                            // str.format
struct val js_percent(struct jx *x, struct val s, struct val right); // s % right

#endif
