/*
 * maps.c - the figures of attention maps and masks, heatmap, overlay and mask: which heads of
 * which calls, under which masks; panels in rows and columns, each an image. One data file holds
 * the cells of all panels.
 *
 * gnuplot samples images at points, so a panel is a whole number of pixels per whole cell; when a
 * size is asked for, a cell may get a fraction more than a pixel, never less.
 */
#include "plots/chart.h"
#include "plots/cells.h"

#include "analyze/keys.h"
#include "core/checkpoint.h"
#include "core/intmath.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Panels of one figure at most: more cannot be told apart. */
#define MAPS_MOST 96

/* Tokens of an axis that have names at most, and the units that each takes, so that neighbours do
 * not touch. */
#define WORDS_MOST 96
#define WORDS_UNITS 12

/* One panel: a head of a call, a mask, or both. */
struct map {
    int64_t call;
    int layer, head; /* the model's number */
    int stored;      /* the trace's */
    int64_t n_q, n_k;
    int step;
    int trace;     /* number of its trace; -1: none, the mask alone */
    int64_t mask;  /* cell of the file of masks; -1: none */
    char row[160]; /* what tells its row of panels from others, and its column */
    char col[64];
    char below[24];           /* a number below the panel; "": none */
    struct cells cells, veil; /* veil: kept shares over the cells, where v is not NULL */
};

/* Panels in rows and columns. */
struct map_figure {
    const struct figure_args *a;
    struct map *m; /* owned */
    int64_t n, cap;
    struct str_list queries, keys; /* texts of the tokens; none: numbers */
    struct buf title, caption;
    struct canvas_wish w;
    double unit;   /* units of a token in a panel */
    bool grid;     /* heads of rows and columns; else titles */
    bool shares;   /* kept shares from 0 to 1 instead of weights on a logarithmic scale */
    bool own_axes; /* rows are of different traces: their maps differ in shape */
    struct canvas canvas;
};

static const struct trace *trace_of(const struct figure_args *a, int trace)
{
    return a->n_traces > 1 ? a->traces[trace] : a->trace;
}

/* ---- tokens on axes ------------------------------------------------------------------------- */

/* Characters of a name, and their room: small letters. */
#define NAME_MOST 14
#define NAME_CHAR 5.6
#define NAME_HIGH 9 /* units from one name to the next */

/* Blanks and line ends as characters that are seen, and that every font and LaTeX has. */
static void visible(const char *text, struct buf *out)
{
    int chars = 0;
    buf_reset(out);
    for (const char *p = text; *p && chars <= NAME_MOST; p++) {
        bool starts = ((unsigned char)*p & 0xc0) != 0x80;
        chars += starts;
        if (starts && chars > NAME_MOST)
            buf_puts(out, "~");
        else if (*p == ' ' || *p == '\t')
            buf_puts(out, "\u00b7");
        else if (*p == '\n' || *p == '\r')
            buf_puts(out, "\u00b6");
        else
            buf_put(out, p, 1);
    }
}

static int read_side(const struct figure_args *a, const int32_t *ids, int64_t first, int64_t n,
                     struct str_list *out, struct err *err)
{
    OWN(str_list_free) struct str_list texts = {0};
    OWN(buf_free) struct buf one = {0};
    PASS_ON(a->app->token_texts(a->tokens, ids + first, n, &texts, err));
    for (int64_t i = 0; i < texts.n; i++) {
        visible(texts.items[i], &one);
        PASS_ON(buf_check(&one, "text of a token", err));
        str_list_add(out, buf_str(&one));
    }
    if (out->failed)
        return err_set(err, ERR_NOMEM, "texts of tokens: out of memory");
    return 0;
}

/* The texts of the tokens of a part, where --tokens asks for them. ERR_USAGE where the part is too
 * long, ERR_INPUT where the trace holds no token ids or not those of this tokenizer. */
static int words_read(struct map_figure *f, const struct cells_span *span, struct err *err)
{
    const struct figure_args *a = f->a;
    const struct trace_meta *m;
    OWN(free_at) int32_t *ids = NULL;
    OWN(buf_free) struct buf file = {0};
    int64_t n = 0;
    if (!a->tokens)
        return 0;
    m = trace_meta(a->trace);
    if (span->n_q > WORDS_MOST || span->n_k > WORDS_MOST)
        return err_set(
            err, ERR_USAGE,
            "--tokens names at most %d queries and keys: choose a part (--rows 100-140 --keys "
            "100-140)",
            WORDS_MOST);
    buf_printf(&file, "%s/tokenizer.json", a->tokens);
    PASS_ON(buf_check(&file, "path", err));
    if (!checkpoint_is_gguf(a->tokens) && access(file.data, R_OK) != 0)
        return err_set(
            err, ERR_INPUT,
            "--tokens %s: there is no tokenizer.json in it; name the directory or GGUF file of "
            "the model that "
            "%s was captured from",
            a->tokens, trace_path(a->trace));
    PASS_ON(trace_read_run(a->trace, TRACE_TOKENS, &ids, &n, err));
    if (n != m->n_k)
        return err_set(err, ERR_INPUT, "%s holds no token ids: leave --tokens out",
                       trace_path(a->trace));
    PASS_ON(read_side(a, ids, span->k0, span->n_k, &f->keys, err));
    return read_side(a, ids, span->q0 + m->n_k - m->n_q, span->n_q, &f->queries, err);
}

/* Room that the longest of a list takes, beyond that of a number. */
static int words_room(const struct str_list *l)
{
    int longest = 0;
    for (int64_t i = 0; i < l->n; i++)
        longest = MAX(longest, utf8_count(l->items[i]));
    return MAX(0, (int)(NAME_CHAR * longest) - 18);
}

