/*
 * mapplan.h - from maps of kept units that lie on the GPU to the launch over them, without the
 * host: tiles of 128 x 128 pairs with bits (struct accel_lists in core/accel.h; maptiles.cu), as
 * sim/accelattend.h makes them of masks on the host; lists of blocks of units that whole blocks of
 * a kernel make up (maplists.cu); and the plan of either (planrows.cu), as plan.h makes it.
 */
#pragma once

#include "cuda/linkage.h"

BEGIN_C

#include "cuda/attn/plan.h"
#include "cuda/device.h"

/* Maps of the heads of a call: row r of a head's map has a bit for each unit of bk keys, kept for
 * the query rows [r bq, (r + 1) bq). Bits beyond the keys that a row may see count for nothing. */
struct unit_maps {
    int heads;
    int64_t nq, nk, bq, bk;
    int64_t words; /* 32-bit words of a row of a map */
    bool causal;
    const uint32_t *const *map; /* host [heads] of device pointers [ceil(nq / bq)][words] */
};

/* What a head's mask keeps. */
struct map_totals {
    unsigned long long pairs, units;    /* kept; units with a pair that a row may see */
    unsigned long long kept64, kept128; /* tiles of 64 x 64, of 128 x 128 with a kept pair */
    unsigned long long empty;           /* query rows without one */
};

/* ---- tiles ---------------------------------------------------------------------------------- */

/* What the rows of tiles hold: of head h, row g it is number h * groups + g. All on the device but
 * `maps`. */
struct tile_rows {
    struct unit_maps maps;      /* without `map` */
    const uint32_t *const *map; /* [heads] */
    uint32_t *by_key;           /* [heads][map_rows][pitch] the same maps, a bit per key, where a
                                 * unit has several; else NULL */
    int64_t map_rows, pitch;    /* rows of a map; words of a row with a bit per key */
    int64_t groups, cols;       /* rows of tiles of a head, tiles across */
    int32_t *place;             /* [rows] tiles that keep a pair */
    int32_t *partial;           /* [rows] those of them that do not keep every allowed pair */
    int32_t *keys;              /* [rows] keys that some query of the row keeps */
    uint8_t *state;             /* [rows][cols]: 0 empty, 1 partial, 2 every allowed pair */
    uint32_t *any;              /* [rows][cols][4]: keys that some query keeps */
};

/* Take memory from the arena. `units` and `totals` are for tile_rows_totals. */
int tile_rows_init(struct gpu *g, const struct unit_maps *m, struct tile_rows *r, struct err *err);

/* Fill place, partial, keys, state and any for the heads [first, first + count). */
int tile_rows_launch(struct gpu *g, const struct tile_rows *r, int first, int count,
                     struct err *err);

/* The same for all heads, and fetch counts: totals [heads], units [heads][ceil(nq / bq)] of each
 * row of the maps. */
int tile_rows_totals(struct gpu *g, const struct tile_rows *r, struct map_totals *totals,
                     int32_t *units, struct err *err);

/* The tiles of some heads, in place or with gathered keys. */
struct map_tiles {
    const struct tile_rows *rows;
    int first, count;
    bool gathered;
    struct attn_csr csr;       /* ptr: host, owned, from 0; the rest is on the device */
    int64_t *at, *bits_at;     /* device: first tile, and first tile with bits, of a row */
    int32_t *col, *bits, *key; /* device */
    int32_t *before;           /* device, gathered: [rows][4 cols] keys before each word of `any` */
    uint64_t *words;           /* device */
    int64_t *room;             /* device: first of a row's bits, one for each column, where they are
                                * not side by side; else NULL */
};

/* After tile_rows_launch for these heads: take memory, count (which waits) and make them. Memory on
 * the device comes from the arena. map_tiles_free releases the host's. */
int map_tiles_make(struct gpu *g, const struct tile_rows *r, int first, int count, bool gathered,
                   struct map_tiles *t, struct err *err);

/* Count and make them again, all that the GPU does from maps to tiles. */
int map_tiles_launch(struct gpu *g, const struct map_tiles *t, struct err *err);
void map_tiles_free(struct map_tiles *t);

/* ---- plan ----------------------------------------------------------------------------------- */

struct plan_counts {
    int32_t items, splits, slots, empty;
};

struct ordered_row {
    int32_t row, stages;
};

/* A plan on the device. Memory comes from the arena. */
struct row_plan {
    int64_t rows, section;  /* rows of tiles; those of a section (attn_section_rows) */
    int workers, per_stage; /* per_stage: units of a stage */
    const int64_t *at;      /* [rows + 1] first entry of each, of per_entry units; NULL: row r has
                             * units[r] from r * room on */
    int per_entry;
    const int32_t *of; /* [rows] the row of the problem that each is; NULL: the same */
    int32_t *units;
    int64_t room;
    unsigned long long *key;   /* [rows] by which rows are ordered; the lower half is ~stages */
    struct ordered_row *order; /* [rows], those without a unit last */
    int64_t *before;           /* [rows + 1] cost of the rows before each of that order */
    struct attn_item *cut;     /* [attn_most_items] items in that order of their rows */
    int32_t *stages;           /* [attn_most_items] of those */
    struct attn_item *items;   /* [attn_most_items] */
    struct attn_split *splits; /* [rows] */
    int32_t *empty;            /* [rows] */
    struct plan_counts *n;
};

