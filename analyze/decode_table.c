/*
 * decode_table.c - the decode phase step by step: a row per setting and step, over all heads.
 */
#include "analyze/tables.h"
#include "core/mem.h"

#include <stdio.h>

static bool of_decode(const void *ctx, const struct record *r)
{
    (void)ctx;
    return r->status == RECORD_OK && r->scope == RECORD_OF_DECODE;
}

bool has_decode_steps(const struct recset *set)
{
    for (int64_t i = 0; i < set->n; i++)
        if (of_decode(NULL, &set->r[i]))
            return true;
    return false;
}

enum { TOKEN_COL, RECALL_COL, LOST_COL, CUM_COL, CACHE_COL };

static int add_columns(struct table *t, struct err *err)
{
    PASS_ON(table_column(t, "token", "token", "", COL_INT, 1, err));
    PASS_ON(table_column(t, "recall", "recall", "", COL_STATS, 1, err));
    PASS_ON(table_column(t, "lost", "lost", "", COL_STATS, 1, err));
    PASS_ON(table_column(t, "cum_lost", "lost so far", "", COL_REAL, 1, err));
    return table_column(t, "cache_keys", "cached keys", "", COL_STATS, 1, err);
}

/* One step of a group; *sum adds up what was lost, in *n steps. */
static int put_step(struct table *t, int64_t col, const struct grouping *gs, const struct group *g,
                    long long token, double *sum, int64_t *n, struct err *err)
{
    static const char *const names[] = {"recall", "lost", "cache_keys"};
    static const int cols[] = {RECALL_COL, LOST_COL, CACHE_COL};
    table_num(t, col + TOKEN_COL, (double)token);
    for (int i = 0; i < 3; i++) {
        char metric[METRIC_NAME];
        struct stats s;
        snprintf(metric, sizeof metric, "%s@token=%lld", names[i], token);
        PASS_ON(group_stats(gs, g, metric, &s, NULL, err));
        if (s.n == 0)
            continue;
        table_stats(t, col + cols[i], &s);
        if (i == 1) {
            *sum += s.mean;
            table_num(t, col + CUM_COL, *sum / (double)++*n);
        }
    }
    return 0;
}

static int put_group(struct table *t, const struct grouping *gs, const struct group *g,
                     const enum group_key *keys, int n, struct err *err)
{
    double sum = 0;
    int64_t steps = 0;
    for (int64_t i = 0; i < record_metrics(g->first); i++) {
        long long token;
        int end = 0;
        const char *name = record_metric_name(g->first, i);
        if (sscanf(name, "recall@token=%lld%n", &token, &end) != 1 || name[end])
            continue;
        PASS_ON(table_row(t, err));
        PASS_ON(table_put_keys(t, g->first, keys, n, err));
        PASS_ON(put_step(t, n, gs, g, token, &sum, &steps, err));
    }
    return 0;
}

int build_decode_steps(const struct table_def *def, const struct recset *set,
                       const struct table_request *req, struct table *out, struct err *err)
{
    enum group_key keys[KEYS_MAX];
    OWN(grouping_free) struct grouping gs = {0};
    int n = 0;
    (void)def;
    if (req->group || req->pivot || req->columns)
        return err_set(err, ERR_USAGE, "--group, --pivot and --columns do not apply to this table");
    PASS_ON(recset_scope(set, keys, &n, err));
    keys[n++] = KEY_METHOD;
    keys[n++] = KEY_PARAMS;
    PASS_ON(grouping_make(set, keys, n, 0, of_decode, NULL, &gs, err));
    if (gs.n == 0)
        return err_set(err, ERR_INPUT,
                       "no record is of the decode phase (lacuna replay --phase decode)");
    PASS_ON(table_key_columns(out, keys, n, err));
    PASS_ON(add_columns(out, err));
    for (int64_t g = 0; g < gs.n; g++)
        PASS_ON(put_group(out, &gs, &gs.g[g], keys, n, err));
    table_note(out,
               "Queries are those of the dense run: each step is measured after an exact past.");
    return 0;
}
