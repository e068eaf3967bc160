/*
 * exact.c - see exact.h. Dense rows: O(rows nk (d + dv)), memory nq (dv + 1) doubles once asked
 * for.
 */
#include "sim/blocks/exact.h"

#include "core/clock.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "core/method.h"
#include "core/metricdef.h"
#include "core/simd.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXACT_LSE = 1, EXACT_OUT = 2 };

/* attn_rows takes a full mask in blocks of that many rows from its first row on: blocks that start
 * at multiples of it have the same bits whether they are computed one by one or all together. */
#define DENSE_BLOCK ATTN_ROWS

void exact_init(struct exact *e, const struct attn_in *x, enum precision prec)
{
    *e = (struct exact){.x = *x, .prec = prec, .block = DENSE_BLOCK};
}

void exact_sampled(struct exact *e, const struct row_sample *rows)
{
    e->rows = rows;
    e->block = gcd(DENSE_BLOCK, rows->group); /* no block has rows outside of the sample */
}

void exact_by_rows(struct exact *e)
{
    e->block = 1;
}

void exact_free(struct exact *e)
{
    if (!e->borrowed)
        attn_release(&e->ops);
    if (!e->row) {
        free(e->lse);
        free(e->out);
        free(e->done);
    }
    memset(e, 0, sizeof *e);
}

void exact_expect_out(struct exact *e)
{
    e->with_out = true;
}

void exact_dense_from(struct exact *e, exact_dense_fn *fn, void *self)
{
    e->dense = fn;
    e->dense_self = self;
}

void exact_below_from(struct exact *e, exact_below_fn *fn, void *self)
{
    e->below = fn;
    e->below_self = self;
}

void exact_masked_from(struct exact *e, exact_masked_fn *fn, void *self)
{
    e->masked = fn;
    e->masked_self = self;
}

int exact_operands(struct exact *e, const struct attn_ops **ops, struct err *err)
{
    double t = clock_ns();
    if (!e->prepared)
        PASS_ON(attn_prepare(&e->ops, &e->x, e->prec, err));
    e->prepared = true;
    e->ns += clock_ns() - t;
    *ops = &e->ops;
    return 0;
}

int exact_borrow(struct exact *e, struct exact *from, struct err *err)
{
    const struct attn_ops *ops;
    PASS_ON(exact_operands(from, &ops, err));
    e->ops = *ops;
    e->ops.in = e->x;
    e->prepared = e->borrowed = true;
    return 0;
}

/* ---- dense rows ----------------------------------------------------------------------------- */

static int rows_on_cpu(struct exact *e, int64_t row0, int64_t row1, bool out, struct err *err)
{
    const struct attn_ops *ops;
    struct mask full;
    PASS_ON(exact_operands(e, &ops, err));
    attn_full_mask(&e->x, row0, row1, &full);
    return attn_rows(ops, &full, out ? e->out + row0 * e->x.dv : NULL, e->lse + row0, err);
}

/* The blocks [b0, b1), of which none is there. */
static int blocks_run(struct exact *e, int64_t b0, int64_t b1, bool out, struct err *err)
{
    int64_t row0 = b0 * e->block, row1 = b1 * e->block < e->x.nq ? b1 * e->block : e->x.nq;
    PASS_ON(e->dense ? e->dense(e->dense_self, row0, row1, out ? e->out : NULL, e->lse, err)
                     : rows_on_cpu(e, row0, row1, out, err));
    memset(e->done + b0, out ? EXACT_LSE | EXACT_OUT : EXACT_LSE, (size_t)(b1 - b0));
    return 0;
}

static int make_room(struct exact *e, bool out, struct err *err)
{
    const struct attn_in *x = &e->x;
    if (!e->done)
        PASS_ON(mem_zalloc(&e->done, ceil_div(x->nq, e->block), 1, "dense rows", err));
    if (!e->lse)
        PASS_ON(mem_alloc(&e->lse, x->nq, sizeof *e->lse, "dense log-sum-exp", err));
    if (out && !e->out)
        return mem_alloc(&e->out, x->nq * x->dv, sizeof *e->out, "dense output", err);
    return 0;
}

