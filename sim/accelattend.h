/*
 * accelattend.h - attention over a head's masks on a GPU back end (core/accel.h).
 */
#ifndef LACUNA_ACCELATTEND_H
#define LACUNA_ACCELATTEND_H

#include "core/accel.h"
#include "core/mask.h"

/* Attend to `head` (everything but its lists is set) over masks[0..n), which cover all its rows in
 * order. Fills r, whose out and lse are the caller's, and adds the time to make the lists to
 * r->host_plan_ns. Returns METHOD_SKIP with `why` when the back end cannot attend to such a head,
 * or when the mask's bits would take too much memory. */
int accel_attend_masks(const struct accel *a, struct accel_session *s,
                       const struct accel_head *head, const struct mask *masks, int64_t n,
                       struct accel_result *r, char why[160], struct err *err);

#endif
