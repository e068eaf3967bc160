/*
 * replay_cell.h - what a replay does with a cell (replay_loop.c): parameters, dumps, the finished
 * record.
 */
#ifndef LACUNA_REPLAY_CELL_H
#define LACUNA_REPLAY_CELL_H

#include "sim/budgetrun.h"
#include "sim/simulate.h"

/* Dumps of one cell. Rows arrive in the order in which the method ran; outputs are stored in the
 * trace's order, so reordered ones are gathered first. */
struct dump {
    struct replay *replay;
    const struct record *record;
    const struct head_in *in;
    const char *order; /* of the method's rows and keys, beside the trace's */
    int64_t *perm;     /* perm[row of the method] = row of the trace; NULL = same */
    double *out, *lse; /* whole head in the trace's order, with perm only */
};

/* A cell while it runs. */
struct cell_run {
    struct sim_cell cell;
    struct method_ctx ctx;
    struct dump dump;
    struct budget_found found;
    const struct method_run *run;
    void *params; /* owned */
};

/* What one method run carries from call to call: for the branch at hand, and for all branches. */
struct slots {
    struct carry *branch, *shared; /* NULL: the method has no such state */
};

/* Parameters (searched where the run has a target), notes and dumps of a cell, up to c->cell, which
 * is ready for sim_run. Not to be moved. cell_run_free follows in any case. */
int cell_run_init(struct replay *r, const struct series *s, int64_t run_index,
                  const struct head_in *in, struct slots slots, struct record *rec,
                  struct cell_run *c, struct err *err);

/* After the run: what the search found. */
int cell_run_record(const struct cell_run *c, struct record *rec, struct err *err);
void cell_run_free(struct cell_run *c);

/* Which of the two slots the method of a run uses. */
struct slots slots_of(const struct method_run *run, struct slots all);

/* A finished cell's record, and the tally. */
int replay_deliver(struct replay *r, const struct method_run *run, const struct record *rec,
                   struct err *err);

/* Does such a failure of a cell end the replay? */
bool replay_ends(const struct replay *r, int code);

#endif
