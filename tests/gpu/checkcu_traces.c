/*
 * checkcu_traces.c - every method on heads of real traces: the replay with the GPU back end against
 * the replay on the CPU.
 *
 * A setting passes on a trace when over all heads
 *   - the units that only one side's mask keeps are below 1 in 10^4 of those with an allowed pair,
 *   - outputs of sampled rows are within 5e-3 (relative L2) of exact softmax in double over the
 *     same mask, their LSE within 1e-3; of methods that skip products, have other arithmetic or
 * move tokens: of the CPU's outputs and LSE, on heads where no unit differs, and the share of
 * skipped products within 2e-3 of the CPU's,
 *   - recall is within 1e-4 and the relative L1 error within 5e-3 of the CPU's, where no unit
 *     differs,
 * and it fails when the CPU runs it and the GPU does not.
 */
#include "tests/gpu/checkcu.h"

#include "core/mem.h"
#include "core/method_run.h"
#include "core/pool.h"
#include "cuda/backend.h"
#include "sim/headload.h"
#include "sim/registry.h"
#include "sim/simulate.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_HEADS 8 /* of a trace */
#define MAX_JOBS 16 /* threads: the CPU side is most of the time */
#define MAX_CHUNKS 64
#define PIECE 64 /* rows compared at the beginning and at the end of a chunk */

/* Every method, with budgets that leave gaps at a few thousand tokens, and whether its masks come
 * from the GPU; those of the host are static, or nobody's: all pairs. */
enum chooser { HOST, GPU };
static const struct {
    const char *text;
    enum chooser chooser;
} settings[] = {
    {"dense:c=0.25+1", HOST},
    {"streaming:sink=4:window=512", HOST},
    {"streaming:sink=64:window=10%:last=128", HOST},
    {"streaming:dilate=dilated1", HOST},
    {"spargeattn:pv=off:tau=0.9:theta=0.3", GPU},
    {"spargeattn:pv=off:arch=sm90:tau=0.8:theta=-1", GPU},
    {"spargeattn:tau=0.9:theta=0.3", GPU},
    {"spargeattn:pv=6:arch=sm90:tau=0.8:theta=-1", GPU},
    {"spargeattn:profile=paper:lambda=-4:tau=0.9:theta=0.3", GPU},
    {"sampleattention", GPU},
    {"sampleattention:alpha_c=0.8:chunks=3", GPU},
    {"sampleattention:profile=v2", GPU},
    {"sale", GPU},
    {"sale:tau=0.02:local=256", GPU},
    {"sale:tau=0.02:arith=sage1", GPU},
    {"fg-attn", GPU},
    {"fg-attn:refresh=1", GPU},
    {"fg-attn:refresh=2:M=32:compare=1", GPU},
    {"fg-attn:mode=pooled", GPU},
    {"fg-attn:mode=pooled:M=64:width=16", GPU},
    {"oracle:alpha=0.9", GPU},
    {"oracle:kind=topk:k=10%", GPU},
    {"oracle:kind=block:unit=64x64:alpha=0.9", GPU},
    {"oracle:kind=block:unit=128x1:alpha=0.9", GPU},
    {"oracle:kind=block:unit=64x64:scope=head:alpha=0.9", GPU},
    {"flexprefill:min_budget=256", GPU},
    {"flexprefill:gamma=0.8:tau=0.4:min_budget=256", GPU},
    {"flexprefill:profile=frontier:min_budget=256", GPU},
    {"xattention", GPU},
    {"xattention:stride=8:tau=0.7", GPU},
    {"minference:v=200:s=400", GPU},
    {"minference:v=200:s=400:mask=requested", GPU},
    {"minference:sparsity=0.5", GPU},
    {"minference:pattern=ashape:init=64:local=512", HOST},
    {"minference:pattern=trishape:init=64:local=512", HOST},
    {"minference:pattern=block:top=8", GPU},
    {"skip-softmax:lambda=0.02", GPU},
    {"moba:chunk=128:topk=5:dense_last=0", GPU},
    {"nsa:share=head:top=9", GPU},
    {"sla:topk=0.3", GPU},
    {"subblock:skip_first_steps=0:min_seq=0", GPU},
    {"sol:dense_layers=0:dense_steps=0:compensate=0", GPU},
    {"longformer:window=128:global=4", HOST},
    {"longformer:window=64:dilation=3", HOST},
    {"bigbird", HOST},
    {"sparse-transformer", HOST},
    {"sparse-transformer:pattern=fixed", HOST},
    {"radial:dense_layers=0:dense_steps=0", HOST},
    {"radial:profile=paper:dense_layers=0:dense_steps=0", HOST},
    {"svg1:dense_layers=0:dense_steps=0", GPU},
    {"svg2:dense_layers=0:dense_steps=0:qc=32:kc=64:cold=1", GPU},
    {"chipmunk:dense_layers=0:norm=exact:local_voxels=0", GPU},
    {"chipmunk:dense_layers=0:norm=exact:delta=0:local_voxels=0", GPU},
    {"longnet", HOST},
    {"longnet:segments=300+1024:ratios=1+3", HOST},
    {"longnet:segments=256+2048:ratios=2+4:official_pad=1", HOST},
    {"hyperattention:min_len=256:block=64:samples=64", GPU},
    {"hyperattention:min_len=500:block=100:samples=32:exclude=0:official_pad=1:projs=10", GPU},
    {"sageattention", HOST},
    {"sageattention:version=1", HOST},
    {"sageattention:version=2pp", HOST},
    {"sageattention:arch=sm89:qk=int4:smooth_v=1", HOST},
};

