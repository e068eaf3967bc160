/*
 * benchcu.c - speed of the attention kernels as a share of a cuBLAS product in the same run.
 *
 * Every sample of a kernel is taken between samples of the 8192^3 bf16 product, on random normal
 * data, after some warm-up; L2 is left as the previous launch leaves it (warm). A sample repeats
 * its launch, and all samples of a line last equally long (SPAN_NS or longer): at its power limit
 * the GPU slows down within milliseconds, and a short launch between long ones would run at the
 * clock that those have left. Printed are medians, per launch: TFLOP/s by the formula of
 * doc/performance.md (dense: 4 N^2 D per head, half when causal; lists: blocks that are
 * multiplied), and their ratio to the product's median. Lists are sampled in turns with dense
 * attention of the same size, the skewed one with as many blocks spread evenly: "of other" is the
 * median over the rounds of their TFLOP/s over its.
 *
 *   benchcu [--samples N] [--raw FILE] [--events] [--cold] [--single] [--kernels] [--choices]
 *           [--cycles] [--apart] [--all] [TEXT]
 *   benchcu [...] --masks FILE [TEXT]                         lists of real masks instead
 *   benchcu [--samples N] --prefill MODEL PROMPT TOKENS      a language model's run instead
 *
 * --masks: FILE is what `lacuna replay --dump-masks` wrote, of up to 16 heads a setting. Blocks
 * with a kept pair are multiplied, on random data, in turns with dense attention of that causality,
 * whose tiles on the diagonal count in full like those of the lists.
 *
 * Own arithmetic is sampled in turns with dense attention of the same problem; its TFLOP/s and
 * their ratio to the product's count the operations of the latter. Selections stand beside it too:
 * single launches in turns, no product. Plans stand alone.
 *
 * --cold: no warm-up and single launches, for a profiler (with --samples 1 --events).
 * --single: single launches as samples.
 * --apart: single launches, and no turns but those with the product: a second of one work alone,
 * then its samples, then the next work. At the power limit a kernel that draws less power has a
 * higher clock, which it loses beside others.
 * --kernels: under each selection, own arithmetic and plan the times of its kernels, by name.
 * --choices: lines of selections only.
 * --cycles: cycles of single launches by hardware counters in the place of ns, which no clock
 * blurs.
 * --all also measures the kernels that are no default; TEXT, an extended
 * regular expression, keeps only lines that it fits.
 */
#include "tests/bench/benchcu.h"
#include "tests/bench/benchcu_prefill.h"

#include <stdlib.h>
#include <string.h>

static int copy_speed(struct bench *b, struct err *err)
{
    struct series s = {.n = 10, .launches = 1};
    int64_t ids[10];
    timer_reset(b->timer);
    for (int i = 0; i < s.n; i++) {
        PASS_ON(timer_begin(b->timer, &b->gpu, &ids[i], err));
        PASS_ON(ceiling_copy(&b->gpu, &b->ceiling, err));
        PASS_ON(timer_end(b->timer, &b->gpu, err));
    }
    PASS_ON(timer_collect(b->timer, &b->gpu, err));
    for (int i = 0; i < s.n; i++)
        s.ns[i] = timer_ns(b->timer, ids[i]);
    bench_raw(b, "copy", &s, 0);
    printf("copy %.2f TB/s (read + written), timer %s%s%s\n\n",
           (double)CEILING_BYTES / quartiles_of(s.ns, s.n).median * 1e-3, timer_name(b->timer),
           *timer_reason(b->timer) ? ": " : "", timer_reason(b->timer));
    return 0;
}

static int bench_all(struct bench *b, struct err *err)
{
    if (b->choices)
        return bench_selections(b, err);
    PASS_ON(bench_dense(b, err));
    PASS_ON(bench_lists(b, err));
    PASS_ON(bench_bits(b, err));
    PASS_ON(bench_filters(b, err));
    PASS_ON(bench_selections(b, err));
    PASS_ON(bench_plans(b, err));
    PASS_ON(bench_own(b, err));
    return bench_metrics(b, err);
}

