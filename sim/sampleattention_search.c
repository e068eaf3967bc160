/*
 * sampleattention_search.c - offline search of (alpha_c, alpha_s, chunks) for one head: the stand-in
 * for the tuning of arXiv:2406.15486, table 6, which needs a benchmark score.
 *
 * Every triple of the grid is evaluated on every sample: density, recall per row (p1, mean) and the
 * relative L2 error of the output. The density is averaged over the samples; recall and error count
 * at the worst one. Among the triples that meet the target the sparsest wins; ties go to fewer
 * chunks, then to the larger alpha_c.
 *
 * One pass over the exact softmax serves the whole grid: per query row the mass and the partial
 * output of every key block are computed once, and each triple adds up the blocks that it keeps.
 * Cost: one dense attention plus triples * N * nb * d_v additions.
 */
#include "sim/sampleattention.h"

#include "core/log.h"
#include "core/mem.h"
#include "core/method.h"
#include "sim/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double ALPHAS[] = {0.80, 0.85, 0.90, 0.92, 0.95, 0.98};
static const int CHUNKS[] = {1, 2, 4};

#define N_ALPHA ((int)(sizeof ALPHAS / sizeof *ALPHAS))
#define N_CHUNKS ((int)(sizeof CHUNKS / sizeof *CHUNKS))
#define N_GRID (N_ALPHA * N_ALPHA * N_CHUNKS)
#define PIECE 16

struct result {
    double density, keep_p1, keep_mean, error;
};

/* The grid on one sample. */
struct grid {
    struct sample_plan plan[N_GRID];
    bool dense[N_GRID];     /* the slices do not fit: a full mask */
    double *keep;           /* [N_GRID][nq] recall per row, owned */
    int64_t pairs[N_GRID];
    double err2[N_GRID], ref2;
    double *p, *mass, *part, *sum; /* row buffers, owned */
};

static int grid_plans(struct grid *g, const struct sample_config *base, const struct head_in *in,
                      struct err *err)
{
    int rc = 0, t = 0;
    struct sample_scores s = {0};
    for (int n = 0; n < N_CHUNKS; n++) {
        struct sample_config c = *base;
        c.chunks = CHUNKS[n];
        bool fits = sample_applies(&c);
        if (fits) {
            TRY(sample_scores_init(&s, &c, err));
            TRY(sample_scores_run(&s, &c, in->ops, in->lse, err));
        }
        for (int a = 0; a < N_ALPHA * N_ALPHA; a++, t++) {
            c.alpha_c = ALPHAS[a / N_ALPHA];
            c.alpha_s = ALPHAS[a % N_ALPHA];
            g->dense[t] = !fits;
            g->plan[t].c = c;
            if (fits)
                TRY(sample_plan_build(&g->plan[t], &c, &s, err));
        }
        sample_scores_free(&s);
    }
out:
    sample_scores_free(&s);
    return rc;
}

static int grid_init(struct grid *g, const struct sample_config *base, const struct head_in *in,
                     struct err *err)
{
    int rc = 0;
    int64_t nb = sample_blocks(base), dv = in->x.dv;
    TRY(grid_plans(g, base, in, err));
    TRY(mem_alloc(&g->keep, N_GRID * in->x.nq, sizeof *g->keep, "recall per row", err));
    TRY(mem_alloc(&g->p, PIECE * in->x.nk, sizeof *g->p, "exact rows", err));
    TRY(mem_alloc(&g->mass, nb, sizeof *g->mass, "block mass", err));
    TRY(mem_alloc(&g->part, nb * dv, sizeof *g->part, "partial outputs", err));
    TRY(mem_alloc(&g->sum, 2 * dv, sizeof *g->sum, "output row", err));
out:
    return rc;
}

static void grid_free(struct grid *g)
{
    for (int t = 0; t < N_GRID; t++)
        sample_plan_free(&g->plan[t]);
    free(g->keep);
    free(g->p);
    free(g->mass);
    free(g->part);
    free(g->sum);
}

/* Mass and partial output of every key block of one exact row at position pos. */
static void split_row(struct grid *g, const struct attn_in *x, int64_t block, const double *p,
                      int64_t pos)
{
    for (int64_t j = 0; j <= pos / block; j++) {
        double *part = g->part + j * x->dv, mass = 0;
        int64_t k1 = (j + 1) * block < pos + 1 ? (j + 1) * block : pos + 1;
        memset(part, 0, (size_t)x->dv * sizeof *part);
        for (int64_t k = j * block; k < k1; k++) {
            const float *v = x->v + k * x->dv;
            mass += p[k];
            for (int c = 0; c < x->dv; c++)
                part[c] += p[k] * v[c];
        }
        g->mass[j] = mass;
    }
}

/* Recall, pairs and squared error of triple t on the row that was split last. */
static void judge_row(struct grid *g, int t, const struct attn_in *x, int64_t row, int64_t pos,
                      const double *ref)
{
    const struct sample_plan *p = &g->plan[t];
    int64_t b = p->c.block, i = pos / b;
    double *out = g->sum + x->dv, mass = 0, e2 = 0;
    int l = g->dense[t] ? 0 : sample_plan_list(p, i);
    memset(out, 0, (size_t)x->dv * sizeof *out);
    for (int64_t j = 0; j <= i; j++) {
        if (!g->dense[t] && !sample_plan_keeps(p, l, i, j))
            continue;
        mass += g->mass[j];
        g->pairs[t] += j < i ? b : pos - i * b + 1;
        for (int c = 0; c < x->dv; c++)
            out[c] += g->part[j * x->dv + c];
    }
    for (int c = 0; c < x->dv; c++) {
        double d = (mass > 0 ? out[c] / mass : 0) - ref[c];
        e2 += d * d;
    }
    g->keep[t * x->nq + row] = mass;
    g->err2[t] += e2;
}

