/*
 * checkcu_calls.c - every method on whole calls of real traces: what the records of its heads say
 * when all heads are on the GPU at once, against what they say when the heads come one by one.
 *
 * A call here is made of heads of several layers, so that it can have 32 of them, each with a mask
 * of its own, in the groups of the trace. A setting passes when for every head
 *   - status and reason are equal, and the counts of its mask within 1e-5 (units near a threshold
 *     that is made of sums over rows). Alone, the CPU counts the entries of the masks, work_*
 *     included; in the call the masks stay on the GPU, which counts them where it can,
 *   - recall is within 5e-6, relative errors within 2 % and 2e-3 (a row of tiles may be cut
 *     elsewhere, which moves roundings of the output), and where the kernel is the same, so are the
 * pairs that it multiplied,
 *   - outputs are within 4e-3 (relative L2) and log-sum-exps within 1e-4; of dense INT8 kernels
 *     within 2e-2 and 2e-4 (a piece of a row rounds relative to its own maximum); of a filter on
 *     P V, whose rows stay whole, they are equal,
 * and when the call's record is a skip if and only if a head was skipped, and its work_* are the
 * sums of those of its heads.
 */
#include "tests/gpu/checkcu.h"

#include "core/mem.h"
#include "core/method_run.h"
#include "core/pool.h"
#include "cuda/backend.h"
#include "sim/headload.h"
#include "sim/registry.h"
#include "sim/simulate.h"
#include "sim/staticmasks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 32                 /* heads of a call */
#define SECTION_BYTES (1 << 20) /* of a call of 8 heads: tiles with bits are in sections */

/* Settings with lists of every geometry, bits, gathered keys, filters, carried and static masks,
 * and masks that the CPU chooses. Several settings in one line: heads have them in turns. */
static const char *const settings[] = {
    "dense",
    "streaming:sink=4:window=512",
    "streaming:sink=64:window=10%:last=128",
    "spargeattn:pv=off:tau=0.9:theta=0.3",
    "spargeattn:tau=0.9:theta=0.3",
    "spargeattn:profile=paper:lambda=-4:tau=0.9:theta=0.3",
    "spargeattn:tau=0.9,0.5:theta=0.3,-0.1:pv=off,6:dense=0,1",
    "spargeattn:dense=1",
    "spargeattn:profile=paper:arith=sage2:lambda=-4:tau=0.5:theta=0.3",
    "spargeattn:profile=paper:lambda=-4,-12:tau=0.9,0.5:theta=0.3,0.5",
    "spargeattn:arch=sm90:tau=0.5,0.9:theta=0.3:pv=6,off:dense=0,1:map_dtype=f32,input",
    "spargeattn:arch=sm90:arith=sage2:tau=0.5:theta=0.3:pv=6,off:dense=1,0",
    "spargeattn:arith=sage1:tau=0.5:theta=0.3:dense=1,0",
    "spargeattn:arith=sage2:tau=0.5:theta=0.3:pv=6,off:dense=1,0",
    "spargeattn:arch=sm90:select=topk:topk=0.2,0.6:theta=-0.1,0.4:pv=off",
    "sampleattention:alpha_c=0.8:chunks=3",
    "sale:tau=0.02:local=256",
    "sale:tau=0.02,0.2,0.005:local=256",
    "sale:tau=0.02,0.2,0:arith=sage1",
    "fg-attn:refresh=2:M=32:compare=1",
    "fg-attn:refresh=1",
    "fg-attn:mode=pooled",
    "fg-attn:mode=pooled:permute=hilbert",
    "flexprefill:min_budget=256",
    "xattention",
    "minference:v=200:s=400",
    "minference:sparsity=0.5",
    "skip-softmax:lambda=0.02",
    "moba:chunk=128:topk=5:dense_last=0",
    "nsa:top=9",
    "subblock:skip_first_steps=0:min_seq=0",
    "sol:dense_layers=0:dense_steps=0:compensate=0",
    "minference:pattern=ashape:init=64:local=512",
    "oracle:kind=block:unit=64x64:alpha=0.9",
    "oracle:kind=topk:k=10%",
    "longformer:window=128:global=4",
    "bigbird",
    "sparse-transformer:pattern=fixed",
    "radial:dense_layers=0:dense_steps=0",
    "svg1:dense_layers=0:dense_steps=0",
    "chipmunk:dense_layers=0",
    "longnet:segments=300+1024:ratios=1+3",
    "sageattention",
    "sageattention:version=1",
    "hyperattention:min_len=256:block=64:samples=64",
};

