/*
 * test_oracle.c - selection by mass, by count and by covering against brute force; the oracle
 * method against hand cases, identities and the golden heads.
 */
#include "core/intmath.h"
#include "core/rng.h"
#include "core/sort.h"
#include "sim/methods/oracle/oracle.h"
#include "sim/blocks/prefix.h"
#include "tests/harness/methodrun.h"

#include <math.h>
#include <stdio.h>

/* ---- prefixes of a row ---------------------------------------------------------------------- */

static int64_t prefix_count(const double *p, int64_t n, double start, double target)
{
    struct prefix_work *w = NULL;
    struct prefix out;
    int64_t kept = 0;

    MUST(prefix_work_new(&w, ERR));
    MUST(prefix_select(w, p, p, n, start, target, &out, ERR));
    for (int64_t j = 0; j < n; j++)
        kept += prefix_has(&out, p[j], j);
    ck_assert_int_eq(kept, out.count);
    prefix_work_free(w);
    return kept;
}

TEST(prefix_of_a_row_by_hand)
{
    static const double p[] = {0.5, 0.25, 0.125, 0.125};
    ck_assert_int_eq(prefix_count(p, 4, 0, 0.5), 1);
    ck_assert_int_eq(prefix_count(p, 4, 0, 0.75), 2);
    ck_assert_int_eq(prefix_count(p, 4, 0, 0.76), 3);
    ck_assert_int_eq(prefix_count(p, 4, 0, 0.875), 3);
    ck_assert_int_eq(prefix_count(p, 4, 0, 0.9), 4);
    ck_assert_int_eq(prefix_count(p, 4, 0, 1), 4);
    ck_assert_int_eq(prefix_count(p, 4, 0.5, 0.75), 1);
    ck_assert_int_eq(prefix_count(p, 4, 0.5, 0.5), 0);
    ck_assert_int_eq(prefix_count(p, 4, 0, 2), 4);
}

TEST(prefix_prefers_the_lower_key_among_equals)
{
    static const double p[] = {0.125, 0.25, 0.25, 0.125, 0.25};
    struct prefix_work *w = NULL;
    struct prefix out;

    MUST(prefix_work_new(&w, ERR));
    MUST(prefix_select(w, p, p, 5, 0, 0.8, &out, ERR));
    ck_assert_int_eq(out.count, 4);
    ck_assert(prefix_has(&out, p[0], 0) && !prefix_has(&out, p[3], 3));
    MUST(prefix_topk(w, p, 5, 2, &out, ERR));
    ck_assert(prefix_has(&out, p[1], 1) && prefix_has(&out, p[2], 2) && !prefix_has(&out, p[4], 4));
    prefix_work_free(w);
}

struct pair {
    double value;
    int64_t index;
};

