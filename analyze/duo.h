/*
 * duo.h - a plan from DuoAttention's table of retrieval heads (arXiv 2410.10819): the heads that
 * its training found to need the whole context attend densely, the others to sink and window.
 */
#pragma once

#include "analyze/choose.h"

struct duo_request {
    const char *table;     /* text: a line of numbers per layer, a number per KV head */
    double sparsity;       /* share of KV heads that stream */
    const char *streaming; /* their parameters */
};

/* Write a plan for the heads of the records. The KV heads below the quantile `sparsity` of the
 * table, clipped to [0, 1] as in the code, stream; the code breaks ties by noise, here the first in
 * the table stream. ERR_INPUT for a table that lacks a head of the records, or records of several
 * models. */
int duo_plan(const struct recset *set, const struct duo_request *req, struct jw *w,
             struct choose_summary *sum, struct err *err);
