/*
 * predictions.h - DIR/predictions.jsonl: the texts that models answered with, one JSON line per
 * record that has one, under the record's key.
 */
#ifndef LACUNA_PREDICTIONS_H
#define LACUNA_PREDICTIONS_H

#include "core/record.h"

struct predictions;

/* Open a file for appending. Lines whose record is not in `records` (a run was stopped between the
 * two), and a torn last line, are dropped. fresh: drop all. */
int predictions_open(const char *path, const struct record_file *records, bool fresh,
                     struct predictions **out, struct err *err);
void predictions_close(struct predictions **p); /* accepts NULL inside */

/* Append the text of a record; added and synced before the record is written. */
int predictions_add(struct predictions *p, const struct record *r, const char *prompt_id,
                    const char *text, struct err *err);
int predictions_sync(struct predictions *p, struct err *err);

#endif
