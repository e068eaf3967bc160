/*
 * dense.c - every allowed pair, and how sparse the exact map is.
 *
 * The mask is full. `report` makes one pass over the exact probabilities and gives, for every
 * threshold c of the list, the share of b x b blocks (b = 16, 32, 64, 128) and of M x 1 slices
 * (M = 16, 64, 128 queries, one key) whose largest p is below c/N_k: `below_b64`,
 * `below_s128@0.25`, each also weighted by allowed pairs (`_area`). c = 0.5 on squares is table 2
 * of FG-Attn (arXiv 2509.16518). `sim_q` and `sim_k` are the block self-similarities of SpargeAttn
 * (arXiv 2502.18137): 128 raw query rows, 64 keys after subtracting the mean key.
 *
 * Cost: one further Q K pass, O(N) memory, on the GPU where the metrics are measured there; map=0
 * leaves it out. There thresholds are found by comparing scores, without an exponential, and the
 * check that every row of p adds up to 1, with one threshold the largest p too, is to be asked for
 * (sums=1).
 */
#include "core/kernel.h"
#include "core/mem.h"
#include "core/method.h"
#include "sim/basemap.h"
#include "sim/numlist.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

struct dense_params {
    char *c;
    bool map, sums;
    int64_t sim_block_q, sim_block_k;
};

/* clang-format off */
static const struct opt dense_opts[] = {
    {.name = "c", .type = OPT_STR, .offset = offsetof(struct dense_params, c), .def = "0.5",
     .unit = "1/N", .help = "thresholds of the below_* shares, a+b+c for several in one pass"},
    {.name = "map", .type = OPT_BOOL, .offset = offsetof(struct dense_params, map), .def = "1",
     .help = "report the statistics of the exact map (one more pass)"},
    {.name = "sums", .type = OPT_BOOL, .offset = offsetof(struct dense_params, sums), .def = "0",
     .help = "on a GPU: add up p in every row, and with one threshold find the largest"},
    {.name = "sim_block_q", .type = OPT_INT, .offset = offsetof(struct dense_params, sim_block_q),
     .def = "128", .min = 1, .max = 1 << 20, .unit = "rows", .help = "query rows per sim_q block"},
    {.name = "sim_block_k", .type = OPT_INT, .offset = offsetof(struct dense_params, sim_block_k),
     .def = "64", .min = 1, .max = 1 << 20, .unit = "rows", .help = "keys per sim_k block"},
    {0},
};
/* clang-format on */

struct dense_state {
    const struct dense_params *params;
    struct head_in in;
    const struct method_ctx *ctx;
};

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int dense_validate(void *params, struct err *err)
{
    struct dense_params *p = params;
    double c[BELOW_MOST_C];
    int n;
    return num_list_parse(p->c, "c", 0, c, BELOW_MOST_C, &n, err);
}

static int dense_prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                         void **state, struct err *err)
{
    struct dense_state *s = NULL;
    int rc = mem_zalloc(&s, 1, sizeof *s, "dense state", err);
    if (rc)
        return rc;
    s->params = params;
    s->in = *in;
    s->ctx = ctx;
    *state = s;
    return 0;
}

static int dense_select(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    const struct attn_in *x = &((struct dense_state *)state)->in.x;
    mask_full(out, x->nq, x->nk, row0, row1, x->causal);
    return 0;
}

static int report_similarity(const struct dense_state *s, bool keys, struct record *r,
                             struct err *err)
{
    const struct attn_in *x = &s->in.x;
    int64_t block = keys ? s->params->sim_block_k : s->params->sim_block_q, left_out;
    int64_t usual = keys ? 64 : 128;
    char name[48], at[24] = "";
    double mean;
    int rc = map_similarity(keys ? x->k : x->q, keys ? x->nk : x->nq, x->d, block, keys, &mean,
                            &left_out, err);
    if (rc)
        return rc;
    if (block != usual)
        snprintf(at, sizeof at, "@%lld", (long long)block);
    if (isfinite(mean)) {
        snprintf(name, sizeof name, "sim_%c%s", keys ? 'k' : 'q', at);
        if ((rc = record_metric(r, name, mean, err)) != 0)
            return rc;
    }
    snprintf(name, sizeof name, "sim_%c_left_out%s", keys ? 'k' : 'q', at);
    return record_metric(r, name, (double)left_out, err);
}

static int map_on_accel(const struct dense_state *s, struct map_below *b, struct record *r,
                        struct err *err)
{
    struct accel_map m;
    int rc = 0;
    TRY(map_below_accel(s->ctx, &s->in.x, s->params->sums, b, &m, err));
    if (s->params->sums)
        TRY(record_metric(r, "p_sum_err", m.sum_err, err));
    if (m.time.samples) {
        TRY(record_metric(r, "time_map_ns", m.time.median, err));
        TRY(record_metric(r, "time_map_ns_q1", m.time.q1, err));
        TRY(record_metric(r, "time_map_ns_q3", m.time.q3, err));
    }
out:
    return rc;
}

static int dense_report(void *state, struct record *r, struct err *err)
{
    struct dense_state *s = state;
    struct map_below *b = NULL;
    int rc = 0;

    if (!s->params->map)
        return 0;
    TRY(mem_zalloc(&b, 1, sizeof *b, "map statistics", err));
    TRY(num_list_parse(s->params->c, "c", 0, b->c, BELOW_MOST_C, &b->n_c, err));
    qsort(b->c, (size_t)b->n_c, sizeof *b->c, ascending);
    if (s->ctx->accel && s->ctx->accel_metrics)
        TRY(map_on_accel(s, b, r, err));
    else
        TRY(map_below_run(s->in.ops, s->in.lse, b, err));
    TRY(map_below_report(b, r, err));
    TRY(report_similarity(s, false, r, err));
    TRY(report_similarity(s, true, r, err));
out:
    free(b);
    return rc;
}

const struct method method_dense = {
    .name = "dense",
    .summary = "every allowed pair; reports how sparse the exact attention map is",
    .paper = "Vaswani et al., Attention Is All You Need, arXiv 1706.03762",
    .abi = METHOD_ABI,
    .flags = METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_NO_REFERENCE,
    .params_size = sizeof(struct dense_params),
    .params = dense_opts,
    .budget_full = "",
    .validate = dense_validate,
    .prepare = dense_prepare,
    .select = dense_select,
    .report = dense_report,
    .release = free,
};
