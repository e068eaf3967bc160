/*
 * trace_list.c - directories of traces. Several runs of a model lie in one directory, a file each;
 * masks and outputs of replays may lie beside them.
 */
#include "core/trace_internal.h"

#include "core/text.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <sys/stat.h>

static int is_h5(const struct dirent *e)
{
    return e->d_name[0] != '.' && fnmatch("*.h5", e->d_name, 0) == 0;
}

static bool has_format(const char *path, const char *format)
{
    struct err ignored = {0};
    hid_t file = H5I_INVALID_HID;
    if (h5_open_file(path, format, 1, &file, &ignored) != 0)
        return false;
    h5_lock();
    H5Fclose(file);
    h5_unlock();
    return true;
}

static int add_path(const char *dir, const char *name, struct str_list *out, struct err *err)
{
    struct buf path = {0};
    buf_printf(&path, "%s/%s", dir, name);
    int rc = buf_check(&path, dir, err);
    /* Whatever is neither masks nor outputs is taken: a damaged trace is reported, not left out. */
    if (rc == 0 && !has_format(buf_str(&path), "lacuna-masks") &&
        !has_format(buf_str(&path), "lacuna-outputs"))
        str_list_add(out, buf_str(&path));
    buf_free(&path);
    return rc;
}

static int list_directory(const char *dir, struct str_list *out, struct err *err)
{
    struct dirent **names = NULL;
    int64_t before = out->n;
    int rc = 0, n = scandir(dir, &names, is_h5, versionsort);

    if (n < 0)
        return err_sys(err, ERR_INPUT, "%s: cannot list the directory", dir);
    for (int i = 0; i < n; i++) {
        if (rc == 0)
            rc = add_path(dir, names[i]->d_name, out, err);
        free(names[i]);
    }
    free(names);
    if (rc == 0 && !out->failed && out->n == before)
        rc = err_set(err, ERR_INPUT, "%s: the directory holds no traces (*.h5)", dir);
    return rc;
}

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int trace_list(char *const *args, int64_t n, struct str_list *out, struct err *err)
{
    int rc = 0;
    for (int64_t i = 0; i < n && rc == 0; i++) {
        if (is_directory(args[i]))
            rc = list_directory(args[i], out, err);
        else
            str_list_add(out, args[i]);
    }
    if (rc == 0 && out->failed)
        rc = err_set(err, ERR_NOMEM, "names of traces");
    return rc;
}

int trace_only(const char *path, char **only, struct err *err)
{
    struct str_list found = {0};
    int rc = 0;

    *only = NULL;
    if (!is_directory(path))
        return 0;
    TRY(trace_list(&(char *){(char *)(uintptr_t)path}, 1, &found, err));
    if (found.n > 1)
        FAIL(err, ERR_INPUT,
             "%s holds %lld traces, and one is wanted here: name one of them, such as %s, or put "
             "calls of one run together with lacuna trace join",
             path, (long long)found.n, found.items[0]);
    *only = found.items[0];
    found.items[0] = NULL;
out:
    str_list_free(&found);
    return rc;
}
