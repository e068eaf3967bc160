/*
 * streaming.cu - window + sink: the lists of the 128 x 128 tiles that a band touches, and which of
 * them it cuts. Both follow from sink, window and dense last rows; q and k are not read. Serves
 * every method whose mask is a band (core/mask.h, MASK_BAND) that depends on its parameters alone:
 * streaming, and the A-shape and Tri-shape of minference.
 *
 * A warp per row of tiles, O(tiles).
 */
#include "cuda/select/maprows.cuh"

#include <stdio.h>

#define TILE 128 /* as attention takes it */

struct band_args {
    int64_t nq, nk, sink, window, dense_from;
    int causal, groups, rows;
    map_rows map;
    uint32_t *partial; /* as the map: kept tiles that the band cuts */
};

/* Does the band keep a pair of the tile (*some), and every allowed one (*all)? */
static __device__ void judge_tile(const band_args &a, int64_t i0, int64_t k0, bool *some, bool *all)
{
    int64_t i1 = min(i0 + TILE, a.nq) - 1, k1 = min(k0 + TILE, a.nk) - 1, shift = a.nk - a.nq;
    int64_t p0 = i0 + shift, p1 = i1 + shift, back = a.causal ? 0 : -(a.window - 1);
    *some = *all = false;
    if (k0 >= a.nk || (a.causal && k0 > p1))
        return;
    bool near = p1 - k0 >= back && p0 - k1 < a.window;
    *some = near || k0 < a.sink || i1 >= a.dense_from;
    /* Neither sink columns nor dense rows need the window. */
    int64_t p_last = min(i1, a.dense_from - 1) + shift, k_first = max(k0, a.sink);
    *all = p_last < p0 || k_first > k1 ||
           (p_last - k_first < a.window && (a.causal || k1 - p0 < a.window));
}

static __global__ void band_tiles(const band_args a)
{
    int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5;
    if (row >= a.rows)
        return;
    fill_row(a.map, row, [&](int j) {
        bool some, all;
        judge_tile(a, row % a.groups * TILE, (int64_t)j * TILE, &some, &all);
        uint32_t cut = __ballot_sync(~0u, some && !all);
        if (j % 32 == 0)
            a.partial[row * a.map.words + j / 32] = cut;
        return some;
    });
}

static bool fits(const struct select_problem *p, char why[160])
{
    if (!p->shape)
        snprintf(why, 160, "the GPU side has windows and sinks, no dilated windows");
    return p->shape != NULL;
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const band_args &a = *(const band_args *)job->state;
    int rc = 0;
    band_tiles<<<(a.rows + 7) / 8, 256, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
out:
    return rc;
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    struct select_lists *l = &job->lists;
    band_args *a = (band_args *)calloc(1, sizeof *a);
    int rc = 0;

    job->state = a;
    if (!a)
        FAIL(err, ERR_NOMEM, "band on the GPU: out of memory");
    TRY(select_lists_init(g, job, TILE, TILE, err));
    TRY(gpu_alloc(g, l->rows * l->words * 4, &l->partial, err));
    a->nq = p->nq;
    a->nk = p->nk;
    a->sink = p->shape->sink;
    a->window = p->shape->window;
    a->dense_from = p->shape->dense_from;
    a->causal = p->causal;
    a->groups = (int)l->groups;
    a->rows = (int)l->rows;
    a->map = map_rows_of(l);
    a->partial = l->partial;
out:
    return rc;
}

extern "C" const struct select_method select_streaming = {
    "streaming", fits, init, launch, NULL, NULL, true, NULL, false, NULL,
};
