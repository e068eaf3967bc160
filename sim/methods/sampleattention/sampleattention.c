/*
 * SampleAttention: key columns and slashes chosen from exact softmax rows of a few sampled slices.
 *
 * Q. Zhu et al., "SampleAttention: Near-Lossless Acceleration of Long Context LLM Inference with
 * Adaptive Structured Sparse Attention", arXiv:2406.15486 (v3); profile v2 is the algorithm of
 * arXiv v1 and v2. No official code is public.
 *
 * Per head: for `chunks` slices of B queries, sum the exact rows per key block and per bin of
 * distances, keep in each list the fewest bins that reach alpha_c and alpha_s of its mass, extend
 * the bins to block diagonals, and keep the union for the rows that the slice stands for. Attention
 * inside the B x B block mask is exact. Selection O(chunks B N d), mask O(nb^2).
 *
 * Choices where the paper is silent: inner slice ends are rounded up to block boundaries; scores
 * are sums; distances are binned by token; a bin covers two diagonals (extend=cover2); lists apply
 * per chunk; the diagonal block is kept (profile=strict leaves it out).
 */
#include "core/intmath.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/method.h"
#include "core/sort.h"
#include "sim/blocks/judge.h"
#include "sim/blocks/selectcost.h"
#include "sim/blocks/slicemask.h"
#include "sim/methods/sampleattention/sampleattention.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- from scores to the block mask ---------------------------------------------------------- */

/* From score lists to the block mask (arXiv:2406.15486, algorithm 1:
 * find_k, extend, merge).
 *
 *   keep block (I, J), J <= I  iff  J in I_c[i(I)]  or  I - J in extended I_s[i(I)]
 *                                   or forced (diagonal, sink)
 *
 * A token slash at distance B x + r lies on block diagonal x for a share 1 - r/B of its rows and on
 * x + 1 for the rest. cover2 therefore extends a bin to both diagonals; cover1 keeps one of them;
 * centred moves the bins by B/2 so that one diagonal holds at least half of every slash. */

/* ---- sampled slices and their score lists --------------------------------------------------- */

/* A_c[i][J] = 1/B sum over q in slice i, k in block J      of P[q][k]
 *   A_s[i][x] = 1/B sum over q in slice i, k with bin(q-k)=x of P[q][k]
 *
 * The slash list bins token distances: for a slice that is one row block, summing over diagonals of
 * the block grid would be A_c in reverse order and carry nothing new. Scores are sums (not maxima),
 * because find_k compares their running total with a share of mass.
 *
 * Cost: chunks * B exact softmax rows, 2 B N d chunks FLOP. */

/* Exact rows held at a time. */
#define PIECE 16

int64_t sample_blocks(const struct sample_config *c)
{
    return ceil_div(c->nk, c->block);
}

bool sample_applies(const struct sample_config *c)
{
    return c->nq >= 2 * c->block && c->chunks * c->block < c->nq;
}

void sample_ends(const struct sample_config *c, int64_t end[SAMPLE_MAX_CHUNKS + 1])
{
    int64_t shift = c->nk - c->nq;
    end[0] = shift;
    for (int i = 1; i < c->chunks; i++)
        end[i] = ceil_div(shift + i * c->nq / c->chunks, c->block) * c->block;
    end[c->chunks] = c->nk;
}

int64_t sample_bin(const struct sample_config *c, int64_t d)
{
    if (c->extend != SAMPLE_CENTRED)
        return d / c->block;
    int64_t x = (d + c->block / 2) / c->block, last = sample_blocks(c) - 1;
    return x < last ? x : last;
}

int sample_scores_init(struct sample_scores *s, const struct sample_config *c, struct err *err)
{
    int64_t n = c->chunks * sample_blocks(c);
    memset(s, 0, sizeof *s);
    PASS_ON(mem_zalloc(&s->col, n, sizeof *s->col, "column scores", err));
    return mem_zalloc(&s->slash, n, sizeof *s->slash, "slash scores", err);
}

void sample_scores_free(struct sample_scores *s)
{
    free(s->col);
    free(s->slash);
    memset(s, 0, sizeof *s);
}

void sample_scores_add(struct sample_scores *s, const struct sample_config *c, int i, int64_t pos,
                       const double *p)
{
    int64_t nb = sample_blocks(c);
    double *col = s->col + i * nb, *slash = s->slash + i * nb, share = 1.0 / (double)c->block;
    for (int64_t k = 0; k <= pos; k++) {
        col[k / c->block] += share * p[k];
        slash[sample_bin(c, pos - k)] += share * p[k];
    }
}

