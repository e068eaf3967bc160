/*
 * planmasks.h - the masks of a plan on one trace, for other programs.
 */
#ifndef LACUNA_PLANMASKS_H
#define LACUNA_PLANMASKS_H

#include "analyze/maskexport.h"
#include "core/cmd.h"

/* What is exported: a plan, and a trace on which it is replayed now, or the dump of a replay of it
 * (--dump-masks). */
struct plan_masks {
    const char *plan, *data, *output; /* paths */
    enum mask_format format;
    int64_t bq, bk; /* blocks; 0 = every entry's own */
    const struct common_opts *common;
};

/* Write the masks of all calls of the trace to a .safetensors file. What the replay leaves beside
 * them lies in a folder next to the output, which is removed again. ERR_INPUT where the dump has no
 * masks of this plan, or several traces. */
int plan_masks_export(const struct app *app, const struct plan_masks *x, struct mask_exported *done,
                      struct err *err);

#endif
