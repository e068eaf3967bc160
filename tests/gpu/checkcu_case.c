/*
 * checkcu_case.c - data, lists and comparison of checkcu_case.h.
 */
#include "tests/gpu/checkcu_case.h"

#include "core/attention.h"
#include "core/clock.h"
#include "core/dtype.h"
#include "core/mem.h"
#include "core/method.h"
#include "core/rng.h"
#include "cuda/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const cu_data_names[] = {"normal", "equal",  "huge",  "tiny",  "one-hot",
                                     "offset", "smooth", "signs", "rising"};

static float round_bf16(double x)
{
    return bf16_to_f32(f32_to_bf16((float)x));
}

/* ---- data ----------------------------------------------------------------------------------- */

/* Normal numbers are most of a check's time on the CPU. Each tensor reads the same ones, from a
 * place that its seed chooses. The count is prime: a head's tokens meet them in other channels each
 * time. */
enum { N_NORMAL = 262147 };

static const double *normal_numbers(int which)
{
    static double z[3][N_NORMAL];
    static bool drawn[3];
    for (uint64_t i = 0; i < N_NORMAL && !drawn[which]; i++)
        z[which][i] = rng_normal(1, (uint64_t)which, i);
    drawn[which] = true;
    return z[which];
}

/* Token i of its head, row `at` of the tensor; `which` is 0 for q, 1 for k, 2 for v. */
static void fill_token(const struct cu_case *k, int which, int64_t at, int64_t i, float *x)
{
    enum cu_data data = k->data;
    int d = which < 2 ? k->problem.d : attn_dv(k->problem.d);
    bool score = which < 2;
    int64_t nk = k->problem.nk, warp = i / 16 % 4;
    /* DATA_RISING, first channel: early keys gain 61 or 55 in log2 units of a probability, times 0
     * to 3/2 by query. One warp of four mixes these, in one the sums stay below the limit, in one
     * they exceed it by the second gain, and the first still counts, in one by the first.
     */
    double rise = which == 0   ? sqrt(d) * (double)(warp ? warp : i % 4) / 2
                  : i < nk / 8 ? 42.25
                  : i < nk / 2 ? 38.25
                               : 0;
    const double *normal = normal_numbers(which);
    uint64_t first = rng_below(k->seed, (uint64_t)which, 0, N_NORMAL) + (uint64_t)(at * d);
    for (int c = 0; c < d; c++) {
        double z = normal[(first + (uint64_t)c) % N_NORMAL], y = z;
        if (data == DATA_EQUAL)
            y = score ? 0.5 : 0.25 * (c % 7);
        else if (data == DATA_HUGE)
            y = score ? 45 * z : 100 * z; /* scores to about 1e4 */
        else if (data == DATA_TINY)
            y = 1e-4 * z;
        else if (data == DATA_ONE_HOT)
            y = score ? (c == (int)(i * 13 % d) ? 16 : 0) : z;
        else if (data == DATA_OFFSET)
            y = z + (c % 5 == 0 ? 4 : 0);
        else if (data == DATA_SMOOTH)
            y = 0.5 * z + (score ? 1.5 * cos(0.01 * (double)i + c * c) : 0);
        else if (data == DATA_SIGNS && score)
            y = (z > -1) == (i / 3 % 2 == 0) ? 1 : -1;
        else if (data == DATA_RISING && score && c == 0)
            y = rise;
        x[c] = round_bf16(y);
    }
}

int cu_make_tensor(const struct cu_case *c, int which, int heads, int64_t n, float **out,
                   struct err *err)
{
    int d = which < 2 ? c->problem.d : attn_dv(c->problem.d);
    PASS_ON(mem_alloc(out, heads * n * d, sizeof(float), "test data", err));
    for (int64_t i = 0; i < heads * n; i++)
        fill_token(c, which, i, i % n, *out + i * d);
    return 0;
}

struct head_in cu_head(int64_t nq, int64_t nk, int d, double scale, bool causal)
{
    return (struct head_in){
        .x = {.nq = nq, .nk = nk, .d = d, .dv = d, .scale = scale, .causal = causal},
        .src_dtype = DT_BF16,
        .n_heads = 1,
        .n_kv_heads = 1,
        .n_layers = 1,
        .timestep = NAN,
        .branch = "main"};
}

