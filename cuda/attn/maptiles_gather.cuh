/*
 * maptiles_gather.cuh - tiles of gathered keys: which keys, and their bits side by side
 * (maptiles.cu).
 */
#ifndef LACUNA_MAPTILES_GATHER_CUH
#define LACUNA_MAPTILES_GATHER_CUH

#include "cuda/attn/maptiles_rows.cuh"
#include "cuda/blocksum.cuh"

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

/* The keys that some query of a row of tiles keeps, ascending, then -1 up to a whole tile; and for
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
    for (int i = base + threadIdx.x; i < end; i += THREADS)
        key[i] = -1;
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

#endif
