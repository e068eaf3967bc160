/*
 * datadir.c - search order: environment, executable, working directory.
 */
#include "core/datadir.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool try_place(const char *dir, const char *sub, const char *below, struct buf *path,
                      struct buf *tried)
{
    buf_reset(path);
    buf_printf(path, "%s%s%s/%s", dir, sub[0] ? "/" : "", sub, below);
    if (!path->failed && access(buf_str(path), R_OK) == 0)
        return true;
    buf_printf(tried, "%s%s", tried->len ? ", " : "", buf_str(path));
    return false;
}

static bool beside_executable(const char *below, struct buf *path, struct buf *tried)
{
    static const char *const places[] = {"../datasets", "datasets", "../share/lacuna"};
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0)
        return false;
    exe[n] = '\0';
    char *slash = strrchr(exe, '/');
    if (!slash)
        return false;
    *slash = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (try_place(exe, places[i], below, path, tried))
            return true;
    return false;
}

int datadir_find(const char *below, struct buf *path, struct err *err)
{
    const char *env = getenv("LACUNA_DATA");
    struct buf tried = {0};
    bool found;
    if (env && env[0])
        found = try_place(env, "", below, path, &tried);
    else
        found = beside_executable(below, path, &tried) ||
                try_place("datasets", "", below, path, &tried);
    int rc = 0;
    if (!found) {
        buf_reset(path);
        rc = err_set(err, ERR_INPUT, "datasets/%s not found (looked at %s): set LACUNA_DATA", below,
                     buf_str(&tried));
    }
    buf_free(&tried);
    return rc;
}
