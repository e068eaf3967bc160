/*
 * benchcu_select.c - lines of benchcu for the choice of masks.
 */
#include "core/mem.h"
#include "cuda/select/select.h"
#include "sim/blocks/exact.h"
#include "sim/registry.h"
#include "tests/bench/benchcu.h"

#include <stdlib.h>
#include <string.h>

typedef int select_launch(struct gpu *g, const struct select_job *job, struct err *err);

/* Samples of a selection between samples of dense attention on the same q and k. */
static int sample_select(struct bench *b, const struct attn_job *dense,
                         const struct select_job *job, select_launch *launch, struct series *times,
                         struct err *err)
{
    int64_t ids[2 * MAX_SAMPLES] = {0};
    int rc = 0;

    timer_reset(b->timer);
    for (int i = 0; i < b->samples; i++) {
        TRY(bench_timed(b, &(struct work){bench_launch_attn, dense, 1}, &ids[2 * i], err));
        TRY(timer_begin(b->timer, &b->gpu, &ids[2 * i + 1], err));
        TRY(launch(&b->gpu, job, err));
        TRY(timer_end(b->timer, &b->gpu, err));
    }
    TRY(timer_collect(b->timer, &b->gpu, err));
    for (int i = 0; i < 2 * b->samples; i++)
        times[i % 2].ns[i / 2] = timer_span(b->timer, ids[i]).kernel_ns;
    times[0].n = times[1].n = b->samples;
    times[0].launches = times[1].launches = 1;
out:
    return rc;
}

static int select_line(struct bench *b, const char *text, const char *phase,
                       const struct attn_job *dense, const struct select_job *job,
                       select_launch *launch, struct err *err)
{
    struct series times[2];
    char name[160];
    int32_t *count = NULL;
    int64_t kept = 0, rows = job->lists.rows;
    int rc = 0;

    snprintf(name, sizeof name, "%s: %s", text, phase);
    TRY(bench_warm_up(b, &(struct work){bench_launch_attn, dense, 1}, 0.2, err));
    for (int i = 0; i < 3; i++)
        TRY(launch(&b->gpu, job, err));
    if (b->kernels)
        timer_by_name(b->timer);
    TRY(sample_select(b, dense, job, launch, times, err));
    TRY(mem_alloc(&count, rows, sizeof *count, "kept units", err));
    TRY(gpu_get(&b->gpu, count, job->lists.count, rows * 4, err));
    for (int64_t r = 0; r < rows; r++)
        kept += count[r];
    bench_raw(b, "dense", &times[0], cu_flop_dense(&dense->problem));
    bench_raw(b, name, &times[1], 0);
    struct quartiles d = quartiles_of(times[0].ns, b->samples);
    struct quartiles k = quartiles_of(times[1].ns, b->samples);
    printf("%-70s %9.1f us %5.1f%% dense %9.1f us %6.4f of it, %4.1f%% of units kept\n", name,
           k.median * 1e-3, 100 * (k.q3 - k.q1) / k.median, d.median * 1e-3, k.median / d.median,
           100.0 * (double)kept / (double)(rows * job->lists.units));
    if (b->kernels)
        timer_print_names(stdout);
    fflush(stdout);
    b->lines++;
out:
    free(count);
    return rc;
}

/* The rule of a method that has one, for a head of this shape, which nobody reads but to hash it.
 */
