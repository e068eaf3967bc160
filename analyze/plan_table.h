/*
 * plan_table.h - the table "plan": what a plan gains over the best single setting and over dense,
 * on the traces that it was made from and on others.
 */
#ifndef LACUNA_PLAN_TABLE_H
#define LACUNA_PLAN_TABLE_H

#include "analyze/tables.h"

extern const struct table_def table_plan;

#endif