enum { SETTINGS = sizeof settings / sizeof *settings };

/* All rows of a head, as dumped. */
struct output {
    int64_t dv;
    double *out, *lse; /* owned */
};

static int keep(void *ctx, const struct mask *m, const double *out, const double *lse,
                struct err *err)
{
    struct output *o = ctx;
    int64_t n = m->row1 - m->row0;
    (void)err;
    memcpy(o->out + m->row0 * o->dv, out, (size_t)(n * o->dv) * sizeof *out);
    memcpy(o->lse + m->row0, lse, (size_t)n * sizeof *lse);
    return 0;
}

struct head {
    struct sim_head h;
    struct carry alone[2], called[2]; /* of the branch, shared */
    struct method_ctx ctx;
    struct output one, all; /* by itself, in the call */
    struct record a, b;
    struct err err;
};

struct pass {
    struct accel_session *session;
    struct static_masks *statics; /* of calls; heads by themselves make their own */
    const struct trace *trace;
    const struct method_run *run; /* [mixed] of the heads, in turns */
    int64_t mixed;
    int step, n, group, jobs;
    struct head heads[MOST];
};

/* ---- heads ---------------------------------------------------------------------------------- */

/* The heads of a step, layer by layer, the first p->n of them. */
static int load(struct pass *p, struct err *err)
{
    const struct head_load how = {.precision = PREC_F64};
    const struct trace_meta *m = trace_meta(p->trace);
    int size = m->heads / m->kv_heads, at = 0;

    for (int64_t c = 0; c < trace_calls(p->trace) && at < p->n; c++) {
        const struct trace_call *call = trace_call(p->trace, c);
        if (call->step != p->step || strcmp(call->branch, trace_call(p->trace, 0)->branch) != 0)
            continue;
        for (int h = 0; h < m->heads && at < p->n; h++, at++) {
            struct sim_head *owner = h % size && at ? &p->heads[at - h % size].h : NULL;
            PASS_ON(head_load_sharing(p->trace, c, h, &how, owner, &p->heads[at].h, err));
        }
    }
    p->n = at;
    p->group = at % size ? 1 : size;
    for (int i = 0; i < at; i++) {
        const struct attn_in *x = &p->heads[i].h.in.x;
        for (int k = 0; k < 2; k++) {
            struct output *o = k ? &p->heads[i].all : &p->heads[i].one;
            o->dv = x->dv;
            PASS_ON(mem_alloc(&o->out, x->nq * x->dv, sizeof *o->out, "outputs", err));
            PASS_ON(mem_alloc(&o->lse, x->nq, sizeof *o->lse, "outputs", err));
        }
    }
    return 0;
}

static void unload(struct pass *p)
{
    for (int i = MOST - 1; i >= 0; i--) {
        struct head *h = p->heads + i;
        sim_head_free(&h->h);
        free(h->one.out);
        free(h->one.lse);
        free(h->all.out);
        free(h->all.lse);
        h->one = h->all = (struct output){0};
    }
}

static void forget(struct pass *p)
{
    for (int i = 0; i < MOST; i++)
        for (int k = 0; k < 2; k++) {
            struct carry *c[] = {p->heads[i].alone + k, p->heads[i].called + k};
            for (int j = 0; j < 2; j++) {
                if (c[j]->data)
                    c[j]->free(c[j]->data);
                *c[j] = (struct carry){0};
            }
        }
}

/* ---- both ways ------------------------------------------------------------------------------ */

/* together: masks may stay on the GPU. */
static struct sim_cell cell_of(struct pass *p, struct head *h, const struct sim_device *device,
                               bool together)
{
    struct carry *carry = together ? h->called : h->alone;

    h->ctx = (struct method_ctx){.seed = 1, .carry = carry, .shared = carry + 1};
    return (struct sim_cell){.method = p->run->method,
                             .params = p->run[(h - p->heads) % p->mixed].params,
                             .ctx = &h->ctx,
                             .in = &h->h.in,
                             .device = device,
                             .sink = keep,
                             .sink_ctx = together ? &h->all : &h->one,
                             .sink_rows = together};
}

