/*
 * mapfig.c - maps as images: one data file holds the cells of all panels, each panel reads its
 * part.
 */
#include "plots/mapfig.h"

#include "core/indexlist.h"
#include "core/mem.h"
#include "plots/palette.h"
#include "plots/panels.h"
#include "plots/titles.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- choice -------------------------------------------------------------------------------- */

static bool wanted(const int64_t *list, int64_t n, int64_t x)
{
    for (int64_t i = 0; i < n; i++)
        if (list[i] == x)
            return true;
    return n < 0;
}

/* What there is to choose from, for messages. */
static void describe(const struct trace *t, struct buf *b)
{
    for (int64_t i = 0; i < trace_calls(t) && i < 40; i++) {
        const struct trace_call *c = trace_call(t, i);
        buf_printf(b, "%s%d/%s/%d", i ? " " : "", c->step, c->branch, c->layer);
    }
    if (trace_calls(t) > 40)
        buf_puts(b, " ...");
}

static int no_call(const struct figure_args *a, struct err *err)
{
    struct buf b = {0};
    describe(a->trace, &b);
    int rc = err_set(err, ERR_INPUT, "%s: no such call; step/branch/layer in the trace: %s",
                     trace_path(a->trace), buf_str(&b));
    buf_free(&b);
    return rc;
}

static int add_panels(const struct figure_args *a, const struct map_choice *c,
                      const int64_t *layers, int64_t n_layers, const int64_t *heads,
                      int64_t n_heads, int64_t *cap, struct map_choice *out, struct err *err)
{
    int rc = 0;
    for (int64_t i = 0; i < trace_calls(a->trace); i++) {
        const struct trace_call *call = trace_call(a->trace, i);
        if (call->step != c->step || strcmp(call->branch, c->branch) != 0 ||
            !wanted(layers, n_layers, call->layer))
            continue;
        for (int h = 0; h < trace_meta(a->trace)->heads; h++) {
            int number = trace_head_number(trace_meta(a->trace), h);
            if (!wanted(heads, n_heads, number))
                continue;
            if (out->n == MAPFIG_MOST)
                FAIL(err, ERR_USAGE, "more than %d maps: choose with --layer and --head",
                     MAPFIG_MOST);
            TRY(mem_grow(&out->panel, cap, out->n + 1, sizeof *out->panel, "panels", err));
            out->panel[out->n++] = (struct map_panel){i, call->layer, number, h};
        }
    }
out:
    return rc;
}

int map_choose(const struct figure_args *a, struct map_choice *out, struct err *err)
{
    struct map_choice c = {0};
    int64_t *layers = NULL, *heads = NULL, n_layers = -1, n_heads = -1, cap = 0;
    const struct trace_meta *m = trace_meta(a->trace);
    int rc = 0;

    if (trace_calls(a->trace) == 0)
        FAIL(err, ERR_INPUT, "%s: holds no attention call", trace_path(a->trace));
    c.step = a->step == INT64_MIN ? trace_call(a->trace, 0)->step : (int)a->step;
    c.branch = a->branch ? a->branch : trace_call(a->trace, 0)->branch;
    if (a->layer)
        TRY(index_list_parse(a->layer, trace_meta(a->trace)->layers, "--layer", &layers, &n_layers,
                             err));
    if (a->head)
        TRY(index_list_parse(a->head, m->head_ids[0] ? -1 : m->heads, "--head", &heads, &n_heads,
                             err));
    TRY(add_panels(a, &c, layers, n_layers, heads, n_heads, &cap, &c, err));
    if (c.n == 0) {
        rc = no_call(a, err);
        goto out;
    }
    if (!heads)
        n_heads = m->heads;
    c.per_row = c.n > n_heads && n_heads <= 16 ? (int)n_heads : 0; /* a row per layer */
    *out = c;
    c.panel = NULL;
out:
    free(c.panel);
    free(layers);
    free(heads);
    return rc;
}

void map_choice_free(struct map_choice *c)
{
    free(c->panel);
    *c = (struct map_choice){0};
}

/* Cells of vector files are no pixels: a unit may hold many. */
#define VECTOR_PIXELS 64

/* ---- data ---------------------------------------------------------------------------------- */

/* How often a cell is repeated in the data: viewers of SVG blur enlarged images, so there a cell is
 * as many samples as it has pixels. */
static struct panels_samples sampling(const struct map_figure *f, const struct panels *p,
                                      const struct gp *g)
{
    int repeat = g->type != GP_SVG || p->cell < 1 ? 1 : p->cell > 8 ? 8 : p->cell;
    struct panels_samples s = {0, 0};
    for (int i = 0; f->own_axes && i < f->n; i++) { /* no cell is lost, none is much too wide */
        s.x = f->maps[i].cols * 4 > s.x ? f->maps[i].cols * 4 : s.x;
        s.y = f->maps[i].rows * 4 > s.y ? f->maps[i].rows * 4 : s.y;
    }
    if (f->own_axes)
        return s;
    return panels_sampling(p, f->maps, repeat);
}

