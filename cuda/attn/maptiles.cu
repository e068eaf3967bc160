/*
 * maptiles.cu - maps of kept units become tiles with bits (mapplan.h).
 *
 * One pass says for each row of tiles, 128 queries of a head, which of its tiles are empty, whole
 * or partial, and which keys any query keeps. Sums over the rows give every tile its place, so that
 * a second pass writes tiles and bits, always in the same order.
 */
#include "cuda/attn/mapplan.h"

#include "core/accel.h"
#include "core/intmath.h"
#include "core/mask.h"
#include "cuda/attn/unitmaps.cuh"
#include "cuda/blocksum.cuh"

#include <stdlib.h>
#include <string.h>

#define TILE ACCEL_TILE
#define TILE_WORDS ACCEL_TILE_WORDS
#define THREADS 256 /* a thread per word of a tile */

/* ---- words of tiles ------------------------------------------------------------------------- */

/* Pairs of a tile of 128 x 128 in the order of its words (accel_word in core/accel.h): thread t has
 * row a = word_row(t) and row a + 8, and of every 8 keys the two with the numbers 2 q and 2 q + 1,
 * q = t % 4. */

static __device__ __forceinline__ int word_row(int t)
{
    return 16 * (t / 32) + t % 32 / 4;
}

/* Nibbles 0, 2, 4, 6 of x in the low half, 1, 3, 5, 7 in the high half. */
static __device__ __forceinline__ uint32_t split_nibbles(uint32_t x)
{
    uint32_t turn = (x >> 4 ^ x) & 0x00f000f0;
    return __byte_perm(x ^ turn ^ turn << 4, 0, 0x3120);
}

/* The word of a thread. a and b: keys [32 q, 32 q + 32) of its two rows. Four neighbouring threads,
 * whose rows are the same, exchange what each has for the others: 16 bits for each q of 32 keys. */
static __device__ __forceinline__ uint64_t tile_word(uint32_t a, uint32_t b)
{
    const bool second = threadIdx.x & 1, upper = threadIdx.x & 2;
    uint32_t even = (a & 0x33333333) | (b << 2 & 0xcccccccc);
    uint32_t odd = (a >> 2 & 0x33333333) | (b & 0xcccccccc);
    even = split_nibbles(even); /* for q = 0 and 2 */
    odd = split_nibbles(odd);   /* for q = 1 and 3 */
    uint32_t low = __byte_perm(even, odd, 0x5410), high = __byte_perm(even, odd, 0x7632);
    uint32_t got = __shfl_xor_sync(~0u, upper ? low : high, 2);
    uint32_t first = upper ? got : low, last = upper ? high : got;
    uint32_t mine = __byte_perm(first, last, second ? 0x7632 : 0x5410);
    got = __shfl_xor_sync(~0u, __byte_perm(first, last, second ? 0x5410 : 0x7632), 1);
    uint32_t lo = __byte_perm(mine, got, second ? 0x1054 : 0x5410);
    uint32_t hi = __byte_perm(mine, got, second ? 0x3276 : 0x7632);
    return lo | (uint64_t)hi << 32;
}

/* ---- maps ----------------------------------------------------------------------------------- */

enum { EMPTY, PARTIAL, WHOLE };

/* The row of the map for a query, a bit per key. */
static __device__ const uint32_t *key_row(const tile_rows &r, int head, int row)
{
    int64_t group = row / (int)r.maps.bq;
    return r.by_key ? r.by_key + (head * r.map_rows + group) * r.pitch
                    : r.map[head] + group * r.pitch;
}

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

