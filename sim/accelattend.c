/*
 * accelattend.c - row chunks of the masks of a call's heads become one block list in the geometry
 * of a kernel (accelattend.h). Units that are larger than the kernel's blocks are cut; finer ones,
 * and windows, become tiles with bits. The pairs stay the same.
 */
#include "sim/accelattend.h"

#include "core/clock.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "core/method.h"
#include "core/pool.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a mask as tiles ------------------------------------------------------------------------
 *
 * Rows that share one list up to the causal clip make a run. A run is written once, from the spans
 * of its last row, into a bitmap with the layout of tiles. For gathered keys, columns that no run
 * has are removed from the bitmap. Then each touched tile becomes an entry: a whole tile a plain
 * one, any other an entry with bits in the order of the kernels' registers. O(spans of the runs +
 * 128 per touched tile).
 */

#define TILE ACCEL_TILE

/* Rows [row0, row1) of mask m. */
struct run {
    const struct mask *m;
    int64_t row0, row1;
};

/* One group of TILE rows at a time, and where its tiles go. */
struct group {
    struct accel_tiles *tiles;
    int64_t max_bytes; /* of bits; beyond that METHOD_SKIP with `why` */
    char *why;
    struct run runs[TILE];
    int n_runs;
    int64_t row0;
    int64_t n_cols; /* tiles across */
    uint64_t *map;  /* [n_cols][TILE][2], zero between groups */
    uint8_t *seen;  /* [n_cols]: tiles with a bit in the map */
    uint64_t *row;  /* [n_cols][2]: a row's single keys, zero between rows */
    struct span *spans;
    int64_t span_cap;
    uint64_t *packed; /* as map, of the gathered keys; NULL: not gathered */
    int32_t *keys;    /* [n_cols * TILE]: them */
};

/* A tile of the group: per run 128 bits, and the keys they are for. */
struct tile {
    const uint64_t *map; /* [TILE][2] */
    int64_t first;       /* key, where they follow each other */
    const int32_t *keys; /* NULL: they do */
    int64_t n_keys;
};

/* The bits a .. b - 1 of a word, as far as it has them. */
static uint64_t bits_between(int64_t a, int64_t b)
{
    a = a < 0 ? 0 : a;
    b = b > 64 ? 64 : b;
    return a < b ? ~0ull >> (64 - (b - a)) << a : 0;
}

static void mark_span(struct group *g, int run, struct span s)
{
    for (int64_t c = s.lo / TILE; c * TILE < s.hi; c++) {
        uint64_t *w = g->map + (c * TILE + run) * 2;
        int64_t lo = s.lo - c * TILE, hi = s.hi - c * TILE;
        w[0] |= bits_between(lo, hi);
        w[1] |= bits_between(lo - 64, hi - 64);
        g->seen[c] = 1;
    }
}

/* Mark what a row of single keys without reach keeps; n: as far as the row sees them. */
static void mark_keys(struct group *g, const int32_t *keys, int64_t n)
{
    mask_mark_units(g->row, keys, n);
    for (int64_t c = n ? keys[0] / TILE : 0; n && c <= keys[n - 1] / TILE; c++) {
        uint64_t *w = g->map + (c * TILE + g->n_runs) * 2;
        w[0] = g->row[2 * c];
        w[1] = g->row[2 * c + 1];
        g->seen[c] |= (w[0] | w[1]) != 0;
        g->row[2 * c] = g->row[2 * c + 1] = 0;
    }
}

/* Mark what row i keeps. */
static int mark_row(struct group *g, const struct mask *m, int64_t i, struct err *err)
{
    int64_t n = mask_union_max(m, i, i + 1);
    if (m->form == MASK_LISTS && m->bk == 1 && !reach_any(&m->reach) && n > g->n_cols / 4) {
        int64_t at = (i - m->row0) / m->bq, from = m->ptr[at];
        mark_keys(g, m->col + from,
                  list_below(m->col + from, m->ptr[at + 1] - from, mask_limit(m, i)));
        return 0;
    }
    PASS_ON(mem_grow(&g->spans, &g->span_cap, n, sizeof *g->spans, "mask spans", err));
    n = mask_row_spans(m, i, g->spans);
    for (int64_t e = 0; e < n; e++)
        mark_span(g, g->n_runs, g->spans[e]);
    return 0;
}

/* Cut rows [row0, row1) of m into runs and mark what they keep. */
static int mark_rows(struct group *g, const struct mask *m, int64_t row0, int64_t row1,
                     struct err *err)
{
    while (row0 < row1) {
        int64_t end = row0 + 1;
        while (end < row1 && mask_rows_uniform(m, row0, end + 1))
            end++;
        PASS_ON(mark_row(g, m, end - 1, err));
        g->runs[g->n_runs++] = (struct run){m, row0, end};
        row0 = end;
    }
    return 0;
}

