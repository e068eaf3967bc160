/*
 * explorer.h - for the sources of the explorer alone: its state while the data are written.
 */
#ifndef LACUNA_EXPLORER_H
#define LACUNA_EXPLORER_H

#include "report/report.h"

#include "analyze/group.h"

/* A method with parameters in one scope. */
struct setting {
    const struct record *first;
    const int64_t *at; /* of the scope's records */
    int64_t n;
    enum group_steps steps;
    int scope;
};

struct explorer {
    struct report *r;
    struct report_scopes scopes;
    struct grouping gs[SCOPES_MOST];
    struct setting *s; /* owned */
    int64_t n_s;
    struct str_list metrics;
    int64_t *layers, *heads, n_layers, n_heads; /* owned, ascending */
    struct jw w;
    struct buf json;
};

/* Does the explorer show this record? (A group_filter; ctx is not used.) */
bool explorer_takes(const void *ctx, const struct record *r);

/* Where `value` stands in the ascending x[0..n), -1 if it does not. */
int64_t explorer_index(const int64_t *x, int64_t n, int64_t value);

/* Write "maps" and "masks" of the heads (explorer_maps.c). */
int explorer_pictures(struct explorer *e, struct err *err);

#endif
