/*
 * select_session.h - what selections of a head and of a call share.
 */
#ifndef LACUNA_SELECT_SESSION_H
#define LACUNA_SELECT_SESSION_H

#include "core/accel.h"
#include "cuda/select/select.h"

/* The problem of one head of a choice, without q, k, v. */
struct select_problem select_problem_of(const struct accel_choice *c);

/* After a launch: the lists of a head of the job as a mask, checked, and what the choice wants
 * beside it. The caller's, released with mask_free also after an error. */
int select_head_mask(struct gpu *g, const struct select_job *job, int head,
                     const struct accel_choice *c, struct mask *m, struct err *err);

#endif