/* Take memory for the plan of so many rows. `section`, `at` and `room` are the caller's to set. */
int row_plan_init(struct gpu *g, int64_t rows, int per_stage, int workers, struct row_plan *r,
                  struct err *err);

/* Order the rows by the keys that are there, and cut them into items. */
int row_plan_cut(struct gpu *g, const struct row_plan *r, struct err *err);

/* Wait, and fetch what row_plan_cut made. Lists of the plan are those of plan->lists. */
int row_plan_fetch(struct gpu *g, const struct row_plan *r, struct attn_plan *plan,
                   struct err *err);

/* Take memory, make the plan of lists whose ptr also lies at `at` on the device, wait and fetch it.
 * attn_plan_free releases the host's copy; device memory lives until the arena's release. */
int row_plan_make(struct gpu *g, const struct attn_problem *p, const struct attn_tile *tile,
                  const struct attn_csr *csr, const int64_t *at, struct row_plan *r,
                  struct attn_plan *plan, struct err *err);

/* From masks on the device to the items of their launch. */
struct map_plan {
    struct map_tiles tiles;
    struct row_plan rows;
};

/* Make both again; plan: struct map_plan, as the timed work of a sample. */
int map_plan_launch(struct gpu *g, const void *plan, struct err *err);

/* ---- lists ---------------------------------------------------------------------------------- */

/* Maps of the heads of a call, whose units are multiples of 64 in queries and keys. */
struct map_lists {
    struct unit_maps maps;      /* without `map` */
    const uint32_t *const *map; /* [heads], on the device as what it points to */
};

/* Take memory from the arena and keep where the maps are. */
int map_lists_init(struct gpu *g, const struct unit_maps *m, struct map_lists *l, struct err *err);

/* Count and fetch: totals [heads], units [heads][ceil(nq / bq)] kept by each row of the maps that
 * some query of it may see. */
int map_lists_totals(struct gpu *g, const struct map_lists *l, struct map_totals *totals,
                     int32_t *units, struct err *err);

/* How rows of tiles read the maps. */
struct list_shape {
    struct map_lists lists;
    int first;                      /* head of the lists that is the problem's first */
    int q_blocks;                   /* rows of tiles of a head */
    int bm, block_rows, block_keys; /* query rows of a tile; rows and keys of a block */
    int split;                      /* blocks across a unit */
};

/* Heads of a plan that are attended to in a launch of their own, and what their filter never skips
 * (attn_plan_filtered); tail -1: there is none. */
struct list_run {
    int first, heads, kv_heads, tail;
};

/* What a plan has of a head. */
struct list_head {
    int32_t head;        /* of the problem */
    int32_t row0;        /* first row of tiles of its run */
    int32_t per_section; /* rows of tiles of a section */
    int32_t section;     /* number of the run's first section */
    int32_t last;        /* rows without an entry are ordered as if they were of this section */
    int32_t tail;
};

/* A list of each row of tiles; the union of two; lists of a filter. */
enum list_form { LIST_BLOCKS, LIST_PAIRS, LIST_FILTER };

/* Lists and plan on the device. Memory comes from the arena. */
struct list_plan {
    struct list_shape shape;
    enum list_form form;
    int per_block, unit_keys;      /* units of a stage (plan.h) in a block; keys of one */
    int room;                      /* entries of a row, used or not */
    int fixed;                     /* last entries of a pair of lists that keep their places */
    const struct list_head *heads; /* [heads of the plan] */
    int32_t *cols;                 /* [rows][room] */
    int32_t *blocks;               /* [rows] blocks in the one or two lists of a row of tiles */
    int32_t *of;                   /* [rows] as in `rows` */
    struct row_plan rows;
};

/* Take memory, make lists and plan of p->heads heads, wait and fetch the plans: plans [n_runs], one
 * run of all heads unless there are filters, and blocks [p->heads], how many the lists of each head
 * have. Head h of the plan is heads[h] of the problem that is launched, whose first one is `first`
 * of l. attn_plan_free releases the host's copies; device memory lives until the arena's release.
 * The same items as of attn_plan_make or attn_plan_filtered for each run, with attn_plan_move; they
 * count units from the first row of all, of which each has room for x->room entries. */
int list_plan_make(struct gpu *g, const struct map_lists *l, int first, const int *heads,
                   const struct attn_problem *p, const struct attn_tile *tile, int teams,
                   const struct list_run *runs, int n_runs, struct list_plan *x,
                   struct attn_plan *plans, int64_t *blocks, struct err *err);

/* Make them again; plan: struct list_plan, as the timed work of a sample. */
int list_plan_launch(struct gpu *g, const void *plan, struct err *err);

END_C
