/*
 * Token orders: sequences by hand, checksums of large boxes, what a permutation must be, and its
 * effect on real attention.
 */
#include "core/permute.h"
#include "sim/blocks/blockpool.h"
#include "sim/headload.h"
#include "tests/harness/golden.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdlib.h>

static int64_t *make(const char *name, int64_t t, int64_t h, int64_t w)
{
    struct geometry g = {t, h, w, 0, 0};
    int64_t *perm = NULL;
    MUST(permute_make(name, &g, t * h * w, 7, &perm, ERR));
    return perm;
}

/* sum over r of (r + 1) perm[r] mod 2^32: one number that tells two orders apart. */
static uint32_t checksum(const int64_t *perm, int64_t n)
{
    uint32_t c = 0;
    for (int64_t r = 0; r < n; r++)
        c += (uint32_t)(r + 1) * (uint32_t)perm[r];
    return c;
}

TEST(hilbert_by_hand)
{
    static const struct {
        int w, h, t;
        int lin[36];
    } c[] = {
        {2, 2, 1, {0, 2, 3, 1}},
        {4, 4, 1, {0, 1, 5, 4, 8, 12, 13, 9, 10, 14, 15, 11, 7, 6, 2, 3}},
        {2, 2, 2, {0, 2, 6, 4, 5, 7, 3, 1}},
        {5, 3, 1, {0, 5, 10, 11, 6, 1, 2, 3, 8, 7, 12, 13, 14, 9, 4}},
        {4, 2, 2, {0, 4, 12, 8, 9, 13, 5, 1, 2, 6, 14, 10, 11, 15, 7, 3}},
        {3, 3, 3, {0,  9,  10, 1,  4,  13, 12, 3,  6, 15, 7,  16, 25, 24,
                   21, 22, 18, 19, 20, 23, 26, 17, 8, 5,  14, 11, 2}},
        {6, 6, 1, {0,  6,  7,  1,  2,  3,  9,  8,  14, 15, 21, 20, 19, 13, 12, 18, 24, 30,
                   31, 25, 26, 32, 33, 27, 28, 34, 35, 29, 23, 22, 16, 17, 11, 10, 4,  5}},
        {7, 1, 1, {0, 1, 2, 3, 4, 5, 6}},
        {1, 7, 1, {0, 1, 2, 3, 4, 5, 6}},
        {1, 1, 7, {0, 1, 2, 3, 4, 5, 6}},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        OWN(free_at) int64_t *perm = make("hilbert", c[i].t, c[i].h, c[i].w);
        for (int r = 0; r < c[i].w * c[i].h * c[i].t; r++)
            ck_assert_int_eq(perm[r], c[i].lin[r]);
    }
}

/* Steps between consecutive cells that are not to a neighbour. */
static int64_t long_steps(const int64_t *perm, int64_t n, int64_t h, int64_t w, int64_t *longest)
{
    int64_t count = 0;
    *longest = 0;
    for (int64_t r = 1; r < n; r++) {
        int64_t a = perm[r - 1], b = perm[r];
        int64_t dist =
            llabs(a / (h * w) - b / (h * w)) + llabs(a / w % h - b / w % h) + llabs(a % w - b % w);
        count += dist != 1;
        *longest = dist > *longest ? dist : *longest;
    }
    return count;
}

TEST(hilbert_of_large_boxes)
{
    static const struct {
        int64_t w, h, t;
        uint32_t sum;
        int64_t steps;
    } c[] = {
        {2, 2, 1, 17, 0},
        {6, 6, 1, 13261, 0},
        {12, 8, 4, 14420624, 0},
        {8, 8, 8, 33687456, 0},
        {24, 16, 16, 2219232096u, 0},
        {48, 32, 16, 2012203712, 0},
        {45, 30, 13, 4239334200u, 151},
        {53, 30, 14, 1921234955, 27},
        {53, 30, 28, 2771003734u, 53},
        {52, 30, 21, 2781712282u, 76},
        {80, 45, 21, 693992980, 360},
        {80, 45, 33, 1361464904, 528},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        int64_t n = c[i].w * c[i].h * c[i].t, longest;
        OWN(free_at) int64_t *perm = make("hilbert", c[i].t, c[i].h, c[i].w);
        ck_assert_uint_eq(checksum(perm, n), c[i].sum);
        ck_assert_int_eq(long_steps(perm, n, c[i].h, c[i].w, &longest), c[i].steps);
        ck_assert_int_le(longest, 2);
    }
}

