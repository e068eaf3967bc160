/*
 * report.h - one self-contained HTML page of tables and figures, and the files it is made of.
 */
#ifndef LACUNA_REPORT_H
#define LACUNA_REPORT_H

#include "analyze/load.h"
#include "core/buf.h"
#include "core/cmd.h"
#include "core/opt.h"

/* What a report is made from. */
struct report {
    const struct app *app;
    const char *dir; /* where it goes */
    const char *title;
    struct str_list records; /* directories, as the user named them */
    struct str_list traces;  /* trace files */
    struct str_list masks;   /* files of dumped masks */
    struct recset set;
    bool figures;    /* draw any */
    bool no_gnuplot; /* set when a figure could not be drawn for want of gnuplot */
    struct buf page; /* the HTML body so far */
    int n_figures, n_tables;
};

void report_free(struct report *r);

/* Traces and mask files that the manifests of the record directories name and that still exist are
 * added to r->traces and r->masks. */
int report_find_inputs(struct report *r, struct err *err);

/* Sections of the page. Files go to <dir>/tables and <dir>/figures. */
int report_tables(struct report *r, struct err *err);
int report_figures(struct report *r, struct err *err);
int report_definitions(struct report *r, struct err *err);
int report_manifests(struct report *r, struct err *err); /* of the inputs, then the report's own */

/* Head, summary, body and end as <dir>/index.html. */
int report_write(struct report *r, struct err *err);

/* Base64 (RFC 4648). */
void base64(const void *data, size_t len, struct buf *b);

#endif
