/*
 * dsa.c - DeepSeek Sparse Attention: an indexer with queries and keys of its own ranks every token,
 * and all heads of a layer attend to the best.
 *
 *   I_ts = sum_h max(0, iq_th . ik_s) iw_th
 *
 * deepseek-ai/DeepSeek-V3.2-Exp 3b99a53, inference/model.py, class Indexer. A row keeps the `topk`
 * tokens up to its own with the largest I, of equal ones the lower; nothing is forced. iq, ik and
 * iw are operands of the call as the indexer multiplies them: after norm, rotation and Hadamard
 * transform. The constant factors of I change no order. emulate=fp8 rounds iq and ik as published:
 * a vector to e4m3, by a scale that is its largest size over 448, rounded up to a power of two.
 * Sums are in double over exact products. O(N I d_i) a row.
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "sim/blocks/blockpool.h"
#include "sim/blocks/operand.h"
#include "sim/blocks/rowselect.h"
#include "sim/blocks/selectcost.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IQ, IK, IW, OPERANDS };
static const enum trace_aux operands[OPERANDS] = {AUX_IQ, AUX_IK, AUX_IW};

struct params {
    int64_t topk, share;
    int emulate;
};

static const struct opt options[] = {
    OPT_INT(struct params, topk, "2048", 1, 1e9, "tokens", "keys that a row keeps"),
    OPT_INT(struct params, share, "1", 0, 1e6, "layers",
            "layers in a row that use the index of the first; 0: that of the last layer up to it "
            "which has one"),
    OPT_ENUM(struct params, emulate, "none", TEXTS("none", "fp8"),
             "rounding of the indexer's vectors; fp8: as published"),
    {0},
};

/* The index of a layer: what each row keeps. Heads that run at the same time rank its rows
 * together. */
struct index {
    char trace[40], branch[16]; /* the call: trace "" is none that another head could have */
    int step, layer, emulate, users;
    int64_t nq, nk, topk, words;
    struct operand of[OPERANDS];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t *bits;     /* [nq][words] kept keys */
    unsigned char *row; /* [nq]: enum row_is */
};
enum row_is { MISSING, BEING_RANKED, RANKED };

/* What the heads of a run share: the index that was asked for last. */
struct shared {
    pthread_mutex_t lock;
    struct index *now;
};

struct state {
    const struct params *params;
    const struct head_in *in;
    struct shared *shared; /* NULL: the index is this head's alone */
    struct index *index;
    struct ranked rank;   /* scratch */
    int64_t rows, scores; /* so far, of this head */
};

static void index_free(struct index *x)
{
    if (!x)
        return;
    for (int i = 0; i < OPERANDS; i++)
        free(x->of[i].x);
    free(x->bits);
    free(x->row);
    pthread_mutex_destroy(&x->lock);
    pthread_cond_destroy(&x->changed);
    free(x);
}
OWN_AT(index_free, struct index *)

static void lock_shared(struct shared *s, bool on)
{
    if (s)
        (on ? pthread_mutex_lock : pthread_mutex_unlock)(&s->lock);
}

static void release(void *state)
{
    struct state *s = state;
    lock_shared(s->shared, true);
    if (s->index && --s->index->users == 0 && (!s->shared || s->shared->now != s->index))
        index_free(s->index);
    lock_shared(s->shared, false);
    ranked_free(&s->rank);
}

static int open_shared(const void *params, void **session, struct err *err)
{
    struct shared *s = NULL;
    int rc = mem_zalloc(&s, 1, sizeof *s, "the index of a layer", err);
    (void)params;
    if (!rc)
        pthread_mutex_init(&s->lock, NULL);
    *session = s;
    return rc;
}

static void close_shared(void *session)
{
    OWN(free_at) struct shared *s = session;
    index_free(s->now);
    pthread_mutex_destroy(&s->lock);
}

/* The layer whose index this one uses. */
static int leader(struct method_ctx *ctx, const struct params *p, const struct head_in *in,
                  int *layer, struct err *err)
{
    int rc = METHOD_SKIP;
    *layer = in->layer - (p->share ? in->layer % (int)p->share : 0);
    while (p->share == 0 && rc == METHOD_SKIP && *layer >= 0) {
        rc = operands_there(ctx, in, *layer, operands, 1, err);
        *layer -= rc == METHOD_SKIP;
    }
    *layer = MAX(*layer, 0);
    return rc < 0 ? rc : operands_there(ctx, in, *layer, operands, OPERANDS, err);
}

