/* Shards: option, launchers, array jobs, balance. */
#include "tests/harness/test.h"

#include "core/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct err e;
static struct shard s;

/* clang-format off */
static const char *const variables[] = {
    "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN",
    "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_STEP", "SLURM_ARRAY_TASK_COUNT",
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK",
    "PMI_SIZE", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID",
    "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE", "PALS_LOCAL_SIZE",
    "SLURM_NTASKS_PER_NODE"};
/* clang-format on */

/* "NAME=value NAME=value": exactly these of the launchers' variables. */
static void environment(const char *text)
{
    char copy[512], *save = NULL;
    memset(&e, 0, sizeof e);
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);
    snprintf(copy, sizeof copy, "%s", text);
    for (char *p = strtok_r(copy, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
        char *eq = strchr(p, '=');
        *eq = '\0';
        setenv(p, eq + 1, 1);
    }
}

static const struct {
    const char *env, *opt;
    int64_t index, count;
    int local;
} good[] = {
    {"", NULL, 0, 1, 0},
    {"", "", 0, 1, 0},
    {"", "0/1", 0, 1, 0},
    {"", "3/4", 3, 4, 0},
    {"SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_LOCALID=1", NULL, 2, 4, 1},
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1", NULL, 1, 2, 1},
    {"PMI_RANK=5 PMI_SIZE=8", NULL, 5, 8, 0},
    {"PMI_RANK=5 PMI_SIZE=8 MPI_LOCALRANKID=1", NULL, 5, 8, 1},
    {"PMI_RANK=5 PMI_SIZE=8 MV2_COMM_WORLD_LOCAL_RANK=2", NULL, 5, 8, 2},
    {"PMI_RANK=5 PMI_SIZE=8 PALS_LOCAL_RANKID=3", NULL, 5, 8, 3},
    /* mpirun inside of srun: the launcher's own counts. */
    {"SLURM_LOCALID=0 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1",
     NULL, 1, 2, 1},
    /* Rank 0 without a size says nothing, as in a batch script. */
    {"PMI_RANK=0", NULL, 0, 1, 0},
    {"SLURM_NTASKS=8", NULL, 0, 1, 0},
    /* mpirun in a SLURM batch script: every rank inherits SLURM_PROCID=0. */
    {"SLURM_PROCID=0 SLURM_NTASKS=1 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4", NULL, 3, 4, 0},
    /* The option overrides a launcher, even a broken one. */
    {"SLURM_PROCID=2 SLURM_NTASKS=4", "1/3", 1, 3, 0},
    {"SLURM_PROCID=x SLURM_NTASKS=4", "1/3", 1, 3, 0},
    /* sbatch --array=0-3: the batch script is rank 0 of 1. */
    {"SLURM_ARRAY_TASK_ID=2 SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_MAX=3 SLURM_ARRAY_TASK_STEP=1 "
     "SLURM_ARRAY_TASK_COUNT=4 SLURM_PROCID=0 SLURM_NTASKS=1",
     NULL, 2, 4, 0},
    /* --array=10-30:10 with srun -n 4 inside: 3 x 4 shards. */
    {"SLURM_ARRAY_TASK_ID=30 SLURM_ARRAY_TASK_MIN=10 SLURM_ARRAY_TASK_MAX=30 "
     "SLURM_ARRAY_TASK_STEP=10 SLURM_ARRAY_TASK_COUNT=3 SLURM_PROCID=1 SLURM_NTASKS=4",
     NULL, 9, 12, 0},
    /* Older versions set no step. */
    {"SLURM_ARRAY_TASK_ID=5 SLURM_ARRAY_TASK_MIN=4 SLURM_ARRAY_TASK_COUNT=2", NULL, 1, 2, 0},
};

LOOP_TEST(shards_come_from_option_launcher_and_array, sizeof good / sizeof *good)
{
    environment(good[_i].env);
    assert_ok(shard_from_env(good[_i].opt, &s, &e), &e);
    ck_assert_int_eq(s.index, good[_i].index);
    ck_assert_int_eq(s.count, good[_i].count);
    ck_assert_int_eq(s.local, good[_i].local);
}

static const struct {
    const char *env, *opt, *message;
    /* clang-format off */
} bad[] = {
    {"", "4/4", "0 <= i < n"},
    {"", "1", "i/n"},
    {"", "/2", "i/n"},
    {"", "1/", "i/n"},
    {"", "-1/2", "i/n"},
    {"", "0/0", "i/n"},
    {"", "1/2/3", "i/n"},
    {"", "0/99999999999", "i/n"},
    {"SLURM_PROCID=4 SLURM_NTASKS=4", NULL, "--shard"},
    {"PMI_RANK=5", NULL, "PMI_RANK=5 is set"},
    {"PMI_RANK=a PMI_SIZE=4", NULL, "PMI_RANK='a'"},
    {"SLURM_ARRAY_TASK_ID=1", NULL, "--shard"},
    /* --array=1,2,7: all three tasks must refuse, or cells would be lost or done twice. */
    {"SLURM_ARRAY_TASK_ID=7 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_MAX=7 SLURM_ARRAY_TASK_STEP=1 "
     "SLURM_ARRAY_TASK_COUNT=3", NULL, "--shard"},
    {"SLURM_ARRAY_TASK_ID=2 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_MAX=7 SLURM_ARRAY_TASK_STEP=1 "
     "SLURM_ARRAY_TASK_COUNT=3", NULL, "--shard"},
    {"SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_MAX=4 SLURM_ARRAY_TASK_STEP=2 "
     "SLURM_ARRAY_TASK_COUNT=3", NULL, "--shard"},
    {"SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_STEP=0 "
     "SLURM_ARRAY_TASK_COUNT=3", NULL, "--shard"},
};
/* clang-format on */

