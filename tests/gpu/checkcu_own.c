/*
 * checkcu_own.c - see checkcu.h. A head passes when its outputs are within 5e-3 (relative L2)
 * of those of the CPU side, which is given the same bf16 values, and its log-sum-exps within 1e-3,
 * and when a second run gives the same bits. Outputs of quantised methods are also at most 1e-3
 * further from exact attention than the CPU side's. That alone is asked of SpargeAttn with e4m3,
 * whose kernels round the probabilities of two tiles of 64 keys relative to one maximum, the CPU
 * side those of each tile (checkcu_filter.c has a model that rounds like the kernels); and, within
 * 4e-2, of SageAttention with e4m3, where a row in pieces has a maximum for each of them. Heads are
 * checked by themselves, through a replay's session, and as a part of calls with groups of heads
 * and more rows of tiles than multiprocessors.
 */
#include "tests/gpu/checkcu.h"

#include "core/mem.h"
#include "core/method_run.h"
#include "cuda/own/own.h"
#include "sim/blocks/exact.h"
#include "sim/registry.h"
#include "sim/simulate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADS 5 /* of the call that the heads are said to be of */

static const char *const settings[] = {
    "longnet:segments=64+200:ratios=1+3",
    "longnet:segments=40+300:ratios=2+4:official_pad=1",
    "longnet",
    "sageattention",
    "sageattention:version=1",
    "sageattention:version=2pp",
    "sageattention:arch=sm89:gran=warp:accum=fp22",
    "sageattention:qk=int4:gran=token:smooth_v=1",
    "sageattention:profile=paper:gran=block:accum=f16:v_max=2:smooth_k=0",
    "sageattention:version=1:gran=tensor:arch=sm80:accum=f32",
    "spargeattn:arith=sage2:theta=-1:tau=0.7:pv=4",
    "spargeattn:arith=sage2:theta=-1:tau=0.7:pv=2:arch=sm90:v_max=2.25",
    "spargeattn:arith=sage2:theta=-1:tau=0.7:pv=3:profile=paper",
    "sale:dense_below=0:tau=0.02:arith=sage1",
    "hyperattention:min_len=32:block=16:samples=24",
    "hyperattention:min_len=0:block=24:samples=16:exclude=0:official_pad=1",
    "hyperattention:min_len=60:block=64:samples=0:proj_dir=axes:gray=inverse",
    "hyperattention:min_len=200:block=256:samples=256:projs=11",
};

/* One head on both sides; owned. */
struct both {
    struct head_in in;
    struct exact exact;
    float *x[3];
    double *out[3], *lse[3]; /* CPU, GPU, GPU again */
    const double *whole;     /* [nq][d] outputs of exact attention */
    int at;
};

static void both_free(struct both *b)
{
    exact_free(&b->exact);
    for (int i = 0; i < 3; i++) {
        free(b->x[i]);
        free(b->out[i]);
        free(b->lse[i]);
    }
}

/* q (which = 0), k or v of a head: of a run's call, or of its own if r is NULL. */
static int head_tensor(const struct cu_case *c, const struct cu_run *r, int which, int head,
                       float **out, struct err *err)
{
    const struct attn_problem *p = &c->problem;
    int64_t n = (which ? p->nk : p->nq) * p->d, at = which ? head / (p->heads / p->kv_heads) : head;
    if (!r)
        return cu_make_tensor(c, which, 1, n / p->d, out, err);
    const float *of[] = {r->q, r->k, r->v};
    PASS_ON(mem_alloc(out, n, sizeof **out, "head", err));
    memcpy(*out, of[which] + at * n, (size_t)n * sizeof **out);
    return 0;
}

static int both_init(const struct cu_case *c, const struct cu_run *r, int head, struct both *b,
                     struct err *err)
{
    const struct attn_problem *p = &c->problem;
    memset(b, 0, sizeof *b);
    for (int i = 0; i < 3; i++) {
        PASS_ON(head_tensor(c, r, i, head, b->x + i, err));
        PASS_ON(mem_alloc(b->out + i, p->nq * p->d, sizeof **b->out, "outputs", err));
        PASS_ON(mem_alloc(b->lse + i, p->nq, sizeof **b->lse, "log-sum-exp", err));
    }
    b->in = cu_head(p->nq, p->nk, p->d, p->scale, p->causal);
    b->in.x.q = b->x[0];
    b->in.x.k = b->x[1];
    b->in.x.v = b->x[2];
    b->in.head = head;
    b->in.n_heads = HEADS;
    b->in.exact = &b->exact;
    exact_init(&b->exact, &b->in.x, PREC_F64);
    return exact_out(&b->exact, 0, p->nq, &b->whole, err);
}

