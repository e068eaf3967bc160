/*
 * table_calls.h - times of whole calls in a table whose rows are of heads, or of calls alone.
 */
#ifndef LACUNA_TABLE_CALLS_H
#define LACUNA_TABLE_CALLS_H

#include "analyze/group.h"
#include "analyze/table.h"

/* Is one of the metrics taken from the calls beside the groups? */
bool calls_in_columns(const struct grouping *gs, const struct str_list *metrics);

/* Number of ok calls beside a group. Sets *other where they have other heads than its cells. */
int64_t calls_beside(const struct grouping *gs, const struct group *g, bool *other);

/* Is every metric one that only calls have, so that the table is of calls? */
bool calls_only(const struct recset *set, const struct str_list *metrics);

/* Say below the table which columns are of calls, whose they are, and what is left out. */
void calls_note(const struct grouping *gs, const struct recset *set, const struct str_list *metrics,
                bool other, struct table *t);

#endif