static int run_alone(void *pass, int64_t i, int worker, struct err *err)
{
    struct pass *p = pass;
    struct head *h = p->heads + i;
    const struct sim_device device = {.accel = &cuda_accel, .session = p->session, .metrics = true};
    struct sim_cell cell = cell_of(p, h, &device, false);
    (void)worker;
    (void)err;
    h->err = (struct err){0};
    if (sim_run(&cell, &h->a, &h->err))
        h->a.status = RECORD_ERROR;
    return 0;
}

static int run_together(struct pass *p, struct record *of_call, struct err *err)
{
    const struct sim_device device = {.accel = &cuda_accel,
                                      .session = p->session,
                                      .metrics = true,
                                      .calls = true,
                                      .statics = p->statics,
                                      .section_bytes = p->n == 8 ? SECTION_BYTES : 0};
    struct sim_cell cells[MOST];
    struct call_outcome out[MOST];
    for (int i = 0; i < p->n; i++) {
        struct head *h = p->heads + i;
        cells[i] = cell_of(p, h, &device, true);
        out[i] = (struct call_outcome){.record = &h->b};
    }
    struct sim_call c = {.cells = cells,
                         .heads = out,
                         .n = p->n,
                         .group = p->group,
                         .data = device_numbers(p->n),
                         .jobs = p->jobs,
                         .record = of_call};
    PASS_ON(sim_run_call(&c, err));
    for (int i = 0; i < p->n; i++)
        if (out[i].err.code)
            return err_set(err, ERR_RUN, "head %d: %s", i, out[i].err.msg);
    return 0;
}

/* ---- comparison ----------------------------------------------------------------------------- */

static double relative(const double *x, const double *ref, int64_t n)
{
    double delta = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        delta += (x[i] - ref[i]) * (x[i] - ref[i]);
        sum += ref[i] * ref[i];
    }
    double rel = sum > 0 ? sqrt(delta / sum) : delta > 0 ? INFINITY : 0;
    return isnan(rel) ? INFINITY : rel;
}

static bool is_one_of(const char *name, const char *const *list)
{
    for (; *list; list++)
        if (strncmp(name, *list, strlen(*list)) == 0)
            return true;
    return false;
}

/* The first metric in which the records are too far apart; NULL: none. */
static const char *records_differ(const struct record *a, const struct record *b, double *by)
{
    static const char *const clocks[] = {"host_", "time_", "samples", "copies", "speed", NULL};
    static const char *const scaled[] = {"err_l1_tok", "err_max", "err_rmse", "err_cos_row", NULL};
    static const char *const loose[] = {"err_", NULL}, *const close[] = {"cra_", "mass_", NULL};
    static const char *const kernels[] = {"density_kernel", NULL};
    /* Sums of as many ranges of keys as fill the GPU: a share may be reached a token later. A unit
     * more may be a stage more of the longest row. */
    static const char *const counts[] = {"tokens_", "work_", NULL};
    bool same_kernel = strcmp(buf_str(&a->notes), buf_str(&b->notes)) == 0;
    for (int64_t i = 0; i < record_metrics(a); i++) {
        const char *name = a->names->name[i];
        double x = a->values[i], y = record_get(b, name);
        if (is_one_of(name, clocks) || is_one_of(name, scaled) ||
            (!same_kernel && is_one_of(name, kernels)))
            continue;
        double most = is_one_of(name, loose)    ? 2e-3 + 2e-2 * fabs(x)
                      : is_one_of(name, close)  ? 5e-6
                      : is_one_of(name, counts) ? 1 + 1e-5 * fabs(x)
                                                : 1e-5 * fabs(x);
        *by = isnan(x) && isnan(y) ? 0 : x == y ? 0 : fabs(x - y);
        if (!(*by <= most))
            return name;
    }
    return NULL;
}

