/*
 * sageattention.c - SageAttention 1, 2 and 2++: dense attention with quantised operands
 * (arXiv 2410.02367, 2411.10958, 2505.21136).
 *
 *   K' = K - mean over tokens, which softmax cannot see; with smooth_q, Q' = Q - mean of its block
 *   and qbar . k' is added to the scores
 *   S  = int(Q) . int(K') delta_Q delta_K scale log2(e), one delta per group of tokens
 *   O  = sum over key blocks of P^ V^, each block in its own accumulator, added in float
 *   P^, V^ in fp16 (version 1) or e4m3 (version 2, 2++); the row sum takes P before it is rounded
 *
 * Shapes: q [nq][d], k [nk][d], v [nk][dv] of one query head, d <= 128. 4 N^2 d operations, as many
 * as dense attention. The method is a baseline for the error of the arithmetic that SpargeAttn and
 * SALE use too.
 *
 * Choices where the sources are silent: granularities that a version does not ship (tensor, token,
 * block in version 2) round like its shipped one; all-zero groups and V channels give zeros; float
 * traces are not narrowed before quantisation.
 */
#include "sim/methods/sageattention/sageattention.h"

#include "core/intmath.h"
#include "core/mem.h"
#include "core/ownrule.h"
#include "sim/blocks/blockpool.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOG2E 1.4426950408889634074
#define E4M3_OFFSET 8.807f /* 2^8.807 = 447.89 */
#define MAX_D 128

static const struct opt options[] = {
    OPT_ENUM(struct sage_params, version, "2", TEXTS("1", "2", "2pp"),
             "SageAttention 1, 2 or 2++."),
    OPT_ENUM(struct sage_params, profile, "official", TEXTS("official", "paper"),
             "The authors' code or the papers' numbers."),
    OPT_ENUM(struct sage_params, arch, "sm90", TEXTS("sm80", "sm89", "sm90"),
             "Tile and scale groups of versions 2 and 2pp: 128x64, on sm90 64x128."),
    OPT_ENUM(struct sage_params, qk, "int8", TEXTS("int8", "int4"),
             "Integers of Q and K: levels 127 or 7."),
    OPT_ENUM(struct sage_params, gran, NULL, TEXTS("tensor", "block", "warp", "thread", "token"),
             "Tokens that share a scale; unset = block (version 1), thread (2, 2pp)."),
    OPT_BOOL(struct sage_params, smooth_k, "1", "Subtract the token mean of K."),
    OPT_ENUM(struct sage_params, smooth_q, NULL, TEXTS("0", "1"),
             "Subtract the block mean of Q and correct the scores; unset = 1 for int4 in the "
             "paper's profile, else 0."),
    OPT_BOOL(struct sage_params, smooth_v, "0",
             "Subtract the token mean of V and add it to the output."),
    OPT_ENUM(struct sage_params, pv, NULL, TEXTS("f16", "f8"),
             "Type of P and V; unset = f16 (version 1), f8 (2, 2pp)."),
    OPT_NUM(struct sage_params, p_max, NULL, 0, 448, "",
            "Largest quantised P; unset = 2^8.807 (official), 448 or, 2pp, 224 (paper).",
            .flags = OPT_MIN_OPEN),
    OPT_NUM(struct sage_params, v_max, NULL, 0, 448, "",
            "Largest quantised |V|; unset = 448, in 2pp 2.25 (official) or 4.5 (paper).",
            .flags = OPT_MIN_OPEN),
    OPT_ENUM(struct sage_params, accum, NULL, TEXTS("f32", "fp22", "f16"),
             "Accumulator inside a key block; unset = f16 (1, 2pp), f32 (2)."),
    {0},
};

/* ---- rules ---------------------------------------------------------------------------------- */

