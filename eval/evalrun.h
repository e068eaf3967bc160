/*
 * evalrun.h - settings over the cells of tasks, one record of scope `model` per (cell, setting);
 * what has a record is not done again.
 */
#ifndef LACUNA_EVALRUN_H
#define LACUNA_EVALRUN_H

#include "eval/evaltask.h"
#include "core/shard.h"
#include "eval/layerattn.h"
#include "sim/settingtally.h"

struct eval_run {
    const struct eval_model *m;
    const struct method_run *runs; /* settings; borrowed */
    int n_runs;
    bool wants_times;   /* --samples */
    int64_t lacking[2]; /* finished cells without err_local, without times, that were asked for */
    struct eval_how how;
    struct eval_task *tasks; /* owned */
    int n_tasks;
    struct record_file *records; /* NULL in a dry run without a directory */
    struct predictions *predictions;
    const char *dump_nll;         /* .npy, or NULL */
    const struct lockstep_on *on; /* the device of prefills, or NULL; borrowed */
    int jobs;
    struct shard shard;  /* which part of the cells is done here */
    int64_t *owner;      /* the shard of each cell, tasks one after the other; owned */
    int64_t cells, todo; /* records that the run (of a shard: its part) has, and that are missing */
    int64_t done_ok, done_skip, done_error;
    struct setting_tally *tally; /* [n_runs], owned; NULL before eval_execute */
};

/* Count cells and what is missing. */
int eval_plan(struct eval_run *r, struct err *err);

int eval_execute(struct eval_run *r, struct err *err);
void eval_run_free(struct eval_run *r);

/* Most memory that a task of the run needs, in bytes. */
int64_t eval_memory(const struct eval_run *r);

#endif