int sample_scores_run(struct sample_scores *s, const struct sample_config *c, struct exact *exact,
                      struct err *err)
{
    OWN(free_at) double *p = NULL;
    int64_t end[SAMPLE_MAX_CHUNKS + 1], shift = c->nk - c->nq;
    sample_ends(c, end);
    PASS_ON(mem_alloc(&p, PIECE * c->nk, sizeof *p, "sampled rows", err));
    for (int i = 0; i < c->chunks; i++)
        for (int64_t q = end[i + 1] - c->block; q < end[i + 1]; q += PIECE) {
            int64_t r0 = q - shift;
            PASS_ON(exact_probs(exact, r0, r0 + PIECE, p, err));
            for (int r = 0; r < PIECE; r++)
                sample_scores_add(s, c, i, q + r, p + r * c->nk);
        }
    return 0;
}

/* ---- find_k ----------------------------------------------------------------------------- */

int sample_find_k(const double *score, int64_t n, double alpha, int32_t *order, int64_t *k,
                  struct err *err)
{
    double total = 0, running = 0;
    PASS_ON(order_descending(score, n, order, err));
    for (int64_t i = 0; i < n; i++)
        total += score[i];

    /* The running total is taken in another order than the total and may stall just below it, so
     * that alpha >= 1 is its own case. */
    int64_t count = alpha >= 1 ? n : 0;
    while (count < n && (count == 0 || running < alpha * total))
        running += score[order[count++]];
    *k = count;
    return 0;
}

/* Mark the kept columns and bins of one pair of score lists in row `l`. */
static int mark_lists(struct sample_plan *p, const double *col, const double *slash, int slice,
                      int l, int32_t *order, struct err *err)
{
    int64_t nb = p->nb;
    PASS_ON(sample_find_k(col, nb, p->c.alpha_c, order, &p->kc[slice], err));
    for (int64_t i = 0; i < p->kc[slice]; i++)
        p->cols[l * nb + order[i]] = 1;
    PASS_ON(sample_find_k(slash, nb, p->c.alpha_s, order, &p->ks[slice], err));
    for (int64_t i = 0; i < p->ks[slice]; i++)
        p->bins[l * nb + order[i]] = 1;
    return 0;
}

static void extend_bins(struct sample_plan *p)
{
    for (int l = 0; l < p->lists; l++)
        for (int64_t x = 0; x < p->nb; x++)
            if (p->bins[l * p->nb + x]) {
                p->diags[l * (p->nb + 1) + x] = 1;
                if (p->c.extend == SAMPLE_COVER2)
                    p->diags[l * (p->nb + 1) + x + 1] = 1;
            }
}

/* Mean over the slices of lists [chunks][nb] into mean[nb]. */
static void mean_list(const double *list, int chunks, int64_t nb, double *mean)
{
    for (int64_t x = 0; x < nb; x++) {
        double sum = 0;
        for (int i = 0; i < chunks; i++)
            sum += list[i * nb + x];
        mean[x] = sum / chunks;
    }
}

int sample_plan_build(struct sample_plan *p, const struct sample_config *c,
                      const struct sample_scores *s, struct err *err)
{
    OWN(free_at) int32_t *order = NULL;
    OWN(free_at) double *mean = NULL;
    memset(p, 0, sizeof *p);
    p->c = *c;
    p->nb = sample_blocks(c);
    p->lists = c->merge == SAMPLE_PERCHUNK ? c->chunks : 1;
    p->slices = c->merge == SAMPLE_MEAN ? 1 : c->chunks;
    sample_ends(c, p->end);
    PASS_ON(mem_zalloc(&p->cols, p->lists * p->nb, 1, "column lists", err));
    PASS_ON(mem_zalloc(&p->bins, p->lists * p->nb, 1, "slash lists", err));
    PASS_ON(mem_zalloc(&p->diags, p->lists * (p->nb + 1), 1, "diagonals", err));
    PASS_ON(mem_alloc(&order, p->nb, sizeof *order, "score order", err));
    if (c->merge == SAMPLE_MEAN) {
        PASS_ON(mem_alloc(&mean, 2 * p->nb, sizeof *mean, "mean scores", err));
        mean_list(s->col, c->chunks, p->nb, mean);
        mean_list(s->slash, c->chunks, p->nb, mean + p->nb);
        PASS_ON(mark_lists(p, mean, mean + p->nb, 0, 0, order, err));
    } else {
        for (int i = 0; i < c->chunks; i++)
            PASS_ON(mark_lists(p, s->col + i * p->nb, s->slash + i * p->nb, i,
                               c->merge == SAMPLE_PERCHUNK ? i : 0, order, err));
    }
    extend_bins(p);
    return 0;
}

