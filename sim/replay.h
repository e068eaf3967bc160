/*
 * replay.h - many methods over many heads: the plan (which cells), and its execution.
 *
 * A cell is (trace, step, branch, layer, head, method with parameters). Cells of one (trace,
 * branch, layer, head) form a series that is worked through in call order by one thread, because
 * methods may carry state from step to step; series are independent of each other. When one of the
 * methods may share state between guidance branches, a series holds all branches of its head.
 */
#ifndef LACUNA_REPLAY_H
#define LACUNA_REPLAY_H

#include "core/kernel.h"
#include "core/maskfile.h"
#include "core/method.h"
#include "core/progress.h"
#include "core/record.h"
#include "core/shard.h"
#include "core/trace.h"
#include "sim/headload.h"
#include "sim/outfile.h"

#include <stdint.h>

struct series {
    int trace;               /* index into replay.traces */
    int layer, head;         /* head as stored in the trace */
    char branch[16];         /* "" when it holds all branches */
    int64_t *calls, n_calls; /* of the trace, by step; owned */
    double cost;             /* pairs x methods still to do */
    int64_t cells, todo;     /* all cells; those without a record */
};

struct replay {
    struct trace **traces; /* owned, open */
    int64_t n_traces;
    struct method_run *runs; /* borrowed */
    int64_t n_runs;
    struct head_load load;
    const struct accel *accel;     /* NULL: on the CPU */
    struct accel_session *session; /* owned by the command */
    enum select_where select;
    bool accel_metrics; /* the back end measures the metrics too */
    uint64_t seed;
    struct series *series; /* owned */
    int64_t n_series, cap_series;
    struct record_file *records; /* NULL in a dry run */
    struct maskfile *masks;      /* NULL: not dumped */
    struct outfile *outputs;     /* NULL: not dumped */
    struct progress *progress;
    int64_t done_ok, done_skip, done_error; /* atomic adds */
};

/* What to take from the traces: index lists, NULL = all. */
struct replay_select {
    const char *layers, *heads, *steps, *branch;
};

/* Fill r->series from the open traces; ERR_USAGE when a selection names nothing. */
int replay_plan(struct replay *r, const struct replay_select *sel, struct err *err);

/* Keep the series of one shard, balanced by cost; the same split in every shard. */
int replay_shard(struct replay *r, const struct shard *shard, struct err *err);

/* Identity fields of the record of a cell. */
int replay_identity(const struct replay *r, const struct series *s, int64_t call,
                    const struct method_run *run, struct record *rec, struct err *err);

/* Work through all series on `jobs` threads. A cell whose method fails gets an error record and the
 * rest goes on; unreadable input and unwritable output end the run. */
int replay_execute(struct replay *r, int jobs, struct err *err);

void replay_free(struct replay *r);

#endif