/* What one setting showed on one trace. */
struct tally {
    int64_t heads, ran;   /* calls of heads; those that the GPU ran */
    int64_t gpu_selected; /* whose mask it chose */
    int64_t units, differ;
    double delta2, ref2, lse; /* of the sampled rows */
    double recall, l1, pv;    /* largest differences between the two records */
    char reason[160];         /* why the GPU did not run it */
    char error[200];
};

struct pass {
    struct accel_session *session;
    const struct trace *trace;
    struct method_run *runs;
    int64_t n_runs;
    int layer[MAX_HEADS], head[MAX_HEADS];
    struct tally *tallies;
    pthread_mutex_t lock;
};

/* ---- one method on one head ----------------------------------------------------------------- */

struct error {
    double delta2, ref2, lse;
};

struct sample {
    const struct head_in *in;
    bool moved; /* rows lie in the method's own token order, in which nobody has exact softmax */
    int64_t units;
    double *out, *lse;             /* all rows of the CPU's run */
    struct mask masks[MAX_CHUNKS]; /* its chunks, as long as it runs; owned */
    int n_masks, next;             /* next: of the GPU's run */
    int64_t unlike;                /* units that only one of the two masks has */
    struct error exact, cpu;       /* against softmax over the mask and against the CPU's run */
};

/* Rows [r0, r1) of a mask; r0 at a group. Nothing is copied. */
static struct mask rows_of(const struct mask *m, int64_t r0, int64_t r1)
{
    struct mask part = *m;
    part.row0 = r0;
    part.row1 = r1;
    if (m->form == MASK_LISTS) {
        part.ptr = m->ptr + (r0 - m->row0) / m->bq;
        part.ngroups = (r1 - r0 + m->bq - 1) / m->bq;
    }
    return part;
}

static void add_error(struct error *e, const double *out, const double *lse, const double *ref,
                      const double *ref_lse, int64_t n, int64_t dv)
{
    for (int64_t i = 0; i < n * dv; i++) {
        double d = out[i] - ref[i];
        e->delta2 += d * d;
        e->ref2 += ref[i] * ref[i];
    }
    for (int64_t i = 0; i < n; i++) {
        bool empty = isinf(ref_lse[i]), same = empty == (bool)isinf(lse[i]);
        double d = !same ? INFINITY : empty ? 0 : fabs(lse[i] - ref_lse[i]);
        e->lse = fmax(e->lse, isnan(d) ? INFINITY : d);
    }
}

