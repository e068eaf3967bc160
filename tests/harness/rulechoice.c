/*
 * rulechoice.c - see rulechoice.h.
 */
#include "tests/harness/rulechoice.h"

#include "core/intmath.h"
#include "sim/blocks/vslash.h"
#include "sim/methods/flexprefill/flexprefill.h"
#include "sim/methods/minference/minference.h"
#include "sim/methods/sampleattention/sampleattention.h"
#include "sim/methods/spargeattn/spargeattn.h"
#include "sim/methods/xattention/xattention.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct err err;

/* Room for what comes beside the mask, zeroed; also where nobody wants it. */
static void *room(struct accel_own *own, size_t bytes)
{
    static char unwanted[1 << 16];
    ck_assert_uint_le(bytes, sizeof unwanted);
    memset(unwanted, 0, sizeof unwanted);
    if (!own)
        return unwanted;
    own->bytes = (int64_t)bytes;
    own->data = calloc(1, bytes);
    ck_assert_ptr_nonnull(own->data);
    return own->data;
}

/* ---- SpargeAttn ----------------------------------------------------------------------------- */

static void choose_judged(const struct sparge_rule *r, const struct head_in *in,
                          struct accel_own *own, struct mask *m)
{
    const struct attn_in *x = &in->x;
    const struct sparge_params p = {.profile = r->paper ? SPARGE_PAPER : SPARGE_OFFICIAL,
                                    .tile = r->bq == 64,
                                    .select = r->by_count ? SPARGE_TOPK : SPARGE_CDF,
                                    .judge = true,
                                    .theta = r->theta,
                                    .tau = r->tau,
                                    .topk = ((double)r->top + 0.5) / (double)ceil_div(x->nk, r->bk),
                                    .lambda = NAN,
                                    .pv_scope = -1,
                                    .pv_tail = INT64_MIN,
                                    .sink = r->sink,
                                    .smooth_k = r->smooth_k,
                                    .dense = r->dense};
    struct sparge *s = NULL;
    assert_ok(sparge_new(&p, in, &s, &err), &err);
    size_t nq = (size_t)s->nq_blocks, nk = (size_t)s->nk_blocks;
    struct sparge_own *to = room(own, (sizeof *to + nq + nk + 7) / 8 * 8);
    uint8_t *flags = (uint8_t *)(to + 1);
    OWN(free_at) int32_t *col = calloc(nk, sizeof *col);
    assert_ok(mask_lists_init(m, x->nq, x->nk, 0, x->nq, x->causal, r->bq, r->bk, &err), &err);
    for (size_t i = 0; i < nq; i++) {
        double mass;
        int64_t n = sparge_list(s, s->row, (int64_t)i, col, &mass);
        assert_ok(mask_lists_add_all(m, (int64_t)i, col, n, &err), &err);
        to->mass += mass >= 0 ? mass : 0;
        to->rows += mass >= 0;
        flags[i] = s->qb.similar[i];
    }
    mask_lists_finish(m);
    for (size_t j = 0; j < nk; j++)
        flags[nq + j] = s->kb.similar[j];
    sparge_free(s);
}

/* ---- SampleAttention ------------------------------------------------------------------------ */

static void choose_tokens(const struct sample_rule *r, const struct head_in *in,
                          struct accel_own *own, struct mask *m)
{
    const struct attn_in *x = &in->x;
    OWN(sample_v2_free)
    struct sample_v2 v = {
        .nq = x->nq, .nk = x->nk, .window = r->window, .bottom = r->bottom, .step = r->step};
    assert_ok(sample_v2_choose(&v, r->alpha, in->exact, &err), &err);
    assert_ok(sample_v2_mask(&v, 0, x->nq, m, &err), &err);
    *(int32_t *)room(own, sizeof(int32_t)) = (int32_t)v.ncols;
}

