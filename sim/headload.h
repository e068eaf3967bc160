/*
 * headload.h - heads with their own storage: q, k, v and the exact map made of them, read from a
 * trace as inputs for methods.
 */
#pragma once

#include "core/method.h"
#include "core/trace.h"
#include "sim/blocks/exact.h"

#include <stdint.h>

/* A head with its own storage. Not to be moved: h->in points into it. */
struct sim_head {
    struct head_in in;        /* views into the members below */
    struct exact exact;       /* in.exact */
    float *q, *k, *v;         /* owned */
    bool borrows_kv;          /* but for k and v, which are another head's of the group */
    struct row_sample sample; /* in.rows, where the trace has a sample */
    float *rel;               /* owned: relative bias [2 n_k - 1] of the trace, or NULL */

    /* Where a head of a trace was read, for in.queries and in.operand. */
    const struct trace *trace;
    int64_t call;
    int number;
    bool allow_nonfinite;

    /* Set for a head in another token order (sim_head_reorder). */
    struct exact *from; /* that of the head it comes from, which outlives this one */
    int64_t *perm;      /* owned: row i is row perm[i] there */
};

/* Make the views and the exact map of a head whose q, k, v (owned by *h) and h->in, with shapes,
 * scale and causality, are in place. */
void sim_head_ready(struct sim_head *h, enum precision prec);
void sim_head_free(struct sim_head *h);

/* Copy of a head with q, k, v in the token order `order` (permute.h). Dense rows of *h are moved
 * from in->exact, which has to outlive it, and not computed again. Needs a bidirectional head of a
 * video with nq = nk; otherwise ERR_USAGE. Release with sim_head_free. */
int sim_head_reorder(const struct head_in *in, const char *order, uint64_t seed, struct sim_head *h,
                     struct err *err);

struct head_load {
    enum precision precision;
    const char *permute;  /* token order, a name of core/permute.h; "none" = as stored */
    uint64_t seed;        /* of permute=random */
    bool allow_nonfinite; /* let NaN and infinity pass */
};

/* Open the traces that the arguments of a command name (trace_list), each once, into *traces, which
 * grows as they open and is to be closed in any case. */
int traces_open(char *const *args, int64_t n_args, struct trace ***traces, int64_t *n,
                struct err *err);
void traces_close(struct trace ***traces, int64_t n);

/* ERR_INPUT naming a trace that holds a sample of query rows, which does not do because `why`. */
int traces_whole(struct trace *const *traces, int64_t n, const char *why, struct err *err);

/* ERR_INPUT naming a trace of a decode phase that lacks queries of its prompt. */
int traces_prefill(struct trace *const *traces, int64_t n, struct err *err);

/* ERR_INPUT naming a trace without a decode phase. */
int traces_decode(struct trace *const *traces, int64_t n, struct err *err);

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

/* What the trace says of one head of one call: h->in without q, k, v and exact map. Its strings are
 * borrowed from the trace. */
int head_shape(const struct trace *t, int64_t call, int head, const struct head_load *how,
               struct sim_head *h, struct err *err);

/* The same with q, k, v in the token order. NaN or infinity: ERR_INPUT that names file, call,
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
