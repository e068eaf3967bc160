/*
 * timer.h - device time of kernels: from CUPTI activity records if libcupti is available, else from
 * CUDA events around the launches. timer_name says which.
 *
 * Every timed piece of work is a span: launches between timer_begin and timer_end. With CUPTI the
 * time of a span is the time in which at least one of its kernels runs: the sum of (end - start),
 * unless they overlap. External correlation ids assign kernels to spans. With events it is the time
 * between two events, which includes gaps between launches. Times and hardware counters come from
 * separate runs.
 */
#ifndef LACUNA_TIMER_H
#define LACUNA_TIMER_H

#include "cuda/device.h"

#include <stdbool.h>
#include <stdio.h>

struct timer;

struct span_time {
    double kernel_ns; /* time in which a kernel, memset or copy of the span runs; with events the
                       * same as span_ns */
    double span_ns;   /* first start to last end */
    int64_t kernels;  /* 0 with events */
};

/* Call before the first CUDA call of the process. If CUPTI is requested and not available, the
 * timer uses events. One timer at a time. */
int timer_open(bool cupti, struct timer **out, struct err *err);
void timer_close(struct timer **t);

const char *timer_name(const struct timer *t);   /* "cupti" or "events" */
const char *timer_reason(const struct timer *t); /* why not CUPTI; "" */

/* Spans do not nest. Ids count from 0. */
int timer_begin(struct timer *t, struct gpu *g, int64_t *id, struct err *err);
int timer_end(struct timer *t, struct gpu *g, struct err *err);

/* Wait for the device and collect the records of all spans so far. ERR_RUN when records were
 * dropped or a span has none, because times would be wrong without a sign of it. */
int timer_collect(struct timer *t, struct gpu *g, struct err *err);

/* The time of a span; call after timer_collect. */
struct span_time timer_span(const struct timer *t, int64_t id);

/* With CUPTI: add up kernels by their names from now on, in spans or not; print them, after
 * timer_collect. */
void timer_by_name(struct timer *t);
void timer_print_names(FILE *to);

/* Number of kernels so far that belong to no span. */
int64_t timer_other(const struct timer *t);

/* Forget all spans. */
void timer_reset(struct timer *t);

/* Median and quartiles (nearest rank) of n samples; sorts x. */
struct quartiles {
    double q1, median, q3;
};
struct quartiles quartiles_of(double *x, int64_t n);

#endif
