/*
 * backend.c - the table of the GPU's functions (core/accel.h): what the kernels can do, what the
 * machine is, the exact attention of a head, and who does the rest.
 */
#include "cuda/backend.h"
#include "core/mem.h"

#include "cuda/attn/attn.h"
#include "cuda/ops.h"
#include "cuda/own/own.h"
#include "cuda/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CEILING_SAMPLES 11

/* ---- what there are kernels for ------------------------------------------------------------- */

static bool session_supports(const struct accel_session *s, const struct attn_in *x, int64_t *bq,
                             int64_t *bk, char why[160])
{
    struct err e = {0};
    struct attn_problem p = {1, 1, x->d, x->nq, x->nk, x->scale, x->causal, ATTN_DENSE};
    const struct attn_kernel *k;
    if (attn_kernel_find(&p, s->gpu.sm, NULL, &k, &e)) {
        snprintf(why, 160, "%.150s", e.msg);
        return false;
    }
    if (x->dv != attn_dv(x->d)) {
        snprintf(why, 160, "the kernels for head dim %d want values of %d channels, found %d", x->d,
                 attn_dv(x->d), x->dv);
        return false;
    }
    bool slim = *bq % 64 == 0 && *bk % 64 && *bk % session_block_keys(s, x->d) == 0;
    bool fine = *bq % 64 || (*bk % 64 && !slim);
    *bq = slim || (*bq % 128 && !fine) ? 64 : 128;
    *bk = slim ? 32 : fine || (*bq == 128 && *bk % 128 == 0) ? 128 : 64;
    return true;
}

static bool session_can_attend(const struct accel_session *s, const struct accel_head *h,
                               char why[160])
{
    const struct attn_in *x = h->x;
    struct attn_problem p = {1, 1, x->d, x->nq, x->nk, x->scale, x->causal, ATTN_DENSE};
    if (h->filter && !filter_kernel_find(x->d, s->gpu.sm, h->filter, why))
        return false;
    return !h->own_kernel || own_fits(s->gpu.sm, &p, h->own_kernel, why);
}

/* ---- the exact attention of a head ---------------------------------------------------------- */

/* A head on the device with its dense attention, which lies above the call. */
struct dense_head {
    struct attn_problem p;
    struct attn_tensors x; /* q, k, v */
    int64_t row;           /* its first row in call.dense */
    int v_exp;
};

/* Put the head with this number there, as a call of one, unless it is of the call there. */
static int find_head(struct accel_session *s, const struct attn_in *x, uint64_t data,
                     struct dense_head *h, struct err *err)
{
    const struct session_call *c = &s->call;
    struct accel_head head = {.x = x};
    const struct accel_call one = {.n = 1, .group = 1, .heads = &head, .data = data};
    uint64_t first = c->data + (uint64_t)c->copies, end = c->data + (uint64_t)c->problem.heads;
    bool there = c->data && data >= first && data < end;
    int i = there ? (int)(data - c->data) : 0;
    PASS_ON_CU(err, cudaSetDevice(s->gpu.device));
    if (!there)
        PASS_ON(session_put_call(s, &one, err));
    PASS_ON(session_call_dense(s, err));
    int kv = i / (c->problem.heads / c->problem.kv_heads);
    h->p = c->problem;
    h->p.heads = h->p.kv_heads = 1;
    h->x = run_tensors(c, &c->x, (struct head_run){i, 1, 1});
    h->row = (i - c->copies) * c->problem.nq;
    h->v_exp = c->v_exp[kv];
    return 0;
}

/* ---- how sparse a map is -------------------------------------------------------------------- */

static int launch_pass(struct gpu *g, const void *pass, struct err *err)
{
    return metrics_pass_launch(g, pass, err);
}

/* Thresholds [c0, c0 + n) of m in one pass. */
static int map_levels(struct accel_session *s, const struct metrics_pass *pass, int c0, int n,
                      struct accel_map *m, struct err *err)
{
    struct metrics_below below;
    struct accel_time time;
    struct session_work work = {launch_pass, pass};

    PASS_ON(metrics_pass_launch(&s->gpu, pass, err));
    PASS_ON(metrics_pass_below(&s->gpu, pass, &below, err));
    for (int u = 0; u < ACCEL_UNITS; u++)
        for (int i = 0; i < n; i++) {
            m->units[u * m->n_c + c0 + i] = below.units[u][i];
            m->pairs[u * m->n_c + c0 + i] = below.pairs[u][i];
        }
    m->p_max = fmax(m->p_max, below.p_max); /* of which either may be NAN */
    if (s->options.samples > 0) {
        PASS_ON(session_time(s, &work, 1, 1, 0, &time, NULL, err));
        m->time.median += time.median;
        m->time.q1 += time.q1;
        m->time.q3 += time.q3;
        m->time.samples = time.samples;
    }
    return 0;
}