/* Lists of 64 x 32 are SALE's, the others SpargeAttn's. */
struct accel_filter cu_filter(const struct filter_kernel *k, double pv)
{
    int bq = attn_block_rows(k->kernel.lists, NULL), bk = attn_block_keys(k->kernel.lists, NULL);
    struct accel_filter f = {.bq = bq, .bk = bk, .pv = k->skips ? pv : INFINITY, .scope = k->scope};
    bool e4m3 = k->kernel.element == ATTN_INT8, sale = k->kernel.lists == ATTN_64x32;
    enum dtype as = sale ? DT_F16 : DT_F32;
    if (k->kernel.element != ATTN_BF16)
        f.quant = (struct own_quantised){.bq = bq,
                                         .bk = bk,
                                         .levels = 127,
                                         .gran = OWN_BY_BLOCK,
                                         .round = sale ? OWN_RNE : OWN_RHA_EPS,
                                         .smooth_k = true,
                                         .inputs_as = as,
                                         .mean_as = as,
                                         .keys_as = as,
                                         .values_as = e4m3 ? DT_F32 : DT_F16,
                                         .e4m3 = e4m3,
                                         .offset = e4m3 ? 8.807f : 0,
                                         .factor = 1,
                                         .v_top = 448,
                                         .sum = e4m3 ? OWN_SUM_F32 : OWN_SUM_F16};
    return f;
}

int cu_put(struct gpu *g, enum dtype type, const float *x, int64_t n, const void **out,
           struct err *err)
{
    OWN(free_at) void *narrow = NULL;
    PASS_ON(mem_alloc(&narrow, n, dtype_size(type), dtype_name(type), err));
    dtype_from_f32(type, x, narrow, n);
    PASS_ON(gpu_upload(g, narrow, n * (int64_t)dtype_size(type), out, err));
    return gpu_sync(g, err);
}

/* q, k or v on the device; the host copy is what the reference computes with. */
static int place(struct gpu *g, const struct cu_run *r, int which, int heads, int64_t n,
                 float **host, const void **out, struct err *err)
{
    const struct cu_case *c = &r->c;
    int64_t count = heads * n * (which < 2 ? c->problem.d : attn_dv(c->problem.d));
    void *dev = NULL;
    if (c->on_device) {
        PASS_ON(gpu_alloc(g, count * 2, &dev, err));
        PASS_ON(ops_fill_normal(g, dev, count, (uint32_t)(c->seed * 3) + (uint32_t)which, err));
        *out = dev;
    } else {
        PASS_ON(cu_make_tensor(c, which, heads, n, host, err));
        enum dtype type = r->kernel->element == ATTN_F16 ? DT_F16 : DT_BF16;
        return cu_put(g, type, *host, count, out, err);
    }
    return 0;
}
/* ---- lists ---------------------------------------------------------------------------------- */

static bool keep(const struct cu_case *c, int64_t row, int64_t block, int64_t col, int64_t limit)
{
    double u = rng_uniform(c->seed, 1000 + (uint64_t)row, (uint64_t)col);
    switch (c->pattern) {
    case KEEP_ALL:
        return true;
    case KEEP_FIRST:
        return col == 0;
    case KEEP_DIAGONAL:
        return col == limit - 1;
    case KEEP_SOME_ROWS:
        return block % 3 != 1 && u < c->density;
    case KEEP_SKEWED: /* every 16th row is full */
        return block % 16 == 5 || u < c->density;
    default:
        return u < c->density;
    }
}

/* Blocks of row block b that hold an allowed pair. */
static int64_t allowed_blocks(const struct attn_problem *p, int64_t b, int bq, int bk)
{
    int64_t last = (b + 1) * bq < p->nq ? (b + 1) * bq : p->nq;
    int64_t keys = p->causal ? last + p->nk - p->nq : p->nk;
    return keys <= 0 ? 0 : ((keys < p->nk ? keys : p->nk) + bk - 1) / bk;
}

static int make_lists(struct cu_run *r, struct err *err)
{
    const struct attn_problem *p = &r->c.problem;
    int bq = attn_block_rows(p->lists, NULL), bk = attn_block_keys(p->lists, NULL);
    int64_t blocks = (p->nq + bq - 1) / bq, at = 0;
    int64_t cap = p->heads * blocks * ((p->nk + bk - 1) / bk);

    PASS_ON(mem_alloc(&r->ptr, p->heads * blocks + 1, sizeof *r->ptr, "lists", err));
    PASS_ON(mem_alloc(&r->col, cap, sizeof *r->col, "lists", err));
    for (int64_t row = 0; row < p->heads * blocks; row++) {
        int64_t limit = allowed_blocks(p, row % blocks, bq, bk);
        r->ptr[row] = at;
        for (int64_t col = 0; col < limit; col++)
            if (keep(&r->c, row, row % blocks, col, limit))
                r->col[at++] = (int32_t)col;
    }
    r->ptr[p->heads * blocks] = at;
    return 0;
}

