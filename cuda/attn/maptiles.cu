/*
 * maptiles.cu - maps of kept units become tiles with bits (maptiles.h).
 *
 * One pass says for each row of tiles, 128 queries of a head, which of its tiles are empty, whole
 * or partial, and which keys any query keeps. Sums over the rows give every tile its place, so that
 * a second pass writes tiles and bits, always in the same order.
 */
#include "cuda/attn/maptiles.h"

#include "core/accel.h"
#include "cuda/attn/tilewords.cuh"
#include "cuda/blocksum.cuh"
#include "cuda/warp.cuh"

#include <stdlib.h>
#include <string.h>

#define TILE ACCEL_TILE
#define TILE_WORDS ACCEL_TILE_WORDS
#define THREADS 256 /* a thread per word of a tile */

enum { EMPTY, PARTIAL, WHOLE };

/* ---- maps ----------------------------------------------------------------------------------- */

static __device__ int key_limit_of(const tile_rows &r, int row)
{
    int64_t p = r.maps.causal ? row + r.maps.nk - r.maps.nq + 1 : r.maps.nk;
    return (int)(p < 0 ? 0 : p > r.maps.nk ? r.maps.nk : p);
}

/* The row of the map for a query, a bit per key. */
static __device__ const uint32_t *key_row(const tile_rows &r, int head, int row)
{
    int64_t group = row / (int)r.maps.bq;
    return r.by_key ? r.by_key + (head * r.map_rows + group) * r.pitch
                    : r.map[head] + group * r.pitch;
}

/* Keys [32 w, 32 w + 32) of a row of a map of units. */
static __device__ uint32_t key_word(const tile_rows &r, const uint32_t *row, int w)
{
    int bk = (int)r.maps.bk;
    uint32_t bits = 0;
    for (int key = 32 * w; key < 32 * (w + 1) && key < r.maps.nk;) {
        int unit = key / bk, end = (unit + 1) * bk - 32 * w;
        uint32_t kept = row[unit / 32] >> unit % 32 & 1;
        bits |= kept ? low_bits(end) & ~low_bits(key - 32 * w) : 0;
        key = (unit + 1) * bk;
    }
    return bits;
}

/* A bit per key of maps whose units have several. A thread block per row of a map. */
static __global__ void expand_units(tile_rows r, int first)
{
    int64_t head = first + blockIdx.y, row = blockIdx.x;
    const uint32_t *units = r.map[head] + row * r.maps.words;
    for (int w = threadIdx.x; w < r.pitch; w += blockDim.x)
        r.by_key[(head * r.map_rows + row) * r.pitch + w] = key_word(r, units, w);
}

/* ---- counts --------------------------------------------------------------------------------- */

/* What the queries of a row of tiles keep of 32 keys. */
struct column {
    uint32_t upper, lower; /* by some of the first 64 queries, of the others */
    uint32_t all;          /* by all that may see the key */
    int pairs;
};

/* A column while its rows are read: `seen` keys of its 32, and those before it, are seen by the
 * first row, `grow` more by each row after it, `most` at most. */
struct reader {
    const uint32_t *at;
    int64_t pitch;
    int rows, seen, grow, most;
};

static __device__ __forceinline__ uint32_t seen_by(const reader &x, int i)
{
    return low_bits(min(x.seen + i * x.grow, x.most));
}

/* Maps with a row per query. With CLIP some row does not see all 32 keys. */
template <bool CLIP, bool PAIRS>
static __device__ __forceinline__ column read_queries(const reader &x)
{
    column c = {0, 0, ~0u, 0};
    const uint32_t *at = x.at;
    for (int half = 0; half < 2; half++) {
        uint32_t any = 0;
        int end = min(x.rows, 64 * (half + 1));
#pragma unroll 16
        for (int i = 64 * half; i < end; i++, at += x.pitch) {
            uint32_t allowed = CLIP ? seen_by(x, i) : ~0u, bits = *at, kept = bits & allowed;
            any |= kept;
            c.all &= bits | ~allowed;
            c.pairs += PAIRS ? __popc(kept) : 0;
        }
        (half ? c.lower : c.upper) = any;
    }
    return c;
}