static void resolve_pv(const struct sage_params *p, bool paper, struct sage_rules *r)
{
    bool pp = p->version == SAGE_2PP;
    r->p_factor = 1;
    r->p_offset = 0;
    r->v_max = !isnan(p->v_max) ? (float)p->v_max : !pp ? 448 : paper ? 4.5f : 2.25f;
    if (r->pv == SAGE_F16)
        return;
    if (!isnan(p->p_max))
        r->p_factor = (float)p->p_max;
    else if (paper)
        r->p_factor = pp ? 224 : 448;
    else
        r->p_offset = E4M3_OFFSET;
}

void sage_resolve(const struct sage_params *p, int d, struct sage_rules *r)
{
    static const enum own_sum acc[] = {OWN_SUM_F32, OWN_SUM_FP22, OWN_SUM_F16};
    bool v1 = p->version == SAGE_1, paper = p->profile == 1;
    /* Version 1 is one kernel of 128 x 64 tiles on every device. */
    enum sage_arch arch = v1 ? SAGE_SM80 : (enum sage_arch)p->arch;
    *r = (struct sage_rules){
        .bq = arch == SAGE_SM90 ? 64 : 128,
        .bk = arch == SAGE_SM90 ? 128 : 64,
        .levels = p->qk ? 7 : 127,
        .gran = p->gran >= 0 ? (enum own_gran)p->gran
                : v1         ? OWN_BY_BLOCK
                             : OWN_BY_THREAD,
        .smooth_k = p->smooth_k,
        .smooth_q = p->smooth_q >= 0 ? p->smooth_q == 1 : paper && p->qk,
        .smooth_v = p->smooth_v,
        .pv = p->pv >= 0 ? (enum sage_pv)p->pv
              : v1       ? SAGE_F16
                         : SAGE_F8,
        .acc = p->accum >= 0                  ? acc[p->accum]
               : v1 || p->version == SAGE_2PP ? OWN_SUM_F16
                                              : OWN_SUM_F32,
    };
    bool half = r->pv == SAGE_F16 && r->acc == OWN_SUM_F16;
    r->warp = arch == SAGE_SM90 || (arch == SAGE_SM80 && d > 64 && half) ? 16 : 32;
    r->round = r->gran == OWN_BY_WARP ? OWN_RNE : v1 ? OWN_RHA : OWN_RHA_EPS;
    r->fold_scale = v1 && r->gran != OWN_BY_WARP;
    r->round_k = r->gran != OWN_BY_WARP;
    resolve_pv(p, paper, r);
}

/* ---- operands ------------------------------------------------------------------------------- */

/* Means of the query blocks, subtracted from q [nq][d] in place. */
static int smooth_queries(struct sage *s, float *q, struct err *err)
{
    const struct attn_in *x = &s->in.x;
    int64_t bq = s->rules.bq, blocks = ceil_div(x->nq, bq);
    PASS_ON(mem_alloc(&s->qbar, blocks * x->d, sizeof *s->qbar, "query means", err));
    for (int64_t i = 0; i < blocks; i++) {
        int64_t rows = x->nq - i * bq < bq ? x->nq - i * bq : bq;
        float *block = q + i * bq * x->d;
        block_mean(block, rows, x->d, DT_F32, s->qbar + i * x->d);
        token_centre(block, rows, x->d, s->qbar + i * x->d, DT_F32, block);
    }
    return 0;
}

