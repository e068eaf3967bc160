/*
 * trace_writer.h - the trace writer's state, which its files share.
 */
#ifndef LACUNA_TRACE_WRITER_H
#define LACUNA_TRACE_WRITER_H

#include "core/trace_internal.h"

struct array_writer {
    struct trace_array a;
    hid_t dset;
    int64_t *next;            /* [slices], rows already there */
    struct hash_state **hash; /* [slices] */
};

struct trace_writer {
    struct h5_part part;
    struct trace_meta meta;
    struct trace_form form;
    hid_t type, calls, run; /* element type of q, k, v; groups */
    bool in_call, failed;
    bool extended; /* a call has something of format 1.1 */
    int last_order;
    int64_t n_calls;
    struct trace_call call;
    hid_t group; /* of the current call */
    struct array_writer out[CALL_ARRAYS];
    struct trace_array run_arrays[RUN_ARRAYS];
    struct buf content;
};

/* Put what helps, if anything does, behind the message of a failed write. */
void trace_writer_advise(const struct trace_writer *w, struct err *err);

/* Release the datasets and the group of the current call. */
void trace_writer_end_arrays(struct trace_writer *w);

#endif
