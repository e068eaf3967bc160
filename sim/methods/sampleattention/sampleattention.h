/*
 * sampleattention.h - the parts of SampleAttention (arXiv:2406.15486) behind its method table:
 * sampled slices, the two score lists, find_k, and the block plan made from them.
 *
 * Positions are absolute: query row i of a head with nq queries and nk keys stands at
 * i + nk - nq. B is the block size, nb = ceil(nk / B).
 */
#pragma once

#include "core/err.h"
#include "core/mask.h"
#include "core/rules.h"
#include "sim/blocks/exact.h"

#include <stdbool.h>
#include <stdint.h>

#define SAMPLE_MAX_CHUNKS 64

/* One head's settings with presets and defaults resolved. */
struct sample_config {
    int64_t nq, nk, block;
    int chunks;
    double alpha_c, alpha_s;
    enum sample_extend extend;
    enum sample_merge merge;
    bool keep_diag, keep_sink;
    struct reach reach; /* of the head: blocks before it are not counted as forced */
};

int64_t sample_blocks(const struct sample_config *c); /* nb */

/* False when the prompt is too short for the slices (nq < 2 B or chunks B >= nq): the head stays
 * dense. */
bool sample_applies(const struct sample_config *c);

/* end[0..chunks], end[0] = nk - nq: chunk i covers positions [end[i], end[i + 1]) and its slice is
 * [end[i + 1] - B, end[i + 1]). Inner ends are rounded up to block boundaries, so that a slice is
 * one row block; the last is nk. */
void sample_ends(const struct sample_config *c, int64_t end[SAMPLE_MAX_CHUNKS + 1]);

/* Slash bin of the distance d >= 0. */
int64_t sample_bin(const struct sample_config *c, int64_t d);

/* Score lists of the slices: col and slash are [chunks][nb]. Each slice's lists sum to 1. */
struct sample_scores {
    double *col, *slash; /* owned */
};

int sample_scores_init(struct sample_scores *s, const struct sample_config *c, struct err *err);
void sample_scores_free(struct sample_scores *s);

/* Add the exact softmax row p[0..pos] of the query at position pos to slice i. */
void sample_scores_add(struct sample_scores *s, const struct sample_config *c, int i, int64_t pos,
                       const double *p);

/* Score all slices from exact softmax rows, a few rows at a time (memory linear in nk). */
int sample_scores_run(struct sample_scores *s, const struct sample_config *c, struct exact *exact,
                      struct err *err);

/* order = indices of score[0..n) by (score descending, index ascending); returns in *k the least
 * k >= 1 with sum of the first k >= alpha * total. alpha >= 1 gives n, alpha <= 0 gives 1. */
int sample_find_k(const double *score, int64_t n, double alpha, int32_t *order, int64_t *k,
                  struct err *err);

/* Which blocks are kept. lists = chunks with SAMPLE_PERCHUNK, else 1. */
struct sample_plan {
    struct sample_config c;
    int64_t nb, end[SAMPLE_MAX_CHUNKS + 1];
    int lists;
    uint8_t *cols;  /* [lists][nb] column block kept, owned */
    uint8_t *bins;  /* [lists][nb] slash bin kept, owned */
    uint8_t *diags; /* [lists][nb + 1] block diagonal kept (bins extended), owned */
    int64_t kc[SAMPLE_MAX_CHUNKS], ks[SAMPLE_MAX_CHUNKS]; /* list lengths per slice (1 with MEAN) */
    int slices;                                           /* entries of kc and ks */
};

/* Apply find_k and extend to complete scores. c may differ from the config of the scores only in
 * the alphas, merge, keep_diag and keep_sink. */
int sample_plan_build(struct sample_plan *p, const struct sample_config *c,
                      const struct sample_scores *s, struct err *err);
void sample_plan_free(struct sample_plan *p);

/* The list that governs row block I (I counted in positions). */
int sample_plan_list(const struct sample_plan *p, int64_t row_block);

/* Why list l keeps block (I, J), J <= I: SAMPLE_BY_LIST, or only SAMPLE_BY_FORCE (keep_diag,
 * keep_sink); 0 = it does not keep it. */
enum { SAMPLE_BY_LIST = 1, SAMPLE_BY_FORCE = 2 };

static inline int sample_plan_keeps(const struct sample_plan *p, int l, int64_t i, int64_t j)
{
    if (p->cols[l * p->nb + j] || p->diags[l * (p->nb + 1) + i - j])
        return SAMPLE_BY_LIST;
    return (p->c.keep_diag && i == j) || (p->c.keep_sink && j == 0) ? SAMPLE_BY_FORCE : 0;
}

/* Mask of the query rows [row0, row1). Adds to *forced the number of mask units kept by force only.
 */
int sample_plan_mask(const struct sample_plan *p, int64_t row0, int64_t row1, struct mask *out,
                     int64_t *forced, struct err *err);

/* ---- the algorithm of arXiv v1/v2: window, token columns, dense last rows --------------- */

struct sample_v2 {
    int64_t nq, nk, window, bottom, sampled, step;
    double pairs;  /* allowed pairs of the sampled rows */
    int32_t *cols; /* ascending token columns, owned */
    int64_t ncols;
};

/* Sampled rows are the last one and every round(1/rows)-th before it. sample_v2_init: all that
 * follows from sizes; sample_v2_choose: the columns. */
void sample_v2_init(struct sample_v2 *v, const struct attn_in *x, double window, double rows,
                    int64_t bottom);
int sample_v2_choose(struct sample_v2 *v, double alpha, struct exact *exact, struct err *err);
void sample_v2_free(struct sample_v2 *v);
int sample_v2_mask(const struct sample_v2 *v, int64_t row0, int64_t row1, struct mask *out,
                   struct err *err);

/* ---- offline search of (alpha_c, alpha_s, chunks) --------------------------------------- */

struct head_in;

/* The condition that a triple has to meet. */
struct sample_target {
    double p1, error; /* keep p1 >= p1 and relative L2 error <= error, at the worst sample */
    double mean;      /* keep mean >= mean */
    bool fast;        /* true: only `mean` counts */
};

struct sample_choice {
    double alpha_c, alpha_s;
    int chunks;
    double density, keep_p1, keep_mean, error; /* scores of the chosen triple */
    bool met;                                  /* false: nothing met the target; a full mask */
};

/* Evaluate the whole grid on n samples and choose the sparsest triple that meets the target. The
 * grid goes into the open object w (NULL: nowhere) as "grid": columns and rows. base gives block,
 * extend, merge and the forced blocks. */
struct jw;
int sample_search(const struct sample_config *base, const struct sample_target *target,
                  const struct head_in *samples, int n, struct sample_choice *out, struct jw *w,
                  struct err *err);
