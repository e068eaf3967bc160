/*
 * orderfig.c - the figure "order": how the token orders of permute.h walk through the grid of a
 * video, one panel per order (SpargeAttn, arXiv 2502.18137, figure 5).
 */
#include "plots/chart.h"

#include "core/permute.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 4          /* tokens of one colour, as in the paper */
#define TOKENS_MOST 1024 /* more cannot be told apart */

static const char *const orders[] = {"random", "row", "column", "time", "hilbert"};

enum { ORDERS = sizeof orders / sizeof *orders };

/* Frames stand side by side, a cell apart. */
struct place {
    int64_t x, y;
};

static struct place place_of(const struct geometry *g, int64_t token)
{
    int64_t frame = token / (g->h * g->w);
    return (struct place){frame * (g->w + 1) + token % g->w, token / g->w % g->h};
}

static int check_grid(const struct figure_args *a, const struct geometry *g, struct err *err)
{
    int64_t n = g->t * g->h * g->w;
    if (n == 0)
        return err_set(err, ERR_INPUT,
                       "%s: figure order draws the grid of a video, and text has none",
                       trace_path(a->trace));
    if (n > TOKENS_MOST)
        return err_set(err, ERR_INPUT,
                       "%s: figure order draws every token, and %lld are more than %d: capture a "
                       "smaller clip, such as --size 1x48x48",
                       trace_path(a->trace), (long long)n, TOKENS_MOST);
    return 0;
}

/* A block of data: column, row, number of the block of tokens, and how far the next token is. */
static int write_order(const struct geometry *g, const char *name, struct buf *b, struct err *err)
{
    struct geometry video = {.t = g->t, .h = g->h, .w = g->w};
    int64_t n = g->t * g->h * g->w, *perm = NULL;
    int rc = 0;

    TRY(permute_make(name, &video, n, 0, &perm, err));
    buf_printf(b, "# %s: column, row, block of %d tokens, way to the next token\n", name, BLOCK);
    for (int64_t i = 0; i < n; i++) {
        struct place p = place_of(g, perm[i]), to = place_of(g, perm[i + 1 < n ? i + 1 : i]);
        buf_printf(b, "%lld %lld %lld %lld %lld\n", (long long)p.x, (long long)p.y,
                   (long long)(i / BLOCK), (long long)(to.x - p.x), (long long)(to.y - p.y));
    }
    buf_puts(b, "\n\n");
out:
    free(perm);
    return rc;
}

/* A light line under a dark one shows on all colours; a dot is where the order begins. */
static void draw_panel(const struct geometry *g, int i, struct canvas *c)
{
    struct buf *s = &c->gp.script;
    canvas_panel(c, NULL, NULL, orders[i]);
    buf_printf(s, "set xrange [-0.5:%lld.5]\nset yrange [%lld.5:-0.5]\nunset xtics\nunset ytics\n",
               (long long)(g->t * (g->w + 1) - 2), (long long)(g->h - 1));
    buf_puts(s, "plot NaN notitle");
    canvas_plot(c, i,
                "using 1:2:($1-0.5):($1+0.5):($2-0.5):($2+0.5):3 with boxxyerror fs solid noborder "
                "lc palette");
    for (int k = 0; k < 2; k++)
        canvas_plot(c, i, "using 1:2:4:5 with vectors nohead lw %g lc rgb '%s'", k ? 0.7 : 2.2,
                    k ? "black" : "white");
    canvas_plot(c, i, "every ::0::0 using 1:2 with points pt 7 ps 0.8 lc rgb 'white'");
    canvas_end(c);
}

static int render(const struct figure_args *a, const struct geometry *g, const struct buf *data,
                  struct err *err)
{
    struct canvas c = {.panels = 0};
    char title[96];
    double last = (double)((g->t * g->h * g->w - 1) / BLOCK), high = last > 0 ? last : 1;
    double x = (double)(g->t * (g->w + 1) - 1), y = (double)g->h;
    int rc = 0;

    snprintf(title, sizeof title, "Token orders of %lld x %lld x %lld tokens", (long long)g->t,
             (long long)g->h, (long long)g->w);
    struct canvas_wish w = {.title = title,
                            .caption = "Lines join successive tokens, from the dot on; a colour "
                                       "has four of them. random: of seed 0.",
                            .panels = ORDERS,
                            .cols = 3,
                            .left = 40,
                            .right = 112,
                            .bottom = 30,
                            .gap_x = 14,
                            .head_lines = 1,
                            .exact = true};
    double side, room_x, room_y;
    canvas_room(a, &w, &room_x, &room_y);
    side = a->width ? fmin(room_x, room_y * x / y) : 160 * x / fmax(x, y);
    w.width = (int)side;
    w.height = (int)(side * y / x);
    TRY(canvas_open(a, &w, &c, err));
    palette_viridis(&c.gp.script);
    buf_printf(&c.gp.script, "set border lw 0.6\nunset colorbox\nset cbrange [0:%g]\n", high);
    canvas_names(&c, g->t > 1 ? "column, frame by frame" : "column", "row");
    for (int i = 0; i < ORDERS; i++) {
        if (i == ORDERS - 1)
            canvas_colours(&c, 0, high, false, "block of tokens");
        draw_panel(g, i, &c);
    }
    TRY(canvas_finish(&c, data, err));
out:
    canvas_free(&c);
    return rc;
}

int draw_order(const struct figure *figure, const struct figure_args *a, struct err *err)
{
    const struct trace_meta *m = trace_meta(a->trace);
    const struct geometry g = {.t = m->grid_t, .h = m->grid_h, .w = m->grid_w};
    struct buf data = {0};
    int rc = 0;

    (void)figure;
    TRY(check_grid(a, &g, err));
    for (int i = 0; i < ORDERS; i++)
        TRY(write_order(&g, orders[i], &data, err));
    TRY(render(a, &g, &data, err));
out:
    buf_free(&data);
    return rc;
}
