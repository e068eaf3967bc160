/*
 * timer.h - device time of kernels: from CUPTI activity records when libcupti is there, else from
 * CUDA events around the launches. The record says which.
 *
 * Every timed piece of work is a span: launches between timer_begin and timer_end. With CUPTI a
 * span's time is that in which one of its kernels runs, attributed by external correlation ids: the
 * sum of (end - start) unless they overlap. With events it is the time between two events, which
 * includes launch gaps. Times and hardware counters come from separate runs.
 */
#ifndef LACUNA_TIMER_H
#define LACUNA_TIMER_H

#include "cuda/device.h"

#include <stdbool.h>

struct timer;

struct span_time {
    double  kernel_ns; /* with a kernel, memset or copy of the span running; events: as span_ns */
    double  span_ns;   /* first start to last end */
    int64_t kernels;   /* 0 with events */
};

/* Before the first CUDA call of the process. With CUPTI asked for and not to be had, events are
 * used. One timer at a time. */
int  timer_open(bool cupti, struct timer **out, struct err *err);
void timer_close(struct timer **t);

const char *timer_name(const struct timer *t);   /* "cupti" or "events" */
const char *timer_reason(const struct timer *t); /* why not CUPTI; "" */

/* Spans do not nest. Ids count from 0. */
int timer_begin(struct timer *t, struct gpu *g, int64_t *id, struct err *err);
int timer_end(struct timer *t, struct gpu *g, struct err *err);

/* Wait for the device and collect the records of all spans so far. ERR_RUN when records were
 * dropped or a span has none: such a time must not be averaged around. */
int timer_collect(struct timer *t, struct gpu *g, struct err *err);

/* After timer_collect. */
struct span_time timer_span(const struct timer *t, int64_t id);

/* Kernels that belong to no span, seen so far. */
int64_t timer_other(const struct timer *t);

/* Forget all spans. */
void timer_reset(struct timer *t);

/* Median and quartiles (nearest rank) of n samples; sorts x. */
struct quartiles {
    double q1, median, q3;
};
struct quartiles quartiles_of(double *x, int64_t n);

#endif
