/*
 * claims.h - members and tests of a claim; the sentences are made in sentences.c.
 */
#ifndef LACUNA_CLAIMS_H
#define LACUNA_CLAIMS_H

#include "core/mem.h"
#include "reproduce/claimtest.h"
#include "reproduce/page.h"

#define MEMBERS_MAX 32

/* What a claim compares: records of one value of a variable, of one case, or of one metric. */
struct member {
    char label[96], value[96], metric[64];
    json_t *where; /* owned */
    bool setting;  /* of a variable or a case, not of a metric or a key of records */
    struct unit_values units;
};

struct members {
    struct member m[MEMBERS_MAX];
    int n;
};

struct claim_result {
    const char *kind;
    struct claim_pair pair; /* the comparison that decides */
    int a, b;               /* its members; -1: none */
    double margin;          /* how far it is from another state */
    double l, h;            /* bounds */
    bool unmoved;           /* all members are equal in every unit: nothing was compared */
};

const char *claim_kind(const json_t *test); /* NULL: unknown */
int claim_members(const struct page *p, const json_t *test, int model, struct members *all,
                  struct err *err);
void members_free(struct members *m);
int claim_test(const json_t *test, const struct members *all, double tie, struct claim_result *r,
               struct err *err);

/* printed.c: the claim on the numbers that the paper prints, in how many rows or columns it holds.
 * Half a unit of the last printed digit is a tie. lines = 0: the table prints none of them. */
struct printed_claim {
    int lines, held;
    char failed[96]; /* the first one where it does not hold */
};
/* A claim whose members are labels of the printed table, `labels: "column"` or `"row"`, is of the
 * paper's numbers alone: no model of ours is tested. */
bool claim_of_labels(const json_t *test);
/* `labels: "row"`: a difference of rows that two patterns name, equal in what stands for the '*'
 * (label_part). */
bool claim_of_rows(const json_t *test);
void claim_on_printed(const struct page *p, const json_t *test, struct printed_claim *out);

/* curveclaims.c: with `at_equal: METRIC` the first of two members becomes the value of its
 * settings' curve where the second one is, in the units where the curve reaches so far. */
int claim_at_equal(const struct page *p, const json_t *test, int model, struct members *all,
                   struct err *err);

/* settingclaims.c: claims on what calibrations found. setting_claim_check: -1 where no rule of
 * `ours` shows the setting of these jobs, or there is no bound. */
bool claim_of_setting(const json_t *test);
int setting_claim_check(const struct recipe *r, const json_t *test);
void setting_on_printed(const struct page *p, const json_t *test, struct printed_claim *out);
int setting_sentence(const struct page *p, const json_t *test, int model, struct buf *b,
                     struct err *err);

/* The sentence of a result for a model. */
void claim_sentence(const struct page *p, const struct members *all, const struct claim_result *r,
                    int model, struct buf *b);

#endif