static void put_value(const void *ctx, int i, int64_t k, struct buf *b)
{
    const struct map_figure *f = ctx;
    float x = f->maps[i].v[k];
    if (f->log && (double)x < f->low) /* false for NAN */
        x = (float)f->low;
    buf_put(b, &x, sizeof x);
}

/* White over the cells that the mask drops: opaque enough to see the mask, not to hide the map. */
#define VEIL 190

static void put_veil(const void *ctx, int i, int64_t k, struct buf *b)
{
    float kept = ((const struct map_figure *)ctx)->overlay[i].v[k];
    unsigned char px[4] = {255, 255, 255, 0};
    px[3] = isnan(kept) ? 0 : (unsigned char)lround(VEIL * (1 - fmin(1, (double)kept)));
    buf_put(b, px, 4);
}

static int write_images(const struct map_figure *f, const struct panels *p, struct gp *g,
                        struct err *err)
{
    struct buf b = {0};
    int rc = 0;
    panels_cells(f->maps, f->n, sampling(f, p, g), put_value, f, &b);
    TRY(buf_check(&b, "cells", err));
    TRY(gp_data(g, "bin", b.data, b.len, err));
    if (f->overlay) {
        buf_reset(&b);
        panels_cells(f->maps, f->n, sampling(f, p, g), put_veil, f, &b);
        TRY(buf_check(&b, "veil", err));
        TRY(gp_data(g, "veil.bin", b.data, b.len, err));
    }
out:
    buf_free(&b);
    return rc;
}

/* 1 = most allowed pairs of the cell are kept, 0 = most are dropped, -1 = nothing is allowed. */
static int side_of(const struct cells *c, int64_t r, int64_t k)
{
    if (r < 0 || k < 0 || r >= c->rows || k >= c->cols || isnan(c->v[r * c->cols + k]))
        return -1;
    return c->v[r * c->cols + k] >= 0.5f;
}

/* Line segments between kept and dropped cells, in tokens. Two blank lines end a panel. */
static void add_edges(const struct cells *c, struct buf *b)
{
    buf_puts(b, "nan nan\n\n");
    for (int64_t r = 0; r < c->rows; r++)
        for (int64_t k = 0; k < c->cols; k++) {
            long long x = c->k0 + k * c->tokens, y = c->q0 + r * c->tokens, t = c->tokens;
            int here = side_of(c, r, k), below = side_of(c, r + 1, k), right = side_of(c, r, k + 1);
            if (here + below == 1)
                buf_printf(b, "%lld %lld\n%lld %lld\n\n", x, y + t, x + t, y + t);
            if (here + right == 1)
                buf_printf(b, "%lld %lld\n%lld %lld\n\n", x + t, y, x + t, y + t);
        }
    buf_puts(b, "\n");
}

static int write_edges(const struct map_figure *f, struct gp *g, struct err *err)
{
    struct buf b = {0};
    int rc = 0;
    for (int i = 0; i < f->n; i++)
        add_edges(&f->overlay[i], &b);
    TRY(buf_check(&b, "edges", err));
    TRY(gp_data(g, "edges.dat", b.data, b.len, err));
out:
    buf_free(&b);
    return rc;
}

/* ---- script -------------------------------------------------------------------------------- */

static void scale(const struct map_figure *f, struct gp *g)
{
    palette_viridis(&g->script);
    if (f->log)
        buf_printf(&g->script, "set logscale cb\nset format cb '%s'\n",
                   figure_powers(f->args->output));
    buf_printf(&g->script, "set cbrange [%.10g:%.10g]\n", f->low, f->high);
}

#define FRAMES_MOST 256

/* Tokens of a frame, the first one's place and how many there are, of the trace or as the user
 * says; 0: no frames. */
static int64_t frame_tokens(const struct figure_args *a, int64_t *first, int64_t *n)
{
    const struct trace_meta *m = a->trace ? trace_meta(a->trace) : NULL;
    *first = 0;
    *n = FRAMES_MOST;
    if (a->frames > 0 || !m || m->grid_t < 2 ||
        (m->token_order[0] && strcmp(m->token_order, "raster") != 0))
        return a->frames;
    *n = m->grid_t < FRAMES_MOST ? m->grid_t : FRAMES_MOST;
    if (strcmp(m->text_place, "front") == 0)
        *first = m->text_tokens;
    return m->grid_h * m->grid_w;
}

/* Lines between the frames of a video, in tokens: where there are few enough to see the map. White
 * at a half is seen on dark cells, grey on light ones. */
static void frame_lines(const struct map_figure *f, const struct panels *p, struct gp *g)
{
    const struct cells *c = f->maps;
    const char *color = f->log ? "#60ffffff" : "#40a0a0a0";
    int64_t first, n, frame = frame_tokens(f->args, &first, &n);
    if (frame <= 0 || p->width * frame < 6 * c->n_k)
        return;
    for (int64_t i = 1; i <= n; i++) {
        double at = (double)(first + i * frame);
        if (at > c->k0 && at < c->k0 + c->n_k)
            buf_printf(
                &g->script,
                "set arrow from %g, graph 0 to %g, graph 1 nohead front lw 0.5 lc rgb '%s'\n", at,
                at, color);
        if (at > c->q0 && at < c->q0 + c->n_q)
            buf_printf(&g->script,
                       "set arrow from graph 0, first %g to graph 1, first %g nohead front lw 0.5 "
                       "lc rgb '%s'\n",
                       at, at, color);
    }
}

