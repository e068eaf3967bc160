/*
 * stopwatch.h - wall time of the steps of something, as one line of the log at its most talkative
 * level.
 */
#ifndef LACUNA_STOPWATCH_H
#define LACUNA_STOPWATCH_H

#include "core/clock.h"
#include "core/log.h"

#include <stdio.h>
#include <string.h>

/* { .since = clock_ns() } */
struct stopwatch {
    double since;
    char text[240];
};

/* The step that ends now. */
static inline void stopwatch_lap(struct stopwatch *w, const char *step)
{
    double now = clock_ns();
    size_t n = strlen(w->text);
    snprintf(w->text + n, sizeof w->text - n, "%s%s %.2f", n ? ", " : "", step,
             (now - w->since) * 1e-6);
    w->since = now;
}

static inline void stopwatch_log(const struct stopwatch *w, const char *what)
{
    log_debug("%s: ms of %s", what, w->text);
}

#endif