static bool compare_head(const struct head *h, char what[240])
{
    const struct attn_in *x = &h->h.in.x;
    double by = 0, lse = 0;
    if (h->a.status != h->b.status || strcmp(h->a.reason, h->b.reason) != 0) {
        snprintf(what, 240, "alone %d '%.90s', in the call %d '%.90s'", (int)h->a.status,
                 h->err.code ? h->err.msg : h->a.reason, (int)h->b.status, h->b.reason);
        return false;
    }
    if (h->a.status != RECORD_OK)
        return true;
    const char *name = records_differ(&h->a, &h->b, &by);
    if (name)
        snprintf(what, 240, "%s: %.9g and %.9g", name, record_get(&h->a, name),
                 record_get(&h->b, name));
    for (int64_t i = 0; i < x->nq; i++)
        if (!(isinf(h->one.lse[i]) && isinf(h->all.lse[i])))
            lse = fmax(lse, isnan(h->all.lse[i]) ? INFINITY : fabs(h->one.lse[i] - h->all.lse[i]));
    double out = relative(h->all.out, h->one.out, x->nq * x->dv);
    bool equal = out == 0 && lse == 0, filter = strstr(buf_str(&h->b.notes), ";kernel=filter-");
    bool bytes = strstr(buf_str(&h->b.notes), ";kernel=int8-");
    bool near = out <= (bytes ? 2e-2 : 4e-3) && lse <= (bytes ? 2e-4 : 1e-4);
    if (!name && !(filter ? equal : near))
        snprintf(what, 240, "outputs %.2e, log-sum-exps %.2e apart", out, lse);
    return !what[0];
}

/* The first count of work in which the call is not the sum of its heads, where all of them have it;
 * NULL: none. */
static const char *unlike_sum(const struct pass *p, const struct record *of_call, double *sum)
{
    static const char *const sums[] = {"work_rows", "work_stages", "work_masked", "work_half",
                                       NULL};
    for (int64_t i = 0; i < record_metrics(of_call); i++) {
        const char *name = of_call->names->name[i];
        *sum = 0;
        for (int k = 0; k < p->n; k++)
            *sum += record_get(&p->heads[k].b, name);
        if (is_one_of(name, sums) && !isnan(*sum) && *sum != of_call->values[i])
            return name;
    }
    return NULL;
}

/* Heads whose kernel no head before them has. */
static int kernels_of(const struct pass *p)
{
    int n = 0;
    for (int i = 0; i < p->n; i++) {
        const char *own = strstr(buf_str(&p->heads[i].b.notes), ";kernel=");
        size_t len = own ? 1 + strcspn(own + 1, ";") : 0;
        bool seen = false;
        for (int k = 0; k < i && own; k++) {
            const char *other = strstr(buf_str(&p->heads[k].b.notes), ";kernel=");
            seen |= other && strncmp(own, other, len + 1) == 0;
        }
        n += !seen;
    }
    return n;
}

static bool call_is_ok(const struct pass *p, const struct record *of_call, char what[240])
{
    int skipped = 0;
    double sum = 0;
    for (int i = 0; i < p->n; i++)
        skipped += p->heads[i].b.status == RECORD_SKIP;
    const char *unlike = skipped ? NULL : unlike_sum(p, of_call, &sum);
    if ((of_call->status == RECORD_SKIP) != (skipped > 0))
        snprintf(what, 240, "%d heads skipped, the call has status %d", skipped,
                 (int)of_call->status);
    else if (!skipped && record_get(of_call, "call_heads") != p->n)
        snprintf(what, 240, "%d heads, the call has %g", p->n, record_get(of_call, "call_heads"));
    else if (!skipped && p->mixed > 1 && !strstr(buf_str(&of_call->notes), "sections=") &&
             record_get(of_call, "call_launches") != kernels_of(p))
        snprintf(what, 240, "settings of heads attend in %g launches, with %d kernels",
                 record_get(of_call, "call_launches"), kernels_of(p));
    else if (unlike)
        snprintf(what, 240, "%s: %.9g in the heads, the call has %.9g", unlike, sum,
                 record_get(of_call, unlike));
    return !what[0];
}

