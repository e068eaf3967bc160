/*
 * calibinside.h - search of a method's parameters inside the model (--calibrate-inside): layer by
 * layer over windows of a text, each layer on the q, k, v that the calibrated layers before it have
 * left. `lacuna calibrate` searches on traces of exact attention instead, as the authors' tuners
 * do.
 */
#ifndef LACUNA_CALIBINSIDE_H
#define LACUNA_CALIBINSIDE_H

#include "core/method_run.h"
#include "eval/evaltask.h"
#include "eval/layerattn.h"

/* Windows of the text that are searched together, as in the papers. */
#define CALIB_INSIDE_WINDOWS 5

struct calib_inside {
    const struct eval_model *m;
    const struct eval_how *how; /* exact layers and heads stay exact, and are not searched */
    const char *text;           /* path */
    int64_t tokens;             /* of a window, the id in front included */
    const char *dir;            /* receives the calibration file */
    int jobs;
};

/* Replace *run, whose method can be calibrated and has no calibration, by one with the calibration
 * that is found; its file, calib-METHOD-ID.json in dir, is used again where it is there. methods:
 * all of them. */
int calib_inside(const struct calib_inside *c, const struct method *const *methods,
                 struct method_run *run, struct err *err);

#endif
