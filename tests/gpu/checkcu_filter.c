/*
 * checkcu_filter.c - the kernels that skip P V (cuda/attn/attn.h) against
 * sim/blocks/tileattn.h on the same bf16 values and lists, every row of every head: in double, or
 * in the arithmetic of the kernels with operands of 8 bits.
 *
 * What is skipped depends on gaps between scores alone, which a float knows to about 1e-6 of the
 * scores. So the model runs at a distance a little smaller and a little larger than the kernel's:
 * lists with the same tiles at both must be computed by the kernel with just these tiles, their
 * outputs within 5e-3 (relative L2) and LSE within 1e-3; the others are ties and bound the kernel's
 * count. A second launch must give the same bits, and `never skip` those of a distance that no
 * score reaches.
 *
 * With operands of 8 bits the model rounds the probabilities as the kernel does, those of two tiles
 * of 64 keys together, and runs once without rounding them. Between kernel and model, 1e-2: what a
 * probability is rounded relative to differs by 1e-4 of it, so that one in some hundred becomes the
 * neighbouring number of e4m3, up to 12 % away, which rows of few keys show. Such roundings do not
 * depend on the model's: the kernel's outputs are at most 1e-3 further from the unrounded ones than
 * hypot(the model's distance from these, distance of kernel and model). Over n cases, where such
 * roundings cancel, the root mean square is at most 5e-4 + 1e-3 / sqrt(n) above the model's.
 *
 * Kernels that skip nothing run with whole rows, and again with rows in pieces where a plan of the
 * GPU has some. Probabilities of a piece are rounded relative to its own maximum, which is nearer
 * to them: outputs are at most 2e-3 further from the unrounded ones than the model's. These and the
 * kernel's are two roundings then, at most hypot(the two distances) apart where that is above 1e-2.
 */
#include "tests/gpu/checkcu.h"

#include "core/dtype.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "core/rng.h"
#include "cuda/own/own.h"
#include "sim/blocks/blockpool.h"
#include "sim/blocks/tileattn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tally {
    int64_t cases, cut, lists, ties; /* cases with rows in pieces; lists of tiles, those that a tie
                                      * decides */
    double tiles, computed;          /* in the lists; P V of the GPU */
    double l2, more; /* worst of a case: to the model, beyond the model's own error */
    double off, own; /* sums over cases: squared distances from exact probabilities */
    double lse;
};

struct filter_case {
    struct cu_case c;
    const struct filter_kernel *kernel;
    struct accel_filter filters[2]; /* of even and odd heads: they differ in pv */
    float *q, *k, *v;
    int64_t *ptr;
    int32_t *col;
    bool cuts; /* rows may be in pieces */
    struct attn_plan plan;
    struct attn_job job;
    struct attn_tensors x;
    struct own_operands ops; /* of kernels with 8 bits */
    int8_t *qi, *ki;         /* theirs, where sums of fp16 numbers make them the CPU's */
    uint16_t *out;
    float *lse;
    double *tiles; /* [heads] */
};

/* ---- problem -------------------------------------------------------------------------------- */

static int make_lists(struct filter_case *f, struct err *err)
{
    const struct attn_problem *p = &f->c.problem;
    int bq = (int)f->filters[0].bq, bk = (int)f->filters[0].bk;
    int64_t blocks = (p->nq + bq - 1) / bq, at = 0;
    PASS_ON(mem_alloc(&f->ptr, p->heads * blocks + 1, sizeof *f->ptr, "lists", err));
    PASS_ON(mem_alloc(&f->col, p->heads * blocks * ((p->nk + bk - 1) / bk), sizeof *f->col, "lists",
                      err));
    for (int64_t row = 0; row < p->heads * blocks; row++) {
        int64_t last = (row % blocks + 1) * bq;
        last = last < p->nq ? last : p->nq;
        int64_t keys = p->causal ? last + p->nk - p->nq : p->nk;
        keys = keys < p->nk ? keys : p->nk;
        f->ptr[row] = at;
        for (int32_t j = 0; j * (int64_t)bk < keys; j++)
            if (rng_uniform(f->c.seed, 500 + (uint64_t)row, (uint64_t)j) < f->c.density &&
                row % 11 != 7)
                f->col[at++] = j;
    }
    f->ptr[p->heads * blocks] = at;
    return 0;
}