void sample_plan_free(struct sample_plan *p)
{
    free(p->cols);
    free(p->bins);
    free(p->diags);
    memset(p, 0, sizeof *p);
}

int sample_plan_list(const struct sample_plan *p, int64_t row_block)
{
    int64_t last = (row_block + 1) * p->c.block;
    last = (last < p->c.nk ? last : p->c.nk) - 1;
    int i = 0;
    while (i < p->lists - 1 && p->end[i + 1] <= last)
        i++;
    return i;
}

/* Height of the mask's row groups: the largest divisor of B for which no group straddles two row
 * blocks (B itself unless nk - nq is unaligned). */
static int64_t sample_unit(const struct sample_config *c)
{
    return gcd(c->block, (c->nk - c->nq) % c->block);
}

int sample_plan_mask(const struct sample_plan *p, int64_t row0, int64_t row1, struct mask *out,
                     int64_t *forced, struct err *err)
{
    int64_t b = p->c.block, unit = sample_unit(&p->c), shift = p->c.nk - p->c.nq;
    PASS_ON(mask_lists_init(out, p->c.nq, p->c.nk, row0, row1, true, unit, b, err));
    for (int64_t g = 0; g < out->ngroups; g++) {
        int64_t i = (row0 + g * unit + shift) / b;
        int64_t first = reach_first(&p->c.reach, row0 + g * unit + shift) / b;
        int l = sample_plan_list(p, i);
        for (int64_t j = first; j <= i; j++) {
            int why = sample_plan_keeps(p, l, i, j);
            if (!why)
                continue;
            PASS_ON(mask_lists_add(out, g, (int32_t)j, err));
            *forced += why == SAMPLE_BY_FORCE;
        }
    }
    mask_lists_finish(out);
    return 0;
}

/* ---- the earlier algorithm ------------------------------------------------------------------ */

/* arXiv:2406.15486 v1 and v2: a local window, the token columns that hold a share alpha of the mass
 * of evenly strided exact rows, and a few dense last rows. Token exact; there is no slash list.
 *
 * Cost: rows * N exact softmax rows, a sort of N column scores. */

void sample_v2_init(struct sample_v2 *v, const struct attn_in *x, double window, double rows,
                    int64_t bottom)
{
    *v = (struct sample_v2){.nq = x->nq, .nk = x->nk, .bottom = MIN(bottom, x->nq)};
    v->step = (int64_t)fmin(fmax(round(1 / rows), 1), (double)x->nq);
    v->window = share_resolve((struct share){.value = window, .is_share = true}, x->nk);
    for (int64_t r = x->nq - 1; r >= 0; r -= v->step, v->sampled++)
        v->pairs += (double)(attn_limit(x, r) - attn_first(x, r));
}

int sample_v2_choose(struct sample_v2 *v, double alpha, struct exact *exact, struct err *err)
{
    OWN(free_at) double *score = NULL, *p = NULL;
    PASS_ON(mem_zalloc(&score, v->nk, sizeof *score, "column scores", err));
    PASS_ON(mem_alloc(&p, v->nk, sizeof *p, "sampled row", err));
    for (int64_t r = v->nq - 1; r >= 0; r -= v->step) {
        PASS_ON(exact_probs(exact, r, r + 1, p, err));
        for (int64_t k = 0; k < v->nk; k++)
            score[k] += p[k];
    }
    PASS_ON(mem_alloc(&v->cols, v->nk, sizeof *v->cols, "token columns", err));
    PASS_ON(sample_find_k(score, v->nk, alpha, v->cols, &v->ncols, err));
    qsort(v->cols, (size_t)v->ncols, sizeof *v->cols, compare_i32);
    return 0;
}

void sample_v2_free(struct sample_v2 *v)
{
    free(v->cols);
    memset(v, 0, sizeof *v);
}

