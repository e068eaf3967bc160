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

const char *const gp_suffixes[GP_TYPES] = {".png", ".svg", ".pdf", ".eps", ".tex"};

int gp_check_name(const char *path, enum gp_type *type, struct err *err)
{
    const char *dot = strrchr(path, '.');
    char what[UTF8_FAULT_MAX];
    const char *fault = utf8_fault(path, what);
    if (fault)
        return err_set(err, ERR_USAGE, "%s: a figure cannot have this name: it has a %s", path,
                       fault);
    for (int i = 0; i < GP_TYPES; i++)
        if (dot && dot != path && dot[-1] != '/' && strcmp(dot, gp_suffixes[i]) == 0) {
            *type = (enum gp_type)i;
            return 0;
        }
    return err_set(err, ERR_USAGE,
                   "%s: the name of a figure ends in .png, .svg, .pdf, .eps or .tex", path);
}

/* ---- sizes --------------------------------------------------------------------------------- */

static bool is_raster(enum gp_type type)
{
    return type == GP_PNG || type == GP_SVG;
}

static double font_pt(enum gp_type type, const struct gp_style *s)
{
    if (s->font_pt > 0)
        return s->font_pt;
    return s->look == LOOK_PAPER ? 8 : s->look == LOOK_SLIDE ? 18 : is_raster(type) ? 10 : 9;
}

/* 13.3 units are a line of text of so many points. Vector files for screens have 100 an inch at
 * 9 pt. */
double gp_units_per_inch(enum gp_type type, const struct gp_style *s)
{
    bool old = s->look == LOOK_SCREEN && !is_raster(type);
    return (old ? 900 : 960) / font_pt(type, s);
}

double gp_pixels_per_unit(enum gp_type type, const struct gp_style *s)
{
    double dpi = s->look == LOOK_SCREEN || type == GP_SVG ? 96 : s->look == LOOK_PAPER ? 300 : 144;
    return is_raster(type) ? dpi / gp_units_per_inch(type, s) : 1;
}

int gp_open(struct gp *g, const char *path, int width, int height, const struct gp_style *style,
            struct err *err)
{
    *g = (struct gp){.width = width, .height = height};
    int rc = gp_check_name(path, &g->type, err);
    if (rc)
        return rc;
    if (style)
        g->style = *style;
    double scale = gp_pixels_per_unit(g->type, &g->style);
    if (width < GP_SIDE_LEAST || height < GP_SIDE_LEAST || width * scale > GP_SIDE_MOST ||
        height * scale > GP_SIDE_MOST)
        return err_set(err, ERR_USAGE, "%s: %.0f x %.0f pixels: a figure has %d to %d per side",
                       path, width * scale, height * scale, GP_SIDE_LEAST, GP_SIDE_MOST);
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
    buf_free(&g->caption);
    buf_free(&g->stage);
    str_list_free(&g->files);
}

