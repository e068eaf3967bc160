/*
 * grids.c - the drawer of grids: cells with their colours and, where there is room, their numbers;
 * a panel for each setting, one colour bar. Cells are layer by head, parameter by parameter, or
 * length by depth.
 */
#include "plots/chart.h"

#include "analyze/metricfacts.h"
#include "analyze/params.h"
#include "core/mem.h"
#include "core/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TITLE_CHARS 28 /* of a line of a panel's title, for which a figure makes room */
#define PANELS_MOST 48
#define VALUES_MOST 512 /* of an axis */

/* ---- cells ---------------------------------------------------------------------------------- */

/* The column or row of a record; its panel: a series, or -1 with err set. */
typedef int group_text(struct chart *c, const struct record *r, struct buf *b, struct err *err);
typedef int group_series(struct chart *c, const struct record *r, struct err *err);

static int setting_of(struct chart *c, const struct record *r, struct err *err)
{
    return chart_series(c, r, r->params, err);
}

/* Is it the setting that --against names ("method" or "method:params")? */
static bool is_reference(const struct chart *c, const struct record *r)
{
    const char *against = c->a->against ? c->a->against : "";
    size_t len = strcspn(against, ":");
    const char *params = against[len] ? against + len + 1 : "";
    return strlen(r->method) == len && strncmp(r->method, against, len) == 0 &&
           strcmp(params, r->params ? r->params : "") == 0;
}

static int by_value(const void *a, const void *b)
{
    return natural_compare(*(char *const *)a, *(char *const *)b);
}

/* Different texts of the groups in order of their values. */
static int list_texts(struct chart *c, group_text *text, const char *what, struct str_list *l,
                      struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    for (int64_t i = 0; i < c->g.gs.n; i++) {
        buf_reset(&b);
        PASS_ON(text(c, c->g.gs.g[i].first, &b, err));
        PASS_ON(buf_check(&b, "names", err));
        if (!str_list_has(l, buf_str(&b)))
            str_list_add(l, buf_str(&b));
        if (l->n > VALUES_MOST)
            return err_set(err, ERR_USAGE,
                           "more than %d values of %s: choose with --layers, --heads or --where",
                           VALUES_MOST, what);
    }
    if (l->failed)
        return err_set(err, ERR_NOMEM, "names: out of memory");
    qsort(l->items, (size_t)l->n, sizeof *l->items, by_value);
    return 0;
}

static int place_in(const struct str_list *l, group_text *text, struct chart *c,
                    const struct record *r, int *place, struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    *place = 0;
    PASS_ON(text(c, r, &b, err));
    while (strcmp(l->items[*place], buf_str(&b)) != 0)
        ++*place;
    return 0;
}

/* The panels, columns and rows that the groups of c->g are in, and their means; differences to the
 * setting that --against names, which has no panel. */
static int collect(struct chart *c, group_series *panel, group_text *x, group_text *y,
                   struct err *err)
{
    struct chart_grid *g = &c->grid;
    const char *unit;
    double scale = metric_scale(c->metric, &unit), *ref = NULL;
    c->l.most = PANELS_MOST;
    PASS_ON(list_texts(c, x, g->x_name, &g->x_names, err));
    PASS_ON(list_texts(c, y, g->y_name, &g->y_names, err));
    for (int64_t i = 0; i < c->g.gs.n; i++)
        if (!is_reference(c, c->g.gs.g[i].first))
            PASS_ON(panel(c, c->g.gs.g[i].first, err) < 0 ? err->code : 0);
    g->cols = (int)g->x_names.n;
    g->rows = (int)g->y_names.n;
    int64_t cells = (int64_t)g->rows * g->cols, n = cells * (c->l.n + 1), seen = 0;
    PASS_ON(mem_alloc(&g->v, n, sizeof *g->v, "cells", err));
    for (int64_t i = 0; i < n; i++)
        g->v[i] = NAN;
    ref = g->v + cells * c->l.n;
    for (int64_t i = 0; i < c->g.gs.n; i++) {
        const struct record *r = c->g.gs.g[i].first;
        bool own = is_reference(c, r);
        struct stats s;
        int row, col;
        PASS_ON(place_in(&g->x_names, x, c, r, &col, err));
        PASS_ON(place_in(&g->y_names, y, c, r, &row, err));
        PASS_ON(group_stats(&c->g.gs, &c->g.gs.g[i], c->metric, &s, NULL, err));
        seen += own;
        if (s.n)
            (own ? ref : g->v + cells * panel(c, r, err))[row * g->cols + col] = s.mean * scale;
    }
    for (int64_t i = 0; i < n - cells && c->a->against; i++)
        g->v[i] -= ref[i % cells];
    if (c->a->against && !seen)
        return err_set(err, ERR_INPUT, "--against %s: no records of this method and parameters",
                       c->a->against);
    if (c->l.n == 0)
        return err_set(err, ERR_USAGE, "--against %s: no other method is left", c->a->against);
    return series_labels(&c->l, LEGEND_CHARS, err);
}