int sample_v2_mask(const struct sample_v2 *v, int64_t row0, int64_t row1, struct mask *out,
                   struct err *err)
{
    PASS_ON(mask_lists_init(out, v->nq, v->nk, row0, row1, true, 1, 1, err));
    /* No published kernel runs this mask: executed pairs are unknown. */
    out->exec = EXEC_NONE;
    for (int64_t r = row0; r < row1; r++) {
        int64_t pos = r + v->nk - v->nq, near = pos + 1 - v->window;
        near = near < 0 || r >= v->nq - v->bottom ? 0 : near;
        for (int64_t i = 0; i < v->ncols && v->cols[i] < near && v->cols[i] <= pos; i++)
            PASS_ON(mask_lists_add(out, r - row0, v->cols[i], err));
        PASS_ON(mask_lists_add_run(out, r - row0, (int32_t)near, (int32_t)(pos + 1), err));
    }
    mask_lists_finish(out);
    return 0;
}

/* ---- search --------------------------------------------------------------------------------- */

/* Offline search of (alpha_c, alpha_s, chunks) for one head: the
 * stand-in for the tuning of arXiv:2406.15486, table 6, which needs a benchmark score.
 *
 * Every triple of the grid is evaluated on every sample: density, recall per row (p1, mean) and the
 * relative L2 error of the output. The density is averaged over the samples; recall and error count
 * at the worst one. Among the triples that meet the target the sparsest wins; ties go to fewer
 * chunks, then to the larger alpha_c. */

static const double ALPHAS[] = {0.80, 0.85, 0.90, 0.92, 0.95, 0.98};
static const int CHUNKS[] = {1, 2, 4};

#define N_ALPHA ((int)(sizeof ALPHAS / sizeof *ALPHAS))
#define N_CHUNKS ((int)(sizeof CHUNKS / sizeof *CHUNKS))
#define N_GRID (N_ALPHA * N_ALPHA * N_CHUNKS)

/* The plans of one sample; those whose slices do not fit are dense. */
struct plans {
    struct sample_plan plan[N_GRID];
    bool dense[N_GRID];
    struct sample_config c;
};