static bool is_quantised(const struct filter_case *f)
{
    return f->kernel->kernel.element != ATTN_BF16;
}

static int make_job(struct gpu *g, struct filter_case *f, const struct accel_filter *filters, int n,
                    struct err *err)
{
    bool bytes = is_quantised(f);
    return filter_job_init(g, &f->c.problem, f->kernel, &f->plan, filters, n,
                           bytes ? &f->ops.x : &f->x, bytes ? &f->ops.scales : NULL, &f->job, err);
}

static int case_init(struct gpu *g, struct filter_case *f, struct err *err)
{
    const struct attn_problem *p = &f->c.problem;
    int64_t n = p->heads * p->nq;
    PASS_ON(cu_make_tensor(&f->c, 0, p->heads, p->nq, &f->q, err));
    PASS_ON(cu_make_tensor(&f->c, 1, p->kv_heads, p->nk, &f->k, err));
    PASS_ON(cu_make_tensor(&f->c, 2, p->kv_heads, p->nk, &f->v, err));
    PASS_ON(cu_put(g, DT_BF16, f->q, n * p->d, &f->x.q, err));
    PASS_ON(cu_put(g, DT_BF16, f->k, p->kv_heads * p->nk * p->d, &f->x.k, err));
    PASS_ON(cu_put(g, DT_BF16, f->v, p->kv_heads * p->nk * p->d, &f->x.v, err));
    PASS_ON(gpu_alloc(g, n * p->d * 2, &f->x.out, err));
    PASS_ON(gpu_alloc(g, n * 4, &f->x.lse, err));
    PASS_ON(make_lists(f, err));
    struct attn_csr csr = {.ptr = f->ptr, .col = f->col};
    if (f->kernel->skips || f->cuts)
        PASS_ON(filter_plan_make(p, f->kernel, &csr, f->filters[0].tail, g->sms, &f->plan, err));
    else
        PASS_ON(attn_plan_make(p, &f->kernel->kernel.tile, &csr, 1, &f->plan, err));
    if (is_quantised(f)) {
        PASS_ON(own_operands_init(g, p, &f->filters[0].quant, &f->x, &f->ops, err));
        PASS_ON(own_operands_make(g, &f->ops, err));
    }
    if (f->filters[0].quant.inputs_as == DT_F16) {
        PASS_ON(mem_alloc(&f->qi, n * p->d, 1, "integers", err));
        PASS_ON(mem_alloc(&f->ki, p->kv_heads * p->nk * p->d, 1, "integers", err));
        PASS_ON(gpu_get(g, f->qi, f->ops.x.q, n * p->d, err));
        PASS_ON(gpu_get(g, f->ki, f->ops.x.k, p->kv_heads * p->nk * p->d, err));
    }
    PASS_ON(make_job(g, f, f->filters, 2, err));
    PASS_ON(mem_alloc(&f->out, n * p->d, 2, "outputs", err));
    PASS_ON(mem_alloc(&f->lse, n, 4, "outputs", err));
    return mem_alloc(&f->tiles, p->heads, sizeof *f->tiles, "counts", err);
}

static void case_free(struct filter_case *f)
{
    attn_job_free(&f->job);
    own_operands_free(&f->ops);
    attn_plan_free(&f->plan);
    free(f->q);
    free(f->k);
    free(f->v);
    free(f->ptr);
    free(f->col);
    free(f->out);
    free(f->lse);
    free(f->tiles);
    free(f->qi);
    free(f->ki);
}