/* Maps whose rows are for bq queries, of which the first has `left` in the row of tiles. Later
 * queries see what earlier ones see. */
template <bool PAIRS>
static __device__ __forceinline__ column read_groups(const reader &x, int bq, int left)
{
    column c = {0, 0, ~0u, 0};
    const uint32_t *at = x.at;
    for (int i = 0; i < x.rows; at += x.pitch) {
        int end = min(i + left, x.rows);
        uint32_t bits = *at, allowed = seen_by(x, end - 1);
        c.upper |= i < 64 ? bits & seen_by(x, min(end, 64) - 1) : 0;
        c.lower |= end > 64 ? bits & allowed : 0;
        c.all &= bits | ~allowed;
        for (int k = i; k < end && PAIRS; k++)
            c.pairs += __popc(bits & seen_by(x, k));
        i = end;
        left = bq;
    }
    return c;
}

/* clip: some row may not see all of the word's keys. */
template <bool PAIRS>
static __device__ __forceinline__ column read_column(const tile_rows &r, const uint32_t *row,
                                                     int row0, int rows, int w, bool clip)
{
    int bq = (int)r.maps.bq, nk = (int)r.maps.nk;
    int64_t first = r.maps.causal ? row0 + r.maps.nk - r.maps.nq + 1 : nk;
    reader x = {
        row + w,    r.pitch, rows, (int)max(first - 32 * w, (int64_t)-TILE), r.maps.causal ? 1 : 0,
        nk - 32 * w};
    if (bq > 1)
        return read_groups<PAIRS>(x, bq, bq - row0 % bq);
    return clip ? read_queries<true, PAIRS>(x) : read_queries<false, PAIRS>(x);
}

static __device__ int sum_of_block(int x)
{
    __shared__ int part[THREADS / 32];
    int sum = 0;
    x = warp_add(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x >> 5] = x;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++)
        sum += part[i];
    return sum;
}

template <bool TOTALS>
static __global__ void __launch_bounds__(THREADS)
    count_tiles(tile_rows r, int first, map_totals *totals)
{
    int head = first + blockIdx.y, row0 = blockIdx.x * TILE, lane = threadIdx.x & 31;
    int64_t row = head * r.groups + blockIdx.x;
    int rows = min(TILE, (int)r.maps.nq - row0), limit = key_limit_of(r, row0 + rows - 1);
    int seen = key_limit_of(r, row0), cols = (int)r.cols;
    int place = 0, partial = 0, keys = 0, kept64 = 0;
    const uint32_t *map = key_row(r, head, row0);
    unsigned long long pairs = 0;

    for (int w0 = threadIdx.x & ~31; w0 < 4 * cols; w0 += THREADS) {
        int w = w0 + lane;
        column c = {0, 0, 0, 0};
        bool clip = 32 * (w0 + 32) > seen; /* of all lanes */
        if (w < 4 * cols && 32 * w < limit)
            c = read_column<TOTALS>(r, map, row0, rows, w, clip);
        uint32_t any = c.upper | c.lower;
        unsigned some = __ballot_sync(~0u, any != 0) >> (lane & ~3) & 15;
        /* Past the last key that is seen nothing is missing. */
        unsigned all = __ballot_sync(~0u, 32 * w >= limit || c.all == ~0u) >> (lane & ~3) & 15;
        unsigned upper = __ballot_sync(~0u, c.upper != 0) >> (lane & ~1) & 3;
        unsigned lower = __ballot_sync(~0u, c.lower != 0) >> (lane & ~1) & 3;
        if (w >= 4 * cols)
            continue;
        r.any[row * 4 * cols + w] = any;
        keys += __popc(any);
        pairs += c.pairs;
        if (lane % 2 == 0)
            kept64 += (upper != 0) + (lower != 0);
        if (lane % 4 == 0) {
            int state = !some ? EMPTY : all == 15 ? WHOLE : PARTIAL;
            r.state[row * cols + w / 4] = (uint8_t)state;
            place += state != EMPTY;
            partial += state == PARTIAL;
        }
    }
    place = sum_of_block(place);
    partial = sum_of_block(partial);
    keys = sum_of_block(keys);
    if (threadIdx.x == 0) {
        r.place[row] = place;
        r.partial[row] = partial;
        r.keys[row] = keys;
    }
    if (!TOTALS)
        return;
    kept64 = sum_of_block(kept64);
    pairs = warp_add(pairs);
    if (lane == 0)
        atomicAdd(&totals[head].pairs, pairs);
    if (threadIdx.x == 0)
        atomicAdd(&totals[head].kept64, (unsigned long long)kept64);
}