static int descending(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;
    if (x->value != y->value)
        return x->value > y->value ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

/* Values of many sizes with repetitions. */
static void fill(double *p, int64_t n, uint64_t seed)
{
    for (int64_t j = 0; j < n; j++) {
        double u = rng_uniform(seed, 1, (uint64_t)j);
        p[j] = rng_below(seed, 2, (uint64_t)j, 4) == 0 ? 0.001 : exp(-40 * u) / (double)n;
    }
}

TEST_N(prefix_equals_a_full_sort, 20)
{
    enum { N = 700 };
    struct prefix_work *w = NULL;
    double p[N];
    struct pair sorted[N];

    MUST(prefix_work_new(&w, ERR));
    fill(p, N, (uint64_t)_i);
    for (int64_t j = 0; j < N; j++)
        sorted[j] = (struct pair){p[j], j};
    qsort(sorted, N, sizeof *sorted, descending);
    double total = 0;
    for (int64_t j = 0; j < N; j++)
        total += sorted[j].value;
    for (int step = 1; step <= 50; step++) {
        struct prefix out;
        double sum = 0, target = total * step / 50;
        int64_t k = 0;
        while (k < N && sum < target)
            sum += sorted[k++].value;
        MUST(prefix_select(w, p, p, N, 0, target, &out, ERR));
        ck_assert_int_eq(out.count, k);
        for (int64_t e = 0; e < N; e++)
            ck_assert_int_eq(prefix_has(&out, sorted[e].value, sorted[e].index), e < k);
        MUST(prefix_topk(w, p, N, step * 14, &out, ERR));
        for (int64_t e = 0; e < N; e++)
            ck_assert_int_eq(prefix_has(&out, sorted[e].value, sorted[e].index), e < step * 14);
    }
    prefix_work_free(w);
}

TEST(topk_takes_any_sign_and_leaves_out_nan)
{
    static const double x[] = {-3, NAN, -1, 0, NAN, -1};
    struct prefix_work *w = NULL;
    struct prefix out;

    MUST(prefix_work_new(&w, ERR));
    MUST(prefix_topk(w, x, 6, 2, &out, ERR));
    ck_assert(prefix_has(&out, x[3], 3) && prefix_has(&out, x[2], 2));
    ck_assert(!prefix_has(&out, x[5], 5) && !prefix_has(&out, x[0], 0));
    ck_assert(!prefix_has(&out, x[1], 1));
    MUST(prefix_topk(w, x, 6, 100, &out, ERR));
    ck_assert_int_eq(out.count, 4);
    MUST(prefix_topk(w, x, 6, 0, &out, ERR));
    ck_assert(!prefix_has(&out, x[3], 3));
    prefix_work_free(w);
}

/* Long rows are narrowed down by a sample: also one that misleads, values that repeat, NAN. */
TEST_N(topk_of_long_rows, 4)
{
    enum { N = 20000 };
    static const int64_t counts[] = {1, 2, 700, 9999, 15000, N - 1, N, N + 7};
    static double x[N], sorted[N];
    struct prefix_work *w = NULL;
    int64_t n = 0;

    MUST(prefix_work_new(&w, ERR));
    for (int64_t j = 0; j < N; j++) {
        double u = rng_uniform(9, 1, (uint64_t)j);
        x[j] = _i == 0 ? u - 0.5 : _i == 1 ? floor(5 * u) : _i == 2 && u < 0.9 ? NAN : u;
    }
    for (int64_t i = 0; i < 512 && _i == 3; i++) /* whatever is looked at is smallest */
        x[i * N / 512] -= 1;
    for (int64_t j = 0; j < N; j++)
        if (!isnan(x[j]))
            sorted[n++] = -x[j];
    sort_f64(sorted, n);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        struct prefix out;
        int64_t has = 0, k = MIN(counts[c], n);
        MUST(prefix_topk(w, x, N, counts[c], &out, ERR));
        for (int64_t j = 0; j < N; j++)
            has += prefix_has(&out, x[j], j);
        ck_assert_int_eq(has, k);
        ck_assert_int_eq(out.count, k);
        ck_assert_double_eq(out.cut, -sorted[k - 1]);
    }
    prefix_work_free(w);
}

/* ---- prefixes of a head --------------------------------------------------------------------- */

struct matrix {
    const double *v;
    int64_t cols;
    double given;
};

static int matrix_row(void *ctx, int64_t r, struct head_row *row, struct err *err)
{
    struct matrix *m = ctx;
    *row = (struct head_row){m->v + r * m->cols, m->cols, m->given, 2};
    return 0;
}

struct cell {
    double value;
    int64_t row, col;
};

