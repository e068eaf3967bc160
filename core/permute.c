/*
 * permute.c - token orders, see permute.h. O(n).
 */
#include "core/permute.h"

#include "core/intmath.h"
#include "core/mem.h"
#include "core/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Stream of the random order, so that other users of the seed are independent of it. */
#define STREAM_PERMUTE 0x7065726d75746500ull

/* clang-format off */
enum order { ORDER_NONE, ORDER_ROW, ORDER_COLUMN, ORDER_TIME, ORDER_RANDOM, ORDER_HILBERT,
             ORDER_VOXEL, ORDER_TILE };
/* clang-format on */

static const char *const order_names[] = {"none",   "row",     "column", "time",
                                          "random", "hilbert", NULL};

struct parsed {
    enum order order;
    int64_t a, b, c; /* voxel, tile: t, y, x */
};

static int parse(const char *name, struct parsed *p, struct err *err)
{
    memset(p, 0, sizeof *p);
    for (int i = 0; order_names[i]; i++)
        if (!strcmp(name, order_names[i])) {
            p->order = (enum order)i;
            return 0;
        }
    long long a, b, c;
    int end = 0;
    bool tile = strncmp(name, "tile:", 5) == 0;
    if ((tile || strncmp(name, "voxel:", 6) == 0) &&
        sscanf(strchr(name, ':'), ":%9lldx%9lldx%9lld%n", &a, &b, &c, &end) == 3 &&
        !strchr(name, ':')[end] && a > 0 && b > 0 && c > 0) {
        *p = (struct parsed){tile ? ORDER_TILE : ORDER_VOXEL, a, b, c};
        return 0;
    }
    return err_set(err, ERR_USAGE,
                   "token order '%s': expected none, row, column, time, random, hilbert, "
                   "voxel:AxBxC or tile:AxBxC (tokens in time, height, width)",
                   name);
}

int permute_check(const char *name, struct err *err)
{
    struct parsed p;
    return parse(name, &p, err);
}

/* ---- generalised Hilbert curve -------------------------------------------------------------- */

struct vec {
    int64_t x, y, z;
};

struct curve {
    int64_t h, w; /* of the box */
    int64_t *out;
    int64_t n;
};

static struct vec add(struct vec a, struct vec b)
{
    return (struct vec){a.x + b.x, a.y + b.y, a.z + b.z};
}

static struct vec sub(struct vec a, struct vec b)
{
    return (struct vec){a.x - b.x, a.y - b.y, a.z - b.z};
}

static struct vec neg(struct vec a)
{
    return (struct vec){-a.x, -a.y, -a.z};
}

static int64_t length(struct vec a)
{
    return llabs(a.x) + llabs(a.y) + llabs(a.z);
}

static int64_t sign(int64_t x)
{
    return (x > 0) - (x < 0);
}

static struct vec unit(struct vec a)
{
    return (struct vec){sign(a.x), sign(a.y), sign(a.z)};
}

/* Floor also for negative components: truncation would break boxes with odd sides. */
static int64_t floor_half(int64_t x)
{
    return (x - (x < 0 ? x % 2 != 0 : 0)) / 2;
}

/* About half of axis a, of even length where a is longer than 2. */
static struct vec half(struct vec a)
{
    struct vec h = {floor_half(a.x), floor_half(a.y), floor_half(a.z)};
    return length(h) % 2 && length(a) > 2 ? add(h, unit(a)) : h;
}

static void walk(struct curve *g, struct vec p, struct vec step, int64_t n)
{
    for (; n > 0; n--, p = add(p, step))
        g->out[g->n++] = (p.z * g->h + p.y) * g->w + p.x;
}

/* All cells of the box at corner p spanned by a (the direction of travel), b and c. */
static void hilbert(struct curve *g, struct vec p, struct vec a, struct vec b, struct vec c)
{
    int64_t w = length(a), h = length(b), e = length(c);
    struct vec da = unit(a), db = unit(b), dc = unit(c);
    if (h == 1 && e == 1) {
        walk(g, p, da, w);
        return;
    }
    if (w == 1 && e == 1) {
        walk(g, p, db, h);
        return;
    }
    if (w == 1 && h == 1) {
        walk(g, p, dc, e);
        return;
    }
    struct vec a2 = half(a), b2 = half(b), c2 = half(c), a1 = sub(a, a2);
    struct vec far_a = add(p, sub(a, da)); /* last cell along a */
    if (2 * w > 3 * h && 2 * w > 3 * e) {
        hilbert(g, p, a2, b, c);
        hilbert(g, add(p, a2), a1, b, c);
    } else if (3 * h > 4 * e) {
        hilbert(g, p, b2, c, a2);
        hilbert(g, add(p, b2), a, sub(b, b2), c);
        hilbert(g, add(far_a, sub(b2, db)), neg(b2), c, neg(a1));
    } else if (3 * e > 4 * h) {
        hilbert(g, p, c2, a2, b);
        hilbert(g, add(p, c2), a, b, sub(c, c2));
        hilbert(g, add(far_a, sub(c2, dc)), neg(c2), neg(a1), b);
    } else {
        struct vec far_c = sub(c, dc);
        hilbert(g, p, b2, c2, a2);
        hilbert(g, add(p, b2), c, a2, sub(b, b2));
        hilbert(g, add(p, add(sub(b2, db), far_c)), a, neg(b2), neg(sub(c, c2)));
        hilbert(g, add(far_a, add(b2, far_c)), neg(c), neg(a1), sub(b, b2));
        hilbert(g, add(far_a, sub(b2, db)), neg(b2), c2, neg(a1));
    }
}

