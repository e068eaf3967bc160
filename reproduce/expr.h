/*
 * expr.h - what layouts.json and recipes write for a number of ours: a metric, or +, -, *, / and
 * parentheses over metrics and numbers, as in "100*(time_quant_ns+time_select_ns)/time_dense_ns".
 */
#ifndef LACUNA_EXPR_H
#define LACUNA_EXPR_H

#include "core/err.h"

/* The value of a metric; NAN where there is none. */
typedef double expr_value(const void *ctx, const char *metric);

/* NAN where a metric is missing or the text is no expression. */
double expr_eval(const char *text, expr_value *value, const void *ctx);

/* Call fn with every metric of the expression. ERR_INPUT: it is none. */
typedef int expr_metric(void *ctx, const char *metric, struct err *err);
int expr_metrics(const char *text, expr_metric *fn, void *ctx, struct err *err);

#endif
