/*
 * benchcu_metrics.c - lines of benchcu for the metrics of a head.
 */
#include "core/mem.h"
#include "cuda/metrics/metrics.h"
#include "tests/bench/benchcu.h"

#include <math.h>
#include <stdlib.h>

/* What a replay measures of a head, or a part of it. */
struct metrics_job {
    const char *name;
    bool reference;
    const struct metrics_ask *ask; /* NULL: no pass */
    struct metrics_pass pass;
    const struct metrics_ref *ref;
};

static int launch_metrics(struct gpu *g, const void *job, struct err *err)
{
    const struct metrics_job *m = job;
    if (m->reference)
        PASS_ON(metrics_ref_launch(g, m->ref, err));
    if (m->ask)
        return metrics_pass_launch(g, &m->pass, err);
    return 0;
}

/* Samples of all works in turns, each after one of the product; ratios to the first. */
static int metrics_lines(struct bench *b, const char *text, const struct work *works,
                         const char *const *names, int n, double flop, struct err *err)
{
    static struct series product[MAX_WORKS], series[MAX_WORKS];
    char name[160];

    for (int i = n - 1; i >= 0; i--)
        PASS_ON(bench_warm_up(b, works + i, 0.1, err));
    PASS_ON(bench_turns(b, works, n, product, series, err));
    double product_ns = quartiles_of(product->ns, b->samples).median, dense_ns = 0;
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s: %s", text, names[i]);
        bench_raw(b, name, series + i, flop);
        struct quartiles k = quartiles_of(series[i].ns, b->samples); /* sorts them */
        dense_ns = i == 0 ? k.median : dense_ns;
        printf("%-70s %9.1f us %5.1f%% %6.3f of dense, product %5.1f TFLOP/s\n", name,
               k.median * 1e-3, 100 * (k.q3 - k.q1) / k.median, k.median / dense_ns,
               CEILING_FLOP / product_ns * 1e-3);
        b->lines++;
    }
    fflush(stdout);
    return 0;
}

/* Largest |sum of p - 1| of the rows; every row of these cases sees a key. */
static int print_sums(struct bench *b, const char *text, const struct metrics_job *m,
                      struct err *err)
{
    int64_t n = m->pass.problem.nq;
    OWN(free_at) double *sum = NULL;
    double worst = 0;
    PASS_ON(mem_alloc(&sum, n, sizeof *sum, "sums of rows", err));
    PASS_ON(metrics_pass_sums(&b->gpu, &m->pass, sum, err));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(sum[i] - 1) <= worst))
            worst = fabs(sum[i] - 1);
    printf("%s: %s: sum of p within %.1e of 1 in every row\n", text, m->name, worst);
    return 0;
}

/* Dense attention of one head, then the metrics of it in their parts and together. The mass that a
 * mask keeps is a quotient of the method's and the reference's row sums: it needs no pass. */
static int metrics_case(struct bench *b, const char *text, const struct cu_run *r, struct err *err)
{
    static const double levels[METRICS_C] = {0.02, 0.1, 0.25, 0.5, 1, 2, 4, 8};
    static const struct metrics_ask one = {.c = levels + 3, .n_c = 1},
                                    one_sums = {.c = levels + 3, .n_c = 1, .sums = true},
                                    tops = {.c = levels, .n_c = METRICS_C},
                                    eight = {.c = levels,
                                             .n_c = METRICS_C,
                                             .cells = true,
                                             .sums = true},
                                    maps = {.cells = true, .sums = true};
    struct metrics_job jobs[] = {
        {.name = "reference", .reference = true},
        {.name = "1 threshold", .ask = &one},
        {.name = "8 thresholds", .ask = &tops},
        {.name = "1 threshold, sums of p", .ask = &one_sums},
        {.name = "maps, sums of p", .ask = &maps},
        {.name = "8 thresholds, maps, sums of p", .ask = &eight},
        {.name = "all: 1 threshold", .reference = true, .ask = &one},
        {.name = "all: 8 thresholds", .reference = true, .ask = &tops},
        {.name = "all: 1 threshold, sums of p", .reference = true, .ask = &one_sums},
        {.name = "all: 8 thresholds, maps, sums of p", .reference = true, .ask = &eight},
    };
    enum { N = sizeof jobs / sizeof *jobs };
    struct work works[N + 1] = {{bench_launch_attn, &r->job, 1}};
    const char *names[N + 1] = {"dense attention"};
    struct metrics_ref ref = {0};
    int rc = 0;

    TRY(metrics_ref_init(&b->gpu, &r->c.problem, &r->job.x, false, &ref, err));
    for (int i = 0; i < N; i++) {
        jobs[i].ref = &ref;
        if (jobs[i].ask)
            TRY(metrics_pass_init(&b->gpu, &r->c.problem, &r->job.x, ref.norm, jobs[i].ask,
                                  &jobs[i].pass, err));
        works[i + 1] = (struct work){launch_metrics, jobs + i, 1};
        names[i + 1] = jobs[i].name;
    }
    TRY(metrics_lines(b, text, works, names, N + 1, cu_flop_dense(&r->c.problem), err));
    for (int i = 0; i < N; i++)
        if (jobs[i].reference && jobs[i].pass.sums)
            TRY(print_sums(b, text, jobs + i, err));
out:
    for (int i = 0; i < N; i++)
        metrics_pass_free(&jobs[i].pass);
    metrics_ref_free(&ref);
    return rc;
}

static int bench_metrics_case(struct bench *b, const char *text, const struct cu_case *c,
                              struct err *err)
{
    struct cu_run r = {0};
    int rc = 0;

    if (!bench_is_wanted(b, text, ""))
        return 0;
    TRY(cu_run_init(&b->gpu, c, &r, err));
    TRY(metrics_case(b, text, &r, err));
out:
    cu_run_free(&b->gpu, &r);
    return rc;
}

int bench_metrics(struct bench *b, struct err *err)
{
    static const int64_t lengths[] = {32768, 131072};
    char text[96];
    for (int d = 128; d >= 64; d /= 2)
        for (int causal = 0; causal < 2; causal++)
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
                struct cu_case c = bench_case(d, lengths[i], 1, 1, causal, ATTN_DENSE, NULL);
                if (d == 64 && !b->all)
                    continue;
                snprintf(text, sizeof text, "metrics hd%d %lldK %s", d,
                         (long long)lengths[i] / 1024, causal ? "causal" : "full");
                PASS_ON(bench_metrics_case(b, text, &c, err));
            }
    return 0;
}