static void choose_slices(const struct sample_rule *r, const struct head_in *in,
                          struct accel_own *own, struct mask *m)
{
    struct sample_config config = {.nq = in->x.nq,
                                   .nk = in->x.nk,
                                   .block = r->block,
                                   .chunks = r->chunks,
                                   .alpha_c = r->alpha_c,
                                   .alpha_s = r->alpha_s,
                                   .extend = r->extend,
                                   .merge = r->merge,
                                   .keep_diag = r->keep_diag,
                                   .keep_sink = r->keep_sink};
    size_t n = (size_t)(config.chunks * sample_blocks(&config));
    OWN(sample_scores_free) struct sample_scores s = {0};
    OWN(sample_plan_free) struct sample_plan p;
    int64_t forced = 0;
    assert_ok(sample_scores_init(&s, &config, &err), &err);
    assert_ok(sample_scores_run(&s, &config, in->exact, &err), &err);
    assert_ok(sample_plan_build(&p, &config, &s, &err), &err);
    assert_ok(sample_plan_mask(&p, 0, in->x.nq, m, &forced, &err), &err);
    double *to = room(own, 2 * n * sizeof(double));
    memcpy(to, s.col, n * sizeof(double));
    memcpy(to + n, s.slash, n * sizeof(double));
}

/* ---- FlexPrefill ---------------------------------------------------------------------------- */

static void set_bits(const struct vslash *v, uint32_t *bits)
{
    int64_t words = ceil_div(v->n, 32);
    for (int64_t i = 0; i < v->n_cols; i++)
        bits[v->cols[i] / 32] |= 1u << v->cols[i] % 32;
    for (int64_t i = 0; i < v->n_dists; i++)
        bits[words + v->dists[i] / 32] |= 1u << v->dists[i] % 32;
}

static void choose_blocks(const struct flex_rule *r, const struct head_in *in,
                          struct accel_own *own, struct mask *m)
{
    const struct flex_config config = {.n = in->x.nk,
                                       .block = r->block,
                                       .gamma = r->gamma,
                                       .tau = r->tau,
                                       .scale = in->x.scale,
                                       .min_budget = r->least * r->block,
                                       .max_budget = r->most * r->block,
                                       .both = !in->x.causal};
    OWN(flex_scores_free) struct flex_scores f = {0};
    OWN(flex_plan_free) struct flex_plan p;
    assert_ok(flex_scores_run(&f, &config, in, config.block, true, &err), &err);
    assert_ok(flex_plan_build(&p, &config, &f, in, &err), &err);
    assert_ok(block_map_mask(&p.map, 0, in->x.nq, m, &err), &err);
    *(struct flex_own *)room(own, sizeof(struct flex_own)) =
        (struct flex_own){p.js, {(int32_t)p.t_v, (int32_t)p.t_s}, p.query_aware, 0};
}

/* The port always keeps 4 columns and 64 distances. */
static void choose_lists(const struct flex_rule *r, const struct head_in *in, struct accel_own *own,
                         struct mask *m)
{
    int64_t n = in->x.nk, t[2];
    const struct flex_config config = {.n = n, .block = r->block, .both = !in->x.causal};
    OWN(flex_scores_free) struct flex_scores f = {0};
    OWN(vslash_free) struct vslash v;
    assert_ok(flex_scores_run(&f, &config, in, MIN(512, n), false, &err), &err);
    assert_ok(flex_count(f.ver, n, r->gamma, true, t, &err), &err);
    assert_ok(flex_count(f.sla, n, r->gamma, true, t + 1, &err), &err);
    assert_ok(vslash_select(&v, n, f.ver, MIN(MAX(t[0], r->least), r->most), 4, f.sla,
                            MIN(MAX(t[1], r->least), r->most), 64, &err),
              &err);
    v.both = config.both;
    assert_ok(vslash_mask(&v, true, 0, n, m, &err), &err);
    struct flex_own *to = room(own, sizeof *to + 2 * (size_t)ceil_div(n, 32) * 4);
    to->tokens[0] = (int32_t)t[0];
    to->tokens[1] = (int32_t)t[1];
    set_bits(&v, (uint32_t *)(to + 1));
}

/* ---- XAttention and MInference -------------------------------------------------------------- */

