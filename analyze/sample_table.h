/*
 * sample_table.h - intervals of what was measured on a sample of query rows.
 */
#ifndef LACUNA_SAMPLE_TABLE_H
#define LACUNA_SAMPLE_TABLE_H

#include "analyze/tables.h"

extern const struct table_def table_sample;

#endif