static int compare_rows(struct sample *s, const struct mask *m, int64_t r0, int64_t r1,
                        const double *out, const double *lse, struct err *err)
{
    struct mask part = rows_of(m, r0, r1);
    int64_t n = r1 - r0, dv = s->in->x.dv, from = r0 - m->row0;
    OWN(free_at) double *ref = NULL, *ref_lse = NULL;

    PASS_ON(mem_alloc(&ref, n * dv, sizeof *ref, "reference", err));
    PASS_ON(mem_alloc(&ref_lse, n, sizeof *ref_lse, "reference", err));
    PASS_ON(exact_attend(s->in->exact, &part, ref, ref_lse, err));
    add_error(&s->exact, out + from * dv, lse + from, ref, ref_lse, n, dv);
    add_error(&s->cpu, out + from * dv, lse + from, s->out + r0 * dv, s->lse + r0, n, dv);
    return 0;
}

/* sim_sink_fn: keeps the CPU's outputs and lists. */
static int keep(void *ctx, const struct mask *m, const double *out, const double *lse,
                struct err *err)
{
    struct sample *s = ctx;
    int64_t n = m->row1 - m->row0, dv = s->in->x.dv;
    if (m->form == MASK_LISTS && s->n_masks < MAX_CHUNKS) {
        PASS_ON(mask_lists_rows(m, m->row0, m->row1, s->masks + s->n_masks, err));
    }
    s->n_masks++;
    memcpy(s->out + m->row0 * dv, out, (size_t)(n * dv) * sizeof *out);
    memcpy(s->lse + m->row0, lse, (size_t)n * sizeof *lse);
    return 0;
}

/* sim_sink_fn: the first and the last groups of a chunk. */
static int sink(void *ctx, const struct mask *m, const double *out, const double *lse,
                struct err *err)
{
    struct sample *s = ctx;
    struct mask_counts c;
    int64_t unit = m->form == MASK_LISTS ? m->bq : 1;
    int64_t step = (PIECE + unit - 1) / unit * unit, rows = m->row1 - m->row0;
    PASS_ON(mask_count(m, &c, err));

    s->units += c.tiles_allowed;
    const struct mask *own = s->masks + s->next;
    if (m->form == MASK_LISTS && s->next < MAX_CHUNKS && own->form == MASK_LISTS && own->ptr)
        s->unlike += mask_lists_differ(own, m);
    s->next++;
    int64_t last = m->row0 + (rows - 1) / step * step;
    PASS_ON(compare_rows(s, m, m->row0, m->row0 + (step < rows ? step : rows), out, lse, err));
    if (last > m->row0)
        return compare_rows(s, m, last, m->row1, out, lse, err);
    return 0;
}

static double apart(const struct record *a, const struct record *b, const char *name)
{
    double x = record_get(a, name), y = record_get(b, name);
    return isnan(x) && isnan(y) ? 0 : isnan(x - y) ? INFINITY : fabs(x - y);
}

static void add(struct tally *t, const struct record *cpu, const struct record *gpu,
                const struct sample *s)
{
    if (cpu->status == RECORD_SKIP)
        return;
    t->heads++;
    if (gpu->status == RECORD_SKIP) {
        snprintf(t->reason, sizeof t->reason, "%.150s", gpu->reason);
        return;
    }
    if (!isnan(record_get(gpu, "mask_iou"))) /* of a reused mask and the step's own */
        t->recall = fmax(t->recall, apart(cpu, gpu, "mask_iou"));
    bool on_gpu = gpu->notes.data && strstr(gpu->notes.data, "select_backend=cuda");
    int64_t differ = on_gpu ? s->unlike : 0;
    bool same = differ == 0;
    static const char *const own[] = {"filter", "dilated", "quantised", "int8", "hashed"};
    bool by_cpu = s->moved;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        char kernel[32];
        snprintf(kernel, sizeof kernel, "kernel=%s", own[i]);
        by_cpu |= gpu->notes.data && strstr(gpu->notes.data, kernel);
    }
    const struct error *e = by_cpu ? &s->cpu : &s->exact;
    t->ran++;
    t->units += s->units;
    t->gpu_selected += on_gpu;
    t->differ += differ;
    if (!by_cpu || same) {
        t->delta2 += e->delta2;
        t->ref2 += e->ref2;
        t->lse = fmax(t->lse, e->lse);
    }
    if (same) {
        t->pv = fmax(t->pv, apart(cpu, gpu, "sparsity_pv"));
        t->recall = fmax(t->recall, apart(cpu, gpu, "cra_min"));
        t->recall = fmax(t->recall, apart(cpu, gpu, "cra_mean"));
        t->recall = fmax(t->recall, apart(cpu, gpu, "density_elem"));
        t->l1 = fmax(t->l1, apart(cpu, gpu, "err_l1_rel"));
    }
}