/* Tics of an axis of so many units: as many names as have room. */
static void put_words(struct map_figure *f, char axis, const struct str_list *l, int64_t first,
                      int units, bool named)
{
    struct gp *g = &f->canvas.gp;
    int64_t step = ceil_div(NAME_HIGH * l->n, MAX(units, 1));
    buf_printf(&g->script, "set %ctics out nomirror %sfont font_small noenhanced (", axis,
               axis == 'x' ? "rotate by 90 right " : "");
    for (int64_t i = 0; i < l->n; i += step) {
        buf_puts(&g->script, i ? ", " : "");
        gp_tic(g, &g->script, named ? l->items[i] : "");
        buf_printf(&g->script, " %.1f", (double)(first + i) + 0.5);
    }
    buf_puts(&g->script, ")\n");
}

/* ---- cells of panels ------------------------------------------------------------------------ */

static int parse_span(const char *text, const char *what, int64_t n, int64_t *first, int64_t *count,
                      struct err *err)
{
    long long a = 0, b = n - 1;
    int end = 0;
    if (text &&
        (sscanf(text, "%lld-%lld%n", &a, &b, &end) != 2 || text[end] || a < 0 || b < a || b >= n))
        return err_set(err, ERR_USAGE,
                       "%s %s: expected FIRST-LAST within 0-%lld, the tokens of this map", what,
                       text, (long long)n - 1);
    *first = a;
    *count = b - a + 1;
    return 0;
}

/* The part that --rows and --keys choose of maps of n_q x n_k tokens; all of them by default. */
static int map_part(const struct figure_args *a, int64_t n_q, int64_t n_k, struct cells_span *out,
                    struct err *err)
{
    PASS_ON(parse_span(a->rows, "--rows", n_q, &out->q0, &out->n_q, err));
    return parse_span(a->keys, "--keys", n_k, &out->k0, &out->n_k, err);
}

/* Scores that are computed without asking: a minute or two on two processors. */
#define SCORES_MOST 4e10

/* Stored maps where they are about as fine as computed ones, where --map asks for them and, with a
 * warning, where computing would take minutes. */
static bool prefers_stored(const struct figure_args *a, const struct trace *t, const struct map *p,
                           int n, const struct cells_span *span, int64_t most)
{
    const struct trace_meta *m = trace_meta(t);
    bool whole = span->n_q == m->n_q && span->n_k == m->n_k;
    if (a->map != MAP_AUTO)
        return a->map == MAP_STORED;
    for (int i = 0; i < n; i++)
        if (m->pool <= 0 || !whole || !trace_call(t, p[i].call)->has_map)
            return false;
    /* Nobody sees a quarter of the cells less; computing them takes a minute for 48 heads. */
    int64_t cells = MAX(trace_map_cells(t, false), trace_map_cells(t, true));
    if (4 * cells >= 3 * most || m->pool == 1)
        return true;
    if ((double)n * (double)span->n_q * (double)m->n_k < SCORES_MOST)
        return false;
    log_warn("the stored maps of %lld x %lld cells are drawn: finer ones would take minutes "
             "(--map computed)",
             (long long)trace_map_cells(t, false), (long long)trace_map_cells(t, true));
    return true;
}

/* Panels that threads work on. */
struct reading {
    const struct trace *t;
    struct map *m;
    struct cells_span span;
    int64_t most, tokens;
    bool stored, mean;
};

static int read_one(void *ctx, int64_t i, int worker, struct err *err)
{
    const struct reading *r = ctx;
    struct map *m = &r->m[i];
    (void)worker;
    if (r->stored)
        return map_stored(r->t, m->call, m->stored, r->mean, r->most, &m->cells, err);
    return map_compute(r->t, m->call, m->stored, &r->span, r->tokens, r->mean, &m->cells, err);
}

/* Cells of a power of two of tokens, where that leaves 512 of them. */
static int64_t round_tokens(int64_t n, int64_t factor)
{
    int64_t up = 1;
    while (up < factor)
        up *= 2;
    return n / up >= 512 ? up : factor;
}

static void read_caption(const struct map_figure *f, const struct reading *r, struct buf *b)
{
    int64_t tokens = r->m->cells.tokens;
    if (f->own_axes)
        buf_printf(b, "%s%s: ", b->len ? " " : "", trace_meta(r->t)->name);
    if (tokens > 1)
        buf_printf(b, "A cell of %lld x %lld tokens shows the %s. ", (long long)tokens,
                   (long long)tokens,
                   r->mean ? "mean over its allowed pairs"
                           : "largest weight of its pairs, so that a line one token wide stays "
                             "visible");
    buf_puts(b, r->stored ? "From the maps that the trace holds."
                          : "Computed from q and k in the cells of the picture.");
    if (trace_is_padded(r->t))
        buf_puts(b, " Padding text is among the tokens.");
}

/* The maps [first, first + n), which are of one trace. */
static int read_maps(struct map_figure *f, int64_t first, int n, int64_t most, struct err *err)
{
    struct reading r = {.t = trace_of(f->a, f->m[first].trace), .m = &f->m[first], .most = most};
    const struct trace_meta *m = trace_meta(r.t);
    r.mean = f->a->mean;
    PASS_ON(map_part(f->a, m->n_q, m->n_k, &r.span, err));
    r.stored = prefers_stored(f->a, r.t, r.m, n, &r.span, most);
    if (r.stored && (r.span.n_q != m->n_q || r.span.n_k != m->n_k))
        return err_set(err, ERR_USAGE,
                       "--rows and --keys need maps that are computed: leave --map stored out");
    r.tokens =
        round_tokens(MAX(r.span.n_q, r.span.n_k), cells_factor(r.span.n_q, r.span.n_k, most));
    PASS_ON(pool_run(r.stored ? 1 : f->a->jobs, n, read_one, &r, err));
    read_caption(f, &r, &f->caption);
    return 0;
}