static int build_plans(struct plans *g, const struct head_in *in, struct err *err)
{
    int t = 0;
    OWN(sample_scores_free) struct sample_scores s = {0};
    for (int n = 0; n < N_CHUNKS; n++) {
        struct sample_config c = g->c;
        c.chunks = CHUNKS[n];
        bool fits = sample_applies(&c);
        if (fits) {
            PASS_ON(sample_scores_init(&s, &c, err));
            PASS_ON(sample_scores_run(&s, &c, in->exact, err));
        }
        for (int a = 0; a < N_ALPHA * N_ALPHA; a++, t++) {
            c.alpha_c = ALPHAS[a / N_ALPHA];
            c.alpha_s = ALPHAS[a % N_ALPHA];
            g->dense[t] = !fits;
            if (fits)
                PASS_ON(sample_plan_build(&g->plan[t], &c, &s, err));
        }
        sample_scores_free(&s);
    }
    return 0;
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
static void choose_triple(const struct block_score *res, const struct sample_target *want,
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

/* The whole search for a calibration file: its settings with their scores. */
static void write_grid(const struct block_score *score, struct jw *w)
{
    static const char *const columns[] = {"alpha_c", "alpha_s",  "chunks",    "density_elem",
                                          "cra_p1",  "cra_mean", "err_l2_rel"};
    enum { COLUMNS = sizeof columns / sizeof *columns };
    jw_key(w, "grid");
    jw_obj(w);
    jw_key(w, "columns");
    jw_arr(w);
    for (int i = 0; i < COLUMNS; i++)
        jw_str(w, columns[i]);
    jw_arr_end(w);
    jw_key(w, "rows");
    jw_arr(w);
    for (int t = 0; t < N_GRID; t++) {
        struct sample_choice c;
        triple(t, &c);
        const double row[COLUMNS] = {c.alpha_c,        c.alpha_s,        c.chunks,
                                     score[t].density, score[t].keep_p1, score[t].keep_mean,
                                     score[t].error};
        jw_arr(w);
        for (int i = 0; i < COLUMNS; i++)
            jw_num(w, row[i]);
        jw_arr_end(w);
    }
    jw_arr_end(w);
    jw_obj_end(w);
}

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
    choose_triple(res, target, out);
    if (w)
        write_grid(res, w);
    return 0;
}

enum profile { PROFILE_PAPER, PROFILE_STRICT, PROFILE_SAFE, PROFILE_V2 };
enum target { TARGET_ACC, TARGET_SPD };

static const char *const presets[] = {"none",          "glm4-acc",      "glm4-spd",
                                      "internlm2-acc", "internlm2-spd", NULL};

static const char *const switch_names[] = {"profile", "0", "1", NULL};

struct params {
    int profile, preset, extend, merge, block, keep_diag, keep_sink;
    double alpha_c, alpha_s; /* NAN: from the preset, else 0.95 */
    int64_t chunks;          /* INT64_MIN: from the preset, else 1 */
    double alpha, window, rows;
    int64_t bottom;
    int target;
    double target_p1, target_err, target_mean;
};

static const struct opt options[] = {
    OPT_ENUM(struct params, profile, "paper", TEXTS("paper", "strict", "safe", "v2"),
             "paper forces the diagonal block, strict no block, safe diagonal and sink; v2 is the "
             "earlier algorithm (window and token columns)."),
    OPT_NUM(struct params, alpha_c, NULL, 0, 1, "mass share",
            "Column threshold; unset: the preset's, else 0.95."),
    OPT_NUM(struct params, alpha_s, NULL, 0, 1, "mass share",
            "Slash threshold; unset: the preset's, else 0.95."),
    OPT_INT(struct params, chunks, NULL, 1, SAMPLE_MAX_CHUNKS, "slices",
            "Sampled slices; unset: the preset's, else 1."),
    OPT_ENUM(struct params, block, "128", TEXTS("64", "128"), "Slice height and block size.",
             .unit = "tokens"),
    OPT_ENUM(
        struct params, extend, "cover2", TEXTS("cover2", "cover1", "centred"),
        "Block diagonals of a slash bin: both it touches, the lower one, or one for centred bins."),
    OPT_ENUM(struct params, merge, "perchunk", TEXTS("perchunk", "union", "mean"),
             "Rows a slice's lists govern: its chunk, all (united), or all (scores averaged)."),
    OPT_ENUM(struct params, keep_diag, "profile", switch_names,
             "Always keep the diagonal block; unset: 1, with profile=strict 0."),
    OPT_ENUM(struct params, keep_sink, "profile", switch_names,
             "Always keep the first key block; unset: 0, with profile=safe 1."),
    OPT_ENUM(struct params, preset, "none", presets,
             "alpha_c, alpha_s and chunks by prompt length, from table 6 of the paper.",
             .flags = OPT_CALIB_FIXED),
    OPT_NUM(struct params, alpha, "0.95", 0, 1, "mass share", "profile=v2: column threshold."),
    OPT_NUM(struct params, window, "0.08", 0, 1, "share of N", "profile=v2: local window."),
    OPT_NUM(struct params, rows, "0.05", 0, 1, "share of N", "profile=v2: sampled rows.",
            .flags = OPT_MIN_OPEN),
    OPT_INT(struct params, bottom, "128", 0, 2147483647, "tokens",
            "profile=v2: last rows kept dense."),
    OPT_ENUM(struct params, target, "acc", TEXTS("acc", "spd"),
             "calibrate: acc meets target_p1 and target_err, spd meets target_mean.",
             .flags = OPT_IDENTITY_NOT),
    OPT_NUM(struct params, target_p1, "0.90", 0, 1, "mass share",
            "calibrate: least 1st percentile of the rows' recall.", .flags = OPT_IDENTITY_NOT),
    OPT_NUM(struct params, target_err, "0.05", 0, INFINITY, "",
            "calibrate: largest relative L2 error of the output.", .flags = OPT_IDENTITY_NOT),
    OPT_NUM(struct params, target_mean, "0.90", 0, 1, "mass share", "calibrate: least mean recall.",
            .flags = OPT_IDENTITY_NOT),
    {0},
};

/* Settings of table 6 for n keys: rows n < 16K, < 48K, < 80K, < 112K, >= 112K (K = 1024). */
struct setting {
    double alpha_c, alpha_s;
    int chunks;
};
static struct setting setting_of(int preset, int64_t n)
{
    static const int64_t LIMITS[] = {16 * 1024, 48 * 1024, 80 * 1024, 112 * 1024};
    static const struct setting
        NONE = {.95, .95, 1},
        TUNED[4][5] = {
            {{.98, .90, 1}, {.95, .95, 1}, {.95, .95, 1}, {.90, .90, 2}, {.95, .85, 1}},
            {{.85, .85, 1}, {.85, .80, 1}, {.80, .80, 1}, {.80, .80, 1}, {.80, .80, 1}},
            {{.98, .95, 1}, {.95, .90, 1}, {.92, .92, 1}, {.92, .90, 2}, {.95, .90, 2}},
            {{.85, .85, 1}, {.80, .80, 1}, {.80, .80, 1}, {.80, .80, 1}, {.80, .80, 1}},
        };
    int row = 0;
    while (row < 4 && n >= LIMITS[row])
        row++;
    return preset == 0 ? NONE : TUNED[preset - 1][row];
}

static struct sample_config resolve(const struct params *p, int64_t nq, int64_t nk)
{
    struct setting t = setting_of(p->preset, nk);
    return (struct sample_config){
        .nq = nq,
        .nk = nk,
        .block = p->block == 0 ? 64 : 128,
        .chunks = p->chunks == INT64_MIN ? t.chunks : (int)p->chunks,
        .alpha_c = isnan(p->alpha_c) ? t.alpha_c : p->alpha_c,
        .alpha_s = isnan(p->alpha_s) ? t.alpha_s : p->alpha_s,
        .extend = (enum sample_extend)p->extend,
        .merge = (enum sample_merge)p->merge,
        .keep_diag = p->keep_diag == 0 ? p->profile != PROFILE_STRICT : p->keep_diag == 2,
        .keep_sink = p->keep_sink == 0 ? p->profile == PROFILE_SAFE : p->keep_sink == 2,
    };
}

enum kind { DENSE, PLAN, TOKENS };

struct state {
    enum kind kind;
    const struct head_in *in;
    struct sample_config c;
    bool chosen; /* by the first select, or taken: then the mask is in `given` or `kept` */
    struct sample_plan plan; /* PLAN */
    struct sample_v2 v2;     /* TOKENS */
    double alpha;            /* of v2 */
    int64_t forced;
    struct mask given;      /* PLAN */
    struct slice_mask kept; /* TOKENS */
};

static void release(void *state)
{
    struct state *s = state;
    sample_plan_free(&s->plan);
    sample_v2_free(&s->v2);
    mask_free(&s->given);
    slice_mask_free(&s->kept);
}

/* ---- choice --------------------------------------------------------------------------------- */

static int choose(struct state *s, struct err *err)
{
    OWN(sample_scores_free) struct sample_scores scores = {0};
    s->chosen = true;
    if (s->kind == TOKENS)
        return sample_v2_choose(&s->v2, s->alpha, s->in->exact, err);
    PASS_ON(sample_scores_init(&scores, &s->c, err));
    PASS_ON(sample_scores_run(&scores, &s->c, s->in->exact, err));
    return sample_plan_build(&s->plan, &s->c, &scores, err);
}

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct state *s = state;
    const struct sample_config *c = &s->c;
    if (s->kind == TOKENS)
        rule->of.sample = (struct sample_rule){.tokens = true,
                                               .alpha = s->alpha,
                                               .window = s->v2.window,
                                               .step = s->v2.step,
                                               .bottom = s->v2.bottom};
    else
        rule->of.sample = (struct sample_rule){.all = s->kind == DENSE,
                                               .block = c->block,
                                               .chunks = c->chunks,
                                               .alpha_c = c->alpha_c,
                                               .alpha_s = c->alpha_s,
                                               .extend = c->extend,
                                               .merge = c->merge,
                                               .keep_diag = c->keep_diag,
                                               .keep_sink = c->keep_sink};
    return true;
}

