/*
 * choose.h - a plan: for every head, layer or model the cheapest setting whose records satisfy all
 * limits.
 */
#ifndef LACUNA_CHOOSE_H
#define LACUNA_CHOOSE_H

#include "analyze/load.h"
#include "analyze/maskexport.h"
#include "core/buf.h"
#include "core/cmd.h"

#define LIMITS_MOST 8

struct limit {
    char metric[48];
    bool at_least; /* metric >= value, else <= */
    double value;
};

enum choose_per { CHOOSE_HEAD, CHOOSE_LAYER, CHOOSE_MODEL };

struct choose_request {
    struct limit limits[LIMITS_MOST];
    int n_limits;
    const char *cost; /* metric */
    enum choose_per per;
    double quantile; /* share of a setting's cells that must satisfy every limit */
};

/* "err_l1_rel<=0.02" or "cra_p1>=0.9". */
int limit_parse(const char *text, struct limit *out, struct err *err);
bool limit_holds(const struct limit *l, const struct record *r);

/* What was found, for the command's message. */
struct choose_summary {
    int64_t heads, dense; /* dense: no setting satisfies the limits, or none is cheaper */
    double cost;          /* mean over heads; a dense head costs 1 where the cost is a density */
};

/* Write a plan (doc/records.md) into w. ERR_INPUT where the records are of several models or token
 * orders, or none can be chosen from. */
int choose_plan(const struct recset *set, const struct choose_request *req, struct jw *w,
                struct choose_summary *sum, struct err *err);

/* ---- exports (choose_export.c) ----------------------------------------------------------------
 */

/* Write the entries of a plan that `format` (minference, flexprefill, spargeattn, sale) can hold;
 * the others are named in *left_out (owned by the caller). ERR_USAGE for another format. */
int plan_export(const json_t *plan, const char *where, const char *format, struct buf *out,
                struct str_list *left_out, struct err *err);

/* What is exported: a plan, and a trace on which it is replayed now, or the dump of a replay of it
 * (--dump-masks). */
struct plan_masks {
    const char *plan, *data, *output; /* paths */
    enum mask_format format;
    int64_t bq, bk; /* blocks; 0 = every entry's own */
    const struct common_opts *common;
};

/* Write the masks of all calls of the trace to a .safetensors file. What the replay leaves beside
 * them lies in a folder next to the output, which is removed again. ERR_INPUT where the dump has no
 * masks of this plan, or several traces. */
int plan_masks_export(const struct app *app, const struct plan_masks *x, struct mask_exported *done,
                      struct err *err);

#endif