int gp_data(struct gp *g, const char *tag, const void *data, size_t len, struct err *err)
{
    struct buf path = {0}, suffix = {0};
    int rc = 0;
    TRY(gp_stage_open(g, err));
    buf_printf(&suffix, ".%s", tag);
    TRY(buf_check(&suffix, "path", err));
    TRY(gp_stage_name(g, suffix.data, err));
    gp_stage_path(g, g->files.items[g->files.n - 1], &path);
    TRY(buf_check(&path, "path", err));
    TRY(file_write_atomic(path.data, data, len, err));
out:
    buf_free(&path);
    buf_free(&suffix);
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

/* The terminal's line. Fonts and points of SVG are scaled to look like those of the others. */
static void terminal(const struct gp *g, struct buf *b)
{
    double pt = font_pt(g->type, &g->style), scale = gp_pixels_per_unit(g->type, &g->style);
    double inch = gp_units_per_inch(g->type, &g->style), w = g->width / inch, h = g->height / inch;
    double line = g->style.look == LOOK_SCREEN ? 1 : 1.15 * pt / 8; /* 1.4 lines are 0.8 pt at 8 */
    struct buf font = {0}, word = {0};
    if (is_raster(g->type))
        pt = 10;
    buf_printf(&font, "%s,%g", g->style.font ? g->style.font : "Sans", pt);
    gp_path(&word, buf_str(&font));
    if (g->type == GP_PNG)
        buf_printf(b, "set terminal pngcairo size %.0f,%.0f enhanced font %s", g->width * scale,
                   g->height * scale, buf_str(&word));
    else if (g->type == GP_SVG)
        buf_printf(b, "set terminal svg size %.0f,%.0f dynamic enhanced font %s", g->width * scale,
                   g->height * scale, buf_str(&word));
    else if (g->type == GP_TEX)
        /* The terminal reckons with the size of the font but leaves the text in the document's. */
        buf_printf(b,
                   "set terminal cairolatex pdf input color size %.4gin,%.4gin font ',%g' "
                   "header '\\fontsize{%g}{%g}\\selectfont'",
                   w, h, pt, pt, 1.2 * pt);
    else
        buf_printf(b, "set terminal %s size %.4gin,%.4gin enhanced font %s",
                   g->type == GP_EPS ? "epscairo" : "pdfcairo", w, h, buf_str(&word));
    if (g->type == GP_SVG)
        buf_printf(b, " fontscale %.3g linewidth %.3g background '#ffffff'", 1.33 * scale, scale);
    else if (g->type == GP_PNG && scale != 1)
        buf_printf(b, " fontscale %.4g linewidth %.4g", scale, scale);
    else if (g->type != GP_PNG && line != 1)
        buf_printf(b, " linewidth %.3g", line);
    buf_puts(b, "\n");
    b->failed |= font.failed || word.failed;
    buf_free(&font);
    buf_free(&word);
}

/* Terminal, sizes that the commands use by name, and output. */
static void head(const struct gp *g, struct buf *b)
{
    struct buf name = {0};
    double scale = gp_pixels_per_unit(g->type, &g->style);
    double pt = is_raster(g->type) ? 10 : font_pt(g->type, &g->style);
    double point = g->type == GP_PNG ? scale : g->type == GP_SVG ? 0.62 * scale : 0.7 * pt / 9;
    terminal(g, b);
    buf_printf(b, "point_scale = %.4g\nfont_title = ',%.3g'\nfont_small = ',%.3g'\n", point,
               1.2 * pt, 0.8 * pt);
    /* The terminal's own dashes are so long that a short line has but one. */
    buf_puts(b, "set dashtype 2 (18,11)\nset dashtype 3 (4,9)\nset dashtype 4 (22,8,4,8)\n"
                "set dashtype 5 (22,7,4,7,4,7)\n");
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

/* The caption as one paragraph and, below it, the command. */
static int write_caption(struct gp *g, struct err *err)
{
    struct buf b = {0};
    int rc = 0;
    if (!g->caption.len)
        return 0;
    text_escape(&b, buf_str(&g->caption), "\n");
    buf_puts(&b, "\n");
    if (g->made_by.len) {
        buf_puts(&b, "\nmade by: ");
        text_escape(&b, buf_str(&g->made_by), "");
        buf_puts(&b, "\n");
    }
    b.failed |= g->caption.failed;
    TRY(buf_check(&b, "caption", err));
    TRY(gp_data(g, "txt", b.data, b.len, err));
out:
    buf_free(&b);
    return rc;
}

int gp_finish(struct gp *g, struct err *err)
{
    int rc = 0;
    TRY(write_caption(g, err));
    TRY(buf_check(&g->script, "gnuplot script", err));
    TRY(gp_stage_open(g, err));
    TRY(write_script(g, err));
    rc = gp_run(g, err);
    if (rc == ERR_INTERRUPTED)
        gp_stage_drop(g);
    else if (rc)
        gp_stage_publish(g, false, NULL);
    else
        rc = gp_stage_publish(g, true, err);
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
