/*
 * slashshare.cuh - how many columns and distances of vertical-slash lists (slashmap.cuh) multiply a
 * given share of dense work: MInference with sparsity=. The CPU side is search_lists of
 * sim/methods/minference/minference.c.
 *
 * A fifth of a budget of tokens are columns, the rest distances. The budget is halved for all heads
 * side by side: choose, count the listed blocks and columns, compare. Counts are whole numbers, so
 * that equal scores give equal sizes here and there.
 */
#ifndef LACUNA_SLASHSHARE_CUH
#define LACUNA_SLASHSHARE_CUH

#include "cuda/select/slashmap.cuh"

struct share_search {          /* of a head */
    int lo, hi;                /* the budget lies between */
    double below, above;       /* shares of the budgets lo - 1 and hi */
    unsigned long long listed; /* keys of the lists of all 64-row blocks */
};

/* A warp per 64 rows: add what the lists hold. */
static __global__ void slash_listed(const slash_lists a, share_search *search)
{
    extern __shared__ uint32_t covers[];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, head = blockIdx.y;
    int group = blockIdx.x * (blockDim.x >> 5) + warp, end, blocks;
    uint32_t *cover = covers + warp * a.words;
    const uint32_t *cols = a.cols + (int64_t)head * a.stride;

    if (group >= (a.n + SLASH_ROWS - 1) / SLASH_ROWS)
        return;
    if (a.both) {
        end = a.n;
        blocks = cover_both(a, head, group * SLASH_ROWS, cover);
    } else {
        end = cover_distances(a, head, (group + 1) * SLASH_ROWS, cover, &blocks);
        end = min(end, a.n);
    }
    int columns = 0;
    for (int w = lane; w < a.words; w += 32)
        columns += __popc(cols[w] & ~cover[w] & below(w, end));
    columns = __reduce_add_sync(~0u, columns);
    if (lane == 0)
        atomicAdd(&search[head].listed, (unsigned long long)(SLASH_ROWS * blocks + columns));
}

/* A thread per head: take the count of the budget that was tried, and try the next one; after the
 * last, the nearer of the two that are left. An empty budget multiplies nothing, and five times the
 * prompt everything. */
static __global__ void share_step(share_search *search, int *want, int heads, int n, double share,
                                  double dense, bool begin)
{
    int head = blockIdx.x * blockDim.x + threadIdx.x;
    if (head >= heads)
        return;
    share_search s = begin ? share_search{1, 5 * n, 0, 1, 0} : search[head];
    int tried = s.lo + (s.hi - s.lo) / 2;
    if (!begin && s.lo < s.hi) {
        double work = (double)s.listed / SLASH_ROWS / dense;
        if (work < share) {
            s.lo = tried + 1;
            s.below = work;
        } else {
            s.hi = tried;
            s.above = work;
        }
    }
    s.listed = 0;
    search[head] = s;
    bool upper = fabs(s.above - share) <= fabs(s.below - share);
    int tokens = s.lo < s.hi ? s.lo + (s.hi - s.lo) / 2 : upper ? s.lo : s.lo - 1;
    want[2 * head] = min(tokens / 5, n);
    want[2 * head + 1] = min(tokens - tokens / 5, n);
}

/* Fill a->want, which comes from the arena, from the scores that are there; 0 < share < 1. */
static int share_sizes(struct gpu *g, slash_lists *a, double share, struct err *err)
{
    double nb = ceil((double)a->n / SLASH_ROWS), dense = a->both ? nb * nb : nb * (nb + 1) / 2;
    int rc = 0, warps = 4, bytes = warps * a->words * 4, threads = 128;
    unsigned groups = (unsigned)(((int)nb + warps - 1) / warps);
    unsigned steps = (unsigned)((a->heads + threads - 1) / threads);
    share_search *search = NULL;
    int *want = NULL;

    TRY(gpu_alloc(g, a->heads * (int64_t)sizeof *search, &search, err));
    TRY(gpu_alloc(g, a->heads * 8LL, &want, err));
    a->want = want;
    CU(err, cudaFuncSetAttribute((const void *)slash_listed,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    share_step<<<steps, threads, 0, g->stream>>>(search, want, a->heads, a->n, share, dense, true);
    CU_LAUNCHED(err);
    for (int left = 5 * a->n - 1; left > 0; left /= 2) {
        TRY(slash_choose(g, *a, err));
        slash_listed<<<dim3(groups, a->heads), 32 * warps, bytes, g->stream>>>(*a, search);
        CU_LAUNCHED(err);
        share_step<<<steps, threads, 0, g->stream>>>(search, want, a->heads, a->n, share, dense,
                                                     false);
        CU_LAUNCHED(err);
    }
out:
    return rc;
}

#endif
