/*
 * gp_run.c - the gnuplot process. Given a file, gnuplot stops at the first error with a line number
 * and exit 1; reading bare standard input it would go on. No shell takes part: the process is
 * started directly.
 */
#include "plots/gp_impl.h"

#include "core/environment.h"
#include "core/pool.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int redirect(posix_spawn_file_actions_t *fa, int log)
{
    int e = posix_spawn_file_actions_addopen(fa, 0, "/dev/null", O_RDONLY, 0);
    if (!e)
        e = posix_spawn_file_actions_adddup2(fa, log, 1);
    if (!e)
        e = posix_spawn_file_actions_adddup2(fa, log, 2);
    return e;
}

/* Settings of gnuplot's that would change the figure, or load other files for it. The script sets
 * its terminal; one that this gnuplot lacks, named in GNUTERM, makes gnuplot 5.4 fail or crash. */
static bool is_gnuplot_setting(const char *variable)
{
    static const char *const names[] = {
        "GNUTERM=", "GNUPLOT_", "GNUHELP=", "FIT_LOG=", "FIT_SCRIPT=", "GDFONTPATH="};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(variable, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

/* Start `gnuplot -d -e CD SCRIPT`: -d reads no settings of the user, CD changes the directory. */
static int start(char *cd, char *script, int log, pid_t *pid)
{
    char program[] = "gnuplot", no_init[] = "-d", command[] = "-e";
    char *argv[] = {program, no_init, command, cd, script, NULL};
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t attr;
    sigset_t defaults;
    char **env = environment_without(is_gnuplot_setting);
    int e = env ? posix_spawn_file_actions_init(&fa) : ENOMEM;
    if (e) {
        free(env);
        return e;
    }
    e = posix_spawnattr_init(&attr);
    if (!e) {
        sigemptyset(&defaults);
        sigaddset(&defaults, SIGPIPE); /* ignored here, not there */
        posix_spawnattr_setsigdefault(&attr, &defaults);
        posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF);
        e = redirect(&fa, log);
        if (!e)
            e = posix_spawnp(pid, "gnuplot", &fa, &attr, argv, env);
        posix_spawnattr_destroy(&attr);
    }
    posix_spawn_file_actions_destroy(&fa);
    free(env);
    return e;
}

static int not_started(const struct gp *g, int e, struct err *err)
{
    const char *dir = buf_str(&g->dir), *stem = buf_str(&g->stem);
    errno = e;
    if (e != ENOENT && e != EACCES && e != ENOTDIR)
        return err_sys(err, ERR_RUN, "cannot start gnuplot");
    if (g->replaces)
        return err_set(err, ERR_MACHINE,
                       "gnuplot not found: install gnuplot-nox; %s/%s stays as it is", dir,
                       buf_str(&g->file));
    return err_set(err, ERR_MACHINE,
                   "gnuplot not found: install gnuplot-nox; %s/%s.gp and its data are written, "
                   "`gnuplot %s.gp` there draws the figure",
                   dir, stem, stem);
}

/* A signal (core/pool.h) sets a flag and restarts system calls, so the wait is a loop of looks. A
 * terminal interrupts gnuplot too, which may hang then; `kill` does not. Nothing that it still
 * writes is kept. */
static int wait_for(pid_t pid, int *status, struct err *err)
{
    const struct timespec nap = {.tv_nsec = 5000000};
    pid_t got;
    while ((got = waitpid(pid, status, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
        if (interrupted())
            kill(pid, SIGKILL);
        nanosleep(&nap, NULL);
    }
    if (got < 0)
        return err_sys(err, ERR_RUN, "waiting for gnuplot");
    if (interrupted() || (WIFSIGNALED(*status) && WTERMSIG(*status) == SIGINT))
        return err_set(err, ERR_INTERRUPTED, "interrupted");
    return 0;
}

/* Run the script where it lies; *status is what waitpid gave. */
static int run_script(const struct gp *g, FILE *log, int *status, struct err *err)
{
    struct buf dir = {0}, cd = {0}, script = {0};
    pid_t pid;
    int e, rc = 0;
    buf_printf(&dir, "%s%s", buf_str(&g->stage)[0] == '/' ? "" : "./", buf_str(&g->stage));
    buf_puts(&cd, "cd ");
    gp_path(&cd, buf_str(&dir));
    buf_printf(&script, "./%s.gp", buf_str(&g->stem));
    TRY(buf_check(&dir, "path", err));
    TRY(buf_check(&cd, "path", err));
    TRY(buf_check(&script, "path", err));
    e = start(cd.data, script.data, fileno(log), &pid);
    rc = e ? not_started(g, e, err) : wait_for(pid, status, err);
out:
    buf_free(&dir);
    buf_free(&cd);
    buf_free(&script);
    return rc;
}

/* ---- what came of it ----------------------------------------------------------------------- */

/* White space of a text made single spaces, none at its ends. */
static void squeeze(const char *raw, char *text)
{
    char *to = text;
    for (; *raw; raw++)
        if (!isspace((unsigned char)*raw))
            *to++ = *raw;
        else if (to > text && to[-1] != ' ')
            *to++ = ' ';
    if (to > text && to[-1] == ' ')
        to--;
    *to = '\0';
}

/* gnuplot's last words, on one line: first it repeats the command, which may be long, then it says
 * what is wrong with it. */
static void read_log(FILE *log, char text[300])
{
    char raw[300], line[300];
    long end = fseek(log, 0, SEEK_END) == 0 ? ftell(log) : 0;
    long from = end < 300 ? 0 : end - 299;
    fseek(log, from, SEEK_SET);
    raw[fread(raw, 1, sizeof raw - 1, log)] = '\0';
    squeeze(raw, text);
    if (from == 0)
        return;
    text[0] = '\0';
    for (char *p = strtok(raw, "\n"); p; p = strtok(NULL, "\n")) {
        squeeze(p, line);
        if (line[0])
            memcpy(text, line, strlen(line) + 1);
    }
}

/* Does a line of gnuplot's messages say that it left out a map, and so drew an empty panel? It ends
 * well all the same. */
static bool left_out_map(FILE *log, char line[300])
{
    static const char *const signs[] = {"Image grid must be at least",
                                        "(visible or invisible) to plot",
                                        "image coordinates undefined"};
    rewind(log);
    while (fgets(line, 300, log))
        for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
            if (strstr(line, signs[i])) {
                line[strcspn(line, "\n")] = '\0';
                return true;
            }
    return false;
}

/* "fig.png: gnuplot WHAT (see fig.gp): SAID"; the script of a figure that replaces another is not
 * kept. */
static int failed(const struct gp *g, const char *what, const char *said, struct err *err)
{
    char see[300] = "";
    if (!g->replaces)
        snprintf(see, sizeof see, " (see %s/%s.gp)", buf_str(&g->dir), buf_str(&g->stem));
    return err_set(err, ERR_RUN, "%s/%s: gnuplot %s%s%s%s", buf_str(&g->dir), buf_str(&g->file),
                   what, see, said[0] ? ": " : "", said);
}

static int judge(const struct gp *g, int status, FILE *log, struct err *err)
{
    struct buf picture = {0};
    struct stat st;
    char said[300], what[64];
    bool bad = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    snprintf(what, sizeof what, "failed with %s %d", WIFEXITED(status) ? "exit" : "signal",
             WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    gp_stage_path(g, buf_str(&g->file), &picture);
    int rc = buf_check(&picture, "path", err);
    bool empty = !rc && (stat(picture.data, &st) != 0 || st.st_size == 0);
    buf_free(&picture);
    if (rc)
        return rc;
    if (!bad && !empty)
        return left_out_map(log, said) ? failed(g, "left out a map", said, err) : 0;
    read_log(log, said);
    return failed(g, bad ? what : "wrote nothing", said, err);
}

/* gnuplot says of missing descriptors no more than "No data in plot", or nothing. */
static int check_open_files(struct err *err)
{
    enum { LEAST = 16 };
    struct rlimit most;
    if (getrlimit(RLIMIT_NOFILE, &most) != 0 || most.rlim_cur >= LEAST)
        return 0;
    return err_set(err, ERR_MACHINE,
                   "gnuplot needs %d open files, the limit is %llu: raise it (ulimit -n)", LEAST,
                   (unsigned long long)most.rlim_cur);
}

int gp_run(const struct gp *g, struct err *err)
{
    int status = 0, rc;
    FILE *log;
    if (interrupted())
        return err_set(err, ERR_INTERRUPTED, "interrupted");
    if ((rc = check_open_files(err)) != 0)
        return rc;
    log = tmpfile();
    if (!log)
        return err_sys(err, ERR_IO, "temporary file for gnuplot's messages");
    rc = run_script(g, log, &status, err);
    if (!rc)
        rc = judge(g, status, log, err);
    fclose(log);
    return rc;
}
