/*
 * page.h - one reproduced table or figure in the paper's layout: printed numbers, ours, what
 * differs between the two, and the paper's claims.
 */
#pragma once

#include "reproduce/evidence.h"

#define LABEL_LEVELS 3

/* A row or column. */
struct grid_entry {
    const json_t *j;           /* its object in layouts.json, or in `extra` of the recipe */
    char *level[LABEL_LEVELS]; /* owned: "Sim-q", "CogvideoX" */
    int levels;
    char *path;   /* owned: levels joined with '/' */
    bool printed; /* the paper has it */
    bool extra;   /* of the recipe's `extra` */
    bool picked;  /* numbers of this head alone, chosen by the entry's rule `pick` */
    bool named;   /* one of several models has it: the label shows whose it is, the path does not */
    int layer, head;
    double length; /* of ours-only lengths; NAN: that of j */
    int model;     /* whose numbers of ours stand here; -1: every model's that has no own entry */
};

struct grid_axis {
    struct grid_entry *e; /* owned */
    int n;
    int64_t cap;
    struct grid_entry spare; /* what finds no memory */
    bool failed;
};

enum cell_state {
    CELL_EMPTY,
    CELL_AGREES,
    CELL_DIFFERS,
    CELL_BESIDE,
    CELL_PRINTED,
    CELL_OURS,
    CELL_STATES
};
extern const char *const cell_state_names[];

#define CELL_PARTS 2

struct page_cell {
    const struct page_block *block;
    const struct grid_entry *row, *column;
    const json_t *rule; /* the first of the recipe's `ours` that meets it, NULL: none */

    char *printed, *ours;      /* owned texts, NULL: none */
    double value[CELL_PARTS];  /* ours, in the printed unit */
    double number;             /* printed, NAN: none or several */
    struct sample_stats stats; /* of the first part, in the printed unit */
    enum cell_state state;
    char letters[16];
    char *reason;                   /* owned, NULL: none */
    const char *metric[CELL_PARTS]; /* of ours, NULL: none */
    const char *stat;               /* of the rule; NULL: a setting that a calibration found */
    int model, job;                 /* -1: none */
    json_t *where;                  /* owned: conditions on its records */
    const char *jobs[8];            /* IDs of the jobs behind it */
    int n_jobs;
};

struct page_block {
    const json_t *j;
    struct grid_axis rows, columns;
    struct page_cell *cell; /* owned, [rows.n][columns.n] */
};

struct page {
    const struct plan *plan;
    const struct paper_data *data;
    const struct recipe *recipe;
    int at; /* of the recipe in the plan */
    bool quick;
    struct evidence evidence;
    struct page_block *blocks; /* owned */
    int n_blocks;
    struct claim_row *claims; /* owned (claims.h) */
    int64_t n_claims, cap_claims;
    struct str_list notes;
    char letters[16];       /* all that occur */
    struct buf title, ours; /* "SpargeAttn, Table 9", "video-dit, 1,536 tokens" */
    bool failed;
    struct str_list made_by; /* commands in order */
};

/* Add a sentence to the page's notes, once. */
void page_note(struct page *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* grid.c: rows and columns of the printed table, of our models, lengths and extra entries. */
int grid_make(struct page *p, struct err *err);
void grid_free(struct page *p);
/* Does a row or column belong to a model, but for those that stand for each of several? */
bool axis_has_models(const struct grid_axis *a);
/* A field of the entry's object as text; "length" is that of ours where it is. */
bool entry_field(const struct grid_entry *e, const char *field, char *text, size_t size);
struct page_cell *page_cell_at(const struct page_block *b, int row, int column);

/* The cell behind c, block by block and row by row; NULL: the first, or behind the last. */
struct page_cell *next_cell(const struct page *p, const struct page_cell *c);

/* The first model that has a step of the page's recipe, job -1: of any of its jobs; -1: none. */
int page_first_model(const struct page *p, int job);
/* Has this model one? */
bool page_uses(const struct page *p, int job, int model);
/* Is there a file of a benchmark that one of its jobs reads? */
bool page_has_files(const struct page *p);

/* ours.c */
int page_fill(struct page *p, struct err *err);
/* The metric of part k of a cell; NULL: nothing of ours can exist. */
const char *cell_metric(const struct page_cell *c, int k);
/* The printed number of part k; false: none. */
bool cell_printed(const struct page *p, const struct page_cell *c, int k, struct paper_number *out);
/* Its unit: what a share of 1 is printed as. */
double cell_scale(const struct page_cell *c);
/* A rule's conditions for a cell, {row.X} and {column.X} filled in; with NULL the conditions that
 * name them are left out. A new reference. */
json_t *rule_where(const json_t *rule, const struct page_cell *c);

/* The rule of `ours` that shows a setting, and its list of jobs; NULL: none. */
const json_t *setting_rule(const struct recipe *r, const char *name);
const json_t *setting_jobs(const struct recipe *r, const char *name);

/* What a calibration of the page's recipe found for a model: a parameter that all heads share.
 * `where`: values of the step's variables. *reason: why there is none, NULL where there is. */
int setting_found(const struct page *p, int model, const char *job, const json_t *where,
                  const char *name, double *x, const char **reason, struct err *err);

/* Is it a number of GPU times? */
bool metric_is_time(const char *metric);
struct choice cell_choice(const struct page_cell *c); /* which records it is of */

/* verdict.c: letters and state of a cell that has a value. */
int page_judge(struct page *p, struct page_cell *c, struct err *err);
void add_letter(struct page *p, struct page_cell *c, char letter);
const char *letter_text(char c);

/* claims.c: a row per claim and model. */
int page_claims(struct page *p, struct err *err);

/* plan_check.c: are the cells and claims of every recipe of one setting each, and can the claims
 * fail? ERR_INPUT naming file, place and fix. */
int plan_check(const struct plan *p, const struct paper_data *d, struct err *err);

/* How many digits the printed text has behind the point. */
int printed_digits(const char *value);
/* 1536, but 17,776. */
void count_text(struct buf *b, int64_t n);

/* Writers. */
int page_md(const struct page *p, struct buf *b, struct err *err);
int page_tex(const struct page *p, struct buf *b, struct err *err);
int page_html(const struct page *p, struct buf *b, struct err *err);
int page_csv(const struct page *p, struct buf *b, struct err *err);
int page_json(const struct page *p, struct buf *b, struct err *err);

/* ---- files, from the folder DIR/jobs --------------------------------------------------------- */

/* Write the page of a recipe and its drawings, as far as they changed. */
int output_page(const struct plan *p, int recipe, const struct paper_data *d, bool *changed,
                struct err *err);

/* Write ../index.html: all pages that are there. */
int output_index(const struct paper_data *d, struct err *err);
