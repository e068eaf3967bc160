/*
 * blockmap.h - a bitmap over the blocks of one head: B x B blocks, row block I = query rows
 * [I B, (I + 1) B), column block J = keys [J B, (J + 1) B).
 */
#pragma once

#include "core/method.h"

#include <stdbool.h>
#include <stdint.h>

struct block_map {
    int64_t nq, nk, block;
    int64_t rows, cols, words; /* row blocks, column blocks, 64-bit words of a row */
    bool causal;
    uint64_t *bits; /* [rows][words], owned */
    int64_t there;  /* kept blocks of a map that is on a device, not in `bits` */
};

/* Make a map without kept blocks. */
int block_map_init(struct block_map *m, int64_t nq, int64_t nk, int64_t block, bool causal,
                   struct err *err);
void block_map_free(struct block_map *m); /* also of a zeroed one */

static inline void block_map_set(struct block_map *m, int64_t i, int64_t j)
{
    m->bits[i * m->words + j / 64] |= 1ull << (j % 64);
}

static inline void block_map_clear(struct block_map *m, int64_t i, int64_t j)
{
    m->bits[i * m->words + j / 64] &= ~(1ull << (j % 64));
}

static inline bool block_map_get(const struct block_map *m, int64_t i, int64_t j)
{
    return m->bits[i * m->words + j / 64] >> (j % 64) & 1;
}

/* Columns of row block i, ascending, into cols (room for m->cols); returns their number. */
int64_t block_map_row(const struct block_map *m, int64_t i, int32_t *cols);

int64_t block_map_count(const struct block_map *m);

/* Take the choice of a device over (struct method_device): the blocks of its lists, or the number
 * of blocks of a mask that stays there. ERR_RUN if it has another unit. */
int block_map_take(struct block_map *m, const struct device_choice *c, struct err *err);

/* Mask of the query rows [row0, row1), row0 a multiple of the block. */
int block_map_mask(const struct block_map *m, int64_t row0, int64_t row1, struct mask *out,
                   struct err *err);
