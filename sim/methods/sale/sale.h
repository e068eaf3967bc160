/*
 * sale.h - the parts of SALE (arXiv:2505.24179) behind its method table: regions, threshold, block
 * test, INT8 attention and calibration.
 *
 * Query blocks have 64 rows, key blocks 32 keys. Query block m sees n key blocks. Block 0 (sink)
 * and the last blocks (local) are always kept, blocks 1 .. mid are tested.
 */
#ifndef LACUNA_SALE_H
#define LACUNA_SALE_H

#include "core/err.h"
#include "core/mask.h"
#include "sim/methods/sale/sale_quant.h"

#include <stdbool.h>
#include <stdint.h>

struct sale_regions {
    int64_t n;       /* key blocks that the query block sees */
    int64_t n_local; /* blocks of the local stretch (may exceed n in early query blocks) */
    int64_t mid;     /* tested: blocks 1 .. mid; local: max(1, mid + 1) .. n - 1 */
};

/* Regions of query block m. tokens = N, w = local / 32. */
struct sale_regions sale_regions(int64_t tokens, int64_t m, int64_t w);

/* Threshold in raw units (q . k without the scale) from m = max S_raw and l = sum e^((S_raw - m)
 * scale) over the sink-local region: log2(tau l) / (scale log2 e) + m, in fp16 or fp32. */
float sale_threshold(float m, float l, double tau, double scale, bool f16);

struct sale_config {
    double tau, scale;
    int bits;  /* 4, 8, 16 */
    int64_t w; /* local / 32: 4 or 8 */
    int64_t dense_below;
    bool f16;          /* threshold and estimate rounded to fp16 */
    bool strict;       /* keep iff estimate > threshold, else >= */
    bool causal_stats; /* causal mask inside the sink-local statistics */
};

struct sale_counts {
    int64_t tiles, kept; /* all blocks; kept blocks, with sink and local */
    int64_t tested, tested_kept, ties;
};

struct sale_head {
    struct sale_config c;
    const float *q, *k; /* [n][d], the caller's */
    int64_t n;
    int d;
    struct sale_quant z; /* owned; made by sale_head_quantise */
    void *scratch;       /* owned, with z */
    struct mask *taken;  /* owned; NULL: the head chooses itself */
    struct sale_counts counts;
};

/* q, k [n][d] stay the caller's. Nothing is computed yet. Release with sale_head_free. */
void sale_head_init(struct sale_head *h, const struct sale_config *c, const float *q,
                    const float *k, int64_t n, int d);
void sale_head_free(struct sale_head *h);

/* Make the low-bit operands, once; sale_select does so where it needs them. */
int sale_head_quantise(struct sale_head *h, struct err *err);

/* From now on sale_select hands out *m, lists of 64 x 32 blocks over the whole head that somebody
 * else chose by the same rule, and tests nothing. ERR_RUN: lists of other units. */
int sale_head_take(struct sale_head *h, const struct mask *m, struct err *err);

/* True if every block of the head is kept: a short prompt, or tau < 1e-5. */
bool sale_dense(const struct sale_head *h);

/* Mask (64 x 32 blocks) of the query rows [row0, row1), row0 a multiple of 64. Counts are added to
 * h->counts. */
int sale_select(struct sale_head *h, int64_t row0, int64_t row1, struct mask *out, struct err *err);

/* Operations and bytes of the choice by sizes alone: mean and quantisation of q and k, then per
 * query block with tested key blocks the exact statistics of its sink-local region and one low-bit
 * product per tested pair. Nothing for a dense head. in_bytes: of a number of q or k. */
struct select_cost;
void sale_cost(const struct sale_head *h, double in_bytes, struct select_cost *c);

/* Thresholds of the rows of query block m (at most 64) into thr. */
void sale_row_thresholds(struct sale_head *h, int64_t m, float *thr);

/* ---- calibration ------------------------------------------------------------------------ */

struct head_in;

struct sale_search {
    double theta; /* bound of sum |O - O_ref| per token */
    double tau0, tau_min;
};

/* Is the error of sample i at tau within the bound? *ok is written. */
typedef int sale_judge_fn(void *ctx, int i, double tau, bool *ok, struct err *err);

/* Go through the samples and halve tau, from tau0 on, until each is within the bound; tau never
 * rises. At tau = 0 the head is dense and nothing is judged. *rounds counts the rounds, including
 * those at tau = 0. */
int sale_search_tau(const struct sale_search *s, int n, sale_judge_fn *judge, void *ctx,
                    double *tau, int64_t *rounds, struct err *err);

#endif
