/*
 * callrecord.c - see callrecord.h. Every time is of one launch over all heads, or of the launches
 * that chose all their masks; none is divided by anything.
 */
#include "sim/callrecord.h"

#include "sim/accelrecord.h"

#include <math.h>

/* Where the masks of the heads come from, as far as they agree. */
struct sources {
    bool none;    /* nothing to choose in any head */
    bool on_gpu;  /* every choice that this call makes is made on the GPU */
    bool any_own; /* some head's is made by this call */
    const char *kind, *where;
    int64_t calls; /* that share one choice, if all heads say the same; else 0 */
};

static const char *kind_of(const struct choice *c)
{
    static const char *const kinds[] = {"own", "static", "reused"};
    return c->none ? "none" : kinds[c->origin.source];
}

static const char *where_of(const struct choice *c)
{
    return c->none ? "none" : c->gpu ? "cuda" : "cpu";
}

static struct sources sources_of(const struct call_record *c)
{
    struct sources s = {true,
                        true,
                        false,
                        kind_of(c->choices[0]),
                        where_of(c->choices[0]),
                        c->choices[0]->origin.calls};
    for (int i = 0; i < c->n; i++) {
        const struct choice *h = c->choices[i];
        s.none &= h->none;
        s.on_gpu &= h->none || h->gpu || choice_before(h);
        s.any_own |= !h->none && h->origin.source == SOURCE_OWN;
        s.kind = kind_of(h) == s.kind ? s.kind : "mixed";
        s.where = where_of(h) == s.where ? s.where : "mixed";
        s.calls = h->origin.calls == s.calls ? s.calls : 0;
    }
    return s;
}

/* As for a head: the call that chose bears its share too. */
static int record_amortised(const struct call_record *c, const struct sources *s, struct err *err)
{
    if (!c->choose_ns || s->calls <= 1)
        return 0;
    if (s->any_own)
        *c->choose_ns = s->on_gpu && c->res->select.samples ? c->res->select.median : 0;
    if (!(*c->choose_ns > 0))
        return 0;
    return record_metric(c->record, "time_select_amortised_ns", *c->choose_ns / (double)s->calls,
                         err);
}

static int record_phases(const struct call_record *c, const struct sources *s, struct err *err)
{
    static const struct accel_time nothing = {0};
    const struct accel_call_result *res = c->res;
    struct record *r = c->record;
    double pairs = 0;
    int rc = 0;

    for (int i = 0; i < c->n; i++)
        pairs += (double)res->heads[i].pairs_exec;
    TRY(record_time(r, "time_attend_ns", &res->attend, err));
    TRY(record_time(r, "time_dense_ns", &res->dense, err));
    TRY(record_metric(r, "samples", (double)res->attend.samples, err));
    TRY(record_metric(r, "speed_exec", 4e-3 * c->x->d * pairs / res->attend.median, err));
    if (res->plan.samples)
        TRY(record_time(r, "time_plan_ns", &res->plan, err));
    if (res->build.samples)
        TRY(record_time(r, "time_build_ns", &res->build, err));
    if (s->on_gpu) {
        struct accel_total t = {.x = c->x,
                                .heads = c->n,
                                .select = s->none               ? NULL
                                          : res->select.samples ? &res->select
                                                                : &nothing,
                                .quant = &res->quant,
                                .attend = &res->attend,
                                .dense = &res->dense,
                                .total = &res->total};
        TRY(record_total(&t, r, err));
    }
    TRY(record_amortised(c, s, err));
out:
    return rc;
}

int call_record_times(const struct call_record *c, struct err *err)
{
    const struct accel_call_result *res = c->res;
    struct sources s = sources_of(c);
    struct record *r = c->record;
    int rc = 0;

    r->status = RECORD_OK;
    record_note(r, "time=call;select_backend=%s;select_kind=%s;kernel=%s;dense_kernel=%s", s.where,
                s.kind, res->kernel, res->dense_kernel);
    if (res->sections > 1)
        record_note(r, "sections=%d", res->sections);
    TRY(record_metric(r, "call_heads", (double)c->n, err));
    TRY(record_metric(r, "call_heads_kv", (double)res->kv, err));
    TRY(record_metric(r, "call_launches", (double)res->launches, err));
    if (res->selections)
        TRY(record_metric(r, "call_selections", (double)res->selections, err));
    TRY(record_metric(r, "plan_balance", res->balance, err));
    TRY(record_metric(r, "host_plan_ns", res->host_plan_ns, err));
    TRY(record_counters(&res->counters, r, err));
    if (res->attend.samples)
        TRY(record_phases(c, &s, err));
out:
    return rc;
}