/* Compute what the rows [row0, row1) lack, stretches of blocks at a time. */
static int ensure(struct exact *e, int64_t row0, int64_t row1, bool out, struct err *err)
{
    unsigned char want = out ? EXACT_OUT : EXACT_LSE;
    int64_t b = row0 / e->block, end = ceil_div(row1, e->block), b1;

    out |= e->with_out;
    PASS_ON(make_room(e, out, err));
    for (; b < end; b = b1) {
        b1 = b + 1;
        if (e->done[b] & want)
            continue;
        while (b1 < end && !(e->done[b1] & want))
            b1++;
        PASS_ON(blocks_run(e, b, b1, out, err));
    }
    return 0;
}

static int ensure_timed(struct exact *e, int64_t row0, int64_t row1, bool out, struct err *err)
{
    double before = e->ns, t = clock_ns();
    int rc = ensure(e, row0, row1, out, err);
    e->ns = before + clock_ns() - t; /* operands that it made are in that time */
    return rc;
}

bool exact_known(const struct exact *e)
{
    int64_t b = 0, n = ceil_div(e->x.nq, e->block);
    while (e->done && b < n && e->done[b] & EXACT_LSE)
        b++;
    return b == n;
}

int exact_lse(struct exact *e, int64_t row0, int64_t row1, const double **lse, struct err *err)
{
    PASS_ON(ensure_timed(e, row0, row1, false, err));
    *lse = e->lse + row0;
    return 0;
}

int exact_out(struct exact *e, int64_t row0, int64_t row1, const double **out, struct err *err)
{
    PASS_ON(ensure_timed(e, row0, row1, true, err));
    *out = e->out + row0 * e->x.dv;
    return 0;
}

/* ---- the rest of the map -------------------------------------------------------------------- */

int exact_probs(struct exact *e, int64_t row0, int64_t row1, double *p, struct err *err)
{
    const double *lse;
    PASS_ON(exact_lse(e, row0, row1, &lse, err));
    PASS_ON(exact_scores(e, row0, row1, 0, e->x.nk, p, err));
    attn_exp(&e->x, row0, row1, lse, p);
    return 0;
}

int exact_score(struct exact *const *e, int n, int64_t row0, int64_t row1, double *const *s,
                int64_t ld, struct err *err)
{
    const struct attn_ops *ops;
    OWN(free_at) struct scored_rows *h = NULL;
    PASS_ON(mem_alloc(&h, n, sizeof *h, "heads", err));
    for (int g = 0; g < n; g++) {
        PASS_ON(make_room(e[g], true, err));
        h[g] =
            (struct scored_rows){&e[g]->x, s[g], e[g]->out + row0 * e[g]->x.dv, e[g]->lse + row0};
    }
    PASS_ON(exact_operands(e[0], &ops, err));
    PASS_ON(attn_scored_rows(ops, h, n, row0, row1, ld, err));
    for (int g = 0; g < n; g++) {
        memset(e[g]->done + row0, EXACT_LSE | EXACT_OUT, (size_t)(row1 - row0));
        exact_hold(e[g], row0, row1, s[g], ld);
    }
    return 0;
}

int exact_view_row(struct exact *e, struct exact *of, int64_t i, struct err *err)
{
    e->row = true;
    e->lse = of->lse + i;
    e->out = of->out + i * e->x.dv;
    e->done = of->done + i;
    exact_hold(e, 0, 1, exact_held(of, i), e->x.nk);
    return exact_borrow(e, of, err);
}

void exact_hold(struct exact *e, int64_t row0, int64_t row1, const double *s, int64_t ld)
{
    e->held = (struct held_scores){row0, row1, ld, s};
}

