/*
 * pagetables.h - the tables of a page, as analyze/format.h writes them.
 */
#ifndef LACUNA_REPRODUCE_PAGETABLES_H
#define LACUNA_REPRODUCE_PAGETABLES_H

#include "analyze/table.h"
#include "reproduce/page.h"

struct page_tables {
    struct table *t; /* owned: the blocks; printed numbers of a figure; the claims */
    int n, n_blocks; /* the first n_blocks are the blocks */
};

/* Free `out` also after a failure. */
int page_tables_make(const struct page *p, struct page_tables *out, struct err *err);
void page_tables_free(struct page_tables *t);

#endif
