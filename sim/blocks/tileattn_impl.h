/*
 * tileattn_impl.h - the two arithmetics behind tileattn.h: exact (tileexact.c) and quantised
 * (tilequant.c).
 *
 * X_new allocates the buffers of one caller. X_block is tile_attn_block without the steps after the
 * arithmetic: a row that sees no key gets lse -inf and an unset output.
 */
#ifndef LACUNA_TILEATTN_IMPL_H
#define LACUNA_TILEATTN_IMPL_H

#include "sim/blocks/tileattn.h"

#include <math.h>

struct tile_exact;
int tile_exact_new(const struct tile_attn *t, struct tile_exact **out, struct err *err);
void tile_exact_free(struct tile_exact *w); /* accepts NULL */
void tile_exact_block(const struct tile_attn *t, struct tile_exact *w, int64_t row0, int64_t rows,
                      const int32_t *col, int64_t n, double *out, double *lse, double *tiles_pv);

struct tile_quant;
int tile_quant_new(const struct tile_attn *t, struct tile_quant **out, struct err *err);
void tile_quant_free(struct tile_quant *w); /* accepts NULL */
void tile_quant_block(const struct tile_attn *t, struct tile_quant *w, int64_t row0, int64_t rows,
                      const int32_t *col, int64_t n, double *out, double *lse, double *tiles_pv);

/* Keys of [key0, key0 + keys) that a row may see. */
static inline int64_t tile_visible(const struct tile_attn *t, int64_t row, int64_t key0,
                                   int64_t keys)
{
    int64_t n = key_limit(t->nq, t->nk, t->causal, row) - key0;
    return n < 0 ? 0 : n > keys ? keys : n;
}

static inline int64_t tile_scopes(const struct tile_attn *t, int64_t rows)
{
    return (rows + t->scope - 1) / t->scope;
}

/* Is P.V computed for a scope whose largest gap is this? The last tiles of a list are exempt. */
static inline bool tile_computes(const struct tile_attn *t, double gap, bool exempt)
{
    return exempt || t->pv == INFINITY || gap + t->pv > 0;
}

#endif