static int quantise_qk(struct sage *s, struct err *err)
{
    const struct attn_in *x = &s->in.x;
    const struct sage_rules *r = &s->rules;
    struct quant_groups gq = {r->gran, false, r->bq, r->warp}, gk = {r->gran, true, r->bk, 0};
    OWN(free_at) float *q = NULL;
    double scale = x->scale * LOG2E;
    PASS_ON(mem_zalloc(&s->kbar, x->d, sizeof *s->kbar, "key mean", err));
    PASS_ON(mem_alloc(&s->k, x->nk * x->d, sizeof *s->k, "smoothed keys", err));
    PASS_ON(mem_alloc(&q, x->nq * x->d, sizeof *q, "smoothed queries", err));
    memcpy(q, x->q, (size_t)(x->nq * x->d) * sizeof *q);
    memcpy(s->k, x->k, (size_t)(x->nk * x->d) * sizeof *s->k);
    if (r->smooth_k) {
        token_mean(x->k, x->nk, x->d, s->in.src_dtype, s->kbar);
        token_centre(x->k, x->nk, x->d, s->kbar, r->round_k ? s->in.src_dtype : DT_F32, s->k);
    }
    if (r->smooth_q)
        PASS_ON(smooth_queries(s, q, err));
    for (int64_t i = 0; r->fold_scale && i < x->nq * x->d; i++)
        q[i] *= (float)scale;
    PASS_ON(quant_int(&s->qi, q, x->nq, x->d, &gq, r->levels, r->round, err));
    PASS_ON(quant_int(&s->ki, s->k, x->nk, x->d, &gk, r->levels, r->round, err));
    s->tile.q = &s->qi;
    s->tile.k = &s->ki;
    s->tile.score_scale = r->fold_scale ? 1 : (float)scale;
    s->tile.kbar = r->smooth_k ? s->kbar : NULL;
    s->tile.qbar = s->qbar;
    s->tile.k_bias = s->k;
    s->tile.bias_scale = (float)scale;
    return 0;
}

static int quantise_v(struct sage *s, struct err *err)
{
    const struct attn_in *x = &s->in.x;
    const struct sage_rules *r = &s->rules;
    int64_t n = x->nk * x->dv;
    PASS_ON(mem_alloc(&s->v, n, sizeof *s->v, "quantised values", err));
    PASS_ON(mem_alloc(&s->v_scale, x->dv, sizeof *s->v_scale, "value scales", err));
    PASS_ON(mem_alloc(&s->v_mean, x->dv, sizeof *s->v_mean, "value mean", err));
    memcpy(s->v, x->v, (size_t)n * sizeof *s->v);
    if (r->smooth_v) {
        token_mean(x->v, x->nk, x->dv, DT_F32, s->v_mean);
        token_centre(x->v, x->nk, x->dv, s->v_mean, DT_F32, s->v);
        s->tile.v_mean = s->v_mean;
    }
    if (r->pv == SAGE_F8) {
        quant_channels_e4m3(s->v, x->nk, x->dv, r->v_max, s->v, s->v_scale);
        s->tile.v_scale = s->v_scale;
    } else {
        for (int64_t i = 0; i < n; i++)
            s->v[i] = f16_round(s->v[i]);
    }
    s->tile.v = s->v;
    return 0;
}

int sage_new(const struct sage_params *p, const struct head_in *in, struct sage **out,
             struct err *err)
{
    struct sage *s = NULL;
    int rc = mem_zalloc(&s, 1, sizeof *s, "sageattention state", err);
    if (rc)
        return rc;
    s->in = *in;
    sage_resolve(p, in->x.d, &s->rules);
    const struct sage_rules *r = &s->rules;
    s->tile = (struct tile_attn){
        .nq = in->x.nq,
        .nk = in->x.nk,
        .d = in->x.d,
        .dv = in->x.dv,
        .causal = in->x.causal,
        .bq = r->bq,
        .bk = r->bk,
        .exact = in->exact,
        .p_type = r->pv == SAGE_F8 ? TILE_P_E4M3 : TILE_P_F16,
        .p_offset = r->p_offset,
        .p_factor = r->p_factor,
        .acc = r->acc,
        .mma_keys = r->pv == SAGE_F8 ? 32 : 16,
        .pv = INFINITY,
        .scope = r->bq,
        .out_dtype = in->src_dtype == DT_F32 ? DT_NONE : in->src_dtype,
    };
    TRY(quantise_qk(s, err));
    TRY(quantise_v(s, err));
    *out = s;
    return 0;
out:
    sage_free(s);
    return rc;
}

