/*
 * environment.c - where the program runs: variables of a child process, programs, data.
 */
#include "core/environment.h"

#include "core/fileio.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

char **environment_without(bool (*drop)(const char *variable))
{
    size_t n = 0, kept = 0;
    while (environ[n])
        n++;
    char **env = malloc((n + 1) * sizeof *env);
    if (!env)
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (!drop(environ[i]))
            env[kept++] = environ[i];
    env[kept] = NULL;
    return env;
}

bool program_found(const char *name)
{
    char path[4096];
    const char *folders = getenv("PATH");
    for (const char *p = folders; p; p = strchr(p, ':') ? strchr(p, ':') + 1 : NULL) {
        struct stat st;
        int len = (int)strcspn(p, ":"); /* an empty folder is the working one */
        int n = snprintf(path, sizeof path, "%.*s/%s", len ? len : 1, len ? p : ".", name);
        if (n < (int)sizeof path && access(path, X_OK) == 0 && stat(path, &st) == 0 &&
            S_ISREG(st.st_mode))
            return true;
    }
    return false;
}

/* ---- data ----------------------------------------------------------------------------------- */

/* Is it there? A place that the system cannot tell about is an error: the next may hold other
 * data. */
static int try_place(const char *dir, const char *sub, const char *below, struct buf *path,
                     struct buf *tried, bool *found, struct err *err)
{
    buf_reset(path);
    buf_printf(path, "%s%s%s/%s", dir, sub[0] ? "/" : "", sub, below);
    PASS_ON(buf_check(path, below, err));
    PASS_ON(io_exists(buf_str(path), found, err));
    if (!*found)
        buf_printf(tried, "%s%s", tried->len ? ", " : "", buf_str(path));
    return 0;
}

static int beside_executable(const char *below, struct buf *path, struct buf *tried, bool *found,
                             struct err *err)
{
    static const char *const places[] = {"../datasets", "datasets", "../share/lacuna"};
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n < 0 && errno == ENOENT) /* no /proc here */
        return 0;
    if (n <= 0)
        return err_sys(err, ERR_IO, "/proc/self/exe: cannot read where the program lies");
    exe[n] = '\0';
    char *slash = strrchr(exe, '/');
    if (!slash)
        return 0;
    *slash = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places && !*found; i++)
        PASS_ON(try_place(exe, places[i], below, path, tried, found, err));
    return 0;
}

int datadir_find(const char *below, struct buf *path, struct err *err)
{
    const char *env = getenv("LACUNA_DATA");
    struct buf tried = {0};
    bool found = false;
    int rc = 0;
    if (env && env[0]) {
        TRY(try_place(env, "", below, path, &tried, &found, err));
    } else {
        TRY(beside_executable(below, path, &tried, &found, err));
        if (!found)
            TRY(try_place("datasets", "", below, path, &tried, &found, err));
    }
    if (!found)
        FAIL(err, ERR_INPUT, "datasets/%s not found (looked at %s): set LACUNA_DATA", below,
             buf_str(&tried));
out:
    if (rc)
        buf_reset(path);
    buf_free(&tried);
    return rc;
}
