/*
 * journal.h - what a calibration has found so far: a line per finished search, so that a stopped
 * one goes on where it was.
 */
#ifndef LACUNA_JOURNAL_H
#define LACUNA_JOURNAL_H

#include "core/err.h"

#include <stdint.h>

struct journal;

/* Called with every finished job of a journal: a JSON object, or the reason of a skip. */
typedef int journal_sink(void *ctx, int64_t job, const char *text, const char *skip,
                         struct err *err);

/* Open the journal at `path`, or begin one. `identity` is one line that says what is calibrated and
 * how; a journal with another one is ERR_USAGE. A torn last line is dropped. Another process that
 * has it open: ERR_RUN. */
int journal_open(const char *path, const char *identity, journal_sink *sink, void *ctx,
                 struct journal **out, struct err *err);

/* Add a finished job; one of text and skip is NULL. Thread-safe. */
int journal_add(struct journal *j, int64_t job, const char *text, const char *skip,
                struct err *err);

void journal_close(struct journal **j); /* the file stays */

#endif
