/*
 * sale.h - the parts of SALE (arXiv:2505.24179) behind its method table: regions, threshold, block
 * test, INT8 attention and calibration.
 *
 * Query blocks have 64 rows, key blocks 32 keys. Query block m sees n key blocks. Block 0 (sink)
 * and the last blocks (local) are always kept, blocks 1 .. mid are tested.
 */
#pragma once

#include "core/err.h"
#include "core/mask.h"
#include "sim/blocks/quant.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* ---- low-bit operands ------------------------------------------------------------------------ */

/* Low-bit operands of SALE (arXiv:2505.24179, section 3.4).
 *
 * Everything starts from operands rounded to fp16 (the method's input type). The token means of Q
 * and K are subtracted; the rest is scaled to integers per group:
 *   Q: rows r and r + 8 of each 16-row tile, all channels;
 *   K: in each 32-key block the 8 keys with floor((t mod 8) / 2) = c, c = 0..3.
 * Tokens past n count as zero. The mean of Q comes back as one correction per key:
 *   (q' + qbar) . k' = q . k', and q . kbar is constant along a row. */

#define SALE_BQ 64
#define SALE_BK 32

struct sale_quant {
    int64_t n, npad;    /* tokens; rounded up to 64 */
    int d, levels;      /* largest integer: 7 (4 bit), 127 (8 bit), 0: no integers */
    float *qbar, *kbar; /* [d], values of fp16; owned like all arrays here */
    float *q;           /* [n][d] q rounded to fp16 */
    float *k;           /* [n][d] k' = fp16(k - kbar) */
    int8_t *qi;         /* [npad][d] */
    int8_t *ki;         /* [npad / 32][d][32], key t of a block at sale_lane(t) */
    float *sq;          /* [npad / 2], group sale_q_group(row), values of fp16 */
    float *sk;          /* [npad / 8], group sale_k_group(key), values of fp16 */
    float *corr;        /* [npad] in lane order: qbar . k' in units of 1/sk, fp16 with 4 bits */
};

/* q, k [n][d]. bits 4, 8, or 16 (no integers: q and k only). Release with
 * sale_quant_free, after a failure too. */
int sale_quant_init(struct sale_quant *s, const float *q, const float *k, int64_t n, int d,
                    int bits, struct err *err);
void sale_quant_free(struct sale_quant *s);

/* Round to nearest even integer, |x| < 2^22. */
static inline float sale_rne(float x)
{
    return (x + 12582912.0f) - 12582912.0f;
}

/* For a group with largest magnitude amax: the multiplier L / amax and the two stored scales. All
 * are 0 if amax = 0. */
struct sale_scale {
    float mul, sq, sk;
};

static inline int64_t sale_q_group(int64_t row)
{
    return row / 16 * 8 + row % 8;
}

static inline int64_t sale_k_group(int64_t key)
{
    return key / SALE_BK * 4 + key % 8 / 2;
}

/* Lane of key t of a 32-key block: i * 4 + group, i = 0..7. This order lets a vector loop take the
 * maxima of the four groups at once. */
static inline int sale_lane(int t)
{
    return (t / 8 * 2 + t % 2) * 4 + t % 8 / 2;
}

/* ---- selection ------------------------------------------------------------------------------- */

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

/* Mask (64 x 32 blocks) of the query rows [row0, row1), row0 a multiple of 64. Counts are added to
 * h->counts. */
int sale_select(struct sale_head *h, int64_t row0, int64_t row1, struct mask *out, struct err *err);

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
int sale_search_tau(const struct sale_search *s, int n, sale_judge_fn *within, void *ctx,
                    double *tau, int64_t *rounds, struct err *err);
