/*
 * maptiles.cu - maps of kept units become tiles with bits (maptiles.h).
 *
 * One thread block has one row of tiles, 128 queries of a head. It first says which of its tiles
 * are empty, whole or partial, and which keys any query keeps; sums over these give every tile its
 * place, so that tiles and bits are written in one more pass and always in the same order.
 */
#include "cuda/attn/maptiles.h"

#include "core/accel.h"

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

/* The low n bits. */
static __device__ uint32_t low_bits(int n)
{
    return n <= 0 ? 0 : n >= 32 ? ~0u : (1u << n) - 1;
}

static __device__ const uint32_t *map_row(const tile_rows &r, int head, int row)
{
    return r.map[head] + row / (int)r.maps.bq * r.maps.words;
}

/* Keys [32 w, 32 w + 32) of a row of a map, a bit each. */
static __device__ uint32_t key_word(const tile_rows &r, const uint32_t *row, int w)
{
    int bk = (int)r.maps.bk;
    if (bk == 1)
        return w < r.maps.words ? row[w] : 0;
    uint32_t bits = 0;
    for (int key = 32 * w; key < 32 * (w + 1) && key < r.maps.nk;) {
        int unit = key / bk, end = (unit + 1) * bk - 32 * w;
        uint32_t kept = row[unit / 32] >> unit % 32 & 1;
        bits |= kept ? low_bits(end) & ~low_bits(key - 32 * w) : 0;
        key = (unit + 1) * bk;
    }
    return bits;
}

/* ---- counts --------------------------------------------------------------------------------- */

/* What the queries of a row of tiles keep of 32 keys. */
struct column {
    uint32_t upper, lower; /* by some of the first 64 queries, of the others */
    uint32_t all;          /* by all that may see the key */
    int pairs;
};

static __device__ column read_column(const tile_rows &r, int head, int row0, int w)
{
    column c = {0, 0, ~0u, 0};
    int rows = min(TILE, (int)r.maps.nq - row0), bq = (int)r.maps.bq, left = bq - row0 % bq;
    const uint32_t *row = map_row(r, head, row0);
    uint32_t bits = key_word(r, row, w);
    for (int i = 0; i < rows; i++) {
        uint32_t allowed = low_bits(key_limit_of(r, row0 + i) - 32 * w), kept = bits & allowed;
        c.upper |= i < 64 ? kept : 0;
        c.lower |= i < 64 ? 0 : kept;
        c.all &= kept | ~allowed;
        c.pairs += __popc(kept);
        if (--left == 0 && i + 1 < rows) {
            left = bq;
            row += r.maps.words;
            bits = key_word(r, row, w);
        }
    }
    return c;
}

static __device__ int sum_of_block(int x)
{
    __shared__ int part[THREADS / 32];
    int lane = threadIdx.x & 31, sum = 0;
    for (int step = 16; step; step /= 2)
        x += __shfl_xor_sync(~0u, x, step);
    __syncthreads();
    if (lane == 0)
        part[threadIdx.x >> 5] = x;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++)
        sum += part[i];
    return sum;
}

