/*
 * benchcu_own.c - lines of benchcu for attention in the methods' own arithmetic: its operands and
 * its attention, beside dense attention on the same q, k, v.
 */
#include "core/mem.h"
#include "core/method_run.h"
#include "cuda/own/own.h"
#include "sim/registry.h"
#include "tests/bench/benchcu.h"

#include <stdlib.h>

/* The rules of the heads of a call; nobody reads q, k and v for them. */
static int find_rules(const struct method_run *run, const struct attn_problem *p,
                      struct own_rule *rules, struct err *err)
{
    const struct method *me = run->method;
    char why[160] = "";
    int rc = 0;
    for (int h = 0; h < p->heads && !rc; h++) {
        struct method_ctx ctx = {.seed = 1};
        struct head_in in = cu_head(p->nq, p->nk, p->d, p->scale, p->causal);
        struct arithmetic a;
        void *state = NULL;
        in.head = h;
        in.n_heads = p->heads;
        rc = method_prepare(me, &ctx, run->params, &in, &state, err);
        if (!rc) {
            method_arithmetic(me, state, &a, why);
            rules[h] = a.own;
            if (a.kind != ARITH_KERNEL)
                rc = err_set(err, ERR_RUN, "%s: %s", me->name, why);
        }
        method_release(me, state);
    }
    return rc;
}

/* The work beside dense attention; the product's share counts the operations of the latter. */
static int own_line(struct bench *b, const char *text, const char *phase, const char *kernel,
                    const struct attn_job *dense, const struct work *work, struct err *err)
{
    const struct work works[2] = {*work, {bench_launch_attn, dense, 1}};
    struct series product[2], times[2];
    double flop = cu_flop_dense(&dense->problem);
    struct work_counts w;

    PASS_ON(bench_warm_up(b, work, 0.2, err));
    if (b->kernels)
        timer_by_name(b->timer);
    PASS_ON(bench_turns(b, works, 2, product, times, err));
    bench_raw(b, "matmul", product, CEILING_FLOP);
    struct err none = {0};
    const struct attn_kernel *k;
    if (attn_kernel_find(&dense->problem, b->gpu.sm, kernel, &k, &none) == 0) {
        PASS_ON(bench_work(&dense->problem, &k->tile, NULL, NULL, NULL, &w, err));
        bench_raw_attn(b, text, kernel, &w, times, flop);
    } else {
        bench_raw(b, text, times, flop);
    }
    bench_raw(b, "dense", times + 1, flop);
    struct quartiles m = quartiles_of(product->ns, b->samples);
    struct quartiles q = quartiles_of(times->ns, b->samples);
    struct quartiles d = quartiles_of(times[1].ns, b->samples);
    printf("%-58s %-9s %9.1f us %5.1f%% dense %9.1f us %6.4f of it, %7.1f TFLOP/s %6.3f\n", text,
           phase, q.median * 1e-3, 100 * (q.q3 - q.q1) / q.median, d.median * 1e-3,
           q.median / d.median, flop / q.median * 1e-3,
           flop / q.median / (CEILING_FLOP / m.median));
    if (b->kernels)
        timer_print_names(stdout);
    fflush(stdout);
    b->lines++;
    return 0;
}

static int bench_setting(struct bench *b, const char *setting, int d, int64_t tokens, bool causal,
                         struct err *err)
{
    int kv = causal ? 8 : 32;
    struct cu_case c = bench_case(d, tokens, 32, kv, causal, ATTN_DENSE, NULL);
    struct cu_run r = {0};
    struct method_run *runs = NULL;
    struct own_rule *rules = NULL;
    struct own_job job = {0};
    int64_t n = 0;
    char text[160];
    int rc = 0;

    snprintf(text, sizeof text, "hd%d %lldK %s 32/%d %s", d, (long long)(tokens / 1024),
             causal ? "causal" : "full", kv, setting);
    if (!bench_is_wanted(b, text, ""))
        return 0;
    TRY(method_runs_parse(sim_methods, setting, &runs, &n, err));
    TRY(cu_run_init(&b->gpu, &c, &r, err));
    TRY(mem_alloc(&rules, c.problem.heads, sizeof *rules, "rules", err));
    TRY(find_rules(runs, &c.problem, rules, err));
    TRY(own_job_init(&b->gpu, &c.problem, rules, &r.job.x, &job, err));
    if (job.has_quant)
        TRY(own_line(b, text, "quantise", "", &r.job, &(struct work){own_job_quant, &job, 1}, err));
    TRY(own_line(b, text, "attend", job.name, &r.job, &(struct work){own_job_attend, &job, 1},
                 err));
out:
    own_job_free(&job);
    cu_run_free(&b->gpu, &r);
    free(rules);
    method_runs_free(runs, n);
    return rc < 0 ? err_prefix(err, "%s", text) : rc;
}

int bench_own(struct bench *b, struct err *err)
{
    static const struct {
        const char *setting;
        bool full;
    } lines[] = {{"longnet", false},
                 {"sageattention", true},
                 {"sageattention:version=1", true},
                 {"sageattention:version=2pp", false},
                 {"hyperattention", false}};
    int rc = 0;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        for (int64_t tokens = 8192; tokens <= 32768 && !rc; tokens *= 4) {
            rc = bench_setting(b, lines[i].setting, 128, tokens, true, err);
            for (int d = 128; d >= 64 && !rc && lines[i].full; d /= 2)
                rc = bench_setting(b, lines[i].setting, d, tokens, false, err);
        }
    return rc;
}
