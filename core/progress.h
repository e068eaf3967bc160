/*
 * progress.h - one line of progress on stderr: done/total, what, rate, ETA.
 *
 * On a terminal the line is redrawn at most 5 times a second and appears after 1 s; otherwise one
 * log line every 30 s. Work is counted in units of cost (pairs, bytes), so that the ETA is honest.
 * Thread-safe.
 */
#ifndef LACUNA_PROGRESS_H
#define LACUNA_PROGRESS_H

#include <stdint.h>

struct progress;

/* total: cost of all the work; items: number of items behind it. NULL is accepted by all calls. */
struct progress *progress_start(const char *what, double total, int64_t items);
void             progress_add(struct progress *p, double cost, int64_t items, const char *current);
void             progress_end(struct progress **p);

#endif
