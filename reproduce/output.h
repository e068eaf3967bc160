/*
 * output.h - the files of a reproduction: pages, figures, the index, and DIR/plan.json, which says
 * of what each page was made.
 */
#ifndef LACUNA_OUTPUT_H
#define LACUNA_OUTPUT_H

#include "reproduce/page.h"

struct output {
    struct plan *plan;
    const struct paper_data *data;
    json_t *made; /* owned: recipe id -> hash of the page's inputs */
    bool changed;
    int written, failed;
};

/* Working folder: DIR/jobs. Read ../plan.json, if there is one. */
int output_open(struct output *o, struct err *err);

/* Write the page of a recipe, unless it was made of the same. */
int output_page(struct output *o, int recipe, struct err *err);

/* ../index.html and ../plan.json, if a page changed. */
int output_close(struct output *o, struct err *err);
void output_free(struct output *o);

#endif
