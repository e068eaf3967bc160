/*
 * drawnrecords.h - the records that a drawing shows.
 */
#ifndef LACUNA_REPRODUCE_DRAWNRECORDS_H
#define LACUNA_REPRODUCE_DRAWNRECORDS_H

#include "reproduce/jobplan.h"

/* Write ID.part/drawn.jsonl: the records of the step's inputs, with the names of lines and
 * calibrations that the recipe gives. The inputs are done. */
int drawn_records_write(const struct plan *p, const struct step *s, struct err *err);

#endif
