/*
 * accelattend.h - attention over the masks of a head, or of the heads of a call, on a GPU back end
 * (core/accel.h).
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

/* Chunks of a head of a call, which cover all its rows in order. */
struct head_masks {
    const struct mask *masks;
    int64_t n;
};

/* The same for the heads of a call [w->call->n], in one geometry and as few launches as the filters
 * allow; w->lists is set here. Lists of heads are made on `jobs` threads, unless the device holds
 * what it made of masks with the number w->static_id. `heads` is not read where w->units says that
 * the masks stay on the device. */
int accel_attend_call(const struct accel *a, struct accel_session *s, int jobs,
                      struct accel_call_work *w, const struct head_masks *heads,
                      struct accel_call_result *r, char why[160], struct err *err);

#endif
