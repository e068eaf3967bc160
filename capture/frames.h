/*
 * frames.h - a clip as PNG frames.
 */
#ifndef LACUNA_FRAMES_H
#define LACUNA_FRAMES_H

#include "core/err.h"

#include <stdint.h>

/* Write DIR/frame-000.png ... from x [3][t][h][w], RGB in [-1, 1] (clamped). DIR is created. */
int frames_write(const char *dir, const float *x, int64_t t, int64_t h, int64_t w, struct err *err);

#endif
