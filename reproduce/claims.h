/*
 * claims.h - the claims of a recipe as rows: what is compared, by how much it differs, and whether
 * the claim holds. doc/reproduce.md has the fields of a claim.
 */
#pragma once

#include "reproduce/page.h"

#define CLAIM_MIN_UNITS 6

enum claim_state { CLAIM_HOLDS, CLAIM_HOLDS_NOT, CLAIM_OPEN };

/* Is the number above 0? Holds: value > tie and lo > 0; does not hold: value < tie and wide_hi <
 * tie; open: else, and with fewer than `least` units. */
enum claim_state claim_above(const struct claim_estimate *e, double tie, int64_t least);

/* Is the number inside of [l, h]? By the whole interval; `least` units are needed. */
enum claim_state claim_inside(const struct claim_estimate *e, double l, double h, int64_t least);

enum claim_kind {
    CLAIM_MORE,   /* A > B, of four members A - B > C - D */
    CLAIM_ORDER,  /* each member and the next */
    CLAIM_MOST,   /* X and every other one */
    CLAIM_WITHIN, /* a number of the members lies within bounds */
    CLAIM_FRONT,  /* no other member is better than X in both of two metrics */
};

/* The test of a claim, as the recipe has it; borrowed. */
struct claim {
    const json_t *test;
    enum claim_kind kind;
    bool falls;           /* of ORDER and MOST: downwards */
    enum claim_stat stat; /* of WITHIN */
    bool heads;           /* ... the number is the spread over the heads of a layer */
    double l, h;          /* of WITHIN */
    const json_t *set;    /* the members: a list of names, or the name of a set; NULL: the metric */
    const char *x, *metric; /* X of MOST and FRONT; the metric, or NULL */
    const char *setting;    /* members are what calibrations found; NULL: of records */
    const char *labels;     /* "row", "column": of printed labels alone; NULL: of records */
    const char *at_equal;   /* of MORE: the metric in which A's curve and B are equal, or NULL */
    const char *weight;     /* means over units are weighted by this metric; NULL: they are not */
    bool last;              /* of a set only its last member */
    int least;              /* units that an answer needs */
};

/* Read a claim's test. ERR_INPUT: it has no kind or two. */
int claim_read(const json_t *test, struct claim *c, struct err *err);

/* What a claim compares: records of one value of a variable, of one case, or of one metric; a
 * setting that a calibration found. */
struct member {
    char label[96], value[96], metric[64];
    json_t *where;   /* owned */
    int job;         /* of the recipe, whose records it is of; -1: any */
    bool of_setting; /* of a variable or a case, so that equal numbers say nothing */
    struct unit_values units, weights; /* weights: n = 0 where there are none */
    struct unit one;                   /* the only unit of a member that is one number */
};

struct members {
    struct member m[CLAIM_MEMBERS];
    int n;
    char reason[200]; /* why there are no numbers; "": see m */
};

/* Is it a key of records whose values a claim may compare? */
bool claim_record_key(const char *key);

/* Members of a claim for a model. */
int claim_members(const struct page *p, const struct claim *c, int model, struct members *all,
                  struct err *err);
void members_free(struct members *m);

/* A claim on the numbers that the paper prints, in so many lines of the table, a tie
 * being half a unit of the last digit. lines = 0: the table does not print what it compares. */
struct printed_claim {
    int lines, held;
    char failed[96]; /* the first line where it does not hold */
};
void claim_on_printed(const struct page *p, const struct claim *c, struct printed_claim *out);

/* A row of the page's table of claims. */
struct claim_row {
    const char *id, *text; /* borrowed from the recipe */
    char model[128];       /* "": of the printed numbers alone */
    char printed[140];     /* "holds", "1 of 2, not in X"; "": not printed */
    char metric[64], a[128], b[128], test[64];
    double mean[2]; /* of A and B */
    struct claim_estimate value;
    const char *of; /* what the units are */
    enum claim_state state;
    char why[200]; /* why it is open; "": the interval does not decide */
};
extern const char *const claim_state_names[]; /* "holds", "does not hold", "open" */

/* Test a claim on the members; `tie`: half a printed unit. */
int claim_test(const struct claim *c, const struct members *all, double tie, struct claim_row *row,
               struct err *err);