/* Kept units of each row of a map that some query of it may see. A warp per row. */
static __global__ void count_units(tile_rows r, int64_t rows, map_totals *totals, int32_t *units)
{
    int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5;
    int lane = threadIdx.x & 31, head = blockIdx.y, n = 0;
    if (row >= rows)
        return;
    int64_t end = (row + 1) * r.maps.bq, last = (end < r.maps.nq ? end : r.maps.nq) - 1;
    int limit = key_limit_of(r, (int)last), seen = (int)((limit + r.maps.bk - 1) / r.maps.bk);
    for (int w = lane; w < r.maps.words && 32 * w < seen; w += 32)
        n += __popc(r.map[head][row * r.maps.words + w] & low_bits(seen - 32 * w));
    n = warp_add(n);
    if (lane)
        return;
    units[head * rows + row] = n;
    atomicAdd(&totals[head].units, (unsigned long long)n);
}

extern "C" int tile_rows_init(struct gpu *g, const struct unit_maps *m, struct tile_rows *r,
                              struct err *err)
{
    int64_t rows;
    int rc = 0;
    memset(r, 0, sizeof *r);
    r->maps = *m;
    r->maps.map = NULL;
    r->groups = (m->nq + TILE - 1) / TILE;
    r->cols = (m->nk + TILE - 1) / TILE;
    r->map_rows = (m->nq + m->bq - 1) / m->bq;
    r->pitch = m->bk > 1 ? 4 * r->cols : m->words;
    rows = m->heads * r->groups;
    TRY(gpu_alloc(g, m->heads * (int64_t)sizeof *m->map, &r->map, err));
    TRY(gpu_put(g, (void *)r->map, m->map, m->heads * (int64_t)sizeof *m->map, err));
    TRY(gpu_alloc(g, rows * 4, &r->place, err));
    TRY(gpu_alloc(g, rows * 4, &r->partial, err));
    TRY(gpu_alloc(g, rows * 4, &r->keys, err));
    TRY(gpu_alloc(g, rows * r->cols, &r->state, err));
    TRY(gpu_alloc(g, rows * r->cols * 16, &r->any, err));
    if (m->bk > 1)
        TRY(gpu_alloc(g, m->heads * r->map_rows * r->pitch * 4, &r->by_key, err));
    TRY(gpu_sync(g, err)); /* m->map is the caller's */
out:
    return rc;
}

static int launch_counts(struct gpu *g, const struct tile_rows *r, int first, int count,
                         map_totals *totals, struct err *err)
{
    int rc = 0;
    dim3 grid((unsigned)r->groups, (unsigned)count);
    if (r->by_key) {
        dim3 rows((unsigned)r->map_rows, (unsigned)count);
        expand_units<<<rows, THREADS, 0, g->stream>>>(*r, first);
        CU_LAUNCHED(err);
    }
    if (totals)
        count_tiles<true><<<grid, THREADS, 0, g->stream>>>(*r, first, totals);
    else
        count_tiles<false><<<grid, THREADS, 0, g->stream>>>(*r, first, NULL);
    CU_LAUNCHED(err);
out:
    return rc;
}