/* Shares of a mask that are kept: a veil over the cells of its map, or cells of their own. */
static int read_mask(struct map_figure *f, struct map *m, int64_t most, struct err *err)
{
    OWN(mask_free) struct mask mask = {0};
    struct mask_counts n;
    struct cells_span span;
    PASS_ON(maskfile_read(f->a->masks, m->mask, &mask, err));
    PASS_ON(map_part(f->a, mask.nq, mask.nk, &span, err));
    int64_t tokens = f->shares ? cells_factor(span.n_q, span.n_k, most) : m->cells.tokens;
    PASS_ON(cells_from_mask(&mask, &span, tokens, f->shares ? &m->cells : &m->veil, err));
    if (m->cells.n_q != f->m[0].cells.n_q || m->cells.n_k != f->m[0].cells.n_k)
        return err_set(err, ERR_USAGE,
                       "masks of different sizes in one figure: choose with --layers, --method");
    PASS_ON(mask_count(&mask, &n, err));
    title_share((double)n.pairs_kept / (double)n.pairs_allowed, 3, m->below);
    return 0;
}

static int read_cells(struct map_figure *f, int64_t most, struct err *err)
{
    for (int64_t i = 0, n; i < f->n && !f->shares; i += n) {
        for (n = 1; i + n < f->n && f->m[i + n].trace == f->m[i].trace;)
            n++;
        PASS_ON(read_maps(f, i, (int)n, most, err));
    }
    for (int64_t i = 0; i < f->n; i++)
        if (f->m[i].mask >= 0)
            PASS_ON(read_mask(f, &f->m[i], most, err));
    return 0;
}

/* ---- layout --------------------------------------------------------------------------------- */

/* Side in units at which this many panels are legible. */
static int wished_side(int64_t n)
{
    return n <= 1 ? 600 : n <= 2 ? 460 : n <= 4 ? 360 : n <= 9 ? 260 : n <= 24 ? 190 : 150;
}

/* Columns of a grid in which every row has the same ones; 0: the panels are none. */
static int grid_columns(const struct map_figure *f)
{
    int cols = 1;
    while (cols < f->n && strcmp(f->m[cols].row, f->m[0].row) == 0)
        cols++;
    if (f->own_axes)
        return cols;
    if (cols == 1 || cols > 16 || cols == f->n || f->n % cols != 0)
        return 0;
    for (int64_t i = 0; i < f->n; i++)
        if (strcmp(f->m[i].col, f->m[i % cols].col) != 0 ||
            strcmp(f->m[i].row, f->m[i - i % cols].row) != 0)
            return 0;
    return cols;
}

/* In a grid the panels of the first row have the heads of columns, the later ones numbers alone:
 * "head 0", "1", "2". */
static void title_of(const struct map_figure *f, int64_t i, char text[240])
{
    const struct map *m = &f->m[i];
    const char *number = strrchr(m->col, ' ');
    bool cols = f->n == 1 || m->mask < 0, word = number && strchr(m->col, ' ') == number;
    for (int64_t k = 1; k < f->n; k++)
        cols |= strcmp(f->m[k].col, f->m[0].col) != 0;
    if (!f->grid)
        snprintf(text, 240, "%s%s%s", m->row, m->row[0] && cols ? " " : "", cols ? m->col : "");
    else
        snprintf(text, 240, "%s",
                 i >= f->w.cols                      ? ""
                 : i > 0 && word && m->col[0] != 'L' ? number + 1
                                                     : m->col);
}

static int title_lines(const struct map_figure *f, double width)
{
    char text[240];
    int most = 1;
    for (int64_t i = 0; i < f->n; i++) {
        title_of(f, i, text);
        most = MAX(most, canvas_count_lines(text, canvas_chars(width + f->w.gap_x - 10)));
    }
    return most;
}

/* Cells of a vector file do not depend on its size; so many are about its data's resolution on
 * paper and keep the file below some megabytes. */
#define VECTOR_CELLS 6e6
#define VECTOR_SIDE 2048

/* Panels and the room around them; *most: cells per side at most, no less than a pixel each. One
 * that would be too low or narrow to read, such as a map of one row of cells, is stretched. */
static int lay_out(struct map_figure *f, int64_t *most, struct err *err)
{
    const struct figure_args *a = f->a;
    struct cells_span span;
    enum gp_type type = GP_PNG;
    int cols = grid_columns(f);
    PASS_ON(gp_check_name(a->output, &type, err));
    PASS_ON(map_part(a, f->m[0].n_q, f->m[0].n_k, &span, err));
    PASS_ON(words_read(f, &span, err));
    f->grid = cols > 0;
    f->w = (struct canvas_wish){.title = "x",
                                .panels = (int)f->n,
                                .cols = cols ? cols : (int)ceil(sqrt((double)f->n)),
                                .left = 84 + words_room(&f->queries),
                                .right = 112,
                                .bottom = 58 + words_room(&f->keys),
                                .foot = f->m[0].mask >= 0 ? CANVAS_LINE : 0,
                                .gap_x = cols ? 8 : 14,
                                .gap_y = f->own_axes ? 28 : 8,
                                .exact = true};
    double x = (double)span.n_k, y = (double)span.n_q, long_side = fmax(x, y);
    double side, room_x, room_y;
    canvas_room(a, &f->w, &room_x, &room_y);
    side = a->width ? room_x : wished_side(f->n);
    if (f->keys.n && !a->width)
        side = fmax(side, WORDS_UNITS * long_side);
    int lines = title_lines(f, side), least = f->grid ? 24 : 48;
    f->w.head_lines = f->grid ? 1 : lines;
    f->w.top = f->grid ? lines * CANVAS_LINE : 0;
    canvas_room(a, &f->w, &room_x, &room_y);
    f->unit = a->width ? fmin(room_x / x, room_y / y) : side / long_side;
    double fine = gp_pixels_per_unit(type, &a->style) * f->unit * long_side;
    if (fine < 16)
        return err_set(
            err, ERR_USAGE,
            "the figure is too small for %d panels in %d columns: choose some with --layers, "
            "--heads, --method, or give it a larger --width or --size",
            (int)f->n, f->w.cols);
    *most = type == GP_PNG
                ? (int64_t)fine
                : (int64_t)fmin(VECTOR_SIDE, fmax(64, sqrt(VECTOR_CELLS / (double)f->n)));
    f->w.width = MAX(a->width ? 1 : least, (int)(f->unit * x));
    f->w.height = MAX(a->height ? 1 : least, (int)(f->unit * y));
    return 0;
}

