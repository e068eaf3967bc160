/*
 * runjob.h - jobs as child processes of this program.
 */
#ifndef LACUNA_RUNJOB_H
#define LACUNA_RUNJOB_H

#include "reproduce/jobplan.h"

#include <sys/types.h>

/* A job that has been started. */
struct running {
    struct job job; /* owned */
    int threads;
    bool waits; /* for another command, which has the job's lock */
    bool ends;  /* has been told to */
    int lock, log, command;
    pid_t pid; /* 0: none runs */
    double start;
};

/* Start the job in the current folder, which is DIR/jobs: in ID.part, which is renamed to ID when
 * everything in it is there and on the disk. A job that another command runs meanwhile is waited
 * for, and then not run again. `r` takes the job over, also after a failure. */
int job_start(struct running *r, struct job *j, const char *what, int threads, struct err *err);

/* See how far it is, without waiting. *ended: the folder ID is there, or ERR_CHECK: the job failed
 * (its .part is kept; log.txt in it has the output; `why` gets the reason). Other errors end the
 * command. */
int job_poll(struct running *r, bool *ended, char why[300], struct err *err);

/* Tell its child to end; the job can be continued later. */
void job_end(struct running *r);

/* Wait for its child and free everything. */
void job_leave(struct running *r);

/* Remove what a killed run left of a job that is finished: its lock. */
void job_unlock(const char *id);

/* A command as a shell would take it, with `out` in place of "{}". */
void command_text(const struct str_list *argv, const char *out, struct buf *b);

#endif
