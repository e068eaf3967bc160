/*
 * child.h - programs that this one starts end with it, whatever ends it.
 */
#pragma once

#include <spawn.h>
#include <sys/types.h>

struct child {
    pid_t pid;   /* also its process group; 0: none */
    pid_t watch; /* a process that kills the group when this program is gone */
    int alive;   /* descriptor that tells it so */
};

/* Start argv, found as a shell finds it, with SIGPIPE as it is by default. Returns 0 or an errno.
 */
int child_start(struct child *c, char *const *argv, char *const *env,
                const posix_spawn_file_actions_t *files);

/* Wait at most so many seconds for the end; 1: it came, 0: not yet, -1: errno. */
int child_wait(struct child *c, double seconds, int *status);

/* Kill it with everything that it started; accepts a zeroed struct and one that has ended. */
void child_kill(struct child *c);