TEST(linear_orders)
{
    static const struct {
        const char *name;
        uint32_t small, wan;
    } c[] = {
        {"row", 18874240, 2865397592u},
        {"column", 18640160, 865637358},
        {"time", 15381280, 1807230096},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        OWN(free_at) int64_t *a = make(c[i].name, 4, 8, 12), *b = make(c[i].name, 21, 30, 52);
        ck_assert_uint_eq(checksum(a, 4 * 8 * 12), c[i].small);
        ck_assert_uint_eq(checksum(b, 21 * 30 * 52), c[i].wan);
    }
    static const int time[] = {0, 96, 192, 288, 1, 97};
    static const int column[] = {0, 12, 24, 36, 48, 60, 72, 84, 1};
    int64_t *t = make("time", 4, 8, 12), *k = make("column", 4, 8, 12);
    for (int r = 0; r < 6; r++)
        ck_assert_int_eq(t[r], time[r]);
    for (int r = 0; r < 9; r++)
        ck_assert_int_eq(k[r], column[r]);
    free(t);
    free(k);

    /* Order of the temporal heads of Sparse VideoGen: place p, then frame. */
    static const int svg[] = {0, 2, 4, 1, 3, 5};
    t = make("time", 3, 1, 2);
    for (int r = 0; r < 6; r++)
        ck_assert_int_eq(t[r], svg[r]);
    free(t);
}

TEST(voxels)
{
    static const struct {
        int64_t t, h, w;
        uint32_t sum;
    } c[] = {
        {4, 6, 8, 2359232},        {4, 8, 12, 16200832},      {5, 7, 9, 9463980},
        {8, 12, 16, 1165483520},   {16, 32, 48, 2893316096u}, {21, 30, 52, 1440256344},
        {21, 45, 80, 3570251152u}, {33, 45, 80, 2115130704},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        OWN(free_at) int64_t *perm = make("voxel:4x6x8", c[i].t, c[i].h, c[i].w);
        ck_assert_uint_eq(checksum(perm, c[i].t * c[i].h * c[i].w), c[i].sum);
    }
    static const int first[] = {0, 1, 2, 3, 4, 5, 6, 7, 9, 10}, last[] = {224, 233, 242};
    int64_t *perm = make("voxel:4x6x8", 5, 7, 9);
    for (int r = 0; r < 10; r++)
        ck_assert_int_eq(perm[r], first[r]);
    for (int r = 0; r < 3; r++)
        ck_assert_int_eq(perm[315 - 3 + r], last[r]);
    free(perm);
    perm = make("voxel:4x6x8", 4, 6, 8);
    for (int r = 0; r < 192; r++)
        ck_assert_int_eq(perm[r], r);
    free(perm);
}

TEST(every_order_is_a_permutation)
{
    static const char *const names[] = {"none",       "row",       "column",      "time",
                                        "random",     "hilbert",   "voxel:1x2x3", "voxel:9x9x9",
                                        "tile:2x3x4", "tile:9x9x9"};
    static const int boxes[][3] = {{1, 1, 1}, {1, 5, 7}, {5, 1, 3}, {4, 6, 9}, {3, 7, 11}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t b = 0; b < 5; b++) {
            int64_t n = (int64_t)boxes[b][0] * boxes[b][1] * boxes[b][2];
            OWN(free_at) int64_t *perm = make(names[i], boxes[b][0], boxes[b][1], boxes[b][2]);
            OWN(free_at) bool *seen = calloc((size_t)n, sizeof *seen);
            for (int64_t r = 0; r < n; r++) {
                ck_assert(perm[r] >= 0 && perm[r] < n && !seen[perm[r]]);
                seen[perm[r]] = true;
            }
        }
}

TEST(random_order_follows_the_seed)
{
    struct geometry g = {4, 8, 12, 0, 0};
    OWN(free_at) int64_t *a, *b, *c;
    MUST(permute_make("random", &g, 384, 1, &a, ERR));
    MUST(permute_make("random", &g, 384, 1, &b, ERR));
    MUST(permute_make("random", &g, 384, 2, &c, ERR));
    int same = 0, fixed = 0;
    for (int r = 0; r < 384; r++) {
        ck_assert_int_eq(a[r], b[r]);
        same += a[r] == c[r];
        fixed += a[r] == r;
    }
    ck_assert_int_lt(same, 20);
    ck_assert_int_lt(fixed, 20);
}

TEST(text_tokens_stay)
{
    static const int front[] = {0, 1, 2, 6, 3, 7, 4, 8, 5, 9};
    static const int back[] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 9};
    struct geometry g = {2, 1, 4, 2, 1};
    int64_t *perm;
    MUST(permute_make("time", &g, 10, 0, &perm, ERR));
    for (int r = 0; r < 10; r++)
        ck_assert_int_eq(perm[r], front[r]);
    free(perm);
    g.text_place = 2;
    MUST(permute_make("time", &g, 10, 0, &perm, ERR));
    for (int r = 0; r < 10; r++)
        ck_assert_int_eq(perm[r], back[r]);
    free(perm);
}

