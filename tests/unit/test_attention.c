/* Exact attention against a plain triple loop in double, over shapes, masks and precisions. */
#include "core/attention.h"
#include "core/mem.h"
#include "core/rng.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct data {
    struct attn_in in;
    float *q, *k, *v;
};

static void make_data(struct data *x, int64_t nq, int64_t nk, int d, int dv, bool causal,
                      double sigma)
{
    MUST(mem_alloc(&x->q, nq * d, sizeof(float), "q", ERR));
    MUST(mem_alloc(&x->k, nk * d, sizeof(float), "k", ERR));
    MUST(mem_alloc(&x->v, nk * dv, sizeof(float), "v", ERR));
    for (int64_t i = 0; i < nq * d; i++)
        x->q[i] = (float)(sigma * rng_normal(1, 0, (uint64_t)i));
    for (int64_t i = 0; i < nk * d; i++)
        x->k[i] = (float)(sigma * rng_normal(1, 1, (uint64_t)i));
    for (int64_t i = 0; i < nk * dv; i++)
        x->v[i] = (float)rng_normal(1, 2, (uint64_t)i);
    x->in = (struct attn_in){.nq = nq,
                             .nk = nk,
                             .d = d,
                             .dv = dv,
                             .q = x->q,
                             .k = x->k,
                             .v = x->v,
                             .scale = 1 / sqrt(d),
                             .causal = causal};
}

static void free_data(struct data *x)
{
    free(x->q);
    free(x->k);
    free(x->v);
}

static double score(const struct attn_in *in, int64_t i, int64_t j)
{
    double s = 0;
    for (int c = 0; c < in->d; c++)
        s += (double)in->q[i * in->d + c] * in->k[j * in->d + c];
    s *= in->scale;
    int64_t distance = j - (i + in->nk - in->nq);
    if (in->mods.softcap > 0)
        s = in->mods.softcap * tanh(s / in->mods.softcap);
    if (in->mods.rel)
        s += in->mods.rel[distance];
    s += pair_bias_at(&in->mods.pair, i + in->nk - in->nq, j);
    return s - in->mods.alibi * (double)(distance < 0 ? -distance : distance);
}

/* Row i over its spans by definition. */
static void brute_row(const struct attn_in *in, const struct mask *m, int64_t i, double *o,
                      double *lse)
{
    OWN(free_at) struct span *s = malloc((size_t)mask_max_spans(m) * sizeof *s);
    int64_t n = mask_row_spans(m, i, s);
    double top = -INFINITY, sum = 0;
    memset(o, 0, (size_t)in->dv * sizeof *o);
    for (int64_t k = 0; k < n; k++)
        for (int64_t j = s[k].lo; j < s[k].hi; j++)
            top = fmax(top, score(in, i, j));
    for (int64_t k = 0; k < n; k++)
        for (int64_t j = s[k].lo; j < s[k].hi; j++) {
            double e = exp(score(in, i, j) - top);
            sum += e;
            for (int c = 0; c < in->dv; c++)
                o[c] += e * in->v[j * in->dv + c];
        }
    *lse = n ? top + log(sum) : -INFINITY;
    if (in->mods.has_sink)
        sum += exp(in->mods.sink - top);
    for (int c = 0; n && c < in->dv; c++)
        o[c] /= sum;
}

static void check(const struct data *x, const struct mask *m, enum precision prec, double tol)
{
    OWN(attn_release) struct attn_ops ops;
    int64_t rows = m->row1 - m->row0;
    OWN(free_at) double *out = malloc((size_t)(rows * x->in.dv) * sizeof *out);
    double *lse = malloc((size_t)rows * sizeof *lse), want, o[160];
    MUST(attn_prepare(&ops, &x->in, prec, ERR));
    MUST(attn_rows(&ops, m, out, lse, ERR));
    int64_t step = rows > 200 ? 17 : 1;
    for (int64_t r = 0; r < rows; r += step) {
        brute_row(&x->in, m, m->row0 + r, o, &want);
        if (want == -INFINITY)
            ck_assert(lse[r] == -INFINITY);
        else
            ck_assert_msg(fabs(lse[r] - want) <= tol * (1 + fabs(want)), "lse row %d: %.17g %.17g",
                          (int)r, lse[r], want);
        for (int c = 0; c < x->in.dv; c++)
            ck_assert_msg(fabs(out[r * x->in.dv + c] - o[c]) <= tol * 4, "row %d channel %d",
                          (int)r, c);
    }
    free(lse);
}

static const double tolerance[] = {[PREC_F64] = 1e-12, [PREC_F32] = 5e-5};

