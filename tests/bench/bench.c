/*
 * bench.c - how fast the CPU reference is, as ratios inside one run:
 *
 *   sgemm      OpenBLAS single-precision matrix product, one per thread, before and after
 *   dense      exact dense attention in float, causal, one head per thread: 2 N^2 (d + dv) / 2 flop
 *   methods    selection and attention of every method that takes causal heads, at its defaults;
 *              "time/sh" = (attention time / dense time) / (share of computed tiles): 1 means that
 *              skipped work is saved in full
 *
 * Every line is measured in a process of its own, so that the peak memory is its own. The input is
 * a synthetic head with a sink, a column and two slashes (tests/harness/golden.h). Not a test:
 * nothing here passes or fails.
 *
 *   bench [--threads T] [--method NAME] [N...]
 */
#include "core/clock.h"
#include "core/pool.h"
#include "core/gemm.h"
#include "core/mem.h"
#include "sim/registry.h"
#include "sim/simulate.h"
#include "tests/harness/golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct result {
    double gemm;                        /* GFLOP/s of sgemm, all threads */
    double dense_s, select_s, attend_s; /* seconds of one head with all threads busy */
    double share, density_elem;         /* of computed tiles, of kept pairs */
    double rss;                         /* bytes */
    int failed;
    char note[256];
};

/* ---- sgemm ---------------------------------------------------------------------------------- */

enum { GEMM_N = 1536 };

static int gemm_item(void *ctx, int64_t item, int worker, struct err *err)
{
    float *x = ctx, *c = NULL;
    int rc = mem_alloc(&c, GEMM_N * GEMM_N, sizeof *c, "product", err);
    for (int k = 0; !rc && k < 4; k++)
        gemm_nn_f32(GEMM_N, GEMM_N, GEMM_N, 1, x, GEMM_N, x, GEMM_N, 0, c, GEMM_N);
    free(c);
    return rc;
}

static double gemm_rate(int threads, struct err *err)
{
    float *x = NULL;
    if (mem_alloc(&x, GEMM_N * GEMM_N, sizeof *x, "matrix", err))
        return 0;
    for (int64_t i = 0; i < GEMM_N * GEMM_N; i++)
        x[i] = (float)(i % 31) / 31;
    pool_run(threads, threads, gemm_item, x, err); /* warm-up */
    double t = clock_s();
    pool_run(threads, threads, gemm_item, x, err);
    t = clock_s() - t;
    free(x);
    return 4 * 2.0 * GEMM_N * GEMM_N * GEMM_N * threads / t * 1e-9;
}

/* ---- one method at one length --------------------------------------------------------------- */

struct job {
    const struct method *method; /* NULL: dense only */
    int64_t n;
    int threads;
    struct result *per_thread;
};

/* q, k, v and the dense reference of one head; the reference is what "dense" times. */
static int bench_item(void *ctx, int64_t item, int worker, struct err *err)
{
    struct job *job = ctx;
    struct result *out = job->per_thread + item;
    struct sim_head h = {0};
    struct record r;
    struct method_ctx mctx = {0};
    struct carry carry = {0};
    void *params = NULL;
    struct mask full;
    struct mask_counts counts;
    const double *dense;
    int rc = 0;

    record_init(&r);
    TRY(golden_sample(job->n, PREC_F32, &h, err));
    mask_full(&full, job->n, job->n, 0, job->n, true);
    double t = clock_s();
    TRY(exact_out(h.in.exact, 0, job->n, &dense, err));
    out->dense_s = clock_s() - t;
    TRY(mask_count(&full, &counts, err));
    if (!job->method)
        goto out;
    TRY(mem_zalloc(&params, 1, job->method->params.size + 1, "parameters", err));
    TRY(opt_defaults(job->method->params.table, params, err));
    mctx.carry = &carry;
    struct sim_cell cell = {.method = job->method, .params = params, .ctx = &mctx, .in = &h.in};
    TRY(sim_run(&cell, &r, err));
    if (r.status != RECORD_OK) {
        out->failed = 1;
        snprintf(out->note, sizeof out->note, "%.250s", r.reason);
        goto out;
    }
    out->select_s = 1e-9 * (record_get(&r, "host_prepare_ns") + record_get(&r, "host_select_ns"));
    out->attend_s = 1e-9 * record_get(&r, "host_attend_ns");
    out->density_elem = record_get(&r, "density_elem");
    /* What this reference multiplies: the method's tiles, or, for masks of single entries, the 64 x
     * 64 tiles that hold one. */
    double exec = record_get(&r, "pairs_exec");
    out->share = exec > record_get(&r, "pairs_kept") ? exec / (double)counts.pairs_exec
                                                     : record_get(&r, "density_tile@64x64");
out:
    if (carry.free)
        carry.free(carry.data);
    if (params)
        opt_free(job->method->params.table, params);
    free(params);
    record_free(&r);
    sim_head_free(&h);
    return rc;
}