static int sum_error(struct accel_session *s, const struct metrics_pass *pass,
                     const struct attn_problem *p, struct accel_map *m, struct err *err)
{
    OWN(free_at) double *sum = NULL;
    PASS_ON(mem_alloc(&sum, p->nq, sizeof *sum, "sums of rows", err));
    PASS_ON(metrics_pass_sums(&s->gpu, pass, sum, err));
    m->sum_err = 0;
    for (int64_t i = 0; i < p->nq; i++) {
        bool sees = !p->causal || i + p->nk - p->nq >= 0;
        double e = fabs(sum[i] - (sees ? 1 : 0));
        if (!(e <= m->sum_err)) /* NaN stays */
            m->sum_err = e;
    }
    return 0;
}

static int map_locked(struct accel_session *s, const struct attn_in *x, uint64_t data,
                      struct accel_map *m, struct err *err)
{
    struct gpu *g = &s->gpu;
    struct metrics_pass pass = {0};
    struct dense_head h;
    int rc = find_head(s, x, data, &h, err);
    struct gpu_mark mark = gpu_mark(g);

    for (int c0 = 0; c0 < m->n_c && !rc; c0 += METRICS_C) {
        int n = m->n_c - c0 < METRICS_C ? m->n_c - c0 : METRICS_C;
        struct metrics_ask ask = {.c = m->c + c0, .n_c = n, .sums = m->sums && c0 == 0};
        const float *norm = (const float *)s->call.dense.norm + 2 * h.row;
        TRY(metrics_pass_init(g, &h.p, &h.x, norm, &ask, &pass, err));
        TRY(map_levels(s, &pass, c0, n, m, err));
        if (pass.sums && c0 == 0)
            TRY(sum_error(s, &pass, &h.p, m, err));
        metrics_pass_free(&pass);
        gpu_release(g, mark);
    }
out:
    metrics_pass_free(&pass);
    gpu_release(g, mark);
    return rc;
}

static int session_map(struct accel_session *s, const struct attn_in *x, uint64_t data,
                       struct accel_map *m, struct err *err)
{
    session_lock(s);
    m->time = (struct accel_time){0, 0, 0, 0};
    m->p_max = m->sum_err = NAN;
    int rc = map_locked(s, x, data, m, err);
    session_unlock(s);
    return rc;
}

/* ---- dense attention as a service ----------------------------------------------------------- */

static int reference_locked(struct accel_session *s, const struct attn_in *x, uint64_t data,
                            double *out, double *lse, struct err *err)
{
    int64_t n = x->nq * x->dv;
    struct dense_head h;
    OWN(free_at) float *part = NULL;

    PASS_ON(find_head(s, x, data, &h, err));
    PASS_ON(gpu_get(&s->gpu, lse, s->call.dense.lse + h.row, x->nq * 8, err));
    if (!out)
        return 0;
    PASS_ON(mem_alloc(&part, n, sizeof *part, "dense outputs", err));
    PASS_ON(
        gpu_get(&s->gpu, part, s->call.dense.out + h.row * x->dv, n * (int64_t)sizeof *part, err));
    for (int64_t i = 0; i < n; i++)
        out[i] = part[i] * ldexp(1, h.v_exp);
    return 0;
}

static int session_reference(struct accel_session *s, const struct attn_in *x, uint64_t data,
                             double *out, double *lse, struct err *err)
{
    session_lock(s);
    int rc = reference_locked(s, x, data, out, lse, err);
    session_unlock(s);
    return rc;
}

/* ---- description ---------------------------------------------------------------------------- */

static int measure_ceilings(struct accel_session *s, double *matmul_tflops, double *copy_tbs,
                            struct err *err)
{
    struct ceiling c = {0};
    struct gpu_mark mark = gpu_mark(&s->gpu);
    double matmul[CEILING_SAMPLES], copy[CEILING_SAMPLES];
    int64_t peak = s->gpu.bytes_peak, id, held;
    int rc = 0;

    TRY(ceiling_open(&s->gpu, &c, err));
    timer_reset(s->timer);
    for (int i = 0; i < CEILING_SAMPLES; i++) {
        TRY(timer_begin(s->timer, &s->gpu, &id, err));
        TRY(ceiling_matmul(&s->gpu, &c, err));
        TRY(timer_end(s->timer, &s->gpu, err));
        TRY(timer_begin(s->timer, &s->gpu, &id, err));
        TRY(ceiling_copy(&s->gpu, &c, err));
        TRY(timer_end(s->timer, &s->gpu, err));
    }
    TRY(timer_collect(s->timer, &s->gpu, err));
    for (int i = 0; i < CEILING_SAMPLES; i++) {
        matmul[i] = timer_ns(s->timer, 2 * i);
        copy[i] = timer_ns(s->timer, 2 * i + 1);
    }
    *matmul_tflops = CEILING_FLOP / quartiles_of(matmul, CEILING_SAMPLES).median * 1e-3;
    *copy_tbs = (double)CEILING_BYTES / quartiles_of(copy, CEILING_SAMPLES).median * 1e-3;
out:
    blas_close(&c.blas);
    gpu_release(&s->gpu, mark);
    gpu_trim(&s->gpu);
    held = gpu_bytes_held(&s->gpu); /* for heads; the peak is to be theirs, not the product's */
    s->gpu.bytes_peak = peak > held ? peak : held;
    return rc;
}

