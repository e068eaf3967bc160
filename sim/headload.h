/*
 * headload.h - heads of a trace as method inputs.
 */
#ifndef LACUNA_HEADLOAD_H
#define LACUNA_HEADLOAD_H

#include "core/trace.h"
#include "sim/simulate.h"

struct head_load {
    enum precision precision;
    const char *permute;  /* token order, "none" = as stored; core/permute.h names */
    uint64_t seed;        /* of permute=random */
    bool allow_nonfinite; /* let NaN and infinity pass */
    bool no_reference;    /* in.out and in.lse stay NULL */
};

/* Read q, k, v of one head of one call, apply the token order, compute the dense reference. The
 * strings of h->in are borrowed from the trace. NaN or infinity: ERR_INPUT that names file, call,
 * tensor, head, count and first place, unless allowed. */
int head_load(const struct trace *t, int64_t call, int head, const struct head_load *how,
              struct sim_head *h, struct err *err);

/* Bytes that head_load reads. */
int64_t head_load_bytes(const struct trace_meta *m);

/* Resident bytes of a loaded head with its dense reference. */
int64_t head_load_memory(const struct trace_meta *m, enum precision prec);

#endif