/* Cap, biases, sink and reach, over a full mask, a band and lists. */
TEST_N(scores_are_modified_by_definition, 36)
{
    static float table[2 * 130 - 1], pairs[100 * 130];
    const struct {
        struct score_mods mods;
        struct reach reach;
    } cases[] = {
        {.mods = {.softcap = 2}},
        {.mods = {.has_sink = true, .sink = 1.5}},
        {.mods = {.alibi = 0.25}},
        {.mods = {.rel = table + 129}},
        {.mods = {.pair = {pairs, 130, 30}}},
        {.reach = {.back = 20}},
        {.reach = {.chunk = 48}},
        {.reach = {.prefix = 70}},
        {.mods = {.softcap = 3, .has_sink = true, .sink = -1, .rel = table + 129},
         .reach = {.back = 33, .ahead = 9}},
    };
    struct data x;
    struct mask m;
    enum precision prec = _i % 2 ? PREC_F32 : PREC_F64;
    bool causal = _i / 2 % 2;
    for (int i = 0; i < 2 * 130 - 1; i++)
        table[i] = (float)rng_normal(5, 0, (uint64_t)i);
    for (int i = 0; i < 100 * 130; i++)
        pairs[i] = (float)rng_normal(6, 0, (uint64_t)i);
    make_data(&x, 100, 130, 32, 16, causal, 1.5);
    x.in.mods = cases[_i / 4].mods;
    x.in.reach = cases[_i / 4].reach;
    attn_full_mask(&x.in, 0, 100, &m);
    check(&x, &m, prec, tolerance[prec]);
    mask_band(&m, 100, 130, 0, 100, causal, (struct band){3, 17, 90});
    mask_within(&m, &x.in.reach);
    check(&x, &m, prec, tolerance[prec]);
    MUST(mask_lists_init(&m, 100, 130, 0, 100, causal, 32, 8, ERR));
    for (int64_t g = 0; g < m.ngroups; g++)
        for (int32_t c = (int32_t)g % 2; c < 16; c += 2)
            MUST(mask_lists_add(&m, g, c, ERR));
    mask_lists_finish(&m);
    mask_within(&m, &x.in.reach);
    check(&x, &m, prec, tolerance[prec]);
    mask_free(&m);
    free_data(&x);
}

TEST_N(dense_matches_the_definition, 36)
{
    static const int64_t n[][2] = {{1, 1},     {2, 2},     {63, 63},   {64, 64},  {65, 65},
                                   {129, 129}, {700, 700}, {40, 1100}, {300, 100}};
    struct data x;
    struct mask m;
    const int64_t *s = n[_i / 4];
    enum precision prec = _i % 2 ? PREC_F32 : PREC_F64;
    bool causal = _i / 2 % 2;
    make_data(&x, s[0], s[1], 64, 48, causal, 1.5);
    mask_full(&m, s[0], s[1], 0, s[0], causal);
    check(&x, &m, prec, tolerance[prec]);
    free_data(&x);
}

TEST_N(lists_match_the_definition, 24)
{
    static const int64_t unit[][2] = {{1, 1}, {16, 1}, {128, 1}, {64, 32}, {128, 64}, {48, 16}};
    struct data x;
    struct mask m;
    const int64_t *u = unit[_i / 4];
    enum precision prec = _i % 2 ? PREC_F32 : PREC_F64;
    bool causal = _i / 2 % 2;
    make_data(&x, 500, 500, 64, 64, causal, 1);
    MUST(mask_lists_init(&m, 500, 500, 0, 500, causal, u[0], u[1], ERR));
    for (int64_t g = 0; g < m.ngroups; g++)
        for (int64_t c = 0; c * u[1] < 500; c++)
            if (rng_uniform(5, (uint64_t)g, (uint64_t)c) < 0.2)
                MUST(mask_lists_add(&m, g, (int32_t)c, ERR));
    mask_lists_finish(&m);
    check(&x, &m, prec, tolerance[prec]);
    mask_free(&m);
    free_data(&x);
}

TEST_N(band_matches_the_definition, 2)
{
    struct data x;
    struct mask m;
    bool causal = _i % 2;
    make_data(&x, 400, 400, 32, 32, causal, 1);
    mask_band(&m, 400, 400, 128, 400, causal, (struct band){4, 40, 390});
    check(&x, &m, PREC_F64, 1e-12);
    check(&x, &m, PREC_F32, 5e-5);
    free_data(&x);
}

