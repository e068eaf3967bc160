/*
 * benchcu_select.c - lines of benchcu for the choice of masks.
 */
#include "core/method_run.h"
#include "core/clock.h"
#include "core/mem.h"
#include "cuda/select/select.h"
#include "sim/blocks/exact.h"
#include "sim/registry.h"
#include "tests/bench/benchcu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef int select_launch(struct gpu *g, const struct select_job *job, struct err *err);

/* What is timed of a launch (select.h). */
static int choose(struct gpu *g, const struct select_job *job, struct err *err)
{
    return select_job_choose(g, job, err);
}

/* Samples of a selection between samples of dense attention on the same q and k. */
static int sample_select(struct bench *b, const struct attn_job *dense,
                         const struct select_job *job, select_launch *launch, struct series *times,
                         struct err *err)
{
    int64_t ids[2 * MAX_SAMPLES] = {0};

    timer_reset(b->timer);
    for (int i = 0; i < b->samples; i++) {
        PASS_ON(bench_timed(b, &(struct work){bench_launch_attn, dense, 1}, &ids[2 * i], err));
        PASS_ON(timer_begin(b->timer, &b->gpu, &ids[2 * i + 1], err));
        PASS_ON(launch(&b->gpu, job, err));
        PASS_ON(timer_end(b->timer, &b->gpu, err));
    }
    PASS_ON(timer_collect(b->timer, &b->gpu, err));
    for (int i = 0; i < 2 * b->samples; i++)
        times[i % 2].ns[i / 2] = timer_ns(b->timer, ids[i]);
    times[0].n = times[1].n = b->samples;
    times[0].launches = times[1].launches = 1;
    return 0;
}

/* A tenth of a second, and a launch at least: those of long sequences take longer. */
static int warm_up(struct bench *b, const struct attn_job *dense, struct err *err)
{
    double end = clock_ns() + 1e8 * b->warm_up;
    do {
        PASS_ON(bench_launch_attn(&b->gpu, dense, err));
        PASS_ON(gpu_sync(&b->gpu, err));
    } while (clock_ns() < end);
    return 0;
}

/* Kept units, of a map that is fetched piece by piece: those of single keys have gigabytes. */
static int kept_units(struct gpu *g, const struct select_lists *l, int64_t *kept, struct err *err)
{
    enum { PIECE = 1 << 24 };
    int64_t words = l->rows * l->words;
    OWN(free_at) uint32_t *map = NULL;

    *kept = 0;
    PASS_ON(mem_alloc(&map, PIECE, sizeof *map, "a piece of a map", err));
    for (int64_t at = 0; at < words; at += PIECE) {
        int64_t n = words - at < PIECE ? words - at : PIECE;
        PASS_ON(gpu_get(g, map, l->map + at, n * (int64_t)sizeof *map, err));
        for (int64_t i = 0; i < n; i++)
            *kept += __builtin_popcount(map[i]);
    }
    return 0;
}

static int select_line(struct bench *b, const char *text, const char *phase,
                       const struct attn_job *dense, const struct select_job *job,
                       select_launch *launch, struct err *err)
{
    struct series times[2];
    char name[176];
    int64_t kept = 0;

    snprintf(name, sizeof name, "%s: %s", text, phase);
    PASS_ON(warm_up(b, dense, err));
    PASS_ON(launch(&b->gpu, job, err));
    if (b->kernels)
        timer_by_name(b->timer);
    PASS_ON(sample_select(b, dense, job, launch, times, err));
    PASS_ON(kept_units(&b->gpu, &job->lists, &kept, err));
    bench_raw(b, "dense", &times[0], cu_flop_dense(&dense->problem));
    bench_raw(b, name, &times[1], 0);
    struct quartiles d = quartiles_of(times[0].ns, b->samples);
    struct quartiles k = quartiles_of(times[1].ns, b->samples);
    printf("%-70s %9.1f us %5.1f%% dense %9.1f us %6.4f of it, %4.1f%% of units kept\n", name,
           k.median * 1e-3, 100 * (k.q3 - k.q1) / k.median, d.median * 1e-3, k.median / d.median,
           100.0 * (double)kept / (double)(job->lists.rows * job->lists.units));
    if (b->kernels)
        timer_print_names(stdout);
    fflush(stdout);
    b->lines++;
    return 0;
}

