/*
 * pairwords.cuh - words of a map of single keys (select.h) for patterns of equal steps, and how
 * much memory such maps may take.
 */
#ifndef LACUNA_PAIRWORDS_CUH
#define LACUNA_PAIRWORDS_CUH

#include "cuda/select/maprows.cuh"
#include "cuda/select/select.h"

#include <stdio.h>
#include <stdlib.h>

/* Of all heads of a call. Larger ones are made on the host, as compact lists. */
#define PAIR_MAP_BYTES (9LL << 29)
#define PAIR_TOKENS (1 << 30) /* that sums of two positions and steps fit into an int */

/* The keys first, first + step, ... below `end`, as bits of the word of keys [key, key + 32). */
static __device__ __forceinline__ uint32_t every_key(int first, int step, int end, int key)
{
    uint32_t bits = 0;
    if (end <= key || first >= key + 32)
        return 0;
    int past = key - first, to = min(end - key, 32);
    int from = past <= 0 ? -past : (step - past % step) % step;
    if (step == 1)
        return from < to ? ~0u >> (32 - (to - from)) << from : 0;
    for (; from < to; from += step)
        bits |= 1u << from;
    return bits;
}

static inline bool pair_maps_fit(const struct select_problem *p, char why[160])
{
    int64_t heads = p->of_heads ? p->of_heads : p->heads;
    bool fit = p->nq <= PAIR_TOKENS && p->nk <= PAIR_TOKENS &&
               (double)heads * (double)p->nq * (double)p->nk / 8 <= (double)PAIR_MAP_BYTES;
    if (!fit)
        snprintf(why, 160, "a bit for every pair takes more than %.1f GB",
                 (double)PAIR_MAP_BYTES * 1e-9);
    return fit;
}

/* Memory of a map of pairs, and what kernels over its rows are told: *a, the job's state, whose
 * rule is the caller's. */
template <class A>
static int pair_map_init(struct gpu *g, struct select_job *job, A **a, struct err *err)
{
    const struct select_problem *p = &job->problem;
    int rc = 0;

    job->state = *a = (A *)calloc(1, sizeof **a);
    if (!*a)
        FAIL(err, ERR_NOMEM, "%s on the GPU: out of memory", job->method->name);
    TRY(select_lists_init(g, job, 1, 1, err));
    (*a)->nq = p->nq;
    (*a)->nk = p->nk;
    (*a)->heads = p->heads;
    (*a)->map = map_rows_of(&job->lists);
out:
    return rc;
}

#endif