LOOP_TEST(nonsense_is_refused, sizeof bad / sizeof *bad)
{
    environment(bad[_i].env);
    assert_fails(shard_from_env(bad[_i].opt, &s, &e), &e, ERR_USAGE, bad[_i].message);
}

TEST(shards_of_an_array_with_tasks_are_all_different)
{
    int seen[12] = {0};
    for (int id = 0; id < 3; id++) {
        for (int rank = 0; rank < 4; rank++) {
            char env[256];
            snprintf(env, sizeof env,
                     "SLURM_ARRAY_TASK_ID=%d SLURM_ARRAY_TASK_MIN=5 SLURM_ARRAY_TASK_STEP=3 "
                     "SLURM_ARRAY_TASK_COUNT=3 SLURM_PROCID=%d SLURM_NTASKS=4",
                     5 + 3 * id, rank);
            environment(env);
            assert_ok(shard_from_env(NULL, &s, &e), &e);
            ck_assert_int_eq(s.count, 12);
            seen[s.index]++;
        }
    }
    for (int i = 0; i < 12; i++)
        ck_assert_int_eq(seen[i], 1);
}

TEST(file_names_carry_the_shard)
{
    char name[96];
    shard_file_name(&(struct shard){0, 1, 0}, "records", "jsonl", name);
    ck_assert_str_eq(name, "records.jsonl");
    shard_file_name(&(struct shard){3, 16, 0}, "records", "jsonl", name);
    ck_assert_str_eq(name, "records.3-of-16.jsonl");
}

TEST(progress_names_the_shard_of_several)
{
    char what[64];
    shard_what(&(struct shard){0, 1, 0}, "eval", what);
    ck_assert_str_eq(what, "eval");
    shard_what(&(struct shard){0}, "eval", what); /* not shared out */
    ck_assert_str_eq(what, "eval");
    shard_what(&(struct shard){3, 16, 0}, "replay", what);
    ck_assert_str_eq(what, "replay, shard 3 of 16");
}

static const struct {
    const char *env;
    int allowed, online, used;
    bool bound;
} hosts[] = {
    {"", 32, 32, 32, false},
    {"", 1, 32, 1, false}, /* by taskset: somebody's choice */
    {"OMPI_COMM_WORLD_LOCAL_SIZE=2", 32, 32, 16, false},
    {"OMPI_COMM_WORLD_LOCAL_SIZE=2", 16, 32, 16, false},
    {"OMPI_COMM_WORLD_LOCAL_SIZE=2", 5, 32, 5, false},
    {"OMPI_COMM_WORLD_LOCAL_SIZE=2", 4, 32, 4, true},
    {"OMPI_COMM_WORLD_LOCAL_SIZE=2", 1, 32, 1, true},
    {"OMPI_COMM_WORLD_LOCAL_SIZE=2", 1, 2, 1, false},
    {"MPI_LOCALNRANKS=3", 32, 32, 11, false},
    {"MV2_COMM_WORLD_LOCAL_SIZE=64", 32, 32, 1, false},
    {"PALS_LOCAL_SIZE=4", 64, 64, 16, false},
    {"SLURM_NTASKS_PER_NODE=4", 2, 64, 2, true},
    {"SLURM_NTASKS_PER_NODE=many", 64, 64, 64, false},
};

LOOP_TEST(processes_of_a_launcher_share_their_host, sizeof hosts / sizeof *hosts)
{
    environment(hosts[_i].env);
    ck_assert_int_eq(shard_cpus(hosts[_i].allowed, hosts[_i].online), hosts[_i].used);
    ck_assert_int_eq(shard_is_bound(hosts[_i].allowed, hosts[_i].online), hosts[_i].bound);
}

TEST(shards_are_balanced_and_every_cell_has_one)
{
    enum { N = 1000, SHARDS = 7 };
    double cost[N], load[SHARDS] = {0}, most = 0, total = 0;
    int64_t owner[N], again[N];
    for (int i = 0; i < N; i++) {
        cost[i] = 1 + (i * 37 % 101) * (i % 5);
        total += cost[i];
        most = cost[i] > most ? cost[i] : most;
    }
    assert_ok(shard_assign(cost, N, SHARDS, owner, &e), &e);
    assert_ok(shard_assign(cost, N, SHARDS, again, &e), &e);
    ck_assert_mem_eq(owner, again, sizeof owner);
    for (int i = 0; i < N; i++) {
        ck_assert(owner[i] >= 0 && owner[i] < SHARDS);
        load[owner[i]] += cost[i];
    }
    /* Greedy in descending order: no shard is above the mean by more than one cell. */
    for (int k = 0; k < SHARDS; k++)
        ck_assert_double_le(load[k], total / SHARDS + most);
}

TEST(cells_without_cost_are_spread_and_shards_may_be_empty)
{
    double cost[4] = {0};
    int64_t owner[4];
    assert_ok(shard_assign(cost, 4, 2, owner, &e), &e);
    ck_assert_int_eq(owner[0] + owner[1] + owner[2] + owner[3], 2);
    assert_ok(shard_assign(cost, 4, 100, owner, &e), &e);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(owner[i], i);
    assert_ok(shard_assign(cost, 0, 3, owner, &e), &e);
}