/* ---- device --------------------------------------------------------------------------------- */

int cu_run_init(struct gpu *g, const struct cu_case *c, struct cu_run *r, struct err *err)
{
    const struct attn_problem *p = &c->problem;
    struct attn_tensors x = {0};
    int64_t nq = p->heads * p->nq;
    int rc = 0;

    memset(r, 0, sizeof *r);
    r->c = *c;
    r->mark = gpu_mark(g);
    TRY(attn_kernel_find(p, g->sm, c->kernel, &r->kernel, err));
    TRY(place(g, r, 0, p->heads, p->nq, &r->q, &x.q, err));
    TRY(place(g, r, 1, p->kv_heads, p->nk, &r->k, &x.k, err));
    TRY(place(g, r, 2, p->kv_heads, p->nk, &r->v, &x.v, err));
    TRY(gpu_alloc(g, nq * attn_dv(p->d) * 2, &x.out, err));
    TRY(gpu_alloc(g, nq * 4, &x.lse, err));
    struct attn_csr csr = {0};
    if (c->given) {
        csr = *c->given;
    } else if (cu_has_bits(p->lists)) {
        TRY(cu_bits_lists(c, &r->tiles, err));
        csr = (struct attn_csr){r->tiles.ptr,   p->lists == ATTN_GATHER ? NULL : r->tiles.col,
                                r->tiles.bits,  r->tiles.keys,
                                r->tiles.words, r->tiles.n_bits,
                                false};
    } else if (p->lists != ATTN_DENSE) {
        TRY(make_lists(r, err));
        csr = (struct attn_csr){.ptr = r->ptr, .col = r->col};
    }
    r->plan_ns = -clock_ns();
    TRY(attn_plan_make(p, &r->kernel->tile, csr.ptr ? &csr : NULL, c->split ? g->sms : 1, &r->plan,
                       err));
    r->plan_ns += clock_ns();
    TRY(attn_job_init(g, p, r->kernel, &r->plan, &x, &r->job, err));
out:
    if (rc)
        cu_run_free(g, r);
    return rc;
}

void cu_run_free(struct gpu *g, struct cu_run *r)
{
    attn_job_free(&r->job);
    attn_plan_free(&r->plan);
    free(r->q);
    free(r->k);
    free(r->v);
    free(r->ptr);
    free(r->col);
    accel_tiles_free(&r->tiles);
    gpu_release(g, r->mark);
    memset(r, 0, sizeof *r);
}

double cu_flop_dense(const struct attn_problem *p)
{
    return 2.0 * (p->d + attn_dv(p->d)) * p->heads * (double)pairs_allowed(p->nq, p->nk, p->causal);
}

double cu_flop_blocks(const struct cu_run *r)
{
    const struct attn_problem *p = &r->c.problem;
    double pairs = attn_block_rows(p->lists, &r->kernel->tile) *
                   (double)attn_block_keys(p->lists, &r->kernel->tile);
    return 2.0 * (p->d + attn_dv(p->d)) * pairs * (double)r->plan.blocks;
}

/* ---- comparison ----------------------------------------------------------------------------- */

struct sums {
    double delta, ref;
};

static void compare_lse(double ref, double got, struct cu_errors *e)
{
    if (isinf(ref) && isinf(got) && ref < 0 && got < 0)
        return;
    double d = fabs(ref - got);
    if (!(d <= e->lse_max)) /* NaN stays */
        e->lse_max = isnan(d) ? INFINITY : d;
    if (fabs(ref) > e->lse_ref && !isinf(ref))
        e->lse_ref = fabs(ref);
}

/* Rows of one block of one head against the CPU. */
static int compare_block(const struct cu_run *r, const struct attn_ops *ops, int head,
                         int64_t block, const uint16_t *out, const float *lse, struct sums *s,
                         struct cu_errors *e, struct err *err)
{
    const struct attn_problem *p = &r->c.problem;
    int bq = p->lists == ATTN_DENSE ? 128 : attn_block_rows(p->lists, NULL);
    int dv = attn_dv(p->d);
    int64_t row0 = block * bq, row1 = row0 + bq < p->nq ? row0 + bq : p->nq;
    int64_t blocks = (p->nq + bq - 1) / bq;
    bool half = r->kernel->element == ATTN_F16;
    OWN(mask_free) struct mask m = {0};
    double ref[128 * 256], ref_lse[128];