const double *exact_held(const struct exact *e, int64_t row)
{
    const struct held_scores *h = &e->held;
    return h->s && row >= h->row0 && row < h->row1 ? h->s + (row - h->row0) * h->ld : NULL;
}

int exact_scores(struct exact *e, int64_t row0, int64_t row1, int64_t k0, int64_t k1, double *s,
                 struct err *err)
{
    const double *held = row1 == row0 + 1 ? exact_held(e, row0) : NULL;
    const struct attn_ops *ops;
    if (held) {
        int64_t n = MAX(0, MIN(k1, e->held.ld) - k0);
        memcpy(s, held + k0, (size_t)n * sizeof *s);
        for (int64_t j = k0 + n; j < k1; j++)
            s[j - k0] = -INFINITY;
        return 0;
    }
    PASS_ON(exact_operands(e, &ops, err));
    return attn_scores(ops, row0, row1, k0, k1, s, err);
}

int exact_attend(struct exact *e, const struct mask *m, double *out, double *lse, struct err *err)
{
    const struct attn_ops *ops;
    PASS_ON(exact_operands(e, &ops, err));
    return attn_rows(ops, m, out, lse, err);
}

int exact_attend_all(struct exact *e, const struct mask *m, double *out, double *lse,
                     struct err *err)
{
    int rc = e->masked ? e->masked(e->masked_self, m, out, lse, err) : METHOD_SKIP;
    return rc == METHOD_SKIP ? exact_attend(e, m, out, lse, err) : rc;
}

/* ---- rows ----------------------------------------------------------------------------------- */

int map_rows_init(struct map_rows *m, struct exact *e, enum map_what what, struct err *err)
{
    int64_t n;
    *m = (struct map_rows){.exact = e, .what = what};
    if (!mul_ok(MAP_ROWS, e->x.nk, &n))
        return err_set(err, ERR_NOMEM, "rows of %lld keys", (long long)e->x.nk);
    return mem_alloc(&m->buf, n, sizeof *m->buf, "rows of the attention map", err);
}

void map_rows_free(struct map_rows *m)
{
    free(m->buf);
    memset(m, 0, sizeof *m);
}

int map_rows_get(struct map_rows *m, int64_t i, const double **row, struct err *err)
{
    const struct attn_in *in = &m->exact->x;
    if (i < m->r0 || i >= m->r1) {
        bool held = exact_held(m->exact, i);
        int64_t r0 = held ? i : i / MAP_ROWS * MAP_ROWS,
                r1 = held ? i + 1 : MIN(r0 + MAP_ROWS, in->nq);
        PASS_ON(m->what == MAP_PROBS ? exact_probs(m->exact, r0, r1, m->buf, err)
                                     : exact_scores(m->exact, r0, r1, 0, in->nk, m->buf, err));
        m->r0 = r0;
        m->r1 = r1;
    }
    *row = m->buf + (i - m->r0) * in->nk;
    return 0;
}

/* ---- row groups ----------------------------------------------------------------------------- */

SIMD_CLONES
static void add_row(const double *p, int64_t n, double *max, double *sum)
{
    for (int64_t j = 0; j < n; j++) {
        max[j] = p[j] > max[j] ? p[j] : max[j];
        sum[j] += p[j];
    }
}

SIMD_CLONES
static void add_max(const double *p, int64_t n, double *max)
{
    for (int64_t j = 0; j < n; j++)
        max[j] = p[j] > max[j] ? p[j] : max[j];
}

/* Beyond this e^x is not computed by attn_probs; only a foreign normaliser gets there. */
#define EXP_MOST 600.0

/* A row under a normaliser that is not its own: scores may lie far above it. */
static void exp_row(const double *s, int64_t n, double lse, double *p)
{
    for (int64_t j = 0; j < n; j++)
        p[j] = exp(MIN(s[j] - lse, EXP_MOST));
}

struct group_run {
    struct map_rows rows;
    const double *lse;       /* foreign; NULL: the head's own, p <= 1 */
    double *max, *sum, *tmp; /* [nk] */
};

