/*
 * hashed_choice.c - tables and memory of HyperAttention's choice (own.h). Directions are made on
 * the host, once, as the published code makes them with the layer: so they are those of the CPU
 * side to the last bit.
 */
#include "cuda/own/own.h"

#include "core/intmath.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST_DRAWS (8LL << 20) /* of a head */

bool hashed_choice_fits(const struct own_hashed *r, int64_t nq, int64_t nk, bool causal,
                        char why[160])
{
    struct own_squares at;
    struct err e = {0};
    int64_t draws = 0;
    int rc = own_squares_make(r, nq, nk, causal, &at, &e);
    for (int64_t i = 0; i < at.n && !rc; i++)
        draws += at.square[i].draws ? r->samples : 0;
    own_squares_free(&at);
    if (rc)
        snprintf(why, 160, "%.150s", e.msg);
    else if (draws > MOST_DRAWS)
        snprintf(why, 160, "the kernels draw at most %lld keys for a head, not %lld",
                 (long long)MOST_DRAWS, (long long)draws);
    return !rc && draws <= MOST_DRAWS;
}

/* Describe block i of the causal recursion to the kernels: where its tokens and draws begin. */
static struct hashed_square place(struct hashed_choice *c, const struct own_squares *at, int64_t i)
{
    const struct own_square *s = at->square + i;
    int64_t nq = s->q1 - s->q0, nk = s->k1 - s->k0, m = c->rule.samples;
    struct hashed_square to = {.draw_at = -1, .block = 1, .per = 1};
    if (!s->hashed)
        return to;
    to = (struct hashed_square){.q0 = (int32_t)s->q0,
                                .nq = (int32_t)nq,
                                .k0 = (int32_t)s->k0,
                                .nk = (int32_t)nk,
                                .block = (int32_t)MIN(c->rule.block, INT32_MAX),
                                .per = (int32_t)MIN(s->per, INT32_MAX),
                                .last = (int32_t)(s->blocks - 1),
                                .zeros = (int32_t)MIN(s->zeros, INT32_MAX),
                                .q_at = c->q_all,
                                .k_at = c->k_all,
                                .draw_at = s->draws ? c->draws : -1,
                                .stream = own_draw_stream(&c->rule, i)};
    if (s->draws)
        to.weight = (float)log2((double)nk / (double)m);
    c->q_all += nq;
    c->k_all += nk;
    c->draws += s->draws ? m : 0;
    c->large |= MAX(nq, nk) > HASHED_LARGE;
    c->small |= MIN(nq, nk) <= HASHED_LARGE;
    return to;
}

static int put_squares(struct gpu *g, const struct own_squares *at, struct hashed_choice *c,
                       struct err *err)
{
    OWN(free_at) struct hashed_square *squares = NULL;
    OWN(free_at) int32_t *drawer = NULL;

    PASS_ON(mem_zalloc(&squares, at->n + 1, sizeof *squares, "squares", err));
    PASS_ON(mem_zalloc(&drawer, at->n + 1, sizeof *drawer, "squares", err));
    for (int64_t i = 0; i < at->n; i++) {
        squares[i] = place(c, at, i);
        if (squares[i].draw_at >= 0)
            drawer[c->drawers++] = (int32_t)i;
    }
    PASS_ON(gpu_upload(g, squares, at->n * (int64_t)sizeof *squares, &c->squares, err));
    PASS_ON(gpu_upload(g, drawer, (c->drawers + 1) * (int64_t)sizeof *drawer, &c->drawer, err));
    if (at->causal)
        PASS_ON(gpu_upload(g, at->node, at->n_nodes * (int64_t)sizeof *at->node, &c->node, err));
    return gpu_sync(g, err);
}

/* Products in float have a rounding per channel and one of each channel of the direction. */
static int put_directions(struct gpu *g, struct hashed_choice *c, struct err *err)
{
    const struct own_hashed *r = &c->rule;
    uint64_t stream = own_direction_stream(r);
    int64_t n = r->projs, d = c->d;
    OWN(free_at) double *dir = NULL;
    float slack[16];

    PASS_ON(mem_alloc(&dir, n * d, sizeof *dir, "directions", err));
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t e = i * d; e < (i + 1) * d; e++) {
            dir[e] = r->axes ? (double)(e % d == i) : rng_normal(r->seed, stream, (uint64_t)e);
            sum += fabs(dir[e]);
        }
        slack[i] = (float)(1.1 * (double)(d + 2) * 0x1p-24 * sum);
    }
    PASS_ON(gpu_upload(g, dir, n * d * (int64_t)sizeof *dir, &c->dir, err));
    PASS_ON(gpu_upload(g, slack, n * (int64_t)sizeof *slack, &c->slack, err));
    return gpu_sync(g, err);
}

int hashed_choice_init(struct gpu *g, const struct attn_problem *p, const void *q, const void *k,
                       const struct own_hashed *rule, const int32_t *head,
                       const struct own_squares *at, struct hashed_choice *c, struct err *err)
{
    *c = (struct hashed_choice){.q = q,
                                .k = k,
                                .heads = p->heads,
                                .kv_heads = p->kv_heads,
                                .per_kv = p->heads / p->kv_heads,
                                .d = p->d,
                                .causal = p->causal,
                                .nq = p->nq,
                                .nk = p->nk,
                                .rule = *rule,
                                .n = (int)at->n};
    if (p->heads * p->nq > INT32_MAX || p->kv_heads * p->nk > INT32_MAX)
        return err_set(err, ERR_RUN, "a call of more than 2^31 tokens of all heads");
    PASS_ON(put_squares(g, at, c, err));
    PASS_ON(put_directions(g, c, err));
    PASS_ON(gpu_upload(g, head, p->heads * (int64_t)sizeof *head, &c->head, err));
    PASS_ON(gpu_sync(g, err));
    PASS_ON(gpu_alloc(g, p->heads * p->nq * 2, &c->q_rank, err));
    PASS_ON(gpu_alloc(g, p->kv_heads * p->nk * 2, &c->k_rank, err));
    PASS_ON(gpu_alloc(g, p->heads * c->q_all * 4, &c->q_order, err));
    PASS_ON(gpu_alloc(g, p->kv_heads * c->k_all * 4, &c->k_order, err));
    if (rule->projs > 8) {
        PASS_ON(gpu_alloc(g, p->heads * c->q_all * 4, &c->q_spare, err));
        PASS_ON(gpu_alloc(g, p->kv_heads * c->k_all * 4, &c->k_spare, err));
    }
    return gpu_alloc(g, p->heads * c->draws * (int64_t)sizeof *c->drawn, &c->drawn, err);
}