/* Values at the edges: all equal, one huge, tiny, zero. None may give NaN or a row sum off 1. */
TEST(extreme_scores_stay_finite)
{
    struct data x;
    struct mask m;
    double out[96 * 16], lse[96];
    for (int kind = 0; kind < 4; kind++) {
        make_data(&x, 96, 96, 16, 16, true, kind == 2 ? 1e-20 : 1);
        for (int i = 0; i < 96 * 16; i++) {
            x.v[i] = 1;
            if (kind == 0)
                x.q[i] = x.k[i] = 3;
            if (kind == 1)
                x.k[i] = i / 16 == 40 ? 1e4f : -1e4f;
            if (kind == 3)
                x.q[i] = 0;
        }
        for (int prec = 0; prec < 2; prec++) {
            OWN(attn_release) struct attn_ops ops;
            mask_full(&m, 96, 96, 0, 96, true);
            MUST(attn_prepare(&ops, &x.in, prec ? PREC_F32 : PREC_F64, ERR));
            MUST(attn_rows(&ops, &m, out, lse, ERR));
            for (int i = 0; i < 96 * 16; i++)
                ck_assert_double_eq_tol(out[i], 1, 1e-5);
        }
        free_data(&x);
    }
}

/* Heads over the same keys together are the heads one by one, under a window, caps and sinks. */
TEST_N(scored_rows_are_those_of_each_head, 4)
{
    enum { NQ = 200, NK = 1500, D = 16, FIRST = 37, HEADS = 3, ROWS = NQ - FIRST };
    static double s[HEADS][ROWS * NK], out[HEADS][ROWS * D], lse[HEADS][ROWS], want[ROWS * D],
        want_lse[ROWS];
    double tol = _i < 2 ? 1e-12 : 2e-5;
    struct data x;
    struct mask m;
    struct attn_in in[HEADS];
    struct scored_rows h[HEADS];
    make_data(&x, HEADS * NQ, NK, D, D, true, 1.5);
    for (int g = 0; g < HEADS; g++) {
        in[g] = x.in;
        in[g].nq = NQ;
        in[g].q = x.q + (ptrdiff_t)g * NQ * D;
        in[g].reach.back = _i % 2 ? 700 : 0;
        in[g].mods.softcap = 2 + g;
        in[g].mods.has_sink = g == 1;
        h[g] = (struct scored_rows){in + g, s[g], out[g], lse[g]};
    }
    OWN(attn_release) struct attn_ops first;
    MUST(attn_prepare(&first, in, _i < 2 ? PREC_F64 : PREC_F32, ERR));
    MUST(attn_scored_rows(&first, h, HEADS, FIRST, NQ, NK, ERR));
    for (int g = 0; g < HEADS; g++) {
        OWN(attn_release) struct attn_ops ops;
        MUST(attn_prepare(&ops, in + g, first.prec, ERR));
        attn_full_mask(in + g, FIRST, NQ, &m);
        MUST(attn_rows(&ops, &m, want, want_lse, ERR));
        for (int r = 0; r < ROWS; r++) {
            ck_assert_double_eq_tol(lse[g][r], want_lse[r], tol);
            ck_assert_double_eq_tol(out[g][r * D], want[r * D], tol);
            for (int64_t j = 0; j < NK; j += 7) {
                bool sees = j >= attn_first(in + g, FIRST + r) && j < attn_limit(in + g, FIRST + r);
                double have = s[g][r * NK + j];
                ck_assert(sees ? fabs(have - score(in + g, FIRST + r, j)) < tol
                               : have == -INFINITY);
            }
        }
    }
    free_data(&x);
}

TEST(probabilities_sum_to_one_and_scores_agree)
{
    struct data x;
    struct mask m;
    struct attn_ops ops;
    OWN(free_at) double *p = malloc(300 * 300 * sizeof *p), *s = malloc(300 * 300 * sizeof *s);
    double lse[300];
    make_data(&x, 300, 300, 64, 64, true, 1.5);
    mask_full(&m, 300, 300, 0, 300, true);
    MUST(attn_prepare(&ops, &x.in, PREC_F64, ERR));
    MUST(attn_rows(&ops, &m, NULL, lse, ERR));
    MUST(attn_probs(&ops, 10, 300, lse + 10, p, ERR));
    MUST(attn_scores(&ops, 10, 300, 20, 170, s, ERR));
    for (int r = 0; r < 290; r++) {
        double sum = 0;
        for (int j = 0; j < 300; j++) {
            sum += p[r * 300 + j];
            ck_assert(j <= r + 10 || p[r * 300 + j] == 0);
        }
        ck_assert_double_eq_tol(sum, 1, 1e-12);
        for (int j = 20; j < 170; j += 13)
            ck_assert_double_eq_tol(s[r * 150 + j - 20], score(&x.in, r + 10, j), 1e-12);
    }
    attn_release(&ops);
    free_data(&x);
}
