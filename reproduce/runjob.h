/*
 * runjob.h - one job as child processes of this program.
 */
#ifndef LACUNA_RUNJOB_H
#define LACUNA_RUNJOB_H

#include "reproduce/jobplan.h"

/* Run the job in the current folder, which is DIR/jobs: in ID.part, which is renamed to ID when
 * everything in it is there and on the disk. A job that another command runs meanwhile is waited
 * for, and then not run again. `why` gets the reason of a failure.
 *
 * 0: the folder ID is there. ERR_CHECK: the job failed (its .part is kept; log.txt in it has the
 * output); others end the command. */
int job_run(const struct job *j, const char *what, int threads, char why[300], struct err *err);

/* Remove what a killed run left of a job that is finished: its lock. */
void job_unlock(const char *id);

/* A command as a shell would take it, with `out` in place of "{}". */
void command_text(const struct str_list *argv, const char *out, struct buf *b);

#endif
