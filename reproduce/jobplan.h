/*
 * jobplan.h - from recipes to steps, and from steps to jobs. A *step* is a job of a recipe with its
 * variables filled in; a *job* is what runs and is kept as the folder DIR/jobs/ID. ID is a hash of
 * the job's commands, in which models, traces and task files stand by their content and other jobs
 * by their IDs. Steps of several tables that run the same commands have one job.
 */
#pragma once

#include "reproduce/modelset.h"

#define STEP_VARS 8

struct step_var {
    const char *name, *value; /* borrowed, or from plan.texts */
};

struct step {
    int recipe, job, model;       /* model -1: none */
    const struct task_file *task; /* the file whose questions it asks, or NULL */
    struct step_var var[STEP_VARS];
    int n_vars;
    int *in; /* owned: steps that it reads; the first n_from are those of `from` */
    int n_in, n_from;

    char id[17];             /* of its job; "": a trace was given in its place */
    struct str_list argv[2]; /* commands, one after the other; "{}" is the job's folder */
    bool left_out;           /* cannot be done here */
    bool postponed;          /* left out, but its inputs are made: a drawing without gnuplot */
    bool done;               /* the folder is there, of a capture with its trace while it is read */
    bool now, tried;         /* of this turn; of a turn before */
    bool failed;             /* its job, or one that it reads, has failed */
    char reason[300];        /* why it failed or was left out, or lengths that it goes without */
};

struct plan {
    const struct app *app;
    const struct recipe *recipes;
    int n_recipes;
    const struct model_set *models;
    const struct task_set *tasks; /* NULL: none is looked for */
    bool quick, cuda, no_gnuplot;
    const char *lengths; /* that the recipes' were set to, or NULL */
    const char *style;   /* of drawings: "paper", "slide", "screen" */
    struct step *s;      /* owned; inputs stand before what reads them */
    int n;
    int64_t cap;
    struct str_list texts; /* values that were made here */
};

/* Expand the recipes into steps with their jobs. Free `p` also after a failure; all that is
 * borrowed is set before. */
int plan_expand(struct plan *p, struct err *err);
void plan_free(struct plan *p);

/* See which folders are there, in the current folder. */
void plan_look(struct plan *p);

/* The next step of a recipe behind s, NULL: the first; NULL behind the last. */
const struct step *next_step(const struct plan *p, int recipe, const struct step *s);

/* Likewise of drawings that are done. */
const struct step *next_drawing(const struct plan *p, int recipe, const struct step *s);

const struct recipe_job *step_job(const struct plan *p, const struct step *s);
bool step_reads(const struct step *s, int input);

/* Is it the first of the steps that have its job? */
bool step_is_first(const struct plan *p, const struct step *s);

/* Is its result a time, so that nothing else may run beside it? */
bool step_timed(const struct plan *p, const struct step *s);
const char *step_value(const struct step *s, const char *variable); /* NULL: has none */

/* The value of a variable for a model: the recipe's; of a video model of the papers its own size of
 * clips, or sizes where the recipe has a list. */
const json_t *plan_variable(const struct plan *p, int recipe, int model, const char *name);

/* "order=hilbert n=4K"; "" without variables. */
void step_text(const struct step *s, struct buf *b);

/* Does it ask questions of a file that was not given? */
bool step_lacks_file(const struct step *s);

/* ---- jobs (stepjobs.c) ----------------------------------------------------------------------- */

/* The dataset that a step asks questions of. */
int step_find_task(struct plan *p, struct step *s, struct err *err);

/* The lengths that a command names, "4K,8K", as far as the model has positions for them, and those
 * beyond. Both stay empty where it names none. */
int step_lengths(const struct plan *p, const struct step *s, struct buf *fit, struct buf *beyond,
                 struct err *err);

/* IDs and commands of all steps. */
int plan_jobs(struct plan *p, struct err *err);

/* The texts of a step's methods, as its command takes them. */
int step_methods(const struct plan *p, const struct step *s, struct str_list *texts,
                 struct err *err);

/* What a step made, relative to DIR/jobs: "ID/trace.h5", of records "ID"; a trace that was given.
 */
void step_output(const struct plan *p, const struct step *s, struct buf *path);
const char *job_output_name(enum job_do kind); /* "trace.h5", ... */

/* Does it make records? */
bool step_has_records(const struct plan *p, const struct step *s);

/* Is a drawing made of records, and not of traces? */
bool step_draws_records(const struct plan *p, const struct step *s);

/* A blank and a word, and all words of a command, as a shell takes them, with `folder` in place of
 * "{}". */
void word_text(const char *word, const char *folder, struct buf *b);
void command_text(const struct str_list *argv, const char *folder, struct buf *b);

/* ---- running (makejobs.c) ---------------------------------------------------------------------
 *
 * A job works in ID.part, which make renames to ID when its last command has ended well: a folder
 * is whole or absent, and an interrupted job continues. Jobs run side by side first, then those
 * whose result is a time, one at a time, and drawings last.
 */

struct make_opts {
    int jobs;    /* side by side */
    int threads; /* of a job that runs alone; others share them */
    double room; /* bytes of traces at a time; 0: all are kept */
};

/* Write ./Makefile and run what is missing in the current folder, which is DIR/jobs. Another
 * command on it is waited for. A job that fails is a step's `failed` with its reason. After any
 * other error or an interrupt no process is left. */
int jobs_run(struct plan *p, const struct make_opts *o, struct err *err);

/* ---- turns (turns.c) ------------------------------------------------------------------------- */

/* Mark the steps of the next turn (`now`), whose traces take `room` bytes at once; room 0: all.
 * *any = false: no step is left. */
int turn_next(struct plan *p, double room, bool *any, struct err *err);

/* Nothing of the turn is done a second time. With a limit, delete traces that nothing will read. */
void turn_end(struct plan *p, double room);

/* Is the folder of a capture there without its trace? */
bool trace_deleted(const struct step *s);

/* The smallest room that the missing jobs can be made in. */
int plan_least_disk(const struct plan *p, double *bytes, struct err *err);

/* Bytes that a user can write there; negative: not known. */
double disk_free(const char *folder);

/* ERR_USAGE: the room is too small for one of the jobs; ERR_MACHINE: the disk of the current folder
 * is. */
int disk_check(const struct plan *p, double room, struct err *err);

/* ---- what it will cost (plancost.c) -----------------------------------------------------------
 *
 * Times are right within a factor of about two on a processor, and of four with a GPU.
 */

struct cost {
    double seconds, bytes;
};

/* Is it to be made? Prompts and captures are for what reads them and is missing itself. */
bool step_missing(const struct plan *p, int i);

/* Add the cost of a step, of all that is missing. */
void step_cost(const struct plan *p, const struct step *s, int threads, struct cost *c);
void plan_cost(const struct plan *p, int threads, struct cost *c);

/* What a table costs with the papers' models and lengths on an H100: "`lacuna reproduce ...`: with
 * llama-3.1-8b about 2:10 h, 64 GB on an H100"; nothing where the recipe has no job. */
int own_model_text(const struct plan *p, int recipe, const struct paper_data *d, struct buf *b,
                   struct err *err);

/* "2:10 h, 64 GB" */
void cost_text(const struct cost *c, struct buf *b);

/* What would be done, as a table for people. */
void plan_text(const struct plan *p, int threads, struct buf *b);