/* The reader of word w of a row of tiles that begins with query row0. */
static __device__ __forceinline__ reader reader_of(const tile_rows &r, const uint32_t *row,
                                                   int row0, int rows, int w)
{
    int64_t first = r.maps.causal ? row0 + r.maps.nk - r.maps.nq + 1 : r.maps.nk;
    int seen = (int)max(first - 32 * w, (int64_t)-TILE);
    return {row + w, r.pitch, rows, seen, r.maps.causal ? 1 : 0, (int)r.maps.nk - 32 * w};
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
    int bq = (int)r.maps.bq;
    reader x = reader_of(r, row, row0, rows, w);
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
    int rows = min(TILE, (int)r.maps.nq - row0), limit = key_limit_of(r.maps, row0 + rows - 1);
    int seen = key_limit_of(r.maps, row0), cols = (int)r.cols;
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
    if (threadIdx.x == 0) {
        atomicAdd(&totals[head].kept64, (unsigned long long)kept64);
        atomicAdd(&totals[head].kept128, (unsigned long long)place);
    }
}

int tile_rows_init(struct gpu *g, const struct unit_maps *m, struct tile_rows *r, struct err *err)
{
    int64_t rows;
    memset(r, 0, sizeof *r);
    r->maps = *m;
    r->maps.map = NULL;
    r->groups = (m->nq + TILE - 1) / TILE;
    r->cols = (m->nk + TILE - 1) / TILE;
    r->map_rows = (m->nq + m->bq - 1) / m->bq;
    r->pitch = m->bk > 1 ? 4 * r->cols : m->words;
    rows = m->heads * r->groups;
    PASS_ON(gpu_upload(g, m->map, m->heads * (int64_t)sizeof *m->map, &r->map, err));
    PASS_ON(gpu_alloc(g, rows * 4, &r->place, err));
    PASS_ON(gpu_alloc(g, rows * 4, &r->partial, err));
    PASS_ON(gpu_alloc(g, rows * 4, &r->keys, err));
    PASS_ON(gpu_alloc(g, rows * r->cols, &r->state, err));
    PASS_ON(gpu_alloc(g, rows * r->cols * 16, &r->any, err));
    if (m->bk > 1)
        PASS_ON(gpu_alloc(g, m->heads * r->map_rows * r->pitch * 4, &r->by_key, err));
    return gpu_sync(g, err); /* m->map is the caller's */
}

static int launch_counts(struct gpu *g, const struct tile_rows *r, int first, int count,
                         map_totals *totals, struct err *err)
{
    dim3 grid((unsigned)r->groups, (unsigned)count);
    if (r->by_key) {
        dim3 rows((unsigned)r->map_rows, (unsigned)count);
        expand_units<<<rows, THREADS, 0, g->stream>>>(*r, first);
        PASS_ON_LAUNCH(err);
    }
    if (totals)
        count_tiles<true><<<grid, THREADS, 0, g->stream>>>(*r, first, totals);
    else
        count_tiles<false><<<grid, THREADS, 0, g->stream>>>(*r, first, NULL);
    return LAUNCH_STATUS(err);
}

int tile_rows_launch(struct gpu *g, const struct tile_rows *r, int first, int count,
                     struct err *err)
{
    return launch_counts(g, r, first, count, NULL, err);
}

int tile_rows_totals(struct gpu *g, const struct tile_rows *r, struct map_totals *totals,
                     int32_t *units, struct err *err)
{
    auto tiles = [&](map_totals *sums) { return launch_counts(g, r, 0, r->maps.heads, sums, err); };
    return unit_totals<false>(g, &r->maps, r->map, tiles, totals, units, err);
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
    return {key_row(r, head, min(row, nq - 1)), row < nq ? key_limit_of(r.maps, row) : 0};
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
        int64_t bits = t.room ? t.room[own] + col : bits_at + __popc(partial & below);
        t.bits[to] = state == WHOLE ? -1 : (int32_t)bits;
    }
    if (t.room)
        return; /* they are there */
    int in_tile = row0 + word_row(threadIdx.x);
    query x[2] = {query_of(r, head, in_tile), query_of(r, head, in_tile + 8)};
    write_partial(x, c0, partial, t.words + bits_at * TILE_WORDS);
}

