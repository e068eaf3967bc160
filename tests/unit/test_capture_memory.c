/*
 * test_capture_memory.c - what a capture holds in memory. It runs without sanitizers: their
 * allocator keeps what is freed.
 */
#include "tests/harness/capturerun.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Peak memory in bytes of a process that captures all layers of `steps` steps of 1536 tokens. */
static int64_t peak_of_capture(int steps)
{
    struct rusage use;
    int status;
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        char args[80];
        snprintf(args, sizeof args, "--size 4x128x192 --steps %d", steps);
        _exit(capture_run("datasets/models/video-dit", test_path("m.h5"), "--jobs 2 --force", args,
                          &(struct err){0})
                  ? 1
                  : 0);
    }
    ck_assert_int_eq(wait4(pid, &status, 0, &use), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return (int64_t)use.ru_maxrss * 1024;
}

/* A step stores 14 MB here. */
TEST(memory_does_not_grow_with_the_stored_steps)
{
    int64_t few = peak_of_capture(2), many = peak_of_capture(6);
    ck_assert_msg(many < few + ((int64_t)24 << 20), "%lld bytes for 2 steps, %lld for 6",
                  (long long)few, (long long)many);
}
