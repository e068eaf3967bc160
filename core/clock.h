/*
 * clock.h - a monotonic clock, for durations, and a stopwatch.
 */
#pragma once

#include "core/log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* Nanoseconds of the monotonic clock, from an arbitrary start. */
static inline double clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static inline double clock_s(void)
{
    return 1e-9 * clock_ns();
}

/* Wall time of the steps of something, as one line of the log at its most talkative level:
 * { .since = clock_ns() }. */
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