static int run(struct bench *b, bool cupti, bool cycles, struct err *err)
{
    char why[160];
    int rc = 0;
    TRY(timer_open(cupti && !cycles, &b->timer, err));
    TRY(gpu_open(0, &b->gpu, err));
    if (cycles && !(b->counters = counters_open(&b->gpu, why)))
        FAIL(err, ERR_MACHINE, "--cycles: %s", why);
    TRY(ceiling_open(&b->gpu, &b->ceiling, err));
    printf("%s, driver CUDA %d.%d, %d multiprocessors\n", b->gpu.name, b->gpu.driver / 1000,
           b->gpu.driver % 1000 / 10, b->gpu.sms);
    TRY(copy_speed(b, err));
    printf("%-34s %-22s %13s %6s %7s %7s %6s %8s  %5s %4s %10s\n", "case", "kernel", "median",
           "iqr", "TFLOP/s", "matmul", "ratio", "of other", "plan", "cut", "plan, host");
    if (b->masks)
        TRY(bench_masks(b, err));
    else
        TRY(bench_all(b, err));
    if (!b->lines && b->only)
        FAIL(err, ERR_USAGE, "no line fits '%s'", b->only);
    if (!b->lines)
        FAIL(err, ERR_INPUT, "%s: no masks that keep anything", b->masks ? b->masks : "bench");
out:
    counters_close(&b->counters);
    blas_close(&b->ceiling.blas);
    timer_close(&b->timer);
    gpu_close(&b->gpu);
    return rc;
}

/* What is no option and no text is refused: a misspelt option must not become a filter. */
static int parse_args(int argc, char **argv, struct bench *b, bool *cupti, bool *cycles,
                      char ***prefill, struct err *err)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--samples") == 0 && i + 1 < argc) {
            b->samples = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--raw") == 0 && i + 1 < argc) {
            if (!(b->raw = fopen(argv[++i], "w")))
                return err_set(err, ERR_IO, "%s: cannot be written", argv[i]);
        } else if (strcmp(argv[i], "--masks") == 0 && i + 1 < argc) {
            b->masks = argv[++i];
        } else if (strcmp(argv[i], "--prefill") == 0 && i + 3 < argc) {
            *prefill = argv + i + 1, i += 3;
        } else if (strcmp(argv[i], "--events") == 0) {
            *cupti = false;
        } else if (strcmp(argv[i], "--cycles") == 0) {
            *cycles = true;
            b->warm_up = 0;
        } else if (strcmp(argv[i], "--cold") == 0) {
            b->warm_up = 0;
            b->single = true;
        } else if (strcmp(argv[i], "--single") == 0) {
            b->single = true;
        } else if (strcmp(argv[i], "--apart") == 0) {
            b->single = b->apart = true;
        } else if (strcmp(argv[i], "--kernels") == 0) {
            b->kernels = true;
        } else if (strcmp(argv[i], "--choices") == 0) {
            b->choices = true;
        } else if (strcmp(argv[i], "--all") == 0) {
            b->all = true;
        } else if (argv[i][0] == '-') {
            return err_set(err, ERR_USAGE,
                           "'%s' is no option, or lacks a value; there are --samples N, "
                           "--raw FILE, --masks FILE, --prefill MODEL PROMPT TOKENS, --events, "
                           "--cold, --cycles, --single, --apart, --kernels, --choices and --all",
                           argv[i]);
        } else {
            b->only = argv[i];
            if (regcomp(&b->wanted, b->only, REG_EXTENDED | REG_NOSUB))
                return err_set(err, ERR_USAGE, "'%s' is no regular expression", b->only);
        }
    }
    b->samples = b->samples < 1 ? 1 : b->samples > MAX_SAMPLES ? MAX_SAMPLES : b->samples;
    return 0;
}

int main(int argc, char **argv)
{
    struct bench b = {.samples = 20, .warm_up = 1};
    struct err err = {0};
    bool cupti = true, cycles = false;
    char **prefill = NULL;

    setvbuf(stdout, NULL, _IOLBF, 0);
    int rc = parse_args(argc, argv, &b, &cupti, &cycles, &prefill, &err);
    if (!rc)
        rc = prefill ? bench_prefill(prefill[0], prefill[1], atoll(prefill[2]), b.samples, &err)
                     : run(&b, cupti, cycles, &err);
    if (rc)
        fprintf(stderr, "benchcu: %s\n", err.msg);
    if (b.raw)
        fclose(b.raw);
    return err_exit_code(rc);
}
