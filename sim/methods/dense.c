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
 * Cost: one more Q K pass, O(N) memory; map=0 leaves it out. The pass runs on the GPU if the
 * metrics are measured there. The GPU compares scores with thresholds, without an exponential;
 * sums=1 asks it for the check that every row of p adds up to 1 and, with one threshold, for the
 * largest p.
 */
#include "core/mem.h"
#include "core/method.h"
#include "core/sort.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/numlist.h"

#include <math.h>

struct params {
    char *c;
    bool map, sums;
    int64_t sim_block_q, sim_block_k;
};

static const struct opt options[] = {
    OPT_STR(struct params, c, "0.5", NULL,
            "thresholds of the below_* shares, a+b+c for several in one pass", .unit = "1/N"),
    OPT_BOOL(struct params, map, "1", "report the statistics of the exact map (one more pass)"),
    OPT_BOOL(struct params, sums, "0",
             "on a GPU: add up p in every row, and with one threshold find the largest"),
    OPT_INT(struct params, sim_block_q, "128", 1, 1 << 20, "rows", "query rows per sim_q block"),
    OPT_INT(struct params, sim_block_k, "64", 1, 1 << 20, "rows", "keys per sim_k block"),
    {0},
};

struct state {
    const struct params *params;
    struct head_in in;
};

static int validate(void *params, struct err *err)
{
    struct params *p = params;
    double c[BELOW_MOST_C];
    int n;
    return num_list_parse(p->c, "c", 0, c, BELOW_MOST_C, &n, err);
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    struct state *s = state;
    s->params = params;
    s->in = *in;
    return 0;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    const struct attn_in *x = &((struct state *)state)->in.x;
    attn_full_mask(x, row0, row1, out);
    return 0;
}

static int report_similarity(const struct state *s, bool keys, struct record *r, struct err *err)
{
    const struct attn_in *x = &s->in.x;
    int64_t block = keys ? s->params->sim_block_k : s->params->sim_block_q, left_out;
    char name[48], at[24] = "";
    double mean;
    int64_t unseen = 0;
    const struct row_sample *rows = keys ? NULL : s->in.rows;
    if (rows && rows->group % block != 0)
        return 0; /* its blocks lie across the ends of groups */
    for (int64_t at0 = 0; rows && at0 < x->nq; at0 += block)
        unseen += !row_sample_has(rows, at0);
    PASS_ON(map_similarity(keys ? x->k : x->q, keys ? x->nk : x->nq, x->d, block, keys, &mean,
                           &left_out, err));
    if ((double)block != metric_level(keys ? "sim_k" : "sim_q"))
        snprintf(at, sizeof at, "@%lld", (long long)block);
    if (isfinite(mean)) {
        snprintf(name, sizeof name, "sim_%c%s", keys ? 'k' : 'q', at);
        PASS_ON(record_metric(r, name, mean, err));
    }
    snprintf(name, sizeof name, "sim_%c_left_out%s", keys ? 'k' : 'q', at);
    return record_metric(r, name, (double)(left_out - unseen), err);
}

static int report_pass(const struct map_below *b, struct record *r, struct err *err)
{
    if (b->summed)
        PASS_ON(record_metric(r, "p_sum_err", b->sum_err, err));
    if (b->timed) {
        return RECORD_ALL(r, err, {"time_map_ns", b->ns}, {"time_map_ns_q1", b->ns_q1},
                          {"time_map_ns_q3", b->ns_q3});
    }
    return 0;
}

static int report(void *state, struct record *r, struct err *err)
{
    struct state *s = state;
    OWN(free_at) struct map_below *b = NULL;
    if (!s->params->map)
        return 0;
    PASS_ON(mem_zalloc(&b, 1, sizeof *b, "map statistics", err));
    PASS_ON(num_list_parse(s->params->c, "c", 0, b->c, BELOW_MOST_C, &b->n_c, err));
    sort_f64(b->c, b->n_c);
    b->sums = s->params->sums;
    PASS_ON(map_below_run(s->in.exact, b, err));
    PASS_ON(report_pass(b, r, err));
    PASS_ON(map_below_report(b, s->in.rows != NULL, r, err));
    PASS_ON(report_similarity(s, false, r, err));
    return report_similarity(s, true, r, err);
}

const struct method method_dense = {
    .name = "dense",
    .summary = "every allowed pair; reports how sparse the exact attention map is",
    .paper = "Vaswani et al., Attention Is All You Need, arXiv 1706.03762",
    .flags = METHOD_ROWS | METHOD_ROWS_REPORT | METHOD_CAUSAL | METHOD_BIDIRECTIONAL |
             METHOD_KEEPS_ALL | METHOD_ANY_SCORE | METHOD_PREFIX,
    .params = {.table = options, .size = sizeof(struct params), .validate = validate},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .tests = {.full = "", .variants = TEXTS("map=0")},
};
