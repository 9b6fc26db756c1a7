/* The schedule fuzzer with a fixed budget: small models often, true widths a little. Models are made by
 * `make guard-models`, small families are golden ones; the demo model is used where the checkout carries it. */
#include <stdio.h>

#include "base/file.h"
#include "measure/schedule.h"

#include "../slow_build.h"

#ifdef SLOW
static const int is_slow = 1;
#else
static const int is_slow = 0;
#endif

int main(void)
{
    static const struct {
        const char *path;
        int rows, tokens, branches, slow_rows, slow_tokens;
    } all[] = {
        {"build/models/tiny", 30000, 1200, 9, 4000, 200},
        {"models/demo", 6000, 1200, 4, 500, 100},
        {"build/models/window-100", 6000, 1200, 9, 400, 300},
        {"build/models/window-1000", 6000, 1200, 9, 400, 1100},
        {"tests/golden/models/gemma3-mlx-4bit", 6000, 1200, 9, 200, 150},
        {"tests/golden/models/gemma4-ple", 6000, 1200, 9, 200, 150},
        {"tests/golden/models/qwen35-moe-mtp", 6000, 1200, 9, 200, 150},
        {"tests/golden/models/qwen3-moe-mlx-4bit", 3000, 400, 6, 100, 100},
        {"tests/golden/models/qwen2", 3000, 400, 6, 100, 100},
        {"build/models/thin-0.8B", 2000, 100, 2, 100, 20},
        {"build/models/thin-27B", 400, 70, 1, 0, 0},
    };
    int passed = 0, failed = 0, skipped = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct schedule_options o = {.model = all[i].path, .seed = 1, .rows = all[i].rows, .max_tokens = all[i].tokens,
                                     .branches = all[i].branches};
        struct schedule_result r;
        if (is_slow) {
            o.rows = all[i].slow_rows;
            o.max_tokens = all[i].slow_tokens;
        }
        if (!o.rows || !file_exists(o.model)) {
            printf("SKIP %s: %s\n", o.model, o.rows ? "not there" : "too slow in this build");
            skipped++;
            continue;
        }
        int rc = schedule_run(&o, &r);
        printf("%s %s: %lld rows of logits, %d differing, %lld hidden rows, %lld states, %.1f s\n", rc ? "FAIL" : "ok  ", o.model,
               (long long)(r.trunk + r.mtp + r.drafts), rc > 0, (long long)r.hidden, (long long)r.states, r.seconds);
        fflush(stdout);
        passed += !rc;
        failed += rc != 0;
    }
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0;
}