/* ---- tiles in place, at once ---------------------------------------------------------------- */

/* Maps of single pairs are as large as the tiles' bits, and are read once only: a tile's bits go
 * where they would if every tile had some, so that nobody has to know how many there are before. */

#define ONCE_TILES 8 /* of a thread block, a word of 32 keys for each lane */
#define ONCE_WORDS (4 * ONCE_TILES)
#define ONCE_PITCH (ONCE_WORDS + 4) /* rows a .. a + 7 are in different banks */
#define ONCE_WARPS (THREADS / 32)

struct once {
    uint32_t bits[TILE][ONCE_PITCH];
    uint32_t any[ONCE_WARPS][32], all[ONCE_WARPS][32]; /* of the rows of a warp */
    int state[ONCE_TILES];
};

/* Every eighth row of the chunk for each warp: its bits, clipped to what the query sees. */
static __device__ void read_chunk(once &s, const reader &x)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint32_t any = 0, all = ~0u, bits[TILE / ONCE_WARPS];
#pragma unroll
    for (int k = 0; k < TILE / ONCE_WARPS; k++) {
        int i = warp + k * ONCE_WARPS;
        bits[k] = i < x.rows && seen_by(x, i) ? x.at[i * x.pitch] : 0;
    }
#pragma unroll
    for (int k = 0; k < TILE / ONCE_WARPS; k++) {
        int i = warp + k * ONCE_WARPS;
        uint32_t allowed = i < x.rows ? seen_by(x, i) : 0;
        s.bits[i][lane] = bits[k] & allowed;
        any |= bits[k] & allowed;
        all &= bits[k] | ~allowed;
    }
    s.any[warp][lane] = any;
    s.all[warp][lane] = all;
}

/* By one warp: the states of the chunk's tiles, and their numbers added to those of the row. */
static __device__ void judge_chunk(once &s, const tile_rows &r, int64_t row, int c0)
{
    int lane = threadIdx.x & 31, col = c0 + lane / 4;
    uint32_t any = 0, all = ~0u;
    for (int i = 0; i < ONCE_WARPS; i++) {
        any |= s.any[i][lane];
        all &= s.all[i][lane];
    }
    unsigned some = __ballot_sync(~0u, any != 0) >> (lane & ~3) & 15;
    unsigned whole = __ballot_sync(~0u, all == ~0u) >> (lane & ~3) & 15;
    int state = !some ? EMPTY : whole == 15 ? WHOLE : PARTIAL;
    bool first = lane % 4 == 0;
    unsigned place = __ballot_sync(~0u, first && state != EMPTY);
    unsigned partial = __ballot_sync(~0u, first && state == PARTIAL);
    if (first)
        s.state[lane / 4] = state;
    if (first && col < r.cols)
        r.state[row * r.cols + col] = (uint8_t)state;
    if (lane == 0 && place) {
        atomicAdd(&r.place[row], __popc(place));
        atomicAdd(&r.partial[row], __popc(partial));
    }
}

/* r.place and r.partial are 0 before. A thread block per row of tiles and chunk of columns. */
static __global__ void __launch_bounds__(THREADS) write_once(map_tiles t, tile_rows r)
{
    __shared__ once s;
    int head = t.first + blockIdx.y, row0 = blockIdx.x * TILE, c0 = blockIdx.z * ONCE_TILES;
    int64_t row = head * r.groups + blockIdx.x, own = row - t.first * r.groups;
    int rows = min(TILE, (int)r.maps.nq - row0), a = word_row(threadIdx.x), q = threadIdx.x & 3;

    if (c0 * TILE >= key_limit_of(r.maps, row0 + rows - 1)) {
        if (threadIdx.x < ONCE_TILES && c0 + threadIdx.x < r.cols)
            r.state[row * r.cols + c0 + threadIdx.x] = EMPTY;
        return;
    }
    int w = 4 * c0 + (threadIdx.x & 31);
    read_chunk(s, reader_of(r, key_row(r, head, row0), row0, rows, w));
    __syncthreads();
    if (threadIdx.x < 32)
        judge_chunk(s, r, row, c0);
    __syncthreads();
    uint64_t *to = t.words + (t.room[own] + c0) * TILE_WORDS + threadIdx.x;
#pragma unroll
    for (int c = 0; c < ONCE_TILES; c++)
        if (s.state[c] == PARTIAL)
            to[c * TILE_WORDS] = tile_word(s.bits[a][4 * c + q], s.bits[a + 8][4 * c + q]);
}

