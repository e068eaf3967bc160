/*
 * hyperattention.cu - HyperAttention's choice (cuda/own/own.h has it and the reference), and the
 * pairs that have a weight, bit by bit, for counts and recall: its attention (cuda/own/hashed.c)
 * reads the orders and the draws, and no mask. So these alone are timed as the choice. N^2 / 8
 * bytes are written per head for the pairs.
 */
#include "cuda/own/own.h"
#include "cuda/select/method.cuh"

#define MAP_BYTES (64LL << 30) /* of all heads: 32 heads of 128K tokens */
#define ROW_BYTES (200 << 10)  /* of shared memory */

struct hyper_args : head_args {
    hashed_choice c;
    int32_t *place; /* [heads][q_all] of every query in the order of its square */
};

/* Grid (squares, heads). */
static __global__ void find_places(const __grid_constant__ hyper_args a)
{
    const hashed_square &s = a.c.squares[blockIdx.x];
    int64_t at = blockIdx.y * a.c.q_all + s.q_at;
    for (int e = threadIdx.x; e < s.nq; e += blockDim.x)
        a.place[at + a.c.q_order[at + e] - s.q0] = e;
}

static __device__ __forceinline__ void set_bit(uint32_t *row, int key)
{
    atomicOr(row + key / 32, 1u << key % 32);
}

/* The keys of query i in a square, by one warp. */
static __device__ __forceinline__ void add_square(const hyper_args &a, uint32_t *row, int64_t head,
                                                  int i, const hashed_square &s)
{
    const int32_t *order = a.c.k_order + head / a.c.per_kv * a.c.k_all + s.k_at;
    int block = a.place[head * a.c.q_all + s.q_at + i - s.q0] / s.per, lane = threadIdx.x & 31;
    int lo = block * s.block, hi = (int)min((int64_t)s.nk, lo + (int64_t)s.block);
    for (int e = lo + lane; e < hi; e += 32)
        set_bit(row, order[e]);
    if (s.draw_at < 0)
        return;
    const int2 *drawn = a.c.drawn + head * a.c.draws + s.draw_at;
    for (int e = lane; e < (int)a.c.rule.samples; e += 32)
        set_bit(row, drawn[e].x);
}

/* A warp per row, whose bits are put together in shared memory. */
static __global__ void map_pairs(const __grid_constant__ hyper_args a)
{
    extern __shared__ uint32_t shared[];
    uint32_t *bits = shared + threadIdx.x / 32 * a.map.words;
    int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5, head = row / a.nq;
    int i = (int)(row % a.nq), lane = threadIdx.x & 31;
    own_walk walk = {0, a.nq, 1};
    if (row >= a.heads * a.nq)
        return;
    for (int w = lane; w < a.map.words; w += 32)
        bits[w] = 0;
    __syncwarp();
    if (!a.c.causal)
        add_square(a, bits, head, i, a.c.squares[0]);
    for (int at = 0; a.c.causal && (at = own_walk_next(a.c.node, i, &walk)) >= 0;)
        add_square(a, bits, head, i, a.c.squares[at]);
    __syncwarp();
    int lo = (int)walk.lo, hi = a.c.causal ? i + 1 : 0; /* of its exact range */
    fill_row_words(a.map, row, [&](int w) { return bits[w] | every_key(lo, 1, hi, 32 * w); });
}

static bool fits(const struct select_problem *p, char why[160])
{
    int64_t heads = p->of_heads ? p->of_heads : p->heads;
    if (!dims_fit(p, why))
        return false;
    if ((double)heads * (double)p->nq * (double)p->nk / 8 > (double)MAP_BYTES)
        return refuse(why, "a bit for every pair takes more than %.1f GB",
                      (double)MAP_BYTES * 1e-9);
    if (p->nk / 8 + 4 > ROW_BYTES)
        return refuse(why, "a bit for every key takes more than %d KB", ROW_BYTES >> 10);
    return hashed_choice_fits(&select_rule(p, 0)->hashed, p->nq, p->nk, p->causal, why);
}

static bool is_dense(const struct select_problem *p)
{
    return !own_squares_any(&select_rule(p, 0)->hashed, p->nq, p->causal);
}

/* Numbers of the heads: as given, or one after the other where nobody gave any. */
static int find_choice(struct gpu *g, const struct select_problem *p, hashed_choice *c,
                       struct err *err)
{
    const struct own_hashed *r = &select_rule(p, 0)->hashed;
    struct attn_problem problem = {p->heads, p->kv_heads, p->d,      p->nq,
                                   p->nk,    p->scale,    p->causal, ATTN_DENSE};
    OWN(free_at) int32_t *head = (int32_t *)malloc((size_t)p->heads * sizeof *head);
    OWN(own_squares_free) struct own_squares at = {};

    if (!head)
        return err_set(err, ERR_NOMEM, "hyperattention on the GPU: out of memory");
    for (int h = 0; h < p->heads; h++) {
        const int32_t *given = (const int32_t *)select_given(p, h);
        head[h] = given ? *given : h;
    }
    PASS_ON(own_squares_make(r, p->nq, p->nk, p->causal, &at, err));
    return hashed_choice_init(g, &problem, p->q, p->k, r, head, &at, c, err);
}

static int choose(struct gpu *g, const struct select_job *job, struct err *err)
{
    return hashed_choice_launch(g, &((const hyper_args *)job->state)->c, err);
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    hyper_args *a = NULL;

    job->choose = choose;
    if (p->no_mask) {
        job->state = a = (hyper_args *)calloc(1, sizeof *a);
        if (!a)
            return err_set(err, ERR_NOMEM, "hyperattention on the GPU: out of memory");
        return find_choice(g, p, &a->c, err);
    }
    PASS_ON(method_init(g, job, 1, 1, &a, err));
    PASS_ON(find_choice(g, p, &a->c, err));
    return take(g, err, &a->place, a->heads * a->c.q_all);
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const hyper_args &a = *(const hyper_args *)job->state;
    int warps = row_warps(4 * a.map.words), bytes = 4 * a.map.words * warps;
    PASS_ON(choose(g, job, err));
    PASS_ON_CU(err, run_kernel(g->stream, find_places, dim3(a.c.n, a.heads), 256, 0, a));
    return CU_STATUS(err, run_kernel(g->stream, map_pairs, ceil_div(a.heads * a.nq, warps),
                                     32 * warps, bytes, a));
}

extern "C" const struct select_method select_hyperattention = {
    "hyperattention", fits, init, launch, is_dense, NULL, false, NULL,
};
