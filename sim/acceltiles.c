/*
 * acceltiles.c - masks to tiles with bits (acceltiles.h).
 *
 * Rows that share one list up to the causal clip make a run, and a run is written once, from the
 * spans of its last row, into a bitmap that lies tile by tile. Then the tiles that were touched are
 * looked at: empty ones are left out, whole ones are plain entries, the others become bits in the
 * order of the kernels' registers. O(spans of the runs + 128 per touched tile).
 */
#include "sim/acceltiles.h"

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

/* One group of TILE rows at a time. */
struct group {
    struct run runs[TILE];
    int n_runs;
    int64_t row0;
    int64_t n_cols;  /* tiles across */
    uint64_t *map;   /* [n_cols][TILE][2], zero between groups */
    uint8_t *seen;   /* [n_cols]: tiles with a bit in the map */
    struct span *spans;
    int64_t span_cap;
};

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

/* Cut rows [row0, row1) of m into runs and mark what they keep. */
static int mark_rows(struct group *g, const struct mask *m, int64_t row0, int64_t row1,
                     struct err *err)
{
    int rc = 0;
    while (row0 < row1) {
        int64_t end = row0 + 1;
        while (end < row1 && mask_rows_uniform(m, row0, end + 1))
            end++;
        int64_t n = mask_union_max(m, end - 1, end);
        TRY(mem_grow(&g->spans, &g->span_cap, n, sizeof *g->spans, "mask spans", err));
        n = mask_row_spans(m, end - 1, g->spans);
        for (int64_t i = 0; i < n; i++)
            mark_span(g, g->n_runs, g->spans[i]);
        g->runs[g->n_runs++] = (struct run){m, row0, end};
        row0 = end;
    }
out:
    return rc;
}

/* Keys of tile c that a row sees, as bits. */
static void allowed_bits(const struct mask *m, int64_t row, int64_t c, uint64_t w[2])
{
    int64_t limit = mask_limit(m, row) - c * TILE;
    w[0] = bits_between(0, limit);
    w[1] = bits_between(0, limit - 64);
}

static bool keeps_all(const struct group *g, int64_t c)
{
    for (int i = 0; i < g->n_runs; i++) {
        const uint64_t *w = g->map + (c * TILE + i) * 2;
        uint64_t all[2];
        allowed_bits(g->runs[i].m, g->runs[i].row1 - 1, c, all);
        if (w[0] != all[0] || w[1] != all[1])
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

static void run_words(const struct group *g, int run, int64_t c, uint64_t *out)
{
    const struct run *r = g->runs + run;
    const uint64_t *w = g->map + (c * TILE + run) * 2;
    bool clipped = mask_limit(r->m, r->row0) < (c + 1) * TILE;
    uint64_t four[4];
    row_words(w, four);
    for (int64_t i = r->row0; i < r->row1; i++) {
        int row = (int)(i - g->row0);
        uint64_t *to = out + accel_word(row, 0);
        if (clipped) {
            uint64_t own[2];
            allowed_bits(r->m, i, c, own);
            own[0] &= w[0];
            own[1] &= w[1];
            row_words(own, four);
        }
        for (int q = 0; q < 4; q++)
            to[q] |= four[q] << accel_bit(row, 0);
    }
}

static int add_tile(struct accel_tiles *t, const struct group *g, int64_t c, int64_t max_bytes,
                    char why[160], struct err *err)
{
    int64_t tile_bytes = ACCEL_TILE_WORDS * (int64_t)sizeof *t->words;
    int rc = 0;
    TRY(mem_grow(&t->col, &t->tile_cap, t->n_tiles + 1, sizeof *t->col, "tiles", err));
    TRY(mem_grow(&t->bits, &t->bits_cap, t->n_tiles + 1, sizeof *t->bits, "tiles", err));
    t->col[t->n_tiles] = (int32_t)c;
    t->bits[t->n_tiles++] = keeps_all(g, c) ? -1 : (int32_t)t->n_bits;
    if (t->bits[t->n_tiles - 1] < 0)
        return 0;
    if ((t->n_bits + 1) * tile_bytes > max_bytes) {
        snprintf(why, 160, "the mask's bits take more than %.1f GB of GPU memory",
                 (double)max_bytes * 1e-9);
        return METHOD_SKIP;
    }
    TRY(mem_grow(&t->words, &t->word_cap, (t->n_bits + 1) * ACCEL_TILE_WORDS, sizeof *t->words,
                 "bits of tiles", err));
    uint64_t *out = t->words + t->n_bits++ * ACCEL_TILE_WORDS;
    memset(out, 0, (size_t)tile_bytes);
    for (int i = 0; i < g->n_runs; i++)
        run_words(g, i, c, out);
out:
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

int accel_tiles_make(const struct mask *masks, int64_t n, int64_t max_bytes, struct accel_tiles *t,
                     char why[160], struct err *err)
{
    int64_t nq = masks->nq, groups = (nq + TILE - 1) / TILE;
    const struct mask *m = masks;
    struct group *g = NULL;
    int rc = 0;

    memset(t, 0, sizeof *t);
    TRY(mem_zalloc(&g, 1, sizeof *g, "tiles of a mask", err));
    g->n_cols = (masks->nk + TILE - 1) / TILE;
    TRY(mem_zalloc(&g->map, g->n_cols * TILE * 2, sizeof *g->map, "tiles of a mask", err));
    TRY(mem_zalloc(&g->seen, g->n_cols, 1, "tiles of a mask", err));
    TRY(mem_zalloc(&t->ptr, groups + 1, sizeof *t->ptr, "tiles", err));
    for (int64_t k = 0; k < groups; k++) {
        g->row0 = k * TILE;
        TRY(mark_group(g, &m, masks + n, nq, err));
        for (int64_t c = 0; c < g->n_cols; c++) {
            if (!g->seen[c])
                continue;
            TRY(add_tile(t, g, c, max_bytes, why, err));
            memset(g->map + c * TILE * 2, 0, TILE * 2 * sizeof *g->map);
            g->seen[c] = 0;
        }
        t->ptr[k + 1] = t->n_tiles;
    }
out:
    if (g) {
        free(g->map);
        free(g->seen);
        free(g->spans);
    }
    free(g);
    if (rc)
        accel_tiles_free(t);
    return rc;
}

void accel_tiles_free(struct accel_tiles *t)
{
    free(t->ptr);
    free(t->col);
    free(t->bits);
    free(t->words);
    memset(t, 0, sizeof *t);
}
