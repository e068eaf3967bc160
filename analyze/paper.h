/*
 * paper.h - numbers printed in papers (datasets/paper/NAME.csv) beside the numbers of our records.
 */
#ifndef LACUNA_PAPER_H
#define LACUNA_PAPER_H

#include "analyze/tables.h"

/* Build of the table "paper". One row per printed number and group of records (model, length,
 * method, parameters) that measures the same quantity; printed numbers without records are counted
 * by table, with what they need. */
int build_paper(const struct table_def *def, const struct recset *set,
                const struct table_request *req, struct table *out, struct err *err);

#endif
