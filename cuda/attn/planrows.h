/*
 * planrows.h - attn_plan_make (plan.h) on the GPU, for lists that lie there: from the numbers of
 * tiles to the items of a launch, without the host.
 */
#ifndef LACUNA_PLANROWS_H
#define LACUNA_PLANROWS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "cuda/attn/maptiles.h"
#include "cuda/attn/plan.h"
#include "cuda/device.h"

struct plan_counts {
    int32_t items, splits, slots, empty;
};

/* A plan on the device. Memory comes from the arena. */
struct row_plan {
    int64_t rows, section; /* rows of tiles; those of a section (attn_section_rows) */
    int sms, per_stage;    /* per_stage: units of a stage */
    const int64_t *at;     /* [rows + 1] first unit of each; NULL: row r has units[r] from r * room
                            * on */
    int32_t *units;
    int64_t room;
    unsigned long long *key;   /* [rows] by which rows are ordered */
    int32_t *order;            /* [rows], those without a unit last */
    int64_t *before;           /* [rows + 1] cost of the rows before each of that order */
    struct attn_item *cut;     /* [attn_most_items] items in that order of their rows */
    int32_t *stages;           /* [attn_most_items] of those */
    struct attn_item *items;   /* [attn_most_items] */
    struct attn_split *splits; /* [rows] */
    int32_t *empty;            /* [rows] */
    struct plan_counts *n;
};

/* Take memory for the plan of so many rows. `section`, `at` and `room` are the caller's to set. */
int row_plan_init(struct gpu *g, int64_t rows, int per_stage, struct row_plan *r, struct err *err);

/* Order the rows by the keys that are there; the same, and cut them into items. */
int row_plan_order(struct gpu *g, const struct row_plan *r, struct err *err);
int row_plan_cut(struct gpu *g, const struct row_plan *r, struct err *err);

/* Wait, and fetch what row_plan_cut made. Lists of the plan are those of plan->lists. */
int row_plan_fetch(struct gpu *g, const struct row_plan *r, struct attn_plan *plan,
                   struct err *err);

/* Take memory, make the plan of lists whose ptr also lies at `at` on the device, wait and fetch it.
 * attn_plan_free releases the host's copy; device memory lives until the arena's release. */
int row_plan_make(struct gpu *g, const struct attn_problem *p, const struct attn_tile *tile,
                  const struct attn_csr *csr, const int64_t *at, struct row_plan *r,
                  struct attn_plan *plan, struct err *err);

/* Make it again, keys included. */
int row_plan_launch(struct gpu *g, const struct row_plan *r, struct err *err);

/* From masks on the device to the items of their launch. */
struct map_plan {
    struct map_tiles tiles;
    struct row_plan rows;
};

/* Make both again; plan: struct map_plan, as the timed work of a sample. */
int map_plan_launch(struct gpu *g, const void *plan, struct err *err);

#ifdef __cplusplus
}
#endif

#endif