/* Cells of whole units, where they have one: all look alike then. */
static void round_panels(struct map_figure *f)
{
    const struct cells *c = &f->m[0].cells;
    double cell = f->unit * (double)c->tokens;
    bool given = f->a->width > 0;
    int least = f->grid ? 24 : 48;
    if (cell < 1)
        return;
    cell = (given ? floor(cell) : round(cell)) / (double)c->tokens;
    f->w.width = MAX(given ? 1 : least, (int)ceil(cell * (double)c->n_k));
    f->w.height = MAX(f->a->height ? 1 : least, (int)ceil(cell * (double)c->n_q));
}

/* ---- images --------------------------------------------------------------------------------- */

/* Samples of an image. They are its cells, each repeat x repeat times; on an axis that ends within
 * a cell, or has only one, they are units of the panel instead: gnuplot neither clips the cells of
 * an image nor draws a single row of them. */
struct samples {
    int64_t x, y;
};

static int64_t axis_samples(int64_t cells, int64_t tokens, int64_t n, int repeat, int side)
{
    if (cells > 1 && n == cells * tokens)
        return cells * repeat;
    return MAX(2, side < cells ? 2 * cells : side);
}

/* Viewers of SVG blur enlarged images, so there a cell is as many samples as it has units. */
static struct samples sampling(const struct map_figure *f)
{
    const struct cells *c = &f->m[0].cells;
    const struct canvas *p = &f->canvas;
    int repeat = p->gp.type == GP_SVG ? MAX(1, MIN(8, p->width / (int)c->cols)) : 1;
    struct samples s = {axis_samples(c->cols, c->tokens, c->n_k, repeat, p->width),
                        axis_samples(c->rows, c->tokens, c->n_q, repeat, p->height)};
    for (int64_t i = 0; f->own_axes && i < f->n; i++) { /* no cell is lost, none is much too wide */
        s.x = MAX(s.x, f->m[i].cells.cols * 4);
        s.y = MAX(s.y, f->m[i].cells.rows * 4);
    }
    return s;
}

/* White over the cells that the mask drops: opaque enough to see the mask, not to hide the map. */
#define VEIL 190

static void put_cell(const struct map_figure *f, double low, float x, bool veil, struct buf *b)
{
    unsigned char px[4] = {255, 255, 255, 0};
    if (veil) {
        px[3] = isnan(x) ? 0 : (unsigned char)lround(VEIL * (1 - fmin(1, (double)x)));
        buf_put(b, px, 4);
        return;
    }
    if (!f->shares && (double)x < low) /* false for NAN */
        x = (float)low;
    buf_put(b, &x, sizeof x);
}

static int write_images(struct map_figure *f, struct samples s, double low, bool veil,
                        struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    for (int64_t i = 0; i < f->n; i++) {
        const struct cells *c = veil ? &f->m[i].veil : &f->m[i].cells;
        for (int64_t y = 0; y < s.y; y++) {
            int64_t row = cells_sample(y, s.y, c->n_q, c->tokens) * c->cols;
            for (int64_t x = 0; x < s.x; x++)
                put_cell(f, low, c->v[row + cells_sample(x, s.x, c->n_k, c->tokens)], veil, &b);
        }
    }
    PASS_ON(buf_check(&b, "cells", err));
    return gp_data(&f->canvas.gp, veil ? "veil.bin" : "bin", b.data, b.len, err);
}

/* ---- script --------------------------------------------------------------------------------- */

#define FRAMES_MOST 256

/* Tokens of a frame, the first one's place and how many there are, of the trace or as the user
 * says; 0: no frames. */
static int64_t frame_tokens(const struct figure_args *a, int64_t *first, int64_t *n)
{
    const struct trace_meta *m = a->trace ? trace_meta(a->trace) : NULL;
    *first = 0;
    *n = FRAMES_MOST;
    if (a->frame > 0 || !m || m->grid_t < 2 ||
        (m->token_order[0] && strcmp(m->token_order, "raster") != 0))
        return a->frame;
    *n = m->grid_t < FRAMES_MOST ? m->grid_t : FRAMES_MOST;
    if (strcmp(m->text_place, "front") == 0)
        *first = m->text_tokens;
    return m->grid_h * m->grid_w;
}

/* Lines between the frames of a video, in tokens: where there are few enough to see the map. White
 * at a half is seen on dark cells, grey on light ones. */
static void frame_lines(struct map_figure *f)
{
    const struct cells *c = &f->m[0].cells;
    const char *color = f->shares ? "#40a0a0a0" : "#60ffffff";
    struct buf *s = &f->canvas.gp.script;
    int64_t first, n, frame = frame_tokens(f->a, &first, &n);
    if (frame <= 0 || f->own_axes || f->canvas.width * frame < 6 * c->n_k)
        return;
    for (int64_t i = 1; i <= n; i++) {
        double at = (double)(first + i * frame);
        if (at > c->k0 && at < c->k0 + c->n_k)
            buf_printf(
                s, "set arrow from %g, graph 0 to %g, graph 1 nohead front lw 0.5 lc rgb '%s'\n",
                at, at, color);
        if (at > c->q0 && at < c->q0 + c->n_q)
            buf_printf(s,
                       "set arrow from graph 0, first %g to graph 1, first %g nohead front lw 0.5 "
                       "lc rgb '%s'\n",
                       at, at, color);
    }
}

