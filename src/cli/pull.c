/* `foresay pull`: a model from the hub into foresay's own folder. */
#include "pull/pull.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/human.h"
#include "cli/cli.h"
#include "cli/opt.h"
#include "cli/session.h"

static const char usage[] =
    "usage: foresay pull hf:ORG/NAME[@REVISION][:QUANT] [--quant Q | --file NAME] [--json]\n\n"
    "Downloads a model: the files that serving needs and no others, in parallel, each proved by its checksum. What is interrupted,\n"
    "however, goes on where it was. Nothing is downloaded that is on this machine already. Prints the model's path.\n\n"
    "  foresay pull hf:mlx-community/Qwen3.5-4B-MLX-4bit\n"
    "  foresay pull hf:unsloth/Qwen3.5-4B-GGUF --quant Q8_0\n"
    "  HF_TOKEN=... foresay pull hf:ORG/PRIVATE@v2\n\n"
    "HF_ENDPOINT names another hub, HF_TOKEN or a token file the token, FORESAY_HOME the folder; docs/models-on-disk.md.\n";

struct progress {
    bool is_terminal, is_shown, is_quiet;
    int64_t last_ns, line_ns;
    uint64_t last_fetched;
    double rate; // bytes a second, smoothed
};
static struct progress shown;

static void clear_line(void)
{
    if (shown.is_shown)
        fprintf(stderr, "\r\033[K");
    shown.is_shown = false;
}

static void measure(const struct download_progress *p)
{
    int64_t now = clock_ns();
    double s = (double)(now - shown.last_ns) / 1e9;
    if (shown.last_ns && s < 1)
        return;
    double rate = shown.last_ns ? (double)(p->fetched - shown.last_fetched) / s : 0;
    shown.rate = shown.rate > 0 ? 0.7 * shown.rate + 0.3 * rate : rate;
    shown.last_ns = now;
    shown.last_fetched = p->fetched;
}

static void on_progress(void *ud, const struct download_progress *p)
{
    char done[32], total[32], rate[32], eta[48], line[400];
    (void)ud;
    measure(p);
    if (shown.is_quiet || (!shown.is_terminal && shown.last_ns - shown.line_ns < 10000000000))
        return;
    shown.line_ns = shown.last_ns;
    int percent = p->total ? (int)(100 * (double)p->done / (double)p->total) : 100, n;
    human_bytes((double)p->done, done, sizeof done);
    human_bytes((double)p->total, total, sizeof total);
    if (p->done == p->total)
        n = snprintf(line, sizeof line, "checking %s: %.0f %%", total, p->total ? 100 * (double)p->checked / (double)p->total : 100);
    else if (p->waiting)
        n = snprintf(line, sizeof line, "%3d %%  %s of %s  %.200s", percent, done, total, p->waiting);
    else
        n = snprintf(line, sizeof line, "%3d %%  %s of %s  %s/s  %s%s", percent, done, total, human_bytes(shown.rate, rate, sizeof rate),
                     shown.rate > 0 ? human_seconds((double)(p->total - p->done) / shown.rate, eta, sizeof eta) : "", shown.rate > 0 ? " left" : "");
    struct winsize ws;
    int width = !ioctl(2, TIOCGWINSZ, &ws) && ws.ws_col > 20 ? ws.ws_col - 1 : 79;
    if (shown.is_terminal)
        fprintf(stderr, "\r\033[K%.*s", n < width ? n : width, line);
    else
        cli_print(stderr, "foresay: %s\n", line);
    shown.is_shown = shown.is_terminal;
}

static void on_note(void *ud, const char *sentence)
{
    (void)ud;
    clear_line();
    cli_print(stderr, "foresay: %s\n", sentence);
}

static void on_wait(const char *why, int ms)
{
    clear_line();
    cli_waiting(why, ms);
}