static int launch(struct gpu *g, const struct filter_case *f, uint16_t *out, float *lse,
                  struct err *err)
{
    const struct attn_problem *p = &f->c.problem;
    int64_t n = p->heads * p->nq;
    PASS_ON_CU(err, cudaMemsetAsync(f->x.out, 0xff, (size_t)(n * p->d * 2), g->stream));
    PASS_ON_CU(err, cudaMemsetAsync(f->x.lse, 0xff, (size_t)(n * 4), g->stream));
    PASS_ON(attn_job_launch(g, &f->job, err));
    PASS_ON(gpu_get(g, out, f->x.out, n * p->d * 2, err));
    return gpu_get(g, lse, f->x.lse, n * 4, err);
}

/* Launch again, with another distance if that is not below 0; do all bits agree? */
static int same_bits(struct gpu *g, struct filter_case *f, double pv, bool *same, struct err *err)
{
    const struct attn_problem *p = &f->c.problem;
    int64_t n = p->heads * p->nq;
    OWN(free_at) uint16_t *out = NULL;
    OWN(free_at) float *lse = NULL;
    if (pv >= 0) {
        struct accel_filter other = f->filters[0];
        other.pv = pv;
        attn_job_free(&f->job);
        PASS_ON(make_job(g, f, &other, 1, err));
    }
    PASS_ON(mem_alloc(&out, n * p->d, 2, "outputs", err));
    PASS_ON(mem_alloc(&lse, n, 4, "outputs", err));
    PASS_ON(launch(g, f, out, lse, err));
    *same = memcmp(out, f->out, (size_t)(n * p->d * 2)) == 0 &&
            memcmp(lse, f->lse, (size_t)(n * 4)) == 0;
    return 0;
}

/* ---- the model ------------------------------------------------------------------------------ */

struct model {
    struct tile_attn tile;
    struct tile_work *work;
    struct tile_operands operands; /* of 8 bits */
    float *rounded, *centred, mean[128];
    double exact[128 * 128], out[128 * 128], lse[128]; /* of a list; exact: P was not rounded */
    double delta, off, own, ref; /* squares over a case: kernel to model, kernel and model to
                                  * `exact`, the model's outputs */
    double low, high;            /* tiles at the two distances, of a head */
};

static void compare_rows(const struct filter_case *f, struct model *m, int head, int64_t row0,
                         int64_t rows, struct tally *t)
{
    const struct attn_problem *p = &f->c.problem;
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = head * p->nq + row0 + i;
        double got = f->lse[at], off = fabs(got - m->lse[i]);
        bool dead = isinf(m->lse[i]);
        off = dead ? (isinf(got) && got < 0 ? 0 : INFINITY) : off;
        if (!(off <= t->lse))
            t->lse = isnan(off) ? INFINITY : off;
        for (int c = 0; c < p->d; c++) {
            double want = dead ? 0 : m->out[i * p->d + c];
            double exact = dead ? 0 : m->exact[i * p->d + c];
            double out = bf16_to_f32(f->out[at * p->d + c]);
            m->delta += (out - want) * (out - want);
            m->off += (out - exact) * (out - exact);
            m->own += (want - exact) * (want - exact);
            m->ref += want * want;
        }
    }
}

/* The operands of 8 bits of a head, by the case's rule. */
static int quantise(const struct filter_case *f, struct model *m, struct err *err)
{
    const struct own_quantised *r = &f->filters[0].quant;
    struct tile_attn *t = &m->tile;
    const struct attn_in *x = &t->exact->x;
    bool sale = f->kernel->kernel.lists == ATTN_64x32;
    t->together = sale ? 0 : f->kernel->kernel.tile.units;
    t->l_rounded = !r->e4m3 && !sale;
    PASS_ON(mem_alloc(&m->rounded, x->nq * x->d, sizeof *m->rounded, "queries", err));
    PASS_ON(mem_alloc(&m->centred, x->nk * x->d, sizeof *m->centred, "keys", err));
    for (int64_t i = 0; i < x->nq * x->d; i++)
        m->rounded[i] = dtype_round(r->inputs_as, x->q[i]);
    for (int64_t i = 0; i < x->nk * x->d; i++)
        m->centred[i] = dtype_round(r->inputs_as, x->k[i]);
    token_mean(m->centred, x->nk, x->d, r->mean_as, m->mean);
    token_centre(m->centred, x->nk, x->d, m->mean, r->keys_as, m->centred);
    return tile_quantise(t, &m->operands, r, x, m->rounded, m->centred, m->mean, err);
}