static int take_columns(struct state *s, const struct accel_own *own, struct err *err)
{
    int32_t n;
    PASS_ON(accel_own_check(own, sizeof n, err));
    memcpy(&n, own->data, sizeof n);
    s->v2.ncols = n;
    s->chosen = true;
    return 0;
}

/* The lists, and the scores from which the device made them. */
static int take_plan(struct state *s, const struct mask *m, const struct accel_own *own,
                     struct err *err)
{
    int64_t n = s->c.chunks * sample_blocks(&s->c);
    struct sample_scores scores = {own->data, (double *)own->data + n};
    PASS_ON(accel_own_check(own, 2 * n * (int64_t)sizeof(double), err));
    PASS_ON(sample_plan_build(&s->plan, &s->c, &scores, err));
    PASS_ON(mask_lists_rows(m, m->row0, m->row1, &s->given, err));
    s->chosen = true;
    return 0;
}

static int take(void *state, const struct device_choice *c, struct err *err)
{
    struct state *s = state;
    if (s->kind == DENSE)
        return c->lists->form == MASK_FULL ? 0
                                           : err_set(err, ERR_RUN, "a choice where all is kept");
    if (s->kind == PLAN)
        return take_plan(s, c->lists, c->own, err);
    PASS_ON(take_columns(s, c->own, err));
    return slice_mask_take(&s->kept, c, 1, 1, 0, err);
}

