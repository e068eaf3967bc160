/*
 * maptiles_once.cuh - tiles in place of maps of single pairs, which are as large as the tiles' bits
 * and are read once only (maptiles.cu): a tile's bits go where they would if every tile had some,
 * so that nobody has to know how many there are before.
 */
#ifndef LACUNA_MAPTILES_ONCE_CUH
#define LACUNA_MAPTILES_ONCE_CUH

#include "cuda/attn/maptiles_rows.cuh"

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

#endif
