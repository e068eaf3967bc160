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
#pragma once

#include "cuda/device.h"

#include <stdbool.h>
#include <stdio.h>

struct timer;

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

/* The time of a span in ns; call after timer_collect. */
double timer_ns(const struct timer *t, int64_t id);

/* With CUPTI: add up kernels by their names from now on, in spans or not; print them, after
 * timer_collect. */
void timer_by_name(struct timer *t);
void timer_print_names(FILE *to);

/* Forget all spans. */
void timer_reset(struct timer *t);

/* Median and quartiles (nearest rank) of n samples; sorts x. */
struct quartiles {
    double q1, median, q3;
};
struct quartiles quartiles_of(double *x, int64_t n);

/* libcupti, opened at run time: once, and never closed, because it has threads. NULL with the
 * reason in `why`. */
void *cupti_library(char *why, size_t size);

/* Look up a function of the library; false with the reason in `why`. */
bool cupti_symbol(void *lib, const char *name, void *function, char *why, size_t size);