extern "C" int tile_rows_launch(struct gpu *g, const struct tile_rows *r, int first, int count,
                                struct err *err)
{
    return launch_counts(g, r, first, count, NULL, err);
}

extern "C" int tile_rows_totals(struct gpu *g, const struct tile_rows *r, struct map_totals *totals,
                                int32_t *units, struct err *err)
{
    struct gpu_mark mark = gpu_mark(g);
    int heads = r->maps.heads, rc = 0;
    int64_t rows = (r->maps.nq + r->maps.bq - 1) / r->maps.bq;
    int64_t bytes = heads * (int64_t)sizeof *totals;
    dim3 grid((unsigned)((rows + 7) / 8), (unsigned)heads);
    map_totals *sums = NULL;
    int32_t *per_row = NULL;

    TRY(gpu_alloc(g, bytes, &sums, err));
    TRY(gpu_alloc(g, heads * rows * 4, &per_row, err));
    TRY(gpu_zero(g, sums, bytes, err));
    TRY(launch_counts(g, r, 0, heads, sums, err));
    count_units<<<grid, 256, 0, g->stream>>>(*r, rows, sums, per_row);
    CU_LAUNCHED(err);
    TRY(gpu_get(g, totals, sums, bytes, err));
    TRY(gpu_get(g, units, per_row, heads * rows * 4, err));
out:
    gpu_release(g, mark);
    return rc;
}

/* ---- places --------------------------------------------------------------------------------- */

#define PLACE_THREADS 1024

/* First tile and first tile with bits of every row, and their numbers at the end. One thread block.
 */
static __global__ void __launch_bounds__(PLACE_THREADS) place_tiles(map_tiles t, tile_rows r)
{
    __shared__ int64_t part[2][2][32];
    int64_t rows = t.count * r.groups, from = t.first * r.groups, at = 0, bits_at = 0, all;
    for (int64_t base = 0, turn = 0; base < rows; base += PLACE_THREADS, turn ^= 1) {
        int64_t row = base + threadIdx.x, n = 0, bits = 0;
        if (row < rows) {
            n = t.gathered ? (r.keys[from + row] + TILE - 1) / TILE : r.place[from + row];
            bits = t.gathered ? n : r.partial[from + row];
        }
        n = at + sum_before(n, part[turn][0], &all);
        at += all;
        bits = bits_at + sum_before(bits, part[turn][1], &all);
        bits_at += all;
        if (row < rows) {
            t.at[row] = n;
            t.bits_at[row] = bits;
        }
    }
    if (threadIdx.x == 0) {
        t.at[rows] = at;
        t.bits_at[rows] = bits_at;
    }
}

/* ---- tiles in place ------------------------------------------------------------------------- */

#define CHUNK 32  /* tiles of a thread block, a lane each */
#define AT_ONCE 4 /* of which so many are read before they are written */

/* A query's keys while tiles are written. */
struct query {
    const uint32_t *row;
    int limit;
};

static __device__ query query_of(const tile_rows &r, int head, int row)
{
    int nq = (int)r.maps.nq;
    return {key_row(r, head, min(row, nq - 1)), row < nq ? key_limit_of(r, row) : 0};
}

static __device__ __forceinline__ uint32_t bits_of(const query &x, int w)
{
    int seen = x.limit - 32 * w;
    return seen > 0 ? x.row[w] & low_bits(seen) : 0;
}

/* The tiles of the columns `left` from c0 on, to the words from `to` on. */
static __device__ void write_partial(const query x[2], int c0, unsigned left, uint64_t *to)
{
    int lane_word = threadIdx.x & 3;
    while (left) {
        uint32_t a[AT_ONCE], b[AT_ONCE];
        int n = min(__popc(left), AT_ONCE);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++, left &= left - 1) {
            int w = 4 * (c0 + __ffs(left) - 1) + lane_word;
            a[i] = left ? bits_of(x[0], w) : 0;
            b[i] = left ? bits_of(x[1], w) : 0;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (i < n)
                to[i * TILE_WORDS + threadIdx.x] = tile_word(a[i], b[i]);
        to += n * TILE_WORDS;
    }
}

