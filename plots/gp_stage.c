/*
 * gp_stage.c - the files of a figure change together: a picture must not stand beside the script
 * and the data of another one that failed.
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

static void script_name(const struct gp *g, struct buf *name)
{
    buf_printf(name, "%s.gp", buf_str(&g->stem));
}

/* What LaTeX includes from fig.tex. */
static void lines_name(const struct gp *g, struct buf *name)
{
    buf_printf(name, "%s.pdf", buf_str(&g->stem));
}

void gp_stage_script(const struct gp *g, struct buf *path)
{
    struct buf name = {0};
    script_name(g, &name);
    in_dir(g->replaces ? &g->stage : &g->dir, buf_str(&name), path);
    path->failed |= name.failed;
    buf_free(&name);
}

/* Is there a picture, of any type, to which script and data belong? */
static bool has_picture(const struct gp *g)
{
    struct stat st;
    struct buf path = {0};
    bool found = false;
    for (int i = 0; i < GP_TYPES; i++) {
        buf_reset(&path);
        buf_printf(&path, "%s/%s%s", buf_str(&g->dir), buf_str(&g->stem), gp_suffixes[i]);
        found |= stat(buf_str(&path), &st) == 0;
    }
    buf_free(&path);
    return found;
}

/* Remove the figure's files: those of a run that failed or was killed may have other names than
 * those of this one. */
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

/* The script and the picture; data are checked when they come. */
static int refuse_own(const struct gp *g, struct err *err)
{
    struct buf script = {0};
    int rc = 0;
    script_name(g, &script);
    TRY(buf_check(&script, "path", err));
    TRY(gp_stage_refuse(g, script.data, err));
    TRY(gp_stage_refuse(g, buf_str(&g->file), err));
    if (g->type == GP_TEX) {
        buf_reset(&script);
        lines_name(g, &script);
        TRY(buf_check(&script, "path", err));
        TRY(gp_stage_refuse(g, script.data, err));
    }
out:
    buf_free(&script);
    return rc;
}

int gp_stage_open(struct gp *g, struct err *err)
{
    struct buf path = {0};
    struct stat st;
    int rc = 0;
    if (g->stage.len)
        return 0;
    TRY(refuse_own(g, err));
    buf_printf(&path, "%s/%s.new", buf_str(&g->dir), buf_str(&g->file));
    TRY(buf_check(&path, "path", err));
    if (mkdir(path.data, 0777) != 0 &&
        (errno != EEXIST || lstat(path.data, &st) != 0 || !S_ISDIR(st.st_mode))) {
        rc = err_sys(err, ERR_IO, "%s: cannot create the directory", path.data);
        goto out;
    }
    clear(g, path.data);
    g->replaces = has_picture(g);
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

static int move_sources(const struct gp *g, struct err *err)
{
    struct buf script = {0};
    int rc = 0;
    for (int64_t i = 0; i < g->data.n; i++)
        TRY(move(g, g->data.items[i], err));
    script_name(g, &script);
    TRY(buf_check(&script, "path", err));
    TRY(move(g, script.data, err));
out:
    buf_free(&script);
    return rc;
}

int gp_stage_publish(struct gp *g, struct err *err)
{
    struct buf lines = {0};
    int rc = move_sources(g, err);
    lines_name(g, &lines);
    if (!rc)
        rc = buf_check(&lines, "path", err);
    if (!rc && g->type == GP_TEX)
        rc = move(g, lines.data, err);
    if (!rc)
        rc = move(g, buf_str(&g->file), err);
    buf_free(&lines);
    gp_stage_drop(g);
    return rc;
}

void gp_stage_leave(struct gp *g)
{
    struct buf picture = {0};
    gp_stage_path(g, buf_str(&g->file), &picture);
    unlink(buf_str(&picture));
    buf_free(&picture);
    if (g->replaces) {
        buf_reset(&g->stage);
        return;
    }
    move_sources(g, NULL); /* the caller already has an error */
    gp_stage_drop(g);
}
