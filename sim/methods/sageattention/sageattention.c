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
#include "sim/blocks/blockpool.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static void resolve_pv(const struct sage_params *p, bool paper, struct own_quantised *r)
{
    bool pp = p->version == SAGE_2PP;
    r->factor = 1;
    r->v_top = !isnan(p->v_max) ? (float)p->v_max : !pp ? 448 : paper ? 4.5f : 2.25f;
    if (!r->e4m3)
        return;
    if (!isnan(p->p_max))
        r->factor = (float)p->p_max;
    else if (paper)
        r->factor = pp ? 224 : 448;
    else
        r->offset = TILE_E4M3_OFFSET;
}

void sage_resolve(const struct sage_params *p, int d, enum dtype src, struct sage_rules *rules)
{
    bool v1 = p->version == SAGE_1, paper = p->profile == 1;
    /* Version 1 is one kernel of 128 x 64 tiles on every device. */
    enum sage_arch arch = v1 ? SAGE_SM80 : (enum sage_arch)p->arch;
    struct own_quantised *r = &rules->own;
    memset(rules, 0, sizeof *rules); /* rules are compared as bytes */
    rules->smooth_q = p->smooth_q >= 0 ? p->smooth_q == 1 : paper && p->qk;
    r->bq = arch == SAGE_SM90 ? 64 : 128;
    r->bk = arch == SAGE_SM90 ? 128 : 64;
    r->levels = p->qk ? 7 : 127;
    r->gran = p->gran >= 0 ? (enum own_gran)p->gran : v1 ? OWN_BY_BLOCK : OWN_BY_THREAD;
    r->smooth_k = p->smooth_k;
    r->smooth_v = p->smooth_v;
    r->e4m3 = p->pv >= 0 ? p->pv == 1 : !v1;
    r->sum = p->accum >= 0                  ? (enum own_sum)p->accum
             : v1 || p->version == SAGE_2PP ? OWN_SUM_F16
                                            : OWN_SUM_F32;
    bool warp = r->gran == OWN_BY_WARP, half = !r->e4m3 && r->sum == OWN_SUM_F16;
    r->warp = arch == SAGE_SM90 || (arch == SAGE_SM80 && d > 64 && half) ? 16 : 32;
    r->round = warp ? OWN_RNE : v1 ? OWN_RHA : OWN_RHA_EPS;
    r->fold_scale = v1 && !warp;
    r->mean_as = src;
    r->keys_as = warp ? DT_F32 : src;
    resolve_pv(p, paper, r);
}

/* ---- operands ------------------------------------------------------------------------------- */

/* Means of the query blocks, subtracted from q [nq][d] in place. */
static int smooth_queries(struct sage *s, float *q, struct err *err)
{
    const struct attn_in *x = &s->in.x;
    int64_t bq = s->rules.own.bq, blocks = ceil_div(x->nq, bq);
    PASS_ON(mem_alloc(&s->qbar, blocks * x->d, sizeof *s->qbar, "query means", err));
    for (int64_t i = 0; i < blocks; i++) {
        int64_t rows = x->nq - i * bq < bq ? x->nq - i * bq : bq;
        float *block = q + i * bq * x->d;
        block_mean(block, rows, x->d, DT_F32, s->qbar + i * x->d);
        token_centre(block, rows, x->d, s->qbar + i * x->d, DT_F32, block);
    }
    return 0;
}

int sage_make(struct sage *s, struct err *err)
{
    const struct attn_in *x = &s->in.x;
    const struct own_quantised *r = &s->rules.own;
    float scale = (float)(x->scale * M_LOG2E);
    OWN(free_at) float *q = NULL;
    PASS_ON(mem_alloc(&s->kbar, x->d, sizeof *s->kbar, "key mean", err));
    PASS_ON(mem_alloc(&s->k, x->nk * x->d, sizeof *s->k, "smoothed keys", err));
    PASS_ON(mem_alloc(&q, x->nq * x->d, sizeof *q, "smoothed queries", err));
    memcpy(q, x->q, (size_t)(x->nq * x->d) * sizeof *q);
    memcpy(s->k, x->k, (size_t)(x->nk * x->d) * sizeof *s->k);
    if (r->smooth_k) {
        token_mean(x->k, x->nk, x->d, r->mean_as, s->kbar);
        token_centre(x->k, x->nk, x->d, s->kbar, r->keys_as, s->k);
    }
    if (s->rules.smooth_q)
        PASS_ON(smooth_queries(s, q, err));
    for (int64_t i = 0; r->fold_scale && i < x->nq * x->d; i++)
        q[i] *= scale;
    s->tile.qbar = s->qbar;
    s->tile.k_bias = s->k;
    s->tile.bias_scale = scale;
    return tile_quantise(&s->tile, &s->operands, r, x, q, s->k, s->kbar, err);
}