/* Tics at every power of two of tokens that leaves `room` units to each; before the end of the axis
 * where the next panel's numbers begin. */
static void token_tics(struct buf *s, char letter, int64_t from, int64_t n, int side, int room,
                       bool shown, bool ends)
{
    int64_t step = gp_token_step(n, side / room + 1), first = (from + step - 1) / step * step;
    double end = (double)(from + n) - (ends ? 0 : (double)n * room / 2 / side);
    if (ends && side < room) /* the end alone */
        first += step;
    buf_printf(s, "unset %ctics\n", letter);
    if (ends || end > (double)first)
        buf_printf(s, "set %ctics %lld,%lld,%.10g out nomirror format '%s'\n", letter,
                   (long long)first, (long long)step, fmax(end, (double)first + 1),
                   shown ? "%.0f" : "");
}

/* Axes in tokens, row 0 on top, numbers on the outer panels only. */
static void put_axes(struct map_figure *f, int64_t i)
{
    const struct canvas *p = &f->canvas;
    const struct cells *c = &f->m[i].cells;
    struct buf *s = &f->canvas.gp.script;
    bool leftmost = i % p->cols == 0, lowest = i + p->cols >= f->n;
    bool rightmost = i % p->cols == p->cols - 1 || i + 1 == f->n;
    int label = 24 + 8 * (int)log10((double)(c->k0 + c->n_k)); /* the longest number and a gap */
    buf_printf(s, "set xrange [%lld:%lld]\nset yrange [%lld:%lld]\n", (long long)c->k0,
               (long long)(c->k0 + c->n_k), (long long)(c->q0 + c->n_q), (long long)c->q0);
    token_tics(s, 'x', c->k0, c->n_k, p->width, label, lowest || f->own_axes, rightmost);
    token_tics(s, 'y', c->q0, c->n_q, p->height, 28, leftmost, true);
    if (f->keys.n) {
        put_words(f, 'x', &f->keys, c->k0, p->width, lowest);
        put_words(f, 'y', &f->queries, c->q0, p->height, leftmost);
    }
}

/* The `binary` clause that reads the samples of panel i. */
static void put_image(struct map_figure *f, int64_t i, struct samples n, const char *tag,
                      const char *format)
{
    const struct cells *c = &f->m[i].cells;
    double dx = (double)c->n_k / (double)n.x, dy = (double)c->n_q / (double)n.y;
    gp_data_name(&f->canvas.gp, tag);
    buf_printf(&f->canvas.gp.script,
               " binary skip=%lld array=(%lld,%lld) format='%s' endian=little dx=%.10g dy=%.10g "
               "origin=(%.10g,%.10g)",
               (long long)(n.x * n.y) * 4 * i, (long long)n.x, (long long)n.y, format, dx, dy,
               (double)c->k0 + dx / 2, (double)c->q0 + dy / 2);
}

static void put_label(struct map_figure *f, const char *text, const char *where)
{
    buf_puts(&f->canvas.gp.script, "set label ");
    gp_text(&f->canvas.gp, &f->canvas.gp.script, text);
    buf_printf(&f->canvas.gp.script, " at %s noenhanced\n", where);
}

static void draw_panel(struct map_figure *f, int64_t i, struct samples n)
{
    const struct map *m = &f->m[i];
    struct buf *s = &f->canvas.gp.script;
    char title[240];
    title_of(f, i, title);
    canvas_panel(&f->canvas, NULL, NULL, title);
    put_axes(f, i);
    frame_lines(f);
    if (f->grid)
        buf_puts(s, "set title offset 0,0.7\n");
    if (f->grid && i % f->w.cols == 0)
        put_label(f, m->row, "graph 0, graph 1 left offset -1,0.6");
    if (m->below[0] && f->canvas.width + f->w.gap_x >= 32)
        put_label(f, m->below,
                  i + f->w.cols < f->n ? "graph 0.5, graph 0 center offset 0,-0.7 font font_small"
                                       : "graph 0.5, graph 0 center offset 0,-2.1 font font_small");
    buf_puts(s, "plot ");
    put_image(f, i, n, "bin", "%float32");
    buf_puts(s, " using 1 with image notitle");
    if (m->veil.v) {
        buf_puts(s, ", ");
        put_image(f, i, n, "veil.bin", "%4uchar");
        buf_puts(s, " using 1:2:3:4 with rgbalpha notitle");
    }
    canvas_end(&f->canvas);
}

/* What the title and the caption say once the cells are there. */
static int put_texts(struct map_figure *f, struct err *err)
{
    const struct figure_args *a = f->a;
    const struct cells *c = &f->m[0].cells;
    bool under = !f->shares && f->m[0].mask >= 0;
    if (!f->shares && (a->rows || a->keys))
        buf_printf(&f->title, ", queries %lld-%lld, keys %lld-%lld", (long long)c->q0,
                   (long long)(c->q0 + c->n_q - 1), (long long)c->k0,
                   (long long)(c->k0 + c->n_k - 1));
    if (!f->shares && !under && !f->own_axes && c->tokens > 1)
        buf_printf(&f->title, "; cells of %lld x %lld tokens, %s", (long long)c->tokens,
                   (long long)c->tokens, a->mean ? "mean" : "maximum");
    if (f->shares)
        buf_puts(&f->caption, "Numbers: kept pairs over allowed pairs. Blank: no pair is allowed.");
    if (under)
        buf_puts(&f->caption, " The paleness of a cell is the share of its pairs that are dropped; "
                              "numbers are kept pairs over allowed pairs of the whole map.");
    if (f->m[0].below[0] && f->w.width + f->w.gap_x < 32)
        buf_puts(&f->caption, " The panels are too narrow for their numbers.");
    PASS_ON(buf_check(&f->title, "title", err));
    return buf_check(&f->caption, "caption", err);
}

