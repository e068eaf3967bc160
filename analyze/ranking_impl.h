/*
 * ranking_impl.h - the two halves of the table "ranking": what every setting has at a place
 * (ranking_place.c), and who wins there (ranking.c).
 */
#ifndef LACUNA_RANKING_IMPL_H
#define LACUNA_RANKING_IMPL_H

#include "analyze/ranking.h"

#include "analyze/group.h"

/* Where settings are compared. */
struct place {
    char text[128], metric[64]; /* "density_elem=0.3" */
    double value;
    bool curves; /* --at: other settings take part by interpolation */
};

struct unit {
    int layer, head;
};

/* One method with parameters: what its heads have. */
struct setting {
    const struct record *first;
    double *x, *y; /* [units], owned: means over calls, NAN where there is none */
    bool *missed;  /* [units], owned: the search did not meet its target */
    int64_t calls; /* ok records */
};

/* A setting with a target, or a curve of settings; y at the place of comparison. */
struct contestant {
    const struct record *first;
    struct buf params, family;
    double *x, *y; /* [units], owned; NAN where it has no value */
    int64_t calls;
    int64_t heads, missed; /* with a value of its own; of these beside the target */
    double mean_missed;    /* what the latter have */
    double mean_x, mean_y, share, p;
};

struct ranking {
    const struct recset *set;
    const char *by;
    enum group_key scope[KEYS_MAX];
    int n_scope;
    struct grouping gs;
    /* of one scope */
    struct unit *units;
    struct setting *settings;
    int64_t n_units, cap_units, n_settings;
    struct contestant *c;
    int64_t n_c;
    bool *common; /* [units]: all contestants have a value */
    int64_t n_common, left_out;
};

/* "density_elem=0.3" or a target; ERR_USAGE otherwise. */
int place_parse(const char *text, struct place *at, struct err *err);

/* The target of a record without ":per=...", which does not change where settings are compared. */
bool place_is_of(const struct record *r, const char *place);

/* Who takes part at a place among the settings of groups [from, to): k->c, with notes on those that
 * are left out. Release with ranking_free_place. */
int ranking_find(struct ranking *k, int64_t from, int64_t to, const struct place *at,
                 struct table *t, struct err *err);
void ranking_free_place(struct ranking *k);

#endif