static __global__ void __launch_bounds__(THREADS) write_tiles(map_tiles t, tile_rows r)
{
    int head = t.first + blockIdx.y, row0 = blockIdx.x * TILE, lane = threadIdx.x & 31;
    int64_t row = head * r.groups + blockIdx.x, own = row - t.first * r.groups;
    int cols = (int)r.cols, c0 = blockIdx.z * CHUNK, col = c0 + lane;
    const uint8_t *states = r.state + row * cols;
    int state = col < cols ? states[col] : EMPTY, tiles = 0, with_bits = 0;
    unsigned some = __ballot_sync(~0u, state != EMPTY), below = (1u << lane) - 1;
    unsigned partial = __ballot_sync(~0u, state == PARTIAL);

    if (!some)
        return;
    for (int c = 0; c < c0; c += THREADS) { /* those before this chunk */
        int before = c + threadIdx.x < c0 ? states[c + threadIdx.x] : EMPTY;
        tiles += __syncthreads_count(before != EMPTY);
        with_bits += __syncthreads_count(before == PARTIAL);
    }
    int64_t at = t.at[own] + tiles, bits_at = t.bits_at[own] + with_bits;
    if (threadIdx.x < 32 && state != EMPTY) {
        int64_t to = at + __popc(some & below);
        t.col[to] = col;
        t.bits[to] = state == WHOLE ? -1 : (int32_t)(bits_at + __popc(partial & below));
    }
    int in_tile = row0 + word_row(threadIdx.x);
    query x[2] = {query_of(r, head, in_tile), query_of(r, head, in_tile + 8)};
    write_partial(x, c0, partial, t.words + bits_at * TILE_WORDS);
}

/* ---- tiles of gathered keys ----------------------------------------------------------------- */

/* The keys that some query of a row of tiles keeps, ascending, then -1 up to a whole tile; and for
 * each word of `any` how many keys are before it. */
static __global__ void __launch_bounds__(THREADS) list_keys(map_tiles t, tile_rows r)
{
    __shared__ int64_t part[2][32];
    int64_t row = (t.first + blockIdx.y) * r.groups + blockIdx.x, own = row - t.first * r.groups;
    int words = 4 * (int)r.cols, base = 0, lane = threadIdx.x & 31, turn = 0;
    int end = (int)(t.at[own + 1] - t.at[own]) * TILE;
    int32_t *key = t.key + t.at[own] * TILE;
    int64_t all;
    for (int w0 = 0; w0 < words; w0 += THREADS, turn ^= 1) {
        int w = w0 + threadIdx.x;
        uint32_t bits = w < words ? r.any[row * words + w] : 0;
        int to = base + (int)sum_before(__popc(bits), part[turn], &all);
        if (w < words)
            t.before[own * words + w] = to;
        for (unsigned left = __ballot_sync(~0u, bits != 0); left; left &= left - 1) {
            int from = __ffs(left) - 1;
            uint32_t its = __shfl_sync(~0u, bits, from);
            int at = __shfl_sync(~0u, to, from);
            if (its >> lane & 1)
                key[at + __popc(its & ((1u << lane) - 1))] = 32 * (w - lane + from) + lane;
        }
        base += (int)all;
    }
    for (int i = base + threadIdx.x; i < end; i += THREADS)
        key[i] = -1;
}

#define PACK_TILES 4 /* of a thread block at a time */
#define PACK_WORDS (4 * PACK_TILES)
#define PACK_PITCH 20 /* words: rows a .. a + 7 are in different banks */
#define PACK_THREADS 128
#define FEW_ROWS 16
#define MAX_CHUNKS 16 /* thread blocks that share a row of tiles */

