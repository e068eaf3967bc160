/*
 * acceltiles.c - masks to tiles with bits (acceltiles.h).
 *
 * Rows that share one list up to the causal clip make a run. A run is written once, from the spans
 * of its last row, into a bitmap with the layout of tiles. For gathered keys, columns that no run
 * has are removed from the bitmap. Then each touched tile becomes an entry: a whole tile a plain
 * one, any other an entry with bits in the order of the kernels' registers. O(spans of the runs +
 * 128 per touched tile).
 */
#include "sim/acceltiles.h"

#include "core/intmath.h"
#include "core/mem.h"
#include "core/method.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    int rc = 0;
    if (m->form == MASK_LISTS && m->bk == 1 && !reach_any(&m->reach) && n > g->n_cols / 4) {
        int64_t at = (i - m->row0) / m->bq, from = m->ptr[at];
        mark_keys(g, m->col + from,
                  list_below(m->col + from, m->ptr[at + 1] - from, mask_limit(m, i)));
        return 0;
    }
    TRY(mem_grow(&g->spans, &g->span_cap, n, sizeof *g->spans, "mask spans", err));
    n = mask_row_spans(m, i, g->spans);
    for (int64_t e = 0; e < n; e++)
        mark_span(g, g->n_runs, g->spans[e]);
out:
    return rc;
}

/* Cut rows [row0, row1) of m into runs and mark what they keep. */
static int mark_rows(struct group *g, const struct mask *m, int64_t row0, int64_t row1,
                     struct err *err)
{
    int rc = 0;
    while (row0 < row1) {
        int64_t end = row0 + 1;
        while (end < row1 && mask_rows_uniform(m, row0, end + 1))
            end++;
        TRY(mark_row(g, m, end - 1, err));
        g->runs[g->n_runs++] = (struct run){m, row0, end};
        row0 = end;
    }
out:
    return rc;
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
    int rc = 0;
    if ((t->n_bits + 1) * tile_bytes > g->max_bytes) {
        snprintf(g->why, 160, "the mask's bits take more than %.1f GB of GPU memory",
                 (double)g->max_bytes * 1e-9);
        return METHOD_SKIP;
    }
    TRY(mem_grow(&t->words, &t->word_cap, (t->n_bits + 1) * ACCEL_TILE_WORDS, sizeof *t->words,
                 "bits of tiles", err));
    uint64_t *out = t->words + t->n_bits++ * ACCEL_TILE_WORDS;
    memset(out, 0, (size_t)tile_bytes);
    for (int i = 0; i < g->n_runs; i++)
        run_words(g, i, x, out);
out:
    return rc;
}

static int add_tile(struct group *g, const struct tile *x, struct err *err)
{
    struct accel_tiles *t = g->tiles;
    int64_t at = t->n_tiles;
    int rc = 0;
    TRY(mem_grow(&t->bits, &t->bits_cap, at + 1, sizeof *t->bits, "tiles", err));
    if (x->keys) {
        TRY(mem_grow(&t->keys, &t->key_cap, (at + 1) * TILE, sizeof *t->keys, "keys", err));
        for (int64_t k = 0; k < TILE; k++)
            t->keys[at * TILE + k] = k < x->n_keys ? x->keys[k] : -1;
    } else {
        TRY(mem_grow(&t->col, &t->col_cap, at + 1, sizeof *t->col, "tiles", err));
        t->col[at] = (int32_t)(x->first / TILE);
    }
    t->n_tiles++;
    bool all = keeps_all(g, x);
    t->bits[at] = all ? -1 : (int32_t)t->n_bits;
    return all ? 0 : add_bits(g, x, err);
out:
    return rc;
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
    int64_t last = g->row0 + TILE < nq ? g->row0 + TILE : nq;
    int rc = 0;
    g->n_runs = 0;
    for (int64_t row = g->row0; row < last;) {
        int64_t to = last < (*m)->row1 ? last : (*m)->row1;
        TRY(mark_rows(g, *m, row, to, err));
        row = to;
        if (row == (*m)->row1 && *m + 1 < end)
            ++*m;
    }
out:
    return rc;
}

/* Tiles of rows [row0, row1) of m, in place and gathered. */
static int count_rows(struct group *g, const struct mask *m, int64_t row0, int64_t row1,
                      int64_t tiles[2], struct err *err)
{
    int64_t keys = 0, last = -1, n = mask_union_max(m, row0, row1);
    int rc = 0;
    TRY(mem_grow(&g->spans, &g->span_cap, n, sizeof *g->spans, "mask spans", err));
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
out:
    return rc;
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