static void model_free(struct model *m)
{
    tile_work_free(m->work);
    m->work = NULL;
    tile_operands_free(&m->operands);
    m->operands = (struct tile_operands){0};
    free(m->rounded);
    free(m->centred);
    m->rounded = m->centred = NULL;
}

/* One list at the distances pv + slack, with exact P, and pv - slack. */
static void compare_list(const struct filter_case *f, struct model *m, int head, int64_t row0,
                         const int32_t *col, int64_t n, double slack, struct tally *t)
{
    int64_t bq = f->filters[0].bq, left = f->c.problem.nq - row0, rows = left < bq ? left : bq;
    double pv = f->filters[head % 2].pv, low = 0, high = 0;
    struct tile_attn exact = m->tile;
    exact.p_type = TILE_P_EXACT;
    exact.acc = OWN_SUM_F32;
    exact.out_dtype = DT_NONE;
    exact.pv = pv + slack;
    tile_attn_block(&exact, m->work, row0, rows, col, n, m->exact, m->lse, &high);
    m->tile.pv = pv - slack;
    tile_attn_block(&m->tile, m->work, row0, rows, col, n, m->out, m->lse, &low);
    m->low += low;
    m->high += high;
    t->lists++;
    t->tiles += (double)n;
    if (low == high)
        compare_rows(f, m, head, row0, rows, t);
    else
        t->ties++;
}

static int compare_head(const struct filter_case *f, struct model *m, int head, double slack,
                        struct tally *t, char what[160], struct err *err)
{
    const struct attn_problem *p = &f->c.problem;
    const struct accel_filter *s = f->filters + head % 2;
    int64_t kv = head / (p->heads / p->kv_heads) * p->nk * p->d,
            blocks = (p->nq + s->bq - 1) / s->bq;
    struct attn_in in = {.nq = p->nq,
                         .nk = p->nk,
                         .d = p->d,
                         .dv = p->d,
                         .q = f->q + head * p->nq * p->d,
                         .k = f->k + kv,
                         .v = f->v + kv,
                         .scale = p->scale,
                         .causal = p->causal};
    struct exact exact;
    int rc = 0;

    exact_init(&exact, &in, PREC_F64);
    m->tile = (struct tile_attn){.nq = p->nq,
                                 .nk = p->nk,
                                 .d = p->d,
                                 .dv = p->d,
                                 .causal = p->causal,
                                 .bq = s->bq,
                                 .bk = s->bk,
                                 .exact = &exact,
                                 .pv = s->pv,
                                 .scope = s->scope,
                                 .tail = s->tail,
                                 .keep_denominator = s->keep_denominator,
                                 .out_dtype = DT_BF16};
    if (is_quantised(f))
        TRY(quantise(f, m, err));
    if (f->qi &&
        (memcmp(f->qi + head * p->nq * p->d, m->operands.q.q, (size_t)(p->nq * p->d)) != 0 ||
         memcmp(f->ki + kv, m->operands.k.q, (size_t)(p->nk * p->d)) != 0))
        snprintf(what, 160, "other integers in head %d", head);
    TRY(tile_work_new(&m->tile, &m->work, err));
    m->low = m->high = 0;
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t *r = f->ptr + head * blocks + b;
        compare_list(f, m, head, b * s->bq, f->col + r[0], r[1] - r[0], slack, t);
    }
    if (!f->kernel->skips)
        f->tiles[head] = (double)(f->ptr[(head + 1) * blocks] - f->ptr[head * blocks]);
    t->computed += f->tiles[head];
    if (f->tiles[head] < m->low - 1e-6 || f->tiles[head] > m->high + 1e-6)
        snprintf(what, 160, "P V of %.2f tiles in head %d, the model's %.2f to %.2f",
                 f->tiles[head], head, m->low, m->high);
out:
    model_free(m);
    exact_free(&exact);
    return rc;
}

