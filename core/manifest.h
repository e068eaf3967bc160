/*
 * manifest.h - DIR/manifest.json: how an output directory came about (argv, versions, inputs with
 * hashes, seeds, host, times, status), written atomically at the start ("running") and at the end.
 */
#ifndef LACUNA_MANIFEST_H
#define LACUNA_MANIFEST_H

#include "core/err.h"
#include "core/json.h"

#include <stdint.h>

struct manifest;

/* Start a manifest for DIR. A manifest already there is kept as history: its inputs' hashes are
 * compared by manifest_input. */
int manifest_start(const char *dir, int argc, char **argv, struct manifest **out, struct err *err);

/* The same under another file name: shards that share a directory have a manifest each. */
int manifest_start_as(const char *dir, const char *name, int argc, char **argv,
                      struct manifest **out, struct err *err);

/* Inputs may differ from earlier runs (--force). */
void manifest_accept_changes(struct manifest *m);

/* Record an input file with its content id. When an earlier manifest of this directory has the same
 * path with another id: ERR_INPUT ("changed since; use --force or another directory"). */
int manifest_input(struct manifest *m, const char *path, const char *content_id, struct err *err);

void manifest_str(struct manifest *m, const char *key, const char *value);
void manifest_num(struct manifest *m, const char *key, double value);
void manifest_json(struct manifest *m, const char *key, json_t *value); /* takes the reference */

/* Write with the given status ("ok", "interrupted", "failed") and free. */
int manifest_finish(struct manifest **m, const char *status, struct err *err);

const char *lacuna_version(void);  /* "0.1.0" */
const char *lacuna_build_id(void); /* git describe at build time, compiler and flags */

#endif