/* How to take the bits of a mask out of a word and to the right, side by side, in five steps of 1,
 * 2, .. 16 places: those that move in each. */
struct taking {
    uint32_t mask, moves[5];
};

static __device__ taking taking_of(uint32_t mask)
{
    taking t;
    uint32_t left = ~mask << 1; /* bits that are not wanted, to the right of each */
    t.mask = mask;
#pragma unroll
    for (int i = 0; i < 5; i++) {
        uint32_t odd = left ^ left << 1; /* an odd number of them */
        odd ^= odd << 2;
        odd ^= odd << 4;
        odd ^= odd << 8;
        odd ^= odd << 16;
        t.moves[i] = odd & mask;
        mask = (mask ^ t.moves[i]) | t.moves[i] >> (1 << i);
        left &= ~odd;
    }
    return t;
}

static __device__ __forceinline__ uint32_t take_bits(const taking &t, uint32_t x)
{
    x &= t.mask;
#pragma unroll
    for (int i = 0; i < 5; i++) {
        uint32_t moving = x & t.moves[i];
        x = (x ^ moving) | moving >> (1 << i);
    }
    return x;
}

/* What a thread block has of a row of tiles: rows of its maps, and gathered keys. */
struct packing {
    uint32_t bits[TILE][PACK_PITCH]; /* of the rows of the map, a bit for each gathered key */
    uint32_t stage[TILE][33];        /* of the rows of the map, a bit for each key of 32 words */
    taking take[32];                 /* the gathered ones of these words */
    int32_t key[PACK_TILES * TILE];
    int limit[TILE];     /* gathered keys that each query may see, counted from the first here */
    int cut[PACK_TILES]; /* does a query not keep a key of a tile? */
};

/* Where rows of the map are few: a lane looks up a key. */
static __device__ void pack_few(packing &s, const uint32_t *map, int64_t pitch, int rows)
{
    int lane = threadIdx.x & 31;
    for (int i = threadIdx.x >> 5; i < rows * PACK_WORDS; i += PACK_THREADS / 32) {
        int row = i / PACK_WORDS, word = i % PACK_WORDS, key = s.key[32 * word + lane];
        bool kept = key >= 0 && map[row * pitch + key / 32] >> key % 32 & 1;
        uint32_t bits = __ballot_sync(~0u, kept);
        if (lane == 0)
            s.bits[row][word] = bits;
    }
}

/* Bits of a row as they come. */
struct appending {
    uint32_t bits; /* that do not fill a word yet */
    int n, word;
};

static __device__ __forceinline__ void append(uint32_t *to, appending &a, uint32_t bits, int n)
{
    a.bits |= bits << a.n;
    a.n += n;
    if (a.n < 32)
        return;
    to[a.word++] = a.bits;
    a.n -= 32;
    a.bits = a.n ? bits >> (n - a.n) : 0;
}

/* Where they are many: a thread per row takes the bits of the gathered keys [first, last] out of
 * word after word. */
static __device__ void pack_many(packing &s, const uint32_t *map, int64_t pitch, int rows,
                                 const uint32_t *any, int first, int last)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = threadIdx.x;
    appending a = {0, 0, 0};
    for (int w0 = first / 32; w0 <= last / 32; w0 += 32) {
        int w = w0 + lane;
        uint32_t mine = w <= last / 32 ? any[w] : 0;
        mine &= ~low_bits(first - 32 * w) & low_bits(last + 1 - 32 * w);
        unsigned left = __ballot_sync(~0u, mine != 0);
        if (!left)
            continue;
        __syncthreads();
        if (warp == 0)
            s.take[lane] = taking_of(mine);
#pragma unroll 8
        for (int i = warp; i < rows; i += PACK_THREADS / 32)
            s.stage[i][lane] = mine ? map[i * pitch + w] : 0;
        __syncthreads();
        for (; left && row < rows; left &= left - 1) {
            taking t = s.take[__ffs(left) - 1];
            append(s.bits[row], a, take_bits(t, s.stage[row][__ffs(left) - 1]), __popc(t.mask));
        }
    }
    if (row >= rows)
        return;
    for (; a.word < PACK_WORDS; a.bits = 0)
        s.bits[row][a.word++] = a.bits;
}