static bool keep_on_device(const void *state)
{
    return ((const struct state *)state)->kind == TOKENS;
}

/* The rows of taken lists. */
static int given_rows(struct state *s, int64_t row0, int64_t row1, struct mask *out,
                      struct err *err)
{
    int64_t shift = s->c.nk - s->c.nq;
    PASS_ON(mask_lists_rows(&s->given, row0, row1, out, err));
    for (int64_t g = 0; g < out->ngroups; g++) {
        int64_t i = (row0 + g * out->bq + shift) / s->c.block;
        int l = sample_plan_list(&s->plan, i);
        for (int64_t e = out->ptr[g]; e < out->ptr[g + 1]; e++)
            s->forced += sample_plan_keeps(&s->plan, l, i, out->col[e]) == SAMPLE_BY_FORCE;
    }
    return 0;
}

/* ---- heads ---------------------------------------------------------------------------------- */

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    if (!in->x.causal)
        return method_skip(ctx, "causal only");
    if (in->x.nq > in->x.nk)
        return method_skip(ctx, "more queries (%lld) than keys (%lld)", (long long)in->x.nq,
                           (long long)in->x.nk);
    s->c = resolve(p, in->x.nq, in->x.nk);
    s->c.reach = in->x.reach;
    if (p->profile == PROFILE_V2 || s->c.chunks > 1)
        PASS_ON(method_all_rows(ctx, in, p->profile == PROFILE_V2 ? "profile=v2" : "chunks > 1"));
    s->in = in;
    s->alpha = p->alpha;
    s->kind = p->profile == PROFILE_V2 ? TOKENS : sample_applies(&s->c) ? PLAN : DENSE;
    if (s->kind == TOKENS)
        sample_v2_init(&s->v2, &in->x, p->window, p->rows, p->bottom);
    ctx->unit_rows = s->kind == PLAN ? sample_unit(&s->c) : s->kind == DENSE ? s->c.block : 1;
    return 0;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    PASS_ON(s->chosen || s->kind == DENSE ? 0 : choose(s, err));
    if (s->kept.bits)
        return slice_mask_lists(&s->kept, row0, row1, out, err);
    if (s->given.ptr)
        return given_rows(s, row0, row1, out, err);
    if (s->kind == TOKENS)
        return sample_v2_mask(&s->v2, row0, row1, out, err);
    if (s->kind == PLAN)
        return sample_plan_mask(&s->plan, row0, row1, out, &s->forced, err);
    mask_full(out, s->c.nq, s->c.nk, row0, row1, true);
    out->bq = out->bk = out->exec_bq = out->exec_bk = s->c.block;
    return 0;
}

static bool why_full(const void *state, char why[160])
{
    const struct state *s = state;
    snprintf(why, 160, "%lld queries are too few for %d sampled slices of %lld rows",
             (long long)s->c.nq, s->c.chunks, (long long)s->c.block);
    return s->kind == DENSE;
}

/* List lengths of the slices as one note "kc=5,ks=5 4,3". */
static void note_lists(const struct sample_plan *p, struct record *r)
{
    char text[SAMPLE_MAX_CHUNKS * 24] = "";
    int len = 0;
    for (int i = 0; i < p->slices; i++)
        len += snprintf(text + len, sizeof text - (size_t)len, "%s%lld,%lld", i ? " " : "",
                        (long long)p->kc[i], (long long)p->ks[i]);
    record_note(r, "kc,ks=%s", text);
}

/* density_native: kept pairs over all nq * nk pairs, the paper's denominator, which is that of
 * density_rect. */
