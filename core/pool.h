/*
 * pool.h - a parallel loop over independent work items.
 */
#pragma once

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Work on item i. `worker` is 0..jobs-1, for per-worker scratch. Returns 0 or a negative code with
 * err set; the first failure stops the hand-out of further items. */
typedef int pool_fn(void *ctx, int64_t item, int worker, struct err *err);

/* Run fn for items 0..n-1 on `jobs` threads (jobs <= 1: in the caller). Items start in order.
 * Returns the first error, or ERR_INTERRUPTED when interrupted() became true (items in flight
 * are finished). */
int pool_run(int jobs, int64_t n, pool_fn *fn, void *ctx, struct err *err);

int cpu_count(void);  /* processors this process may use */
int cpu_online(void); /* processors of the machine */

/* SIGINT, SIGTERM, SIGHUP and SIGQUIT set a flag that long loops poll. A program that is still
 * there 0.8 s later removes its unfinished files and exits; a second signal of its kind kills.
 * SIGTERM, SIGHUP and SIGQUIT stay ignored where they are (nohup). */
void interrupt_install(void);

/* Let signals kill the program again: for its end, where nothing polls the flag any more and a
 * library may hang. */
void interrupt_restore(void);
bool interrupted(void);