/* ---- layer by head -------------------------------------------------------------------------- */

static int layer_text(struct chart *c, const struct record *r, struct buf *b, struct err *err)
{
    (void)c;
    if (r->scope != RECORD_OF_HEAD)
        return err_set(err, ERR_INPUT,
                       "records of scope model have no layers and heads: see figure growth");
    buf_printf(b, "%d", r->layer);
    return 0;
}

static int head_text(struct chart *c, const struct record *r, struct buf *b, struct err *err)
{
    (void)c;
    (void)err;
    buf_printf(b, "%d", r->head);
    return 0;
}

int cells_of_heads(struct chart *c, struct err *err)
{
    struct chart_grid *g = &c->grid;
    PASS_ON(chart_regroup(c, "method,params,layer,head", c->metric, KEY_COUNT, c->f->flags, err));
    g->x_name = "head";
    g->y_name = "layer";
    PASS_ON(collect(c, setting_of, head_text, layer_text, err));
    /* Cells large enough for their numbers while there are few of them. */
    int longest = g->rows > g->cols ? g->rows : g->cols;
    g->cell_x = g->cell_y = c->l.n * longest > 40 && (c->l.n > 6 || longest > 16) ? 16 : 36;
    if (c->a->against)
        buf_printf(&c->says, " minus that of %s,", c->a->against);
    buf_puts(&c->says, " by layer and head");
    return 0;
}

/* ---- parameter by parameter ----------------------------------------------------------------- */

static int param_text(const struct record *r, const char *name, struct buf *b, struct err *err)
{
    if (record_param(r, name, b))
        return 0;
    return err_set(err, ERR_INPUT, "method %s has no parameter '%s': choose one with --method",
                   r->method, name);
}

static int x_text(struct chart *c, const struct record *r, struct buf *b, struct err *err)
{
    return param_text(r, c->a->x, b, err);
}

static int y_text(struct chart *c, const struct record *r, struct buf *b, struct err *err)
{
    return param_text(r, c->a->y, b, err);
}

/* Scope, method and the other parameters. */
static int rest_of(struct chart *c, const struct record *r, struct err *err)
{
    OWN(buf_free) struct buf one = {0}, two = {0};
    int k = -1;
    params_without(r->params, c->a->x, &one);
    params_without(buf_str(&one), c->a->y, &two);
    if (!buf_check(&two, "settings", err))
        k = chart_series(c, r, buf_str(&two), err);
    return k;
}

int cells_of_params(struct chart *c, struct err *err)
{
    struct chart_grid *g = &c->grid;
    const char *x = c->a->x, *y = c->a->y;
    if (!x || !y || strcmp(x, y) == 0)
        return err_set(
            err, ERR_USAGE,
            "figure sweep needs two parameters, such as --x alpha_c --y alpha_s --method "
            "sampleattention");
    PASS_ON(chart_regroup(c, "method,params", c->metric, KEY_COUNT, c->f->flags, err));
    g->x_name = x;
    g->y_name = y;
    PASS_ON(collect(c, rest_of, x_text, y_text, err));
    if (g->cols * g->rows < 2)
        return err_set(err, ERR_INPUT, "%s and %s have one value each: nothing was swept", x, y);
    if (c->l.n > 1)
        return err_set(
            err, ERR_USAGE,
            "'%s' and '%s' differ in more than %s and %s: choose one with --method, --params or "
            "--where",
            c->l.s[0].name, c->l.s[1].name, x, y);
    g->cell_x = g->cols < 4 ? 240 / g->cols : 58;
    g->cell_y = g->rows < 7 ? 230 / g->rows : 34;
    g->upwards = true;
    buf_printf(&c->says, " of %s", c->l.s[0].name);
    return 0;
}

/* ---- length by depth ------------------------------------------------------------------------ */

