/*
 * spargeattn_calibrate.c - per-head search of theta, tau and pv (arXiv 2502.18137, section 3.6, in
 * the steps of the authors' tuner).
 *
 * For every captured input and theta = -1, -15/16, ..., 15/16: the smallest tau whose output stays
 * within the relative L1 bound l1 of dense attention, then the smallest pv within l2. A theta that
 * leaves less than 0.1 sparsity ends the row. Points of all inputs fall into bins of two theta
 * values; the bin with the most sparsity wins and the head takes the largest theta, tau, pv of it.
 * A head whose bin has no more than 0.1 mean sparsity is dense, for good.
 *
 * One evaluation costs the attention of the kept tiles; about 21 per theta and input, fewer where
 * theta does not change which blocks are similar (all theta < 0 give one and the same map).
 */
#include "sim/methods/spargeattn/spargeattn.h"

#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"
#include "sim/blocks/judge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define THETAS 32
#define MIN_SPARSITY 0.1
#define TAU_STEP 0.001
#define PV_STEP 0.1
#define PV_START 20.0
#define PV_WIDE 50.0

/* ---- bisection and binning ------------------------------------------------------------------ */

int sparge_bisect_tau(sparge_eval_fn *eval, void *ctx, double l1, double *tau, double *sparsity,
                      struct err *err)
{
    double lo = 0, hi = 1, t = 0.1, error;
    while (hi - lo > TAU_STEP) {
        int rc = eval(ctx, t, PV_WIDE, &error, sparsity, err);
        if (rc)
            return rc;
        *(error < l1 ? &hi : &lo) = t;
        t = error < l1 ? (t + lo) / 2 : (t + hi) / 2;
    }
    *tau = t > 1 - TAU_STEP ? 1 : t;
    return 0;
}

int sparge_bisect_pv(sparge_eval_fn *eval, void *ctx, double l2, double tau, double *pv,
                     struct err *err)
{
    double lo = 0, hi = PV_WIDE, x = PV_START, error, sparsity;
    while (hi - lo > PV_STEP) {
        int rc = eval(ctx, tau, x, &error, &sparsity, err);
        if (rc)
            return rc;
        *(error < l2 ? &hi : &lo) = x;
        x = error < l2 ? (x + lo) / 2 : (x + hi) / 2;
    }
    *pv = x;
    return 0;
}

/* The paper's grid search: the sparsest tau of 0.05, 0.10, ..., 1 within the bound (or 1). */
static int grid_tau(sparge_eval_fn *eval, void *ctx, double l1, double *tau, double *sparsity,
                    struct err *err)
{
    double error, s;
    *tau = 1;
    *sparsity = -1;
    for (int i = 1; i <= 20; i++) {
        int rc = eval(ctx, i / 20.0, PV_WIDE, &error, &s, err);
        if (rc)
            return rc;
        if ((error < l1 || i == 20) && s > *sparsity) {
            *tau = i / 20.0;
            *sparsity = s;
        }
    }
    return 0;
}

/* The smallest pv of 2.5, 5, ..., 50 within the bound (50 if none is). */
static int grid_pv(sparge_eval_fn *eval, void *ctx, double l2, double tau, double *pv,
                   struct err *err)
{
    for (int i = 1; i <= 20; i++) {
        double error, sparsity;
        int rc = eval(ctx, tau, i * 2.5, &error, &sparsity, err);
        if (rc)
            return rc;
        *pv = i * 2.5;
        if (error < l2)
            break;
    }
    return 0;
}

static int bin_of(double theta)
{
    return (int)floor((theta + 1) * (THETAS / 4));
}

void sparge_pick(const struct sparge_point *points, int64_t n, enum sparge_bin how,
                 struct sparge_point *best)
{
    double rank = -INFINITY;
    int chosen = 0;
    for (int64_t i = 0; i < n; i++) {
        double sum = 0, count = 0;
        int bin = bin_of(points[i].theta);
        for (int64_t k = 0; k < n; k++)
            if (bin_of(points[k].theta) == bin) {
                sum += points[k].sparsity;
                count++;
            }
        double value = how == SPARGE_BIN_MEAN ? sum / count : sum;
        if (value > rank) {
            rank = value;
            chosen = bin;
            *best = (struct sparge_point){-INFINITY, -INFINITY, -INFINITY, sum / count};
        }
    }
    for (int64_t i = 0; i < n; i++)
        if (bin_of(points[i].theta) == chosen) {
            best->theta = fmax(best->theta, points[i].theta);
            best->tau = fmax(best->tau, points[i].tau);
            best->pv = fmax(best->pv, points[i].pv);
        }
}

