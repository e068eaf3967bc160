/*
 * child.c - a process group with a watch: a shell that reads from a pipe until this program, which
 * holds the other end, has ended.
 */
#include "core/child.h"

#include "core/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int spawn(pid_t *pid, char *const *argv, char *const *env,
                 const posix_spawn_file_actions_t *files)
{
    posix_spawnattr_t how;
    sigset_t defaults;
    int e = posix_spawnattr_init(&how);
    if (e)
        return e;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE); /* ignored here, not there */
    posix_spawnattr_setsigdefault(&how, &defaults);
    posix_spawnattr_setpgroup(&how, 0);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    e = posix_spawnp(pid, argv[0], files, &how, argv, env);
    posix_spawnattr_destroy(&how);
    return e;
}

/* A group of its own keeps the terminal's signals from the watch. */
static int start_watch(struct child *c, char *const *env)
{
    char sh[] = "/bin/sh", option[] = "-c", group[24];
    char text[] = "read -r _; kill -s KILL -- \"-$0\"";
    char *argv[] = {sh, option, text, group, NULL};
    posix_spawn_file_actions_t files;
    int fd[2], e;
    snprintf(group, sizeof group, "%d", (int)c->pid);
    if (pipe2(fd, O_CLOEXEC) != 0)
        return errno;
    e = posix_spawn_file_actions_init(&files);
    if (!e) {
        posix_spawn_file_actions_adddup2(&files, fd[0], 0);
        posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
        posix_spawn_file_actions_adddup2(&files, 1, 2);
        posix_spawn_file_actions_addclosefrom_np(&files, 3);
        e = spawn(&c->watch, argv, env, &files);
        posix_spawn_file_actions_destroy(&files);
    }
    close(fd[0]);
    c->alive = fd[1];
    return e;
}

int child_start(struct child *c, char *const *argv, char *const *env,
                const posix_spawn_file_actions_t *files)
{
    *c = (struct child){.alive = -1};
    int e = spawn(&c->pid, argv, env, files);
    if (e)
        *c = (struct child){0};
    else if ((e = start_watch(c, env)) != 0)
        child_kill(c);
    return e;
}

/* Without its leader the group has no number that is safe to kill, nor has the watch a use. */
static void end_watch(struct child *c)
{
    if (c->watch) {
        kill(c->watch, SIGKILL);
        waitpid(c->watch, NULL, 0);
    }
    if (c->alive >= 0)
        close(c->alive);
    *c = (struct child){0};
}

int child_wait(struct child *c, double seconds, int *status)
{
    siginfo_t what;
    double until = clock_s() + seconds;
    for (;;) {
        what.si_pid = 0;
        if (waitid(P_PID, (id_t)c->pid, &what, WEXITED | WNOHANG | WNOWAIT) != 0 && errno != EINTR)
            return -1;
        if (what.si_pid == c->pid) {
            kill(-c->pid, SIGKILL); /* what it left behind */
            waitpid(c->pid, status, 0);
            end_watch(c);
            return 1;
        }
        if (clock_s() >= until)
            return 0;
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
}

void child_kill(struct child *c)
{
    if (!c->pid)
        return;
    kill(-c->pid, SIGKILL);
    waitpid(c->pid, NULL, 0);
    end_watch(c);
}
