/*
 * callattn.h - the heads of a layer through their method on a GPU as one attention call: all masks
 * are chosen at once, and one launch attends to them.
 */
#ifndef LACUNA_CALLATTN_H
#define LACUNA_CALLATTN_H

#include "eval/headattn.h"

/* Can the layer's heads go as a call? Else they go one by one (head_attend). */
bool layer_is_call(const struct layer_job *j);

/* All heads of the layer, those that attend exactly too. */
int call_attend(struct layer_job *j, struct err *err);

#endif
