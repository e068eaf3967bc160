/*
 * inputs.h - refusals of a path that holds something else than a command wants: what it is, and how
 * to get what is wanted; files of a directory; shards of a run that its directories know nothing
 * of.
 */
#pragma once

#include "core/err.h"
#include "core/text.h"

#include <stdbool.h>

enum wanted_input { WANT_RECORDS, WANT_TRACE, WANT_MASKS };

/* ERR_INPUT if `path` is known to be of another kind than wanted: records (a directory of a replay
 * or a .jsonl file), a trace, dumped masks or outputs, another HDF5 file, a directory without
 * records. 0 if it is of the wanted kind, or missing or damaged: whoever opens it says that best.
 */
int input_check(const char *path, enum wanted_input want, struct err *err);

/* Paths of the files of a directory whose names fit the shell pattern, sorted; none if it cannot be
 * read. Brackets and stars in the directory's own name are not patterns. */
int input_files(const char *dir, const char *pattern, struct str_list *out, struct err *err);

/* Is `path` a directory with .h5 files and without records? */
bool input_is_traces(const char *path);

/* Warn of shards that no directory has a manifest of: they were never started, or lie elsewhere. A
 * directory with the manifest of an undivided run, or of all shards of some number, lacks nothing;
 * others may complete each other. Paths that are no directories are passed over. `so` ends the
 * sentence. ERR_NOMEM. */
int shards_warn_absent(const struct str_list *dirs, const char *so, struct err *err);
