/*
 * recipe.h - a recipe: how the numbers of one printed table or figure are made again
 * (datasets/paper/recipes/PAPER-ITEM.json; doc/reproduce.md has the fields). A recipe is data. It
 * names commands of lacuna and their options, and nothing else runs.
 */
#pragma once

#include "core/cmd.h"
#include "reproduce/paperdata.h"

enum job_do { DO_PROMPT, DO_CAPTURE, DO_CALIBRATE, DO_REPLAY, DO_EVAL, DO_DRAW, DO_COUNT };
extern const char *const job_do_names[DO_COUNT + 1]; /* "prompt", ... */
extern const char *const job_do_commands[DO_COUNT];  /* "prompt", ..., "plot" */

struct recipe_job {
    const char *name;
    enum job_do kind;
    const char *role;          /* of the model; NULL: that of its inputs */
    const json_t *each, *from; /* arrays of names, or NULL */
    const json_t *methods;     /* array of texts, or NULL */
    const json_t *series;      /* draw: name -> conditions on records, or NULL */
    struct buf marks;          /* draw: printed numbers for plot --marks, empty: none */
    const char *args, *figure; /* "" = none; figure: draw only */
    const char *tasks;         /* eval: {variable} of a dataset of tasks.json, or NULL */
    char needs;                /* 'K' a GPU, 'M' the method inside the model; 0: nothing more */
};

struct recipe {
    json_t *doc; /* owned; everything else is borrowed from it */
    struct buf path;
    const char *id;
    const json_t *item; /* of this id in layouts.json, borrowed from paper_data */
    bool figure;
    char needs[8];           /* "TKM" */
    struct recipe_job *jobs; /* owned */
    int n_jobs;
    const json_t *roles, *full, *quick, *cuda, *paper, *each, *ours, *match, *claims, *absent,
        *cases, *extra, *notes;
    bool on_gpu;     /* set by whoever runs it: variables of `cuda` win */
    json_t *lengths; /* owned: variables that recipe_set_lengths sets, before all others; or NULL */
};

/* Read and check the form: unknown fields, jobs, variables and labels are ERR_INPUT that names file
 * and field. Free `r` (zeroed before) also after a failure. */
int recipe_read(const char *path, const struct paper_data *d, struct recipe *r, struct err *err);
void recipe_free(struct recipe *r);

/* "spargeattn-9": the name of the files of table "spargeattn:9", its recipe and its page. */
void item_file(const char *id, struct buf *b);

/* Path of the recipe of a table or figure. */
int recipe_path(const struct paper_data *d, const char *id, struct buf *path, struct err *err);

/* Check the names in it: jobs, metrics, conditions, labels, members of claims. */
int recipe_check(const struct recipe *r, struct err *err);

/* The form of a recipe's document (recipe_check.c). */
int recipe_check_form(const json_t *doc, const char *path, struct err *err);

int recipe_job_find(const struct recipe *r, const char *name); /* -1: none */

/* Lengths in place of the recipe's, such as "8K,48K,128K", or "paper": those that the paper prints.
 * Variables of `paper` take them: a list all, a single length the one nearest to the paper's. */
int recipe_set_lengths(struct recipe *r, const char *lengths, struct err *err);

/* The value of a variable: a string, or an array of them; NULL: no such variable. */
const json_t *recipe_variable(const struct recipe *r, bool quick, const char *name);

/* The {words} of a template one by one: the text that stands before one, and "variable" or
 * "variable.part" of it; name "": the text behind the last one. */
struct template_word {
    const char *literal;
    size_t len;
    char name[64];
    int part; /* -1: all of it */
};
bool template_next(const char **text, struct template_word *w);

/* Append part i, from 0, of a value such as "0/1"; -1: all of it. */
void value_part(const char *value, int part, struct buf *b);
