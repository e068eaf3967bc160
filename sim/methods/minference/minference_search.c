/*
 * minference_search.c - MInference's offline choice of a pattern per head (arXiv:2407.02490,
 * algorithm 1 and appendix C.2; the published code differs from it).
 *
 *   code:  six fixed candidates, the one with the highest mean recall wins; a winning A-shape is
 *          written as vertical-slash (100, 800), a winning block pattern as (1000, 6096)
 *   paper: candidates brought to the kernel cost of an A-shape (1024, 4096) in steps of 50, the
 *          least output error wins and keeps its type
 *
 * Each candidate costs one masked attention per sample.
 */
#include "sim/methods/minference/minference.h"

#include "core/log.h"
#include "core/mem.h"
#include "sim/blocks/judge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 1024 /* rows, a multiple of every unit */
#define FULL_LENGTH 131072
#define STEP 50

/* ---- judging ---------------------------------------------------------------------------- */

/* Recall of rows into mass [nq], errors of outputs, pairs that the mask executes. */
static int judge_mask(struct minf_head *h, const struct head_in *in, double *mass, struct judged *v,
                      double *exec, struct err *err)
{
    int64_t rows = in->x.nq;
    struct judging j;
    int rc = 0;

    judge_begin(&j, in->exact, mass);
    for (int64_t r = 0; r < rows; r += CHUNK) {
        struct mask m = {0};
        struct mask_counts n = {0};
        rc = minf_select(h, r, r + CHUNK < rows ? r + CHUNK : rows, &m, err);
        rc = rc ? rc : mask_count(&m, &n, err);
        if (rc) {
            mask_free(&m);
            goto out;
        }
        *exec += n.pairs_exec > 0 ? (double)n.pairs_exec : 0;
        TRY(judge_add(&j, &m, err));
    }
    TRY(judge_end(&j, NULL, err));
    *v = j.sum;
out:
    judge_free(&j);
    return rc;
}

/* Add the mean over n samples of the candidate's numbers on one sample. */
static int judge(struct minf_candidate *cand, const struct head_in *in, int64_t rows_from, int n,
                 struct err *err)
{
    int64_t rows = in->x.nq;
    struct minf_head h = {0};
    struct judged v = {0};
    double *mass = NULL, recall = 0, exec = 0;
    int rc = 0;
    TRY(mem_alloc(&mass, rows, sizeof *mass, "recall of rows", err));
    TRY(minf_init(&h, &cand->c, in, err));
    TRY(judge_mask(&h, in, mass, &v, &exec, err));
    for (int64_t r = rows_from; r < rows; r++)
        recall += mass[r];
    if (cand->c.pattern == MINF_VS && cand->c.realised)
        exec = (double)vslash_exec(&h.lists);
    cand->score += recall / (double)(rows - rows_from) / n;
    cand->error += (v.sq_ref > 0 ? sqrt(v.sq_delta / v.sq_ref) : 0) / n;
    cand->exec += exec / (double)pairs_allowed(rows, rows, true) / n;
out:
    minf_free(&h);
    free(mass);
    return rc;
}

/* ---- the code's candidates -------------------------------------------------------------- */

static void set_vs(struct minf_candidate *c, const char *name, int64_t v, int64_t s)
{
    c->name = name;
    c->pattern = c->c.pattern = MINF_VS;
    c->v = c->c.v = v;
    c->s = c->c.s = s;
}

/* Token-exact masks of the published search: 30 columns and 30 distances forced and no lower
 * clamps, a window of 801 distances, 32-token blocks. Realised: what the kernels run. */
static int code_candidates(bool exact, const struct minf_config *base, struct minf_candidate *cand)
{
    static const int64_t SIZES[4][2] = {{30, 800}, {100, 750}, {500, 700}, {3500, 100}};
    static const char *const NAMES[] = {"vs 30 800", "vs 100 750", "vs 500 700", "vs 3500 100"};
    for (int i = 0; i < MINF_CANDIDATES; i++) {
        cand[i] = (struct minf_candidate){.c = *base};
        cand[i].c.realised = !exact;
        if (exact)
            cand[i].c.force_cols = cand[i].c.force_dists = 30;
    }
    for (int i = 0; i < 4; i++)
        set_vs(&cand[i + 1], NAMES[i], SIZES[i][0], SIZES[i][1]);
    set_vs(&cand[0], "a-shape 100 800", 100, 800);
    cand[0].c.pattern = MINF_ASHAPE;
    cand[0].c.init = 100;
    cand[0].c.local = exact ? 801 : 800;
    set_vs(&cand[5], "block", 1000, 6096);
    cand[5].c.pattern = MINF_BLOCK;
    if (exact)
        cand[5].c.block = 32;
    return MINF_CANDIDATES;
}

/* ---- the paper's candidates ------------------------------------------------------------- */

static void set_shape(struct minf_candidate *c, const char *name, int64_t init, int64_t local)
{
    c->name = name;
    c->pattern = c->c.pattern = MINF_ASHAPE;
    c->v = c->c.init = init;
    c->s = c->c.local = local;
}

static void set_block(struct minf_candidate *c, int64_t top)
{
    c->name = "block";
    c->pattern = c->c.pattern = MINF_BLOCK;
    c->v = c->s = c->c.top = top;
}

static int paper_candidates(const struct minf_config *base, struct minf_candidate *cand)
{
    for (int i = 0; i < MINF_CANDIDATES; i++)
        cand[i] = (struct minf_candidate){.c = *base};
    set_shape(&cand[0], "a-shape", 1024, 4096);
    set_vs(&cand[1], "vs 30", 30, 2048);
    set_vs(&cand[2], "vs 100", 100, 1800);
    set_vs(&cand[3], "vs 500", 500, 1500);
    set_vs(&cand[4], "vs 3000", 3000, 200);
    set_block(&cand[5], 100);
    return MINF_CANDIDATES;
}

