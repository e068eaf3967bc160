#include "sim/blocks/judge.h"

#include "core/intmath.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/method.h"
#include "core/pool.h"
#include "core/sort.h"
#include "sim/metrics.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

void judge_from(struct exact *e, const struct judge *j)
{
    e->judge = j;
}

void judge_begin(struct judging *j, struct exact *e, double *mass)
{
    *j = (struct judging){.exact = e, .mass = mass};
}

void judge_free(struct judging *j)
{
    for (int64_t i = 0; i < j->n; i++)
        mask_free(j->masks + i);
    free(j->masks);
    free(j->out);
    free(j->lse);
    memset(j, 0, sizeof *j);
}

static int make_rows(struct judging *j, int64_t rows, struct err *err)
{
    if (rows <= j->rows)
        return 0;
    free(j->out);
    free(j->lse);
    j->out = j->lse = NULL;
    j->rows = 0;
    PASS_ON(mem_alloc(&j->out, rows * j->exact->x.dv, sizeof *j->out, "output rows", err));
    PASS_ON(mem_alloc(&j->lse, rows, sizeof *j->lse, "log-sum-exp of rows", err));
    j->rows = rows;
    return 0;
}

static int on_cpu(struct judging *j, const struct mask *m, struct err *err)
{
    struct judged *sum = &j->sum;
    int64_t rows = m->row1 - m->row0;
    const double *ref, *ref_lse;
    PASS_ON(make_rows(j, rows, err));
    PASS_ON(exact_attend(j->exact, m, j->out, j->lse, err));
    PASS_ON(exact_out(j->exact, m->row0, m->row1, &ref, err));
    assert(rows == 0 || (j->out && j->lse));
    for (int64_t i = 0; i < rows * j->exact->x.dv; i++) {
        double d = j->out[i] - ref[i];
        sum->abs_delta += fabs(d);
        sum->sq_delta += d * d;
        sum->sq_ref += ref[i] * ref[i];
    }
    if (!j->mass)
        return 0;
    PASS_ON(exact_lse(j->exact, m->row0, m->row1, &ref_lse, err));
    for (int64_t r = 0; r < rows; r++)
        j->mass[m->row0 + r] = exp(j->lse[r] - ref_lse[r]);
    return 0;
}

int judge_add(struct judging *j, struct mask *m, struct err *err)
{
    int rc = 0;
    if (!j->exact->judge) {
        TRY(on_cpu(j, m, err));
    } else {
        TRY(mem_grow(&j->masks, &j->cap, j->n + 1, sizeof *j->masks, "masks", err));
        j->masks[j->n++] = *m;
        *m = (struct mask){0};
    }
out:
    mask_free(m);
    return rc;
}

/* Said once: a search asks for hundreds. */
static void say_refused(const char *why)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&said))
        log_warn("masks that the GPU cannot attend to are judged on the CPU: %s", why);
}

int judge_end(struct judging *j, const struct accel_filter *filter, struct err *err)
{
    const struct judge *by = j->exact->judge;
    char why[160] = "";
    int rc = 0;
    if (!by)
        return 0;
    rc = by->masks(by->self, j->masks, j->n, filter, j->mass, &j->sum, why, err);
    if (rc != METHOD_SKIP)
        return rc;
    if (filter)
        return err_set(err, ERR_RUN, "a filter on P V that the GPU refuses: %s", why);
    say_refused(why);
    rc = 0;
    for (int64_t i = 0; i < j->n && !rc; i++)
        rc = on_cpu(j, j->masks + i, err);
    return rc;
}

/* ---- settings of a grid --------------------------------------------------------------------- */

/* Exact rows held at a time. */
#define PIECE 16

struct grid_run {
    const struct block_grid *g;
    const struct attn_in *x;
    int64_t nb;
    int32_t *cols;       /* [n][nb] lists of the current unit */
    int64_t *len;        /* [n] */
    double *keep;        /* [n][nq] recall per row */
    int64_t *pairs;      /* [n] */
    double *err2, ref2;  /* [n] */
    double *p;           /* [PIECE][nk] */
    double *mass, *part; /* [nb], [nb][dv] of one row */
    double *ref, *out;   /* [dv] */
};

static void run_free(struct grid_run *r)
{
    free(r->cols);
    free(r->len);
    free(r->keep);
    free(r->pairs);
    free(r->err2);
    free(r->p);
    free(r->mass);
    free(r->part);
    free(r->ref);
    free(r->out);
}