/* *row = what of row i the keys get: p beside a sink. */
static int scale_row(struct group_run *g, int64_t i, const double *p, int64_t n, const double **row,
                     struct err *err)
{
    const struct attn_in *in = &g->rows.exact->x;
    const double *lse;

    *row = p;
    if (!in->mods.has_sink)
        return 0;
    int rc = exact_lse(g->rows.exact, i, i + 1, &lse, err);
    double share = rc ? 0 : attn_key_share(in, lse[0]);
    for (int64_t j = 0; j < n; j++)
        g->tmp[j] = p[j] * share;
    *row = g->tmp;
    return rc;
}

static int one_group(struct group_run *g, int64_t row0, int64_t row1, struct err *err)
{
    const struct attn_in *in = &g->rows.exact->x;

    memset(g->max, 0, (size_t)in->nk * sizeof *g->max);
    memset(g->sum, 0, (size_t)in->nk * sizeof *g->sum);
    for (int64_t i = row0; i < row1; i++) {
        const double *row;
        int64_t first = attn_first(in, i), n = attn_limit(in, i) - first;
        PASS_ON(map_rows_get(&g->rows, i, &row, err));
        if (g->lse) {
            exp_row(row + first, n, g->lse[i], g->tmp);
            row = g->tmp;
        } else {
            PASS_ON(scale_row(g, i, row + first, n, &row, err));
        }
        add_row(row, n, g->max + first, g->sum + first);
    }
    return 0;
}

static int group_run_init(struct group_run *g, struct exact *e, const double *lse, struct err *err)
{
    *g = (struct group_run){.lse = lse};
    PASS_ON(map_rows_init(&g->rows, e, lse ? MAP_SCORES : MAP_PROBS, err));
    PASS_ON(mem_alloc(&g->max, e->x.nk, sizeof(double), "column maxima", err));
    PASS_ON(mem_alloc(&g->sum, e->x.nk, sizeof(double), "column sums", err));
    return mem_alloc(&g->tmp, e->x.nk, sizeof(double), "a row of probabilities", err);
}

int map_groups(struct exact *e, const double *lse, int64_t height, map_group_fn *fn, void *ctx,
               struct err *err)
{
    const struct attn_in *in = &e->x;
    struct group_run g;
    int rc = 0;

    TRY(group_run_init(&g, e, lse, err));
    for (int64_t k = 0; k * height < in->nq; k++) {
        if (e->rows && !row_sample_has(e->rows, k * height))
            continue;
        struct map_group out = {.index = k, .row0 = k * height, .max = g.max, .sum = g.sum};
        out.row1 = MIN(out.row0 + height, in->nq);
        out.limit = attn_limit(in, out.row1 - 1);
        TRY(one_group(&g, out.row0, out.row1, err));
        TRY(fn(ctx, &out, err));
    }
out:
    map_rows_free(&g.rows);
    free(g.max);
    free(g.sum);
    free(g.tmp);
    return rc;
}

/* ---- blocks and slices below c/N ------------------------------------------------------------ */

#define STRIP 16
#define LEVELS 4 /* heights 16, 32, 64, 128 */

static const struct {
    const char *name;
    int level, width; /* height STRIP << level */
} units[BELOW_UNITS] = {
    {"b16", 0, 16}, {"b32", 1, 32}, {"b64", 2, 64}, {"b128", 3, 128},
    {"s16", 0, 1},  {"s64", 2, 1},  {"s128", 3, 1},
};

const char *map_below_name(int u)
{
    return units[u].name;
}

struct below_run {
    struct map_below *b;
    const struct attn_in *in;
    double *max[LEVELS]; /* [nk] column maxima of the level's current group */
};