/* ---- gathered tiles ------------------------------------------------------------------------- */

/* Which keys, and their bits side by side. */

#define FEW_KEYS 6 /* of a word, that its thread writes by itself */

/* The keys of a warp's words, a word at a time and a lane for each of its keys. */
static __device__ void write_keys(int32_t *key, uint32_t bits, int to, int first)
{
    int lane = threadIdx.x & 31;
    for (unsigned left = __ballot_sync(~0u, bits != 0); left; left &= left - 1) {
        int from = __ffs(left) - 1, at = __shfl_sync(~0u, to, from);
        uint32_t its = __shfl_sync(~0u, bits, from);
        if (its >> lane & 1)
            key[at + __popc(its & ((1u << lane) - 1))] = first + 32 * (from - lane) + lane;
    }
}

/* The keys that some query of a row of tiles keeps, ascending, the last up to a whole tile; and for
 * each word of `any` how many keys are before it. */
static __global__ void __launch_bounds__(THREADS) list_keys(map_tiles t, tile_rows r)
{
    __shared__ int64_t part[2][32];
    int64_t row = (t.first + blockIdx.y) * r.groups + blockIdx.x, own = row - t.first * r.groups;
    int words = 4 * (int)r.cols, base = 0, turn = 0;
    int end = (int)(t.at[own + 1] - t.at[own]) * TILE;
    int32_t *key = t.key + t.at[own] * TILE;
    int64_t all;
    for (int w0 = 0; w0 < words; w0 += THREADS, turn ^= 1) {
        int w = w0 + threadIdx.x;
        uint32_t bits = w < words ? r.any[row * words + w] : 0;
        int to = base + (int)sum_before(__popc(bits), part[turn], &all);
        if (w < words)
            t.before[own * words + w] = to;
        if (__reduce_max_sync(~0u, __popc(bits)) <= FEW_KEYS)
            for (; bits; bits &= bits - 1)
                key[to++] = 32 * w + __ffs(bits) - 1;
        else
            write_keys(key, bits, to, 32 * w);
        base += (int)all;
    }
    __syncthreads();
    for (int i = base + threadIdx.x; i < end; i += THREADS)
        key[i] = key[base - 1];
}

#define PACK_TILES 4 /* of a thread block at a time */
#define PACK_WORDS (4 * PACK_TILES)
#define PACK_PITCH 20 /* words: rows a .. a + 7 are in different banks */
#define PACK_THREADS 128
#define PACK_WARPS (PACK_THREADS / 32)
#define FEW_ROWS 16
#define MAX_CHUNKS 16 /* thread blocks that share a row of tiles */

/* How to take the bits of a mask out of a word and to the right, side by side, in five steps of 1,
 * 2, .. 16 places: those that move in each. */
