/*
 * session_runs.h - runs of heads of a call that ask for the same thing, in selections and
 * attention.
 *
 * Whole groups, or heads of one group, are heads of one problem, whose keys and values they share.
 */
#ifndef LACUNA_SESSION_RUNS_H
#define LACUNA_SESSION_RUNS_H

#include "cuda/select/select.h"
#include "cuda/session.h"

struct head_run {
    int first, n, kv; /* heads, and those of keys and values */
};

/* The run that begins with head `first` of n heads in groups. */
typedef bool same_head_fn(const void *ctx, int a, int b);
struct head_run run_from(int n, int group, int first, same_head_fn *same, const void *ctx);

/* Operands of a run, and its part of x->out and x->lse, which are of the whole call. */
struct attn_tensors run_tensors(const struct session_call *c, const struct attn_tensors *x,
                                struct head_run r);

/* The heads of a call that are no copies. */
struct head_run session_own_heads(const struct session_call *c);

/* same_head_fn over struct accel_choice [n]: one launch can choose for both. */
bool run_same_choice(const void *choices, int i, int k);

/* The GPU side for a run and its problem, given the choices of the call's heads; *full: there is
 * nothing to choose, every pair is kept. NULL, with the reason, where the device does not choose.
 */
const struct select_method *run_select(const struct session_call *c,
                                       const struct accel_choice *choices, struct head_run r,
                                       struct select_problem *p, bool *full, char why[160]);

/* A copy of the heads' choices, one after the other; owned by the caller. */
int call_choices(const struct accel_call *call, struct accel_choice **out, struct err *err);

#endif