static __global__ void __launch_bounds__(THREADS)
    count_tiles(tile_rows r, int first, map_totals *totals)
{
    int head = first + blockIdx.y, row0 = blockIdx.x * TILE, lane = threadIdx.x & 31;
    int64_t row = head * r.groups + blockIdx.x;
    int limit = key_limit_of(r, min(row0 + TILE, (int)r.maps.nq) - 1), cols = (int)r.cols;
    int place = 0, partial = 0, keys = 0, kept64 = 0;
    unsigned long long pairs = 0;

    for (int w0 = threadIdx.x & ~31; w0 < 4 * cols; w0 += THREADS) {
        int w = w0 + lane;
        column c = {0, 0, 0, 0};
        if (w < 4 * cols && 32 * w < limit)
            c = read_column(r, head, row0, w);
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
    if (!totals)
        return;
    kept64 = sum_of_block(kept64);
    for (int step = 16; step; step /= 2)
        pairs += __shfl_xor_sync(~0u, pairs, step);
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
    for (int step = 16; step; step /= 2)
        n += __shfl_xor_sync(~0u, n, step);
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
    rows = m->heads * r->groups;
    TRY(gpu_alloc(g, m->heads * (int64_t)sizeof *m->map, &r->map, err));
    TRY(gpu_put(g, (void *)r->map, m->map, m->heads * (int64_t)sizeof *m->map, err));
    TRY(gpu_alloc(g, rows * 4, &r->place, err));
    TRY(gpu_alloc(g, rows * 4, &r->partial, err));
    TRY(gpu_alloc(g, rows * 4, &r->keys, err));
    TRY(gpu_alloc(g, rows * r->cols, &r->state, err));
    TRY(gpu_alloc(g, rows * r->cols * 16, &r->any, err));
    TRY(gpu_sync(g, err)); /* m->map is the caller's */
out:
    return rc;
}

static int launch_counts(struct gpu *g, const struct tile_rows *r, int first, int count,
                         map_totals *totals, struct err *err)
{
    int rc = 0;
    dim3 grid((unsigned)r->groups, (unsigned)count);
    count_tiles<<<grid, THREADS, 0, g->stream>>>(*r, first, totals);
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

/* ---- tiles ---------------------------------------------------------------------------------- */

/* The low two bits of each byte's low half, side by side: nibble i from byte i. */
static __device__ uint32_t squeeze(uint64_t x)
{
    x = (x | x >> 4) & 0x00ff00ff00ff00ffull;
    x = (x | x >> 8) & 0x0000ffff0000ffffull;
    return (uint32_t)(x | x >> 16);
}

/* The word of a thread: its keys 2 q and 2 q + 1 of every 8, of row a and of row b eight below it,
 * 64 keys in each element. */
static __device__ uint64_t tile_word(const uint64_t a[2], const uint64_t b[2], int q)
{
    uint64_t word = 0;
    for (int half = 0; half < 2; half++) {
        uint64_t low = a[half] >> 2 * q & 0x0303030303030303ull;
        uint64_t high = b[half] >> 2 * q & 0x0303030303030303ull;
        word |= (uint64_t)squeeze(low | high << 2) << 32 * half;
    }
    return word;
}

/* Row a of a thread's word, and its q (accel_word in core/accel.h). */
static __device__ int word_row(int t)
{
    return 16 * (t / 32) + t % 32 / 4;
}

/* 128 keys of a row from tile `col`. The four threads of a row read a word each. */
static __device__ void row_bits(const tile_rows &r, int head, int row, int col, uint64_t out[2])
{
    int lane = threadIdx.x & 31, w = 4 * col + (lane & 3);
    uint32_t mine = 0;
    if (row < r.maps.nq)
        mine = key_word(r, map_row(r, head, row), w) & low_bits(key_limit_of(r, row) - 32 * w);
    for (int half = 0; half < 2; half++) {
        uint32_t lo = __shfl_sync(~0u, mine, (lane & ~3) + 2 * half);
        uint32_t hi = __shfl_sync(~0u, mine, (lane & ~3) + 2 * half + 1);
        out[half] = lo | (uint64_t)hi << 32;
    }
}

static __global__ void __launch_bounds__(THREADS) write_tiles(map_tiles t, tile_rows r)
{
    int head = t.first + blockIdx.y, row0 = blockIdx.x * TILE, lane = threadIdx.x & 31;
    int64_t row = head * r.groups + blockIdx.x, own = row - t.first * r.groups;
    int64_t at = t.at[own], bits_at = t.bits_at[own];
    int cols = (int)r.cols, in_tile = word_row(threadIdx.x);

    for (int c0 = 0; c0 < cols; c0 += 32) {
        int state = c0 + lane < cols ? r.state[row * cols + c0 + lane] : EMPTY;
        unsigned some = __ballot_sync(~0u, state != EMPTY), below = (1u << lane) - 1;
        unsigned partial = __ballot_sync(~0u, state == PARTIAL);
        if (threadIdx.x < 32 && state != EMPTY) {
            int64_t to = at + __popc(some & below);
            t.col[to] = c0 + lane;
            t.bits[to] = state == WHOLE ? -1 : (int32_t)(bits_at + __popc(partial & below));
        }
        for (unsigned left = partial; left; left &= left - 1, bits_at++) {
            int col = c0 + __ffs(left) - 1;
            uint64_t a[2], b[2];
            row_bits(r, head, row0 + in_tile, col, a);
            row_bits(r, head, row0 + in_tile + 8, col, b);
            t.words[bits_at * TILE_WORDS + threadIdx.x] = tile_word(a, b, lane & 3);
        }
        at += __popc(some);
    }
}

/* Exclusive sum over the block; *all is the block's. */
static __device__ int sum_before(int x, int *all)
{
    __shared__ int part[THREADS / 32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, sum = x, before = 0;
    for (int step = 1; step < 32; step *= 2) {
        int left = __shfl_up_sync(~0u, sum, step);
        sum += lane >= step ? left : 0;
    }
    __syncthreads();
    if (lane == 31)
        part[warp] = sum;
    __syncthreads();
    *all = 0;
    for (int i = 0; i < THREADS / 32; i++) {
        before += i < warp ? part[i] : 0;
        *all += part[i];
    }
    return before + sum - x;
}

/* The keys that some query of a row of tiles keeps, ascending, then -1 up to a whole tile. */
static __device__ void write_keys(const tile_rows &r, int64_t row, int n_tiles, int32_t *key)
{
    int words = 4 * (int)r.cols, base = 0, all;
    for (int w0 = 0; w0 < words; w0 += THREADS) {
        int w = w0 + threadIdx.x;
        uint32_t bits = w < words ? r.any[row * words + w] : 0;
        int to = base + sum_before(__popc(bits), &all);
        for (; bits; bits &= bits - 1)
            key[to++] = 32 * w + __ffs(bits) - 1;
        base += all;
    }
    for (int i = base + threadIdx.x; i < n_tiles * TILE; i += THREADS)
        key[i] = -1;
}

/* Does the row keep this key? */
static __device__ uint64_t keeps(const tile_rows &r, const uint32_t *row, int limit, int key)
{
    int unit = key / (int)r.maps.bk;
    return key >= 0 && key < limit ? row[unit / 32] >> unit % 32 & 1 : 0;
}

static __global__ void __launch_bounds__(THREADS) write_gathered(map_tiles t, tile_rows r)
{
    __shared__ int32_t keys[TILE];
    int head = t.first + blockIdx.y, q = threadIdx.x & 3;
    int64_t row = head * r.groups + blockIdx.x, own = row - t.first * r.groups, at = t.at[own];
    int n = (int)(t.at[own + 1] - at), row_a = blockIdx.x * TILE + word_row(threadIdx.x);
    int nq = (int)r.maps.nq, limit[2];
    const uint32_t *map[2];

    for (int i = 0; i < 2; i++) {
        int mine = row_a + 8 * i;
        limit[i] = mine < nq ? key_limit_of(r, mine) : 0;
        map[i] = map_row(r, head, min(mine, nq - 1));
    }
    write_keys(r, row, n, t.key + at * TILE);
    __syncthreads();
    for (int k = 0; k < n; k++) {
        uint64_t word = 0, care = 0;
        if (threadIdx.x < TILE)
            keys[threadIdx.x] = t.key[(at + k) * TILE + threadIdx.x];
        __syncthreads();
        for (int eight = 0; eight < 16; eight++)
            for (int i = 0; i < 4; i++) {
                int key = keys[8 * eight + 2 * q + i % 2], bit = 4 * eight + i;
                word |= keeps(r, map[i / 2], limit[i / 2], key) << bit;
            }
        for (int i = 0; i < 2; i++)
            care |= row_a + 8 * i < nq ? 0x3333333333333333ull << 2 * i : 0;
        t.words[(at + k) * TILE_WORDS + threadIdx.x] = word;
        if (__syncthreads_and((word & care) == care) && threadIdx.x == 0)
            t.bits[at + k] = -1;
        else if (threadIdx.x == 0)
            t.bits[at + k] = (int32_t)(at + k);
    }
}

static int launch_tiles(struct gpu *g, const struct map_tiles *t, struct err *err)
{
    int rc = 0;
    dim3 grid((unsigned)t->rows->groups, (unsigned)t->count);
    if (t->gathered)
        write_gathered<<<grid, THREADS, 0, g->stream>>>(*t, *t->rows);
    else
        write_tiles<<<grid, THREADS, 0, g->stream>>>(*t, *t->rows);
    CU_LAUNCHED(err);
out:
    return rc;
}

extern "C" int map_tiles_launch(struct gpu *g, const struct map_tiles *t, struct err *err)
{
    int rc = tile_rows_launch(g, t->rows, t->first, t->count, err);
    return rc ? rc : launch_tiles(g, t, err);
}

/* First tile and first tile with bits of every row, and their numbers at the end, on the host. */
static int place_tiles(struct gpu *g, const struct tile_rows *r, struct map_tiles *t, int64_t *ptr,
                       int64_t *bits_at, struct err *err)
{
    int64_t rows = t->count * r->groups, from = t->first * r->groups;
    int32_t *n = (int32_t *)malloc((size_t)(2 * rows) * sizeof *n);
    int rc = 0;
    if (!n)
        FAIL(err, ERR_NOMEM, "tiles of rows: out of memory");
    TRY(gpu_get(g, n, (t->gathered ? r->keys : r->place) + from, rows * 4, err));
    TRY(gpu_get(g, n + rows, r->partial + from, rows * 4, err));
    ptr[0] = bits_at[0] = 0;
    for (int64_t i = 0; i < rows; i++) {
        int64_t tiles = t->gathered ? (n[i] + TILE - 1) / TILE : n[i];
        ptr[i + 1] = ptr[i] + tiles;
        bits_at[i + 1] = bits_at[i] + (t->gathered ? tiles : n[rows + i]);
    }
out:
    free(n);
    return rc;
}

extern "C" int map_tiles_make(struct gpu *g, const struct tile_rows *r, int first, int count,
                              bool gathered, struct map_tiles *t, struct err *err)
{
    int64_t rows = count * r->groups, n;
    int64_t *ptr = (int64_t *)malloc((size_t)(rows + 1) * sizeof *ptr);
    int64_t *bits_at = (int64_t *)malloc((size_t)(rows + 1) * sizeof *bits_at);
    int rc = 0;

    memset(t, 0, sizeof *t);
    t->rows = r;
    t->first = first;
    t->count = count;
    t->gathered = gathered;
    if (!ptr || !bits_at)
        FAIL(err, ERR_NOMEM, "tiles of rows: out of memory");
    TRY(place_tiles(g, r, t, ptr, bits_at, err));
    n = ptr[rows];
    if (n > INT32_MAX / 4)
        FAIL(err, ERR_RUN, "%lld tiles are too many for one launch", (long long)n);
    TRY(gpu_alloc(g, (rows + 1) * 8, &t->at, err));
    TRY(gpu_alloc(g, (rows + 1) * 8, &t->bits_at, err));
    TRY(gpu_alloc(g, n * 4, &t->bits, err));
    TRY(gpu_alloc(g, bits_at[rows] * TILE_WORDS * 8, &t->words, err));
    if (gathered)
        TRY(gpu_alloc(g, n * TILE * 4, &t->key, err));
    else
        TRY(gpu_alloc(g, n * 4, &t->col, err));
    TRY(gpu_put(g, t->at, ptr, (rows + 1) * 8, err));
    TRY(gpu_put(g, t->bits_at, bits_at, (rows + 1) * 8, err));
    TRY(launch_tiles(g, t, err));
    TRY(gpu_sync(g, err));
    t->csr.ptr = ptr;
    t->csr.col = t->col;
    t->csr.bits = t->bits;
    t->csr.keys = t->key;
    t->csr.words = t->words;
    t->csr.n_bits = bits_at[rows];
    t->csr.on_device = true;
    ptr = NULL;
out:
    free(ptr);
    free(bits_at);
    return rc;
}

extern "C" void map_tiles_free(struct map_tiles *t)
{
    free((void *)t->csr.ptr);
    memset(t, 0, sizeof *t);
}
