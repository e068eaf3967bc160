/*
 * accelattend.h - attention over the masks of a call on a GPU back end (core/accel.h).
 */
#ifndef LACUNA_ACCELATTEND_H
#define LACUNA_ACCELATTEND_H

#include "core/accel.h"

struct attend_how {
    int jobs;              /* threads that make lists */
    int64_t section_bytes; /* of tiles, before a section is full; 0: the default */
    uint64_t static_id;    /* as in struct accel_lists */
    bool untimed;          /* the same */
};

/* Attend to the call's heads over their chunks, or over masks that stay on the device, in one
 * geometry and as few launches as filters and memory allow. Fills *r and the heads' results, and
 * adds the time to make the lists to r->host_plan_ns. METHOD_SKIP with `why` when the back end
 * cannot attend to such heads, or when a mask's bits would take too much memory. */
int accel_attend_masks(const struct accel *a, struct accel_session *s, const struct attend_how *how,
                       const struct accel_call *call, struct accel_result *r, char why[160],
                       struct err *err);

#endif