static int takes(struct method_ctx *ctx, const void *params, const struct head_in *in,
                 struct err *err)
{
    int layer;
    return leader(ctx, params, in, &layer, err);
}

static void round_fp8(struct operand *o)
{
    int64_t d = o->shape.dim;
    for (float *x = o->x, *end = x + o->shape.heads * o->shape.rows * d; x < end; x += d) {
        float most = 1e-4f;
        int up;
        for (int64_t c = 0; c < d; c++)
            most = fmaxf(most, fabsf(x[c]));
        float part = frexpf(most / 448, &up); /* 0.5 <= part < 1 */
        up -= part == 0.5f;
        for (int64_t c = 0; c < d; c++)
            x[c] = ldexpf(e4m3_round(ldexpf(x[c], -up)), up);
    }
}

static int check_shapes(const struct index *x, struct err *err)
{
    const struct aux_shape q = x->of[IQ].shape, k = x->of[IK].shape, w = x->of[IW].shape;
    if (k.heads == 1 && w.heads == q.heads && k.dim == q.dim && w.dim == 1)
        return 0;
    return err_set(err, ERR_INPUT,
                   "aux/iq of %lld heads x %lld channels, aux/ik of %lld x %lld, aux/iw of %lld x "
                   "%lld: expected one head of keys, and a weight per head and query",
                   (long long)q.heads, (long long)q.dim, (long long)k.heads, (long long)k.dim,
                   (long long)w.heads, (long long)w.dim);
}

static int index_new(struct method_ctx *ctx, const struct params *p, const struct head_in *in,
                     int layer, struct index **out, struct err *err)
{
    OWN(index_free_at) struct index *x = NULL;
    PASS_ON(mem_zalloc(&x, 1, sizeof *x, "the index of a layer", err));
    *x = (struct index){.step = in->step,
                        .layer = layer,
                        .emulate = p->emulate,
                        .nq = in->x.nq,
                        .nk = in->x.nk,
                        .topk = p->topk,
                        .words = ceil_div(in->x.nk, 64)};
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->changed, NULL);
    snprintf(x->trace, sizeof x->trace, "%s", in->trace ? in->trace : "");
    snprintf(x->branch, sizeof x->branch, "%s", in->branch ? in->branch : "");
    for (int i = 0; i < OPERANDS; i++)
        PASS_ON(operand_read(ctx, in, layer, operands[i], x->of + i, err));
    PASS_ON(check_shapes(x, err));
    for (int i = IQ; i <= IK && p->emulate; i++)
        round_fp8(x->of + i);
    PASS_ON(mem_zalloc(&x->bits, x->nq * x->words, sizeof *x->bits, "the index of a layer", err));
    PASS_ON(mem_zalloc(&x->row, x->nq, 1, "the index of a layer", err));
    *out = HAND_OVER(x);
    return 0;
}

static bool is_of(const struct index *x, const struct params *p, const struct head_in *in,
                  int layer)
{
    return x && in->trace && *in->trace && strncmp(x->trace, in->trace, sizeof x->trace - 1) == 0 &&
           strcmp(x->branch, in->branch ? in->branch : "") == 0 && x->step == in->step &&
           x->layer == layer && x->nq == in->x.nq && x->nk == in->x.nk && x->topk == p->topk &&
           x->emulate == p->emulate;
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    int layer, rc = 0;
    *s = (struct state){.params = p, .in = in, .shared = ctx->session};
    if ((rc = leader(ctx, p, in, &layer, err)) != 0)
        return rc;
    lock_shared(s->shared, true);
    if (!s->shared || !is_of(s->shared->now, p, in, layer))
        rc = index_new(ctx, p, in, layer, &s->index, err);
    else
        s->index = s->shared->now;
    if (!rc)
        s->index->users++;
    if (!rc && s->shared && s->shared->now != s->index) {
        if (s->shared->now && s->shared->now->users == 0)
            index_free(s->shared->now);
        s->shared->now = s->index;
    }
    lock_shared(s->shared, false);
    TRY(rc);
    TRY(ranked_init(&s->rank, in->x.nk, err));
out:
    return rc;
}

#define KEYS 512 /* that stay in the cache while heads are added up */

