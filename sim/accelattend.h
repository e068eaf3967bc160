/*
 * accelattend.h - attention over a head's masks on a GPU back end (core/kernel.h).
 */
#ifndef LACUNA_ACCELATTEND_H
#define LACUNA_ACCELATTEND_H

#include "core/kernel.h"
#include "core/mask.h"

/* head: all but its lists. masks[0..n) cover all its rows in order. Fills r (r->out and r->lse are
 * the caller's); to r->host_plan_ns it adds the time of making the lists. Returns METHOD_SKIP with
 * `why` when the back end cannot attend to such a head, or the mask's bits would take too much
 * memory. */
int accel_attend_masks(const struct accel *a, struct accel_session *s,
                       const struct accel_head *head, const struct mask *masks, int64_t n,
                       struct accel_result *r, char why[160], struct err *err);

#endif