/* ---- one input ------------------------------------------------------------------------------ */

/* The calls that are judged together: the guidance branches of one step. */
struct input {
    const struct sparge_params *p;
    int n;
    struct sparge **s;       /* [n], owned */
    struct tile_work **work; /* [n], owned */
    int32_t *col;
    double *out, *lse; /* of a query block */
    double ref;        /* sum |O_ref| over all calls */
    bool judged;       /* the calls are judged by somebody else (sim/blocks/judge.h) */
    double bound;      /* of the search under way: errors beyond it are alike */
};

static void input_free(struct input *in)
{
    for (int i = 0; i < in->n; i++) {
        if (in->s)
            sparge_free(in->s[i]);
        if (in->work)
            tile_work_free(in->work[i]);
    }
    free(in->s);
    free(in->work);
    free(in->col);
    free(in->out);
    free(in->lse);
    memset(in, 0, sizeof *in);
}

/* Does somebody else judge every call, with the filter of these rules? */
static bool all_judged(const struct input *in)
{
    struct accel_filter f;
    char why[160] = "";
    for (int i = 0; i < in->n; i++) {
        const struct judge *by = judge_of(in->s[i]->in.exact);
        if (!by)
            return false;
        if (sparge_filter(&in->s[i]->rules, &f, why) && by->filters(by->self, &f, why))
            continue;
        log_warn("spargeattn: searched on the CPU: %s", why);
        return false;
    }
    return true;
}

static int input_init(struct input *in, const struct sparge_params *p,
                      const struct head_in *samples, int n, struct err *err)
{
    int rc = 0;
    const double *dense;
    struct sparge_params open = *p;

    memset(in, 0, sizeof *in);
    open.sink = false;
    open.dense = false;
    open.pv = PV_WIDE;
    in->p = p;
    in->n = n;
    TRY(mem_zalloc(&in->s, n, sizeof *in->s, "calibration input", err));
    TRY(mem_zalloc(&in->work, n, sizeof *in->work, "calibration input", err));
    int64_t blocks = 1, bq = 1, dv = 1;
    for (int i = 0; i < n; i++) {
        const struct head_in *h = &samples[i];
        TRY(sparge_new(&open, h, &in->s[i], err));
        TRY(tile_work_new(&in->s[i]->tile, &in->work[i], err));
        blocks = in->s[i]->nk_blocks > blocks ? in->s[i]->nk_blocks : blocks;
        bq = in->s[i]->rules.bq;
        TRY(exact_out(h->exact, 0, h->x.nq, &dense, err));
        for (int64_t k = 0; k < h->x.nq * h->x.dv; k++)
            in->ref += fabs(dense[k]);
        dv = h->x.dv > dv ? h->x.dv : dv;
    }
    in->judged = all_judged(in);
    TRY(mem_alloc(&in->col, blocks, sizeof *in->col, "block list", err));
    TRY(mem_alloc(&in->out, bq * dv, sizeof *in->out, "output tile", err));
    TRY(mem_alloc(&in->lse, bq, sizeof *in->lse, "log-sum-exp tile", err));
out:
    if (rc)
        input_free(in);
    return rc;
}

struct sums {
    double delta, kept, pv, native, tiles;
};

/* The official metric rounds to 4 digits. */
static double relative_l1(const struct input *in, double delta)
{
    double x = in->ref > 0 ? delta / in->ref : delta > 0 ? INFINITY : 0;
    return in->p->profile == SPARGE_PAPER ? x : round(x * 1e4) / 1e4;
}

/* One call. The error only grows from block to block: once it has reached the bound the setting has
 * failed, and the official sparsity needs no more than the lists of the blocks that are left. */
static int run_call(struct input *in, int c, struct sums *t, struct err *err)
{
    bool lists_suffice = in->p->profile != SPARGE_PAPER;
    struct sparge *s = in->s[c];
    const struct attn_in *x = &s->in.x;
    const double *ref;
    double mass;
    int rc = 0;
    for (int64_t i = 0; i < s->nq_blocks; i++) {
        int64_t row0 = i * s->rules.bq, rows = x->nq - row0;
        rows = rows < s->rules.bq ? rows : s->rules.bq;
        int64_t n = sparge_list(s, s->row, i, in->col, &mass);
        t->kept += (double)n;
        if (lists_suffice && relative_l1(in, t->delta) >= in->bound)
            continue;
        tile_attn_block(&s->tile, in->work[c], row0, rows, in->col, n, in->out, in->lse, &t->pv);
        TRY(exact_out(s->in.exact, row0, row0 + rows, &ref, err));
        for (int64_t k = 0; k < rows * x->dv; k++)
            t->delta += fabs(in->out[k] - ref[k]);
    }
out:
    return rc;
}

