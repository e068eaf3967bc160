/*
 * shard.c - shard number from option or environment, balanced assignment.
 *
 * MPI launchers are asked before SLURM: under mpirun inside a SLURM job every rank inherits the
 * SLURM_PROCID of the process that started it, while the launcher's own variables are per rank.
 * (Where srun itself provides PMI, both agree.)
 */
#include "core/shard.h"

#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SHARDS 1000000

/* A non-negative decimal number that is the whole text. */
static bool number(const char *s, int64_t *out)
{
    char *end;
    if (!isdigit((unsigned char)s[0]))
        return false;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno || *end)
        return false;
    *out = v;
    return true;
}

/* *found = false when the variable is not set. */
static int env_number(const char *name, int64_t *out, bool *found, struct err *err)
{
    const char *s = getenv(name);
    *found = s && s[0];
    if (*found && !number(s, out))
        return err_set(err, ERR_USAGE, "%s='%s' is not a number; give --shard i/n", name, s);
    return 0;
}

static int parse_option(const char *opt, struct shard *out, struct err *err)
{
    char left[32];
    int64_t i, n;
    const char *slash = strchr(opt, '/');
    size_t len = slash ? (size_t)(slash - opt) : sizeof left;
    if (len < sizeof left) {
        memcpy(left, opt, len);
        left[len] = '\0';
        if (number(left, &i) && number(slash + 1, &n) && n >= 1 && n <= MOST_SHARDS && i < n) {
            out->index = i;
            out->count = n;
            return 0;
        }
    }
    return err_set(err, ERR_USAGE, "--shard: '%s' is not i/n with 0 <= i < n (such as 0/4)", opt);
}

static int launcher_rank(int64_t *rank, int64_t *size, struct err *err)
{
    static const char *const pairs[][2] = {
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
        {"PMI_RANK", "PMI_SIZE"},
        {"SLURM_PROCID", "SLURM_NTASKS"},
    };
    const char *alone = NULL; /* a rank above 0 without the number of ranks */
    *rank = 0;
    *size = 1;
    for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
        int64_t r, n;
        bool has_r, has_n;
        PASS_ON(env_number(pairs[k][0], &r, &has_r, err));
        PASS_ON(env_number(pairs[k][1], &n, &has_n, err));
        if (!has_r || !has_n) {
            alone = has_r && r > 0 && !alone ? pairs[k][0] : alone;
            continue;
        }
        if (n < 1 || n > MOST_SHARDS || r >= n)
            return err_set(err, ERR_USAGE, "%s=%lld of %s=%lld makes no sense; give --shard i/n",
                           pairs[k][0], (long long)r, pairs[k][1], (long long)n);
        *rank = r;
        *size = n;
        return 0;
    }
    if (alone)
        return err_set(err, ERR_USAGE,
                       "%s=%s is set, but nothing says of how many: every process would do all of "
                       "the work; give --shard i/n",
                       alone, getenv(alone));
    return 0;
}

static int irregular(struct err *err)
{
    return err_set(err, ERR_USAGE,
                   "the ids of this SLURM array are not an arithmetic sequence; give --shard i/n");
}

/* Index of this task in the array and number of tasks; 0 of 1 outside an array. */
static int array_index(int64_t *index, int64_t *count, struct err *err)
{
    int64_t id, min = 0, max = 0, step = 1, n = 0;
    bool has_id, has_min, has_max, has_step, has_count;
    *index = 0;
    *count = 1;
    PASS_ON(env_number("SLURM_ARRAY_TASK_ID", &id, &has_id, err));
    if (!has_id)
        return 0;
    PASS_ON(env_number("SLURM_ARRAY_TASK_MIN", &min, &has_min, err));
    PASS_ON(env_number("SLURM_ARRAY_TASK_MAX", &max, &has_max, err));
    PASS_ON(env_number("SLURM_ARRAY_TASK_STEP", &step, &has_step, err));
    PASS_ON(env_number("SLURM_ARRAY_TASK_COUNT", &n, &has_count, err));
    if (!has_count || !has_min)
        return err_set(err, ERR_USAGE, "SLURM_ARRAY_TASK_ID is set but not %s; give --shard i/n",
                       has_min ? "SLURM_ARRAY_TASK_COUNT" : "SLURM_ARRAY_TASK_MIN");
    if (step < 1 || n < 1 || n > MOST_SHARDS || id < min || (id - min) % step != 0 ||
        (id - min) / step >= n)
        return irregular(err);
    /* "1,2,7": the tasks 1 and 2 see it only by the largest id. */
    if (has_max && (max < min || (max - min) / step + 1 != n))
        return irregular(err);
    *index = (id - min) / step;
    *count = n;
    return 0;
}

