/*
 * radialmap.c - see radialmap.h. The block rule is that of the published mask function, whose
 * column counts follow here from the limits of the band instead of an F x F matrix.
 */
#include "sim/methods/radial/radialmap.h"

#include "core/intmath.h"

#include <math.h>
#include <stdlib.h>

static int bit_length(int64_t x)
{
    return x ? 64 - __builtin_clzll((unsigned long long)x) : 0;
}

/* 2^bl(F) / 2^bl(d) */
static double band_length(int64_t F, int64_t d)
{
    return ldexp(1, bit_length(F) - bit_length(d));
}

double radial_width(const struct radial_rule *r, int64_t d)
{
    if (d <= 1)
        return (double)r->F;
    return fmax(band_length(r->F, d) * r->decay, (double)r->block);
}

bool radial_frames_kept(const struct radial_rule *r, int64_t d)
{
    double length = band_length(r->F, d);
    return length >= (double)r->thin || d % (int64_t)((double)r->thin / length) == 0;
}

bool radial_column_high(int64_t rows, int64_t block)
{
    return 3 * rows > block;
}

bool radial_block_kept(int64_t high, int64_t nonzero)
{
    return 5 * high > 3 * nonzero;
}

/* One frame pair on its canvas: the frame's first token stands `row` (`col`) tokens into its first
 * block, |k - l| <= reach is kept. */
struct frame_pair {
    int64_t F, block, row, col, reach;
};

static bool pair_block(const struct frame_pair *p, int64_t r, int64_t c)
{
    int64_t B = p->block;
    int64_t k0 = MAX(0, r * B - p->row), k1 = MIN(p->F, (r + 1) * B - p->row);
    int64_t l0 = MAX(0, c * B - p->col), l1 = MIN(p->F, (c + 1) * B - p->col);
    int64_t high = 0, nonzero = 0;

    if (k0 >= k1 || l0 >= l1 || l1 - 1 < k0 - p->reach || l0 > k1 - 1 + p->reach)
        return false;
    if (l0 >= k1 - 1 - p->reach && l1 - 1 <= k0 + p->reach)
        return radial_column_high(k1 - k0, B);
    for (int64_t l = l0; l < l1; l++) {
        int64_t rows = MIN(k1, l + p->reach + 1) - MAX(k0, l - p->reach);
        nonzero += rows > 0;
        high += rows > 0 && radial_column_high(rows, B);
    }
    return radial_block_kept(high, nonzero);
}

static void add_pair(const struct radial_rule *r, int64_t i, int64_t j, struct block_map *map)
{
    int64_t B = r->block, blocks = (r->F + B - 1) / B;
    bool all = r->sink && j == 0;
    struct frame_pair p = {r->F, B, i * r->F % B, j * r->F % B,
                           all ? r->F : (int64_t)floor(radial_width(r, llabs(i - j)))};
    int64_t row0 = i * r->F / B, col0 = j * r->F / B;

    if (!all && !radial_frames_kept(r, llabs(i - j)))
        return;
    for (int64_t a = 0; a < MIN(blocks, map->rows - row0); a++)
        for (int64_t b = 0; b < MIN(blocks, map->cols - col0); b++)
            if (pair_block(&p, a, b))
                block_map_set(map, row0 + a, col0 + b);
}

int radial_map(const struct radial_rule *r, struct block_map *map, struct err *err)
{
    int64_t video = r->F * r->T, n = video + r->text;
    int rc = block_map_init(map, n, n, r->block, false, err);
    if (rc)
        return rc;
    for (int64_t i = 0; i < r->T; i++)
        for (int64_t j = 0; j < r->T; j++)
            add_pair(r, i, j, map);
    for (int64_t a = video / r->block; r->text > 0 && a < map->rows; a++)
        for (int64_t b = 0; b < map->cols; b++) {
            block_map_set(map, a, b);
            block_map_set(map, b, a);
        }
    return 0;
}

int64_t radial_spilled_pairs(const struct radial_rule *r)
{
    int64_t B = r->block, canvas = (r->F + B - 1) / B * B, n = 0;
    for (int64_t i = 0; i < r->T; i++)
        for (int64_t j = 0; i * r->F % B + r->F > canvas && j < r->T; j++)
            n += (r->sink && j == 0) || radial_frames_kept(r, llabs(i - j));
    return n;
}

/* ---- the printed formula -------------------------------------------------------------------- */

int64_t radial_reach(const struct radial_rule *r, int64_t d)
{
    int64_t band = (int64_t)1 << (bit_length(MAX(d, 1)) - 1); /* 2^floor(log2 d) */
    if (band <= r->F)
        return r->F / band - 1;
    return d % ((band + r->F - 1) / r->F) == 0 ? 0 : -1;
}

void radial_row(const struct radial_rule *r, int64_t i, int64_t k, int64_t j, int64_t *lo,
                int64_t *hi)
{
    int64_t reach = r->sink && j == 0 ? r->F : radial_reach(r, llabs(i - j));
    *lo = *hi = j * r->F;
    if (reach < 0)
        return;
    *lo += MAX(0, k - reach);
    *hi += MIN(r->F, k + reach + 1);
}