    if (p->lists == ATTN_DENSE) {
        mask_full(&m, p->nq, p->nk, row0, row1, p->causal);
    } else if (cu_has_bits(p->lists)) {
        PASS_ON(cu_bits_mask(&r->c, head, row0, row1, &m, err));
    } else {
        PASS_ON(mask_lists_init(&m, p->nq, p->nk, row0, row1, p->causal, bq,
                                attn_block_keys(p->lists, NULL), err));
        const int64_t *row = r->ptr + head * blocks + block;
        for (int64_t i = row[0]; i < row[1]; i++)
            PASS_ON(mask_lists_add(&m, 0, r->col[i], err));
        mask_lists_finish(&m);
    }
    PASS_ON(attn_rows(ops, &m, ref, ref_lse, err));
    for (int64_t i = row0; i < row1; i++) {
        compare_lse(ref_lse[i - row0], lse[head * p->nq + i], e);
        for (int c = 0; c < dv; c++) {
            double want = ref[(i - row0) * dv + c];
            uint16_t got = out[(head * p->nq + i) * dv + c];
            double delta = (half ? f16_to_f32(got) : bf16_to_f32(got)) - want;
            s->delta += delta * delta;
            s->ref += want * want;
        }
    }
    return 0;
}

/* First, last and one block between of the first and the last head. */
static int compare_all(const struct cu_run *r, const uint16_t *out, const float *lse,
                       struct cu_errors *e, struct err *err)
{
    const struct attn_problem *p = &r->c.problem;
    int bq = p->lists == ATTN_DENSE ? 128 : attn_block_rows(p->lists, NULL), rc = 0;
    int64_t blocks = (p->nq + bq - 1) / bq;
    struct sums s = {0, 0};

    for (int n = 0; n < 2 && n < p->heads; n++) {
        int head = n ? p->heads - 1 : 0, kv = head / (p->heads / p->kv_heads);
        struct attn_in in = {.nq = p->nq,
                             .nk = p->nk,
                             .d = p->d,
                             .dv = attn_dv(p->d),
                             .q = r->q + head * p->nq * p->d,
                             .k = r->k + kv * p->nk * p->d,
                             .v = r->v + kv * p->nk * attn_dv(p->d),
                             .scale = p->scale,
                             .causal = p->causal};
        struct attn_ops ops = {0};
        int64_t where[3] = {0, blocks / 2, blocks - 1};
        TRY(attn_prepare(&ops, &in, PREC_F64, err));
        for (int k = 0; k < 3 && !rc; k++)
            if (k == 0 || where[k] != where[k - 1])
                rc = compare_block(r, &ops, head, where[k], out, lse, &s, e, err);
        attn_release(&ops);
        if (rc)
            goto out;
    }
    e->l2_rel = s.ref > 0 ? sqrt(s.delta / s.ref) : s.delta > 0 ? INFINITY : sqrt(s.delta);
out:
    return rc;
}

static int launch_and_get(struct gpu *g, const struct cu_run *r, uint16_t *out, float *lse,
                          struct err *err)
{
    const struct attn_problem *p = &r->c.problem;
    int64_t n = p->heads * p->nq;
    PASS_ON_CU(err,
               cudaMemsetAsync(r->job.x.out, 0xff, (size_t)(n * attn_dv(p->d) * 2), g->stream));
    PASS_ON_CU(err, cudaMemsetAsync(r->job.x.lse, 0xff, (size_t)(n * 4), g->stream));
    PASS_ON(attn_job_launch(g, &r->job, err));
    PASS_ON(gpu_get(g, out, r->job.x.out, n * attn_dv(p->d) * 2, err));
    return gpu_get(g, lse, r->job.x.lse, n * 4, err);
}

int cu_run_check(struct gpu *g, struct cu_run *r, struct cu_errors *e, struct err *err)
{
    const struct attn_problem *p = &r->c.problem;
    int64_t n = p->heads * p->nq;
    uint16_t *out[2] = {NULL, NULL};
    float *lse[2] = {NULL, NULL};
    int rc = 0;

    memset(e, 0, sizeof *e);
    for (int i = 0; i < (r->c.once ? 1 : 2); i++) {
        TRY(mem_alloc(&out[i], n * attn_dv(p->d), 2, "outputs", err));
        TRY(mem_alloc(&lse[i], n, 4, "outputs", err));
        TRY(launch_and_get(g, r, out[i], lse[i], err));
    }
    e->same = r->c.once || (memcmp(out[0], out[1], (size_t)(n * attn_dv(p->d) * 2)) == 0 &&
                            memcmp(lse[0], lse[1], (size_t)n * 4) == 0);
    TRY(compare_all(r, out[0], lse[0], e, err));
out:
    for (int i = 0; i < 2; i++) {
        free(out[i]);
        free(lse[i]);
    }
    return rc;
}