/* sim_sink_fn */
static int keep(void *ctx, const struct mask *m, const double *out, const double *lse,
                struct err *err)
{
    struct both *b = ctx;
    int64_t n = m->row1 - m->row0, d = b->in.x.dv;
    (void)err;
    memcpy(b->out[b->at] + m->row0 * d, out, (size_t)(n * d) * sizeof *out);
    memcpy(b->lse[b->at] + m->row0, lse, (size_t)n * sizeof *lse);
    return 0;
}

static int run(struct both *b, int at, const struct method_run *run,
               const struct sim_device *device, char what[160], struct err *err)
{
    struct method_ctx ctx = {.seed = 1};
    struct sim_cell cell = {.method = run->method,
                            .params = run->params,
                            .ctx = &ctx,
                            .in = &b->in,
                            .device = device,
                            .sink = keep,
                            .sink_ctx = b};
    OWN(record_free) struct record r;
    record_init(&r);
    b->at = at;
    PASS_ON(sim_run(&cell, &r, err));
    if (r.status == RECORD_SKIP)
        snprintf(what, 160, "skipped on the %s: %.120s", device ? "GPU" : "CPU", r.reason);
    return 0;
}

/* |x - y| relative to |y|. */
static double apart(const double *x, const double *y, int64_t n)
{
    double delta = 0, ref = 0;
    for (int64_t i = 0; i < n; i++) {
        delta += (x[i] - y[i]) * (x[i] - y[i]);
        ref += y[i] * y[i];
    }
    return ref > 0 ? sqrt(delta / ref) : delta > 0 ? INFINITY : 0;
}

static void compare(const struct both *b, const struct method_run *m, double worst[2],
                    char what[160])
{
    int64_t nq = b->in.x.nq, n = nq * b->in.x.dv;
    bool sparse = strcmp(m->method->name, "spargeattn") == 0;
    bool dense = strcmp(m->method->name, "sageattention") == 0;
    bool quantised = sparse || dense || strcmp(m->method->name, "sale") == 0;
    double allowed = sparse ? INFINITY : dense && !strstr(m->canonical, "version=1") ? 4e-2 : 5e-3;
    double rel = apart(b->out[1], b->out[0], n), lse = 0;
    double off = quantised ? apart(b->out[1], b->whole, n) : 0;
    double own = quantised ? apart(b->out[0], b->whole, n) : 0;
    for (int64_t i = 0; i < nq; i++) {
        bool empty = isinf(b->lse[0][i]);
        double by = empty != (bool)isinf(b->lse[1][i]) ? INFINITY
                    : empty                            ? 0
                                                       : fabs(b->lse[1][i] - b->lse[0][i]);
        lse = fmax(lse, isnan(by) ? INFINITY : by);
    }
    worst[0] = fmax(worst[0], isnan(rel) ? INFINITY : rel);
    worst[1] = fmax(worst[1], lse);
    if (!(rel <= allowed) || !(off <= own + 1e-3) || !(lse <= 1e-3))
        snprintf(what, 160,
                 "outputs %.2e, log-sum-exps %.2e apart; outputs %.2e from exact, the CPU's %.2e",
                 rel, lse, off, own);
    else if (memcmp(b->out[1], b->out[2], (size_t)n * 8) != 0 ||
             memcmp(b->lse[1], b->lse[2], (size_t)nq * 8) != 0)
        snprintf(what, 160, "another run, other bits");
}

/* False where the method is not for such a head. */
static bool check_case(const struct sim_device *device, const struct method_run *m,
                       const struct cu_case *c, int head, double worst[2], char what[160])
{
    OWN(both_free) struct both b;
    struct err err = {0};
    int rc = both_init(c, NULL, head, &b, &err);
    if (!rc)
        rc = run(&b, 0, m, NULL, what, &err);
    bool skipped = *what != 0;
    for (int i = 1; i < 3 && !rc && !skipped && !*what; i++)
        rc = run(&b, i, m, device, what, &err);
    if (rc)
        snprintf(what, 160, "%.150s", err.msg);
    else if (!*what)
        compare(&b, m, worst, what);
    if (skipped)
        *what = 0;
    return !skipped;
}

