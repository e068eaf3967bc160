/*
 * headload.h - read heads of a trace as inputs for methods.
 */
#ifndef LACUNA_HEADLOAD_H
#define LACUNA_HEADLOAD_H

#include "core/trace.h"
#include "sim/simhead.h"

struct head_load {
    enum precision precision;
    const char *permute;  /* token order, a name of core/permute.h; "none" = as stored */
    uint64_t seed;        /* of permute=random */
    bool allow_nonfinite; /* let NaN and infinity pass */
};

/* Open the traces that the arguments of a command name (trace_list) into *traces, which grows as
 * they open and is to be closed in any case. */
int traces_open(char *const *args, int64_t n_args, struct trace ***traces, int64_t *n,
                struct err *err);
void traces_close(struct trace ***traces, int64_t n);

/* ERR_INPUT naming a trace that holds a sample of query rows, which does not do because `why`. */
int traces_whole(struct trace *const *traces, int64_t n, const char *why, struct err *err);

/* Which calls and heads of traces take part: index lists, NULL, "" or "all" = all; branch NULL or
 * "" = all. */
struct call_select {
    const char *layers, *heads, *steps, *branch;
};

/* The same for one trace. Release with call_filter_free, also a zeroed one. */
struct call_filter {
    struct call_list {
        int64_t *list, n; /* owned; n < 0: all */
    } layers, heads, steps;
    const char *branch;
};
int call_filter_init(struct call_filter *f, const struct call_select *sel,
                     const struct trace_meta *m, struct err *err);
void call_filter_free(struct call_filter *f);
bool call_filter_takes(const struct call_filter *f, const struct trace *t, int64_t call, int head);

/* ERR_USAGE: no call matches; of which kind, as in "attention". */
int call_select_empty(const char *kind, const struct call_select *sel, struct err *err);

/* Read q, k, v of one head of one call and apply the token order. The strings of h->in are borrowed
 * from the trace. NaN or infinity: ERR_INPUT that names file, call,
 * tensor, head, count and first place, unless allowed. */
int head_load(const struct trace *t, int64_t call, int head, const struct head_load *how,
              struct sim_head *h, struct err *err);

/* The same with the k and v of `owner`, a loaded head of the call with the same KV head, which
 * outlives *h. NULL: as head_load. */
int head_load_sharing(const struct trace *t, int64_t call, int head, const struct head_load *how,
                      const struct sim_head *owner, struct sim_head *h, struct err *err);

/* Bytes that head_load reads. */
int64_t head_load_bytes(const struct trace_meta *m);

/* Resident bytes of a loaded head once all dense rows were asked for. */
int64_t head_load_memory(const struct trace_meta *m, enum precision prec);

#endif
