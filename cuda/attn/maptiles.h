/*
 * maptiles.h - tiles of 128 x 128 pairs with bits (struct accel_head in core/accel.h), made on the
 * GPU of maps of kept units that lie there: what sim/accelattend.h makes of masks on the host.
 */
#ifndef LACUNA_MAPTILES_H
#define LACUNA_MAPTILES_H

#ifdef __cplusplus
extern "C" {
#endif

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

/* Of a head. */
struct map_totals {
    unsigned long long pairs, units;    /* kept; units with a pair that a row may see */
    unsigned long long kept64, kept128; /* tiles of 64 x 64, of 128 x 128 with a kept pair */
    unsigned long long empty;           /* query rows without one */
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

#ifdef __cplusplus
}
#endif

#endif
