/*
 * shots.c - cells to palette PNGs, and the cells of a head at any size.
 */
#include "report/shots.h"

#include "core/mem.h"
#include "report/report.h"

#include <math.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>

/* ---- PNG ------------------------------------------------------------------------------------ */

/* Levels of a picture: few, because a report has hundreds of pictures. Level 0 is transparent. */
#define LEVELS 32

typedef unsigned char rgba[4];

static int level_of_share(float x)
{
    int k = 1 + (int)(x * (LEVELS - 2) + 0.5F);
    return isnan(x)                                          ? 0
           : x > 0 && k == 1 /* a kept pair is never pale */ ? 2
           : k > LEVELS - 1                                  ? LEVELS - 1
                                                             : k;
}

static int level_of_weight(float x)
{
    double at = log10(fmax((double)x, SHOT_LEAST)) / -log10(SHOT_LEAST) + 1;
    return isnan(x) ? 0 : 1 + (int)(fmin(at, 1) * (LEVELS - 2) + 0.5);
}

/* Between the colours of a list that lie at equal distances. */
static void blend(const unsigned char (*list)[3], int n, double t, rgba out)
{
    double at = t * (n - 1);
    int i = (int)at < n - 2 ? (int)at : n - 2;
    for (int k = 0; k < 3; k++)
        out[k] = (unsigned char)(list[i][k] + (at - i) * (list[i + 1][k] - list[i][k]) + 0.5);
    out[3] = 255;
}

static void palette(const unsigned char (*list)[3], int n, rgba out[LEVELS])
{
    memset(out[0], 0, sizeof out[0]);
    for (int i = 1; i < LEVELS; i++)
        blend(list, n, (i - 1) / (double)(LEVELS - 2), out[i]);
}

static int write_png(const struct cells *c, const unsigned char *levels, const rgba *colours,
                     struct buf *b, struct err *err)
{
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)c->cols,
                       .height = (png_uint_32)c->rows,
                       .format = PNG_FORMAT_RGBA_COLORMAP,
                       .colormap_entries = LEVELS};
    png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
    void *png = NULL;
    int rc = 0;
    TRY(mem_alloc(&png, (int64_t)size, 1, "picture", err));
    if (!png_image_write_to_memory(&image, png, &size, 0, levels, 0, colours))
        FAIL(err, ERR_NOMEM, "picture of %lld x %lld cells: %s", (long long)c->rows,
             (long long)c->cols, image.message);
    base64(png, size, b);
out:
    png_image_free(&image);
    free(png);
    return rc;
}

static int shot(const struct cells *c, int (*level)(float), const rgba *colours, struct buf *b,
                struct err *err)
{
    unsigned char *levels = NULL;
    int rc = mem_alloc(&levels, c->rows * c->cols, 1, "picture", err);
    for (int64_t i = 0; !rc && i < c->rows * c->cols; i++)
        levels[i] = (unsigned char)level(c->v[i]);
    if (!rc)
        rc = write_png(c, levels, colours, b, err);
    free(levels);
    return rc;
}

int shot_of_map(const struct cells *c, struct buf *b, struct err *err)
{
    static const unsigned char viridis[][3] = {
        {68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}};
    rgba colours[LEVELS];
    palette(viridis, 5, colours);
    return shot(c, level_of_weight, (const rgba *)colours, b, err);
}

int shot_of_mask(const struct cells *c, struct buf *b, struct err *err)
{
    static const unsigned char blues[][3] = {{238, 241, 245}, {107, 174, 214}, {8, 48, 107}};
    rgba colours[LEVELS];
    palette(blues, 3, colours);
    return shot(c, level_of_share, (const rgba *)colours, b, err);
}

/* ---- cells ---------------------------------------------------------------------------------- */

#define MAPS_WORK 4e11 /* operations: some seconds on two cores */

bool shots_are_cheap(const struct trace *t, int64_t maps)
{
    const struct trace_meta *m = trace_meta(t);
    return 4.0 * (double)m->n_q * (double)m->n_k * m->head_dim * (double)maps <= MAPS_WORK;
}

int shot_cells(const struct trace *t, int64_t call, int stored, int64_t side, bool exact,
               struct cells *out, struct err *err)
{
    const struct trace_meta *m = trace_meta(t);
    const struct cells_span all = {0, m->n_q, 0, m->n_k};
    if (!exact)
        return map_stored(t, call, stored, false, side, out, err);
    return map_compute(t, call, stored, &all, cells_factor(m->n_q, m->n_k, side), false, out, err);
}