static int compare(const struct filter_case *f, struct tally *t, char what[160], struct err *err)
{
    double slack = f->c.data == DATA_HUGE ? 0.1 : 1e-3;
    OWN(free_at) struct model *m = NULL;
    t->lse = 0;
    PASS_ON(mem_zalloc(&m, 1, sizeof *m, "model", err));
    for (int h = 0; h < f->c.problem.heads; h++)
        PASS_ON(compare_head(f, m, h, slack, t, what, err));
    double size = m->ref > 0 ? sqrt(m->ref) : m->delta > 0 ? 0 : 1, l2 = sqrt(m->delta) / size;
    double off = sqrt(m->off) / size, own = sqrt(m->own) / size;
    t->l2 = fmax(t->l2, l2);
    t->more = fmax(t->more, off - own);
    t->off += off * off;
    t->own += own * own;
    bool cut = f->plan.n_splits > 0;
    double bound = !is_quantised(f) ? 5e-3 : cut ? fmax(1e-2, hypot(off, own)) : 1e-2;
    double most = cut ? own + 2e-3 : hypot(own, l2) + 1e-3;
    if (!*what && !(l2 <= bound && (!is_quantised(f) || off <= most) &&
                    t->lse <= (f->c.data == DATA_HUGE ? 0.05 : 1e-3)))
        snprintf(what, 160, "output %.2e, of exact probabilities' %.2e (model %.2e), lse %.2e", l2,
                 off, own, t->lse);
    return 0;
}

/* ---- cases ---------------------------------------------------------------------------------- */

static int run_case(struct gpu *g, struct filter_case *f, struct tally *t, char what[160],
                    struct err *err)
{
    bool same = true, unfiltered = true;
    PASS_ON(case_init(g, f, err));
    if (f->cuts && !f->plan.n_splits)
        return 0;
    t->cut += f->cuts;
    PASS_ON(launch(g, f, f->out, f->lse, err));
    if (f->kernel->skips)
        PASS_ON(filter_tiles(g, &f->job, f->kernel, f->tiles, err));
    PASS_ON(compare(f, t, what, err));
    if (!f->c.once)
        PASS_ON(same_bits(g, f, -1, &same, err));
    if (f->filters[0].pv == INFINITY && f->filters[1].pv == INFINITY && !f->c.once)
        PASS_ON(same_bits(g, f, 1e9, &unfiltered, err));
    if (!same || !unfiltered)
        snprintf(what, 160, "%s", same ? "other bits at a distance of 1e9" : "not repeatable");
    t->cases++;
    return 0;
}

/* Nonzero when the GPU is lost. */
static int check_case(struct gpu *g, const struct filter_kernel *k, struct cu_case c,
                      const double pv[2], int tail, bool keep, struct tally *t)
{
    struct filter_case f = {.c = c, .kernel = k};
    struct gpu_mark mark = gpu_mark(g);
    struct err err = {0};
    char what[160] = "";

    f.c.seed = (uint64_t)cu_checks + 1;
    f.c.problem.d = k->kernel.d;
    f.c.problem.lists = k->kernel.lists;
    f.c.problem.scale = k->kernel.d == 64 ? 0.125 : 0.08838834764831845;
    for (int i = 0; i < 2; i++) {
        f.filters[i] = cu_filter(k, pv[i]);
        f.filters[i].tail = tail;
        f.filters[i].keep_denominator = keep;
    }
    int rc = 0;
    for (int cuts = 0; cuts <= !k->skips && !rc && !*what; cuts++) {
        struct filter_case run = f;
        run.cuts = cuts;
        rc = run_case(g, &run, t, what, &err);
        case_free(&run);
        gpu_release(g, mark);
    }
    ++cu_checks;
    if (!rc && !*what)
        return 0;
    ++cu_failures;
    printf(
        "FAIL %s: %d/%d heads, %lld x %lld%s, data %s, density %g, pv %g and %g, tail %d%s: %s\n",
        k->kernel.name, c.problem.heads, c.problem.kv_heads, (long long)c.problem.nq,
        (long long)c.problem.nk, c.problem.causal ? " causal" : "", cu_data_names[c.data],
        c.density, pv[0], pv[1], tail, keep ? ", all in the normaliser" : "", rc ? err.msg : what);
    return rc && cudaGetLastError() != cudaSuccess;
}

