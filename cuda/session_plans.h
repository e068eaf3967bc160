/*
 * session_plans.h - plans of static masks that stay on the device (accel_call_work.static_id): what
 * their kernels read and the order of the work, for the calls that follow.
 */
#ifndef LACUNA_SESSION_PLANS_H
#define LACUNA_SESSION_PLANS_H

#include "cuda/session.h"

/* Device memory of such plans. Beyond it the one that was not asked for longest goes. */
#define SESSION_PLAN_BYTES (2LL << 30)

struct session_plan {
    uint64_t id;
    struct attn_problem problem;
    struct attn_plan plan; /* all on the device */
    int64_t *ptr;          /* [heads][groups] + 1 as in accel_call_lists, owned */
    void *memory;          /* device, owned */
    int64_t bytes, used;   /* used: s->plans_used when it was asked for last */
    struct session_plan *next;
};

/* NULL: it is not there. What it returns is valid until the next session_keep_plan. */
const struct session_plan *session_find_plan(struct accel_session *s, uint64_t id);

/* Keep a plan of lists of the host: *plan, which stays the caller's, is on the device afterwards,
 * unless it takes too much memory. groups: rows of blocks of a head in the lists. */
int session_keep_plan(struct accel_session *s, uint64_t id, const struct attn_problem *p,
                      const struct attn_csr *csr, int64_t groups, struct attn_plan *plan,
                      struct err *err);

void session_drop_plans(struct accel_session *s);

/* struct accel's holds. */
bool session_holds(struct accel_session *s, uint64_t id);

#endif