static void measure(const struct method *method, int64_t n, int threads, struct result *res)
{
    struct err err = {0};
    struct result per[64];
    struct job job = {method, n, threads, per};

    memset(per, 0, sizeof per);
    memset(res, 0, sizeof *res);
    res->gemm = gemm_rate(threads, &err);
    if (pool_run(threads, threads, bench_item, &job, &err)) {
        res->failed = 1;
        snprintf(res->note, sizeof res->note, "%.250s", err.msg);
    }
    double after = gemm_rate(threads, &err);
    res->gemm = (res->gemm + after) / 2;
    for (int i = 0; i < threads; i++) {
        res->dense_s += per[i].dense_s / threads;
        res->select_s += per[i].select_s / threads;
        res->attend_s += per[i].attend_s / threads;
        if (per[i].failed) {
            res->failed = 1;
            memcpy(res->note, per[i].note, sizeof res->note);
        }
    }
    res->share = per[0].share;
    res->density_elem = per[0].density_elem;
    res->rss = (double)mem_peak_rss();
}

/* In a child, so that the peak memory belongs to this line alone. */
static int measure_apart(const struct method *method, int64_t n, int threads, struct result *res)
{
    int fd[2], status;
    if (pipe(fd))
        return -1;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        measure(method, n, threads, res);
        ssize_t sent = write(fd[1], res, sizeof *res);
        _exit(sent == (ssize_t)sizeof *res ? 0 : 1);
    }
    close(fd[1]);
    ssize_t got = read(fd[0], res, sizeof *res);
    close(fd[0]);
    return pid > 0 && waitpid(pid, &status, 0) == pid && got == (ssize_t)sizeof *res ? 0 : -1;
}

static void print_line(const char *name, int64_t n, const struct result *r, int threads)
{
    double flop = 2.0 * (double)n * (double)n * 64; /* causal, d = dv = 64 */
    double dense = flop / r->dense_s * 1e-9 * threads;
    if (strcmp(name, "(none)") == 0) {
        printf("%6lld  %-18s %8.1f %8.1f %8.2f %9s %9s %9s %8s %8.0f\n", (long long)n, "dense",
               r->gemm, dense, dense / r->gemm, "", "", "", "", r->rss / 1e6);
        return;
    }
    double ratio = r->attend_s / r->dense_s;
    printf("%6lld  %-18s %8.1f %8.1f %8.3f %9.3f %9.3f %9.4f %8.2f %8.0f\n", (long long)n, name,
           r->gemm, dense * r->share / ratio, r->density_elem, r->select_s / r->dense_s, ratio,
           r->share, ratio / r->share, r->rss / 1e6);
}

int main(int argc, char **argv)
{
    int64_t lengths[16] = {4096, 16384, 32768}, n_lengths = 3, given = 0;
    int threads = cpu_count();
    const char *only = NULL;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            threads = atoi(argv[++i]);
        else if (strcmp(argv[i], "--method") == 0 && i + 1 < argc)
            only = argv[++i];
        else if (given < 16)
            lengths[given++] = atoll(argv[i]);
    }
    if (given)
        n_lengths = given;
    threads = threads < 1 ? 1 : threads > 64 ? 64 : threads;
    printf("%d threads, float, head dim 64, causal; times are per head with all threads busy\n"
           "dense: 'rate' is GFLOP/s of dense attention, 'density' its share of sgemm\n\n",
           threads);
    printf("%6s  %-18s %8s %8s %8s %9s %9s %9s %8s %8s\n", "N", "what", "sgemm", "rate", "density",
           "select/d", "attend/d", "tiles/d", "time/sh", "peak MB");
    for (int64_t i = 0; i < n_lengths; i++) {
        struct result r;
        if (measure_apart(NULL, lengths[i], threads, &r) == 0)
            print_line("(none)", lengths[i], &r, threads);
        for (int k = 0; sim_methods[k]; k++) {
            if (!(sim_methods[k]->flags & METHOD_CAUSAL) ||
                (only && strcmp(only, sim_methods[k]->name) != 0))
                continue;
            if (measure_apart(sim_methods[k], lengths[i], threads, &r) || r.failed)
                printf("%6lld  %-18s (%s)\n", (long long)lengths[i], sim_methods[k]->name,
                       r.failed ? r.note : "the process died");
            else
                print_line(sim_methods[k]->name, lengths[i], &r, threads);
            fflush(stdout);
        }
    }
    return 0;
}