struct alignas(16) taking {
    uint32_t mask, moves[5], unused[2];
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
#pragma unroll 4
    for (int i = threadIdx.x >> 5; i < rows * PACK_WORDS; i += PACK_WARPS) {
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
        uint32_t mine = 0, got[TILE / PACK_WARPS];
        int w = w0 + lane;
        taking take;
        if (w <= last / 32)
            mine = any[w] & ~low_bits(first - 32 * w) & low_bits(last + 1 - 32 * w);
        if (!__ballot_sync(~0u, mine != 0))
            continue;
        const uint32_t *at = map + warp * pitch + w;
#pragma unroll
        for (int k = 0; k < TILE / PACK_WARPS; k++, at += PACK_WARPS * pitch)
            got[k] = mine && warp + k * PACK_WARPS < rows ? *at : 0;
        if (warp == 0)
            take = taking_of(mine);
        __syncthreads(); /* the words before are done with */
        if (warp == 0)
            s.take[lane] = take;
#pragma unroll
        for (int k = 0; k < TILE / PACK_WARPS; k++)
            s.stage[warp + k * PACK_WARPS][lane] = got[k];
        __syncthreads();
#pragma unroll 4
        for (int i = 0; i < 32; i++) {
            taking t = s.take[i];
            if (t.mask)
                append(s.bits[row], a, take_bits(t, s.stage[row][i]), __popc(t.mask));
        }
    }
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
#pragma unroll
        for (int k = 0; k < PACK_TILES; k++) {
            int w = 4 * k + quad;
            if (k == n)
                break;
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

static __global__ void __launch_bounds__(PACK_THREADS, 6) write_gathered(map_tiles t, tile_rows r)
{
    __shared__ packing s;
    int head = t.first + blockIdx.y, row0 = blockIdx.x * TILE, bq = (int)r.maps.bq;
    int64_t row = head * r.groups + blockIdx.x, own = row - t.first * r.groups, at = t.at[own];
    int tiles = (int)(t.at[own + 1] - at), rows = min(TILE, (int)r.maps.nq - row0);
    int skip = row0 % bq, map_rows = (skip + rows - 1) / bq + 1, keys = r.keys[row];
    const uint32_t *map = key_row(r, head, row0), *any = r.any + row * 4 * r.cols;
    int limit = 0;

    if (threadIdx.x < rows) { /* the rank of the first key that the query does not see */
        int end = key_limit_of(r.maps, row0 + threadIdx.x), w = end / 32;
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
    place_tiles<<<1, PLACE_THREADS, 0, g->stream>>>(*t, *t->rows);
    return LAUNCH_STATUS(err);
}

static int launch_tiles(struct gpu *g, const struct map_tiles *t, struct err *err)
{
    unsigned groups = (unsigned)t->rows->groups, count = (unsigned)t->count;
    unsigned chunks = (unsigned)((t->rows->cols + CHUNK - 1) / CHUNK);
    unsigned packs = (unsigned)((t->rows->cols + PACK_TILES - 1) / PACK_TILES);
    if (t->gathered) {
        list_keys<<<dim3(groups, count), THREADS, 0, g->stream>>>(*t, *t->rows);
        PASS_ON_LAUNCH(err);
        dim3 grid(groups, count, packs < MAX_CHUNKS ? packs : MAX_CHUNKS);
        write_gathered<<<grid, PACK_THREADS, 0, g->stream>>>(*t, *t->rows);
    } else
        write_tiles<<<dim3(groups, count, chunks), THREADS, 0, g->stream>>>(*t, *t->rows);
    return LAUNCH_STATUS(err);
}

/* Rows are counted and bits written at once. */
static int launch_once(struct gpu *g, const struct map_tiles *t, struct err *err)
{
    const struct tile_rows *r = t->rows;
    int64_t rows = t->count * r->groups, from = t->first * r->groups;
    unsigned chunks = (unsigned)((r->cols + ONCE_TILES - 1) / ONCE_TILES);
    PASS_ON(gpu_zero(g, r->place + from, rows * 4, err));
    PASS_ON(gpu_zero(g, r->partial + from, rows * 4, err));
    write_once<<<dim3((unsigned)r->groups, (unsigned)t->count, chunks), THREADS, 0, g->stream>>>(
        *t, *r);
    return LAUNCH_STATUS(err);
}

int map_tiles_launch(struct gpu *g, const struct map_tiles *t, struct err *err)
{
    if (t->room)
        PASS_ON(launch_once(g, t, err));
    else
        PASS_ON(tile_rows_launch(g, t->rows, t->first, t->count, err));
    PASS_ON(launch_places(g, t, err));
    return launch_tiles(g, t, err);
}

/* Room for bits of every tile that the queries see, where at least half of them have some.
 * *with_bits changes to that number. */
static int make_room(struct gpu *g, struct map_tiles *t, int64_t *with_bits, struct err *err)
{
    const struct tile_rows *r = t->rows;
    OWN(free_at) int64_t *room = NULL;
    int64_t rows = t->count * r->groups;

    if (t->gathered || r->maps.bq > 1 || r->maps.bk > 1)
        return 0;
    PASS_ON(mem_alloc(&room, rows + 1, sizeof *room, "tiles of rows", err));
    room[0] = 0;
    for (int64_t i = 0; i < rows; i++) {
        int64_t last = MIN((i % r->groups + 1) * TILE, r->maps.nq) - 1;
        int64_t seen = key_limit(r->maps.nq, r->maps.nk, r->maps.causal, last);
        room[i + 1] = room[i] + (seen + TILE - 1) / TILE;
    }
    if (room[rows] > 2 * *with_bits || room[rows] > INT32_MAX)
        return 0;
    *with_bits = room[rows];
    PASS_ON(gpu_upload(g, room, (rows + 1) * 8, &t->room, err));
    return gpu_sync(g, err);
}

/* Memory of the tiles, when their numbers are known. */
static int alloc_tiles(struct gpu *g, struct map_tiles *t, int64_t n, int64_t with_bits,
                       struct err *err)
{
    int64_t rows = t->count * t->rows->groups;
    if (n > INT32_MAX / 4)
        return err_set(err, ERR_RUN, "%lld tiles are too many for one launch", (long long)n);
    PASS_ON(gpu_alloc(g, n * 4, &t->bits, err));
    PASS_ON(gpu_alloc(g, with_bits * TILE_WORDS * 8, &t->words, err));
    if (t->gathered) {
        PASS_ON(gpu_alloc(g, n * TILE * 4, &t->key, err));
        return gpu_alloc(g, rows * t->rows->cols * 16, &t->before, err);
    }
    return gpu_alloc(g, n * 4, &t->col, err);
}

int map_tiles_make(struct gpu *g, const struct tile_rows *r, int first, int count, bool gathered,
                   struct map_tiles *t, struct err *err)
{
    int64_t rows = count * r->groups, with_bits = 0;
    OWN(free_at) int64_t *ptr = NULL;

    memset(t, 0, sizeof *t);
    t->rows = r;
    t->first = first;
    t->count = count;
    t->gathered = gathered;
    PASS_ON(mem_alloc(&ptr, rows + 1, sizeof *ptr, "tiles of rows", err));
    PASS_ON(gpu_alloc(g, (rows + 1) * 8, &t->at, err));
    PASS_ON(gpu_alloc(g, (rows + 1) * 8, &t->bits_at, err));
    PASS_ON(launch_places(g, t, err));
    PASS_ON(gpu_get(g, ptr, t->at, (rows + 1) * 8, err));
    PASS_ON(gpu_get(g, &with_bits, t->bits_at + rows, 8, err));
    PASS_ON(make_room(g, t, &with_bits, err));
    PASS_ON(alloc_tiles(g, t, ptr[rows], with_bits, err));
    PASS_ON(map_tiles_launch(g, t, err));
    PASS_ON(gpu_sync(g, err));
    t->csr.ptr = ptr;
    t->csr.col = t->col;
    t->csr.bits = t->bits;
    t->csr.keys = t->key;
    t->csr.words = t->words;
    t->csr.n_bits = with_bits;
    t->csr.on_device = true;
    ptr = NULL;
    return 0;
}

void map_tiles_free(struct map_tiles *t)
{
    free((void *)t->csr.ptr);
    memset(t, 0, sizeof *t);
}