static void add_tiles(const struct sparge *s, struct sums *t)
{
    bool causal = s->in.x.causal;
    t->native += (double)sparge_native_tiles(s->nq_blocks, s->nk_blocks, causal);
    t->tiles += (double)sparge_tiles(s->nq_blocks, s->nk_blocks, &s->rules, causal);
}

/* The lists of all query blocks, while threads make them. */
struct lists {
    const struct sparge *s;
    struct sparge_row **rows; /* [jobs], owned: per thread */
    int32_t *col;             /* [nq_blocks][nk_blocks], owned */
    int64_t *n;               /* [nq_blocks], owned */
    int jobs;
};

static void lists_free(struct lists *l)
{
    for (int i = 0; l->rows && i < l->jobs; i++)
        sparge_row_free(l->rows[i]);
    free(l->rows);
    free(l->col);
    free(l->n);
}

static int list_block(void *lists, int64_t i, int worker, struct err *err)
{
    struct lists *l = lists;
    double mass;
    (void)err;
    l->n[i] = sparge_list(l->s, l->rows[worker], i, l->col + i * l->s->nk_blocks, &mass);
    return 0;
}

/* The mask of the whole head. Few blocks are not worth the start of threads. */
static int make_mask(const struct sparge *s, int jobs, struct mask *m, struct err *err)
{
    enum { FEW = 1 << 15 };
    const struct attn_in *x = &s->in.x;
    struct lists l = {.s = s, .jobs = s->nq_blocks * s->nk_blocks > FEW ? jobs : 1};
    int rc = 0;

    TRY(mem_zalloc(&l.rows, l.jobs, sizeof *l.rows, "block rows", err));
    for (int i = 0; i < l.jobs; i++)
        TRY(sparge_row_new(s->nk_blocks, l.rows + i, err));
    TRY(mem_alloc(&l.col, s->nq_blocks * s->nk_blocks, sizeof *l.col, "block lists", err));
    TRY(mem_alloc(&l.n, s->nq_blocks, sizeof *l.n, "block lists", err));
    TRY(pool_run(l.jobs, s->nq_blocks, list_block, &l, err));
    TRY(mask_lists_init(m, x->nq, x->nk, 0, x->nq, x->causal, s->rules.bq, s->rules.bk, err));
    for (int64_t i = 0; i < s->nq_blocks; i++)
        TRY(mask_lists_add_all(m, i, l.col + i * s->nk_blocks, l.n[i], err));
    mask_lists_finish(m);
out:
    lists_free(&l);
    return rc;
}

/* One call by somebody else: all blocks at once, whatever the bound. */
static int run_judged(struct input *in, int c, struct sums *t, struct err *err)
{
    const struct sparge *s = in->s[c];
    struct judging j;
    struct mask m = {0};
    struct accel_filter f;
    char why[160];
    int rc = 0;

    judge_begin(&j, s->in.exact, NULL);
    TRY(make_mask(s, judge_of(s->in.exact)->jobs, &m, err));
    t->kept += (double)m.ptr[m.ngroups];
    TRY(judge_add(&j, &m, err));
    if (!sparge_filter(&s->rules, &f, why))
        FAIL(err, ERR_RUN, "%s", why);
    TRY(judge_end(&j, &f, err));
    t->delta += j.sum.abs_delta;
    t->pv += j.sum.tiles_pv;
out:
    mask_free(&m);
    judge_free(&j);
    return rc;
}

/* L1 over all calls of the input (at least the bound where it is not below it), sparsity. */
static int evaluate(void *ctx, double tau, double pv, double *l1, double *sparsity, struct err *err)
{
    struct input *in = ctx;
    struct sums t = {0};
    int rc = 0;
    if (interrupted())
        return err_set(err, ERR_INTERRUPTED, "calibration interrupted");
    for (int c = 0; c < in->n; c++) {
        sparge_set_tau(in->s[c], tau);
        sparge_set_pv(in->s[c], pv);
        TRY((in->judged ? run_judged : run_call)(in, c, &t, err));
        add_tiles(in->s[c], &t);
    }
    *l1 = relative_l1(in, t.delta);
    *sparsity = in->p->profile == SPARGE_PAPER ? 1 - (t.kept + t.pv) / (2 * t.tiles)
                                               : 1 - t.kept / t.native;
out:
    return rc;
}

