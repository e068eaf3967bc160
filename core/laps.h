/*
 * laps.h - wall time of the steps of something, as one line of the log at its most talkative level.
 */
#ifndef LACUNA_LAPS_H
#define LACUNA_LAPS_H

#include "core/clock.h"
#include "core/log.h"

#include <stdio.h>
#include <string.h>

/* { .since = clock_ns() } */
struct laps {
    double since;
    char text[240];
};

/* The step that ends now. */
static inline void lap(struct laps *l, const char *step)
{
    double now = clock_ns();
    size_t n = strlen(l->text);
    snprintf(l->text + n, sizeof l->text - n, "%s%s %.2f", n ? ", " : "", step,
             (now - l->since) * 1e-6);
    l->since = now;
}

static inline void laps_log(const struct laps *l, const char *what)
{
    log_debug("%s: ms of %s", what, l->text);
}

#endif
