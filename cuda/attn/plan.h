/*
 * plan.h - the work of an attention launch as a list of items in the order in which thread blocks
 * take them. plan.c makes it on the host, mapplan.h makes the same one on the GPU.
 *
 * Rows of tiles are grouped into sections of heads whose keys and values stay in L2, and within a
 * section the longest come first. From the first row on that would end late (attn_row_late) the
 * rest is cut into a share for each multiprocessor, and partial results of a row are combined.
 */
#pragma once

#include "cuda/linkage.h"

BEGIN_C

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Geometry of the lists: query rows x keys of a block. Values after ATTN_LISTS_COUNT are for
 * kernels with a filter, or with operands of 8 bits (attn.h). */
enum attn_lists {
    ATTN_DENSE,
    ATTN_128x128,
    ATTN_128x64,
    ATTN_64x64,
    ATTN_64x32,
    ATTN_BITS,   /* 128 x 128 blocks, of which bits may keep a part (core/accel.h) */
    ATTN_GATHER, /* the same, of gathered keys */
    ATTN_LISTS_COUNT,
    ATTN_64x128,
};

/* The problem: attention of q [heads][nq][d] over k [kv_heads][nk][d] and v [kv_heads][nk][dv], dv
 * = attn_dv(d). */
struct attn_problem {
    int heads, kv_heads, d;
    int64_t nq, nk;
    double scale;
    bool causal; /* key j is seen by row i iff j <= i + nk - nq */
    enum attn_lists lists;
};

/* Channels of values and outputs for queries and keys of d: fewer where d is that of multi-head
 * latent attention (DeepSeek-V2, arXiv 2405.04434: 128 and 64 with positions). */
static inline int attn_dv(int d)
{
    return d == 192 ? 128 : d;
}

/* Block lists of all heads: row r = head * ceil(nq / rows of a block) + block has the key blocks
 * col[ptr[r] .. ptr[r + 1]), ascending, unique, each with a pair that is allowed. ATTN_BITS: bits,
 * words and n_bits as in struct accel_head; ATTN_GATHER: keys as there, col is NULL. */
struct attn_csr {
    const int64_t *ptr;
    const int32_t *col, *bits, *keys;
    const uint64_t *words;
    int64_t n_bits;
    bool on_device; /* ATTN_BITS, ATTN_GATHER: all but ptr lie there (mapplan.h) */
};

/* Tile of a kernel as the plan sees it. Items are counted in units of bn / units keys. Dense: unit
 * i starts at key i bn / units. Lists: unit i is part of the block in entry i / (units per block).
 * A stage takes `units` units, which may belong to two blocks; the first stage of an item takes the
 * remainder. */
struct attn_tile {
    int bm;    /* query rows */
    int bn;    /* keys of a stage */
    int units; /* units per stage */
};

struct attn_item {
    int32_t row, beg, end, slot; /* int4 of attn_args.h; [beg, end) units */
};

/* A split row: pieces in the slots [slot, slot + n). */
struct attn_split {
    int32_t row, slot, n;
};

/* What the kernels of a plan read, on the device: as in struct attn_plan and its lists. */
struct attn_device_plan {
    const void *items, *splits, *empty, *cols, *bits, *keys, *words;
};

struct attn_plan {
    struct attn_tile tile;
    int32_t q_blocks;        /* per head */
    struct attn_item *items; /* owned */
    int32_t n_items;
    int32_t *cols; /* owned; NULL when dense, gathered or on the device */
    int64_t n_cols;
    struct attn_csr lists;     /* the caller's lists, for their bits, or all of them */
    struct attn_split *splits; /* owned */
    int32_t n_splits, n_slots;
    int32_t *empty; /* owned: rows without a key */
    int32_t n_empty;
    struct attn_device_plan device; /* items NULL: not there */
    int32_t masked_units;           /* units at the end of an item that may need masking */
    int64_t blocks; /* number of bq x bk blocks (dense: tiles) that are multiplied */
    double balance; /* planned time of the busiest worker / balanced bound */
};

/* Make a plan for so many workers: multiprocessors, or teams of warpgroups that take items by
 * themselves; of one, every row is whole. csr is NULL when dense. */
int attn_plan_make(const struct attn_problem *p, const struct attn_tile *tile,
                   const struct attn_csr *csr, int workers, struct attn_plan *plan,
                   struct err *err);
void attn_plan_free(struct attn_plan *plan);

/* The first step, a plan with room for an item of each row, and the last, its balance, for items
 * that are made on the GPU. csr NULL: dense, or the lists are made with the items; of others only
 * ptr is read. */
int attn_plan_begin(const struct attn_problem *p, const struct attn_tile *tile,
                    const struct attn_csr *csr, struct attn_plan *plan, struct err *err);
int attn_plan_rate(struct attn_plan *plan, int workers, struct err *err);

/* Of a plan on the host: its head h is heads[h] of the problem that is launched. */
void attn_plan_move(struct attn_plan *plan, const int *heads);

/* Rows of tiles of a section. */
int64_t attn_section_rows(const struct attn_problem *p, int32_t q_blocks);

#ifdef __CUDACC__
#define PLAN_FN static inline __host__ __device__
#else
#define PLAN_FN static inline
#endif

