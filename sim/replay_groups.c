/*
 * replay_groups.c - which heads are done together: on a GPU those of one attention call (replay.h).
 */
#include "sim/replay.h"

#include "core/buf.h"
#include "core/intmath.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

bool replay_same_group(const struct series *a, const struct series *b)
{
    return a->trace == b->trace && a->layer == b->layer && strcmp(a->branch, b->branch) == 0 &&
           a->n_calls == b->n_calls &&
           memcmp(a->calls, b->calls, (size_t)a->n_calls * sizeof *a->calls) == 0;
}

int replay_kv(const struct replay *r, const struct series *s)
{
    const struct trace_meta *m = trace_meta(r->traces[s->trace]);
    return s->head / (m->heads / m->kv_heads);
}

static struct call_group *find_group(struct replay *r, const struct series *s)
{
    for (int64_t i = r->n_groups - 1; i >= 0; i--)
        if (replay_same_group(r->series + r->groups[i].series[0], s))
            return r->groups + i;
    return NULL;
}

static int add_series(struct replay *r, int64_t series, struct err *err)
{
    struct call_group *g = r->device.calls ? find_group(r, r->series + series) : NULL;
    int rc = 0;
    if (!g) {
        TRY(mem_grow(&r->groups, &r->cap_groups, r->n_groups + 1, sizeof *g, "calls", err));
        g = r->groups + r->n_groups++;
        *g = (struct call_group){.n = 0};
    }
    int64_t *grown = realloc(g->series, (size_t)(g->n + 1) * sizeof *grown);
    if (!grown)
        FAIL(err, ERR_NOMEM, "calls: out of memory");
    g->series = grown;
    int64_t at = g->n++;
    for (; at > 0 && r->series[g->series[at - 1]].head > r->series[series].head; at--)
        g->series[at] = g->series[at - 1];
    g->series[at] = series;
out:
    return rc;
}

/* The largest number of heads in a row that share their KV head everywhere. */
static int group_size(const struct replay *r, const struct call_group *g)
{
    int64_t size = 0;
    for (int64_t i = 0, k; i < g->n; i = k) {
        int kv = replay_kv(r, r->series + g->series[i]);
        for (k = i + 1; k < g->n && replay_kv(r, r->series + g->series[k]) == kv; k++)
            ;
        size = gcd(k - i, size);
    }
    return (int)size;
}

static int heads_text(const struct replay *r, struct call_group *g, struct err *err)
{
    const struct trace_meta *m = trace_meta(r->traces[r->series[g->series[0]].trace]);
    struct buf b = {0};
    int rc = 0;
    for (int64_t i = 0, k; i < g->n && g->n < m->heads; i = k) {
        int first = trace_head_number(m, r->series[g->series[i]].head), last = first;
        for (k = i + 1; k < g->n; k++, last++)
            if (trace_head_number(m, r->series[g->series[k]].head) != last + 1)
                break;
        buf_printf(&b, "%s%d", b.len ? "," : "", first);
        if (last > first)
            buf_printf(&b, "-%d", last);
    }
    TRY(buf_check(&b, "heads of a call", err));
    g->heads = strdup(buf_str(&b));
    if (!g->heads)
        FAIL(err, ERR_NOMEM, "heads of a call: out of memory");
out:
    buf_free(&b);
    return rc;
}

/* The calls' own cells belong to the first series, whose cost they share. */
static int count_calls(struct replay *r, const struct call_group *g, struct err *err)
{
    struct series *s = r->series + g->series[0];
    int rc = 0;
    for (int64_t c = 0; c < s->n_calls && r->device.timed; c++)
        for (int64_t k = 0; k < r->n_runs; k++) {
            struct record rec;
            bool done = false;
            record_init(&rec);
            rc = replay_call_identity(r, g, s->calls[c], r->runs + k, &rec, err);
            rc = rc ? rc : record_file_holds(r->records, &rec, &done, err);
            record_free(&rec);
            if (rc)
                return rc;
            s->cells++;
            s->todo += !done;
        }
    return 0;
}

int replay_groups(struct replay *r, struct err *err)
{
    int rc = 0;
    for (int64_t i = 0; i < r->n_series; i++)
        TRY(add_series(r, i, err));
    for (int64_t i = 0; i < r->n_groups; i++) {
        r->groups[i].group = group_size(r, r->groups + i);
        if (!r->device.calls)
            continue;
        TRY(heads_text(r, r->groups + i, err));
        TRY(count_calls(r, r->groups + i, err));
    }
out:
    return rc;
}

void replay_groups_free(struct replay *r)
{
    for (int64_t i = 0; i < r->n_groups; i++) {
        free(r->groups[i].series);
        free(r->groups[i].heads);
    }
    free(r->groups);
    r->groups = NULL;
    r->n_groups = 0;
}

int replay_call_identity(const struct replay *r, const struct call_group *g, int64_t call,
                         const struct method_run *run, struct record *rec, struct err *err)
{
    int rc = 0;
    TRY(replay_identity(r, r->series + g->series[0], call, run, rec, err));
    record_of_call(rec);
    rec->heads = strdup(g->heads);
    if (!rec->heads)
        FAIL(err, ERR_NOMEM, "record: out of memory");
out:
    return rc;
}