void sage_begin(const struct sage_params *p, const struct head_in *in, struct sage *s)
{
    s->in = *in;
    sage_resolve(p, in->x.d, in->src_dtype, &s->rules);
    s->tile = (struct tile_attn){
        .nq = in->x.nq,
        .nk = in->x.nk,
        .d = in->x.d,
        .dv = in->x.dv,
        .causal = in->x.causal,
        .bq = s->rules.own.bq,
        .bk = s->rules.own.bk,
        .exact = in->exact,
        .pv = INFINITY,
        .scope = s->rules.own.bq,
        .out_dtype = in->src_dtype == DT_F32 ? DT_NONE : in->src_dtype,
    };
}

void sage_free(struct sage *s)
{
    free(s->kbar);
    free(s->k);
    free(s->qbar);
    tile_operands_free(&s->operands);
}

/* ---- method --------------------------------------------------------------------------------- */

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    struct sage *s = state;
    if (in->x.causal && in->x.nq != in->x.nk)
        return method_skip(ctx, "causal needs nq == nk");
    if (in->x.d > MAX_D)
        return method_skip(ctx, "head dimension %d is above %d", in->x.d, MAX_D);
    sage_begin(params, in, s);
    ctx->unit_rows = s->tile.bq;
    return 0;
}

/* Every pair, counted in the kernel's tiles. */
static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    const struct sage *s = state;
    mask_full(out, s->in.x.nq, s->in.x.nk, row0, row1, s->in.x.causal);
    out->bq = out->exec_bq = s->tile.bq;
    out->bk = out->exec_bk = s->tile.bk;
    return 0;
}

/* Operands are made by the first attend: a device makes its own. */
static int attend(void *state, const struct mask *m, double *out, double *lse, double *tiles_pv,
                  struct err *err)
{
    struct sage *s = state;
    if (!s->tile.q)
        PASS_ON(sage_make(s, err));
    *tiles_pv = 0;
    return tile_attn_rows(&s->tile, m, out, lse, tiles_pv, err);
}

static void how(const void *state, struct arithmetic *a, char why[160])
{
    const struct sage *s = state;
    if (s->rules.smooth_q) {
        snprintf(why, 160, "no CUDA kernel for smooth_q=1; smooth_q=0 has one");
        a->kind = ARITH_CPU;
        return;
    }
    a->kind = ARITH_KERNEL;
    memset(&a->own, 0, sizeof a->own);
    a->own.kind = OWN_QUANTISED;
    a->own.of.quantised = s->rules.own;
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct sage *s = state;
    record_note(r, "tile=%dx%d", s->rules.own.bq, s->rules.own.bk);
    if (s->in.src_dtype != DT_F32)
        record_note(r, "out_dtype=%s", dtype_name(s->in.src_dtype));
    return 0;
}

static void release(void *state)
{
    sage_free(state);
}

const struct method method_sageattention = {
    .name = "sageattention",
    .alias = "sage",
    .summary = "dense attention with INT8 or INT4 Q.K and fp16 or e4m3 P.V",
    .paper = "Zhang et al., SageAttention 1, 2, 2++, arXiv 2410.02367, 2411.10958, 2505.21136",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_KEEPS_ALL | METHOD_SINK,
    .params = {.table = options, .size = sizeof(struct sage_params)},
    .state_size = sizeof(struct sage),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .arith = {.kind = ARITH_KERNEL, .how = how, .attend = attend},
    .tests = {.variants = TEXTS("version=1", "version=2pp:qk=int4:smooth_v=1")},
};