static int tokens_text(struct chart *c, const struct record *r, struct buf *b, struct err *err)
{
    double tokens = key_number(r, KEY_TOKENS);
    if (isnan(tokens) || isnan(key_number(r, KEY_DEPTH)))
        return err_set(err, ERR_INPUT, "no record has %s by length and depth", c->metric);
    buf_printf(b, "%.0f", tokens);
    return 0;
}

static int depth_text(struct chart *c, const struct record *r, struct buf *b, struct err *err)
{
    (void)c;
    (void)err;
    buf_printf(b, "%g", key_number(r, KEY_DEPTH));
    return 0;
}

int cells_of_prompts(struct chart *c, struct err *err)
{
    struct chart_grid *g = &c->grid;
    PASS_ON(
        chart_regroup(c, "method,params,tokens,depth", c->metric, KEY_TOKENS, c->f->flags, err));
    g->x_name = "tokens";
    g->y_name = "depth";
    g->cell_x = g->cell_y = 40;
    g->grade = true;
    return collect(c, setting_of, tokens_text, depth_text, err);
}

/* The mean of a metric over a panel's cells, weighted by their prompts; NAN: no prompt has it. */
static int panel_mean(struct chart *c, int panel, const char *metric, double *mean, struct err *err)
{
    double sum = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < c->g.gs.n; i++) {
        struct stats s;
        if (setting_of(c, c->g.gs.g[i].first, err) != panel)
            continue;
        PASS_ON(group_stats(&c->g.gs, &c->g.gs.g[i], metric, &s, NULL, err));
        sum += s.n ? s.mean * (double)s.n : 0;
        n += s.n;
    }
    *mean = n ? sum / (double)n : NAN;
    return 0;
}

/* The title of a panel: what tells its setting from the others, below the method; of prompts also
 * the mean over all, the density and, where it was timed, the speed-up that the setting had. */
static int panel_title(struct chart *c, int panel, struct buf *b, struct err *err)
{
    static const char *const names[] = {"mean", "density", "speed-up"};
    const char *const metrics[] = {c->metric, "density_elem", "attn_speedup"};
    const struct series *k = &c->l.s[panel];
    size_t method = strlen(k->method);
    if (c->grid.upwards)
        return 0;
    if (strncmp(k->label, k->method, method) == 0 && k->label[method] == ' ')
        buf_printf(b, "%s\n%s", k->method, k->label + method + 1);
    else
        buf_puts(b, k->label);
    for (int i = 0; i < 3 && c->grid.grade; i++) {
        double mean;
        PASS_ON(panel_mean(c, panel, metrics[i], &mean, err));
        if (!isnan(mean))
            buf_printf(b, "\n%s %.3g", names[i], mean);
    }
    return buf_check(b, "titles", err);
}

static int make_titles(struct chart *c, struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    for (int i = 0; i < c->l.n; i++) {
        buf_reset(&b);
        PASS_ON(panel_title(c, i, &b, err));
        str_list_add(&c->grid.titles, buf_str(&b));
    }
    if (c->grid.titles.failed)
        return err_set(err, ERR_NOMEM, "titles: out of memory");
    return 0;
}

/* ---- numbers -------------------------------------------------------------------------------- */

/* Number of a cell in few characters; `size` is the largest magnitude of the figure, `more` the
 * digits that a wide cell has room for. No value but 0 is written 0, no share below 1 is written 1.
 */
static void cell_text(double x, double size, int more, char text[32])
{
    int digits = size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.05 ? 2 : -1;
    digits += digits >= 0 ? more : 0;
    snprintf(text, 32, "%.*f", digits < 0 ? 0 : digits, x);
    if (x == 0)
        snprintf(text, 32, "0");
    else if (digits < 0 || strtod(text, NULL) == 0) { /* "3e-3" */
        snprintf(text, 32, "%.0e", x);
        char *power = strchr(text, 'e');
        if (power)
            snprintf(power + 1, 8, "%d", atoi(power + 1));
    } else if (x < 1 && strtod(text, NULL) == 1)
        snprintf(text, 32, ">.99");
}

