/*
 * manifest.h - DIR/manifest.json: how an output directory was made: argv, versions, inputs with
 * hashes, seeds, host, times, status. Written atomically at the start ("running") and at the end,
 * with its checksum (core/sealed.h).
 */
#pragma once

#include "core/err.h"
#include "core/json.h"

#include <stdbool.h>

struct manifest;

/* Start a manifest for DIR. An existing manifest is kept as history, and manifest_input compares
 * the hashes of its inputs. */
int manifest_start(const char *dir, int argc, char **argv, struct manifest **out, struct err *err);

/* The same under another file name: shards that share a directory have a manifest each. */
int manifest_start_as(const char *dir, const char *name, int argc, char **argv,
                      struct manifest **out, struct err *err);

/* Was the same command killed in DIR before its end? Its outputs are there to be replaced. To be
 * asked before manifest_start_as. */
bool manifest_killed(const char *dir, const char *name, int argc, char **argv);

/* Let inputs differ from those of earlier runs (--force). */
void manifest_accept_changes(struct manifest *m);

/* Note an input file with its content id, for manifest_write. When an earlier manifest of this
 * directory has the same path with another id: ERR_INPUT ("changed since; use --force or another
 * directory"). */
int manifest_input(struct manifest *m, const char *path, const char *content_id, struct err *err);

void manifest_num(struct manifest *m, const char *key, double value);
void manifest_json(struct manifest *m, const char *key, json_t *value); /* takes the reference */

/* Write what is known so far, with status "running", for `lacuna status`. */
int manifest_write(struct manifest *m, struct err *err);

/* Write with the given status ("ok", "interrupted", "failed") and free. */
int manifest_finish(struct manifest **m, const char *status, struct err *err);

/* The same with the status of a command that ends with rc; *m may be NULL. Returns rc, or the code
 * of what went wrong here. */
int manifest_end(struct manifest **m, int rc, struct err *err);
