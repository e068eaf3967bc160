/*
 * replay.h - many methods over many heads: the plan (which cells to do) and its execution.
 *
 * A cell is (trace, step, branch, layer, head, method with parameters). Cells of one (trace,
 * branch, layer, head) form a series, which is done in call order, because methods may carry state
 * from step to step. If one of the methods shares state between guidance branches, a series holds
 * all branches of its head. Series whose calls are done together form a group.
 */
#pragma once

#include "core/maskfile.h"
#include "core/method_run.h"
#include "core/progress.h"
#include "core/record.h"
#include "core/shard.h"
#include "core/trace.h"
#include "sim/devicemap.h"
#include "sim/headload.h"
#include "sim/settingtally.h"

#include <stdint.h>

struct series {
    int trace;               /* index into replay.traces */
    int layer, head;         /* head as stored in the trace */
    char branch[16];         /* "" when it holds all branches */
    int64_t *calls, n_calls; /* indices of calls of the trace, by step; owned */
    double cost;             /* proportional to the pairs, channels and methods still to do */
    int64_t cells, todo;     /* number of cells; of cells without a record */
    int64_t searches;        /* of these, cells whose parameter is to be searched */
};

/* Series whose heads are done together: with device.calls or decode those of one (trace, branch,
 * layer) with the same calls, else a single one. A call of them is a cell more, of scope `call`,
 * where it is timed. */
struct call_group {
    int64_t *series, n; /* their indices, ascending by head; owned */
    int group;          /* query heads in a row that share keys and values; divides n */
    char *heads;        /* as in struct record, with device.calls; owned */
    int64_t ordinal;    /* of its first cell, as in struct record */
};

struct replay {
    struct trace **traces; /* owned, open */
    int64_t n_traces;
    struct method_run *runs; /* borrowed */
    int64_t n_runs;
    struct head_load load;
    struct sim_device device; /* accel NULL: on the CPU; the session is owned by the command */
    bool read_ahead;          /* with device.calls: the next call is read meanwhile */
    bool decode;              /* the decode phase: all heads of a call together, on the CPU */
    uint64_t seed;
    struct series *series; /* owned */
    int64_t n_series, cap_series;
    struct call_group *groups; /* owned */
    int64_t n_groups, cap_groups;
    struct record_file *records; /* of a dry run: its keys alone, or NULL without a directory */
    struct maskfile *masks;      /* NULL: not dumped */
    struct cellfile *outputs;    /* NULL: not dumped */
    struct budget_book *book;    /* parameters found for targets (sim/budgetsearch.h) */
    struct progress *progress;
    struct shard shard;                     /* {0} or the one that replay_shard kept */
    int64_t done_ok, done_skip, done_error; /* atomic adds */
    struct setting_tally *tally; /* of heads; owned, [n_runs]; NULL before replay_execute */
};

/* Fill r->series from the open traces; ERR_USAGE when a selection names nothing. */
int replay_plan(struct replay *r, const struct call_select *sel, struct err *err);

/* Keep the series of one shard. Shards are balanced by cost, and every process computes the same
 * split. With device.calls whole groups stay together, or, where they are fewer than the shards,
 * the query heads of a KV head. */
int replay_shard(struct replay *r, const struct shard *shard, struct err *err);

/* Make the groups, and count all cells. After replay_shard. */
int replay_groups(struct replay *r, struct err *err);

/* Do all groups on `jobs` threads. A cell whose method fails gets an error record, and the replay
 * goes on. Usage errors, unreadable input, unwritable output and a machine that lacks something end
 * it. */
int replay_execute(struct replay *r, int jobs, struct err *err);

void replay_free(struct replay *r);

/* ---- dumped outputs (core/cellfile.h): per cell the method's output rows and log-sum-exp ------
 */

int outfile_create(const char *path, bool force, struct cellfile **out, struct err *err);

/* Store the cell r, which has r->n_q rows: out [n_q][dv], lse [n_q]. Thread-safe. */
int outfile_put(struct cellfile *f, const struct record *r, int64_t dv, const float *out,
                const double *lse, struct err *err);
