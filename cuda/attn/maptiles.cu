/*
 * maptiles.cu - maps of kept units become tiles with bits (maptiles.h).
 *
 * One pass says for each row of tiles, 128 queries of a head, which of its tiles are empty, whole
 * or partial, and which keys any query keeps. Sums over the rows give every tile its place, so that
 * a second pass writes tiles and bits, always in the same order.
 */
#include "cuda/attn/maptiles.h"

#include "core/intmath.h"
#include "core/mask.h"
#include "cuda/attn/maptiles_gather.cuh"
#include "cuda/attn/maptiles_once.cuh"
#include "cuda/attn/unittotals.cuh"
#include "cuda/blocksum.cuh"

#include <stdlib.h>
#include <string.h>

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
    TRY(gpu_upload(g, m->map, m->heads * (int64_t)sizeof *m->map, &r->map, err));
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

/* ---- launches ------------------------------------------------------------------------------- */

static int launch_places(struct gpu *g, const struct map_tiles *t, struct err *err)
{
    place_tiles<<<1, PLACE_THREADS, 0, g->stream>>>(*t, *t->rows);
    return LAUNCH_STATUS(err);
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

/* Rows are counted and bits written at once. */
static int launch_once(struct gpu *g, const struct map_tiles *t, struct err *err)
{
    const struct tile_rows *r = t->rows;
    int64_t rows = t->count * r->groups, from = t->first * r->groups;
    unsigned chunks = (unsigned)((r->cols + ONCE_TILES - 1) / ONCE_TILES);
    int rc = 0;
    TRY(gpu_zero(g, r->place + from, rows * 4, err));
    TRY(gpu_zero(g, r->partial + from, rows * 4, err));
    write_once<<<dim3((unsigned)r->groups, (unsigned)t->count, chunks), THREADS, 0, g->stream>>>(
        *t, *r);
    CU_LAUNCHED(err);
out:
    return rc;
}

extern "C" int map_tiles_launch(struct gpu *g, const struct map_tiles *t, struct err *err)
{
    int rc = 0;
    if (t->room)
        TRY(launch_once(g, t, err));
    else
        TRY(tile_rows_launch(g, t->rows, t->first, t->count, err));
    TRY(launch_places(g, t, err));
    TRY(launch_tiles(g, t, err));
out:
    return rc;
}

/* Room for bits of every tile that the queries see, where at least half of them have some.
 * *with_bits changes to that number. */
static int make_room(struct gpu *g, struct map_tiles *t, int64_t *with_bits, struct err *err)
{
    const struct tile_rows *r = t->rows;
    int64_t rows = t->count * r->groups, *room = NULL;
    int rc = 0;

    if (t->gathered || r->maps.bq > 1 || r->maps.bk > 1)
        return 0;
    TRY(mem_alloc(&room, rows + 1, sizeof *room, "tiles of rows", err));
    room[0] = 0;
    for (int64_t i = 0; i < rows; i++) {
        int64_t last = MIN((i % r->groups + 1) * TILE, r->maps.nq) - 1;
        int64_t seen = key_limit(r->maps.nq, r->maps.nk, r->maps.causal, last);
        room[i + 1] = room[i] + (seen + TILE - 1) / TILE;
    }
    if (room[rows] > 2 * *with_bits || room[rows] > INT32_MAX)
        goto out;
    *with_bits = room[rows];
    TRY(gpu_upload(g, room, (rows + 1) * 8, &t->room, err));
    TRY(gpu_sync(g, err));
out:
    free(room);
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
    int64_t *ptr = NULL;
    int rc = 0;

    memset(t, 0, sizeof *t);
    t->rows = r;
    t->first = first;
    t->count = count;
    t->gathered = gathered;
    TRY(mem_alloc(&ptr, rows + 1, sizeof *ptr, "tiles of rows", err));
    TRY(gpu_alloc(g, (rows + 1) * 8, &t->at, err));
    TRY(gpu_alloc(g, (rows + 1) * 8, &t->bits_at, err));
    TRY(launch_places(g, t, err));
    TRY(gpu_get(g, ptr, t->at, (rows + 1) * 8, err));
    TRY(gpu_get(g, &with_bits, t->bits_at + rows, 8, err));
    TRY(make_room(g, t, &with_bits, err));
    TRY(alloc_tiles(g, t, ptr[rows], with_bits, err));
    TRY(map_tiles_launch(g, t, err));
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