/* Index of the first threshold above x = p N (n_c when there is none). */
static int interval(const struct map_below *b, double x)
{
    int lo = 0, hi = b->n_c;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (x < b->c[mid])
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* Count the units u of the group of rows [r0, r1). */
static void below_group(struct below_run *g, int u, int64_t r0, int64_t r1)
{
    const struct attn_in *in = g->in;
    struct map_below *b = g->b;
    const double *max = g->max[units[u].level];
    struct head_shape shape = attn_shape(in);
    int64_t width = units[u].width, limit = attn_limit(in, r1 - 1);

    for (int64_t k0 = attn_first(in, r0) / width * width; k0 < limit; k0 += width) {
        int64_t k1 = MIN(k0 + width, in->nk), pairs = pairs_within(&shape, r0, r1, k0, k1);
        double top = 0;
        for (int64_t j = k0; j < MIN(k1, limit); j++)
            top = MAX(top, max[j]);
        int at = interval(b, top * (double)in->nk);
        b->units[u]++;
        b->pairs[u] += pairs;
        b->p_max = MAX(b->p_max, top);
        if (at < b->n_c) {
            b->below[u][at]++;
            b->below_pairs[u][at] += pairs;
        }
    }
}

static int below_strip(void *ctx, const struct map_group *s, struct err *err)
{
    struct below_run *g = ctx;
    for (int l = 0; l < LEVELS; l++) {
        int64_t height = (int64_t)STRIP << l, r0 = s->row0 / height * height;
        if (s->row0 == r0)
            memset(g->max[l], 0, (size_t)g->in->nk * sizeof(double));
        add_max(s->max, s->limit, g->max[l]);
        if (s->row1 % height != 0 && s->row1 != g->in->nq)
            continue;
        for (int u = 0; u < BELOW_UNITS; u++)
            if (units[u].level == l)
                below_group(g, u, r0, s->row1);
    }
    return 0;
}

/* Units with an allowed pair: of every group of rows those from its first row's first key up to its
 * last row's last. */
static int64_t count_units(const struct attn_in *in, int u)
{
    int64_t height = (int64_t)STRIP << units[u].level, width = units[u].width, n = 0;
    for (int64_t r0 = 0; r0 < in->nq; r0 += height)
        n += ceil_div(attn_limit(in, MIN(r0 + height, in->nq) - 1), width) -
             attn_first(in, r0) / width;
    return n;
}

void map_below_totals(const struct attn_in *in, struct map_below *b)
{
    for (int u = 0; u < BELOW_UNITS; u++) {
        b->units[u] = count_units(in, u);
        b->pairs[u] = attn_pairs(in);
    }
}

static int below_on_cpu(struct exact *e, struct map_below *b, struct err *err)
{
    struct below_run g = {.b = b, .in = &e->x};
    int rc = 0;

    memset(b->units, 0, sizeof b->units);
    memset(b->pairs, 0, sizeof b->pairs);
    memset(b->below, 0, sizeof b->below);
    memset(b->below_pairs, 0, sizeof b->below_pairs);
    b->p_max = 0;
    for (int l = 0; l < LEVELS; l++)
        TRY(mem_alloc(&g.max[l], e->x.nk, sizeof(double), "column maxima", err));
    TRY(map_groups(e, NULL, STRIP, below_strip, &g, err));
    /* A unit below one threshold is below all larger ones. */
    for (int u = 0; u < BELOW_UNITS; u++)
        for (int k = 1; k < b->n_c; k++) {
            b->below[u][k] += b->below[u][k - 1];
            b->below_pairs[u][k] += b->below_pairs[u][k - 1];
        }
out:
    for (int l = 0; l < LEVELS; l++)
        free(g.max[l]);
    return rc;
}

int map_below_run(struct exact *e, struct map_below *b, struct err *err)
{
    b->summed = b->timed = false;
    return e->below ? e->below(e->below_self, b, err) : below_on_cpu(e, b, err);
}

static double share_of(int64_t part, int64_t whole)
{
    return whole ? (double)part / (double)whole : 0;
}

int map_below_report(const struct map_below *b, bool sample, struct record *r, struct err *err)
{
    for (int u = 0; u < BELOW_UNITS; u++) {
        for (int k = 0; k < b->n_c; k++) {
            char name[48], at[24] = "";
            snprintf(name, sizeof name, "below_%s", units[u].name);
            if (b->c[k] != metric_level(name))
                snprintf(at, sizeof at, "@%g", b->c[k]);
            snprintf(name, sizeof name, "below_%s%s", units[u].name, at);
            PASS_ON(record_metric(r, name, share_of(b->below[u][k], b->units[u]), err));
            snprintf(name, sizeof name, "below_%s_area%s", units[u].name, at);
            PASS_ON(record_metric(r, name, share_of(b->below_pairs[u][k], b->pairs[u]), err));
        }
    }
    if (!isnan(b->p_max))
        return record_metric(r, sample ? "p_max~" : "p_max", b->p_max, err);
    return 0;
}

/* ---- similarity of neighbouring rows -------------------------------------------------------- */

/* s(X) of n rows in sum [d] scratch; false when a row is zero. */
static bool block_similarity(const float *x, int64_t n, int d, const double *mean, double *sum,
                             double *out)
{
    memset(sum, 0, (size_t)d * sizeof *sum);
    for (int64_t a = 0; a < n; a++) {
        double sq = 0;
        for (int c = 0; c < d; c++) {
            double v = x[a * d + c] - mean[c];
            sq += v * v;
        }
        if (!(sq > 0))
            return false;
        double inv = 1 / sqrt(sq);
        for (int c = 0; c < d; c++)
            sum[c] += (x[a * d + c] - mean[c]) * inv;
    }
    double s = 0;
    for (int c = 0; c < d; c++)
        s += sum[c] / (double)n * (sum[c] / (double)n);
    *out = s;
    return true;
}

int map_similarity(const float *x, int64_t n, int d, int64_t block, bool centre, double *mean,
                   int64_t *left_out, struct err *err)
{
    OWN(free_at) double *tmp = NULL;
    double total = 0, s;
    int64_t used = 0;

    *left_out = 0;
    PASS_ON(mem_zalloc(&tmp, 2 * (int64_t)d, sizeof *tmp, "row means", err));
    for (int64_t a = 0; centre && a < n; a++)
        for (int c = 0; c < d; c++)
            tmp[c] += x[a * d + c];
    for (int c = 0; centre && c < d; c++) /* of equal rows this is the row, so that none is left */
        tmp[c] /= (double)n;
    for (int64_t at = 0; at < n; at += block) {
        if (at + block > n || !block_similarity(x + at * d, block, d, tmp, tmp + d, &s)) {
            ++*left_out;
            continue;
        }
        total += s;
        used++;
    }
    *mean = used ? total / (double)used : NAN;
    return 0;
}

/* ---- mass per key --------------------------------------------------------------------------- */

int column_mass(const struct head_in *in, int64_t row0, int64_t row1, double *mass, struct err *err)
{
    const struct attn_ops *ops;
    PASS_ON(exact_operands(in->exact, &ops, err));
    return attn_column_sums(ops, row0, row1, false, mass, err);
}

/* ---- keys of unit length -------------------------------------------------------------------- */

int unit_keys_make(struct unit_keys *u, const struct head_in *in, struct err *err)
{
    struct attn_in x = in->x;
    int d = x.d;
    PASS_ON(mem_alloc(&u->k, x.nk * d, sizeof *u->k, "keys of unit length", err));
    for (int64_t j = 0; j < x.nk; j++) {
        const float *k = x.k + j * d;
        double norm = 0;
        for (int c = 0; c < d; c++)
            norm += (double)k[c] * k[c];
        for (int c = 0; c < d; c++)
            u->k[j * d + c] = norm > 0 ? (float)(k[c] / sqrt(norm)) : 0;
    }
    x.k = u->k;
    return attn_prepare(&u->ops, &x, in->exact->prec, err);
}

void unit_keys_free(struct unit_keys *u)
{
    free(u->k);
    attn_release(&u->ops);
    memset(u, 0, sizeof *u);
}
