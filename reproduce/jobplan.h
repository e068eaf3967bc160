/*
 * jobplan.h - from recipes to steps, and from steps to jobs. A *step* is a job of a recipe with its
 * variables filled in; a *job* is what is run and kept. Steps of several tables that compute the
 * same thing share one job: captures of a sample one with the union of their denoising steps,
 * replays of the same traces one with the union of their methods.
 *
 * Identity is by content: a job's key is a hash of its kind, the version of its results, its
 * canonical words and the contents of its inputs. So a step's key is known only when its inputs are
 * finished.
 */
#ifndef LACUNA_JOBPLAN_H
#define LACUNA_JOBPLAN_H

#include "reproduce/jobstore.h"
#include "reproduce/modelset.h"
#include "reproduce/taskset.h"

#define STEP_VARS 8

struct step_var {
    const char *name, *value; /* borrowed, or from plan.texts */
};

/* A method of a replay with one set of parameters: the records of (method, params). */
struct step_unit {
    char id[40];           /* of a step that wants times another one than of others */
    char any[40];          /* the same whether times are wanted or not */
    char *method, *params; /* owned */
    const char *text;      /* as the command takes it; owned by the step */
    bool needs_steps;      /* keeps state across denoising steps */
    int kept;              /* index in the store, -1: still to be run */
    bool later;            /* a step that wants times as well will run it */
};

struct step {
    int recipe, job, model;       /* model -1: none */
    const struct task_file *task; /* the file whose questions it asks, or NULL */
    struct step_var var[STEP_VARS];
    int n_vars;
    int *in; /* owned: steps that it reads; the first n_from are those of `from` */
    int n_in, n_from;

    /* set by plan_resolve */
    bool ready, done, failed, left_out;
    char reason[300];        /* why it failed, or has no data here */
    char key[40];            /* of captures the sample's */
    char output[40];         /* content of what it made, when done */
    struct str_list words;   /* command words without inputs and outputs */
    struct str_list inputs;  /* files or folders of `from`, relative to DIR/jobs */
    struct str_list texts;   /* methods, as the command takes them */
    struct str_list wanted;  /* capture: denoising steps */
    int maps;                /* capture: cell size, -1 = as the command chooses */
    struct step_unit *units; /* owned */
    int n_units;
    int *kept; /* owned: jobs of the store that hold its output */
    int n_kept;
    double seconds,
        bytes;    /* estimates of what is not yet done; 0 where another step stands for it */
    double alone; /* seconds, whatever other steps do */
};

struct plan {
    const struct app *app;
    const struct recipe *recipes;
    int n_recipes;
    const struct model_set *models;
    const struct task_set *tasks; /* NULL: none is looked for */
    struct job_store *store;
    bool quick, cuda, no_gnuplot;
    int at_once;             /* jobs that run side by side */
    struct str_list running; /* keys of jobs, of records ids of units */
    const char *style;       /* of drawings: "paper", "slide", "screen" */
    struct step *s;          /* owned; inputs stand before what reads them */
    int n, cap;
    struct str_list texts; /* values that were made here */
};

/* Expand the recipes. Free `p` also after a failure; recipes, models and store are set before. */
int plan_expand(struct plan *p, struct err *err);

/* Look up what is finished: keys, units and states of all steps. */
int plan_resolve(struct plan *p, struct err *err); /* resolve.c */
void step_free_units(struct step *s);
void plan_free(struct plan *p);

const struct recipe_job *step_job(const struct plan *p, const struct step *s);

/* Is its result a time, so that nothing else may run beside it? */
bool step_timed(const struct plan *p, const struct step *s);
const char *step_value(const struct step *s, const char *variable); /* NULL: has none */

/* Its own value of a variable, else the recipe's; NULL where that is a list. */
const char *step_variable(const struct plan *p, const struct step *s, const char *name);

/* "order=hilbert n=4K"; "" without variables. */
void step_text(const struct step *s, struct buf *b);

/* ---- words (stepwords.c) -------------------------------------------------------------------- */

/* Fill words, texts, wanted and maps of a step: variables and outputs of inputs in place. */
int step_words(struct plan *p, struct step *s, struct err *err);

/* The dataset that a step asks questions of. */
int step_find_task(struct plan *p, struct step *s, struct err *err);

/* Does it ask questions of a file that was not given? */
bool step_lacks_file(const struct step *s); /* jobplan.c */

/* The path of the one output of a finished step, relative to DIR/jobs. */
int step_output(const struct plan *p, const struct step *s, struct buf *path, struct err *err);

/* ---- the next job (nextjob.c) -----------------------------------------------------------------
 */

struct job {
    char id[24];
    enum job_do kind;
    char key[40];
    int first;               /* the step that asked for it */
    struct str_list argv[2]; /* commands to run one after the other; outputs relative to ID.part */
    int n_argv;
    struct str_list units, steps;
    bool timed; /* runs alone */
};

/* Before a drawing: write the records of its inputs' units, and no others, to ID.jsonl. */
int job_records(const struct plan *p, const struct job *j, struct err *err);

/* The next job that can be run beside those of p->running; *found false: none can. One at a time:
 * of the cheapest table first. Side by side: the one behind which most remains to be done, and
 * timed ones when no other is left and none runs. */
int plan_next(struct plan *p, struct job *j, bool *found, struct err *err);

/* The job runs from now on; no longer. */
int plan_begun(struct plan *p, const struct job *j, struct err *err);
void plan_ended(struct plan *p, const struct job *j);
void job_free(struct job *j);

/* All steps that ask for this job's result have failed. */
void plan_fail(struct plan *p, const struct job *j, const char *why);

#endif