static int run_init(struct grid_run *r, const struct block_grid *g, struct err *err)
{
    const struct attn_in *x = &g->in->x;
    *r = (struct grid_run){.g = g, .x = x, .nb = ceil_div(x->nk, g->block)};
    PASS_ON(mem_alloc(&r->cols, g->n * r->nb, sizeof *r->cols, "block lists", err));
    PASS_ON(mem_alloc(&r->len, g->n, sizeof *r->len, "block lists", err));
    PASS_ON(mem_alloc(&r->keep, g->n * x->nq, sizeof *r->keep, "recall per row", err));
    PASS_ON(mem_zalloc(&r->pairs, g->n, sizeof *r->pairs, "kept pairs", err));
    PASS_ON(mem_zalloc(&r->err2, g->n, sizeof *r->err2, "errors", err));
    PASS_ON(mem_alloc(&r->p, PIECE * x->nk, sizeof *r->p, "exact rows", err));
    PASS_ON(mem_alloc(&r->mass, r->nb, sizeof *r->mass, "block mass", err));
    PASS_ON(mem_alloc(&r->part, r->nb * x->dv, sizeof *r->part, "partial outputs", err));
    PASS_ON(mem_alloc(&r->ref, x->dv, sizeof *r->ref, "output row", err));
    return mem_alloc(&r->out, x->dv, sizeof *r->out, "output row", err);
}

/* Mass and partial output of every key block of one exact row that sees `limit` keys. */
static void split_row(struct grid_run *r, const double *p, int64_t limit)
{
    int dv = r->x->dv;
    memset(r->ref, 0, (size_t)dv * sizeof *r->ref);
    for (int64_t j = 0; j * r->g->block < limit; j++) {
        double *part = r->part + j * dv, mass = 0;
        int64_t k0 = j * r->g->block, k1 = k0 + r->g->block < limit ? k0 + r->g->block : limit;
        memset(part, 0, (size_t)dv * sizeof *part);
        for (int64_t k = k0; k < k1; k++) {
            const float *v = r->x->v + k * dv;
            mass += p[k];
            for (int c = 0; c < dv; c++)
                part[c] += p[k] * v[c];
        }
        r->mass[j] = mass;
        for (int c = 0; c < dv; c++)
            r->ref[c] += part[c];
    }
    for (int c = 0; c < dv; c++)
        r->ref2 += r->ref[c] * r->ref[c];
}

static void judge_row(struct grid_run *r, int t, int64_t row, int64_t limit)
{
    int dv = r->x->dv;
    int64_t b = r->g->block;
    const int32_t *cols = r->cols + t * r->nb;
    double mass = 0;
    memset(r->out, 0, (size_t)dv * sizeof *r->out);
    for (int64_t e = 0; e < r->len[t] && cols[e] * b < limit; e++) {
        const double *part = r->part + cols[e] * dv;
        int64_t left = limit - cols[e] * b;
        mass += r->mass[cols[e]];
        r->pairs[t] += left < b ? left : b;
        for (int c = 0; c < dv; c++)
            r->out[c] += part[c];
    }
    for (int c = 0; c < dv; c++) {
        double d = (mass > 0 ? r->out[c] / mass : 0) - r->ref[c];
        r->err2[t] += d * d;
    }
    r->keep[t * r->x->nq + row] = mass;
}

static int run_rows(struct grid_run *r, struct err *err)
{
    const struct attn_in *x = r->x;
    const struct block_grid *g = r->g;
    int64_t unit_end = 0;
    for (int64_t r0 = 0; r0 < x->nq; r0 += PIECE) {
        int64_t r1 = r0 + PIECE < x->nq ? r0 + PIECE : x->nq;
        PASS_ON(exact_probs(g->in->exact, r0, r1, r->p, err));
        for (int64_t row = r0; row < r1; row++) {
            int64_t limit = attn_limit(x, row);
            for (int t = 0; row == unit_end && t < g->n; t++)
                r->len[t] = g->list(g->ctx, t, row, r->cols + t * r->nb);
            if (row == unit_end)
                unit_end += g->unit;
            split_row(r, r->p + (row - r0) * x->nk, limit);
            for (int t = 0; t < g->n; t++)
                judge_row(r, t, row, limit);
        }
    }
    return 0;
}

/* keep [nq] is sorted. */
static struct block_score score_of(const struct block_grid *g, int64_t pairs, double *keep,
                                   double err2, double ref2)
{
    const struct attn_in *x = &g->in->x;
    double sum = 0;
    sort_f64(keep, x->nq);
    for (int64_t i = 0; i < x->nq; i++)
        sum += keep[i];
    return (struct block_score){
        .density = (double)pairs / (double)pairs_allowed(x->nq, x->nk, x->causal),
        .keep_p1 = percentile_sorted(keep, x->nq, 1),
        .keep_mean = sum / (double)x->nq,
        .error = ref2 > 0 ? sqrt(err2 / ref2) : 0,
    };
}

