/*
 * plan.h - the work of an attention launch as a list of items in the order in which thread blocks
 * take them, made on the host.
 *
 * Rows of tiles are grouped into sections of heads whose keys and values stay in L2, and within a
 * section the longest come first. If such a plan ends late, the last items of the multiprocessors
 * change places until all end together. Items that still exceed the balanced bound (total stages /
 * multiprocessors) are cut into pieces, whose partial results are combined.
 */
#ifndef LACUNA_PLAN_H
#define LACUNA_PLAN_H

#ifdef __cplusplus
extern "C" {
#endif

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Geometry of the lists: query rows x keys of a block. Values after ATTN_LISTS_COUNT are for
 * attn_plan_filtered only. */
enum attn_lists {
    ATTN_DENSE,
    ATTN_128x128,
    ATTN_128x64,
    ATTN_64x64,
    ATTN_BITS,   /* 128 x 128 blocks, of which bits may keep a part (core/accel.h) */
    ATTN_GATHER, /* the same, of gathered keys */
    ATTN_LISTS_COUNT,
    ATTN_64x128,
};

/* The problem: attention of q [heads][nq][d] over k, v [kv_heads][nk][d]. */
struct attn_problem {
    int heads, kv_heads, d;
    int64_t nq, nk;
    double scale;
    bool causal; /* key j is seen by row i iff j <= i + nk - nq */
    enum attn_lists lists;
};

/* Block lists of all heads: row r = head * ceil(nq / rows of a block) + block has the key blocks
 * col[ptr[r] .. ptr[r + 1]), ascending, unique, each with a pair that is allowed. ATTN_BITS: bits,
 * words and n_bits as in struct accel_head; ATTN_GATHER: keys as there, col is NULL. */
struct attn_csr {
    const int64_t *ptr;
    const int32_t *col, *bits, *keys;
    const uint64_t *words;
    int64_t n_bits;
    bool on_device; /* ATTN_BITS, ATTN_GATHER: all but ptr lie there (maptiles.h) */
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
    double balance; /* planned time of the busiest multiprocessor / balanced bound */
};

/* Make a plan for `sms` multiprocessors. csr is NULL when dense. split = false keeps every row
 * whole. */
int attn_plan_make(const struct attn_problem *p, const struct attn_tile *tile,
                   const struct attn_csr *csr, int sms, bool split, struct attn_plan *plan,
                   struct err *err);
void attn_plan_free(struct attn_plan *plan);

/* A plan by rules that a GPU can follow for all rows at once; planrows.h and maplists.h make the
 * same one there. Rows of a section go longest first. A row that is longer than each
 * multiprocessor's share of all that is left from it on is cut into equal pieces of whole stages.
 * With tail >= 0 it is one for a filter, as attn_plan_filtered has it, and no row is cut.
 * The entries of block lists have the same room in every row, attn_row_room, used or not. csr:
 * of ATTN_BITS and ATTN_GATHER only ptr is read. */
int attn_plan_rows(const struct attn_problem *p, const struct attn_tile *tile,
                   const struct attn_csr *csr, int tail, int sms, struct attn_plan *plan,
                   struct err *err);
int64_t attn_row_room(const struct attn_problem *p, const struct attn_tile *tile);

/* Such a plan without items, of which none has a place yet; and the last step, its balance, when
 * they are there. csr NULL: the lists are made with the items. */
int attn_plan_begin(const struct attn_problem *p, const struct attn_tile *tile,
                    const struct attn_csr *csr, struct attn_plan *plan, struct err *err);
int attn_plan_rate(struct attn_plan *plan, int sms, struct err *err);

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

/* Pieces of such a plan have at least this part of what a multiprocessor does: rows of equal
 * lengths then end 0.3 to 0.7 % after the bound. */
#define PIECE_SHARES 128

/* Pieces of a row of so many stages: left of all stages, with ITEM_COST for each row, from it on.
 */
PLAN_FN int32_t attn_row_pieces(int64_t stages, int64_t left, int64_t all, int sms)
{
    int64_t most = (left + sms - 1) / sms, least = all / sms / PIECE_SHARES;
    least = least < MIN_PIECE ? MIN_PIECE : least;
    most = most < least ? least : most;
    return (int32_t)((stages + most - 1) / most);
}

/* Where piece k, counted from the beginning of a row of so many units and stages, begins, in units
 * from there; k = pieces: the row's end. The first stage of an item may not be full: it is the one
 * at the end of the row, so that all others begin at whole stages. */
PLAN_FN int64_t attn_piece_begin(int64_t units, int64_t stages, int per_stage, int64_t pieces,
                                 int64_t k)
{
    return k == pieces ? units : per_stage * (stages * k / pieces);
}

/* The most items of such a plan of so many rows. */
static inline int64_t attn_row_items(int64_t rows, int sms)
{
    return rows + (int64_t)PIECE_SHARES * (MIN_PIECE + 1) / MIN_PIECE * sms;
}

/* Plan for a kernel that walks over each list in order and decides tile by tile whether to multiply
 * P V (attn_filter.h): lists of 128 x 64 or 64 x 128 blocks, no row cut. The upper bits of an entry
 * say, for warpgroup w, whether P V must be computed (bit FILTER_EXEMPT + w; set for the last
 * `tail` blocks of a list), and whether its rows want the block at all (bit FILTER_WANTED + w). */
#define FILTER_BLOCK 0x0fffffff
#define FILTER_EXEMPT 28
#define FILTER_WANTED 30
int attn_plan_filtered(const struct attn_problem *p, const struct attn_tile *tile,
                       const struct attn_csr *csr, int tail, int sms, struct attn_plan *plan,
                       struct err *err);

/* Rows and keys of a list's block; dense: those of `tile`. */
int attn_block_rows(enum attn_lists lists, const struct attn_tile *tile);
int attn_block_keys(enum attn_lists lists, const struct attn_tile *tile);

#ifdef __cplusplus
}
#endif

#endif
