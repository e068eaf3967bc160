/*
 * foundparams.h - parameters that a replay found for a target of the whole model, taken over by a
 * run inside the model, where the search itself would cost a prefill per step.
 */
#ifndef LACUNA_FOUNDPARAMS_H
#define LACUNA_FOUNDPARAMS_H

#include "core/method_run.h"

/* Give every run with a target per=model the parameters that the records of `dir` (a directory or a
 * file) found for the same method text on a trace of this model: it becomes that setting, without a
 * target. ERR_INPUT where the records have none, or different ones of several traces. */
int found_params_take(const struct method *const *methods, const char *dir, const char *model,
                      struct method_run *runs, int64_t n, struct err *err);

#endif