static int search_theta(struct input *in, struct sparge_point *point, struct err *err)
{
    const struct sparge_params *p = in->p;
    bool grid = p->search == SPARGE_GRID;
    int rc = 0;

    in->bound = p->l1;
    if (grid)
        TRY(grid_tau(evaluate, in, p->l1, &point->tau, &point->sparsity, err));
    else
        TRY(sparge_bisect_tau(evaluate, in, p->l1, &point->tau, &point->sparsity, err));
    point->pv = PV_START;
    in->bound = p->l2;
    if (p->tune_pv && grid)
        TRY(grid_pv(evaluate, in, p->l2, point->tau, &point->pv, err));
    else if (p->tune_pv)
        TRY(sparge_bisect_pv(evaluate, in, p->l2, point->tau, &point->pv, err));
out:
    return rc;
}

/* Points of one input in ascending theta; *n of them. */
static int search_input(struct input *in, struct sparge_point points[THETAS], int64_t *n,
                        struct err *err)
{
    for (int i = 0; i < THETAS; i++) {
        double theta = -1 + i * (2.0 / THETAS);
        bool changed = i == 0;
        for (int c = 0; c < in->n; c++)
            changed = sparge_set_theta(in->s[c], theta) || changed;
        if (changed) {
            int rc = search_theta(in, &points[i], err);
            if (rc)
                return rc;
        } else {
            points[i] = points[i - 1];
        }
        points[i].theta = theta;
        *n = i + 1;
        if (points[i].sparsity < MIN_SPARSITY)
            break;
    }
    return 0;
}

/* ---- a head --------------------------------------------------------------------------------- */

int sparge_input_size(const struct head_in *samples, int n, int first)
{
    int k = first + 1;
    for (; k < n && samples[k].step == samples[first].step; k++)
        for (int e = first; e < k; e++)
            if (!strcmp(samples[e].branch, samples[k].branch))
                return k - first;
    return k - first;
}

/* All inputs in order; *head gets the final parameters. */
static int search_head(const struct sparge_params *p, const struct head_in *samples, int n,
                       struct sparge_point *head, bool *sparse, struct err *err)
{
    struct sparge_point *points = NULL, *all = NULL, fresh[THETAS] = {0};
    int64_t n_all = 0, n_fresh = 0;
    struct input in = {0};
    int rc = 0;

    *sparse = true;
    TRY(mem_alloc(&all, (int64_t)n * THETAS, sizeof *all, "calibration points", err));
    TRY(mem_alloc(&points, (int64_t)n * THETAS, sizeof *points, "calibration points", err));
    for (int first = 0, size; first < n && *sparse; first += size) {
        size = sparge_input_size(samples, n, first);
        TRY(input_init(&in, p, samples + first, size, err));
        TRY(search_input(&in, fresh, &n_fresh, err));
        input_free(&in);
        /* New points come before earlier ones: the order decides ties between bins. */
        memcpy(points, fresh, (size_t)n_fresh * sizeof *points);
        memcpy(points + n_fresh, all, (size_t)n_all * sizeof *points);
        n_all += n_fresh;
        memcpy(all, points, (size_t)n_all * sizeof *all);
        sparge_pick(all, n_all, (enum sparge_bin)p->bin, head);
        *sparse = head->sparsity > MIN_SPARSITY;
    }
out:
    input_free(&in);
    free(points);
    free(all);
    return rc;
}

int sparge_calibrate(struct method_ctx *ctx, const void *params, const struct head_in *samples,
                     int n, struct jw *w, struct err *err)
{
    const struct sparge_params *p = params;
    struct sparge_point head = {0};
    bool sparse;

    if (p->select == SPARGE_TOPK)
        return err_set(err, ERR_USAGE, "calibrate searches tau: it needs select=cdf");
    if (!p->judge)
        return err_set(err, ERR_USAGE, "calibrate searches theta: it needs judge=1");
    for (int i = 0; i < n; i++) {
        const struct head_in *h = &samples[i];
        if (h->x.causal && h->x.nq != h->x.nk)
            return method_skip(ctx, "causal needs nq == nk");
        if (p->arith != SPARGE_EXACT && h->x.d > TILE_MAX_D)
            return method_skip(ctx, "head dimension %d is above %d", h->x.d, TILE_MAX_D);
    }
    int rc = search_head(p, samples, n, &head, &sparse, err);
    if (rc)
        return rc;
    jw_knum(w, "theta", sparse ? head.theta : 1);
    jw_knum(w, "tau", sparse ? head.tau : 1);
    jw_knum(w, "pv", head.pv);
    jw_kbool(w, "dense", !sparse);
    /* The official module tunes without the sink block and runs with it. */
    if (p->profile == SPARGE_OFFICIAL)
        jw_kbool(w, "sink", true);
    return 0;
}
