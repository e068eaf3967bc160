/*
 * skip_softmax.cu - skip-softmax: tiles of 128 keys that an attention kernel walks from left to
 * right, and leaves out where no row of the query tile comes near its maximum so far. The CPU side
 * is sim/methods/skip_softmax.c.
 *
 * A thread block per query tile, a warp per 16 rows of it; scores from bf16 products summed in
 * float, compared in double. One Q K^T by mma.sync, nothing but bits written.
 */
#include "cuda/mma.cuh"
#include "cuda/select/method.cuh"
#include "cuda/warp.cuh"

#define KEYS 128

struct skip_state : head_args {
    struct skip_rule rule;
    double scale;
};

/* The largest scores of a thread's two rows, over the four lanes of each. seen: keys of the tile
 * that the rows see, or more. */
static __device__ __forceinline__ void row_tops(const float (&acc)[1][KEYS / 8][4],
                                                const int (&seen)[2], float (&top)[2])
{
    int first = 2 * (threadIdx.x & 3);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = -INFINITY;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (8 * n + first + e < seen[r])
                    top[r] = fmaxf(top[r], acc[0][n][2 * r + e]);
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
    }
}

/* Does a row want a tile with this maximum? A row without a key so far is no reason to skip. */
static __device__ __forceinline__ bool wants(const skip_state &s, float tile, float so_far)
{
    double top = tile * s.scale, most = so_far * s.scale;
    if (s.rule.calib)
        return top > fmax(most, top) + s.rule.bound || (tile == -INFINITY && so_far == -INFINITY);
    return !(top < most + s.rule.bound);
}

template <int D, int ROWS>
static __global__ void __launch_bounds__(2 * ROWS, 2) walk_tiles(const skip_state s)
{
    extern __shared__ __align__(128) uint8_t shared[];
    constexpr int TILE = KEYS * D * 2;
    const int group = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, row = threadIdx.x >> 5 << 4;
    const int nq = (int)s.nq, nk = (int)s.nk, row0 = group * ROWS,
              first = row0 + row + (threadIdx.x & 31) / 4;
    uint32_t rows = shared_addr(shared), keys = rows + ROWS * D * 2, word = 0;
    const uint4 *k = s.k + head / s.per_kv * s.nk * (D / 8);
    int end = s.causal ? min(max(min(row0 + ROWS, nq) + nk - nq, 0), nk) : nk;
    int tiles = (end + KEYS - 1) / KEYS;
    float most[2] = {-INFINITY, -INFINITY};

    copy_tile<D, ROWS, 2 * ROWS>(rows, s.q + head * s.nq * (D / 8), row0, nq);
    copy_tile<D, KEYS, 2 * ROWS>(keys, k, 0, nk);
    copy_commit();
#pragma unroll 1
    for (int t = 0; t < s.map.words * 32; t++) {
        bool keep = false;
        if (t < tiles) {
            float acc[1][KEYS / 8][4] = {{{0}}}, top[2];
            int seen[2], mine = 0;
            copy_wait<0>();
            __syncthreads();
            if (t + 1 < tiles)
                copy_tile<D, KEYS, 2 * ROWS>(keys + (t + 1) % 2 * TILE, k, (t + 1) * KEYS, nk);
            copy_commit();
            add_scores<D, 1, KEYS / 8>(rows, row, keys + t % 2 * TILE, 0, acc);
            for (int r = 0; r < 2; r++)
                seen[r] = min(s.causal ? first + 8 * r + nk - nq + 1 : nk, nk) - t * KEYS;
            row_tops(acc, seen, top);
            for (int r = 0; r < 2; r++)
                mine |= first + 8 * r < nq && wants(s, top[r], most[r]);
            keep = __syncthreads_or(mine);
            for (int r = 0; r < 2 && keep; r++)
                most[r] = fmaxf(most[r], top[r]);
        }
        word |= (uint32_t)keep << t % 32;
        if (t % 32 == 31) {
            if (threadIdx.x == 0)
                s.map.map[((int64_t)head * s.groups + group) * s.map.words + t / 32] = word;
            word = 0;
        }
    }
}

template <int D, int ROWS> static int launch_as(struct gpu *g, const skip_state *s, struct err *err)
{
    return CU_STATUS(err, (run_kernel(g->stream, walk_tiles<D, ROWS>, dim3(s->groups, s->heads),
                                      2 * ROWS, (ROWS + 2 * KEYS) * D * 2, *s)));
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const skip_state *s = (const skip_state *)job->state;
    if (s->rule.bq == 64)
        return (s->d == 128 ? launch_as<128, 64> : launch_as<64, 64>)(g, s, err);
    return (s->d == 128 ? launch_as<128, 128> : launch_as<64, 128>)(g, s, err);
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct skip_rule *r = &select_rule(p, 0)->skip;
    skip_state *s = NULL;
    PASS_ON(method_init(g, job, r->bq, KEYS, &s, err));
    s->rule = *r;
    s->scale = p->scale;
    return 0;
}

extern "C" const struct select_method select_skip_softmax = {
    "skip-softmax", dims_fit, init, launch, NULL, NULL, false, NULL,
};
