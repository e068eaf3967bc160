/*
 * gp_stage.c - the files of a figure change together: they are made in the directory
 * "<fig.png>.part", where gnuplot reads and writes them under their own names, and renamed when all
 * are good.
 */
#include "plots/gp_impl.h"

#include "core/fileio.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void in_dir(const struct buf *dir, const char *name, struct buf *path)
{
    buf_reset(path);
    buf_printf(path, "%s/%s", buf_str(dir), name);
}

void gp_stage_path(const struct gp *g, const char *name, struct buf *path)
{
    in_dir(&g->stage, name, path);
}

/* Remove the figure's files: those of a run that was killed may have other names than those of this
 * one. */
static void clear(const struct gp *g, const char *dir)
{
    const char *stem = buf_str(&g->stem);
    size_t len = strlen(stem);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        if (strncmp(e->d_name, stem, len) == 0 && e->d_name[len] == '.')
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
}

int gp_stage_refuse(const struct gp *g, const char *name, struct err *err)
{
    struct buf path = {0};
    struct stat out;
    int rc = 0;
    if (g->inputs && g->inputs->failed)
        FAIL(err, ERR_NOMEM, "inputs of the figure: out of memory");
    in_dir(&g->dir, name, &path);
    TRY(buf_check(&path, "path", err));
    if (stat(path.data, &out) != 0)
        goto out;
    if (S_ISDIR(out.st_mode))
        FAIL(err, ERR_USAGE, "%s: the figure would write this file, but it is a directory",
             path.data);
    for (int64_t i = 0; g->inputs && i < g->inputs->n; i++)
        if (refuse_input(path.data, g->inputs->items[i], NULL) != 0)
            FAIL(err, ERR_USAGE, "%s: the figure %s would overwrite its input: name it otherwise",
                 path.data, buf_str(&g->file));
out:
    buf_free(&path);
    return rc;
}

int gp_stage_name(struct gp *g, const char *suffix, struct err *err)
{
    struct buf name = {0};
    int rc = 0;
    buf_printf(&name, "%s%s", buf_str(&g->stem), suffix);
    TRY(buf_check(&name, "path", err));
    TRY(gp_stage_refuse(g, name.data, err));
    str_list_add(&g->files, name.data);
    if (g->files.failed)
        FAIL(err, ERR_NOMEM, "%s: out of memory", name.data);
out:
    buf_free(&name);
    return rc;
}

int gp_stage_open(struct gp *g, struct err *err)
{
    struct buf path = {0};
    struct stat st;
    int rc = 0;
    if (g->stage.len)
        return 0;
    TRY(gp_stage_name(g, ".gp", err));
    if (g->type == GP_TEX) /* what LaTeX includes from fig.tex */
        TRY(gp_stage_name(g, ".pdf", err));
    TRY(gp_stage_refuse(g, buf_str(&g->file), err));
    for (int i = 0; i < GP_TYPES; i++) {
        buf_reset(&path);
        buf_printf(&path, "%s/%s%s", buf_str(&g->dir), buf_str(&g->stem), gp_suffixes[i]);
        g->replaces |= stat(buf_str(&path), &st) == 0;
    }
    in_dir(&g->dir, buf_str(&g->file), &path);
    buf_puts(&path, ".part");
    TRY(buf_check(&path, "path", err));
    if (mkdir(path.data, 0777) != 0 &&
        (errno != EEXIST || lstat(path.data, &st) != 0 || !S_ISDIR(st.st_mode))) {
        rc = err_sys(err, ERR_IO, "%s: cannot create the directory", path.data);
        goto out;
    }
    clear(g, path.data);
    buf_free(&g->stage);
    g->stage = path;
    path = (struct buf){0};
out:
    buf_free(&path);
    return rc;
}

void gp_stage_drop(struct gp *g)
{
    if (!g->stage.len)
        return;
    clear(g, buf_str(&g->stage));
    rmdir(buf_str(&g->stage)); /* stays when someone else put files there */
    buf_reset(&g->stage);
}

static int move(const struct gp *g, const char *name, struct err *err)
{
    struct buf from = {0}, to = {0};
    int rc = 0;
    in_dir(&g->stage, name, &from);
    in_dir(&g->dir, name, &to);
    TRY(buf_check(&from, "path", err));
    TRY(buf_check(&to, "path", err));
    if (rename(from.data, to.data) != 0)
        rc = err_sys(err, ERR_IO, "%s: cannot rename to %s", from.data, to.data);
out:
    buf_free(&from);
    buf_free(&to);
    return rc;
}

int gp_stage_publish(struct gp *g, bool drawn, struct err *err)
{
    int rc = 0;
    for (int64_t i = 0; i < g->files.n && !rc && (drawn || !g->replaces); i++) {
        int moved = move(g, g->files.items[i], drawn ? err : NULL);
        rc = drawn ? moved : 0;
    }
    if (drawn && !rc)
        rc = move(g, buf_str(&g->file), err);
    gp_stage_drop(g);
    return rc;
}
