/*
 * table_calls.c - see table_calls.h.
 */
#include "analyze/table_calls.h"

#include "analyze/metricfacts.h"

#include <math.h>

bool calls_in_columns(const struct grouping *gs, const struct str_list *metrics)
{
    for (int64_t i = 0; i < metrics->n; i++)
        if (group_of_calls(gs, metrics->items[i]))
            return true;
    return false;
}

int64_t calls_beside(const struct grouping *gs, const struct group *g, bool *other)
{
    const struct grouping *calls;
    struct group own;
    struct stats heads;
    if (!group_calls(gs, g, &calls, &own))
        return 0;
    if (group_stats(calls, &own, "call_heads", &heads, NULL, NULL) == 0)
        *other |= own.n_ok && llround(heads.mean * (double)heads.n) != g->n_ok;
    return own.n_ok;
}

bool calls_only(const struct recset *set, const struct str_list *metrics)
{
    bool all = set->n_calls > 0 && metrics->n > 0;
    for (int64_t i = 0; i < metrics->n && all; i++)
        all = any_has(set->calls, set->n_calls, metrics->items[i]) &&
              (metric_timed(metrics->items[i]) || !any_has(set->r, set->n, metrics->items[i]));
    return all;
}

/* Metrics of calls that no row can show: why. */
static void note_hidden(const struct grouping *gs, const struct recset *set,
                        const struct str_list *metrics, struct table *t)
{
    struct recset calls = recset_calls(set);
    bool timed = false;
    for (int64_t i = 0; i < metrics->n; i++)
        timed |= metric_timed(metrics->items[i]);
    if (gs->calls || !set->n_calls || !timed || (gs->flags & GROUP_PER_HEAD))
        return;
    table_note(t,
               recset_varies(&calls, KEY_HEADS)
                   ? "the calls are in parts (shards that share heads, or different --heads): no "
                     "time of a whole call is known (--where scope=call shows the parts)"
                   : "times of whole calls stand in no row of a head");
}

void calls_note(const struct grouping *gs, const struct recset *set, const struct str_list *metrics,
                bool other, struct table *t)
{
    struct buf b = {0};
    int64_t more = 0;
    bool copies = any_has(set->r, set->n, "time_attend_ns");
    for (int64_t i = 0; i < metrics->n; i++) {
        if (!group_of_calls(gs, metrics->items[i]))
            continue;
        if (b.len < 60)
            buf_printf(&b, "%s%s", b.len ? ", " : "", metrics->items[i]);
        else
            more++;
    }
    if (b.len)
        table_note(t, "n counts heads; `calls` counts whole calls, from which these are: %s%s",
                   buf_str(&b), more ? " and others" : "");
    if (b.len && other)
        table_note(t, "in some rows these calls are not of the heads that n counts");
    if (b.len && copies)
        table_note(t, "times of heads through copies are left out (--where scope=head has them)");
    note_hidden(gs, set, metrics, t);
    buf_free(&b);
}
