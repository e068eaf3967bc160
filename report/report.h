/*
 * report.h - one self-contained HTML page of findings, figures and tables, and the files it is made
 * of.
 */
#pragma once

#include "analyze/keys.h"
#include "analyze/load.h"
#include "core/buf.h"
#include "core/cmd.h"
#include "core/opt.h"
#include "core/trace.h"
#include "plots/cells.h"

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
    /* Parts of the page's body, in the order in which they stand on it. */
    struct buf findings, explorer, pictures, tables, about;
    int n_figures, n_tables;
};

void report_free(struct report *r);

/* Traces and mask files that the manifests of the record directories name and that still exist are
 * added to r->traces and r->masks. */
int report_find_inputs(struct report *r, struct err *err);

/* The page and what lies beside it (cmd_report.c): all of the parts below, and a manifest. */
int report_build(struct report *r, int argc, char **argv, struct err *err);

/* Parts of the page, each into its own buffer. Files go to <dir>/tables and <dir>/figures. */
int report_findings(struct report *r, struct err *err);
int report_explorer(struct report *r, struct err *err);
int report_figures(struct report *r, struct err *err);
int report_tables(struct report *r, struct err *err);
int report_definitions(struct report *r, struct err *err);
int report_manifests(struct report *r, struct err *err); /* of the inputs, then the report's own */

/* Head, parts, style, data and script as <dir>/index.html. */
int report_write(struct report *r, struct err *err);

/* ---- for the sources of the report ---------------------------------------------------------- */

/* "lacuna COMMAND DIR..." with the words quoted for a shell. */
void report_command(const struct report *r, const char *command, struct buf *b);

/* Records of one scope (model, length, ...), which no mean goes across. `set` borrows its records
 * from the report's; at most SCOPES_MOST of them. `where` selects them: " -w 'n_q=2048'", or "". */
#define SCOPES_MOST 8
struct report_scope {
    struct recset set;
    struct buf name, where; /* owned */
};
struct report_scopes {
    struct report_scope s[SCOPES_MOST];
    int n;
    int64_t left_out; /* scopes beyond SCOPES_MOST */
    enum group_key keys[KEYS_MAX];
    int n_keys;
};
int report_scopes(const struct recset *set, struct report_scopes *out, struct err *err);
void report_scopes_free(struct report_scopes *s);

/* Base64 (RFC 4648). */
void base64(const void *data, size_t len, struct buf *b);

/* JSON for an HTML element of type application/json: no text in it can end the element. */
void json_in_html(const struct buf *json, struct buf *b);

/* Are so many maps of the trace's heads computed from q and k within seconds? */
bool shots_are_cheap(const struct trace *t, int64_t maps);