static void put_scale(struct map_figure *f, double low, double high)
{
    struct buf *s = &f->canvas.gp.script;
    palette_viridis(s);
    if (!f->shares)
        buf_printf(s, "set logscale cb\nset format cb '%s'\n", figure_powers(f->a->output));
    buf_printf(s, "set cbrange [%.10g:%.10g]\nset border lw 0.6\nset tics scale 0.6\n", low, high);
    buf_puts(s, "unset colorbox\n");
}

static const char *bar_label(const struct map_figure *f)
{
    return f->shares    ? "kept share of the cell's allowed pairs"
           : f->a->mean ? "mean weight of the cell's pairs"
                        : "largest weight in the cell";
}

/* Lay the panels out, read their cells and draw them. */
static int map_draw(struct map_figure *f, struct err *err)
{
    const struct figure_args *a = f->a;
    double low = isnan(a->low) ? f->shares ? 0 : 1e-6 : a->low, high = isnan(a->high) ? 1 : a->high;
    int64_t most;
    PASS_ON(lay_out(f, &most, err));
    PASS_ON(read_cells(f, most, err));
    round_panels(f);
    PASS_ON(put_texts(f, err));
    f->w.title = buf_str(&f->title);
    f->w.caption = buf_str(&f->caption);
    PASS_ON(canvas_open(a, &f->w, &f->canvas, err));
    struct samples n = sampling(f);
    PASS_ON(write_images(f, n, low, false, err));
    if (f->m[0].veil.v)
        PASS_ON(write_images(f, n, low, true, err));
    put_scale(f, low, high);
    canvas_names(&f->canvas, "key [token]", "query [token]");
    for (int64_t i = 0; i < f->n; i++) {
        if (i + 1 == f->n)
            canvas_colours(&f->canvas, low, high, !f->shares, bar_label(f));
        draw_panel(f, i, n);
    }
    return canvas_finish(&f->canvas, NULL, err);
}

static int add_map(struct map_figure *f, const struct map *m, struct err *err)
{
    if (f->n == MAPS_MOST)
        return err_set(err, ERR_USAGE,
                       "more than %d maps: choose with --layers, --heads, --method and --params",
                       MAPS_MOST);
    PASS_ON(mem_grow(&f->m, &f->cap, f->n + 1, sizeof *f->m, "maps", err));
    f->m[f->n++] = *m;
    return 0;
}

static void map_free(struct map_figure *f)
{
    for (int64_t i = 0; i < f->n; i++) {
        cells_free(&f->m[i].cells);
        cells_free(&f->m[i].veil);
    }
    free(f->m);
    str_list_free(&f->queries);
    str_list_free(&f->keys);
    buf_free(&f->title);
    buf_free(&f->caption);
    canvas_free(&f->canvas);
}

/* ---- heads of a trace ----------------------------------------------------------------------- */

static int no_call(const struct trace *t, struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    for (int64_t i = 0; i < trace_calls(t) && i < 40; i++) {
        const struct trace_call *c = trace_call(t, i);
        buf_printf(&b, "%s%d/%s/%d", i ? " " : "", c->step, c->branch, c->layer);
    }
    buf_puts(&b, trace_calls(t) > 40 ? " ..." : "");
    return err_set(err, ERR_INPUT, "%s: no such call; step/branch/layer in the trace: %s",
                   trace_path(t), buf_str(&b));
}

/* Add the heads that --layers and --heads name, in the trace's calls of --steps and --branch, by
 * default those of the first call. */
static int add_heads(struct map_figure *f, int trace, bool steps, struct err *err)
{
    const struct figure_args *a = f->a;
    const struct trace *t = trace_of(a, trace);
    const struct trace_meta *m = trace_meta(t);
    OWN(figure_cells_free) struct figure_cells chosen = {0};
    int64_t before = f->n;
    if (trace_calls(t) == 0)
        return err_set(err, ERR_INPUT, "%s: holds no attention call", trace_path(t));
    const struct trace_call *first = trace_call(t, 0);
    const char *branch = a->branch ? a->branch : first->branch;
    PASS_ON(figure_cells(a, m->layers, m->head_ids[0] ? -1 : m->heads, &chosen, err));
    for (int64_t i = 0; i < trace_calls(t); i++) {
        const struct trace_call *call = trace_call(t, i);
        bool step = steps ? figure_has(&chosen.steps, call->step) : call->step == first->step;
        for (int h = 0; h < m->heads; h++) {
            const struct map one = {.call = i,
                                    .layer = call->layer,
                                    .head = trace_head_number(m, h),
                                    .stored = h,
                                    .n_q = m->n_q,
                                    .n_k = m->n_k,
                                    .step = call->step,
                                    .trace = trace,
                                    .mask = -1};
            if (step && strcmp(call->branch, branch) == 0 &&
                figure_has(&chosen.layers, one.layer) && figure_has(&chosen.heads, one.head))
                PASS_ON(add_map(f, &one, err));
        }
    }
    bool all = f->n > before;
    for (int64_t k = 0; steps && k < chosen.steps.n; k++) {
        bool found = false;
        for (int64_t i = before; i < f->n; i++)
            found |= f->m[i].step == chosen.steps.at[k];
        all &= found;
    }
    if (!all)
        return no_call(t, err);
    return 0;
}

