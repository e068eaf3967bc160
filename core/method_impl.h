/* method_impl.h - calibration files (method_calib.c) for the parsing of runs (method.c). */
#ifndef LACUNA_METHOD_IMPL_H
#define LACUNA_METHOD_IMPL_H

#include "core/buf.h"
#include "core/method.h"

/* Load run->calib and append its content hash to the canonical text. The digits stand without the
 * "xxh3:" of other content ids because ':' separates parameters. */
int method_calib_load(struct method_run *run, struct buf *canonical, struct err *err);

/* Structure, unknown parameters, values and duplicates of the calibration document. */
int method_calib_check(const struct method_run *run, struct err *err);

#endif