/* Keys of a tile below a limit. */
static int64_t keys_below(const struct tile *t, int64_t limit)
{
    int64_t lo = 0, hi = t->n_keys;
    if (!t->keys)
        return limit <= t->first ? 0 : limit - t->first < TILE ? limit - t->first : TILE;
    while (lo < hi) {
        int64_t middle = (lo + hi) / 2;
        if (t->keys[middle] < limit)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

/* Keys of a tile that a row may see, as bits. */
static void allowed_bits(const struct mask *m, int64_t row, const struct tile *t, uint64_t w[2])
{
    int64_t n = keys_below(t, mask_limit(m, row));
    w[0] = bits_between(0, n);
    w[1] = bits_between(0, n - 64);
}

/* All that is allowed is kept; of gathered keys, everything is. */
static bool keeps_all(const struct group *g, const struct tile *t)
{
    for (int i = 0; i < g->n_runs; i++) {
        const struct run *r = g->runs + i;
        const uint64_t *w = t->map + 2 * i;
        uint64_t all[2];
        allowed_bits(r->m, r->row1 - 1, t, all);
        if (w[0] != all[0] || w[1] != all[1] ||
            (t->keys && keys_below(t, mask_limit(r->m, r->row0)) < TILE))
            return false;
    }
    return true;
}

/* The low two bits of each half byte of x, whose high halves are 0, side by side in 32 bits. */
static uint64_t squeeze(uint64_t x)
{
    x = (x | x >> 4) & 0x00ff00ff00ff00ffull;
    x = (x | x >> 8) & 0x0000ffff0000ffffull;
    return (x | x >> 16) & 0xffffffffull;
}

/* A row's 128 bits as the words of its four threads, for a row below 8 of its 16. */
static void row_words(const uint64_t w[2], uint64_t out[4])
{
    for (int q = 0; q < 4; q++)
        out[q] = squeeze(w[0] >> 2 * q & 0x0303030303030303ull) |
                 squeeze(w[1] >> 2 * q & 0x0303030303030303ull) << 32;
}

static void run_words(const struct group *g, int run, const struct tile *t, uint64_t *out)
{
    const struct run *r = g->runs + run;
    const uint64_t *w = t->map + 2 * run;
    bool clipped = keys_below(t, mask_limit(r->m, r->row0)) < t->n_keys;
    uint64_t four[4];
    row_words(w, four);
    for (int64_t i = r->row0; i < r->row1; i++) {
        int row = (int)(i - g->row0);
        uint64_t *to = out + accel_word(row, 0);
        if (clipped) {
            uint64_t own[2];
            allowed_bits(r->m, i, t, own);
            own[0] &= w[0];
            own[1] &= w[1];
            row_words(own, four);
        }
        for (int q = 0; q < 4; q++)
            to[q] |= four[q] << accel_bit(row, 0);
    }
}

static int add_bits(struct group *g, const struct tile *x, struct err *err)
{
    struct accel_tiles *t = g->tiles;
    int64_t tile_bytes = ACCEL_TILE_WORDS * (int64_t)sizeof *t->words;
    if ((t->n_bits + 1) * tile_bytes > g->max_bytes) {
        snprintf(g->why, 160, "the mask's bits take more than %.1f GB of GPU memory",
                 (double)g->max_bytes * 1e-9);
        return METHOD_SKIP;
    }
    PASS_ON(mem_grow(&t->words, &t->word_cap, (t->n_bits + 1) * ACCEL_TILE_WORDS, sizeof *t->words,
                     "bits of tiles", err));
    uint64_t *out = t->words + t->n_bits++ * ACCEL_TILE_WORDS;
    memset(out, 0, (size_t)tile_bytes);
    for (int i = 0; i < g->n_runs; i++)
        run_words(g, i, x, out);
    return 0;
}

static int add_tile(struct group *g, const struct tile *x, struct err *err)
{
    struct accel_tiles *t = g->tiles;
    int64_t at = t->n_tiles;
    PASS_ON(mem_grow(&t->bits, &t->bits_cap, at + 1, sizeof *t->bits, "tiles", err));
    if (x->keys) {
        PASS_ON(mem_grow(&t->keys, &t->key_cap, (at + 1) * TILE, sizeof *t->keys, "keys", err));
        for (int64_t k = 0; k < TILE; k++)
            t->keys[at * TILE + k] = x->keys[MIN(k, x->n_keys - 1)];
    } else {
        PASS_ON(mem_grow(&t->col, &t->col_cap, at + 1, sizeof *t->col, "tiles", err));
        t->col[at] = (int32_t)(x->first / TILE);
    }
    t->n_tiles++;
    bool all = keeps_all(g, x);
    t->bits[at] = all ? -1 : (int32_t)t->n_bits;
    return all ? 0 : add_bits(g, x, err);
}

/* ---- gathering ------------------------------------------------------------------------------ */

/* Bits of x at the set bits of `from`, side by side; x has no others. */
static uint64_t pack_bits(uint64_t x, uint64_t from)
{
    uint64_t out = 0;
    if (x == from)
        return bits_between(0, __builtin_popcountll(from));
    if (from == ~0ull)
        return x;
    for (; x; x &= x - 1)
        out |= 1ull << __builtin_popcountll(from & ((x & -x) - 1));
    return out;
}

/* The n gathered keys from number `at` on are those at the bits `from` of word `half` of column c:
 * take them over for every run. */
static void pack_word(struct group *g, int64_t c, int half, uint64_t from, int64_t at)
{
    for (int i = 0; i < g->n_runs; i++) {
        uint64_t x = pack_bits(g->map[(c * TILE + i) * 2 + half], from);
        uint64_t *to = g->packed + (at / TILE * TILE + i) * 2 + at / 64 % 2;
        *to |= x << at % 64;
        if (at % 64 && x >> (64 - at % 64)) /* the other word, or the next tile's first */
            to[at / 64 % 2 ? 2 * TILE - 1 : 1] |= x >> (64 - at % 64);
    }
}

/* Squeeze the group's map. Returns the number of keys. */
static int64_t gather(struct group *g)
{
    int64_t n = 0;
    for (int64_t c = 0; c < g->n_cols; c++)
        for (int half = 0; half < 2 && g->seen[c]; half++) {
            uint64_t any = 0;
            for (int i = 0; i < g->n_runs; i++)
                any |= g->map[(c * TILE + i) * 2 + half];
            pack_word(g, c, half, any, n);
            for (; any; any &= any - 1)
                g->keys[n++] = (int32_t)(c * TILE + half * 64 + __builtin_ctzll(any));
        }
    return n;
}

/* ---- groups --------------------------------------------------------------------------------- */

static int add_group(struct group *g, struct err *err)
{
    int64_t n_keys = g->packed ? gather(g) : 0;
    int rc = 0;
    for (int64_t k = 0; k < n_keys && !rc; k += TILE) {
        struct tile x = {g->packed + k * 2, 0, g->keys + k, MIN(n_keys - k, TILE)};
        rc = add_tile(g, &x, err);
    }
    if (n_keys)
        memset(g->packed, 0, (size_t)(ceil_div(n_keys, TILE) * TILE * 2) * sizeof *g->packed);
    for (int64_t c = 0; c < g->n_cols && !rc; c++) {
        struct tile x = {g->map + c * TILE * 2, c * TILE, NULL, TILE};
        if (!g->seen[c])
            continue;
        rc = g->packed ? 0 : add_tile(g, &x, err);
        memset(g->map + c * TILE * 2, 0, TILE * 2 * sizeof *g->map);
        g->seen[c] = 0;
    }
    return rc;
}

/* Rows of group g from the masks, the first of which is *m. */
static int mark_group(struct group *g, const struct mask **m, const struct mask *end, int64_t nq,
                      struct err *err)
{
    int64_t last = MIN(g->row0 + TILE, nq);
    g->n_runs = 0;
    for (int64_t row = g->row0; row < last;) {
        int64_t to = MIN(last, (*m)->row1);
        PASS_ON(mark_rows(g, *m, row, to, err));
        row = to;
        if (row == (*m)->row1 && *m + 1 < end)
            ++*m;
    }
    return 0;
}

/* Tiles of rows [row0, row1) of m, in place and gathered. */
static int count_rows(struct group *g, const struct mask *m, int64_t row0, int64_t row1,
                      int64_t tiles[2], struct err *err)
{
    int64_t keys = 0, last = -1, n = mask_union_max(m, row0, row1);
    PASS_ON(mem_grow(&g->spans, &g->span_cap, n, sizeof *g->spans, "mask spans", err));
    n = mask_union_spans(m, row0, row1, g->spans, err);
    if (n < 0)
        return (int)n;
    for (int64_t i = 0; i < n; i++) {
        int64_t from = g->spans[i].lo / TILE, to = (g->spans[i].hi - 1) / TILE;
        keys += g->spans[i].hi - g->spans[i].lo;
        tiles[0] += to - (from > last ? from - 1 : last);
        last = to;
    }
    tiles[1] += ceil_div(keys, TILE);
    return 0;
}

int accel_tiles_count(const struct mask *masks, int64_t n, int64_t tiles[2], struct err *err)
{
    struct group g = {.n_runs = 0};
    int rc = 0;
    tiles[0] = tiles[1] = 0;
    for (const struct mask *m = masks; m < masks + n; m++)
        for (int64_t row = m->row0; row < m->row1; row = (row / TILE + 1) * TILE)
            TRY(count_rows(&g, m, row, MIN((row / TILE + 1) * TILE, m->row1), tiles, err));
out:
    free(g.spans);
    return rc;
}

bool accel_tiles_gather(const int64_t tiles[2])
{
    return (double)tiles[1] < GATHER_BELOW * (double)tiles[0];
}

int accel_tiles_make(const struct mask *masks, int64_t n, bool gathered, int64_t max_bytes,
                     struct accel_tiles *t, char why[160], struct err *err)
{
    struct group g = {.tiles = t,
                      .max_bytes = max_bytes,
                      .why = why,
                      .row0 = masks->row0 / TILE * TILE,
                      .n_cols = ceil_div(masks->nk, TILE)};
    const struct mask *m = masks;
    int rc = 0;
    memset(t, 0, sizeof *t);
    TRY(mem_zalloc(&g.map, g.n_cols * TILE * 2, sizeof *g.map, "tiles of a mask", err));
    TRY(mem_zalloc(&g.seen, g.n_cols, 1, "tiles of a mask", err));
    TRY(mem_zalloc(&g.row, g.n_cols * 2, sizeof *g.row, "tiles of a mask", err));
    if (gathered) {
        TRY(mem_zalloc(&g.packed, g.n_cols * TILE * 2, sizeof *g.packed, "gathered keys", err));
        TRY(mem_alloc(&g.keys, g.n_cols * TILE, sizeof *g.keys, "gathered keys", err));
    }
    t->groups = ceil_div(masks[n - 1].row1 - g.row0, TILE);
    TRY(mem_zalloc(&t->ptr, t->groups + 1, sizeof *t->ptr, "tiles", err));
    for (int64_t k = 0; k < t->groups; k++, g.row0 += TILE) {
        TRY(mark_group(&g, &m, masks + n, masks->nq, err));
        if ((rc = add_group(&g, err)) != 0)
            goto out;
        t->ptr[k + 1] = t->n_tiles;
    }
out:
    free(g.map);
    free(g.seen);
    free(g.row);
    free(g.spans);
    free(g.packed);
    free(g.keys);
    if (rc)
        accel_tiles_free(t);
    return rc;
}

void accel_tiles_free(struct accel_tiles *t)
{
    free(t->ptr);
    free(t->col);
    free(t->bits);
    free(t->keys);
    free(t->words);
    memset(t, 0, sizeof *t);
}

/* ---- lists of a call ------------------------------------------------------------------------ */

/* Most bits of a head, or of the heads of a call: what 192K x 192K tokens take when no tile is
 * whole or empty. */
#define BITS_BYTES (9LL << 29)

/* Most bits of the heads of a section, if they are several. */
#define SECTION_BYTES (9LL << 28)

/* Blocks of bk keys of group g of bq rows, written to `col` unless it is NULL; returns their
 * number.
 */
static int64_t group_blocks(const struct mask *m, int64_t bq, int64_t bk, int64_t g, int32_t *col)
{
    int64_t limit = ceil_div(mask_limit(m, MIN((g + 1) * bq, m->nq) - 1), bk), n = 0;
    if (m->form == MASK_FULL) {
        for (; n < limit; n++)
            if (col)
                col[n] = (int32_t)n;
        return n;
    }
    int64_t from = (g * bq - m->row0) / m->bq, split = m->bk / bk;
    for (int64_t i = m->ptr[from]; i < m->ptr[from + 1]; i++)
        for (int64_t b = m->col[i] * split; b < (m->col[i] + 1) * split && b < limit; b++, n++)
            if (col)
                col[n] = (int32_t)b;
    return n;
}

/* Counting pass (col NULL) or filling pass over all chunks. */
static int64_t walk(const struct mask *masks, int64_t n, int64_t bq, int64_t bk,
                    struct accel_tiles *t)
{
    int64_t g = 0, total = 0;
    for (int64_t k = 0; k < n; k++)
        for (; g < t->groups && g * bq < masks[k].row1; g++) {
            t->ptr[g] = total;
            total += group_blocks(masks + k, bq, bk, g, t->col ? t->col + total : NULL);
        }
    t->ptr[t->groups] = total;
    return total;
}

/* Lists of blocks of bq x bk: tiles of that size without bits. */
static int make_lists(const struct mask *masks, int64_t n, int64_t bq, int64_t bk,
                      struct accel_tiles *t, struct err *err)
{
    t->groups = ceil_div(masks->nq, bq);
    PASS_ON(mem_alloc(&t->ptr, t->groups + 1, sizeof *t->ptr, "block lists", err));
    t->n_tiles = walk(masks, n, bq, bk, t);
    PASS_ON(mem_alloc(&t->col, t->n_tiles, sizeof *t->col, "block lists", err));
    walk(masks, n, bq, bk, t);
    return 0;
}

/* The largest unit of which the masks of all chunks, and *bq x *bk, are made; 0 when every pair is
 * kept. */
static void common_unit(const struct mask *masks, int64_t n, int64_t *bq, int64_t *bk)
{
    for (int64_t k = 0; k < n; k++) {
        const struct mask *m = masks + k;
        if (m->form == MASK_FULL)
            continue;
        *bq = gcd(m->form == MASK_LISTS ? m->bq : 1, *bq);
        *bk = gcd(m->form == MASK_LISTS ? m->bk : 1, *bk);
    }
}

/* The kernel's blocks *bq x *bk for masks of that unit, 0 = every pair is kept. With a filter they
 * stay the unit: it decides tile by tile. METHOD_SKIP with `why`: there is no kernel. */
static int geometry(const struct accel *a, const struct accel_session *s,
                    const struct accel_head *h, int64_t *bq, int64_t *bk, char why[160],
                    struct err *err)
{
    const struct accel_filter *filter = h->filter;
    if (filter && (*bq != filter->bq || *bk != filter->bk))
        return err_set(err, ERR_RUN, "a filter on units of %lld x %lld, the mask has others",
                       (long long)filter->bq, (long long)filter->bk);
    snprintf(why, 160, "the back end has no %s",
             filter ? "filter on P V" : "kernels for the method's own arithmetic");
    if ((filter || h->own_kernel) && !(a->can_attend && a->can_attend(s, h, why)))
        return METHOD_SKIP;
    *bq = *bq ? *bq : ACCEL_TILE;
    *bk = *bk ? *bk : ACCEL_TILE;
    if (!a->supports(s, h->x, bq, bk, why))
        return METHOD_SKIP;
    if (filter) {
        *bq = filter->bq;
        *bk = filter->bk;
    }
    return 0;
}

/* A part of a head while its lists are made, on its own. */
struct part {
    struct accel_tiles tiles; /* owned */
    int64_t counts[2];        /* tiles in place and gathered */
    char why[160];            /* not empty where the bits are too many */
};

/* Lists of the heads of a call while they are made, a section at a time. */
struct making {
    const struct accel_call *call;
    int64_t nq, nk, bq, bk;
    enum accel_made how;
    int64_t n_parts;      /* in which the tiles of a head are made: its chunks, or 1 */
    struct part *parts;   /* [n][n_parts], owned */
    int64_t (*counts)[2]; /* [n], owned: tiles of a head in place and gathered */
    bool *as_first;       /* [n], owned: the head's masks are those of the first */
    int n, first;         /* heads; the first of those that are made at the moment */
    bool on_device;       /* the device makes them, of masks that are there */
};

/* The chunks of part p of a head: *n of them. */
static const struct mask *part_of(const struct making *m, int64_t h, int64_t p, int64_t *n)
{
    const struct accel_head *x = m->call->heads + h;
    *n = m->n_parts == 1 ? x->n_masks : 1;
    return m->n_parts == 1 ? x->masks : x->masks + p;
}

static bool same_ints(const void *a, const void *b, int64_t n, size_t size)
{
    return a == b || n == 0 || memcmp(a, b, (size_t)n * size) == 0;
}

static bool same_mask(const struct mask *a, const struct mask *b)
{
    if (a->form != b->form || a->row0 != b->row0 || a->row1 != b->row1)
        return false;
    if (a->form == MASK_BAND)
        return a->sink == b->sink && a->window == b->window && a->dense_from == b->dense_from;
    return a->form == MASK_FULL || (a->bq == b->bq && a->bk == b->bk &&
                                    same_ints(a->ptr, b->ptr, a->ngroups + 1, sizeof *a->ptr) &&
                                    same_ints(a->col, b->col, a->ptr[a->ngroups], sizeof *a->col));
}

/* Masks that follow from sizes and parameters are those of every head: their tiles are made once.
 */
static int compare_head(void *making, int64_t h, int worker, struct err *err)
{
    struct making *m = making;
    const struct accel_head *a = m->call->heads, *b = a + h;
    m->as_first[h] = h > 0 && a->n_masks == b->n_masks;
    for (int64_t i = 0; i < b->n_masks && m->as_first[h]; i++)
        m->as_first[h] = same_mask(a->masks + i, b->masks + i);
    return 0;
}

static int count_part(void *making, int64_t i, int worker, struct err *err)
{
    struct making *m = making;
    int64_t n, h = i / m->n_parts;
    const struct mask *x = part_of(m, h, i % m->n_parts, &n);
    return m->as_first[h] ? 0 : accel_tiles_count(x, n, m->parts[i].counts, err);
}

/* The head of the section from `first` on whose tiles are those of head h. */
static int maker_of(const struct making *m, int first, int h)
{
    int from = first;
    while (m->as_first[h] && from < h && from > 0 && !m->as_first[from])
        from++;
    return m->as_first[h] ? from : h;
}

static int make_part(void *making, int64_t i, int worker, struct err *err)
{
    struct making *m = making;
    int64_t n, h = m->first + i / m->n_parts;
    struct part *part = m->parts + m->first * m->n_parts + i;
    const struct mask *x = part_of(m, h, i % m->n_parts, &n);
    if (maker_of(m, m->first, (int)h) != h)
        return 0;
    if (m->how == ACCEL_LISTS)
        return make_lists(x, n, m->bq, m->bk, &part->tiles, err);
    int rc = accel_tiles_make(x, n, m->how == ACCEL_GATHERED_TILES, BITS_BYTES, &part->tiles,
                              part->why, err);
    return rc < 0 ? rc : 0;
}

/* Release what was made of these heads. */
static void forget_heads(struct making *m, int first, int count)
{
    for (int64_t i = first * m->n_parts; m->parts && i < (first + count) * m->n_parts; i++)
        accel_tiles_free(&m->parts[i].tiles);
}

static void making_free(struct making *m)
{
    forget_heads(m, 0, m->n);
    free(m->parts);
    free(m->counts);
    free(m->as_first);
}

/* Every chunk is a part where all heads have the same chunks of whole rows of tiles. */
static int64_t parts_of(const struct making *m)
{
    const struct accel_head *heads = m->call->heads;
    for (int h = 0; h < m->n; h++)
        for (int64_t i = 0; i < heads[h].n_masks; i++)
            if (heads[h].n_masks != heads->n_masks || heads[h].masks[i].row0 % ACCEL_TILE)
                return 1;
    return heads->n_masks;
}

/* Memory, and for tiles whether all heads gather their keys. */
static int making_init(struct making *m, bool tiles, int jobs, struct err *err)
{
    int64_t all[2] = {0, 0};
    m->n_parts = tiles && !m->on_device ? parts_of(m) : 1;
    PASS_ON(mem_zalloc(&m->parts, m->n * m->n_parts, sizeof *m->parts, "tiles", err));
    PASS_ON(mem_zalloc(&m->counts, m->n, sizeof *m->counts, "tiles", err));
    PASS_ON(mem_zalloc(&m->as_first, m->n, sizeof *m->as_first, "tiles", err));
    if (!tiles)
        return 0;
    if (!m->on_device) {
        PASS_ON(pool_run(jobs, m->n, compare_head, m, err));
        PASS_ON(pool_run(jobs, m->n * m->n_parts, count_part, m, err));
    }
    for (int h = 0; h < m->n; h++)
        for (int k = 0; k < 2; k++) {
            if (m->on_device)
                m->counts[h][k] = m->call->heads[h].choice.keep_on_device->tiles[k];
            for (int64_t p = 0; p < m->n_parts; p++)
                m->counts[h][k] += m->parts[h * m->n_parts + p].counts[k];
            if (m->as_first[h])
                m->counts[h][k] = m->counts[0][k];
            all[k] += m->counts[h][k];
        }
    m->how = accel_tiles_gather(all) ? ACCEL_GATHERED_TILES : ACCEL_TILES;
    return 0;
}

/* 0, or METHOD_SKIP with `why`: the parts of a head are too large, one of them or all together. */
static int bits_fit(const struct making *m, int h, char why[160])
{
    const struct part *parts = m->parts + h * m->n_parts;
    int64_t bytes = 0;
    for (int64_t p = 0; p < m->n_parts; p++) {
        if (parts[p].why[0]) {
            snprintf(why, 160, "%s", parts[p].why);
            return METHOD_SKIP;
        }
        bytes += parts[p].tiles.n_bits * ACCEL_TILE_WORDS * 8;
    }
    if (bytes <= BITS_BYTES)
        return 0;
    snprintf(why, 160, "the mask's bits take more than %.1f GB of GPU memory",
             (double)BITS_BYTES * 1e-9);
    return METHOD_SKIP;
}

/* Room for one list of the heads of a section. */
static int join_alloc(const struct making *m, int first, int count, struct accel_tiles *j,
                      struct err *err)
{
    bool keys = m->how == ACCEL_GATHERED_TILES;
    int64_t groups = ceil_div(m->nq, m->bq);
    for (int h = first; h < first + count; h++) {
        int maker = maker_of(m, first, h);
        for (int64_t p = 0; p < m->n_parts; p++) {
            j->n_tiles += m->parts[maker * m->n_parts + p].tiles.n_tiles;
            j->n_bits += m->parts[h * m->n_parts + p].tiles.n_bits; /* 0 where another makes them */
        }
    }
    PASS_ON(mem_alloc(&j->ptr, count * groups + 1, sizeof *j->ptr, "block lists", err));
    if (keys)
        PASS_ON(
            mem_alloc(&j->keys, j->n_tiles * ACCEL_TILE, sizeof *j->keys, "gathered keys", err));
    else
        PASS_ON(mem_alloc(&j->col, j->n_tiles, sizeof *j->col, "block lists", err));
    if (keys || j->n_bits) {
        PASS_ON(mem_alloc(&j->bits, j->n_tiles, sizeof *j->bits, "tiles", err));
        return mem_alloc(&j->words, j->n_bits * ACCEL_TILE_WORDS, sizeof *j->words, "bits of tiles",
                         err);
    }
    return 0;
}

static void copy_ints(int32_t *to, const int32_t *from, int64_t n)
{
    if (to && n)
        memcpy(to, from, (size_t)n * sizeof *to);
}

/* The tiles of a part from entry `at` on. own: bits_at is the place for the bits, which are not
 * there yet. */
static void join_part(struct accel_tiles *j, const struct accel_tiles *t, int64_t at,
                      int64_t bits_at, bool own)
{
    copy_ints(j->col ? j->col + at : NULL, t->col, t->n_tiles);
    copy_ints(j->keys ? j->keys + at * ACCEL_TILE : NULL, t->keys, t->n_tiles * ACCEL_TILE);
    for (int64_t i = 0; j->bits && i < t->n_tiles; i++)
        j->bits[at + i] = t->bits[i] < 0 ? -1 : t->bits[i] + (int32_t)bits_at;
    if (own && t->n_bits)
        memcpy(j->words + bits_at * ACCEL_TILE_WORDS, t->words,
               (size_t)(t->n_bits * ACCEL_TILE_WORDS) * sizeof *j->words);
}

/* One list of the heads of a section. */
static int join(const struct making *m, int first, int count, struct accel_tiles *j,
                struct err *err)
{
    int64_t at = 0, bits_at = 0, shared_at = 0, *ptr;
    PASS_ON(join_alloc(m, first, count, j, err));
    ptr = j->ptr;
    for (int h = first; h < first + count; h++) {
        int maker = maker_of(m, first, h);
        bool own = maker == h;
        int64_t from = own ? bits_at : shared_at;
        if (own && (h == 0 || m->as_first[h]))
            shared_at = bits_at;
        for (int64_t p = 0; p < m->n_parts; p++) {
            const struct accel_tiles *t = &m->parts[maker * m->n_parts + p].tiles;
            for (int64_t g = 0; g < t->groups; g++)
                *ptr++ = at + t->ptr[g];
            join_part(j, t, at, from, own);
            at += t->n_tiles;
            from += t->n_bits;
        }
        bits_at = own ? from : bits_at;
    }
    *ptr = at;
    return 0;
}

/* Bytes that a head's tiles take at most. Lists of the host are small; those that the device makes
 * have room for every block, which it numbers by units of 64 keys or less. */
static double tile_bytes(const struct making *m, int h)
{
    bool keys = m->how == ACCEL_GATHERED_TILES;
    int64_t entry = ACCEL_TILE_WORDS * 8 + (keys ? ACCEL_TILE * 4 : 0);
    if (m->how == ACCEL_LISTS)
        return m->on_device ? (double)ceil_div(m->nq, ACCEL_TILE) *
                                  (double)ceil_div(m->nk, MIN(m->bk, 64)) * 4
                            : 0;
    return (double)(m->counts[h][keys] * entry);
}

/* How many heads from `first` on, whole groups of the call, are attended to at once. */
static int section_of(const struct making *m, int64_t section_bytes, int first)
{
    const struct accel_call *c = m->call;
    double bytes = 0, most = (double)(section_bytes ? section_bytes : SECTION_BYTES);
    int n = 0;
    while (first + n < c->n) {
        for (int h = first + n; h < first + n + c->group; h++)
            bytes += maker_of(m, first, h) == h ? tile_bytes(m, h) : 0;
        if (n && bytes > most)
            break;
        n += c->group;
    }
    return n;
}

static int attend_section(const struct accel *a, struct accel_session *s, int jobs,
                          struct accel_lists *l, struct making *m, struct accel_result *r,
                          char why[160], struct err *err)
{
    struct accel_tiles j = {0};
    double begin = clock_ns();
    int rc = 0;
    if (m->on_device) {
        l->made = m->how;
        return a->attend_call(s, m->call, l, r, err);
    }
    m->first = l->first;
    TRY(pool_run(jobs, l->count * m->n_parts, make_part, m, err));
    for (int h = l->first; h < l->first + l->count; h++)
        if ((rc = bits_fit(m, h, why)) != 0)
            goto out;
    TRY(join(m, l->first, l->count, &j, err));
    double made_ns = clock_ns() - begin;
    l->ptr = j.ptr;
    l->col = j.col;
    l->bits = j.bits;
    l->keys = j.keys;
    l->words = j.words;
    l->n_bits = j.n_bits;
    TRY(a->attend_call(s, m->call, l, r, err));
    r->host_plan_ns += m->call->heads->own_kernel ? 0 : made_ns;
out:
    accel_tiles_free(&j);
    forget_heads(m, l->first, l->count);
    return rc;
}

static void add_time(struct accel_time *sum, const struct accel_time *t)
{
    sum->median += t->median;
    sum->q1 += t->q1;
    sum->q3 += t->q3;
}

/* A later section's part of the call. Its launches follow those of the others. */
static void add_section(struct accel_result *r, const struct accel_result *part)
{
    add_time(&r->attend, &part->attend);
    add_time(&r->total, &part->attend);
    if (part->plan.samples) {
        add_time(&r->plan, &part->plan);
        add_time(&r->total, &part->plan);
    }
    if (part->quant.samples) {
        add_time(&r->quant, &part->quant);
        add_time(&r->total, &part->quant);
    }
    r->host_plan_ns += part->host_plan_ns;
    r->balance = MAX(part->balance, r->balance);
    r->launches += part->launches;
    if (r->counters.tensor_pipe_pct == r->counters.tensor_pipe_pct)
        snprintf(r->counters.why, sizeof r->counters.why, "the call was attended to in sections");
    r->counters.tensor_pipe_pct = NAN;
}

static int attend_sections(const struct accel *a, struct accel_session *s,
                           const struct attend_how *how, const struct accel_lists *all,
                           struct making *m, struct accel_result *r, char why[160], struct err *err)
{
    int n = 0;
    for (int first = 0; first < m->n; n++) {
        struct accel_result part = {0};
        struct accel_lists l = *all;
        l.first = first;
        l.count = section_of(m, how->section_bytes, first);
        if (l.count < m->n)
            l.static_id = 0; /* a number of all heads' lists */
        PASS_ON(attend_section(a, s, how->jobs, &l, m, n ? &part : r, why, err));
        if (n)
            add_section(r, &part);
        first += l.count;
    }
    r->sections = n;
    return 0;
}

/* Do units that stay on the device fill little of the tiles in which they lie? */
static bool fills_little(const struct accel_call *call)
{
    double units = 0, tiles = 0;
    for (int h = 0; h < call->n; h++) {
        const struct accel_units *u = call->heads[h].choice.keep_on_device;
        units += (double)(u->units * u->bq * u->bk);
        tiles += (double)(u->tiles[0] * ACCEL_TILE * ACCEL_TILE);
    }
    return units < SLIM_BELOW * tiles;
}

int accel_attend_masks(const struct accel *a, struct accel_session *s, const struct attend_how *how,
                       const struct accel_call *call, struct accel_result *r, char why[160],
                       struct err *err)
{
    const struct accel_head *first = call->heads, *by = first;
    bool on_device = accel_on_device(call);
    int64_t unit_q = on_device ? first->choice.keep_on_device->bq : 0;
    int64_t unit_k = on_device ? first->choice.keep_on_device->bk : 0;
    for (int h = 0; !on_device && h < call->n; h++)
        common_unit(first[h].masks, first[h].n_masks, &unit_q, &unit_k);
    int64_t bq = unit_q, bk = unit_k;
    for (int h = 0; h < call->n && !by->filter; h++)
        by = first[h].filter ? first + h : by;
    PASS_ON(geometry(a, s, by, &bq, &bk, why, err));
    if (bk % 64 && !by->filter && !(on_device && !first->own_kernel && fills_little(call)))
        bq = bk = ACCEL_TILE;
    struct accel_lists l = {.count = call->n,
                            .bq = (int)bq,
                            .bk = (int)bk,
                            .static_id = how->static_id,
                            .untimed = how->untimed};
    r->sections = 1;
    if (!unit_q || (how->static_id && a->has_cached && a->has_cached(s, how->static_id)))
        return a->attend_call(s, call, &l, r, err);
    OWN(making_free)
    struct making m = {.call = call,
                       .nq = first->x->nq,
                       .nk = first->x->nk,
                       .bq = bq,
                       .bk = bk,
                       .how = ACCEL_LISTS,
                       .n = call->n,
                       .on_device = on_device};
    PASS_ON(making_init(&m, unit_q % bq != 0 || unit_k % bk != 0, how->jobs, err));
    return attend_sections(a, s, how, &l, &m, r, why, err);
}
