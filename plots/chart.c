/*
 * chart.c - panels with a legend to their right, tics and names of metrics.
 */
#include "plots/chart.h"

#include "analyze/metricfacts.h"

#include <stdio.h>
#include <string.h>

/* ---- panels -------------------------------------------------------------------------------- */

void chart_legend_room(const struct series_list *l, struct chart_layout *out)
{
    out->legend = l->n ? (int)(72 + 7.4 * series_longest(l)) : 0;
    out->lines = l->n;
}

#define LINE_HEIGHT 19

/* Margins and plotting area; *w and *h: the size that holds the figure as wished. */
static void geometry(const struct figure_args *a, const struct chart_layout *l, struct chart *c,
                     int *w, int *h)
{
    int need = l->lines * LINE_HEIGHT, title = 28 + (int)(7.6 * (double)strlen(l->title));
    *c = (struct chart){.panels = l->panels,
                        .left = l->left ? l->left : 84,
                        .gap = l->gap ? l->gap : 92,
                        .legend = l->legend ? l->legend : 24,
                        .top = 46,
                        .bottom = 62};
    int margins = c->left + (l->panels - 1) * c->gap + c->legend;
    *w = margins + l->panels * l->width;
    *w = title > *w ? title : *w;
    *h = c->top + (l->height > need ? l->height : need) + c->bottom;
    c->width = ((a->width ? a->width : *w) - margins) / l->panels;
    c->height = (a->height ? a->height : *h) - c->top - c->bottom;
}

int chart_panel_width(const struct figure_args *a, const struct chart_layout *l)
{
    struct chart c;
    int w, h;
    geometry(a, l, &c, &w, &h);
    return c.width;
}

/* Refuse what --size cannot hold; the figure's own size always can. */
static int check_room(const struct chart *c, int width, int lines, struct err *err)
{
    const struct gp *g = &c->gp;
    int need = lines * LINE_HEIGHT, least = need > 40 ? need : 40;
    if (c->width >= 40 && c->height >= least)
        return 0;
    char legend[64] = "";
    if (c->height < need)
        snprintf(legend, sizeof legend, ", whose names take %d lines", lines);
    return err_set(err, ERR_USAGE, "--size %dx%d is too small for this figure%s (%dx%d would do)",
                   g->width, g->height, legend, c->width < 40 ? width : g->width,
                   c->height < least ? c->top + least + c->bottom : g->height);
}

static void draw_title(struct chart *c, const char *title)
{
    struct buf *s = &c->gp.script;
    double fits = 12 * (c->gp.width - 20) / (7.6 * (double)strlen(title) + 1);
    buf_puts(s, "set label ");
    gp_text(s, title);
    buf_printf(s, " at screen %.6f, screen %.6f left noenhanced font ',%.3g'\n", 14.0 / c->gp.width,
               1 - 20.0 / c->gp.height,
               fits < 7    ? 7
               : fits < 12 ? fits
                           : 12);
}

int chart_open(const struct figure_args *a, const struct chart_layout *l, struct chart *c,
               struct err *err)
{
    int w, h, rc = 0;
    geometry(a, l, c, &w, &h);
    TRY(figure_open(a, w, h, &c->gp, err));
    TRY(check_room(c, w, l->lines, err));
    buf_puts(&c->gp.script, "set border 3 lw 0.8\n"
                            "set tics out nomirror scale 0.7\n"
                            "set grid lc rgb '#dddddd' lw 0.6 lt 1\nunset key\nset multiplot\n");
    draw_title(c, a->title ? a->title : l->title);
out:
    return rc;
}

void chart_panel(struct chart *c, int i, const char *x_label, const char *y_label)
{
    struct buf *s = &c->gp.script;
    double w = c->gp.width, h = c->gp.height, x = c->left + i * (c->width + c->gap);
    buf_printf(s,
               "set lmargin at screen %.8f\nset rmargin at screen %.8f\n"
               "set tmargin at screen %.8f\nset bmargin at screen %.8f\n",
               x / w, (x + c->width) / w, 1 - c->top / h, c->bottom / h);
    buf_puts(s, "set xlabel ");
    gp_text(s, x_label);
    buf_puts(s, " noenhanced\nset ylabel ");
    gp_text(s, y_label);
    buf_puts(s, " noenhanced\n");
    if (i == c->panels - 1)
        chart_key(c, i);
}

void chart_key(struct chart *c, int i)
{
    double w = c->gp.width, h = c->gp.height, x = c->left + i * (c->width + c->gap);
    buf_printf(&c->gp.script,
               "set key at screen %.8f, screen %.8f left top Left reverse noenhanced "
               "samplen 2.2 spacing 1.15\n",
               (x + c->width + 14) / w, 1 - c->top / h);
}

void chart_legend(struct chart *c, const struct series_list *l, enum chart_mark mark)
{
    struct buf *s = &c->gp.script;
    for (int i = 0; i < l->n; i++) {
        const struct series *k = &l->s[i];
        if (mark == MARK_BOX)
            buf_printf(s, ", keyentry with boxes fs solid lc rgb '%s' title ", k->color);
        else
            buf_printf(s,
                       ", keyentry with linespoints lw 1.4 dt %d pt %d ps 1*point_scale lc rgb "
                       "'%s' title ",
                       k->dash, k->point, k->color);
        gp_text(s, series_label(k));
    }
}

int chart_finish(struct chart *c, const struct buf *data, struct err *err)
{
    int rc = 0;
    buf_puts(&c->gp.script, "unset multiplot\n");
    TRY(buf_check(data, "data of the figure", err));
    TRY(gp_data(&c->gp, "dat", buf_str(data), data->len, err));
    TRY(gp_finish(&c->gp, err));
out:
    return rc;
}

void chart_free(struct chart *c)
{
    gp_free(&c->gp);
}

/* ---- metrics ------------------------------------------------------------------------------- */

void chart_metric_label(const char *metric, struct buf *b, double *scale)
{
    const char *unit;
    *scale = metric_scale(metric, &unit);
    metric_title(metric, b);
    if (unit[0])
        buf_printf(b, " [%s]", unit);
}

int metric_list(const char *text, struct str_list *out, struct err *err)
{
    for (const char *p = text; *p;) {
        size_t len = strcspn(p, ",");
        char one[96];
        if (len >= sizeof one)
            return err_set(err, ERR_USAGE, "--metric: '%.*s' is too long", (int)len, p);
        snprintf(one, sizeof one, "%.*s", (int)len, p);
        if (len)
            str_list_add(out, one);
        p += len + (p[len] == ',');
    }
    return out->n ? 0 : err_set(err, ERR_USAGE, "--metric: no metric given");
}
