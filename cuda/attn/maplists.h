/*
 * maplists.h - lists of blocks and their plan, made on the GPU of maps of kept units that lie there
 * and that whole blocks of a kernel make up: what plan.h makes of lists on the host. Finer units
 * become tiles with bits (maptiles.h).
 */
#ifndef LACUNA_MAPLISTS_H
#define LACUNA_MAPLISTS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "cuda/attn/maptiles.h"
#include "cuda/attn/planrows.h"

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
    int first;                      /* head of the lists that is the first here */
    int q_blocks;                   /* rows of tiles of a head */
    int bm, block_rows, block_keys; /* query rows of a tile; rows and keys of a block */
    int split;                      /* blocks across a unit */
};

/* Heads that are attended to in a launch of their own, counted from the plan's first one, and what
 * their filter never skips (attn_plan_filtered); tail -1: there is none. */
struct list_run {
    int first, heads, kv_heads, tail;
};

/* What a plan has of a head. */
struct list_head {
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
    struct row_plan rows;
};

/* Take memory, make lists and plan of the heads [first, first + p->heads), wait and fetch the
 * plans: plans [n_runs], one run of all heads unless there are filters, and blocks [p->heads], how
 * many the lists of each head have. attn_plan_free releases the host's copies; device memory lives
 * until the arena's release. The same items as of attn_plan_make or attn_plan_filtered for each
 * run; they count units from the first row of all, of which each has room for x->room entries. */
int list_plan_make(struct gpu *g, const struct map_lists *l, int first,
                   const struct attn_problem *p, const struct attn_tile *tile,
                   const struct list_run *runs, int n_runs, struct list_plan *x,
                   struct attn_plan *plans, int64_t *blocks, struct err *err);

/* Make them again; plan: struct list_plan, as the timed work of a sample. */
int list_plan_launch(struct gpu *g, const void *plan, struct err *err);

#ifdef __cplusplus
}
#endif

#endif
