/*
 * spargerun.h - SpargeAttn with parameters given as text, for its tests.
 */
#pragma once

#include "core/rng.h"
#include "sim/methods/spargeattn/spargeattn.h"
#include "tests/harness/methodrun.h"

/* "tau=0.5:pv=off" -> parameters. */
static inline struct sparge_params params_of(const char *text)
{
    char full[256];
    snprintf(full, sizeof full, "spargeattn%s%s", text[0] ? ":" : "", text);
    OWN(run_free) struct method_run *run = run_of(full);
    return *(const struct sparge_params *)run->params;
}

static inline struct sparge_rules rules_of(const char *text, int d)
{
    struct sparge_params p = params_of(text);
    struct sparge_rules r;
    sparge_resolve(&p, d, &r);
    return r;
}

/* The method on a head: OWN(sparge_end) struct sparge *s = sparge_on("tau=0.5", &in); */
static inline struct sparge *sparge_on(const char *text, const struct head_in *in)
{
    struct sparge_params p = params_of(text);
    struct sparge *s;
    MUST(sparge_new(&p, in, &s, ERR));
    return s;
}

static inline void sparge_end(struct sparge **s)
{
    sparge_free(*s);
}

/* A head for filter 1 alone: no reference, no operands. */
static inline struct head_in plain_head(const float *q, const float *k, int64_t n, int d,
                                        bool causal)
{
    struct head_in in = {.x = {.nq = n,
                               .nk = n,
                               .d = d,
                               .dv = d,
                               .q = q,
                               .k = k,
                               .v = k,
                               .scale = 1 / sqrt(d),
                               .causal = causal},
                         .src_dtype = DT_F32,
                         .branch = "main"};
    return in;
}

/* n standard normal values, to be freed. */
static inline float *normals(uint64_t seed, int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)rng_normal(seed, 0, (uint64_t)i);
    return x;
}

/* The record of a run, and one metric of one run. */
static inline void sparge_record(const char *text, const struct sim_head *h, struct record *r)
{
    char full[512];
    snprintf(full, sizeof full, "spargeattn%s%s", text[0] ? ":" : "", text);
    run_text_carry(full, &h->in, NULL, 0, NULL, NULL, r);
}

static inline double sparge_metric(const char *text, const struct sim_head *h, const char *name)
{
    OWN(record_free) struct record r;
    sparge_record(text, h, &r);
    return record_get(&r, name);
}