static int report(void *state, struct record *r, struct err *err)
{
    struct state *s = state;
    double kc = 0, ks = 0;
    PASS_ON(record_metric(r, "density_native", record_get(r, "density_rect"), err));
    if (s->kind == DENSE)
        record_note(r, "fallback=dense");
    if (s->kind == TOKENS)
        PASS_ON(record_metric(r, "columns", (double)s->v2.ncols, err));
    if (s->kind != PLAN)
        return 0;
    for (int i = 0; i < s->plan.slices; i++) {
        kc += (double)s->plan.kc[i] / s->plan.slices;
        ks += (double)s->plan.ks[i] / s->plan.slices;
    }
    PASS_ON(RECORD_ALL(r, err, {"columns", kc}, {"slashes", ks}, {"units_forced", s->forced}));
    note_lists(&s->plan, r);
    return 0;
}

/* The keys are read once per slice: those before its end. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    const struct attn_in *x = &s->in->x;
    int64_t end[SAMPLE_MAX_CHUNKS + 1], shift = s->c.nk - s->c.nq;
    if (s->kind == TOKENS) {
        cost_exact_rows(c, s->in, (double)s->v2.sampled, s->v2.pairs, 1);
        cost_rows(c, s->in, (double)x->nk, x->d);
        cost_kept(c, (double)x->nk);
    }
    if (s->kind != PLAN)
        return true;
    sample_ends(&s->c, end);
    for (int i = 0; i < s->c.chunks; i++) {
        int64_t to = end[i + 1] - shift, from = to - s->c.block;
        cost_exact_rows(c, s->in, (double)s->c.block, cost_pairs(x, from, to, 1), 2);
        cost_rows(c, s->in, (double)end[i + 1], x->d);
        cost_kept(c, 2 * (double)sample_blocks(&s->c));
    }
    return true;
}

static int calibrate(struct method_ctx *ctx, const void *params, const struct head_in *samples,
                     int n, struct jw *w, struct err *err)
{
    const struct params *p = params;
    struct sample_target want = {.p1 = p->target_p1,
                                 .error = p->target_err,
                                 .mean = p->target_mean,
                                 .fast = p->target == TARGET_SPD};
    struct sample_choice c;
    if (p->profile == PROFILE_V2)
        return err_set(
            err, ERR_USAGE,
            "method sampleattention: profile=v2 cannot be calibrated; use paper, strict or safe");
    for (int i = 0; i < n; i++)
        if (!samples[i].x.causal || samples[i].x.nq > samples[i].x.nk)
            return method_skip(ctx, "causal only");
    struct sample_config base = resolve(p, samples[0].x.nq, samples[0].x.nk);
    PASS_ON(sample_search(&base, &want, samples, n, &c, w, err));
    if (!c.met)
        log_warn("sampleattention: layer %d head %d: no triple meets the target; full mask",
                 samples[0].layer, samples[0].head);
    jw_knum(w, "alpha_c", c.alpha_c);
    jw_knum(w, "alpha_s", c.alpha_s);
    jw_kint(w, "chunks", c.chunks);
    return 0;
}

static const struct metric_def metrics[] = {
    OWN_METRIC("columns",
               "key columns selected, in blocks (profile=v2: in tokens), mean over sampled slices"),
    OWN_METRIC("slashes", "diagonals of blocks selected, mean over sampled slices"),
    OWN_METRIC("units_forced", "mask units kept only because they are forced"),
    {0},
};

const struct method method_sampleattention = {
    .name = "sampleattention",
    .summary = "key columns and slashes from exact softmax rows of sampled slices",
    .paper = "SampleAttention, arXiv:2406.15486",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_ANY_SCORE,
    .params = {.table = options,
               .size = sizeof(struct params),
               .scopes = PARAM_SCOPES(
                   {"alpha window rows bottom", "profile=v2"},
                   {"alpha_c alpha_s chunks block extend merge keep_diag keep_sink preset",
                    "profile=paper|strict|safe"}),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COMPLEMENT, "alpha", .only = "profile=v2"),
                                       BUDGET_BY(BUDGET_COMPLEMENT, "alpha_c alpha_s"))},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .cost = cost,
    .why_full = why_full,
    .device = {.rule = rule, .take = take, .keep_on_device = keep_on_device},
    .search = {.calibrate = calibrate, .passes = 4, .on_device = block_grid_on_device},
    .tests = {.full = "alpha_c=1",
              .variants =
                  TEXTS("profile=safe:block=64", "profile=v2:window=0.1", "merge=mean:chunks=4")},
};