static int run_setting(struct pass *p, const struct head_in *in, int64_t k, struct carry *carry,
                       struct err *err)
{
    const struct method_run *run = p->runs + k;
    struct sample s = {.in = in};
    struct method_ctx cpu = {.seed = 1, .carry = carry, .shared = carry + 1};
    struct method_ctx gpu = {.seed = 1, .carry = carry + 2, .shared = carry + 3};
    const struct sim_device device = {.accel = &cuda_accel, .session = p->session, .metrics = true};
    struct sim_cell on_cpu = {.method = run->method,
                              .params = run->params,
                              .ctx = &cpu,
                              .in = in,
                              .sink = keep,
                              .sink_ctx = &s};
    struct sim_cell on_gpu = {.method = run->method,
                              .params = run->params,
                              .ctx = &gpu,
                              .in = in,
                              .device = &device,
                              .sink = sink,
                              .sink_ctx = &s};
    struct record a, b;
    int rc = 0;

    const char *order = run->method->params.order ? run->method->params.order(run->params) : NULL;
    s.moved = order && strcmp(order, "none") != 0;
    record_init(&a);
    record_init(&b);
    TRY(mem_alloc(&s.out, in->x.nq * in->x.dv, sizeof *s.out, "outputs", err));
    TRY(mem_alloc(&s.lse, in->x.nq, sizeof *s.lse, "outputs", err));
    TRY(sim_run(&on_cpu, &a, err));
    TRY(sim_run(&on_gpu, &b, err));
out:
    pthread_mutex_lock(&p->lock);
    if (rc)
        snprintf(p->tallies[k].error, sizeof p->tallies[k].error, "%.190s", err->msg);
    else
        add(p->tallies + k, &a, &b, &s);
    pthread_mutex_unlock(&p->lock);
    record_free(&a);
    record_free(&b);
    for (int i = 0; i < s.n_masks && i < MAX_CHUNKS; i++)
        mask_free(s.masks + i);
    free(s.out);
    free(s.lse);
    return rc;
}

/* pool_fn: all settings on one head, its calls in their order. */
static int run_head(void *ctx, int64_t item, int worker, struct err *err)
{
    struct pass *p = ctx;
    const struct head_load how = {.precision = PREC_F64};
    struct carry *carry = NULL;
    int rc = 0;

    (void)worker;
    TRY(mem_zalloc(&carry, 4 * p->n_runs, sizeof *carry, "state across steps", err));
    for (int64_t c = 0; c < trace_calls(p->trace) && !rc; c++) {
        struct sim_head h;
        if (trace_call(p->trace, c)->layer != p->layer[item])
            continue;
        TRY(head_load(p->trace, c, p->head[item], &how, &h, err));
        for (int64_t k = 0; k < p->n_runs && !rc; k++)
            rc = run_setting(p, &h.in, k, carry + 4 * k, err);
        sim_head_free(&h);
    }
out:
    for (int64_t i = 0; carry && i < 4 * p->n_runs; i++)
        if (carry[i].data)
            carry[i].free(carry[i].data);
    free(carry);
    return rc;
}

/* ---- a trace -------------------------------------------------------------------------------- */