/* Cost of the start and end of an item, in stages: nothing hides the first scores and the stores.
 */
#define ITEM_COST 1

/* A piece below this many stages costs more to combine than it balances. */
#define MIN_PIECE 4

/* What a cut must gain, in stages: partial results go through memory, and another launch combines
 * them (6 stages on an H200 for 100 rows of 47 stages in two pieces each); pieces are more items.
 */
#define CUT_GAIN 10

/* Would row i of the order end late? own, last: cost of it and of the row in front of it (0: none);
 * left: cost of all rows from it on; before: the same, workers rows earlier.
 *
 * Where rows become longer, a section begins, and the multiprocessors are about level: the row must
 * fit into an equal share of what is left. In a section, a wave of `workers` rows and the next one
 * in reverse make them level again. So the first row of every second wave must fit, too, and that
 * of the waves between together with the last row of the wave before, which it follows. */
PLAN_FN bool attn_row_late(int32_t i, int64_t own, int64_t last, int64_t left, int64_t before,
                           int workers)
{
    bool level = own > last || i / workers % 2 == 0;
    if (own <= last && i % workers)
        return false;
    return (own + (level ? 0 : last) - CUT_GAIN) * workers > (level ? left : before);
}

/* The rows from the first late one on, one after the other, as a line of stages in equal shares. */
struct attn_line {
    int64_t stages, shares;
};

PLAN_FN struct attn_line attn_line_of(int64_t stages, int workers)
{
    int64_t most = stages / MIN_PIECE < 1 ? 1 : stages / MIN_PIECE;
    struct attn_line line = {stages, most < workers ? most : workers};
    return line;
}

/* Where share k begins. */
PLAN_FN int64_t attn_share_at(struct attn_line line, int64_t k)
{
    return k * line.stages / line.shares;
}

/* How a row is cut that begins at stage `at` of the line: `share` is the first share to begin
 * inside of it, and with each that does a piece begins. */
struct attn_cut {
    int64_t at, share;
    int32_t pieces; /* 1: the row stays whole */
};

/* No piece is below MIN_PIECE, and rows of up to a share stay whole. */
PLAN_FN struct attn_cut attn_row_cut(struct attn_line line, int64_t at, int64_t stages)
{
    int64_t s = line.stages, n = line.shares;
    int64_t from = ((at + MIN_PIECE) * n + s - 1) / s;
    int64_t to = ((at + stages - MIN_PIECE + 1) * n + s - 1) / s;
    struct attn_cut cut = {at, from, to <= from || stages * n <= s ? 1 : (int32_t)(to - from) + 1};
    return cut;
}

/* Where piece k of a row of so many units begins, in units from the row's beginning; k = pieces:
 * the row's end. The first stage of an item may not be full: it is the one at the end of the row,
 * so that all others begin at whole stages. */
PLAN_FN int64_t attn_piece_begin(struct attn_line line, struct attn_cut cut, int64_t k,
                                 int64_t units, int per_stage)
{
    if (k == cut.pieces)
        return units;
    return k ? per_stage * (attn_share_at(line, cut.share + k - 1) - cut.at) : 0;
}

/* The most items of a plan of so many rows: every share begins once at most. */
static inline int64_t attn_most_items(int64_t rows, int workers)
{
    return rows + workers;
}

/* Plan for a kernel that walks over each list in order and decides tile by tile whether to multiply
 * P V (attn.h): lists of 128 x 64 or 64 x 128 blocks, no row cut. The upper bits of an
 * entry say, for warpgroup w, whether P V must be computed (bit FILTER_EXEMPT + w; set for the last
 * `tail` blocks of a list), and whether its rows want the block at all (bit FILTER_WANTED + w). */
#define FILTER_BLOCK 0x0fffffff
#define FILTER_EXEMPT 28
#define FILTER_WANTED 30
int attn_plan_filtered(const struct attn_problem *p, const struct attn_tile *tile,
                       const struct attn_csr *csr, int tail, int workers, struct attn_plan *plan,
                       struct err *err);

/* Rows and keys of a list's block; dense: those of `tile`. */
int attn_block_rows(enum attn_lists lists, const struct attn_tile *tile);
int attn_block_keys(enum attn_lists lists, const struct attn_tile *tile);
int attn_units_per_block(const struct attn_problem *p, const struct attn_tile *tile);

/* ---- work of a metrics pass ----------------------------------------------------------------- */

#define METRICS_BM 256 /* queries and keys of a tile */
#define METRICS_BN 128

/* Work of a pass of metrics_pass.cuh. An item is the key tiles [beg, end) of a row of tiles. */
struct metrics_plan {
    struct metrics_item {
        int32_t row, beg, end, pad;
    } * items;
    int32_t n_items;
};

/* Make a plan: every tile that holds an allowed pair is in one item; items are in the order in
 * which `sms` multiprocessors take them. Free with metrics_plan_free. ERR_RUN when the problem is
 * too large, ERR_NOMEM. */
int metrics_plan_make(const struct attn_problem *p, int sms, struct metrics_plan *plan,
                      struct err *err);
void metrics_plan_free(struct metrics_plan *plan);

END_C
