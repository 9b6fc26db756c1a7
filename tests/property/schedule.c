/* The schedule fuzzer as a program: `schedule MODEL`. Exits with 1 on a difference. --hours runs session after
 * session with fresh seeds, each printed before it begins. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "measure/schedule.h"

static int usage(void)
{
    fprintf(stderr, "usage: schedule MODEL [--seed N] [--rows N] [--tokens N] [--branches N] [--threads N] [--isa NAME] [--hours H]\n"
                    "  --rows      rows of logits to compare (20000)\n"
                    "  --tokens    length of the longest text (1200)\n"
                    "  --branches  texts that leave it: at 64, 65, 63, 1024, 1025, 1023, then anywhere (9)\n"
                    "  --threads   default: rounds with 1, 2 and 3\n"
                    "  --hours     sessions with fresh seeds until the time is up\n");
    return 2;
}

static int session(const struct schedule_options *o)
{
    struct schedule_result r;
    printf("%s: seed %llu, %lld rows, %d tokens\n", o->model, (unsigned long long)o->seed, (long long)o->rows, o->max_tokens);
    fflush(stdout);
    int rc = schedule_run(o, &r);
    printf("%s: %lld rows compared (%lld trunk, %lld head, %lld drafts), %d differing; %lld hidden rows and %lld states; %lld steps, "
           "%lld rejected rows, %lld forks, %lld evictions, %lld restores; %.1f s (reference %.1f s)\n",
           o->model, (long long)(r.trunk + r.mtp + r.drafts), (long long)r.trunk, (long long)r.mtp, (long long)r.drafts, rc > 0,
           (long long)r.hidden, (long long)r.states, (long long)r.steps, (long long)r.rejected, (long long)r.forks, (long long)r.evictions,
           (long long)r.restores, r.seconds, r.ref_seconds);
    fflush(stdout);
    return rc;
}

int main(int argc, char **argv)
{
    struct schedule_options o = {.rows = 20000, .max_tokens = 1200, .branches = 9};
    double hours = 0;
    bool has_seed = false;
    if (argc < 2 || argv[1][0] == '-')
        return usage();
    o.model = argv[1];
    for (int i = 2; i + 1 < argc; i += 2) {
        char *end = argv[i + 1];
        unsigned long long v = strtoull(argv[i + 1], &end, 10);
        if (!strcmp(argv[i], "--isa")) {
            o.isa = argv[i + 1];
            continue;
        }
        if (!strcmp(argv[i], "--hours")) {
            hours = strtod(argv[i + 1], &end);
        } else if (!strcmp(argv[i], "--seed")) {
            o.seed = v;
            has_seed = true;
        } else if (!strcmp(argv[i], "--rows")) {
            o.rows = (int64_t)v;
        } else if (!strcmp(argv[i], "--tokens")) {
            o.max_tokens = (int)v;
        } else if (!strcmp(argv[i], "--branches")) {
            o.branches = (int)v;
        } else if (!strcmp(argv[i], "--threads")) {
            o.threads = (int)v;
        } else {
            return usage();
        }
        if (*end || end == argv[i + 1])
            return usage();
    }
    if (argc % 2 || o.rows < 1 || o.max_tokens < 16 || o.max_tokens > 1 << 20 || o.branches < 0 || o.threads < 0 || o.threads > 64)
        return usage();
    int64_t t0 = clock_ns();
    int rc;
    do {
        if (!has_seed)
            o.seed = rng_entropy() >> 16;
        rc = session(&o);
    } while (!rc && !has_seed && (double)(clock_ns() - t0) * 1e-9 < hours * 3600);
    return rc ? 1 : 0;
}