static int cell_order(const void *a, const void *b)
{
    const struct cell *x = a, *y = b;
    if (x->value != y->value)
        return x->value > y->value ? -1 : 1;
    if (x->col != y->col)
        return x->col < y->col ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

enum { R = 37, C = 41 };

/* The prefix of the matrix is the first `want` cells of the sorted list, with buffers that force
 * every path: collecting at once, refining, and cutting a bin of equal values. */
static void check_prefix(const double *v, const struct cell *sorted, int by, double target,
                         int64_t want)
{
    static const int64_t buffers[] = {1 << 20, 100, 5, 0};
    for (int b = 0; b < 4; b++) {
        struct matrix m = {v, C, 0.001};
        struct head_prefix out;
        MUST(head_prefix_select(matrix_row, &m, R, C, by, target, buffers[b], &out, ERR));
        if (by == HEAD_BY_SUM)
            ck_assert_int_eq(out.count, want);
        for (int64_t k = 0; k < R * C; k++)
            ck_assert_int_eq(head_prefix_has(&out, sorted[k].value, sorted[k].row, sorted[k].col),
                             k < want);
    }
}

/* By sum; by number, where two entries per row count in advance. */
TEST_N(head_prefix_equals_a_full_sort, 5)
{
    static double v[R * C];
    static struct cell sorted[R * C];
    double total = 0;

    fill(v, R * C, 100 + (uint64_t)_i);
    for (int64_t k = 0; k < R * C; k++)
        sorted[k] = (struct cell){v[k], k / C, k % C};
    qsort(sorted, R * C, sizeof *sorted, cell_order);
    for (int64_t k = 0; k < R * C; k++)
        total += sorted[k].value;
    for (int step = 1; step <= 20; step++) {
        double sum = 0.001 * R, target = sum + (total * 1.01) * step / 20;
        int64_t want = 0;
        while (want < R * C && sum < target)
            sum += sorted[want++].value;
        check_prefix(v, sorted, HEAD_BY_SUM, target, want);
    }
    for (int64_t want = 0; want <= R * C; want += 97)
        check_prefix(v, sorted, HEAD_BY_COUNT, (double)(want + 2 * R), want);
}

/* ---- the method ----------------------------------------------------------------------------- */

/* A bidirectional head with given probabilities: q_i = e_i, k_j = column j of ln P, scale 1. */
static void head_of_probabilities(const double *p, int64_t n, struct sim_head *h)
{
    float q[64] = {0}, k[64] = {0}, v[64] = {0};
    struct head_in in = one_head(q, k, v, n, n, (int)n, false);
    in.x.scale = 1;
    for (int64_t i = 0; i < n; i++) {
        q[i * n + i] = v[i * n + i] = 1;
        for (int64_t j = 0; j < n; j++)
            k[j * n + i] = (float)log(p[i * n + j]);
    }
    MUST(head_init(h, &in, PREC_F64, ERR));
}

TEST(rows_and_mean_by_hand)
{
    static const double p[] = {0.9, 0.1, 0.5, 0.5};
    OWN(sim_head_free) struct sim_head h;
    head_of_probabilities(p, 2, &h);
    ck_assert_double_eq(metric_of("oracle:alpha=0.7", &h.in, "pairs_kept"), 3);
    ck_assert_double_eq(metric_of("oracle:kind=mean:alpha=0.7", &h.in, "pairs_kept"), 2);
}

TEST(uniform_attention_keeps_a_share)
{
    OWN(sim_head_free) struct sim_head h;
    float zero[50 * 4] = {0}, v[50 * 4];
    for (int k = 0; k < 200; k++)
        v[k] = (float)k;
    struct head_in in = one_head(zero, zero, v, 50, 50, 4, false);
    MUST(head_init(&h, &in, PREC_F64, ERR));
    ck_assert_double_eq(metric_of("oracle:alpha=0.91", &h.in, "pairs_kept"), 46 * 50);
    RUN_HAS("oracle:kind=topk:k=7", &h.in, 1e-12, "cra_min cra_mean", 7.0 / 50, 7.0 / 50);
}

static const struct {
    int layer;
    double alpha;
    double topp, row_min, row_max, mean, s128, s16, b64;
} video[] = {
    {5, 0.9, 6972, 1, 77, 6186, 801, 2077, 32},
    {5, 0.95, 10354, 3, 111, 9410, 912, 2834, 36},
    {0, 0.9, 82673, 176, 253, 82386, 731, 5572, 36},
    {0, 0.95, 103384, 236, 299, 103029, 884, 6822, 36},
};

/* Kept units of a bidirectional mask of equal units. */
static double units(const char *text, const struct head_in *in, double of)
{
    return metric_of(text, in, "density_tile") * of;
}

TEST_N(golden_video_counts, 4)
{
    char text[96];
    double a = video[_i].alpha;

    HEAD(h, golden_video, 3, video[_i].layer, 0, PREC_F64);
    snprintf(text, sizeof text, "oracle:alpha=%g", a);
    RUN(r, text, &h.in);
    HAS(&r, 0, "pairs_kept row_units_min row_units_max", video[_i].topp, video[_i].row_min,
        video[_i].row_max);
    ck_assert_double_ge(record_get(&r, "cra_min"), a);
    ck_assert(isnan(record_get(&r, "density_exec")));
    snprintf(text, sizeof text, "oracle:kind=mean:alpha=%g", a);
    ck_assert_double_eq(metric_of(text, &h.in, "pairs_kept"), video[_i].mean);
    snprintf(text, sizeof text, "oracle:kind=block:unit=128x1:alpha=%g", a);
    ck_assert_double_eq_tol(units(text, &h.in, 1152), video[_i].s128, 1e-6);
    snprintf(text, sizeof text, "oracle:kind=block:unit=16x1:alpha=%g", a);
    ck_assert_double_eq_tol(units(text, &h.in, 9216), video[_i].s16, 1e-6);
    snprintf(text, sizeof text, "oracle:kind=block:unit=64x64:alpha=%g", a);
    ck_assert_double_eq_tol(units(text, &h.in, 36), video[_i].b64, 1e-6);
}

static const struct {
    int layer;
    const char *text;
    double min, mean, l1;
} errors[] = {
    {5, "oracle:alpha=0.95", 0.950011, 0.952628, 0.0343640},
    {5, "oracle:kind=topk:k=38", 0.764203, 0.971995, 0.0179274},
    {5, "oracle:kind=topk:k=20%", 0.902015, 0.995365, 0.00322473},
    {0, "oracle:kind=topk:k=38", 0.334388, 0.449546, 0.808276},
    {0, "oracle:kind=topk:k=77", 0.516822, 0.622561, 0.567320},
};

TEST_EACH(golden_video_errors, errors)
{
    HEAD(h, golden_video, 3, errors[_i].layer, 0, PREC_F64);
    RUN(r, errors[_i].text, &h.in);
    HAS(&r, DIGITS(6), "cra_min cra_mean err_l1_rel", errors[_i].min, errors[_i].mean,
        errors[_i].l1);
    if (_i == 0)
        HAS(&r, DIGITS(6), "err_l2_rel", 0.0344841);
    if (_i == 2)
        HAS(&r, 0, "row_units_max", 77);
}

static const struct {
    int layer, head;
    double entries, tri, sq;
} code[] = {
    {5, 0, 63500, 0.786076, 0.892899},
    {5, 7, 91681, 0.691138, 0.845369},
    {0, 0, 264203, 0.109933, 0.554389},
    {0, 7, 246222, 0.170509, 0.584716},
};

TEST_N(golden_code_sparsity_degree, 4)
{
    HEAD(h, golden_code_lm, code[_i].layer, code[_i].head, PREC_F64);
    RUN(r, "oracle", &h.in);
    ck_assert_double_eq(record_get(&r, "pairs_kept"), code[_i].entries);
    HAS(&r, DIGITS(6), "sd_tri sd_sq", code[_i].tri, code[_i].sq);
}

/* ---- identities ----------------------------------------------------------------------------- */

struct rows {
    const double *dense; /* [rows] */
    int64_t kept[200];   /* entries per row */
    double recall[200];
};

static int count_rows(void *ctx, const struct mask *m, const double *out, const double *lse,
                      struct err *err)
{
    struct rows *r = ctx;
    OWN(free_at) struct span *s = calloc((size_t)mask_max_spans(m), sizeof *s);
    for (int64_t i = m->row0; i < m->row1; i++) {
        int64_t n = mask_row_spans(m, i, s);
        r->kept[i] = 0;
        r->recall[i] = exp(lse[i - m->row0] - r->dense[i]);
        for (int64_t k = 0; k < n; k++)
            r->kept[i] += s[k].hi - s[k].lo;
    }
    return 0;
}

TEST_N(identities_between_kinds, 2)
{
    struct record r;
    bool causal = _i & 1;
    HEAD(h, random_head, 7, 97, causal ? 131 : 97, 16, causal, 1.6, PREC_F64);

    double topp = metric_of("oracle:alpha=0.9", &h.in, "pairs_kept");
    double mean = metric_of("oracle:kind=mean:alpha=0.9", &h.in, "pairs_kept");
    ck_assert_double_le(mean, topp);
    ck_assert_double_eq(metric_of("oracle:kind=block:alpha=0.9", &h.in, "pairs_kept"), topp);
    ck_assert_double_eq(metric_of("oracle:kind=block:scope=head:alpha=0.9", &h.in, "pairs_kept"),
                        mean);

    /* Coarser units that cover the same cells keep no fewer pairs. */
    static const char *const nested[] = {"1x1", "4x1", "16x1", "16x4", "16x16", "32x32"};
    double last[2] = {0};
    for (int k = 0; k < 6; k++) {
        static const char *const forms[] = {"oracle:kind=block:alpha=0.9:unit=%s",
                                            "oracle:kind=block:scope=head:alpha=0.9:unit=%s"};
        for (int f = 0; f < 2; f++) {
            char text[96];
            snprintf(text, sizeof text, forms[f], nested[k]);
            double density = metric_of(text, &h.in, "density_elem");
            ck_assert_double_ge(density, last[f] - 1e-12);
            last[f] = density;
        }
    }

    /* topk with the row's own count has the recall of topp. */
    struct rows rows = {.dense = head_lse(&h.in)}, same = {.dense = head_lse(&h.in)};
    run_text_carry("oracle:alpha=0.9", &h.in, NULL, 1, count_rows, &rows, &r);
    record_free(&r);
    for (int64_t i = 0; i < h.in.x.nq; i += 7) {
        char text[48];
        snprintf(text, sizeof text, "oracle:kind=topk:k=%lld", (long long)rows.kept[i]);
        run_text_carry(text, &h.in, NULL, 1, count_rows, &same, &r);
        record_free(&r);
        ck_assert_int_eq(same.kept[i], rows.kept[i]);
        ck_assert_double_eq_tol(same.recall[i], rows.recall[i], 1e-12);
        ck_assert_double_ge(rows.recall[i], 0.9 - 1e-12);
    }
}

/* Any 0/1 mask is at least as dense as topp at its own CRA; its LSE error is |ln recall|. */
TEST_N(topp_bounds_every_mask, 4)
{
    static const char *const masks[] = {"streaming:sink=4:window=24", "oracle:kind=topk:k=9",
                                        "oracle:kind=block:unit=1x16",
                                        "oracle:kind=value:alpha=0.8"};
    char text[64];

    HEAD(h, random_head, 11, 128, 128, 16, true, 1.4, PREC_F64);
    RUN(r, masks[_i], &h.in);
    double cra = record_get(&r, "cra_min");
    snprintf(text, sizeof text, "oracle:alpha=%.17g", cra * (1 - 1e-12));
    ck_assert_double_le(metric_of(text, &h.in, "density_elem"), record_get(&r, "density_elem"));
    ck_assert_double_eq_tol(record_get(&r, "err_lse_max"), -log(cra), 1e-9);
}

TEST(forced_entries_count_towards_the_target)
{
    struct record r;
    HEAD(h, random_head, 13, 64, 64, 16, true, 1.5, PREC_F64);
    static const char *const texts[] = {"oracle:forced=diag",
                                        "oracle:forced=sink-3",
                                        "oracle:forced=window-5",
                                        "oracle:kind=mean:forced=sink-3",
                                        "oracle:kind=block:unit=16x1:forced=diag",
                                        "oracle:kind=block:unit=8x8:scope=head:forced=diag",
                                        "oracle:kind=value:forced=window-2",
                                        "oracle:kind=topk:k=6:forced=window-5"};
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        struct rows rows = {.dense = head_lse(&h.in)};
        run_text_carry(texts[k], &h.in, NULL, 1, count_rows, &rows, &r);
        ck_assert_int_eq(r.status, RECORD_OK);
        ck_assert_double_eq(record_get(&r, "rows_empty"), 0);
        if (k < 4 || k == 5)
            ck_assert_double_ge(record_get(&r, "cra_mean"), 0.95 - 1e-9);
        if (k == 7)
            for (int64_t i = 0; i < 64; i++)
                ck_assert_int_eq(rows.kept[i], i < 6 ? i + 1 : 6);
        record_free(&r);
    }
    /* The same target with entries forced that topp would not take needs at least as many. */
    ck_assert_double_ge(metric_of("oracle:forced=sink-3", &h.in, "pairs_kept"),
                        metric_of("oracle", &h.in, "pairs_kept"));
}

