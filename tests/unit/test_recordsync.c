/*
 * test_recordsync.c - what a power failure may cost: records are synced every few seconds and at
 * the end, the name of a new file at once. The clock and the sync calls are this program's own.
 */
#include "tests/harness/test.h"

#include "core/clock.h"
#include "core/fileio.h"
#include "core/pool.h"
#include "core/record.h"
#include "sim/replay.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct err e;
static struct record r;
static char dir[300], path[340];
static time_t ahead; /* seconds that the monotonic clock was moved */
static int data_syncs, directory_syncs, sync_error;

int clock_gettime(clockid_t id, struct timespec *t)
{
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    t->tv_sec += id == CLOCK_MONOTONIC ? ahead : 0;
    return rc;
}

int fdatasync(int fd)
{
    data_syncs++;
    errno = sync_error;
    return sync_error ? -1 : (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd)
{
    struct stat st;
    directory_syncs += fstat(fd, &st) == 0 && S_ISDIR(st.st_mode);
    return (int)syscall(SYS_fsync, fd);
}

static void begin(void)
{
    static int number;
    memset(&e, 0, sizeof e);
    record_init(&r);
    snprintf(dir, sizeof dir, "%s/sync-%d-%d", test_tmpdir(), (int)getpid(), number++);
    assert_ok(make_dirs(dir, &e), &e);
    snprintf(path, sizeof path, "%s/records.jsonl", dir);
    data_syncs = directory_syncs = sync_error = 0;
}

static int append(struct record_file *f, int head)
{
    r.head = head;
    return record_file_append(f, &r, &e);
}

FIXTURE(begin, NULL);

TEST(the_name_of_a_new_file_is_synced_once)
{
    struct record_file *f = NULL;
    assert_ok(record_file_open(path, &f, &e), &e);
    ck_assert_int_eq(directory_syncs, 1);
    record_file_close(&f);
    assert_ok(record_file_open(path, &f, &e), &e);
    ck_assert_int_eq(directory_syncs, 1);
    record_file_close(&f);
}

TEST(new_directories_are_synced)
{
    char deep[400];
    snprintf(deep, sizeof deep, "%s/a/b", dir);
    assert_ok(make_dirs(deep, &e), &e);
    ck_assert_int_eq(directory_syncs, 2);
    assert_ok(make_dirs(deep, &e), &e);
    ck_assert_int_eq(directory_syncs, 2);
}

TEST(records_are_synced_every_few_seconds)
{
    struct record_file *f = NULL;
    assert_ok(record_file_open(path, &f, &e), &e);
    for (int second = 0; second < 60; second++) {
        for (int i = 0; i < 20; i++)
            assert_ok(append(f, 20 * second + i), &e);
        ahead++;
    }
    /* 1200 records in a minute: neither a sync per record nor more than 5 s without one. */
    ck_assert_msg(data_syncs >= 12 && data_syncs <= 60, "%d syncs", data_syncs);
    record_file_close(&f);
}

/* A cell that took long is not left to the next one. */
TEST(a_slow_record_is_synced_at_once)
{
    struct record_file *f = NULL;
    assert_ok(record_file_open(path, &f, &e), &e);
    for (int i = 1; i <= 3; i++) {
        ahead += 100;
        assert_ok(append(f, i), &e);
        ck_assert_int_eq(data_syncs, i);
    }
    record_file_close(&f);
}

TEST(a_sync_that_fails_is_an_error)
{
    struct record_file *f = NULL;
    assert_ok(record_file_open(path, &f, &e), &e);
    sync_error = EIO;
    assert_ok(append(f, 0), &e);
    assert_fails(record_file_sync(f, &e), &e, ERR_IO, "records.jsonl: cannot sync");
    ahead += 100;
    assert_fails(append(f, 1), &e, ERR_IO, "cannot sync");
    sync_error = EINVAL; /* a file system that has no sync */
    assert_ok(record_file_sync(f, &e), &e);
    sync_error = ENOSPC;
    assert_fails(record_file_sync(f, &e), &e, ERR_MACHINE, "cannot sync");
    record_file_close(&f);
}

/* The end of a replay, and an interrupted one: here without anything to do in between. */
TEST(a_run_that_ends_is_synced)
{
    struct replay run = {0};
    struct series one = {0};
    int64_t first = 0;
    struct call_group group = {.series = &first, .n = 1, .group = 1};
    assert_ok(record_file_open(path, &run.records, &e), &e);
    assert_ok(replay_execute(&run, 1, &e), &e);
    ck_assert_int_eq(data_syncs, 1);
    run.series = &one;
    run.n_series = 1;
    run.groups = &group;
    run.n_groups = 1;
    interrupt_install();
    raise(SIGINT);
    assert_fails(replay_execute(&run, 1, &e), &e, ERR_INTERRUPTED, "interrupted");
    ck_assert_int_eq(data_syncs, 2);
    record_file_close(&run.records);
    run.series = NULL;
    run.n_series = 0;
    run.groups = NULL;
    run.n_groups = 0;
    replay_free(&run);
}
