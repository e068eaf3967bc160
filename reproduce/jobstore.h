/*
 * jobstore.h - finished jobs of a reproduction: DIR/jobs/ID/ with its output and job.json, which
 * says what it is of. A folder has its name only when it is complete; before, it is ID.part.
 */
#ifndef LACUNA_JOBSTORE_H
#define LACUNA_JOBSTORE_H

#include "core/text.h"
#include "reproduce/recipe.h"

struct kept_job {
    char *id, *dir; /* owned */
    enum job_do kind;
    char key[40];             /* what the job computes; of captures the sample's */
    char output[40];          /* content of its output: a trace's id, hash of a calibration */
    struct str_list units;    /* replay, eval: ids of (job, method) */
    struct str_list steps;    /* capture: denoising steps */
    struct str_list commands; /* shell text */
    double seconds;
    char damage[256]; /* of a calibration: why it cannot be used, "" = it can */
};

struct job_store {
    char *dir;          /* owned: DIR/jobs */
    struct kept_job *j; /* owned, sorted by id when scanned */
    int n, cap;
};

/* Read DIR/jobs; a DIR that is not there has no jobs. A damaged job.json is ERR_INPUT. */
int job_store_open(const char *dir, struct job_store *s, struct err *err);
/* Add the job that has just been finished. */
int job_store_add(struct job_store *s, const char *id, struct err *err);
void job_store_free(struct job_store *s);

const char *job_output_name(enum job_do kind); /* "trace.h5", ... */
const struct kept_job *job_store_unit(const struct job_store *s, const char *unit);

/* The content of a finished folder's output. */
int job_output_id(enum job_do kind, const char *dir, char text[40], struct err *err);

#endif