/* Candidate t as a mask of the whole head. */
static int candidate_mask(const struct block_grid *g, int t, int32_t *cols, struct mask *m,
                          struct err *err)
{
    const struct attn_in *x = &g->in->x;
    PASS_ON(mask_lists_init(m, x->nq, x->nk, 0, x->nq, x->causal, g->unit, g->block, err));
    for (int64_t row = 0; row < x->nq; row += g->unit)
        PASS_ON(mask_lists_add_all(m, row / g->unit, cols, g->list(g->ctx, t, row, cols), err));
    mask_lists_finish(m);
    return 0;
}

/* Candidates that are judged together; beyond the last one it stands again. */
struct batch {
    const struct block_grid *g;
    int first;
    struct judge_many *many; /* [JUDGE_MANY] */
    int64_t pairs[JUDGE_MANY];
    struct block_score score[JUDGE_MANY];
};

static int make_candidate(void *batch, int64_t i, int worker, struct err *err)
{
    struct batch *b = batch;
    const struct block_grid *g = b->g;
    int t = b->first + (int)i < g->n ? b->first + (int)i : g->n - 1;
    struct mask_counts n;
    OWN(free_at) int32_t *cols = NULL;
    PASS_ON(mem_alloc(&cols, ceil_div(g->in->x.nk, g->block), sizeof *cols, "block lists", err));
    PASS_ON(candidate_mask(g, t, cols, &b->many[i].mask, err));
    PASS_ON(mask_count(&b->many[i].mask, &n, err));
    b->pairs[i] = n.pairs_kept;
    return 0;
}

static int score_candidate(void *batch, int64_t i, int worker, struct err *err)
{
    struct batch *b = batch;
    struct judge_many *m = b->many + i;
    b->score[i] = score_of(b->g, b->pairs[i], m->mass, m->sum.sq_delta, m->sum.sq_ref);
    return 0;
}

/* One by one, which the CPU can do where the other refuses. */
static int judge_singly(struct batch *b, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < JUDGE_MANY && !rc; i++) {
        struct judge_many *m = b->many + i;
        OWN(judge_free) struct judging j = {0};
        judge_begin(&j, b->g->in->exact, m->mass);
        rc = judge_add(&j, &m->mask, err);
        rc = rc ? rc : judge_end(&j, NULL, err);
        m->sum = j.sum;
    }
    return rc;
}

static int judge_batch(const struct judge *by, struct batch *b, struct err *err)
{
    char why[160];
    int rc = 0;
    TRY(pool_run(by->jobs, JUDGE_MANY, make_candidate, b, err));
    rc = by->many(by->self, b->many, why, err);
    if (rc == METHOD_SKIP)
        rc = judge_singly(b, err);
    if (rc)
        goto out;
    TRY(pool_run(by->jobs, JUDGE_MANY, score_candidate, b, err));
out:
    for (int i = 0; i < JUDGE_MANY; i++)
        mask_free(&b->many[i].mask);
    return rc;
}

static int run_judged(const struct block_grid *g, struct block_score *score, struct err *err)
{
    struct judge_many many[JUDGE_MANY];
    struct batch b = {.g = g, .many = many};
    OWN(free_at) double *mass = NULL;
    memset(many, 0, sizeof many);
    PASS_ON(mem_alloc(&mass, JUDGE_MANY * g->in->x.nq, sizeof *mass, "recall per row", err));
    for (int i = 0; i < JUDGE_MANY; i++)
        many[i].mass = mass + i * g->in->x.nq;
    for (; b.first < g->n; b.first += JUDGE_MANY) {
        PASS_ON(judge_batch(judge_of(g->in->exact), &b, err));
        for (int i = 0; i < JUDGE_MANY && b.first + i < g->n; i++)
            score[b.first + i] = b.score[i];
    }
    return 0;
}

int block_grid_run(const struct block_grid *g, struct block_score *score, struct err *err)
{
    int rc = 0;
    struct grid_run r;
    if (judge_of(g->in->exact))
        return run_judged(g, score, err);
    TRY(run_init(&r, g, err));
    TRY(run_rows(&r, err));
    for (int t = 0; t < g->n; t++)
        score[t] = score_of(g, r.pairs[t], r.keep + t * r.x->nq, r.err2[t], r.ref2);
out:
    run_free(&r);
    return rc;
}

bool block_grid_on_device(const void *params, char why[160])
{
    return true;
}

const struct block_score block_score_none = {0, INFINITY, INFINITY, 0};

void block_score_add(struct block_score *sum, const struct block_score *one, int n)
{
    sum->density += one->density / n;
    sum->keep_p1 = fmin(sum->keep_p1, one->keep_p1);
    sum->keep_mean = fmin(sum->keep_mean, one->keep_mean);
    sum->error = fmax(sum->error, one->error);
}