static void draw_panel(const struct map_figure *f, const struct panels *p, int i, struct gp *g)
{
    const struct cells *c = &f->maps[i];
    bool leftmost, lowest;
    panels_place(p, i, g, &leftmost, &lowest);
    lowest = lowest || f->own_axes;
    panels_token_axes(p, i, c, f->col_heads ? "" : f->titles[i], leftmost, lowest, g);
    words_axes(f->words, c, p->width, p->height, leftmost, lowest, g);
    if (f->col_heads)
        panels_heads(p, i, f->row_heads, f->col_heads, g);
    if (f->below)
        panels_below(p, i, f->below[i], g);
    if (i == f->n - 1)
        panels_colorbox(p, f->low, f->high, f->log, g);
    buf_puts(&g->script, "plot ");
    panels_image(c, i, sampling(f, p, g), "bin", "%float32", g);
    buf_puts(&g->script, " using 1 with image notitle");
    if (f->overlay) {
        buf_puts(&g->script, ", ");
        panels_image(c, i, sampling(f, p, g), "veil.bin", "%4uchar", g);
        buf_puts(&g->script, " using 1:2:3:4 with rgbalpha notitle");
        if (p->cell >= MAP_EDGE_CELL) {
            buf_puts(&g->script, ", ");
            gp_data_name(g, "edges.dat");
            buf_printf(&g->script, " index %d with lines lc rgb '#d55e00' lw 1 notitle", i);
        }
    }
    buf_puts(&g->script, "\nunset label\n"); /* drawn once */
}

/* Room for the largest number of an axis, and for heads instead of titles. */
static void lay_out(const struct map_figure *f, double pixels, struct panels *p)
{
    const struct figure_args *a = f->args;
    const struct cells *c = f->maps;
    int chars, lines;
    bool named = f->words && f->words->keys.n;
    int64_t longest = c->n_q > c->n_k ? c->n_q : c->n_k, side = panels_side(f->n);
    if (named && side < WORDS_UNITS * longest)
        side = WORDS_UNITS * longest;
    panels_titles((const char(*)[96])(f->col_heads ? f->col_heads : f->titles),
                  f->col_heads ? f->per_row : f->n, &chars, &lines);
    panels_layout(p, &(struct panels_wish){.count = f->n,
                                           .cols = f->per_row,
                                           .cells_x = (double)c->n_k / (double)c->tokens,
                                           .cells_y = (double)c->n_q / (double)c->tokens,
                                           .side = (int)side,
                                           .left = named ? words_room(&f->words->queries) : 0,
                                           .bottom = named ? words_room(&f->words->keys) : 0,
                                           .chars = f->col_heads ? 0 : chars,
                                           .lines = lines,
                                           .heads = f->col_heads != NULL,
                                           .below = f->below != NULL,
                                           .own_axes = f->own_axes,
                                           .untitled = a->untitled && !a->title,
                                           .bar_chars = (int)strlen(f->bar_label),
                                           .pixels = pixels,
                                           .width = a->width,
                                           .height = a->height});
}

int map_draw(const struct map_figure *f, struct err *err)
{
    const struct figure_args *a = f->args;
    enum gp_type type = GP_PNG;
    struct panels p;
    struct gp g = {0};
    struct buf own = {0};
    int rc = 0;

    title_sentence(f->title, &own);
    TRY(buf_check(&own, "title", err));
    const char *title = a->title ? a->title : a->untitled ? "" : buf_str(&own);
    TRY(gp_check_name(a->output, &type, err));
    lay_out(f, type == GP_PNG ? gp_pixels_per_unit(type, &a->style) : VECTOR_PIXELS, &p);
    TRY(panels_check(&p, 1, a->width, a->height, err));
    TRY(figure_open(a, panels_total_width(&p, title), panels_total_height(&p), &g, err));
    figure_caption(a, f->title, f->caption, &g);
    if (f->overlay && p.cell >= MAP_EDGE_CELL)
        buf_puts(&g.caption, " A red line surrounds the cells of which at least half is kept.");
    TRY(write_images(f, &p, &g, err));
    if (f->overlay)
        TRY(write_edges(f, &g, err));
    scale(f, &g);
    panels_frame(&p, title, "key [token]", "query [token]", f->bar_label, &g);
    if (!f->own_axes)
        frame_lines(f, &p, &g);
    for (int i = 0; i < f->n; i++)
        draw_panel(f, &p, i, &g);
    buf_puts(&g.script, "unset multiplot\n");
    TRY(gp_finish(&g, err));
out:
    gp_free(&g);
    buf_free(&own);
    return rc;
}