/* The words of the packed tiles from number `at` on, and which of them need none. `care`: the
 * queries of a thread that exist. */
static __device__ void write_packed(packing &s, const map_tiles &t, int64_t at, int n, int bq,
                                    int skip, int rows)
{
    int quad = threadIdx.x & 3;
    for (int i = threadIdx.x; i < TILE_WORDS; i += PACK_THREADS) {
        int a = word_row(i), b = a + 8;
        const uint32_t *row_a = s.bits[(a + skip) / bq], *row_b = s.bits[(b + skip) / bq];
        uint64_t care =
            (a < rows ? 0x3333333333333333ull : 0) | (b < rows ? 0xccccccccccccccccull : 0);
        for (int k = 0; k < n; k++) {
            int w = 4 * k + quad;
            uint32_t x = a < rows ? row_a[w] & low_bits(s.limit[a] - 32 * w) : 0;
            uint32_t y = b < rows ? row_b[w] & low_bits(s.limit[b] - 32 * w) : 0;
            uint64_t word = tile_word(x, y);
            t.words[(at + k) * TILE_WORDS + i] = word;
            if ((word & care) != care)
                s.cut[k] = 1;
        }
    }
    __syncthreads();
    if (threadIdx.x < n)
        t.bits[at + threadIdx.x] = s.cut[threadIdx.x] ? (int32_t)(at + threadIdx.x) : -1;
}

static __global__ void __launch_bounds__(PACK_THREADS) write_gathered(map_tiles t, tile_rows r)
{
    __shared__ packing s;
    int head = t.first + blockIdx.y, row0 = blockIdx.x * TILE, bq = (int)r.maps.bq;
    int64_t row = head * r.groups + blockIdx.x, own = row - t.first * r.groups, at = t.at[own];
    int tiles = (int)(t.at[own + 1] - at), rows = min(TILE, (int)r.maps.nq - row0);
    int skip = row0 % bq, map_rows = (skip + rows - 1) / bq + 1, keys = r.keys[row];
    const uint32_t *map = key_row(r, head, row0), *any = r.any + row * 4 * r.cols;
    int limit = 0;

    if (threadIdx.x < rows) { /* the rank of the first key that the query does not see */
        int end = key_limit_of(r, row0 + threadIdx.x), w = end / 32;
        limit = w < 4 * r.cols
                    ? t.before[own * 4 * r.cols + w] + __popc(any[w] & low_bits(end - 32 * w))
                    : keys;
    }
    for (int from = blockIdx.z * PACK_TILES; from < tiles; from += gridDim.z * PACK_TILES) {
        int n = min(PACK_TILES, tiles - from), here = min(n * TILE, keys - from * TILE);
        __syncthreads();
        for (int i = threadIdx.x; i < PACK_TILES * TILE; i += PACK_THREADS)
            s.key[i] = i < here ? t.key[(at + from) * TILE + i] : -1;
        s.limit[threadIdx.x] = limit - from * TILE;
        if (threadIdx.x < PACK_TILES)
            s.cut[threadIdx.x] = 0;
        __syncthreads();
        if (map_rows <= FEW_ROWS)
            pack_few(s, map, r.pitch, map_rows);
        else
            pack_many(s, map, r.pitch, map_rows, any, s.key[0], s.key[here - 1]);
        __syncthreads();
        write_packed(s, t, at + from, n, bq, skip, rows);
    }
}

/* ---- launches ------------------------------------------------------------------------------- */

static int launch_places(struct gpu *g, const struct map_tiles *t, struct err *err)
{
    int rc = 0;
    place_tiles<<<1, PLACE_THREADS, 0, g->stream>>>(*t, *t->rows);
    CU_LAUNCHED(err);
out:
    return rc;
}

