/*
 * xattention_search.c - see xattention.h. The first rule needs one dense attention map per
 * sample (never stored whole); the second judges eleven masks in one pass.
 */
#include "sim/methods/xattention/xattention.h"

#include "core/log.h"
#include "core/mem.h"
#include "sim/blocks/blockgrid.h"
#include "sim/blocks/blockmap.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/tokscore.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define B XATTN_BLOCK
#define PIECE 16
#define SHARE 0.9
#define STEPS 11

struct xattn_config xattn_config_of(const struct xattn_config *base, const struct attn_in *x)
{
    struct xattn_config c = *base;
    c.nq = x->nq;
    c.nk = x->nk;
    c.d = x->d;
    c.scale = x->scale;
    c.causal = x->causal;
    if (c.chunk == 0)
        c.chunk = xattn_auto_chunk(x->nk);
    return c;
}

/* ---- the repository's rule -------------------------------------------------------------- */

/* Exact mass of the key blocks over the rows of row block i. p [PIECE][nk]. */
static int exact_row(const struct head_in *in, int64_t i, double *p, int64_t cols, double *mass,
                     struct err *err)
{
    int rc = 0;
    int64_t end = (i + 1) * B < in->x.nq ? (i + 1) * B : in->x.nq;
    memset(mass, 0, (size_t)cols * sizeof *mass);
    for (int64_t r0 = i * B; r0 < end; r0 += PIECE) {
        int64_t r1 = r0 + PIECE < end ? r0 + PIECE : end;
        TRY(exact_probs(in->exact, r0, r1, p, err));
        for (int64_t r = 0; r < r1 - r0; r++)
            for (int64_t k = 0; k < in->x.nk; k++)
                mass[k / B] += p[r * in->x.nk + k];
    }
out:
    return rc;
}

/* Smallest estimate among the fewest blocks that hold SHARE of the exact mass. */
static double lowest_needed(const double *exact, const double *est, int64_t n, const int32_t *order)
{
    double total = 0, running = 0, low = INFINITY;
    for (int64_t j = 0; j < n; j++)
        total += exact[j];
    for (int64_t e = 0; e < n; e++) {
        low = fmin(low, est[order[e]]);
        running += exact[order[e]];
        if (running >= SHARE * total)
            break;
    }
    return low;
}

static int repo_sample(const struct xattn_config *c, const struct head_in *in, double *tau,
                       struct err *err)
{
    int rc = 0;
    struct xattn x = {0};
    double *p = NULL, *exact = NULL, *est = NULL, above = 0, total = 0;
    int32_t *order = NULL;
    TRY(xattn_init(&x, c, in->x.q, in->x.k, err));
    TRY(mem_alloc(&p, PIECE * in->x.nk, sizeof *p, "exact rows", err));
    TRY(mem_alloc(&exact, x.cols, sizeof *exact, "exact mass", err));
    TRY(mem_alloc(&est, x.cols, sizeof *est, "estimated mass", err));
    TRY(mem_alloc(&order, x.cols, sizeof *order, "block order", err));
    for (int64_t i = 0; i < x.row_blocks; i++) {
        int64_t n = xattn_limit(&x, i);
        TRY(exact_row(in, i, p, x.cols, exact, err));
        xattn_row(&x, i, est);
        TRY(order_descending(exact, n, order, err));
        double low = lowest_needed(exact, est, n, order);
        for (int64_t j = 0; j < n; j++) {
            total += est[j];
            above += est[j] >= low ? est[j] : 0;
        }
    }
    *tau = total > 0 ? above / total : SHARE;
out:
    xattn_free(&x);
    free(p);
    free(exact);
    free(est);
    free(order);
    return rc;
}

int xattn_search_repo(const struct xattn_config *base, const struct head_in *samples, int n,
                      double *tau, struct err *err)
{
    double most = 0;
    for (int i = 0; i < n; i++) {
        struct xattn_config c = xattn_config_of(base, &samples[i].x);
        double t = 0;
        int rc = repo_sample(&c, &samples[i], &t, err);
        if (rc)
            return err_prefix(err, "sample %d", i + 1);
        most = fmax(most, t);
    }
    *tau = most;
    return 0;
}

/* ---- steps of 0.9 ----------------------------------------------------------------------- */

static double step_tau(int m)
{
    return 0.9 * pow(0.9, m);
}

static int64_t map_list(void *ctx, int t, int64_t row0, int32_t *cols)
{
    const struct block_map *maps = ctx;
    return block_map_row(&maps[t], row0 / B, cols);
}

static int build_maps(struct block_map *maps, const struct xattn_config *c,
                      const struct head_in *in, struct err *err)
{
    int rc = 0;
    struct xattn x = {0};
    double *mass = NULL;
    bool *keep = NULL;
    TRY(xattn_init(&x, c, in->x.q, in->x.k, err));
    TRY(mem_alloc(&mass, x.cols, sizeof *mass, "block mass", err));
    TRY(mem_alloc(&keep, x.cols, sizeof *keep, "kept blocks", err));
    for (int t = 0; t < STEPS; t++)
        TRY(block_map_init(&maps[t], c->nq, c->nk, B, c->causal, err));
    for (int64_t i = 0; i < x.row_blocks; i++)
        for (int t = 0; t < STEPS; t++) {
            x.c.tau = step_tau(t);
            TRY(xattn_keep(&x, i, mass, keep, err));
            for (int64_t j = 0; j < xattn_limit(&x, i); j++)
                if (keep[j])
                    block_map_set(&maps[t], i, j);
        }
out:
    xattn_free(&x);
    free(mass);
    free(keep);
    return rc;
}

int xattn_search_steps(const struct xattn_config *base, const struct head_in *samples, int n,
                       double target, double *tau, bool *met, struct err *err)
{
    int rc = 0, best = -1;
    struct block_score sum[STEPS], one[STEPS];
    struct block_map maps[STEPS] = {{0}};
    for (int t = 0; t < STEPS; t++)
        sum[t] = block_score_none;
    for (int i = 0; i < n; i++) {
        struct xattn_config c = xattn_config_of(base, &samples[i].x);
        struct block_grid g = {
            .in = &samples[i], .block = B, .unit = B, .n = STEPS, .ctx = maps, .list = map_list};
        TRY(build_maps(maps, &c, &samples[i], err));
        TRY(block_grid_run(&g, one, err));
        for (int t = 0; t < STEPS; t++) {
            block_score_add(&sum[t], &one[t], n);
            block_map_free(&maps[t]);
        }
    }
    for (int t = 0; t < STEPS; t++) {
        log_debug("xattention steps: tau=%.6f density %.6f keep p1 %.6f mean %.6f error %.6f",
                  step_tau(t), sum[t].density, sum[t].keep_p1, sum[t].keep_mean, sum[t].error);
        if (sum[t].error <= target && (best < 0 || sum[t].density < sum[best].density))
            best = t;
    }
    *met = best >= 0;
    *tau = step_tau(best < 0 ? 0 : best);
out:
    for (int t = 0; t < STEPS; t++)
        block_map_free(&maps[t]);
    return rc;
}
