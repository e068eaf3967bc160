/*
 * gp.c - scripts and data for gnuplot. What lacuna runs is the kept script itself, in a directory
 * of its own. Texts stand in single quotes, and file names begin with "./", because gnuplot would
 * run names that begin with '<' or '|'.
 */
#include "plots/gp_impl.h"

#include "core/fileio.h"
#include "core/text.h"

#include <math.h>
#include <string.h>

int gp_check_name(const char *path, enum gp_type *type, struct err *err)
{
    static const char *const suffixes[] = {".png", ".svg", ".pdf"};
    const char *dot = strrchr(path, '.');
    char what[UTF8_FAULT_MAX];
    const char *fault = utf8_fault(path, what);
    if (fault)
        return err_set(err, ERR_USAGE, "%s: a figure cannot have this name: it has a %s", path,
                       fault);
    for (int i = 0; i < 3; i++)
        if (dot && dot != path && dot[-1] != '/' && strcmp(dot, suffixes[i]) == 0) {
            *type = (enum gp_type)i;
            return 0;
        }
    return err_set(err, ERR_USAGE, "%s: the name of a figure ends in .png, .svg or .pdf", path);
}

int gp_open(struct gp *g, const char *path, int width, int height, struct err *err)
{
    *g = (struct gp){.width = width, .height = height};
    if (width < GP_SIDE_LEAST || height < GP_SIDE_LEAST || width > GP_SIDE_MOST ||
        height > GP_SIDE_MOST)
        return err_set(err, ERR_USAGE, "%s: %d x %d pixels: a figure has %d to %d per side", path,
                       width, height, GP_SIDE_LEAST, GP_SIDE_MOST);
    int rc = gp_check_name(path, &g->type, err);
    if (rc)
        return rc;
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    if (!slash)
        buf_puts(&g->dir, ".");
    else
        buf_put(&g->dir, path, slash == path ? 1 : (size_t)(slash - path));
    buf_puts(&g->file, file);
    buf_put(&g->stem, file, strlen(file) - 4);
    return 0;
}

void gp_free(struct gp *g)
{
    gp_stage_drop(g);
    buf_free(&g->dir);
    buf_free(&g->file);
    buf_free(&g->stem);
    buf_free(&g->script);
    buf_free(&g->made_by);
    buf_free(&g->stage);
    str_list_free(&g->data);
}

int gp_data(struct gp *g, const char *tag, const void *data, size_t len, struct err *err)
{
    struct buf path = {0}, name = {0};
    int rc = 0;
    TRY(gp_stage_open(g, err));
    buf_printf(&name, "%s.%s", buf_str(&g->stem), tag);
    TRY(buf_check(&name, "path", err));
    TRY(gp_stage_refuse(g, name.data, err));
    gp_stage_path(g, buf_str(&name), &path);
    TRY(buf_check(&path, "path", err));
    TRY(file_write_atomic(buf_str(&path), data, len, err));
    str_list_add(&g->data, buf_str(&name));
    if (g->data.failed)
        FAIL(err, ERR_NOMEM, "%s: out of memory", buf_str(&path));
out:
    buf_free(&path);
    buf_free(&name);
    return rc;
}

void gp_data_name(struct gp *g, const char *tag)
{
    struct buf name = {0};
    buf_printf(&name, "./%s.%s", buf_str(&g->stem), tag);
    gp_path(&g->script, buf_str(&name));
    g->script.failed |= name.failed;
    buf_free(&name);
}

/* Terminal and output. */
static void head(const struct gp *g, struct buf *b)
{
    struct buf name = {0};
    /* Fonts and points of the SVG terminal are scaled to look like those of the others. */
    if (g->type == GP_PNG)
        buf_printf(b, "set terminal pngcairo size %d,%d enhanced font 'Sans,10'\n", g->width,
                   g->height);
    else if (g->type == GP_SVG)
        buf_printf(b,
                   "set terminal svg size %d,%d dynamic enhanced font 'Sans,10' fontscale 1.33 "
                   "background '#ffffff'\n",
                   g->width, g->height);
    else
        buf_printf(b, "set terminal pdfcairo size %.2fin,%.2fin enhanced font 'Sans,9'\n",
                   g->width / 100.0, g->height / 100.0);
    buf_printf(b, "point_scale = %s\n",
               g->type == GP_PNG   ? "1.0"
               : g->type == GP_SVG ? "0.62"
                                   : "0.7");
    buf_printf(&name, "./%s", buf_str(&g->file));
    buf_puts(b, "set output ");
    gp_path(b, buf_str(&name));
    buf_puts(b, "\n");
    b->failed |= name.failed;
    buf_free(&name);
}

static int write_script(const struct gp *g, struct err *err)
{
    struct buf b = {0}, name = {0}, path = {0};
    int rc = 0;
    buf_puts(&b, "# run in this directory: gnuplot ");
    buf_printf(&b, "%s.gp\n", buf_str(&g->stem));
    if (g->made_by.len) {
        buf_puts(&b, "# made by: ");
        text_escape(&b, buf_str(&g->made_by), "");
        buf_puts(&b, "\n");
    }
    head(g, &b);
    buf_puts(&b, buf_str(&g->script));
    buf_puts(&b, "set output\n");
    buf_printf(&name, "%s.gp", buf_str(&g->stem));
    gp_stage_path(g, buf_str(&name), &path);
    TRY(buf_check(&b, "gnuplot script", err));
    TRY(buf_check(&name, "path", err));
    TRY(buf_check(&path, "path", err));
    TRY(file_write_atomic(buf_str(&path), b.data, b.len, err));
out:
    buf_free(&b);
    buf_free(&name);
    buf_free(&path);
    return rc;
}

int gp_finish(struct gp *g, struct err *err)
{
    int rc = 0;
    TRY(buf_check(&g->script, "gnuplot script", err));
    TRY(gp_stage_open(g, err));
    TRY(write_script(g, err));
    rc = gp_run(g, err);
    if (rc == ERR_INTERRUPTED)
        gp_stage_drop(g);
    else if (rc)
        gp_stage_leave(g);
    else
        rc = gp_stage_publish(g, err);
out:
    return rc;
}

double gp_step(double n, int most)
{
    if (!(n > 0) || most < 1)
        return 1;
    double raw = n / most, unit = pow(10, floor(log10(raw)));
    static const double steps[] = {1, 2, 2.5, 5, 10};
    for (int i = 0; i < 5; i++)
        if (steps[i] * unit >= raw * (1 - 1e-12))
            return steps[i] * unit;
    return 10 * unit;
}

int64_t gp_token_step(int64_t n, int most)
{
    int64_t step = 1;
    while (n / step >= most && step < n)
        step *= 2;
    return step;
}

double gp_count_step(double n, int most)
{
    static const int steps[] = {1, 2, 5};
    for (double unit = 1;; unit *= 10)
        for (int i = 0; i < 3; i++)
            if (!(n / (steps[i] * unit) > most))
                return steps[i] * unit;
}
