/*
 * where.h - conditions that choose records: --where of analyze, compare and plot.
 *
 *   KEY=V|V...   key or parameter (keys.h): shell patterns, numbers, or ranges a..b
 *   KEY!=V|V...  none of these
 *   METRIC<X, <=, >, >=, and KEY or parameter likewise, by its number
 *
 * Conditions are separated by commas; all have to hold. A record without the metric, or whose
 * parameter is no number, fails a comparison.
 */
#ifndef LACUNA_WHERE_H
#define LACUNA_WHERE_H

#include "analyze/load.h"

/* Help text of the option, the same in every command. */
#define WHERE_HELP                                                                                 \
    "Only records for which all conditions hold: KEY=V|V, KEY!=V, KEY=1..3, tau<=0.01, "           \
    "cra_p1>0.9; keys, parameters, metrics. Repeatable."

/* Keep the records for which all conditions of all texts hold. ERR_USAGE for a bad condition;
 * ERR_INPUT that names the condition after which nothing was left. */
int recset_where(const struct str_list *texts, struct recset *set, struct err *err);

#endif
