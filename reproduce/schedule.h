/*
 * schedule.h - the order of jobs, and which run side by side.
 */
#ifndef LACUNA_REPRODUCE_SCHEDULE_H
#define LACUNA_REPRODUCE_SCHEDULE_H

#include "reproduce/jobplan.h"

/* Can be run now: its inputs are there, and no job that runs makes it. */
bool step_waits(const struct plan *p, const struct step *s);

/* Is the key, or the unit's id, that of a job that runs? */
bool plan_runs(const struct plan *p, const char *key);

/* Seconds from the start of step i to the end of the last one that needs it. Timed ones come after
 * everything else whatever is done now, so that they do not count. */
double plan_remaining(const struct plan *p, int i);

/* The step whose job comes next; -1: none can be run now. */
int plan_choose(const struct plan *p);

#endif
