/*
 * choiceown.c - see choiceown.h.
 */
#include "tests/harness/choiceown.h"

#include "core/intmath.h"
#include "sim/blocks/tokscore.h"
#include "sim/blocks/vslash.h"
#include "sim/methods/flexprefill/flexprefill.h"
#include "sim/methods/sampleattention/sampleattention.h"
#include "sim/methods/spargeattn/spargeattn.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const void *param(const struct accel_choice *c, const char *name)
{
    const struct opt *o = opt_find(c->options, name);
    ck_assert_ptr_nonnull(o);
    return (const char *)c->params + o->offset;
}

static int64_t number(const struct accel_choice *c, const char *name, int64_t otherwise)
{
    int64_t x = *(const int64_t *)param(c, name);
    return x == INT64_MIN ? otherwise : x;
}

static double share(const struct accel_choice *c, const char *name, double otherwise)
{
    double x = *(const double *)param(c, name);
    return isnan(x) ? otherwise : x;
}

static const char *word(const struct accel_choice *c, const char *name)
{
    const struct opt *o = opt_find(c->options, name);
    return o->values[*(const int *)param(c, name)];
}

static void *room(struct accel_own *own, size_t bytes)
{
    own->bytes = (int64_t)bytes;
    own->data = calloc(1, bytes);
    ck_assert_ptr_nonnull(own->data);
    return own->data;
}

/* ---- SpargeAttn ----------------------------------------------------------------------------- */

static void own_judged(const struct accel_choice *c, const struct head_in *in,
                       struct accel_own *own)
{
    struct sparge *s = NULL;
    struct err err = {0};
    assert_ok(sparge_new(c->params, in, &s, &err), &err);
    size_t nq = (size_t)s->nq_blocks, nk = (size_t)s->nk_blocks;
    struct sparge_own *to = room(own, (sizeof *to + nq + nk + 7) / 8 * 8);
    uint8_t *flags = (uint8_t *)(to + 1);
    int32_t *col = calloc(nk, sizeof *col);
    for (size_t i = 0; i < nq; i++) {
        double mass;
        sparge_list(s, s->row, (int64_t)i, col, &mass);
        to->mass += mass >= 0 ? mass : 0;
        to->rows += mass >= 0;
        flags[i] = s->qb.similar[i];
    }
    for (size_t j = 0; j < nk; j++)
        flags[nq + j] = s->kb.similar[j];
    free(col);
    sparge_free(s);
}

/* ---- SampleAttention ------------------------------------------------------------------------ */

static void own_columns(const struct accel_choice *c, const struct head_in *in,
                        struct accel_own *own)
{
    struct sample_v2 v;
    struct err err = {0};
    sample_v2_init(&v, &in->x, share(c, "window", 0), share(c, "rows", 0), number(c, "bottom", 0));
    assert_ok(sample_v2_choose(&v, share(c, "alpha", 0), in->exact, &err), &err);
    *(int32_t *)room(own, sizeof(int32_t)) = (int32_t)v.ncols;
    sample_v2_free(&v);
}

static void own_slices(const struct accel_choice *c, const struct head_in *in,
                       struct accel_own *own)
{
    struct sample_config config = {.nq = in->x.nq,
                                   .nk = in->x.nk,
                                   .block = atoi(word(c, "block")),
                                   .chunks = (int)number(c, "chunks", 1)};
    size_t n = (size_t)(config.chunks * sample_blocks(&config));
    struct sample_scores s = {0};
    struct err err = {0};
    assert_ok(sample_scores_init(&s, &config, &err), &err);
    assert_ok(sample_scores_run(&s, &config, in->exact, &err), &err);
    double *to = room(own, 2 * n * sizeof(double));
    memcpy(to, s.col, n * sizeof(double));
    memcpy(to + n, s.slash, n * sizeof(double));
    sample_scores_free(&s);
}

/* ---- columns and distances ------------------------------------------------------------------ */

static void set_bits(const struct vslash *v, uint32_t *bits)
{
    int64_t words = ceil_div(v->n, 32);
    for (int64_t i = 0; i < v->n_cols; i++)
        bits[v->cols[i] / 32] |= 1u << v->cols[i] % 32;
    for (int64_t i = 0; i < v->n_dists; i++)
        bits[words + v->dists[i] / 32] |= 1u << v->dists[i] % 32;
}

