/*
 * oracle.cu - the oracle's masks by count and by mass (sim/methods/oracle/oracle.c has the rules
 * and the reference): entries of every row, or units of every query block.
 *
 * Some tiles of rows at a time, whose scores against all keys fit into half of L2: scores from bf16
 * products summed in float; of units the masses; then a thread block per row, or per query block,
 * finds its cut by bisection. What an oracle costs says nothing about a method, so the passes are
 * simple ones.
 *
 * One Q K^T, 4 N^2 bytes written and read per head.
 */
#include "core/intmath.h"
#include "cuda/methods/oracle/oracle_cut.cuh"
#include "cuda/methods/oracle/oracle_scores.cuh"
#include "cuda/select/select.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct oracle_state {
    oracle_args args;
    int tiles, d; /* tiles of a launch */
    int at_once;  /* heads that are chosen for at once, with one cut each; 0: rows, or blocks */
};

template <int D>
static int launch_scores(struct gpu *g, const oracle_args &a, int n, struct err *err)
{
    int rc = 0, smem = 2 * ORACLE_TILE * D * 2;
    dim3 grid((unsigned)ceil_div(a.nk, ORACLE_TILE), (unsigned)n);
    CU(err, cudaFuncSetAttribute((const void *)oracle_score_tiles<D>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
    oracle_score_tiles<D><<<grid, ORACLE_THREADS, smem, g->stream>>>(a);
    CU_LAUNCHED(err);
out:
    return rc;
}

#define SHARED_BYTES (220 * 1024) /* of a thread block, beside what it declares */

/* Values of a row, padded; bytes of shared memory for a thread block that has them there. */
static int64_t row_values(int64_t n)
{
    return ceil_div(n, KEY_STEP) * KEY_STEP;
}

static int64_t key_bytes(const oracle_args &a)
{
    return 4 * (KEY_FEW + (a.in_shared ? row_values(a.units) : 0));
}

/* From the scores of n tiles to their rows of the map. */
static int launch_choice(struct gpu *g, const oracle_args &a, int n, struct err *err)
{
    int64_t each = a.bk < ORACLE_THREADS ? ORACLE_THREADS / a.bk : 1; /* units of a thread block */
    int rc = 0, smem = (int)key_bytes(a);
    CU(err, cudaFuncSetAttribute((const void *)oracle_choose_rows,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
    CU(err, cudaFuncSetAttribute((const void *)oracle_choose_units,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
    if (a.bq == 1 && a.bk == 1 && !a.rule.head_wide) {
        oracle_choose_rows<<<(unsigned)(n * ORACLE_TILE), WIDE, smem, g->stream>>>(a);
        CU_LAUNCHED(err);
        return 0;
    }
    oracle_row_norms<<<(unsigned)(n * ORACLE_TILE), WIDE, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
    oracle_unit_masses<<<dim3((unsigned)ceil_div(a.units, each), (unsigned)(n * a.per_tile)),
                         ORACLE_THREADS, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
    if (a.rule.head_wide)
        return 0;
    oracle_choose_units<<<(unsigned)(n * a.per_tile), WIDE, smem, g->stream>>>(a);
    CU_LAUNCHED(err);
out:
    return rc;
}

/* The tiles [from, to); with head-wide choices their masses follow each other. */
static int launch_tiles(struct gpu *g, const oracle_state *s, int from, int to, struct err *err)
{
    oracle_args a = s->args;
    int rc = 0;
    for (a.tile0 = from; a.tile0 < to; a.tile0 += s->tiles) {
        int n = to - a.tile0 < s->tiles ? to - a.tile0 : s->tiles;
        if (s->at_once)
            a.mass = s->args.mass + (a.tile0 - from) * a.per_tile * a.mass_pitch;
        TRY(s->d == 128 ? launch_scores<128>(g, a, n, err) : launch_scores<64>(g, a, n, err));
        TRY(launch_choice(g, a, n, err));
    }
out:
    return rc;
}

static int launch_heads(struct gpu *g, const oracle_state *s, struct err *err)
{
    const oracle_args &a = s->args;
    int rc = 0, smem = 4 * KEY_FEW;
    CU(err, cudaFuncSetAttribute((const void *)oracle_choose_head,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
    for (int h = 0; h < a.heads; h += s->at_once) {
        int n = a.heads - h < s->at_once ? a.heads - h : s->at_once;
        TRY(launch_tiles(g, s, h * a.row_tiles, (h + n) * a.row_tiles, err));
        oracle_choose_head<<<n, WIDE, smem, g->stream>>>(a, h);
        CU_LAUNCHED(err);
    }
out:
    return rc;
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const oracle_state *s = (const oracle_state *)job->state;
    int rc = 0;
    if (s->at_once)
        TRY(launch_heads(g, s, err));
    else
        TRY(launch_tiles(g, s, 0, s->args.heads * s->args.row_tiles, err));
out:
    return rc;
}

/* ---- the table's functions ------------------------------------------------------------------ */

#define HEAD_MASSES ((int64_t)1 << 29) /* of a head with one cut */
#define MASS_BYTES ((int64_t)1 << 30)  /* of some heads */

/* Masses of a head, padded. */
static int64_t head_masses(const struct select_problem *p)
{
    const struct oracle_rule *r = &select_rule(p, 0)->oracle;
    int64_t rows = ceil_div(p->nq, ORACLE_TILE) * (ORACLE_TILE / r->bq);
    return rows * row_values(ceil_div(p->nk, r->bk));
}

static bool fits(const struct select_problem *p, char why[160])
{
    const struct oracle_rule *r = &select_rule(p, 0)->oracle;
    bool in_tile = r->bq == p->nq ? r->bq <= ORACLE_TILE : ORACLE_TILE % r->bq == 0;
    if (p->d != 64 && p->d != 128)
        snprintf(why, 160, "the GPU side has head dimensions 64 and 128, not %d", p->d);
    else if (!(p->scale > 0))
        snprintf(why, 160, "the GPU side has positive scales");
    else if (r->by == ORACLE_MASS && r->alpha > 1 - 1e-5)
        snprintf(why, 160, "the GPU side has alpha up to 1 - 1e-5: beyond it rounding decides");
    else if (!in_tile)
        snprintf(why, 160, "the GPU side has units of 1, 2, 4, ... 128 rows, not %lld",
                 (long long)r->bq);
    else if (r->head_wide && head_masses(p) > HEAD_MASSES)
        snprintf(why, 160, "the GPU side of one choice for a head has up to %lld units",
                 (long long)HEAD_MASSES);
    else if (r->bk > 1 && r->bq < 16 && r->bq < p->nq)
        snprintf(why, 160, "the GPU side has units of several keys from 16 rows on");
    else
        return true;
    return false;
}

static void set_args(const struct select_job *job, oracle_args *a)
{
    const struct select_problem *p = &job->problem;
    a->q = (const uint4 *)p->q;
    a->k = (const uint4 *)p->k;
    a->nq = p->nq;
    a->nk = p->nk;
    a->pitch = row_values(p->nk);
    a->heads = p->heads;
    a->per_kv = p->heads / p->kv_heads;
    a->causal = p->causal;
    a->row_tiles = (int)ceil_div(p->nq, ORACLE_TILE);
    a->rule = select_rule(p, 0)->oracle;
    a->bq = (int)a->rule.bq;
    a->bk = a->rule.bk;
    a->per_tile = ORACLE_TILE / a->bq;
    a->groups = (int)job->lists.groups;
    a->units = (int)job->lists.units;
    a->words = (int)job->lists.words;
    a->mass_pitch = row_values(a->units);
    a->in_shared = 4 * (KEY_FEW + a->mass_pitch) <= SHARED_BYTES;
    a->scale_log2 = (float)(p->scale * M_LOG2E);
    a->map = job->lists.map;
}

/* Tiles whose scores take half of L2, at least two so that every multiprocessor has a row. */
static int tiles_at_once(const struct gpu *g, const oracle_args &a)
{
    int64_t tile = ORACLE_TILE * a.pitch * 4, n = g->l2_bytes / 2 / tile, all;
    all = (int64_t)a.heads * a.row_tiles;
    n = n < 2 ? 2 : n < 256 ? n : 256;
    return (int)(n < all ? n : all);
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    oracle_state *s = (oracle_state *)calloc(1, sizeof *s);
    const struct oracle_rule *r = &select_rule(&job->problem, 0)->oracle;
    int64_t masses;
    int rc = 0;

    job->state = s;
    if (!s)
        FAIL(err, ERR_NOMEM, "oracle on the GPU: out of memory");
    TRY(select_lists_init(g, job, r->bq, r->bk, err));
    set_args(job, &s->args);
    s->d = job->problem.d;
    s->tiles = tiles_at_once(g, s->args);
    TRY(gpu_alloc(g, (int64_t)s->tiles * ORACLE_TILE * s->args.pitch * 4, &s->args.score, err));
    if (r->bq == 1 && r->bk == 1 && !r->head_wide)
        return 0;
    TRY(gpu_alloc(g, (int64_t)s->tiles * ORACLE_TILE * 8, &s->args.norm, err));
    masses = (int64_t)s->tiles * s->args.per_tile * s->args.mass_pitch;
    if (r->head_wide) {
        int64_t head = head_masses(&job->problem), n = MASS_BYTES / 4 / head;
        s->at_once = (int)(n < 1 ? 1 : n < s->args.heads ? n : s->args.heads);
        masses = s->at_once * head;
    }
    TRY(gpu_alloc(g, masses * 4, &s->args.mass, err));
out:
    return rc;
}

extern "C" const struct select_method select_oracle = {
    "oracle", fits, init, launch, NULL, NULL, NULL, false, NULL,
};
