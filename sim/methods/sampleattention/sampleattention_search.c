/*
 * sampleattention_search.c - offline search of (alpha_c, alpha_s, chunks) for one head: the
 * stand-in for the tuning of arXiv:2406.15486, table 6, which needs a benchmark score.
 *
 * Every triple of the grid is evaluated on every sample: density, recall per row (p1, mean) and the
 * relative L2 error of the output. The density is averaged over the samples; recall and error count
 * at the worst one. Among the triples that meet the target the sparsest wins; ties go to fewer
 * chunks, then to the larger alpha_c.
 */
#include "sim/methods/sampleattention/sampleattention.h"

#include "core/log.h"
#include "core/mem.h"
#include "core/method.h"
#include "sim/blocks/blockgrid.h"

#include <stdlib.h>
#include <string.h>

static const double ALPHAS[] = {0.80, 0.85, 0.90, 0.92, 0.95, 0.98};
static const int CHUNKS[] = {1, 2, 4};

#define N_ALPHA ((int)(sizeof ALPHAS / sizeof *ALPHAS))
#define N_CHUNKS ((int)(sizeof CHUNKS / sizeof *CHUNKS))
#define N_GRID (N_ALPHA * N_ALPHA * N_CHUNKS)

_Static_assert(N_GRID == SAMPLE_TRIALS, "the header tells the size of the grid");

/* The plans of one sample; those whose slices do not fit are dense. */
struct plans {
    struct sample_plan plan[N_GRID];
    bool dense[N_GRID];
    struct sample_config c;
};

static int build_plans(struct plans *g, const struct head_in *in, struct err *err)
{
    int rc = 0, t = 0;
    struct sample_scores s = {0};
    for (int n = 0; n < N_CHUNKS; n++) {
        struct sample_config c = g->c;
        c.chunks = CHUNKS[n];
        bool fits = sample_applies(&c);
        if (fits) {
            TRY(sample_scores_init(&s, &c, err));
            TRY(sample_scores_run(&s, &c, in->exact, err));
        }
        for (int a = 0; a < N_ALPHA * N_ALPHA; a++, t++) {
            c.alpha_c = ALPHAS[a / N_ALPHA];
            c.alpha_s = ALPHAS[a % N_ALPHA];
            g->dense[t] = !fits;
            if (fits)
                TRY(sample_plan_build(&g->plan[t], &c, &s, err));
        }
        sample_scores_free(&s);
    }
out:
    sample_scores_free(&s);
    return rc;
}

static int64_t plan_list(void *ctx, int t, int64_t row0, int32_t *cols)
{
    const struct plans *g = ctx;
    const struct sample_plan *p = &g->plan[t];
    int64_t i = (row0 + g->c.nk - g->c.nq) / g->c.block, n = 0;
    int l = g->dense[t] ? 0 : sample_plan_list(p, i);
    for (int64_t j = 0; j <= i; j++)
        if (g->dense[t] || sample_plan_keeps(p, l, i, j))
            cols[n++] = (int32_t)j;
    return n;
}

/* Add one of n samples to the scores of the grid. */
static int grid_sample(struct block_score *sum, const struct sample_config *base,
                       const struct head_in *in, int n, struct err *err)
{
    int rc = 0;
    struct plans *g = NULL;
    struct block_score score[N_GRID];
    TRY(mem_zalloc(&g, 1, sizeof *g, "search grid", err));
    g->c = *base;
    g->c.nq = in->x.nq;
    g->c.nk = in->x.nk;
    TRY(build_plans(g, in, err));
    struct block_grid grid = {.in = in,
                              .block = g->c.block,
                              .n = N_GRID,
                              .ctx = g,
                              .unit = sample_unit(&g->c),
                              .list = plan_list};
    TRY(block_grid_run(&grid, score, err));
    for (int t = 0; t < N_GRID; t++)
        block_score_add(&sum[t], &score[t], n);
out:
    for (int t = 0; g && t < N_GRID; t++)
        sample_plan_free(&g->plan[t]);
    free(g);
    return rc;
}

static void triple(int t, struct sample_choice *c)
{
    c->chunks = CHUNKS[t / (N_ALPHA * N_ALPHA)];
    c->alpha_c = ALPHAS[t % (N_ALPHA * N_ALPHA) / N_ALPHA];
    c->alpha_s = ALPHAS[t % N_ALPHA];
}

static bool meets(const struct block_score *r, const struct sample_target *want)
{
    if (want->fast)
        return r->keep_mean >= want->mean;
    return r->keep_p1 >= want->p1 && r->error <= want->error;
}

/* The grid runs from few chunks to many and from small alpha_c to large: on equal density a later
 * entry wins only with as few chunks and a larger alpha_c. */
static void choose(const struct block_score *res, const struct sample_target *want,
                   struct sample_choice *out)
{
    *out = (struct sample_choice){.alpha_c = 1,
                                  .alpha_s = 1,
                                  .chunks = 1,
                                  .density = 1,
                                  .keep_p1 = 1,
                                  .keep_mean = 1,
                                  .error = 0};
    for (int t = 0; t < N_GRID; t++) {
        struct sample_choice c = {.met = true};
        triple(t, &c);
        log_debug("sampleattention grid: alpha_c=%g alpha_s=%g chunks=%d density %.6f keep p1 %.6f "
                  "mean %.6f error %.6f",
                  c.alpha_c, c.alpha_s, c.chunks, res[t].density, res[t].keep_p1, res[t].keep_mean,
                  res[t].error);
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

static void grid_values(int t, double *values)
{
    struct sample_choice c;
    triple(t, &c);
    values[0] = c.alpha_c;
    values[1] = c.alpha_s;
    values[2] = c.chunks;
}

static const char *const grid_names[] = {"alpha_c", "alpha_s", "chunks"};
static const struct grid_rows grid_of_search = {grid_names, 3, N_GRID, grid_values};

int sample_search(const struct sample_config *base, const struct sample_target *target,
                  const struct head_in *samples, int n, struct sample_choice *out, struct jw *w,
                  struct err *err)
{
    struct block_score res[N_GRID];
    for (int t = 0; t < N_GRID; t++)
        res[t] = block_score_none;
    for (int i = 0; i < n; i++) {
        int rc = grid_sample(res, base, &samples[i], n, err);
        if (rc)
            return err_prefix(err, "sample %d", i + 1);
    }
    choose(res, target, out);
    if (w)
        block_grid_write(&grid_of_search, res, w);
    return 0;
}