static void print_json(const struct pull_report *r)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    buf_str(&b, "{\"name\":");
    json_write_str(&b, r->name, strlen(r->name));
    buf_str(&b, ",\"path\":");
    json_write_str(&b, r->path, strlen(r->path));
    buf_fmt(&b, ",\"commit\":\"%s\",\"was_here\":%s,\"files\":%d,\"bytes\":%llu,\"fetched_bytes\":%llu,\"fetched_again_bytes\":%llu,\"listing_bytes\":%llu,"
            "\"requests\":%d,\"left_out\":[", r->commit, r->was_here ? "true" : "false", r->n_files, (unsigned long long)r->bytes,
            (unsigned long long)r->fetched, (unsigned long long)r->again, (unsigned long long)r->api_bytes, r->n_requests);
    for (const char *s = r->left_out; *s;) {
        size_t n = strcspn(s, "\n");
        buf_str(&b, s == r->left_out ? "" : ",");
        json_write_str(&b, s, n);
        s += n + (s[n] == '\n');
    }
    printf("%s]}\n", buf_cstr(&b));
    buf_free(&b);
}

static void print_text(const struct pull_report *r, double seconds, bool verbose)
{
    char bytes[32], fetched[32], again[32], took[48];
    printf("%s\n", r->path);
    if (r->was_here) {
        cli_print(stderr, "foresay: nothing to fetch, it is all here: foresay run %s\n", r->name);
        return;
    }
    cli_print(stderr, "foresay: %s: %s in %d files, all checksums right; fetched %s in %s", r->name, human_bytes((double)r->bytes, bytes, sizeof bytes),
            r->n_files, human_bytes((double)r->fetched, fetched, sizeof fetched), human_seconds(seconds, took, sizeof took));
    if (r->again)
        fprintf(stderr, ", %s of it a second time", human_bytes((double)r->again, again, sizeof again));
    cli_print(stderr, ": foresay run %s\n", r->name);
    int n = 0;
    for (const char *s = r->left_out; *s; s++)
        n += *s == '\n';
    if (n && !verbose)
        fprintf(stderr, "foresay: %d other weight file%s left out; --verbose names them\n", n, n == 1 ? "" : "s");
    else if (n)
        fprintf(stderr, "foresay: left out:\n%s", r->left_out);
}

int cmd_pull(int argc, char **argv)
{
    struct pull_options o = {.connections = 8, .on_progress = on_progress, .on_note = on_note, .on_wait = on_wait};
    bool json = false, verbose = false;
    o.fetch = (struct fetch_options){.stall_s = 30, .max_attempts = 8, .cancel = &interrupted};
    shown = (struct progress){.is_terminal = isatty(2)};
    struct opt opts[] = {
        {"quant", OPT_STR, &o.set, .arg = "Q", .help = "which of several GGUF files, by its quantization"},
        {"file", OPT_STR, &o.file, .arg = "NAME", .help = "which of several GGUF files, by its name (any part of a split one)"},
        {"connections", OPT_INT, &o.connections, 1, DOWNLOAD_MAX_CONNECTIONS, .arg = "N", .help = "requests at the same time"},
        {"timeout", OPT_INT, &o.fetch.stall_s, 1, 3600, .arg = "S", .help = "give up a connection that brings nothing for so long"},
        {"attempts", OPT_INT, &o.fetch.max_attempts, 1, 1000, .arg = "N", .help = "tries without any progress before giving up"},
        {"anyway", OPT_FLAG, &o.anyway, .help = "also if another tool's folder holds the same files"},
        {"json", OPT_FLAG, &json, .help = "the result as JSON"},
        {"quiet", OPT_FLAG, &shown.is_quiet, .help = "no progress"},
        {"verbose", OPT_FLAG, &verbose, .help = "which weight files were left out, and why"},
    };
    struct err e = {0};
    struct pull_report r;
    int n = opt_parse(opts, (int)(sizeof opts / sizeof *opts), argc, argv, &o.name, 1, usage);
    if (n < 0)
        return n == -2 ? 0 : 2;
    if (n != 1 || (o.set && o.file)) {
        fprintf(stderr, n != 1 ? "foresay: pull needs the name of a repository, as in hf:ORG/NAME\n" : "foresay: --quant and --file both choose: expected one\n");
        return 2;
    }
    int64_t t0 = clock_ns();
    interrupt_begin(true);
    int rc = pull_run(&o, &r, &e);
    interrupt_end();
    clear_line();
    int status = rc ? cli_fail(&e) : 0;
    if (rc) {
        if (r.offers)
            fprintf(stderr, "%s", r.offers);
    } else if (json) {
        print_json(&r);
    } else {
        print_text(&r, (double)(clock_ns() - t0) / 1e9, verbose);
    }
    pull_report_free(&r);
    return status;
}