static void check_setting(const struct sim_device *device, const struct method_run *m,
                          const struct cu_choice *choice)
{
    static const int64_t shapes[][2] = {{129, 129}, {1, 1},     {257, 257},  {64, 300},
                                        {300, 64},  {700, 700}, {1300, 1300}};
    static const enum cu_data data[] = {DATA_NORMAL, DATA_OFFSET, DATA_EQUAL, DATA_SMOOTH};
    int n_shapes = choice->brief ? 1 : choice->small ? 3 : 7, n_data = choice->small ? 1 : 4;
    int64_t before = cu_checks, failed = cu_failures;
    double worst[2] = {0, 0};

    for (int i = 0; i < n_shapes * n_data * 4; i++) {
        int d = i & 1 ? 128 : 64;
        struct cu_case c = {.problem = {1, 1, d, shapes[i / 4 % n_shapes][0],
                                        shapes[i / 4 % n_shapes][1], 1 / sqrt(d), i & 2,
                                        ATTN_DENSE},
                            .data = data[i / 4 / n_shapes],
                            .seed = (uint64_t)i + 1};
        char what[160] = "";
        if (!check_case(device, m, &c, i % HEADS, worst, what))
            continue;
        ++cu_checks;
        cu_failures += *what != 0;
        if (*what)
            printf("FAIL %s:%s hd%d: %lld x %lld%s, data %s: %s\n", m->method->name, m->canonical,
                   d, (long long)c.problem.nq, (long long)c.problem.nk,
                   c.problem.causal ? " causal" : "", cu_data_names[c.data], what);
    }
    printf("  %-5s %s:%s: %lld checks, output %.1e, lse %.1e\n",
           cu_failures > failed ? "FAIL" : "ok", m->method->name, m->canonical,
           (long long)(cu_checks - before), worst[0], worst[1]);
}

/* ---- calls ---------------------------------------------------------------------------------- */

/* Settings whose kernels take the tiles of all heads in one persistent launch. */
static const char *const call_settings[] = {
    "sageattention",
    "sageattention:gran=warp:accum=fp22:smooth_v=1",
    "sageattention:profile=paper:gran=block",
    "sageattention:qk=int4:gran=tensor:smooth_k=0",
};

static int rule_of(const struct method_run *m, const struct head_in *in, struct own_rule *out,
                   struct err *err)
{
    struct method_ctx ctx = {.seed = 1};
    struct arithmetic a;
    char why[160] = "";
    void *state = NULL;
    int rc = method_prepare(m->method, &ctx, m->params, in, &state, err);
    if (!rc) {
        method_arithmetic(m->method, state, &a, why);
        *out = a.own;
        if (a.kind != ARITH_KERNEL)
            rc = err_set(err, ERR_RUN, "%s", why);
    }
    method_release(m->method, state);
    return rc;
}

/* Outputs and log-sum-exps of a call, twice; owned. */
struct call_outputs {
    uint16_t *out[2];
    float *lse[2];
};

static void call_outputs_free(struct call_outputs *x)
{
    for (int i = 0; i < 2; i++) {
        free(x->out[i]);
        free(x->lse[i]);
    }
}

static int run_call(struct gpu *g, const struct own_job *job, struct call_outputs *x,
                    struct err *err)
{
    const struct attn_problem *p = &job->problem;
    int64_t rows = p->heads * p->nq;
    for (int i = 0; i < 2; i++) {
        PASS_ON(mem_alloc(x->out + i, rows * p->d, sizeof **x->out, "outputs", err));
        PASS_ON(mem_alloc(x->lse + i, rows, sizeof **x->lse, "log-sum-exp", err));
        PASS_ON(gpu_zero(g, job->x.out, rows * p->d * 2, err));
        PASS_ON(gpu_zero(g, job->x.lse, rows * 4, err));
        PASS_ON(own_job_quant(g, job, err));
        PASS_ON(own_job_attend(g, job, err));
        PASS_ON(gpu_get(g, x->out[i], job->x.out, rows * p->d * 2, err));
        PASS_ON(gpu_get(g, x->lse[i], job->x.lse, rows * 4, err));
    }
    return 0;
}

/* A head of the call against the CPU. */
static int check_call_head(const struct cu_run *r, const struct method_run *m,
                           const struct call_outputs *x, int head, double worst[2], char what[160],
                           struct err *err)
{
    const struct attn_problem *p = &r->c.problem;
    int64_t n = p->nq * p->d;
    struct both b;
    int rc = 0;
    TRY(both_init(&r->c, r, head, &b, err));
    TRY(run(&b, 0, m, NULL, what, err));
    for (int i = 0; i < 2; i++) {
        for (int64_t k = 0; k < n; k++) {
            uint32_t bits = (uint32_t)x->out[i][head * n + k] << 16;
            float y;
            memcpy(&y, &bits, sizeof y);
            b.out[i + 1][k] = y;
        }
        for (int64_t k = 0; k < p->nq; k++)
            b.lse[i + 1][k] = x->lse[i][head * p->nq + k];
    }
    if (!*what)
        compare(&b, m, worst, what);
out:
    both_free(&b);
    return rc;
}

