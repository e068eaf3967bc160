/*
 * ranking_impl.h - the parts of the table "ranking": what every setting has at a place
 * (ranking_place.c), who wins there (ranking.c), and the rows that say it (ranking_rows.c).
 */
#ifndef LACUNA_RANKING_IMPL_H
#define LACUNA_RANKING_IMPL_H

#include "analyze/ranking.h"

#include "analyze/group.h"
#include "analyze/paired.h"

/* What a comparison is of: all heads, those of a layer, or one. */
enum ranking_per { PER_MODEL, PER_LAYER, PER_ONE_HEAD };

/* Where settings are compared. */
struct place {
    char text[128], metric[64]; /* "density_elem=0.3" */
    double value;
    bool curves; /* --at: other settings take part by interpolation */
};

/* One method with parameters: what its units have. */
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
    int64_t units, missed; /* with a value of its own; of these beside the target */
    double mean_missed;    /* what the latter have */
    double mean_x, mean_y, share;
};

struct verdict {
    struct paired diff; /* to the best other setting */
    double holm;        /* p, corrected for all comparisons of the table */
};

/* What the table says of one setting at one place. */
struct outcome {
    const struct record *first; /* has the scope keys */
    char at[128];
    const char *method;        /* of a record */
    struct buf params, second; /* the setting without its place; method and setting of the rival */
    double n, mean_x, mean_y, share;
    struct verdict v;
    bool first_place; /* has the most wins there; of equals the better mean */
};

struct ranking {
    const struct recset *set;
    const char *by;
    enum ranking_per per;
    enum group_key scope[KEYS_MAX];
    int n_scope; /* with layer and head of a comparison */
    struct grouping gs;
    struct outcome *outcomes; /* owned, as what they hold */
    int64_t n_outcomes, cap_outcomes;
    /* of one scope */
    struct units units;
    struct setting *settings;
    int64_t n_settings;
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

/* "head" or "sample", and their plural. */
const char *ranking_unit(const struct ranking *k, bool many);

/* A note, once whatever the number of layers or heads that it is of. */
void ranking_note(const struct ranking *k, struct table *t, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The outcomes as rows: of every setting, or with a comparison per layer or head of the winners. */
int ranking_put_rows(struct ranking *k, struct table *t, struct err *err);

#endif