static void order_hilbert(int64_t *out, int64_t t, int64_t h, int64_t w)
{
    struct curve g = {h, w, out, 0};
    struct vec p = {0, 0, 0}, x = {w, 0, 0}, y = {0, h, 0}, z = {0, 0, t};
    if (w >= h && w >= t)
        hilbert(&g, p, x, y, z);
    else if (h >= w && h >= t)
        hilbert(&g, p, y, x, z);
    else
        hilbert(&g, p, z, x, y);
}

/* ---- the other orders ----------------------------------------------------------------------- */

static void order_random(int64_t *out, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t r = (int64_t)rng_below(seed, STREAM_PERMUTE, (uint64_t)i, (uint64_t)i + 1);
        int64_t swap = out[i];
        out[i] = out[r];
        out[r] = swap;
    }
}

/* Emit the cells [t0,t1) x [y0,y1) x [x0,x1) in raster order; returns the new end. */
static int64_t *emit_box(int64_t *out, const struct geometry *g, int64_t t0, int64_t t1, int64_t y0,
                         int64_t y1, int64_t x0, int64_t x1)
{
    for (int64_t t = t0; t < t1; t++)
        for (int64_t y = y0; y < y1; y++)
            for (int64_t x = x0; x < x1; x++)
                *out++ = (t * g->h + y) * g->w + x;
    return out;
}

static void order_voxel(int64_t *out, const struct geometry *g, const struct parsed *p)
{
    int64_t t1 = g->t - g->t % p->a, h1 = g->h - g->h % p->b, w1 = g->w - g->w % p->c;
    for (int64_t t = 0; t < t1; t += p->a)
        for (int64_t y = 0; y < h1; y += p->b)
            for (int64_t x = 0; x < w1; x += p->c)
                out = emit_box(out, g, t, t + p->a, y, y + p->b, x, x + p->c);
    out = emit_box(out, g, t1, g->t, 0, g->h, 0, g->w);
    out = emit_box(out, g, 0, t1, h1, g->h, 0, g->w);
    emit_box(out, g, 0, t1, 0, h1, w1, g->w);
}

static void order_tile(int64_t *out, const struct geometry *g, const struct parsed *p)
{
    for (int64_t t = 0; t < g->t; t += p->a)
        for (int64_t y = 0; y < g->h; y += p->b)
            for (int64_t x = 0; x < g->w; x += p->c)
                out = emit_box(out, g, t, MIN(t + p->a, g->t), y, MIN(y + p->b, g->h), x,
                               MIN(x + p->c, g->w));
}

static void order_column(int64_t *out, const struct geometry *g)
{
    for (int64_t t = 0; t < g->t; t++)
        for (int64_t x = 0; x < g->w; x++)
            out = emit_box(out, g, t, t + 1, 0, g->h, x, x + 1);
}

static void order_time(int64_t *out, const struct geometry *g)
{
    for (int64_t y = 0; y < g->h; y++)
        for (int64_t x = 0; x < g->w; x++)
            out = emit_box(out, g, 0, g->t, y, y + 1, x, x + 1);
}

static void order_video(const struct parsed *p, const struct geometry *g, uint64_t seed,
                        int64_t *out)
{
    switch (p->order) {
    case ORDER_NONE:
    case ORDER_ROW:
        emit_box(out, g, 0, g->t, 0, g->h, 0, g->w);
        return;
    case ORDER_COLUMN:
        order_column(out, g);
        return;
    case ORDER_TIME:
        order_time(out, g);
        return;
    case ORDER_RANDOM:
        order_random(out, g->t * g->h * g->w, seed);
        return;
    case ORDER_HILBERT:
        order_hilbert(out, g->t, g->h, g->w);
        return;
    case ORDER_VOXEL:
        order_voxel(out, g, p);
        return;
    case ORDER_TILE:
        order_tile(out, g, p);
        return;
    }
}

int permute_make(const char *name, const struct geometry *g, int64_t n, uint64_t seed,
                 int64_t **perm, struct err *err)
{
    struct parsed p;
    int64_t video = 0, *out = NULL, front = 0;
    int rc = 0;
    TRY(parse(name, &p, err));
    if (p.order != ORDER_NONE) {
        if (g->t < 1 || g->h < 1 || g->w < 1)
            FAIL(err, ERR_USAGE, "token order '%s' needs a video trace; this one has no token grid",
                 name);
        if (!mul_ok(g->t, g->h, &video) || !mul_ok(video, g->w, &video) || g->text < 0 ||
            video > n || video + g->text != n)
            FAIL(err, ERR_INPUT,
                 "token order '%s': %lld x %lld x %lld video and %lld text tokens in a sequence "
                 "of %lld",
                 name, (long long)g->t, (long long)g->h, (long long)g->w, (long long)g->text,
                 (long long)n);
        front = g->text_place == 1 ? g->text : 0;
    }
    TRY(mem_alloc(&out, n, sizeof *out, "token order", err));
    for (int64_t i = 0; i < n; i++)
        out[i] = i;
    if (p.order != ORDER_NONE) {
        order_video(&p, g, seed, out + front);
        for (int64_t i = 0; i < video; i++)
            out[front + i] += front;
    }
    *perm = out;
    return 0;
out:
    free(out);
    return rc;
}

void permute_rows(const float *x, int64_t n, int64_t d, const int64_t *perm, float *out)
{
    for (int64_t r = 0; r < n; r++)
        memcpy(out + r * d, x + perm[r] * d, (size_t)d * sizeof *out);
}

void permute_rows_f64(const double *x, int64_t n, int64_t d, const int64_t *perm, double *out)
{
    for (int64_t r = 0; r < n; r++)
        memcpy(out + r * d, x + perm[r] * d, (size_t)d * sizeof *out);
}
