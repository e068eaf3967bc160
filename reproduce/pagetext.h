/*
 * pagetext.h - what the writers of a page share.
 */
#ifndef LACUNA_PAGETEXT_H
#define LACUNA_PAGETEXT_H

#include "reproduce/page.h"

/* The caption of the layout, or "". */
const char *page_caption(const struct page *p);

/* Words that repeat the page: "lacuna reproduce ID [--quick] [--backend cuda] [--trace ROLE=T.h5]
 * -o DIR"; models and traces without their folders. */
void page_command(const struct page *p, struct buf *b);

/* "No agreement is tested: ..." or "N of M cells agree ..."; nothing where there is no number. */
void page_agreement(const struct page *p, struct buf *b);

/* Printed numbers of a figure. */
struct paper_number;
bool figure_number(const struct page *p, int64_t i, struct paper_number *out);

/* Is there a finished drawing? */
bool page_has_figure(const struct page *p);

/* "spargeattn-9": the name of the files of page "spargeattn:9". */
void page_file(const char *id, struct buf *b);

#endif
