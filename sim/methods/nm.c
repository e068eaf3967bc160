/*
 * nm.c - N:M sparse softmax: of every m keys in a row a query keeps the n with the largest scores.
 *
 * sparsity/attention of NVIDIA Model-Optimizer. Groups of m keys are aligned to key 0, keys that
 * the query does not see lose. m = 4 keeps exactly n, ties to the lower key; m = 8 keeps all that
 * reach the n-th largest. The first `sink` keys, the last `recent` up to the query and the row of a
 * call with one query stay whole. O(N^2 d): every score is computed, and nothing is left out of a
 * product.
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/vslash.h"

#include <stdlib.h>
#include <string.h>

struct params {
    int64_t n, sink, recent;
    int m;
};

static const struct opt options[] = {
    OPT_INT(struct params, n, "2", 1, 8, "keys", "Keys that stay of every m."),
    OPT_ENUM(struct params, m, "4", TEXTS("4", "8"), "Keys of a group."),
    OPT_INT(struct params, sink, "0", 0, 1e9, "tokens", "First keys that all queries keep."),
    OPT_INT(struct params, recent, "64", 0, 1e9, "tokens",
            "Last keys up to the query, itself among them, that it keeps."),
    {0},
};

static int group_of(const struct params *p)
{
    return p->m ? 8 : 4;
}

static int validate(void *params, struct err *err)
{
    const struct params *p = params;
    if (p->n <= group_of(p))
        return 0;
    return err_set(err, ERR_USAGE, "method nm: n=%lld of m=%d keys: expected at most m",
                   (long long)p->n, group_of(p));
}

struct state {
    const struct params *p;
    struct attn_in x;
    struct map_rows rows;
    struct twins equal; /* keys: equal ones have equal scores */
    double *s;          /* [nk] scores of a row */
};

static void release(void *state)
{
    struct state *s = state;
    map_rows_free(&s->rows);
    twins_free(&s->equal);
    free(s->s);
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    struct state *s = state;
    s->p = params;
    s->x = in->x;
    PASS_ON(map_rows_init(&s->rows, in->exact, MAP_SCORES, err));
    PASS_ON(twins_find(&s->equal, in->x.k, in->x.nk, in->x.d, err));
    return mem_alloc(&s->s, in->x.nk, sizeof *s->s, "scores of a row", err);
}

/* Is key a one of the n best of its group? Allowed keys are [lo, hi). */
static bool is_best(const struct state *s, int64_t a, int64_t lo, int64_t hi)
{
    int64_t m = group_of(s->p), from = MAX(lo, a / m * m), to = MIN(hi, a / m * m + m), above = 0;
    for (int64_t b = from; b < to; b++)
        above += s->s[b] > s->s[a] || (m == 4 && s->s[b] == s->s[a] && b < a);
    return above < s->p->n;
}

static int select_row(struct state *s, struct mask *m, int64_t i, struct err *err)
{
    int64_t at = i + s->x.nk - s->x.nq, lo = attn_first(&s->x, i), hi = attn_limit(&s->x, i);
    const double *scores;
    if (s->x.nq == 1)
        return mask_lists_add_run(m, i - m->row0, (int32_t)lo, (int32_t)hi, err);
    if (hi <= lo)
        return 0;
    PASS_ON(map_rows_get(&s->rows, i, &scores, err));
    memcpy(s->s, scores, (size_t)s->x.nk * sizeof *scores);
    twins_level_f64(&s->equal, s->s, s->x.nk);
    for (int64_t j = lo; j < hi; j++)
        if (j < s->p->sink || (j <= at && at - j < s->p->recent) || is_best(s, j, lo, hi))
            PASS_ON(mask_lists_add(m, i - m->row0, (int32_t)j, err));
    return 0;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    PASS_ON(mask_lists_init(out, s->x.nq, s->x.nk, row0, row1, s->x.causal, 1, 1, err));
    out->exec = EXEC_NONE; /* report: all pairs are multiplied */
    for (int64_t i = row0; i < row1; i++)
        PASS_ON(select_row(s, out, i, err));
    mask_lists_finish(out);
    return 0;
}

static int report(void *state, struct record *r, struct err *err)
{
    return RECORD_ALL(r, err, {"pairs_exec", record_get(r, "pairs_allowed")}, {"density_exec", 1});
}

/* Attention needs every score anyway. */
static bool cost(const void *state, struct select_cost *c)
{
    return true;
}

const struct method method_nm = {
    .name = "nm",
    .summary = "N:M sparse softmax: the n largest scores of every m keys",
    .paper = "none: sparse softmax of NVIDIA Model-Optimizer (a2fbac7)",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_REACH | METHOD_SOFTCAP,
    .params = {.table = options,
               .size = sizeof(struct params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COUNT, "recent")),
               .validate = validate},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .cost = cost,
    .tests = {.full = "n=4",
              .variants = TEXTS("n=1:recent=0", "m=8:n=3:sink=5:recent=3"),
              .budgets = METHOD_BUDGETS({"recent=%s", {"0", "10", "100", "300"}},
                                        {"recent=0:m=8:n=%s", {"1", "2", "5", "8"}})},
};