static void check_step(struct pass *p, char what[240])
{
    OWN(record_free) struct record of_call;
    struct err err = {0};
    record_init(&of_call);
    for (int i = 0; i < p->n; i++) {
        record_init(&p->heads[i].a);
        record_init(&p->heads[i].b);
    }
    if (pool_run(p->jobs, p->n, run_alone, p, &err) || run_together(p, &of_call, &err))
        snprintf(what, 240, "%.230s", err.msg);
    for (int i = 0; i < p->n && !what[0]; i++)
        if (!compare_head(p->heads + i, what))
            snprintf(what + strlen(what), 240 - strlen(what), " (head %d)", i);
    if (!what[0])
        call_is_ok(p, &of_call, what);
    for (int i = 0; i < p->n; i++) {
        record_free(&p->heads[i].a);
        record_free(&p->heads[i].b);
    }
}

/* ---- all ------------------------------------------------------------------------------------ */

/* Steps of the trace, ascending. */
static int steps_of(const struct trace *t, int steps[8])
{
    int n = 0;
    for (int64_t c = 0; c < trace_calls(t) && n < 8; c++)
        if (n == 0 || steps[n - 1] < trace_call(t, c)->step)
            steps[n++] = trace_call(t, c)->step;
    return n;
}

/* Its directions are drawn for each call of a model, so that heads of several layers have several.
 */
static bool of_one_layer(const struct method_run *run)
{
    return strcmp(run->method->name, "hyperattention") == 0;
}

/* A line of `settings`. */
struct line {
    struct method_run *runs; /* [n], owned */
    int64_t n;
};

/* All settings on calls of `heads` heads, the steps in their order. */
static void check_size(struct pass *p, const struct line lines[SETTINGS], int heads)
{
    int steps[8], n_steps = steps_of(p->trace, steps);
    int64_t failed = cu_failures, before = cu_checks;
    for (size_t k = 0; k < SETTINGS; k++) {
        char what[240] = "";
        if (of_one_layer(lines[k].runs) && heads > trace_meta(p->trace)->heads)
            continue;
        p->run = lines[k].runs;
        p->mixed = lines[k].n;
        for (int s = 0; s < n_steps && s < 2 && !what[0]; s++) {
            struct err err = {0};
            p->step = steps[s];
            p->n = heads;
            if (load(p, &err))
                snprintf(what, sizeof what, "%.230s", err.msg);
            else
                check_step(p, what);
            unload(p);
        }
        forget(p);
        ++cu_checks;
        cu_failures += what[0] != 0;
        if (what[0])
            printf("FAIL %s in a call of %d heads: %s\n", settings[k], heads, what);
    }
    printf("  %-5s calls of %d heads in groups of %d: %lld settings\n",
           cu_failures > failed ? "FAIL" : "ok", p->n, p->group, (long long)(cu_checks - before));
}

static int check_trace(struct pass *p, const char *path, const struct line lines[SETTINGS],
                       struct err *err)
{
    static const int sizes[] = {1, 3, 8, 32};
    OWN(trace_close) struct trace *t = NULL;
    PASS_ON(trace_open(path, &t, err));
    p->trace = t;
    printf("%s: calls\n", path);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        check_size(p, lines, sizes[i]);
    return 0;
}

void check_calls(int n, char *const *paths)
{
    const struct accel_options o = {.copies = 1};
    struct line lines[SETTINGS] = {{0}};
    struct pass *p = calloc(1, sizeof *p);
    struct err err = {0};
    int rc = 0;

    if (!p)
        FAIL(&err, ERR_NOMEM, "out of memory");
    p->jobs = cpu_count();
    for (size_t i = 0; i < SETTINGS; i++)
        TRY(method_runs_parse(sim_methods, settings[i], &lines[i].runs, &lines[i].n, &err));
    TRY(static_masks_new(1 << 26, cpu_count(), &p->statics, &err));
    TRY(cuda_accel.open(&o, &p->session, &err));
    for (int i = 0; i < n; i++)
        TRY(check_trace(p, paths[i], lines, &err));
out:
    if (rc) {
        printf("FAIL calls: %s\n", err.msg);
        ++cu_checks;
        ++cu_failures;
    }
    if (p && p->session)
        cuda_accel.close(&p->session);
    if (p)
        static_masks_free(&p->statics);
    for (size_t i = 0; i < SETTINGS; i++)
        method_runs_free(lines[i].runs, lines[i].n);
    free(p);
}