/* I of row i and the keys [0, limit). */
static void score_row(const struct index *x, int64_t i, int64_t limit, double *score)
{
    int d = (int)x->of[IK].shape.dim;
    memset(score, 0, (size_t)limit * sizeof *score);
    for (int64_t at = 0; at < limit; at += KEYS)
        for (int64_t h = 0, n = MIN(KEYS, limit - at); h < x->of[IQ].shape.heads; h++) {
            double z[KEYS], w = *operand_row(&x->of[IW], h, i);
            row_products(operand_row(&x->of[IQ], h, i), x->of[IK].x + at * d, d, NULL, n, z);
            for (int64_t j = 0; j < n; j++)
                score[at + j] += z[j] > 0 ? z[j] * w : 0;
        }
}

/* The best keys of row i, into the index. */
static int rank_row(struct state *s, int64_t i, struct err *err)
{
    struct index *x = s->index;
    int64_t limit = attn_limit(&s->in->x, i), n;
    struct prefix top;
    score_row(x, i, limit, s->rank.score);
    PASS_ON(prefix_topk(s->rank.work, s->rank.score, limit, x->topk, &top, err));
    const int32_t *key = prefix_list(s->rank.work, &top, s->rank.score, limit, &n);
    for (int64_t e = 0; e < n; e++)
        x->bits[i * x->words + key[e] / 64] |= 1ull << (key[e] % 64);
    return 0;
}

/* Rank row i unless it is ranked already; `wait` for another head that does. */
static int claim_row(struct state *s, int64_t i, bool wait, struct err *err)
{
    struct index *x = s->index;
    int rc = 0;
    pthread_mutex_lock(&x->lock);
    while (wait && x->row[i] == BEING_RANKED)
        pthread_cond_wait(&x->changed, &x->lock);
    if (x->row[i] == MISSING) {
        x->row[i] = BEING_RANKED;
        pthread_mutex_unlock(&x->lock);
        rc = rank_row(s, i, err);
        pthread_mutex_lock(&x->lock);
        x->row[i] = rc ? MISSING : RANKED;
        pthread_cond_broadcast(&x->changed);
    }
    pthread_mutex_unlock(&x->lock);
    return rc;
}

static int select_row(void *state, int64_t i, struct mask *m, struct err *err)
{
    struct state *s = state;
    const struct index *x = s->index;
    int64_t limit = attn_limit(&s->in->x, i), g = i - m->row0;
    s->rows++;
    if (limit <= x->topk)
        return mask_lists_add_run(m, g, 0, (int32_t)limit, err);
    s->scores += limit;
    PASS_ON(claim_row(s, i, true, err));
    return mask_lists_add_bits(m, g, x->bits + i * x->words, x->words, err);
}

/* First the rows that nobody has begun, then those that others have. */
static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    for (int64_t i = row0; i < row1; i++)
        if (attn_limit(&s->in->x, i) > s->index->topk)
            PASS_ON(claim_row(s, i, false, err));
    return row_lists(&s->in->x, false, 1, select_row, s, row0, row1, out, err);
}

/* A head's share of its layer's: queries and keys in 8 bits, with a scale. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    const struct aux_shape q = s->index->of[IQ].shape;
    double heads = s->in->n_heads, scores = (double)s->scores * (double)q.heads / heads;
    cost_products(c, scores, (int)q.dim);
    cost_sums(c, 2 * scores);
    c->bytes += ((double)s->scores + (double)(s->rows * q.heads)) * ((double)q.dim + 4) / heads;
    return true;
}

static bool why_full(const void *state, char why[160])
{
    const struct state *s = state;
    return s->scores == 0 && budget_is_all("topk", s->params->topk, 1, s->in->x.nk, why);
}

const struct method method_dsa = {
    .name = "dsa",
    .summary = "tokens that the model's own indexer ranks first, for all heads (DeepSeek-V3.2)",
    .paper = "DeepSeek-AI, DeepSeek-V3.2-Exp: Boosting Long-Context Efficiency with DeepSeek "
             "Sparse Attention",
    .flags = METHOD_CAUSAL | METHOD_SOFTCAP | METHOD_SINK,
    .params = {.table = options,
               .size = sizeof(struct params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COUNT, "topk"))},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .release = release,
    .cost = cost,
    .why_full = why_full,
    .session = {.takes = takes, .open = open_shared, .close = close_shared},
    .decode = {.each_row = method_always},
    .tests = {.full = "",
              .variants = TEXTS("topk=9", "topk=40:emulate=fp8", "topk=20:share=2"),
              .budgets = METHOD_BUDGETS({"topk=%s", {"1", "16", "100", "400"}})},
};