void sage_free(struct sage *s)
{
    if (!s)
        return;
    free(s->kbar);
    free(s->k);
    free(s->qbar);
    quant_free(&s->qi);
    quant_free(&s->ki);
    free(s->v);
    free(s->v_scale);
    free(s->v_mean);
    free(s);
}

/* ---- method --------------------------------------------------------------------------------- */

/* Operands are made by the first attend: a device makes its own. */
struct state {
    struct sage_params params;
    struct sage_rules rules;
    struct head_in in;
    struct sage *operands; /* owned */
};

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    struct state *s = state;
    if (in->x.causal && in->x.nq != in->x.nk)
        return method_skip(ctx, "causal needs nq == nk");
    if (in->x.d > MAX_D)
        return method_skip(ctx, "head dimension %d is above %d", in->x.d, MAX_D);
    s->params = *(const struct sage_params *)params;
    s->in = *in;
    sage_resolve(&s->params, in->x.d, &s->rules);
    ctx->unit_rows = s->rules.bq;
    return 0;
}

/* Every pair, counted in the kernel's tiles. */
static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    const struct state *s = state;
    mask_full(out, s->in.x.nq, s->in.x.nk, row0, row1, s->in.x.causal);
    out->bq = out->exec_bq = s->rules.bq;
    out->bk = out->exec_bk = s->rules.bk;
    return 0;
}

static int attend(void *state, const struct mask *m, double *out, double *lse, double *tiles_pv,
                  struct err *err)
{
    struct state *s = state;
    if (!s->operands)
        PASS_ON(sage_new(&s->params, &s->in, &s->operands, err));
    *tiles_pv = 0;
    return tile_attn_rows(&s->operands->tile, m, out, lse, tiles_pv, err);
}

static void how(const void *state, struct arithmetic *a, char why[160])
{
    const struct state *s = state;
    const struct sage_rules *r = &s->rules;
    if (r->smooth_q) {
        snprintf(why, 160, "no CUDA kernel for smooth_q=1; smooth_q=0 has one");
        a->kind = ARITH_CPU;
        return;
    }
    a->kind = ARITH_KERNEL;
    memset(&a->own, 0, sizeof a->own); /* rules are compared as bytes */
    a->own.kind = OWN_QUANTISED;
    struct own_quantised *q = &a->own.of.quantised;
    q->bq = (int)r->bq;
    q->bk = (int)r->bk;
    q->warp = (int)r->warp;
    q->levels = r->levels;
    q->gran = r->gran;
    q->round = r->round;
    q->fold_scale = r->fold_scale;
    q->smooth_k = r->smooth_k;
    q->smooth_v = r->smooth_v;
    q->mean_as = s->in.src_dtype;
    q->keys_as = r->round_k ? s->in.src_dtype : DT_F32;
    q->e4m3 = r->pv == SAGE_F8;
    q->offset = r->p_offset;
    q->factor = r->p_factor;
    q->v_top = r->v_max;
    q->sum = r->acc;
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    record_note(r, "tile=%lldx%lld", (long long)s->rules.bq, (long long)s->rules.bk);
    if (s->in.src_dtype != DT_F32)
        record_note(r, "out_dtype=%s", dtype_name(s->in.src_dtype));
    return 0;
}

static void release(void *state)
{
    sage_free(((struct state *)state)->operands);
}

const struct method method_sageattention = {
    .name = "sageattention",
    .alias = "sage",
    .summary = "dense attention with INT8 or INT4 Q.K and fp16 or e4m3 P.V",
    .paper = "Zhang et al., SageAttention 1, 2, 2++, arXiv 2410.02367, 2411.10958, 2505.21136",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_KEEPS_ALL | METHOD_SINK,
    .params = {.table = options, .size = sizeof(struct sage_params)},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .arith = {.kind = ARITH_KERNEL, .how = how, .attend = attend},
    .tests = {.variants = TEXTS("version=1", "version=2pp:qk=int4:smooth_v=1")},
};
