/*
 * shard.h - which part of the cells this process does: --shard i/n, or the rank that a launcher
 * (mpirun, srun, a SLURM array) left in the environment. No MPI is linked.
 */
#pragma once

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

struct shard {
    int64_t index, count; /* 0 <= index < count */
    int local;            /* rank on this host: picks the GPU */
};

/* opt: "i/n" (0 <= i < n) overrides the environment; NULL or "" reads it; without a launcher 0/1.
 * Rank and size come from the first complete pair of OMPI_COMM_WORLD_RANK/_SIZE, PMI_RANK/_SIZE,
 * SLURM_PROCID/SLURM_NTASKS; a SLURM array multiplies them: shard = array index * size + rank.
 * Nonsense, and array ids that are no arithmetic sequence, are ERR_USAGE asking for --shard. */
int shard_from_env(const char *opt, struct shard *out, struct err *err);

/* How many of a host's `online` processors this process should use: those that it is allowed to
 * use, but no more than an equal share for each process that its launcher started there. At
 * least 1. */
int shard_cpus(int allowed, int online);

/* Whether a launcher that started several processes on this host allows this one a quarter of its
 * share or less: Open MPI binds each of two processes to one core unless told otherwise. */
bool shard_is_bound(int allowed, int online);
void shard_warn_bound(const char *command); /* say so, with a way out, headed by the command */

/* "stem.ext" for a single shard, else "stem.<index>-of-<count>.ext". */
void shard_file_name(const struct shard *s, const char *stem, const char *ext, char name[96]);

/* "replay", or "replay, shard 2 of 8" where there are several: heads progress lines. */
void shard_what(const struct shard *s, const char *command, char what[64]);

/* owner[i] = the shard that does item i, so that the shards' sums of cost are balanced: items in
 * descending order of cost (ties: lower index first), each to the least loaded shard (ties: fewer
 * items, lower shard). The same input gives the same answer in every process. O(n log n + n count).
 */
int shard_assign(const double *cost, int64_t n, int64_t count, int64_t *owner, struct err *err);