/* A method that was asked for its rule, on a head of zeros: nobody reads it but to hash it. */
struct asked {
    const struct method *method;
    struct exact exact;
    struct carry carry;
    struct method_ctx ctx;
    struct head_in in;
    void *state;
    float *zeros;
    struct rule rule;
    struct accel_choice choice;
};

/* exact_dense_fn: of equal scores, without the seconds that dense rows take on the CPU. */
static int equal_rows(void *self, int64_t row0, int64_t row1, double *out, double *lse,
                      struct err *err)
{
    const struct attn_in *x = self;
    (void)err;
    for (int64_t i = row0; i < row1; i++)
        lse[i] = log((double)x->nk);
    if (out)
        memset(out + row0 * x->dv, 0, (size_t)((row1 - row0) * x->dv) * sizeof *out);
    return 0;
}

/* Step 1 of a video whose frames have 32 rows, for methods that are for video alone. */
static int ask(const struct method_run *run, struct select_problem *p, struct asked *a,
               struct err *err)
{
    const struct method *me = run->method;
    bool video = !(me->flags & METHOD_CAUSAL);
    char why[160] = "";
    int rc = 0;

    a->method = me;
    a->ctx = (struct method_ctx){.seed = 1, .carry = video ? &a->carry : NULL};
    TRY(mem_zalloc(&a->zeros, (p->nq > p->nk ? p->nq : p->nk) * p->d, sizeof *a->zeros, "a head",
                   err));
    a->in = cu_head(p->nq, p->nk, p->d, p->scale, p->causal);
    a->in.x.q = a->in.x.k = a->in.x.v = a->zeros;
    a->in.step = video;
    a->in.n_steps = video ? 10 : 0;
    a->in.exact = &a->exact;
    if (video)
        a->in.geom = (struct geometry){.t = 16, .h = 32, .w = p->nq / 512};
    exact_init(&a->exact, &a->in.x, PREC_F64);
    if (video)
        exact_dense_from(&a->exact, equal_rows, &a->in.x);
    TRY(method_prepare(me, &a->ctx, run->params, &a->in, &a->state, err));
    if (!me->device.rule(a->state, &a->rule, why))
        FAIL(err, ERR_RUN, "%s: %s", me->name, why);
    a->choice.rule = &a->rule.of;
    a->choice.given = a->rule.data;
    p->choices = &a->choice;
    p->n_choices = 1;
out:
    return rc == METHOD_SKIP ? err_set(err, ERR_RUN, "%s", a->ctx.skip) : rc;
}

static void asked_free(struct asked *a)
{
    if (a->method)
        method_release(a->method, a->state);
    if (a->carry.free)
        a->carry.free(a->carry.data);
    exact_free(&a->exact);
    free(a->zeros);
}

/* Heads of a selection: query heads, key heads, head dimension. */
struct heads {
    int q, kv, d;
};

static int bench_select(struct bench *b, const char *setting, int64_t tokens, bool causal,
                        struct heads h, struct err *err)
{
    struct cu_case c = bench_case(h.d, tokens, h.q, h.kv, causal, ATTN_DENSE, NULL);
    struct cu_run r = {0};
    struct method_run *runs = NULL;
    struct select_job job = {0};
    struct asked asked = {0};
    int64_t n = 0;
    char text[160];
    int rc = 0;

