/*
 * rulechoice.h - what a device chooses by a rule (core/rules.h), made on the CPU.
 */
#pragma once

#include "core/accel.h"
#include "core/method_run.h"

/* Choose by the rule alone, with the parts of the method: the mask of all rows into *m, and what
 * comes beside it into *c->own unless that is NULL. False: it is none of the methods that this can
 * do (spargeattn, sampleattention, flexprefill, xattention, minference and those of pooled_rule).
 */
bool rule_choose(const struct accel_choice *c, const struct head_in *in, struct mask *m);

/* Let the method itself choose, with the parameters of that one of n runs that gives this rule for
 * the head. False: none does. */
bool setting_choose(const struct method_run *runs, int64_t n, const struct accel_choice *c,
                    const struct head_in *in, struct mask *m);
