/* method_impl.h - the part of method_calib.c (calibration files) that method.c needs to parse runs.
 */
#ifndef LACUNA_METHOD_IMPL_H
#define LACUNA_METHOD_IMPL_H

#include "core/buf.h"
#include "core/hash.h"
#include "core/method_run.h"

/* Read the calibration at `path` into a run whose parameters are at their defaults: run->calib,
 * calib_doc, given (none yet), and the file's settings into run->params. `id` becomes the hash of
 * its content without the "xxh3:" of other ids, because ':' separates parameters. */
int method_calib_load(struct method_run *run, const char *path, char id[HASH_TEXT_MAX],
                      struct err *err);

/* Does an entry of "heads" set this parameter? */
bool method_calib_sets(const struct method_run *run, const char *name);

/* The method's validate on run->params. What it changes there on behalf of a given parameter counts
 * as given too, as pv does where lambda is another way to write it. */
int method_calib_validate(struct method_run *run, struct err *err);

/* Places, unknown parameters, values and duplicates of all heads. */
int method_calib_check(const struct method_run *run, struct err *err);

#endif