static bool judge(const struct tally *t, enum chooser chooser, char what[200])
{
    what[0] = 0;
    if (t->error[0])
        snprintf(what, 200, "%s", t->error);
    else if (t->ran < t->heads)
        snprintf(what, 200, "%lld heads did not run: %s", (long long)(t->heads - t->ran),
                 t->reason);
    else if (t->ran && (t->gpu_selected > 0) != (chooser == GPU))
        snprintf(what, 200, "masks of the %s were expected", chooser == GPU ? "GPU" : "host");
    else if ((double)t->differ > 1e-4 * (double)t->units)
        snprintf(what, 200, "the masks differ");
    else if (t->ran && !(sqrt(t->delta2) <= 5e-3 * sqrt(t->ref2)))
        snprintf(what, 200, "outputs");
    else if (!(t->lse <= 1e-3))
        snprintf(what, 200, "log-sum-exp");
    else if (!(t->recall <= 1e-4))
        snprintf(what, 200, "recall is %.2e apart", t->recall);
    else if (!(t->pv <= 2e-3))
        snprintf(what, 200, "shares of skipped products are %.2e apart", t->pv);
    else if (!(t->l1 <= 5e-3))
        snprintf(what, 200, "L1 errors are %.2e apart", t->l1);
    return !what[0];
}

static void report(const struct pass *p, int64_t k)
{
    const struct tally *t = p->tallies + k;
    const struct method_run *run = p->runs + k;
    char what[200];

    if (t->heads == 0 && !t->error[0])
        return; /* the method is not for such traces */
    bool ok = judge(t, settings[k].chooser, what);
    printf("  %-5s %s%s%s: ", ok ? "ok" : "FAIL", run->method->name, *run->canonical ? ":" : "",
           run->canonical);
    if (t->ran)
        printf("%lld heads, masks %s, %lld of %lld units differ, output %.1e, lse %.1e, recall "
               "%.0e, L1 %.0e",
               (long long)t->ran, t->gpu_selected ? "cuda" : "cpu", (long long)t->differ,
               (long long)t->units, t->ref2 > 0 ? sqrt(t->delta2 / t->ref2) : 0, t->lse, t->recall,
               t->l1);
    if (t->ran < t->heads)
        printf("%s%lld not on the GPU: %s", t->ran ? "; " : "", (long long)(t->heads - t->ran),
               t->reason);
    printf("%s%s\n", what[0] ? ": " : "", what);
    cu_checks += t->ran > 0 || !ok;
    cu_failures += !ok;
}

/* Heads spread over layers and heads of a trace. */
static int64_t choose_heads(const struct trace *t, struct pass *p)
{
    const struct trace_meta *m = trace_meta(t);
    int64_t first[64], layers = 0;
    for (int64_t c = 0; c < trace_calls(t) && layers < 64; c++) {
        bool seen = false;
        for (int64_t i = 0; i < layers; i++)
            seen |= first[i] == trace_call(t, c)->layer;
        if (!seen)
            first[layers++] = trace_call(t, c)->layer;
    }
    int64_t all = layers * m->heads, n = all < MAX_HEADS ? all : MAX_HEADS;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = n > 1 ? i * (all - 1) / (n - 1) : 0;
        p->layer[i] = (int)first[at / m->heads];
        p->head[i] = (int)(at % m->heads);
    }
    return n;
}

static int check_trace(struct pass *p, const char *path, struct err *err)
{
    struct trace *t = NULL;
    int jobs = cpu_count() < MAX_JOBS ? cpu_count() : MAX_JOBS, rc = 0;

    TRY(trace_open(path, &t, err));
    const struct trace_meta *m = trace_meta(t);
    if (m->dtype != DT_BF16)
        FAIL(err, ERR_INPUT,
             "%s: q, k, v are %s; capture with --dtype bf16, so that CPU and GPU "
             "see the same values",
             path, dtype_name(m->dtype));
    p->trace = t;
    memset(p->tallies, 0, (size_t)p->n_runs * sizeof *p->tallies);
    int64_t heads = choose_heads(t, p);
    printf("%s: %s, %lld tokens, %lld calls, %lld heads\n", path, m->name, (long long)m->n_q,
           (long long)trace_calls(t), (long long)heads);
    rc = pool_run(jobs, heads, run_head, p, err);
    for (int64_t k = 0; k < p->n_runs; k++)
        report(p, k);
out:
    trace_close(&t);
    return rc;
}

