/*
 * callrecord.h - the record of a call: what all its heads together took.
 */
#ifndef LACUNA_CALLRECORD_H
#define LACUNA_CALLRECORD_H

#include "core/accel.h"
#include "sim/accelchoice.h"

struct call_record {
    const struct attn_in *x; /* of a head */
    const struct accel_call_result *res;
    const struct choice **choices; /* [n] of its heads */
    int n;
    struct record *record;
    double *choose_ns; /* as in struct sim_call */
};

/* Notes, times and counters into c->record, whose status becomes ok. */
int call_record_times(const struct call_record *c, struct err *err);

#endif