static int grid_rows(struct grid *g, const struct head_in *in, int64_t block, struct err *err)
{
    int rc = 0;
    const struct attn_in *x = &in->x;
    for (int64_t r0 = 0; r0 < x->nq; r0 += PIECE) {
        int64_t r1 = r0 + PIECE < x->nq ? r0 + PIECE : x->nq;
        TRY(attn_probs(in->ops, r0, r1, in->lse + r0, g->p, err));
        for (int64_t r = r0; r < r1; r++) {
            int64_t pos = r + x->nk - x->nq;
            split_row(g, x, block, g->p + (r - r0) * x->nk, pos);
            memset(g->sum, 0, (size_t)x->dv * sizeof *g->sum);
            for (int64_t j = 0; j <= pos / block; j++)
                for (int c = 0; c < x->dv; c++)
                    g->sum[c] += g->part[j * x->dv + c];
            for (int c = 0; c < x->dv; c++)
                g->ref2 += g->sum[c] * g->sum[c];
            for (int t = 0; t < N_GRID; t++)
                judge_row(g, t, x, r, pos, g->sum);
        }
    }
out:
    return rc;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Add one sample to the results of the grid. */
static int grid_sample(struct result *res, const struct sample_config *base,
                       const struct head_in *in, int n, struct err *err)
{
    int rc = 0;
    struct grid *g = NULL;
    struct sample_config c = *base;
    c.nq = in->x.nq;
    c.nk = in->x.nk;
    TRY(mem_zalloc(&g, 1, sizeof *g, "search grid", err));
    TRY(grid_init(g, &c, in, err));
    TRY(grid_rows(g, in, c.block, err));
    for (int t = 0; t < N_GRID; t++) {
        double *keep = g->keep + t * c.nq, mean = 0;
        for (int64_t r = 0; r < c.nq; r++)
            mean += keep[r] / (double)c.nq;
        res[t].density += (double)g->pairs[t] / (double)pairs_allowed(c.nq, c.nk, true) / n;
        qsort(keep, (size_t)c.nq, sizeof *keep, by_value);
        res[t].keep_p1 = fmin(res[t].keep_p1, percentile_sorted(keep, c.nq, 1));
        res[t].keep_mean = fmin(res[t].keep_mean, mean);
        res[t].error = fmax(res[t].error, g->ref2 > 0 ? sqrt(g->err2[t] / g->ref2) : 0);
    }
out:
    if (g)
        grid_free(g);
    free(g);
    return rc;
}

static void triple(int t, struct sample_choice *c)
{
    c->chunks = CHUNKS[t / (N_ALPHA * N_ALPHA)];
    c->alpha_c = ALPHAS[t % (N_ALPHA * N_ALPHA) / N_ALPHA];
    c->alpha_s = ALPHAS[t % N_ALPHA];
}

static bool meets(const struct result *r, const struct sample_target *want)
{
    if (want->fast)
        return r->keep_mean >= want->mean;
    return r->keep_p1 >= want->p1 && r->error <= want->error;
}

/* The grid runs from few chunks to many and from small alpha_c to large: on equal density a later
 * entry wins only with as few chunks and a larger alpha_c. */
static void choose(const struct result *res, const struct sample_target *want,
                   struct sample_choice *out)
{
    *out = (struct sample_choice){.alpha_c = 1, .alpha_s = 1, .chunks = 1, .density = 1,
                                  .keep_p1 = 1, .keep_mean = 1, .error = 0};
    for (int t = 0; t < N_GRID; t++) {
        struct sample_choice c = {.met = true};
        triple(t, &c);
        log_debug("sampleattention grid: alpha_c=%g alpha_s=%g chunks=%d density %.6f keep p1 %.6f "
                  "mean %.6f error %.6f", c.alpha_c, c.alpha_s, c.chunks, res[t].density,
                  res[t].keep_p1, res[t].keep_mean, res[t].error);
        bool tie = out->met && res[t].density == out->density && c.chunks == out->chunks &&
                   c.alpha_c > out->alpha_c;
        if (!meets(&res[t], want) || (out->met && res[t].density >= out->density && !tie))
            continue;
        c.density = res[t].density;
        c.keep_p1 = res[t].keep_p1;
        c.keep_mean = res[t].keep_mean;
        c.error = res[t].error;
        *out = c;
    }
}

int sample_search(const struct sample_config *base, const struct sample_target *target,
                  const struct head_in *samples, int n, struct sample_choice *out,
                  struct err *err)
{
    struct result res[N_GRID];
    for (int t = 0; t < N_GRID; t++)
        res[t] = (struct result){.keep_p1 = INFINITY, .keep_mean = INFINITY};
    for (int i = 0; i < n; i++) {
        int rc = grid_sample(res, base, &samples[i], n, err);
        if (rc)
            return err_prefix(err, "sample %d", i + 1);
    }
    choose(res, target, out);
    return 0;
}