static void own_lists(const struct accel_choice *c, const struct head_in *in, struct accel_own *own)
{
    int64_t n = in->x.nk;
    double *col = calloc((size_t)n, sizeof *col), *slash = calloc((size_t)n, sizeof *slash);
    struct vslash v;
    struct err err = {0};
    assert_ok(
        token_scores(in, MIN(n, number(c, "last_q", 64)), TOK_EXACT, DT_F32, col, slash, &err),
        &err);
    assert_ok(vslash_select(&v, n, col, number(c, "v", 0), number(c, "force_cols", 30), slash,
                            number(c, "s", 0), number(c, "force_dists", 100), &err),
              &err);
    set_bits(&v, room(own, 2 * (size_t)ceil_div(n, 32) * sizeof(uint32_t)));
    vslash_free(&v);
    free(col);
    free(slash);
}

/* ---- FlexPrefill ---------------------------------------------------------------------------- */

static struct flex_config flex_config_of(const struct accel_choice *c, const struct head_in *in)
{
    return (struct flex_config){.n = in->x.nk,
                                .block = atoi(word(c, "block")),
                                .gamma = share(c, "gamma", 0.95),
                                .tau = share(c, "tau", 0.1),
                                .scale = in->x.scale,
                                .min_budget = number(c, "min_budget", 1024),
                                .both = !in->x.causal};
}

static void own_blocks(const struct accel_choice *c, const struct head_in *in,
                       struct accel_own *own)
{
    struct flex_config config = flex_config_of(c, in);
    struct flex_scores f = {0};
    struct flex_plan p;
    struct err err = {0};
    assert_ok(flex_scores_run(&f, &config, in, config.block, true, &err), &err);
    assert_ok(flex_plan_build(&p, &config, &f, in, &err), &err);
    *(struct flex_own *)room(own, sizeof(struct flex_own)) =
        (struct flex_own){p.js, {(int32_t)p.t_v, (int32_t)p.t_s}, p.query_aware, 0};
    flex_plan_free(&p);
    flex_scores_free(&f);
}

/* The port always keeps 4 columns and 64 distances. */
static void own_frontier(const struct accel_choice *c, const struct head_in *in,
                         struct accel_own *own)
{
    struct flex_config config = flex_config_of(c, in);
    struct flex_scores f = {0};
    struct vslash v;
    struct err err = {0};
    int64_t t[2], least = config.min_budget;
    assert_ok(flex_scores_run(&f, &config, in, MIN(512, config.n), false, &err), &err);
    assert_ok(flex_count(f.ver, config.n, config.gamma, true, t, &err), &err);
    assert_ok(flex_count(f.sla, config.n, config.gamma, true, t + 1, &err), &err);
    assert_ok(
        vslash_select(&v, config.n, f.ver, MAX(t[0], least), 4, f.sla, MAX(t[1], least), 64, &err),
        &err);
    struct flex_own *to = room(own, sizeof *to + 2 * (size_t)ceil_div(config.n, 32) * 4);
    to->tokens[0] = (int32_t)t[0];
    to->tokens[1] = (int32_t)t[1];
    set_bits(&v, (uint32_t *)(to + 1));
    vslash_free(&v);
    flex_scores_free(&f);
}

void choice_own(const struct accel_choice *c, const struct head_in *in)
{
    if (!c->own)
        return;
    if (strcmp(c->method, "spargeattn") == 0)
        own_judged(c, in, c->own);
    else if (strcmp(c->method, "sampleattention") == 0)
        (strcmp(word(c, "profile"), "v2") == 0 ? own_columns : own_slices)(c, in, c->own);
    else if (strcmp(c->method, "flexprefill") == 0)
        (strcmp(word(c, "profile"), "frontier") == 0 ? own_frontier : own_blocks)(c, in, c->own);
    else if (strcmp(c->method, "minference") == 0 && strcmp(word(c, "pattern"), "block") != 0)
        own_lists(c, in, c->own);
}
