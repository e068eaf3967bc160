/*
 * sample_tokens.cu - the earlier algorithm of SampleAttention (arXiv:2406.15486 v1 and v2): exact
 * rows, evenly strided from the last one back (lastrows.cuh); the columns that hold a share of
 * their mass, one by one; a window, and a few dense last rows. The CPU side is
 * sim/methods/sampleattention/sampleattention_v2.c.
 *
 * 4 R N d FLOP for R rows, N^2 / 8 bytes written per head.
 */
#include "core/intmath.h"
#include "cuda/methods/sampleattention/sample_tokens.h"
#include "cuda/select/lastrows.cuh"
#include "cuda/select/maprows.cuh"
#include "cuda/select/wide.cuh"

#include <stdlib.h>

struct token_args {
    int64_t nq, nk, window, bottom;
    double alpha;
    last_rows rows;
    int *number;    /* [heads] columns */
    uint32_t *cols; /* [heads][words] */
    map_rows map;
};

/* Head blockIdx.x: how many columns, by mass descending, reach the share. */
static __global__ void __launch_bounds__(WIDE) count_columns(const token_args a)
{
    const double *score = a.rows.ver + blockIdx.x * a.nk;
    auto value = [=](int x) { return (float)score[x]; };
    int64_t number = a.nk;
    if (a.alpha < 1) {
        int all;
        wide_list<decltype(value)> list(value, (int)a.nk);
        wide_cut c = wide_prefix(list, a.alpha * list.mass(0, &all));
        number = min((int64_t)c.above + c.m + 1, a.nk);
    }
    if (threadIdx.x == 0)
        a.number[blockIdx.x] = (int)number;
}

static __global__ void __launch_bounds__(WIDE) choose_columns(const token_args a)
{
    const double *score = a.rows.ver + blockIdx.x * a.nk;
    uint32_t *cols = a.cols + blockIdx.x * (int64_t)a.map.words;
    auto value = [=](int x) { return (float)score[x]; };
    wide_cut c;
    int seen = 0;
    {
        wide_list<decltype(value)> list(value, (int)a.nk);
        c = wide_largest(list, a.number[blockIdx.x]);
    }
    for (int x0 = 0; x0 < a.map.words * 32; x0 += WIDE) {
        int x = x0 + (int)threadIdx.x;
        bool valid = x < a.nk;
        uint32_t word = __ballot_sync(~0u, wide_has(c, valid ? value(x) : 0, valid, &seen));
        if (threadIdx.x % 32 == 0 && x / 32 < a.map.words)
            cols[x / 32] = word;
    }
}

/* Bits of word w from x on. */
static __device__ __forceinline__ uint32_t bits_from(int w, int64_t x)
{
    int64_t n = x - 32 * (int64_t)w;
    return n <= 0 ? ~0u : n >= 32 ? 0 : ~0u << n;
}

/* A warp per row. */
static __global__ void fill_tokens(const token_args a, int64_t rows)
{
    int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5;
    if (row >= rows)
        return;
    int64_t r = row % a.nq, pos = r + a.nk - a.nq, near = max(pos + 1 - a.window, (int64_t)0);
    const uint32_t *cols = a.cols + row / a.nq * a.map.words;
    near = r >= a.nq - a.bottom ? 0 : near;
    fill_row_words(a.map, row,
                   [&](int w) { return (cols[w] | bits_from(w, near)) & ~bits_from(w, pos + 1); });
}

int sample_tokens_launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const token_args &a = *(const token_args *)job->state;
    int rc = 0;
    TRY(last_rows_launch(g, a.rows, job->problem.d, err));
    count_columns<<<job->problem.heads, WIDE, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
    choose_columns<<<job->problem.heads, WIDE, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
    fill_tokens<<<(unsigned)ceil_div(job->lists.rows, 8), 256, 0, g->stream>>>(a, job->lists.rows);
    CU_LAUNCHED(err);
out:
    return rc;
}

int sample_tokens_init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct sample_rule *r = &select_rule(p, 0)->sample;
    token_args *a = (token_args *)calloc(1, sizeof *a);
    int rc = 0;

    job->state = a;
    if (!a)
        FAIL(err, ERR_NOMEM, "sampleattention on the GPU: out of memory");
    TRY(select_lists_init(g, job, 1, 1, err));
    a->nq = p->nq;
    a->nk = p->nk;
    a->window = r->window;
    a->bottom = r->bottom;
    a->alpha = r->alpha;
    a->map = map_rows_of(&job->lists);
    TRY(last_rows_init(g, p, (int)ceil_div(p->nq, r->step), 1, &a->rows, err));
    a->rows.step = (int)r->step;
    a->rows.sla = NULL;
    TRY(gpu_alloc(g, p->heads * 4, &a->number, err));
    job->lists.own = a->number;
    job->lists.own_bytes = 4;
    TRY(gpu_alloc(g, p->heads * job->lists.words * 4, &a->cols, err));
out:
    return rc;
}