/* What the colours span: of shares 0 to 1, of differences as much below 0 as above. */
static void colour_range(const struct chart *c, double *low, double *high)
{
    const struct chart_grid *g = &c->grid;
    bool share = metric_axis(c->metric) == AXIS_SHARE && !c->a->against && !g->upwards;
    *low = share || g->grade ? 0 : INFINITY;
    *high = share || g->grade ? 1 : -INFINITY;
    for (int64_t i = 0; i < (int64_t)c->l.n * g->rows * g->cols && !share; i++)
        if (!isnan(g->v[i])) {
            *low = fmin(*low, g->v[i]);
            *high = fmax(*high, g->v[i]);
        }
    if (isinf(*low))
        *low = *high = 0;
    if (c->a->against) {
        *high = fmax(fabs(*low), fabs(*high));
        *low = -*high;
    }
    *low = isnan(c->a->low) ? *low : c->a->low;
    *high = isnan(c->a->high) ? *high : c->a->high;
    if (*high - *low < 1e-12) {
        double pad = *high != 0 ? fabs(*high) * 0.05 : 0.5;
        *low -= pad;
        *high += pad;
    }
}

/* A block for each panel: column, row, value, label, 1 = the text is light, names. */
static void write_cells(struct chart *c, double low, double high)
{
    const struct chart_grid *g = &c->grid;
    struct buf *b = &c->data;
    for (int i = 0; i < c->l.n; i++) {
        buf_printf(b, "# %s: column, row, %s, label, light text, %s, %s\n", c->l.s[i].name,
                   c->metric, g->x_name, g->y_name);
        for (int k = 0; k < g->rows * g->cols; k++) {
            double x = g->v[(int64_t)i * g->rows * g->cols + k], at = (x - low) / (high - low);
            bool light = c->a->against ? fabs(at - 0.5) > 0.42 : !g->grade && at < 0.55;
            char text[32];
            if (isnan(x))
                continue;
            cell_text(x, fmax(fabs(low), fabs(high)), g->upwards, text);
            buf_printf(b, "%d %d %.8g \"%s\" %d \"%s\" \"%s\"\n", k % g->cols, k / g->cols, x, text,
                       light, g->x_names.items[k % g->cols], g->y_names.items[k / g->cols]);
        }
        buf_puts(b, "\n\n");
    }
}

/* ---- layout --------------------------------------------------------------------------------- */

static int longest_title(const struct chart *c)
{
    int longest = 0;
    for (int64_t i = 0; i < c->grid.titles.n; i++)
        for (const char *t = c->grid.titles.items[i]; *t;) {
            int n = (int)strcspn(t, "\n");
            longest = n > longest ? n : longest;
            t += n + (t[n] == '\n');
        }
    return longest < TITLE_CHARS ? longest : TITLE_CHARS;
}

static int title_lines(const struct chart *c, int chars)
{
    int most = 0;
    for (int64_t i = 0; i < c->grid.titles.n; i++) {
        int n = canvas_count_lines(c->grid.titles.items[i], chars);
        most = n > most && c->grid.titles.items[i][0] ? n : most;
    }
    return most;
}

/* Panels of whole cells: as large as wished, or as a given width and height have room for. */
static void set_panels(const struct chart *c, struct canvas_wish *w)
{
    const struct chart_grid *g = &c->grid;
    const struct figure_args *a = c->a;
    int text = (int)(CANVAS_CHAR * longest_title(c)) + 10;
    double cell_x = g->cell_x, cell_y = g->cell_y, room_x, room_y;
    w->cols = c->l.n <= 3 ? c->l.n : (int)ceil(sqrt(c->l.n));
    w->gap_x = !a->width && text > g->cols * cell_x + 14 ? 30 : 14; /* more would near the bar */
    canvas_room(a, w, &room_x, &room_y);
    while (a->width && w->cols > 1 && room_x < fmin(text, 90)) {
        w->cols--;
        canvas_room(a, w, &room_x, &room_y);
    }
    cell_x = a->width ? fmin(room_x / g->cols, a->height ? INFINITY : 1.5 * cell_x) : cell_x;
    w->width = (int)(cell_x >= 2 ? floor(cell_x) * g->cols : cell_x * g->cols);
    w->head_lines = title_lines(c, canvas_chars(w->width + w->gap_x - 10));
    canvas_room(a, w, &room_x, &room_y);
    if (a->width)
        cell_y = fmin(cell_x * g->cell_y / g->cell_x, room_y / g->rows);
    w->height = (int)(cell_y >= 2 ? floor(cell_y) * g->rows : cell_y * g->rows);
    w->height = a->height || w->height > 48 ? w->height : 48;
    w->width = a->width || w->width > 48 ? w->width : 48;
}

/* ---- drawing -------------------------------------------------------------------------------- */