TEST(ranking_by_value_lowers_the_error_on_a_golden_head)
{
    HEAD(h, golden_video, 3, 5, 0, PREC_F64);
    ck_assert_double_lt(metric_of("oracle:kind=value", &h.in, "err_l1_rel"),
                        metric_of("oracle", &h.in, "err_l1_rel"));
}

/* ---- columns and slashes -------------------------------------------------------------------- */

TEST(rows_that_rank)
{
    static const int64_t want[][6] = {/* rows, those that rank, chunks, chunk, first row, end */
                                      {1000, 128, 1, 0, 872, 1000}, {1000, 128, 2, 0, 436, 500},
                                      {1000, 129, 2, 1, 935, 1000}, {100, 100, 1, 0, 0, 100},
                                      {100, 100, 3, 0, 0, 33},      {100, 100, 3, 1, 33, 66}};
    for (int k = 0; k < 6; k++) {
        int64_t r0, r1;
        ranking_rows(want[k][0], want[k][1], want[k][2], want[k][3], &r0, &r1);
        ck_assert_int_eq(r0, want[k][4]);
        ck_assert_int_eq(r1, want[k][5]);
    }
}

enum { STRIPS_N = 770, STRIPS = 2 * STRIPS_N };

/* Is pair (i, j) on one of the strips? Column j is strip j, distance e strip STRIPS_N + e. */
static bool on_strip(const bool *kept, int i, int j)
{
    return j <= i && (kept[j] || kept[STRIPS_N + i - j]);
}