static int session_describe(struct accel_session *s, struct jw *w, struct err *err)
{
    (void)err;
    jw_kstr(w, "name", s->gpu.name);
    jw_kint(w, "device", s->gpu.device);
    jw_kstr(w, "uuid", s->gpu.uuid);
    jw_kint(w, "sm", s->gpu.sm);
    jw_kint(w, "multiprocessors", s->gpu.sms);
    jw_kint(w, "cuda_driver", s->gpu.driver);
    jw_kint(w, "cuda_runtime", s->gpu.runtime);
    jw_kstr(w, "timer", timer_name(s->timer));
    if (*timer_reason(s->timer))
        jw_kstr(w, "timer_reason", timer_reason(s->timer));
    jw_kstr(w, "l2", s->options.l2_cold ? "cold" : "warm");
    jw_kint(w, "samples", s->options.samples);
    return 0;
}

/* Without cuBLAS the ceilings stay unknown, and the reason is told instead. */
static int session_ceilings(struct accel_session *s, struct jw *w, struct err *err)
{
    struct err own = {0};
    double matmul, copy;

    session_lock(s);
    int rc = measure_ceilings(s, &matmul, &copy, &own);
    session_unlock(s);
    if (rc == 0) {
        jw_knum(w, "matmul_8192_tflops", matmul);
        jw_knum(w, "copy_tb_per_s", copy);
    } else if (rc == ERR_MACHINE || rc == ERR_NOMEM) {
        jw_kstr(w, "ceilings", own.msg);
        rc = 0;
    } else {
        *err = own;
    }
    return rc;
}

static int64_t session_bytes_peak(const struct accel_session *s)
{
    return s->gpu.bytes_peak;
}

const struct accel cuda_accel = {
    .name = "cuda",
    .open = session_open,
    .close = session_close,
    .supports = session_supports,
    .can_attend = session_can_attend,
    .copies = session_copies,
    .put_call = session_bring_call,
    .select_call = session_select_call,
    .attend_call = session_attend_call,
    .has_cached = session_holds,
    .map = session_map,
    .reference = session_reference,
    .bytes_peak = session_bytes_peak,
    .describe = session_describe,
    .ceilings = session_ceilings,
    .used_s = session_used,
};

/* ---- lists ---------------------------------------------------------------------------------- */

static void list_kernel(struct jw *w, const struct attn_kernel *k)
{
    jw_obj(w);
    jw_kstr(w, "name", k->name);
    jw_kstr(w, "summary", k->summary);
    jw_kint(w, "sm", k->sm);
    jw_kint(w, "query_rows", k->tile.bm);
    jw_kint(w, "keys", k->tile.bn);
    jw_kint(w, "threads", k->threads);
    jw_kint(w, "shared_memory_bytes", k->smem_bytes);
    jw_obj_end(w);
}

int cuda_list_kernels(struct jw *w, struct err *err)
{
    for (const struct attn_kernel *k = attn_kernels; k->name; k++)
        list_kernel(w, k);
    for (const struct filter_kernel *k = filter_kernels; k->kernel.name; k++)
        list_kernel(w, &k->kernel);
    return 0;
}

/* Without a driver or a GPU: nothing. */
int cuda_list_gpus(struct jw *w, struct err *err)
{
    int count = 0, driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0 ||
        cudaGetDeviceCount(&count) != cudaSuccess)
        return 0;
    for (int i = 0; i < count; i++) {
        struct gpu g = {0};
        char text[160];
        PASS_ON(gpu_describe(i, &g, err));
        snprintf(text, sizeof text, "sm_%d, %d multiprocessors, %.0f GB", g.sm, g.sms,
                 (double)g.memory_bytes / 1e9);
        jw_obj(w);
        jw_kstr(w, "name", g.name);
        jw_kstr(w, "summary", text);
        jw_kint(w, "index", i);
        jw_kint(w, "sm", g.sm);
        jw_kint(w, "multiprocessors", g.sms);
        jw_kint(w, "memory_bytes", g.memory_bytes);
        jw_kint(w, "l2_bytes", g.l2_bytes);
        jw_kint(w, "cuda_driver", driver);
        jw_obj_end(w);
    }
    return 0;
}
