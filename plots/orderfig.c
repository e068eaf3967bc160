/*
 * orderfig.c - the figure "order": how the token orders of permute.h walk through the grid of a
 * video, one panel per order (SpargeAttn, arXiv 2502.18137, figure 5).
 */
#include "plots/drawers.h"
#include "plots/palette.h"
#include "plots/panels.h"

#include "core/permute.h"

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

/* Two blocks of data per order: column, row, number of the block of tokens; and from each token to
 * the next. */
static int write_order(const struct geometry *g, const char *name, struct buf *b, struct err *err)
{
    struct geometry video = {.t = g->t, .h = g->h, .w = g->w};
    int64_t n = g->t * g->h * g->w, *perm = NULL;
    int rc = 0;

    TRY(permute_make(name, &video, n, 0, &perm, err));
    buf_printf(b, "# %s: column, row, block of %d tokens\n", name, BLOCK);
    for (int64_t i = 0; i < n; i++) {
        struct place p = place_of(g, perm[i]);
        buf_printf(b, "%lld %lld %lld\n", (long long)p.x, (long long)p.y, (long long)(i / BLOCK));
    }
    buf_printf(b, "\n\n# %s: column, row, and how far the next token is\n", name);
    for (int64_t i = 0; i + 1 < n; i++) {
        struct place p = place_of(g, perm[i]), to = place_of(g, perm[i + 1]);
        buf_printf(b, "%lld %lld %lld %lld\n", (long long)p.x, (long long)p.y,
                   (long long)(to.x - p.x), (long long)(to.y - p.y));
    }
    buf_puts(b, n > 1 ? "\n\n" : "0 0 0 0\n\n\n");
out:
    free(perm);
    return rc;
}

/* A light line under a dark one shows on all colours. */
static void draw_panel(const struct geometry *g, const struct panels *p, int i, double last,
                       struct gp *gp)
{
    struct buf *s = &gp->script;
    bool leftmost, lowest;
    panels_place(p, i, gp, &leftmost, &lowest);
    buf_printf(s, "set xrange [-0.5:%lld.5]\nset yrange [%lld.5:-0.5]\nunset xtics\nunset ytics\n",
               (long long)(g->t * (g->w + 1) - 2), (long long)(g->h - 1));
    panels_title(orders[i], gp);
    if (i == ORDERS - 1)
        panels_colorbox(p, 0, last, false, gp);
    buf_puts(s, "plot ");
    gp_data_name(gp, "dat");
    buf_printf(s,
               " index %d using 1:2:($1-0.5):($1+0.5):($2-0.5):($2+0.5):3 with boxxyerror fs solid "
               "noborder lc palette notitle",
               2 * i);
    for (int line = 0; line < 2; line++) {
        buf_puts(s, ", ");
        gp_data_name(gp, "dat");
        buf_printf(s, " index %d using 1:2:3:4 with vectors nohead lw %s lc rgb '%s' notitle",
                   2 * i + 1, line ? "0.7" : "2.2", line ? "black" : "white");
    }
    for (int dot = 0; dot < 2; dot++) {
        buf_puts(s, ", ");
        gp_data_name(gp, "dat");
        buf_printf(s, " index %d every ::0::0 using 1:2 with points pt 7 ps %s lc rgb '%s' notitle",
                   2 * i, dot ? "0.6" : "1.1", dot ? "black" : "white");
    }
    buf_puts(s, "\nunset label\n"); /* drawn once */
}

static int render(const struct figure_args *a, const struct geometry *g, const char *data,
                  size_t len, struct err *err)
{
    static const char label[] = "block of tokens";
    struct panels p;
    struct gp gp = {0};
    char title[96];
    double last = (double)((g->t * g->h * g->w - 1) / BLOCK);
    int rc = 0;

    snprintf(title, sizeof title, "Token orders of %lld x %lld x %lld tokens", (long long)g->t,
             (long long)g->h, (long long)g->w);
    const char *name = a->title ? a->title : title, *shown = a->title || !a->untitled ? name : "";
    panels_layout(&p, &(struct panels_wish){.count = ORDERS,
                                            .cols = 3,
                                            .cells_x = (double)(g->t * (g->w + 1) - 1),
                                            .cells_y = (double)g->h,
                                            .side = 160,
                                            .chars = a->width ? 0 : 7,
                                            .lines = 1,
                                            .bar_chars = sizeof label - 1,
                                            .untitled = !shown[0],
                                            .width = a->width,
                                            .height = a->height});
    TRY(panels_check(&p, 1, a->width, a->height, err));
    TRY(figure_open(a, panels_total_width(&p, shown), panels_total_height(&p), &gp, err));
    figure_caption(a, name,
                   "Lines join successive tokens, from the dot on; a colour has four of them. "
                   "random: of seed 0.",
                   &gp);
    TRY(gp_data(&gp, "dat", data, len, err));
    palette_viridis(&gp.script);
    buf_printf(&gp.script, "set cbrange [0:%g]\n", last > 0 ? last : 1);
    panels_frame(&p, shown, g->t > 1 ? "column, frame by frame" : "column", "row", label, &gp);
    for (int i = 0; i < ORDERS; i++)
        draw_panel(g, &p, i, last > 0 ? last : 1, &gp);
    buf_puts(&gp.script, "unset multiplot\n");
    TRY(gp_finish(&gp, err));
out:
    gp_free(&gp);
    return rc;
}

int draw_order(const struct figure *f_, const struct figure_args *a, struct err *err)
{
    (void)f_;
    const struct trace_meta *m = trace_meta(a->trace);
    const struct geometry g = {.t = m->grid_t, .h = m->grid_h, .w = m->grid_w};
    struct buf data = {0};
    int rc = 0;

    TRY(check_grid(a, &g, err));
    for (int i = 0; i < ORDERS; i++)
        TRY(write_order(&g, orders[i], &data, err));
    TRY(buf_check(&data, "token orders", err));
    TRY(render(a, &g, buf_str(&data), data.len, err));
out:
    buf_free(&data);
    return rc;
}