/* Strips of the explicit map p of n rows, the first `k` of all in order of mass. */
static void heaviest_strips(const double *p, int from, int strips, int k, bool *kept)
{
    static double mass[STRIPS];
    memset(mass, 0, sizeof mass);
    for (int i = from; i < STRIPS_N; i++)
        for (int j = 0; j <= i; j++) {
            mass[j] += p[i * STRIPS_N + j];
            mass[STRIPS_N + i - j] += p[i * STRIPS_N + j];
        }
    memset(kept, 0, STRIPS * sizeof *kept);
    for (int e; k > 0; k--) {
        int best = -1;
        for (e = 0; e < strips; e++)
            if (!kept[e] && (best < 0 || mass[e] > mass[best]))
                best = e;
        kept[best] = true;
    }
}

/* Against the explicit map of a head of the shipped model, ranked by all rows or the last 24. */
TEST_N(strips_are_the_heaviest_columns_and_slashes, 2)
{
    static const char *const text[] = {"oracle:kind=columns:k=10%", "oracle:kind=strips:k=10%"};
    static const int count[] = {77, 154};
    static double p[STRIPS_N * STRIPS_N];
    static uint8_t bits[STRIPS_N * STRIPS_N];
    OWN(sim_head_free) struct sim_head h;
    double recall[2];
    MUST(golden_code_lm(5, 0, PREC_F64, &h, ERR));
    for (int i = 0; i < STRIPS_N; i++)
        MUST(exact_probs(h.in.exact, i, i + 1, p + i * STRIPS_N, ERR));
    for (int sampled = 0; sampled < 2; sampled++) {
        OWN(record_free) struct record r;
        bool kept[STRIPS];
        char setting[64], note[64];
        int columns = 0, pairs = 0;
        double sum = 0;
        snprintf(setting, sizeof setting, "%s%s", text[_i], sampled ? ":rows=3%" : "");
        heaviest_strips(p, sampled ? STRIPS_N - 24 : 0, _i ? STRIPS : STRIPS_N, count[_i], kept);
        run_text_carry(setting, &h.in, NULL, 1, sink_bits, bits, &r);
        for (int i = 0; i < STRIPS_N; i++)
            for (int j = 0; j < STRIPS_N; j++) {
                ck_assert_int_eq(bits[i * STRIPS_N + j], on_strip(kept, i, j));
                sum += on_strip(kept, i, j) ? p[i * STRIPS_N + j] : 0;
                pairs += on_strip(kept, i, j);
            }
        for (int j = 0; j < STRIPS_N; j++)
            columns += kept[j];
        snprintf(note, sizeof note, "columns=%d;slashes=%d;rows=%d", columns, count[_i] - columns,
                 sampled ? 24 : STRIPS_N);
        ck_assert_ptr_nonnull(strstr(buf_str(&r.notes), note));
        ck_assert_double_eq_tol(record_get(&r, "cra_mean"), sum / STRIPS_N, 1e-12);
        ck_assert_double_eq_tol(record_get(&r, "density_elem"),
                                pairs / (STRIPS_N * (STRIPS_N + 1) / 2.0), 1e-12);
        recall[sampled] = sum / STRIPS_N;
    }
    ck_assert_double_gt(recall[0], recall[1]);
}

/* 3 columns, 5 slashes: the keys one behind the query have a mass of 1.6, column 0 has 1.1. */
TEST(slashes_lie_on_both_sides_of_a_bidirectional_head)
{
    static const double p[] = {0.1, 0.8, 0.1, 0.1, 0.1, 0.8, 0.9, 0.05, 0.05};
    OWN(sim_head_free) struct sim_head h;
    uint8_t bits[9] = {0};
    head_of_probabilities(p, 3, &h);
    ck_assert_double_eq(metric_of("oracle:kind=strips:k=1", &h.in, "pairs_kept"), 2);
    OWN(record_free) struct record r;
    run_text_carry("oracle:kind=strips:k=25%", &h.in, NULL, 1, sink_bits, bits, &r);
    ck_assert_mem_eq(bits, ((uint8_t[]){1, 1, 0, 1, 0, 1, 1, 0, 0}), 9);
    ck_assert_double_eq_tol(record_get(&r, "cra_min"), 0.9, 1e-6);
    ck_assert_ptr_nonnull(strstr(buf_str(&r.notes), "columns=1;slashes=1;rows=3"));
}
