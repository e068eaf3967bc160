/*
 * svg2map.h - the key clusters that a query cluster keeps (Sparse VideoGen2, arXiv 2505.18875).
 *
 *   S_ab = scale cq_a . ck_b     P_ab = n_b e^(S_ab) / sum_b' n_b' e^(S_ab')
 *
 * n_b is the size of key cluster b. Of a row the largest P are kept until their sum exceeds p.
 */
#ifndef LACUNA_SVG2MAP_H
#define LACUNA_SVG2MAP_H

#include "sim/methods/svg2/kmeans.h"

#include <stdbool.h>
#include <stdint.h>

struct svg2_cut {
    double top_p;     /* mass to exceed; 1 keeps everything */
    double min_share; /* share of the clusters that is always kept */
    enum dtype dtype; /* P is rounded to it */
    bool bf16_scores; /* S is rounded to bf16 after the product and after the scale */
    bool bf16_sums;   /* the running sum is that of a GPU in bf16, and so is top_p */
    int chunk;        /* of that running sum (gpusum.h) */
};

/* P of one query cluster: p [k]. The row maximum is subtracted, the denominator is at least 1e-12.
 */
void svg2_weights(const float *query, const struct kmeans *keys, double scale,
                  const struct svg2_cut *cut, float *p);

/* Number of entries of a descending row that are kept: the shortest prefix whose running sum
 * exceeds top_p (all if none does), but at least int(min_share n). */
int64_t svg2_prefix(const struct svg2_cut *cut, const float *sorted, int64_t n);

/* map [queries->k][keys->k], 1 = kept. Ties go to the lower key cluster. *map is malloc'd. */
int svg2_map(const struct kmeans *queries, const struct kmeans *keys, double scale,
             const struct svg2_cut *cut, uint8_t **map, struct err *err);

#endif