static void put_trace(const struct trace *t, int step, const char *branch, struct buf *b)
{
    const struct trace_meta *m = trace_meta(t);
    if (m->n_q == m->n_k)
        buf_printf(b, "%s, %lld token%s", m->name, (long long)m->n_q, m->n_q == 1 ? "" : "s");
    else
        buf_printf(b, "%s, %lld %s x %lld keys", m->name, (long long)m->n_q,
                   m->n_q == 1 ? "query" : "queries", (long long)m->n_k);
    if (m->grid_t > 0 && step >= 0)
        buf_printf(b, ", step %d", step);
    if (m->grid_t > 0)
        buf_printf(b, ", %s", branch);
}

static int check_scale(const struct figure_args *a, struct err *err)
{
    if (isnan(a->low) || a->low > 0)
        return 0;
    return err_set(err, ERR_USAGE, "--range %g:%g: a logarithmic scale needs 0 < low < high",
                   a->low, a->high);
}

/* ---- heatmap -------------------------------------------------------------------------------- */

static int by_head(const void *a, const void *b)
{
    const struct map *p = a, *q = b;
    return p->layer != q->layer ? p->layer - q->layer
           : p->head != q->head ? p->head - q->head
                                : p->step - q->step;
}

/* A row for each layer, a column for each head; of several steps a row for each head, a column for
 * each step; of several traces a row for each, with the same heads. --steps is of those that have
 * denoising steps. */
static int add_trace(struct map_figure *f, int trace, struct err *err)
{
    const struct figure_args *a = f->a;
    const struct trace *t = trace_of(a, trace);
    int64_t before = f->n, n;
    bool over_steps = false;
    PASS_ON(add_heads(f, trace, a->steps && (a->n_traces < 2 || trace_meta(t)->grid_t > 0), err));
    n = f->n - before;
    for (int64_t i = before; i < f->n; i++)
        over_steps |= f->m[i].step != f->m[before].step;
    if (over_steps)
        qsort(f->m + before, (size_t)n, sizeof *f->m, by_head);
    for (int64_t i = before; i < f->n; i++) {
        struct map *m = &f->m[i];
        const struct map *same = &f->m[i - before];
        if (m->layer != same->layer || m->head != same->head || n * (trace + 1) != f->n)
            return err_set(
                err, ERR_USAGE,
                "%s and %s have other layers or heads: choose some that both have, with --layers "
                "and --heads",
                trace_path(trace_of(a, 0)), trace_path(t));
        snprintf(m->row, sizeof m->row, "layer %d", m->layer);
        snprintf(m->col, sizeof m->col, "head %d", m->head);
        if (over_steps) {
            snprintf(m->row, sizeof m->row, "layer %d head %d", m->layer, m->head);
            snprintf(m->col, sizeof m->col, "step %d", m->step);
        }
        if (a->n_traces > 1) {
            snprintf(m->row, sizeof m->row, "%.60s", trace_meta(t)->name);
            snprintf(m->col, sizeof m->col, "L%d H%d", m->layer, m->head);
        }
    }
    buf_puts(&f->title, trace ? "; " : "attention of ");
    put_trace(t, over_steps ? -1 : f->m[before].step,
              a->branch ? a->branch : trace_call(t, 0)->branch, &f->title);
    return 0;
}

int draw_heatmap(const struct figure *figure, const struct figure_args *a, struct err *err)
{
    OWN(map_free) struct map_figure f = {.a = a, .own_axes = a->n_traces > 1};
    (void)figure;
    if (a->tokens && a->n_traces > 1)
        return err_set(err, ERR_USAGE, "--tokens names the tokens of one trace, %d are given",
                       a->n_traces);
    PASS_ON(check_scale(a, err));
    for (int t = 0; t < (a->n_traces > 1 ? a->n_traces : 1); t++)
        PASS_ON(add_trace(&f, t, err));
    return map_draw(&f, err);
}

/* ---- masks ---------------------------------------------------------------------------------- */

/* A mask of the file that takes part. */
struct listed_mask {
    int64_t at;
    struct record id;
};

/* Those of a figure, and what tells them apart. */
struct mask_list {
    struct listed_mask m[MAPS_MOST];
    struct title_params params[MAPS_MOST];
    int n;
    bool methods, settings, steps, layers; /* differ */
};

static int by_cell(const void *a, const void *b)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS, KEY_STEP,
                                          KEY_BRANCH, KEY_LAYER,  KEY_HEAD};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int d = key_compare(&((const struct listed_mask *)a)->id,
                            &((const struct listed_mask *)b)->id, keys[i]);
        if (d)
            return d;
    }
    return 0;
}

/* The masks that the options choose, in the order of tables. Over maps those of one branch, and of
 * one step unless --steps says otherwise. */
static int list_masks(const struct figure_args *a, bool over, struct mask_list *l, struct err *err)
{
    const struct trace_call *first = over && trace_calls(a->trace) ? trace_call(a->trace, 0) : NULL;
    const char *branch = !a->branch && first ? first->branch : a->branch;
    OWN(figure_cells_free) struct figure_cells chosen = {0};
    struct record id;
    PASS_ON(figure_cells(a, -1, -1, &chosen, err));
    for (int64_t i = 0; i < maskfile_cells(a->masks); i++) {
        PASS_ON(maskfile_cell(a->masks, i, &id, err));
        bool fits =
            figure_has(&chosen.layers, id.layer) && figure_has(&chosen.heads, id.head) &&
            (a->steps || !first ? figure_has(&chosen.steps, id.step) : id.step == first->step) &&
            (!branch || strcmp(branch, id.branch) == 0) && figure_takes(a, &id);
        if (fits && l->n < MAPS_MOST) {
            l->m[l->n++] = (struct listed_mask){i, id};
            continue;
        }
        record_free(&id);
        if (fits)
            return err_set(err, ERR_USAGE,
                           "more than %d masks: choose with --layers, --heads, --method",
                           MAPS_MOST);
    }
    if (l->n == 0)
        return err_set(err, ERR_INPUT, "no dumped mask fits the options (%lld masks in the file)",
                       (long long)maskfile_cells(a->masks));
    qsort(l->m, (size_t)l->n, sizeof *l->m, by_cell);
    return 0;
}

