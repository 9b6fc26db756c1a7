/* Which chat templates a package has, and which one a chat gets. Run from the root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "chat/template_set.h"

static char dir[] = "/tmp/test_template_set.XXXXXX";

static void put(const char *name, const char *text)
{
    struct err e = {0};
    char *path = path_join(dir, name);
    assert_int_equal(file_write(path, text, strlen(text), &e), 0);
    free(path);
}

static void drop(const char *name)
{
    char *path = path_join(dir, name);
    assert_int_equal(unlink(path), 0);
    free(path);
}

/* Texts and sources for chats without and with tools; NULL: none. */
static void expect(const char *plain, const char *plain_source, const char *tools, const char *tools_source)
{
    struct err e = {0};
    struct template_set s;
    assert_int_equal(template_set_find(&s, dir, &e), 0);
    const char *want[2][2] = {{plain, plain_source}, {tools, tools_source}};
    for (int i = 0; i < 2; i++) {
        const struct template_text *t = template_set_pick(&s, i == 1);
        assert_true(!t == !want[i][0]);
        if (t) {
            assert_string_equal(t->text, want[i][0]);
            assert_string_equal(t->source, want[i][1]);
        }
    }
    template_set_free(&s);
}

static void refuse(const char *part)
{
    struct err e = {0};
    struct template_set s;
    assert_int_equal(template_set_find(&s, dir, &e), ERR_FORMAT);
    assert_int_equal(s.n, 0);
    if (!strstr(e.msg, part))
        fail_msg("\"%s\" lacks \"%s\"", e.msg, part);
}

static void test_order(void **state)
{
    (void)state;
    expect(NULL, NULL, NULL, NULL);
    put("chat_template.json", "{\"chat_template\": \"four\"}");
    expect("four", "chat_template.json", "four", "chat_template.json");
    put("tokenizer_config.json", "{\"chat_template\": null}");
    expect("four", "chat_template.json", "four", "chat_template.json");
    put("tokenizer_config.json", "{\"chat_template\": \"three\"}");
    expect("three", "tokenizer_config.json", "three", "tokenizer_config.json");
    put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"u\"}, {\"name\": \"rag\", "
                                 "\"template\": \"r\"}, {\"name\": \"default\", \"template\": \"d\"}]}");
    expect("d", "tokenizer_config.json (default)", "u", "tokenizer_config.json (tool_use)");
    put("chat_template.jinja", "one"); // files replace what the configuration says, names and all
    expect("one", "chat_template.jinja", "one", "chat_template.jinja");
    char *more = path_join(dir, "additional_chat_templates");
    assert_int_equal(mkdir(more, 0777), 0);
    put("additional_chat_templates/tool_use.jinja", "two");
    put("additional_chat_templates/notes.txt", "not a template");
    expect("one", "chat_template.jinja", "two", "additional_chat_templates/tool_use.jinja");
    drop("chat_template.jinja");
    put("additional_chat_templates/rag.jinja", "five");
    expect(NULL, NULL, "two", "additional_chat_templates/tool_use.jinja"); // several, and none is the default
    drop("additional_chat_templates/rag.jinja");
    expect("two", "additional_chat_templates/tool_use.jinja", "two", "additional_chat_templates/tool_use.jinja");
    drop("additional_chat_templates/tool_use.jinja");
    drop("additional_chat_templates/notes.txt");
    rmdir(more);
    free(more);
    drop("chat_template.json");
    drop("tokenizer_config.json");
}

static void test_types(void **state)
{
    (void)state;
    put("tokenizer_config.json", "{\"chat_template\": 3}");
    refuse("chat_template is a number");
    put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"default\"}]}");
    refuse("template");
    put("tokenizer_config.json", "{\"chat_template\": [\"x\"]}");
    refuse("template");
    put("tokenizer_config.json", "{\"chat_template\"");
    refuse("tokenizer_config.json");
    drop("tokenizer_config.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order), cmocka_unit_test(test_types)};
    if (!mkdtemp(dir))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(dir);
    return failed;
}