    snprintf(text, sizeof text, "hd%d %lldK %s %d/%d %s", h.d, (long long)(tokens / 1024),
             causal ? "causal" : "full", h.q, h.kv, setting);
    if (!bench_is_wanted(b, text, ""))
        return 0;
    TRY(method_runs_parse(sim_methods, setting, &runs, &n, err));
    const struct select_method *me = select_find(runs->method->name);
    TRY(cu_run_init(&b->gpu, &c, &r, err));
    struct select_problem p = {.heads = h.q,
                               .kv_heads = h.kv,
                               .d = h.d,
                               .nq = tokens,
                               .nk = tokens,
                               .scale = c.problem.scale,
                               .causal = causal,
                               .q = r.job.x.q,
                               .k = r.job.x.k,
                               .v = r.job.x.v};
    TRY(ask(runs, &p, &asked, err));
    TRY(select_job_init(&b->gpu, me, &p, &job, err));
    TRY(me->launch(&b->gpu, &job, err)); /* for what is kept */
    TRY(select_line(b, text, "select", &r.job, &job, choose, err));
out:
    select_job_free(&job);
    asked_free(&asked);
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
        {"sampleattention:profile=v2", false, true, 8},
        {"flexprefill", true, true, 8},
        {"flexprefill:profile=frontier", true, true, 8},
        {"minference", true, true, 8},
        {"minference:v=100:s=800", true, true, 8},
        {"minference:pattern=block", true, true, 8},
        {"sale", false, true, 8},
        {"sale:tau=0.9", false, true, 8}, /* nothing passes, so that every pair is tested */
        {"fg-attn:mode=pooled", true, true, 8},
        {"fg-attn", true, false, 32},
        {"skip-softmax", true, true, 8},
        {"moba:dense_last=0", false, true, 8},
        {"nsa:share=head", false, true, 8},
        {"vsa", true, false, 32},
        {"draft", true, false, 32},
        {"subblock:skip_first_steps=0", true, false, 32},
        {"sol:dense_layers=0:dense_steps=0", true, false, 32},
        {"hash-sparse", false, true, 8},
        {"qk-sparse", false, true, 8},
        {"hyperattention", true, true, 8},
        {"oracle", true, true, 8},
        {"oracle:kind=topk:k=10%", false, true, 8},
        {"oracle:kind=block:unit=64x64", false, true, 8},
        {"svg1:dense_layers=0:dense_steps=0", true, false, 32},
        {"chipmunk:dense_layers=0:norm=exact:local_voxels=0", true, false, 32},
        {"svg2:dense_layers=0:dense_steps=0:cold=1", true, false, 32},
    };
    static const struct { /* calls of the models in datasets/models */
        const char *setting;
        int64_t tokens;
        bool causal;
        struct heads heads;
    } few[] = {
        {"spargeattn:theta=-0.1:tau=0.9", 32768, true, {8, 2, 64}},
        {"spargeattn:theta=-0.1:tau=0.9", 24576, false, {2, 2, 128}},
        {"sale", 8192, true, {8, 4, 64}},
        {"sale", 32768, true, {8, 4, 64}},
    };
    static const int64_t tokens[] = {8192, 32768, 131072};
    const size_t lengths = sizeof tokens / sizeof *tokens;
    for (size_t i = 0; i < lengths * sizeof cases / sizeof *cases; i++) {
        int64_t n = tokens[i % lengths], at = (int64_t)(i / lengths);
        if (n > 32768 && strncmp(cases[at].setting, "oracle", 6) == 0)
            continue; /* it would take minutes */
        const struct heads h = {32, cases[at].kv, 128};
        if (cases[at].full)
            PASS_ON(bench_select(b, cases[at].setting, n, false, h, err));
        if (cases[at].causal)
            PASS_ON(bench_select(b, cases[at].setting, n, true, h, err));
    }
    for (size_t i = 0; i < sizeof few / sizeof *few; i++)
        PASS_ON(bench_select(b, few[i].setting, few[i].tokens, few[i].causal, few[i].heads, err));
    return 0;
}