static int find_rule(const struct method_run *run, const struct select_problem *p,
                     union method_rule *rule, struct err *err)
{
    const struct method *me = run->method;
    struct method_ctx ctx = {.seed = 1};
    struct head_in in = {.x = {.nq = p->nq,
                               .nk = p->nk,
                               .d = p->d,
                               .dv = p->d,
                               .scale = p->scale,
                               .causal = p->causal},
                         .branch = "main"};
    struct exact exact = {0};
    void *state = NULL;
    float *zeros = NULL;
    char why[160] = "";
    int rc = 0;
    TRY(mem_zalloc(&zeros, (p->nq > p->nk ? p->nq : p->nk) * p->d, sizeof *zeros, "a head", err));
    in.x.q = in.x.k = in.x.v = zeros;
    exact_init(&exact, &in.x, PREC_F64);
    in.exact = &exact;
    TRY(me->prepare(&ctx, run->params, &in, &state, err));
    if (!me->rule(state, rule, why))
        FAIL(err, ERR_RUN, "%s: %s", me->name, why);
out:
    me->release(state);
    exact_free(&exact);
    free(zeros);
    return rc;
}

static int bench_select(struct bench *b, const char *setting, int64_t tokens, bool causal, int kv,
                        struct err *err)
{
    struct cu_case c = bench_case(128, tokens, 32, kv, causal, ATTN_DENSE, NULL);
    struct cu_run r = {0};
    struct method_run *runs = NULL;
    struct select_job job = {0};
    int64_t n = 0;
    char text[160];
    int rc = 0;

    snprintf(text, sizeof text, "hd128 %lldK %s 32/%d %s", (long long)(tokens / 1024),
             causal ? "causal" : "full", kv, setting);
    if (b->only && !strstr(text, b->only))
        return 0;
    TRY(method_runs_parse(sim_methods, setting, &runs, &n, err));
    const struct select_method *me = select_find(runs->method->name);
    TRY(cu_run_init(&b->gpu, &c, &r, err));
    struct select_problem p = {
        32,           kv,        128,       tokens,    tokens, c.problem.scale,
        causal,       r.job.x.q, r.job.x.k, r.job.x.v, 1,      runs->method->params,
        runs->params, NULL,      NULL};
    union method_rule rule;
    if (runs->method->rule) {
        TRY(find_rule(runs, &p, &rule, err));
        p.rule = &rule;
    }
    TRY(select_job_init(&b->gpu, me, &p, &job, err));
    TRY(select_line(b, text, "select", &r.job, &job, me->launch, err));
    if (me->launch_quantised)
        TRY(select_line(b, text, "select + quantise", &r.job, &job, me->launch_quantised, err));
out:
    select_job_free(&job);
    cu_run_free(&b->gpu, &r);
    method_runs_free(runs, n);
    return rc < 0 ? err_prefix(err, "%s", text) : rc;
}

int bench_selections(struct bench *b, struct err *err)
{
    static const struct {
        const char *setting;
        bool full, causal;
        int kv;
    } cases[] = {
        {"spargeattn:arch=sm90:theta=-0.1:tau=0.5", true, true, 32},
        {"sampleattention", false, true, 32},
        {"sampleattention", false, true, 8},
        {"sampleattention:chunks=4", false, true, 8},
        {"xattention", false, true, 8},
        {"xattention:stride=8", false, true, 8},
        {"flexprefill", false, true, 8},
        {"minference", false, true, 8},
        {"minference:v=100:s=800", false, true, 8},
        {"minference:pattern=block", false, true, 8},
        {"sale", false, true, 8},
        {"sale:tau=0.9", false, true, 8}, /* nothing passes, so that every pair is tested */
        {"fg-attn:mode=pooled", true, true, 8},
        {"fg-attn", true, false, 32},
        {"hash-sparse", false, true, 8},
        {"qk-sparse", false, true, 8},
        {"oracle", true, true, 8},
        {"oracle:kind=topk:k=10%", false, true, 8},
        {"oracle:kind=block:unit=64x64", false, true, 8},
    };
    static const int64_t tokens[] = {8192, 32768};
    int rc = 0;
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        int64_t n = tokens[i % 2], at = (int64_t)i / 2;
        if (cases[at].full)
            TRY(bench_select(b, cases[at].setting, n, false, cases[at].kv, err));
        if (cases[at].causal)
            TRY(bench_select(b, cases[at].setting, n, true, cases[at].kv, err));
    }
out:
    return rc;
}