static int check_kernel(struct gpu *g, const struct filter_kernel *k,
                        const struct cu_choice *choice, struct tally *t)
{
    static const struct {
        enum cu_data data;
        double pv;
    } settings[] = {{DATA_SMOOTH, 4},   {DATA_SMOOTH, 12},  {DATA_SMOOTH, INFINITY},
                    {DATA_NORMAL, 0.5}, {DATA_NORMAL, 0},   {DATA_OFFSET, 1},
                    {DATA_HUGE, 30},    {DATA_ONE_HOT, 20}, {DATA_EQUAL, 0},
                    {DATA_TINY, 4}};
    static const int64_t shapes[][2] = {{1, 1},     {64, 64},   {65, 65},    {129, 129},
                                        {300, 300}, {77, 1000}, {640, 1100}, {1000, 1000},
                                        {1, 500},   {400, 129}, {2300, 2300}};
    static const int heads[][2] = {{1, 1}, {4, 1}, {4, 2}};
    int n = choice->small ? 6 : (int)(sizeof shapes / sizeof *shapes), at = 0;
    for (int i = 0; i < n; i++)
        for (int causal = 0; causal < 2; causal++)
            for (size_t s = 0; s < sizeof settings / sizeof *settings; s++, at++) {
                struct cu_case c = {.problem = {heads[at % 3][0], heads[at % 3][1], 0, shapes[i][0],
                                                shapes[i][1], 0, causal, 0},
                                    .data = settings[s].data,
                                    .once = choice->brief,
                                    .density = at % 4 ? 0.6 : 1};
                if (shapes[i][0] > 1000 && s % 3)
                    continue;
                if (choice->brief && at % 7) /* prime to the periods of everything else */
                    continue;
                double pv = settings[s].pv, odd = at % 4 == 1   ? 2 * pv + 1
                                                  : at % 4 == 3 ? INFINITY
                                                                : pv;
                if (check_case(g, k, c, (const double[]){pv, odd}, at % 3, at % 5 == 4, t))
                    return 1;
            }
    return 0;
}

static void check_mean(const struct filter_kernel *k, const struct tally *t)
{
    double n = (double)MAX(t->cases, 1), off = sqrt(t->off / n), own = sqrt(t->own / n);
    if (k->kernel.element == ATTN_BF16 || off <= own + 5e-4 + 1e-3 / sqrt(n))
        return;
    printf("FAIL %s: in the mean %.2e from exact probabilities, the model %.2e\n", k->kernel.name,
           off, own);
    cu_failures++;
}

int check_filters(struct gpu *g, struct cu_choice *choice)
{
    for (const struct filter_kernel *k = filter_kernels; k->kernel.name; k++) {
        struct tally t = {0};
        int64_t before = cu_checks, failed = cu_failures;
        char why[160];
        struct accel_filter f = cu_filter(k, 1);
        if (!cu_chosen(choice, k->kernel.name) || !filter_kernel_find(k->kernel.d, g->sm, &f, why))
            continue;
        if (check_kernel(g, k, choice, &t))
            return 1;
        check_mean(k, &t);
        if (!k->skips && !t.cut && !choice->small && !choice->brief) {
            printf("FAIL %s: no case has rows in pieces\n", k->kernel.name);
            cu_failures++;
        }
        printf(
            "  %-5s %s: %lld checks, output %.1e, %.1e beyond the model's error, P V of %.1f%% of "
            "%.0f tiles computed, %lld of %lld lists decided by a tie, %lld cases in pieces\n",
            cu_failures > failed ? "FAIL" : "ok", k->kernel.name, (long long)(cu_checks - before),
            t.l2, t.more, t.tiles > 0 ? 100 * t.computed / t.tiles : 0, t.tiles, (long long)t.ties,
            (long long)t.lists, (long long)t.cut);
        fflush(stdout);
    }
    return 0;
}