/* Pairs that the kernel of this pattern multiplies. */
static int kernel_pairs(const struct minf_config *c, const struct head_in *in, double *pairs,
                        struct err *err)
{
    int rc = 0;
    struct minf_head h = {0};
    TRY(minf_init(&h, c, in, err));
    *pairs = 0;
    for (int64_t r = 0; r < c->n; r += CHUNK) {
        struct mask m = {0};
        struct mask_counts n = {0};
        rc = minf_select(&h, r, r + CHUNK < c->n ? r + CHUNK : c->n, &m, err);
        rc = rc ? rc : mask_count(&m, &n, err);
        mask_free(&m);
        if (rc)
            goto out;
        *pairs += (double)n.pairs_exec;
    }
    if (c->pattern == MINF_VS)
        *pairs = (double)vslash_exec(&h.lists);
out:
    minf_free(&h);
    return rc;
}

/* Move the size that the pattern's budget is made of (distances or blocks) by the fewest steps that
 * take its cost to the target or beyond; cost grows with the size, so the number is bisected. */
static int equalise(struct minf_candidate *c, const struct head_in *in, int64_t step, double target,
                    struct err *err)
{
    int64_t *size = c->c.pattern == MINF_VS ? &c->c.s : &c->c.top, start = *size;
    double pairs = 0;
    int rc = kernel_pairs(&c->c, in, &pairs, err);
    bool up = pairs < target;
    int64_t lo = -1, hi = up ? (c->c.n - start + step - 1) / step : (start - 1) / step;
    hi = hi < 0 ? 0 : hi;
    while (!rc && hi - lo > 1) {
        int64_t k = (lo + hi) / 2;
        *size = up ? start + k * step : start - k * step;
        rc = kernel_pairs(&c->c, in, &pairs, err);
        if (up ? pairs >= target : pairs <= target)
            hi = k;
        else
            lo = k;
    }
    *size = up ? start + hi * step : start - hi * step;
    c->s = *size;
    if (c->c.pattern == MINF_BLOCK)
        c->v = *size;
    return rc;
}

static int equalise_all(struct minf_candidate *cand, int count, const struct head_in *in,
                        bool scaled, struct err *err)
{
    double target;
    int64_t step = scaled ? STEP * in->x.nk / FULL_LENGTH : STEP;
    int rc = kernel_pairs(&cand[0].c, in, &target, err);
    for (int i = 1; i < count && !rc; i++)
        rc = equalise(&cand[i], in, step > 0 ? step : 1, target, err);
    return rc;
}

/* ---- search ----------------------------------------------------------------------------- */

static int64_t scaled_size(int64_t x, int64_t n)
{
    int64_t y = (int64_t)llround((double)x * (double)n / FULL_LENGTH);
    return y > 1 ? y : 1;
}

static void scale_candidate(struct minf_candidate *c, int64_t n)
{
    int64_t *sizes[] = {&c->c.v, &c->c.s, &c->c.init, &c->c.local, &c->c.top, &c->v, &c->s};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        *sizes[i] = scaled_size(*sizes[i], n);
}

static int64_t first_row(const struct minf_search *s, int64_t n)
{
    int64_t from = s->rows_from >= 0 ? s->rows_from : n < 10000 ? n / 4 : 2500;
    return from < n ? from : n - 1;
}

/* What depends on the length of a sample. */
static void fit(struct minf_candidate *c, const struct minf_search *s, int64_t n)
{
    c->c.n = n;
    if (s->kind == MINF_SEARCH_EXACT) {
        if (c->c.pattern == MINF_BLOCK)
            c->c.top = (n + 31) / 32 / 8;
    } else if (c->c.pattern == MINF_VS) {
        c->c.v = c->c.v > s->min_v ? c->c.v : s->min_v;
        c->c.s = c->c.s > s->min_s ? c->c.s : s->min_s;
    }
}

static int better(const struct minf_search *s, const struct minf_candidate *a,
                  const struct minf_candidate *b)
{
    return s->kind == MINF_SEARCH_PAPER ? a->error < b->error : a->score > b->score;
}

int minf_search_run(const struct minf_search *s, const struct minf_config *base,
                    const struct head_in *samples, int n, struct minf_candidate *cand, int *count,
                    struct err *err)
{
    int rc = 0, best = 0;
    bool exact = s->kind == MINF_SEARCH_EXACT;
    struct minf_config b = *base;
    b.n = samples[0].x.nk;
    *count = s->kind == MINF_SEARCH_PAPER ? paper_candidates(&b, cand)
                                          : code_candidates(exact, &b, cand);
    for (int i = 0; i < *count; i++) {
        if (s->scale_sizes)
            scale_candidate(&cand[i], b.n);
        fit(&cand[i], s, b.n);
    }
    if (s->kind == MINF_SEARCH_PAPER)
        TRY(equalise_all(cand, *count, &samples[0], s->scale_sizes, err));
    for (int i = 0; i < *count; i++) {
        for (int k = 0; k < n; k++) {
            fit(&cand[i], s, samples[k].x.nk);
            TRY(judge(&cand[i], &samples[k], first_row(s, samples[k].x.nk), n, err));
        }
        log_debug("minference search: %s: mean recall %.6f error %.6f executed %.6f", cand[i].name,
                  cand[i].score, cand[i].error, cand[i].exec);
        if (better(s, &cand[i], &cand[best]))
            best = i;
    }
    return best;
out:
    return rc;
}