/* What all masks share goes to `shared`: "spargeattn:theta=-1". */
static void compare_masks(struct mask_list *l, struct buf *shared)
{
    OWN(buf_free) struct buf params = {0};
    const struct record *first = &l->m[0].id;
    for (int i = 1; i < l->n; i++) {
        const struct record *x = &l->m[i].id;
        l->methods |= strcmp(x->method, first->method) != 0;
        l->settings |= l->methods || key_compare(x, first, KEY_PARAMS) != 0;
        l->steps |= x->step != first->step || strcmp(x->branch, first->branch) != 0;
        l->layers |= x->layer != first->layer;
    }
    for (int i = 0; i < l->n; i++)
        l->params[i] = (struct title_params){.above = l->methods ? l->m[i].id.method : "",
                                             .params = l->m[i].id.params};
    title_params(l->params, l->n, 60, &params);
    if (!l->methods)
        buf_puts(shared, first->method);
    buf_printf(shared, "%s%s", shared->len && params.len ? ":" : "", buf_str(&params));
    shared->failed |= params.failed;
}

/* A row for each setting and a column for each head; of one setting a row for each layer. */
static void name_mask(const struct mask_list *l, int i, struct map *m)
{
    const struct record *x = &l->m[i].id;
    const struct title_params *t = &l->params[i];
    OWN(buf_free) struct buf col = {0};
    if (!l->settings)
        snprintf(m->row, sizeof m->row, "layer %d", x->layer);
    else
        snprintf(m->row, sizeof m->row, "%.31s%s%.90s", t->above,
                 t->above[0] && t->text[0] ? " " : "",
                 t->text[0] || t->above[0] ? t->text : "defaults");
    if (l->steps)
        buf_printf(&col, "step %d %s ", x->step, x->branch);
    if (l->settings && l->layers)
        buf_printf(&col, "L%d H%d", x->layer, x->head);
    else
        buf_printf(&col, "head %d", x->head);
    snprintf(m->col, sizeof m->col, "%s", buf_str(&col));
}

/* The map under a mask: of the same trace, in its order of tokens. */
static int find_map(const struct figure_args *a, const struct record *id, struct map *m,
                    struct err *err)
{
    const struct trace *t = a->trace;
    const struct trace_meta *meta = trace_meta(t);
    if (strcmp(id->trace, trace_id(t)) != 0)
        return err_set(err, ERR_INPUT, "the masks belong to trace %s, not to %s (%s)", id->trace,
                       trace_path(t), trace_id(t));
    if (id->n_q != meta->n_q || id->n_k != meta->n_k)
        return err_set(err, ERR_INPUT, "mask of %lld x %lld tokens, trace of %lld x %lld",
                       (long long)id->n_q, (long long)id->n_k, (long long)meta->n_q,
                       (long long)meta->n_k);
    if (strcmp(id->permute, "none") != 0)
        return err_set(err, ERR_INPUT,
                       "the mask of %s stands in token order %s, the map in the trace's: choose "
                       "masks without a permute, or plot mask, which needs no map",
                       id->method, id->permute);
    m->call = trace_find(t, id->step, id->branch, id->layer);
    m->stored = trace_head_find(meta, id->head);
    if (m->call < 0 || m->stored < 0)
        return err_set(err, ERR_INPUT,
                       "%s has no map of layer %d head %d step %d branch %s, of which "
                       "there is a mask",
                       trace_path(t), id->layer, id->head, id->step, id->branch);
    return 0;
}

/* The masks alone, or over the maps of their heads. */
int draw_masks(const struct figure *figure, const struct figure_args *a, struct err *err)
{
    bool over = figure->needs_masks;
    struct map_figure f = {.a = a, .shares = !over};
    struct mask_list *l = NULL;
    struct buf shared = {0};
    int rc = 0;
    if (over)
        TRY(check_scale(a, err));
    TRY(mem_zalloc(&l, 1, sizeof *l, "masks", err));
    TRY(list_masks(a, over, l, err));
    compare_masks(l, &shared);
    for (int i = 0; i < l->n; i++) {
        const struct record *id = &l->m[i].id;
        struct map m = {.call = -1,
                        .layer = id->layer,
                        .head = id->head,
                        .n_q = id->n_q,
                        .n_k = id->n_k,
                        .step = id->step,
                        .trace = -1};
        m.mask = l->m[i].at;
        m.trace = over ? 0 : -1;
        if (over)
            TRY(find_map(a, id, &m, err));
        name_mask(l, i, &m);
        TRY(add_map(&f, &m, err));
    }
    buf_printf(&f.title, "masks%s", shared.len ? " of " : "");
    title_cut(buf_str(&shared), 72, &f.title);
    if (over) {
        buf_puts(&f.title, " on ");
        put_trace(a->trace, l->steps ? -1 : f.m[0].step, l->m[0].id.branch, &f.title);
        buf_puts(&f.title, "; dropped: pale");
    } else if (!l->layers)
        buf_printf(&f.title, "%slayer %d", shared.len ? ", " : " of ", l->m[0].id.layer);
    buf_puts(&f.title, "; numbers: kept pairs");
    TRY(map_draw(&f, err));
out:
    for (int i = 0; l && i < l->n; i++)
        record_free(&l->m[i].id);
    free(l);
    map_free(&f);
    buf_free(&shared);
    return rc;
}
