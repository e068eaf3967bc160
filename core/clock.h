/*
 * clock.h - a monotonic clock, for durations.
 */
#ifndef LACUNA_CLOCK_H
#define LACUNA_CLOCK_H

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

#endif