static int launch_tiles(struct gpu *g, const struct map_tiles *t, struct err *err)
{
    int rc = 0;
    unsigned groups = (unsigned)t->rows->groups, count = (unsigned)t->count;
    unsigned chunks = (unsigned)((t->rows->cols + CHUNK - 1) / CHUNK);
    unsigned packs = (unsigned)((t->rows->cols + PACK_TILES - 1) / PACK_TILES);
    if (t->gathered) {
        list_keys<<<dim3(groups, count), THREADS, 0, g->stream>>>(*t, *t->rows);
        CU_LAUNCHED(err);
        dim3 grid(groups, count, packs < MAX_CHUNKS ? packs : MAX_CHUNKS);
        write_gathered<<<grid, PACK_THREADS, 0, g->stream>>>(*t, *t->rows);
    } else
        write_tiles<<<dim3(groups, count, chunks), THREADS, 0, g->stream>>>(*t, *t->rows);
    CU_LAUNCHED(err);
out:
    return rc;
}

extern "C" int map_tiles_launch(struct gpu *g, const struct map_tiles *t, struct err *err)
{
    int rc = 0;
    TRY(tile_rows_launch(g, t->rows, t->first, t->count, err));
    TRY(launch_places(g, t, err));
    TRY(launch_tiles(g, t, err));
out:
    return rc;
}

/* Memory of the tiles, when their numbers are known. */
static int alloc_tiles(struct gpu *g, struct map_tiles *t, int64_t n, int64_t with_bits,
                       struct err *err)
{
    int64_t rows = t->count * t->rows->groups;
    int rc = 0;
    if (n > INT32_MAX / 4)
        FAIL(err, ERR_RUN, "%lld tiles are too many for one launch", (long long)n);
    TRY(gpu_alloc(g, n * 4, &t->bits, err));
    TRY(gpu_alloc(g, with_bits * TILE_WORDS * 8, &t->words, err));
    if (t->gathered) {
        TRY(gpu_alloc(g, n * TILE * 4, &t->key, err));
        TRY(gpu_alloc(g, rows * t->rows->cols * 16, &t->before, err));
    } else
        TRY(gpu_alloc(g, n * 4, &t->col, err));
out:
    return rc;
}

extern "C" int map_tiles_make(struct gpu *g, const struct tile_rows *r, int first, int count,
                              bool gathered, struct map_tiles *t, struct err *err)
{
    int64_t rows = count * r->groups, with_bits = 0;
    int64_t *ptr = (int64_t *)malloc((size_t)(rows + 1) * sizeof *ptr);
    int rc = 0;

    memset(t, 0, sizeof *t);
    t->rows = r;
    t->first = first;
    t->count = count;
    t->gathered = gathered;
    if (!ptr)
        FAIL(err, ERR_NOMEM, "tiles of rows: out of memory");
    TRY(gpu_alloc(g, (rows + 1) * 8, &t->at, err));
    TRY(gpu_alloc(g, (rows + 1) * 8, &t->bits_at, err));
    TRY(launch_places(g, t, err));
    TRY(gpu_get(g, ptr, t->at, (rows + 1) * 8, err));
    TRY(gpu_get(g, &with_bits, t->bits_at + rows, 8, err));
    TRY(alloc_tiles(g, t, ptr[rows], with_bits, err));
    TRY(launch_tiles(g, t, err));
    TRY(gpu_sync(g, err));
    t->csr.ptr = ptr;
    t->csr.col = t->col;
    t->csr.bits = t->bits;
    t->csr.keys = t->key;
    t->csr.words = t->words;
    t->csr.n_bits = with_bits;
    t->csr.on_device = true;
    ptr = NULL;
out:
    free(ptr);
    return rc;
}

extern "C" void map_tiles_free(struct map_tiles *t)
{
    free((void *)t->csr.ptr);
    memset(t, 0, sizeof *t);
}
