/*
 * hyperweights.h - the weights that HyperAttention's plan gives to the keys of a query.
 */
#pragma once

#include "sim/methods/hyperattention/hyperplan.h"
#include "tests/harness/suite.h"

#include <string.h>

/* The plan of a rule for a head; hyper_plan_free. */
static inline void hyper_plan_make(struct hyper_plan *p, const struct own_hashed *r,
                                   const struct attn_in *x)
{
    MUST(hyper_plan_cut(p, r, x, ERR));
    MUST(hyper_plan_hash(p, x, ERR));
}

/* Weights [nk] of the keys of query i; the number of its zero keys. */
static inline double hyper_weights(const struct hyper_plan *p, int64_t i, double *w)
{
    struct hyper_part parts[HYPER_PARTS];
    int n = hyper_parts(p, i, parts);
    double zeros = 0;
    memset(w, 0, (size_t)p->nk * sizeof *w);
    for (int k = 0; k < n; k++) {
        for (int64_t j = parts[k].lo; j < parts[k].hi; j++)
            w[j] += 1;
        if (parts[k].square < 0)
            continue;
        const struct own_square *at = p->at.square + parts[k].square;
        const struct hyper_square *s = p->squares + parts[k].square;
        double share = (double)(at->k1 - at->k0) / (double)p->rule.samples;
        for (int64_t e = 0; e < at->k1 - at->k0; e++)
            w[s->keys[e]] += e / p->rule.block == parts[k].block;
        for (int64_t e = 0; e < s->n_samples; e++)
            if (!p->rule.exclude || s->samples[e].block != parts[k].block)
                w[s->samples[e].key] += share * s->samples[e].count;
        zeros += parts[k].block == at->blocks - 1 ? (double)at->zeros : 0;
    }
    return zeros;
}