TEST(bad_orders_are_refused)
{
    struct geometry g = {2, 2, 2, 0, 0}, text = {0};
    OWN(free_at) int64_t *perm = NULL;
    FAILS(permute_check("diagonal", ERR), ERR_USAGE, "diagonal");
    FAILS(permute_check("voxel:4x6", ERR), ERR_USAGE, "voxel:AxBxC");
    FAILS(permute_check("voxel:4x0x8", ERR), ERR_USAGE, "voxel");
    FAILS(permute_check("voxel:4x6x8x", ERR), ERR_USAGE, "voxel");
    FAILS(permute_make("time", &text, 8, 0, &perm, ERR), ERR_USAGE, "video");
    FAILS(permute_make("time", &g, 9, 0, &perm, ERR), ERR_INPUT, "sequence of 9");
    ck_assert_ptr_null(perm);
    MUST(permute_make("none", &text, 3, 0, &perm, ERR));
    for (int r = 0; r < 3; r++)
        ck_assert_int_eq(perm[r], r);
}

TEST(dense_attention_does_not_depend_on_the_order)
{
    struct mask full;
    HEAD(a, golden_video, 3, 5, 0, PREC_F64);
    HEAD(b, sim_head_reorder, &a.in, "hilbert", 0);
    int64_t n = a.in.x.nq, dv = a.in.x.dv;
    OWN(free_at)
    double *out = malloc((size_t)(n * dv) * sizeof *out), *lse = malloc((size_t)n * sizeof *lse);
    OWN(free_at) int64_t *perm = make("hilbert", 4, 8, 12);
    mask_full(&full, n, n, 0, n, false);
    MUST(exact_attend(b.in.exact, &full, out, lse, ERR));
    for (int64_t r = 0; r < n; r++) {
        ck_assert_double_eq(head_lse(&b.in)[r], head_lse(&a.in)[perm[r]]);
        ck_assert_double_eq_tol(lse[r], head_lse(&b.in)[r], 1e-10);
        for (int64_t c = 0; c < dv; c++) {
            ck_assert_double_eq(head_out(&b.in)[r * dv + c], head_out(&a.in)[perm[r] * dv + c]);
            ck_assert_double_eq_tol(out[r * dv + c], head_out(&b.in)[r * dv + c], 1e-10);
            ck_assert_float_eq(b.q[r * dv + c], a.q[perm[r] * dv + c]);
        }
    }
}

static double mean_similarity(const float *x, int64_t n, int d, int64_t block)
{
    double s = 0;
    for (int64_t b = 0; b < n / block; b++)
        s += block_cosine(x + b * block * d, block, d, NULL);
    return s / (double)(n / block);
}

/* Groups of `rows` queries x `keys` keys in which some p exceeds 0.5/N. */
static int64_t units_above(const double *p, int64_t n, int64_t rows, int64_t keys)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += rows)
        for (int64_t j = 0; j < n; j += keys) {
            double top = 0;
            for (int64_t r = i; r < i + rows && r < n; r++)
                for (int64_t k = j; k < j + keys && k < n; k++)
                    top = fmax(top, p[r * n + k]);
            count += top > 0.5 / (double)n;
        }
    return count;
}

TEST(order_shapes_real_attention)
{
    static const struct {
        const char *order;
        int layer;
        double sim_q, sim_k;
        int64_t slices16, slices128, below16; /* below16 < 0: not stated */
    } c[] = {
        {"row", 5, 0.116630, 0.050101, 5200, 1150, 8},
        {"column", 5, 0.112602, 0.027711, 5428, 1149, 2},
        {"time", 5, 0.214283, 0.211767, 3940, 1070, 94},
        {"hilbert", 5, 0.176463, 0.203607, 3968, 1087, 100},
        {"row", 0, 0.562615, 0.040702, 7232, 1081, -1},
        {"time", 0, 0.638874, 0.132294, 6653, 1040, -1},
        {"hilbert", 0, 0.634844, 0.158842, 6562, 1035, -1},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        float mean[128];
        HEAD(a, golden_video, 3, c[i].layer, 0, PREC_F64);
        HEAD(b, sim_head_reorder, &a.in, c[i].order, 0);
        int64_t n = 384;
        OWN(free_at) double *p = malloc((size_t)(n * n) * sizeof *p);
        MUST(exact_probs(b.in.exact, 0, n, p, ERR));
        ck_assert_int_eq(units_above(p, n, 16, 1), c[i].slices16);
        ck_assert_int_eq(units_above(p, n, 128, 1), c[i].slices128);
        if (c[i].below16 >= 0)
            ck_assert_int_eq(576 - units_above(p, n, 16, 16), c[i].below16);
        ck_assert_double_eq_tol(mean_similarity(b.q, n, 128, 128), c[i].sim_q, 2e-6);
        token_mean(b.k, n, 128, DT_F32, mean);
        token_centre(b.k, n, 128, mean, DT_F32, b.k);
        ck_assert_double_eq_tol(mean_similarity(b.k, n, 128, 64), c[i].sim_k, 2e-6);
    }
}