static void choose_antidiagonal(const struct xattn_rule *r, const struct head_in *in,
                                struct mask *m)
{
    const struct xattn_config config = {.profile = r->profile,
                                        .stride = (int)r->stride,
                                        .tau = r->tau,
                                        .norm = r->norm,
                                        .chunk = r->chunk};
    struct xattn_config c = xattn_config_of(&config, &in->x);
    OWN(xattn_free) struct xattn x;
    OWN(block_map_free) struct block_map map;
    assert_ok(xattn_init(&x, &c, in->x.q, in->x.k, &err), &err);
    assert_ok(block_map_init(&map, c.nq, c.nk, XATTN_BLOCK, c.causal, &err), &err);
    OWN(free_at) double *mass = calloc((size_t)x.cols, sizeof *mass);
    OWN(free_at) bool *keep = calloc((size_t)x.cols, sizeof *keep);
    for (int64_t i = 0; i < x.row_blocks; i++) {
        assert_ok(xattn_keep(&x, i, mass, keep, &err), &err);
        for (int64_t j = 0; j < xattn_limit(&x, i); j++)
            if (keep[j])
                block_map_set(&map, i, j);
    }
    assert_ok(block_map_mask(&map, 0, c.nq, m, &err), &err);
}

static void choose_pattern(const struct minf_rule *r, const struct head_in *in,
                           struct accel_own *own, struct mask *m)
{
    const struct minf_config c = {.pattern = r->blocks ? MINF_BLOCK : MINF_VS,
                                  .n = in->x.nk,
                                  .v = r->v,
                                  .s = r->s,
                                  .last_q = r->rows,
                                  .force_cols = r->force_cols,
                                  .force_dists = r->force_dists,
                                  .realised = r->realised,
                                  .p_dtype = DT_F32,
                                  .top = r->top,
                                  .block = 64,
                                  .both = !in->x.causal,
                                  .work = r->work};
    OWN(minf_free) struct minf_head h;
    assert_ok(minf_init(&h, &c, in, &err), &err);
    assert_ok(minf_select(&h, 0, c.n, m, &err), &err);
    if (!r->blocks)
        set_bits(&h.lists, room(own, 2 * (size_t)ceil_div(c.n, 32) * sizeof(uint32_t)));
}

/* ---- all ------------------------------------------------------------------------------------ */

bool rule_choose(const struct accel_choice *c, const struct head_in *in, struct mask *m)
{
    const union method_rule *r = c->rule;
    const struct attn_in *x = &in->x;
    bool sample = strcmp(c->method, "sampleattention") == 0;
    bool flex = strcmp(c->method, "flexprefill") == 0;
    if ((sample && r->sample.all) || (flex && r->flex.all))
        mask_full(m, x->nq, x->nk, 0, x->nq, x->causal);
    else if (sample)
        (r->sample.tokens ? choose_tokens : choose_slices)(&r->sample, in, c->own, m);
    else if (flex)
        (r->flex.lists ? choose_lists : choose_blocks)(&r->flex, in, c->own, m);
    else if (strcmp(c->method, "spargeattn") == 0)
        choose_judged(&r->sparge, in, c->own, m);
    else if (strcmp(c->method, "xattention") == 0)
        choose_antidiagonal(&r->xattn, in, m);
    else if (strcmp(c->method, "minference") == 0)
        choose_pattern(&r->minf, in, c->own, m);
    else
        return false;
    return true;
}

/* Ties that an oracle has counted, if it does. */
static void count_ties(const struct method *me, void *state, struct accel_own *own)
{
    OWN(record_free) struct record r;
    record_init(&r);
    assert_ok(me->report(state, &r, &err), &err);
    if (!isnan(record_get(&r, "ties")))
        *(int32_t *)room(own, sizeof(int32_t)) = (int32_t)record_get(&r, "ties");
}

bool setting_choose(const struct method_run *runs, int64_t n, const struct accel_choice *c,
                    const struct head_in *in, struct mask *m)
{
    for (int64_t i = 0; i < n; i++) {
        const struct method *me = runs[i].method;
        struct method_ctx ctx = {0};
        struct rule rule;
        void *state = NULL;
        char why[160];
        if (strcmp(me->name, c->method) != 0)
            continue;
        memset(&rule, 0, sizeof rule);
        assert_ok(method_prepare(me, &ctx, runs[i].params, in, &state, &err), &err);
        bool same =
            me->device.rule(state, &rule, why) && memcmp(&rule.of, c->rule, sizeof rule.of) == 0;
        if (same)
            assert_ok(me->select(state, 0, in->x.nq, m, &err), &err);
        if (same && strcmp(me->name, "oracle") == 0)
            count_ties(me, state, c->own);
        method_release(me, state);
        if (same)
            return true;
    }
    return false;
}