/* ---- two captures --------------------------------------------------------------------------- */

/* Relative L2 between the same head of two traces; the larger of theirs so far is kept. */
static int compare_head(const struct trace *a, const struct trace *b, int64_t call,
                        enum trace_what what, int head, double *worst, struct err *err)
{
    struct trace_shape s = trace_shape(trace_meta(a), what);
    OWN(free_at) float *x = NULL, *y = NULL;
    double delta2 = 0, ref2 = 0;

    PASS_ON(mem_alloc(&x, s.tokens * s.dim, sizeof *x, "head", err));
    PASS_ON(mem_alloc(&y, s.tokens * s.dim, sizeof *y, "head", err));
    PASS_ON(trace_read(a, call, what, head, 0, s.tokens, x, err));
    PASS_ON(trace_read(b, call, what, head, 0, s.tokens, y, err));
    for (int64_t i = 0; i < s.tokens * s.dim; i++) {
        delta2 += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        ref2 += (double)x[i] * x[i];
    }
    double rel = ref2 > 0 ? sqrt(delta2 / ref2) : delta2 > 0 ? INFINITY : 0;
    *worst = isnan(rel) ? INFINITY : fmax(*worst, rel);
    return 0;
}

static int compare_traces(const char *const paths[2], double worst[3], struct err *err)
{
    struct trace *t[2] = {NULL, NULL};
    int rc = 0;

    for (int i = 0; i < 2; i++)
        TRY(trace_open(paths[i], t + i, err));
    const struct trace_meta *m = trace_meta(t[0]), *n = trace_meta(t[1]);
    if (trace_calls(t[0]) != trace_calls(t[1]) || m->heads != n->heads || m->n_q != n->n_q ||
        m->kv_heads != n->kv_heads || m->head_dim != n->head_dim)
        FAIL(err, ERR_INPUT, "%s and %s are not of the same run", paths[0], paths[1]);
    for (int64_t c = 0; c < trace_calls(t[0]); c++)
        for (int what = TRACE_Q; what <= TRACE_V; what++)
            for (int h = 0; h < (what == TRACE_Q ? m->heads : m->kv_heads); h++)
                TRY(compare_head(t[0], t[1], c, (enum trace_what)what, h, worst + what, err));
out:
    trace_close(t);
    trace_close(t + 1);
    return rc;
}

void check_same(const char *a, const char *b)
{
    const char *const paths[2] = {a, b};
    double worst[3] = {0, 0, 0};
    struct err err = {0};
    int rc = compare_traces(paths, worst, &err);
    bool ok = rc == 0 && worst[0] <= 2e-3 && worst[1] <= 2e-3 && worst[2] <= 2e-3;

    if (rc)
        printf("FAIL %s\n", err.msg);
    else
        printf("  %-5s %s and %s: q %.1e, k %.1e, v %.1e\n", ok ? "ok" : "FAIL", a, b, worst[0],
               worst[1], worst[2]);
    ++cu_checks;
    cu_failures += !ok;
}

/* ---- all ------------------------------------------------------------------------------------ */

void check_traces(int n, char *const *paths)
{
    const struct accel_options o = {.copies = 6}; /* results are those of the last */
    struct pass p = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct err err = {0};
    int rc = 0;

    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        TRY(method_runs_parse(sim_methods, settings[i].text, &p.runs, &p.n_runs, &err));
    TRY(mem_alloc(&p.tallies, p.n_runs, sizeof *p.tallies, "results", &err));
    TRY(cuda_accel.open(&o, &p.session, &err));
    for (int i = 0; i < n; i++)
        TRY(check_trace(&p, paths[i], &err));
out:
    if (rc) {
        printf("FAIL traces: %s\n", err.msg);
        ++cu_checks;
        ++cu_failures;
    }
    if (p.session)
        cuda_accel.close(&p.session);
    method_runs_free(p.runs, p.n_runs);
    free(p.tallies);
}