static int check_call(struct gpu *g, const struct method_run *m, const struct cu_case *c,
                      double worst[2], char what[160], struct err *err)
{
    const struct attn_problem *p = &c->problem;
    struct cu_run r = {0};
    struct own_rule *rules = NULL;
    struct own_job job = {0};
    struct call_outputs x = {0};
    struct head_in in = cu_head(p->nq, p->nk, p->d, p->scale, p->causal);
    int rc = 0;

    TRY(cu_run_init(g, c, &r, err));
    TRY(mem_alloc(&rules, p->heads, sizeof *rules, "rules", err));
    in.n_heads = p->heads;
    for (int h = 0; h < p->heads; h++)
        TRY(rule_of(m, &in, rules + h, err));
    TRY(own_job_init(g, p, rules, &r.job.x, &job, err));
    TRY(run_call(g, &job, &x, err));
    for (int k = 0; k < 3 && !*what; k++)
        TRY(check_call_head(&r, m, &x, k * (p->heads - 1) / 2, worst, what, err));
out:
    call_outputs_free(&x);
    own_job_free(&job);
    free(rules);
    cu_run_free(g, &r);
    return rc;
}

static void check_calls_of(struct gpu *g, const struct method_run *m,
                           const struct cu_choice *choice)
{
    static const struct {
        int heads, kv_heads;
        int64_t nq, nk;
        bool causal;
    } calls[] = {{40, 8, 900, 900, true},  {6, 2, 200, 3100, false}, {48, 48, 700, 700, false},
                 {1, 1, 2049, 2049, true}, {3, 1, 193, 128, false},  {150, 50, 64, 64, true},
                 {2, 1, 4096, 4096, false}};
    static const enum cu_data data[] = {DATA_NORMAL, DATA_OFFSET,  DATA_SMOOTH,
                                        DATA_TINY,   DATA_ONE_HOT, DATA_HUGE};
    int n = choice->brief ? 1 : choice->small ? 3 : 7, n_data = choice->small ? 1 : 6;
    int64_t before = cu_checks, failed = cu_failures;
    double worst[2] = {0, 0};

    for (int i = 0; i < n * 2; i++)
        for (int k = 0; k < n_data; k++) {
            int d = i & 1 ? 64 : 128;
            struct cu_case c = {.problem = {calls[i / 2].heads, calls[i / 2].kv_heads, d,
                                            calls[i / 2].nq, calls[i / 2].nk, 1 / sqrt(d),
                                            calls[i / 2].causal, ATTN_DENSE},
                                .data = data[k],
                                .seed = (uint64_t)i + 1};
            char what[160] = "";
            struct err err = {0};
            if (k && i > 2) /* other data in one shape */
                continue;
            if (check_call(g, m, &c, worst, what, &err))
                snprintf(what, sizeof what, "%.150s", err.msg);
            ++cu_checks;
            cu_failures += *what != 0;
            if (*what)
                printf("FAIL call %s:%s hd%d %d/%d heads: %lld x %lld%s, data %s: %s\n",
                       m->method->name, m->canonical, d, c.problem.heads, c.problem.kv_heads,
                       (long long)c.problem.nq, (long long)c.problem.nk,
                       c.problem.causal ? " causal" : "", cu_data_names[c.data], what);
        }
    printf("  %-5s calls %s:%s: %lld checks, output %.1e, lse %.1e\n",
           cu_failures > failed ? "FAIL" : "ok", m->method->name, m->canonical,
           (long long)(cu_checks - before), worst[0], worst[1]);
}

static int parse_settings(const char *const *texts, size_t count, struct method_run **runs,
                          int64_t *n, struct err *err)
{
    for (size_t i = 0; i < count; i++)
        PASS_ON(method_runs_parse(sim_methods, texts[i], runs, n, err));
    return 0;
}

void check_own(const struct accel *a, struct gpu *g, struct cu_choice *choice)
{
    const struct accel_options o = {.copies = 2, .events = true};
    struct sim_device device = {.accel = a, .metrics = true};
    struct method_run *runs = NULL, *calls = NULL;
    struct err err = {0};
    int64_t n = 0, n_calls = 0;
    int rc = 0;

    TRY(a->open(&o, &device.session, &err));
    TRY(parse_settings(settings, sizeof settings / sizeof *settings, &runs, &n, &err));
    TRY(parse_settings(call_settings, sizeof call_settings / sizeof *call_settings, &calls,
                       &n_calls, &err));
    for (int64_t i = 0; i < n; i++)
        if (cu_chosen(choice, runs[i].method->name))
            check_setting(&device, runs + i, choice);
    for (int64_t i = 0; i < n_calls; i++)
        if (cu_chosen(choice, calls[i].method->name))
            check_calls_of(g, calls + i, choice);
out:
    if (rc) {
        printf("FAIL own arithmetic: %s\n", err.msg);
        ++cu_checks;
        ++cu_failures;
    }
    if (device.session)
        a->close(&device.session);
    method_runs_free(runs, n);
    method_runs_free(calls, n_calls);
}
