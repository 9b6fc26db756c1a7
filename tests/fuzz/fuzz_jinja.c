/* Fuzz target: any bytes as a template, rendered over a small chat. Whatever happens must end within the
 * engine's own limits. The first byte picks the whitespace options. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "chat/template.h"

static const char context[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"Be "
                              "brief.\"},{\"role\":\"user\",\"content\":\"Z\\u00fcrich <b> 'x'\"},"
                              "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{"
                              "\"name\":\"f\",\"arguments\":{\"a\":1,\"b\":[2.5,null]}}}]}],"
                              "\"tools\":null,\"n\":3,\"f\":2.5,\"t\":true,\"l\":[3,1,2],\"d\":{\"k\":\"v\","
                              "\"1\":2},\"s\":\"Hello World\",\"big\":123456789012345678901234567890}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct arena a = {0};
    struct json *vars;
    struct jinja_error je;
    struct template *t;
    struct rendered r;
    if (!n || json_parse(&vars, &a, context, sizeof context - 1, "context", NULL)) {
        arena_free(&a);
        return 0;
    }
    struct jinja_options o = {data[0] & 1, data[0] & 2};
    if (template_parse(&t, (const char *)data + 1, n - 1, &o, "fuzz", &je)) {
        jinja_error_free(&je);
    } else {
        if (template_render(t, vars, NULL, "2026-03-09T08:05:07", &r, &je)) {
            jinja_error_free(&je);
        } else {
            size_t sum = 0; // the spans cover the text exactly
            for (int i = 0; i < r.n_spans; i++) {
                if (r.spans[i].s != r.text.p + sum)
                    abort();
                sum += r.spans[i].n;
            }
            if (sum != r.text.n)
                abort();
            rendered_free(&r);
        }
        template_free(t);
    }
    arena_free(&a);
    return 0;
}
