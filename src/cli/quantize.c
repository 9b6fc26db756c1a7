/* `foresay quantize`: a package of floats as an MLX package of fewer bits. */
#include "forge/quantize.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/human.h"
#include "cli/cli.h"
#include "cli/opt.h"
#include "cli/session.h"

static const char usage[] =
    "usage: foresay quantize SRC DST [--bits 4|8|mixed] [--group 32|64|128] [--bpw N] [--text FILE] [--json]\n\n"
    "Writes the Hugging Face folder SRC as an MLX package DST that other runtimes open too. Norms, small gates, routers and an MTP head\n"
    "stay as they are. --bits mixed measures on a text what each tensor at 4 bits alone does to the predictions, and spends the bits where\n"
    "they save most. In the end the package is compared with its source; the figures are printed and stand in its README.md. What is\n"
    "interrupted goes on where it was.\n\n"
    "  foresay quantize ~/models/Qwen3.5-4B ~/models/Qwen3.5-4B-4bit\n"
    "  foresay quantize ~/models/Qwen3.5-4B ~/models/Qwen3.5-4B-mixed --bits mixed --bpw 5\n";

static void on_progress(void *ud, const char *what, double share)
{
    (void)ud;
    fprintf(stderr, "\r\033[K%3.0f %%  %s", 100 * share, what);
}

static void print(const struct quantize_report *r, const char *dst, bool json)
{
    const struct agreement *a = &r->agreement;
    char size[32], from[32];
    if (json) {
        struct buf b;
        buf_init(&b, 1 << 16);
        json_write_str(&b, dst, strlen(dst));
        printf("{\"path\":%s,\"bits_per_weight\":%.4f,\"bytes\":%llu,\"source_bytes\":%llu,\"quantized_tensors\":%d,\"kept_tensors\":%d,\"resumed_tensors\":%d,"
               "\"tokens\":%d,\"top1_agreement\":%.6f,\"kl_mean\":%.8f,\"kl_999\":%.8f}\n",
               buf_cstr(&b), r->bpw, (unsigned long long)r->dst_bytes, (unsigned long long)r->src_bytes, r->n_quantized, r->n_kept, r->n_resumed, a->n, a->top1, a->kl, a->kl_999);
        buf_free(&b);
        return;
    }
    cli_print(stdout, "%s\n", dst);
    printf("  size           %s, from %s; %.2f bits a weight with scales\n", human_bytes((double)r->dst_bytes, size, sizeof size),
           human_bytes((double)r->src_bytes, from, sizeof from), r->bpw);
    printf("  tensors        %d quantized, %d as stored\n", r->n_quantized, r->n_kept);
    printf("  against SRC    same most likely token at %.2f %% of %d positions; KL mean %.5f, 99.9th percentile %.4f nats\n", 100 * a->top1, a->n, a->kl,
           a->kl_999);
    if (a->n < 1000)
        printf("                 %d positions are few: --text FILE with a longer text says more\n", a->n);
}

int cmd_quantize(int argc, char **argv)
{
    struct quantize_options o = {.group = 64, .bpw = 5, .calibration = 128, .held_out = 4096, .cancel = &interrupted};
    const char *bits = "4", *paths[2];
    bool json = false, quiet = false;
    struct opt opts[] = {
        {"bits", OPT_STR, &bits, .arg = "N", .help = "4, 8 or mixed"},
        {"group", OPT_INT, &o.group, 32, 128, .arg = "N", .help = "columns that share a scale: 32, 64 or 128"},
        {"bpw", OPT_NUM, &o.bpw, 4, 9, .arg = "N", .help = "mixed: bits a quantized weight, scales included"},
        {"text", OPT_STR, &o.text, .arg = "FILE", .help = "text to measure on; its first half chooses bits, its second judges"},
        {"calibration", OPT_INT, &o.calibration, 16, 1 << 16, .arg = "N", .help = "mixed: tokens read for each tensor"},
        {"held-out", OPT_INT, &o.held_out, 16, 1 << 16, .arg = "N", .help = "most tokens of the final comparison"},
        {"threads", OPT_INT, &o.threads, 0, 256, .arg = "N", .help = "0: all CPUs"},
        {"json", OPT_FLAG, &json, .help = "the result as JSON"},
        {"quiet", OPT_FLAG, &quiet, .help = "no progress"},
    };
    struct err e = {0};
    struct quantize_report r;
    int n = opt_parse(opts, (int)(sizeof opts / sizeof *opts), argc, argv, paths, 2, usage);
    if (n < 0)
        return n == -2 ? 0 : 2;
    bool is_mixed = !strcmp(bits, "mixed");
    if (n != 2 || (!is_mixed && strcmp(bits, "4") && strcmp(bits, "8")) || (o.group != 32 && o.group != 64 && o.group != 128)) {
        fprintf(stderr, n != 2                                              ? "foresay: quantize needs SRC and DST\n"
                        : o.group != 32 && o.group != 64 && o.group != 128 ? "foresay: --group: expected 32, 64 or 128\n"
                                                                            : "foresay: --bits: expected 4, 8 or mixed\n");
        return 2;
    }
    o.src = paths[0], o.dst = paths[1];
    o.bits = is_mixed ? 0 : bits[0] - '0';
    o.on_progress = isatty(2) && !quiet ? on_progress : NULL;
    interrupt_begin(true);
    int rc = quantize_run(&o, &r, &e);
    interrupt_end();
    if (o.on_progress)
        fprintf(stderr, "\r\033[K");
    if (rc)
        return cli_fail(&e);
    print(&r, o.dst, json);
    return 0;
}