/* Names of columns or rows, as many as have room; lengths as "8K". */
static void put_names(struct chart *c, char letter, const struct str_list *names, int most,
                      bool shown)
{
    struct buf *s = &c->canvas.gp.script;
    int64_t step = (int64_t)gp_count_step((double)names->n, most);
    bool tokens = names == &c->grid.x_names && strcmp(c->grid.x_name, "tokens") == 0;
    buf_printf(s, "set %ctics out nomirror noenhanced (", letter);
    for (int64_t k = 0; k < names->n; k += step) {
        char text[64];
        double n = strtod(names->items[k], NULL);
        if (tokens && n >= 1024 && fmod(n, 1024) == 0)
            snprintf(text, sizeof text, "%.0fK", n / 1024);
        else
            snprintf(text, sizeof text, "%s", names->items[k]);
        buf_puts(s, k ? ", " : "");
        gp_tic(&c->canvas.gp, s, shown ? text : "");
        buf_printf(s, " %lld", (long long)k);
    }
    buf_puts(s, ")\n");
}

static void put_axes(struct chart *c, int i)
{
    const struct chart_grid *g = &c->grid;
    const struct canvas *canvas = &c->canvas;
    double bottom = g->rows - 0.5;
    buf_printf(&c->canvas.gp.script, "set xrange [-0.5:%.1f]\nset yrange [%.1f:%.1f]\n",
               g->cols - 0.5, g->upwards ? -0.5 : bottom, g->upwards ? bottom : -0.5);
    put_names(c, 'x', &g->x_names, canvas->width / 24 + 1, i + canvas->cols >= c->l.n);
    put_names(c, 'y', &g->y_names, canvas->height / 18 + 1, i % canvas->cols == 0);
}

/* Cells are boxes: gnuplot draws no image of a single row or column. */
static void draw_panel(struct chart *c, int i, double low, double high, const char *bar)
{
    const struct chart_grid *g = &c->grid;
    struct canvas *canvas = &c->canvas;
    struct buf *s = &canvas->gp.script;
    bool numbers =
        canvas->width >= (g->grade ? 24 : 34) * g->cols && canvas->height >= 14 * g->rows;
    canvas_panel(canvas, NULL, NULL, g->titles.items[i]);
    put_axes(c, i);
    if (i + 1 == c->l.n)
        canvas_colours(canvas, low, high, false, bar);
    buf_puts(s, "plot NaN notitle");
    canvas_plot(canvas, i,
                "using 1:2:($1-0.5):($1+0.5):($2-0.5):($2+0.5):3 with boxxyerror fs solid noborder "
                "lc palette");
    for (int light = 0; light < 2 && numbers; light++)
        canvas_plot(canvas, i,
                    "using 1:2:($5==%d?strcol(4):'') with labels noenhanced font font_small tc rgb "
                    "'%s'",
                    light, light ? "#ffffff" : "#000000");
    canvas_end(canvas);
}

static int render(struct chart *c, struct err *err)
{
    OWN(buf_free) struct buf bar = {0};
    double low, high, scale;
    colour_range(c, &low, &high);
    chart_metric_label(c->metric, &bar, &scale);
    struct canvas_wish w = {.title = buf_str(&c->title),
                            .caption = buf_str(&c->caption),
                            .panels = c->l.n,
                            .right = 112,
                            .gap_y = 14,
                            .exact = true};
    set_panels(c, &w);
    PASS_ON(canvas_open(c->a, &w, &c->canvas, err));
    write_cells(c, low, high);
    struct buf *s = &c->canvas.gp.script;
    if (c->grid.grade)
        palette_grade(metric_better(c->metric) == BETTER_LOWER, s);
    else
        (c->a->against ? palette_diverging : palette_viridis)(s);
    buf_printf(s,
               "set border lw 0.6\nset tics scale 0.6\nunset colorbox\nset cbrange [%.8g:%.8g]\n",
               low, high);
    canvas_names(&c->canvas, c->grid.x_name, c->grid.y_name);
    for (int i = 0; i < c->l.n; i++)
        draw_panel(c, i, low, high, buf_str(&bar));
    return canvas_finish(&c->canvas, &c->data, err);
}

int draw_grid(const struct figure *f, const struct figure_args *a, struct err *err)
{
    OWN(chart_free) struct chart c;
    chart_init(&c, f, a);
    PASS_ON(f->points(&c, err));
    PASS_ON(make_titles(&c, err));
    PASS_ON(chart_title(&c, err));
    return render(&c, err);
}
