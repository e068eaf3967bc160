/*
 * choose.h - a plan: for every head, KV head, layer or model the cheapest setting whose records
 * satisfy all limits.
 */
#pragma once

#include "analyze/query.h"
#include "core/json.h"

#define LIMITS_MOST 8

/* What a setting has to satisfy: conditions of metrics (query.h). */
struct limits {
    struct condition c[LIMITS_MOST];
    int n;
};

/* Add "err_l1_rel<=0.02" or several, separated by commas. ERR_USAGE. */
int limits_add(struct limits *l, const char *text, struct err *err);

enum choose_per { CHOOSE_HEAD, CHOOSE_KV_HEAD, CHOOSE_LAYER, CHOOSE_MODEL };

struct choose_request {
    struct limits limits;
    const char *cost; /* metric */
    enum choose_per per;
    double quantile; /* share of a setting's cells that must satisfy every limit */
};

/* What was found, for the command's message. */
struct choose_summary {
    int64_t heads, dense; /* dense: no setting satisfies the limits, or none is cheaper */
    double cost;          /* mean over heads; a dense head costs 1 where the cost is a density */
};

/* Write a plan (doc/records.md) into w. ERR_INPUT where the records are of several models or token
 * orders, or none can be chosen from. */
int choose_plan(const struct recset *set, const struct choose_request *req, struct jw *w,
                struct choose_summary *sum, struct err *err);
