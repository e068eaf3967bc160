/*
 * progress.h - one line of progress on stderr: done/total, what, rate, ETA.
 *
 * On a terminal the line is redrawn at most 5 times a second and appears after 1 s; otherwise one
 * log line every 30 s. Progress is counted in cost (pairs, bytes) rather than in items, because
 * items differ in size and the ETA follows cost. Thread-safe.
 */
#pragma once

#include <stdint.h>

/* AUTO: as above. JSON: one JSON line a second on stderr, for wrappers. */
enum progress_mode { PROGRESS_AUTO, PROGRESS_JSON, PROGRESS_NONE };
void progress_set_mode(enum progress_mode mode);

struct progress;

/* Begin to show progress. total: cost of all the work; items: number of items that it consists of.
 * `what` is copied. All calls accept NULL. progress_end frees *p. */
struct progress *progress_start(const char *what, double total, int64_t items);
void progress_add(struct progress *p, double cost, int64_t items, const char *current);
void progress_end(struct progress **p);

/* From now on each line shows the growth of seconds(ctx) as a share of the time since this call:
 * "GPU in use 63 %". Any thread may call `seconds` while it draws a line. */
void progress_meter(struct progress *p, const char *name, double (*seconds)(void *ctx), void *ctx);

#define DURATION_TEXT 32 /* bytes of any duration */

/* Write a duration as "16 s", "3:05 min" or "2:10 h". */
void duration_text(double seconds, char text[DURATION_TEXT]);
