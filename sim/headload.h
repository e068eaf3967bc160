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