static int local_rank(int *out, struct err *err)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                        "MV2_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID",
                                        "SLURM_LOCALID"};
    *out = 0;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        int64_t v;
        bool found;
        PASS_ON(env_number(names[k], &v, &found, err));
        if (found && v <= INT32_MAX) {
            *out = (int)v;
            return 0;
        }
    }
    return 0;
}

int shard_from_env(const char *opt, struct shard *out, struct err *err)
{
    struct shard s = {0, 1, 0};
    int64_t rank, size, index, count;
    PASS_ON(local_rank(&s.local, err));
    if (opt && opt[0]) {
        PASS_ON(parse_option(opt, &s, err));
    } else {
        PASS_ON(launcher_rank(&rank, &size, err));
        PASS_ON(array_index(&index, &count, err));
        s.index = index * size + rank;
        s.count = count * size;
        if (s.count > MOST_SHARDS)
            return err_set(err, ERR_USAGE, "%lld shards are more than %d", (long long)s.count,
                           MOST_SHARDS);
    }
    *out = s;
    return 0;
}

/* ---- processors ----------------------------------------------------------------------------- */

/* Processes of the launcher on this host, 1 where it does not say. */
static int64_t local_size(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                        "MV2_COMM_WORLD_LOCAL_SIZE", "PALS_LOCAL_SIZE",
                                        "SLURM_NTASKS_PER_NODE"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        int64_t n;
        const char *s = getenv(names[k]);
        if (s && number(s, &n) && n >= 1)
            return n;
    }
    return 1;
}

/* An equal part of the host for each of its processes, rounded up. */
static int64_t share_of_host(int64_t processors)
{
    int64_t n = local_size();
    return (processors + n - 1) / n;
}

int shard_cpus(int allowed, int online)
{
    int64_t share = share_of_host(online);
    return (int)(allowed < share ? allowed : share);
}

bool shard_is_bound(int allowed, int online)
{
    return local_size() > 1 && 4 * (int64_t)allowed <= share_of_host(online);
}

void shard_warn_bound(const char *command)
{
    int allowed = cpu_count(), online = cpu_online();
    if (shard_is_bound(allowed, online))
        log_warn("%s: the launcher lets this process use %d of the %d processors; `mpirun "
                 "--bind-to none` or `srun -c N` gives it more",
                 command, allowed, online);
}

/* ---- names ---------------------------------------------------------------------------------- */

void shard_file_name(const struct shard *s, const char *stem, const char *ext, char name[96])
{
    if (s->count == 1)
        snprintf(name, 96, "%s.%s", stem, ext);
    else
        snprintf(name, 96, "%s.%lld-of-%lld.%s", stem, (long long)s->index, (long long)s->count,
                 ext);
}

void shard_what(const struct shard *s, const char *command, char what[64])
{
    snprintf(what, 64, "%s", command);
    if (s->count > 1)
        snprintf(what, 64, "%s, shard %lld of %lld", command, (long long)s->index,
                 (long long)s->count);
}

/* ---- balance -------------------------------------------------------------------------------- */

struct item {
    double cost;
    int64_t index;
};

static int by_cost(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->cost != y->cost)
        return x->cost > y->cost ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

struct load {
    double sum;
    int64_t items;
};

/* Cells without cost are spread by number. */
static int64_t least(const struct load *all, int64_t n)
{
    int64_t at = 0;
    for (int64_t i = 1; i < n; i++)
        if (all[i].sum < all[at].sum || (all[i].sum == all[at].sum && all[i].items < all[at].items))
            at = i;
    return at;
}

int shard_assign(const double *cost, int64_t n, int64_t count, int64_t *owner, struct err *err)
{
    OWN(free_at) struct item *items = NULL;
    OWN(free_at) struct load *loads = NULL;
    PASS_ON(mem_alloc(&items, n, sizeof *items, "cells", err));
    PASS_ON(mem_zalloc(&loads, count, sizeof *loads, "shards", err));
    for (int64_t i = 0; i < n; i++)
        items[i] = (struct item){cost[i], i};
    qsort(items, (size_t)n, sizeof *items, by_cost);
    for (int64_t i = 0; i < n; i++) {
        int64_t to = least(loads, count);
        owner[items[i].index] = to;
        loads[to].sum += items[i].cost;
        loads[to].items++;
    }
    return 0;
}
