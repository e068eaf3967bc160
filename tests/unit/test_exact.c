/*
 * test_exact.c - the exact map as a service: rows are computed when asked for, once, and have the
 * bits of a pass over the whole head in whatever order they were asked for.
 */
#include "sim/blocks/exact.h"

#include "sim/headload.h"
#include "tests/harness/golden.h"
#include "tests/harness/suite.h"

#include <stdlib.h>

enum { NQ = 700, NK = 733, D = 16 };

static void whole_head(bool causal, enum precision prec, struct sim_head *h, double *out,
                       double *lse)
{
    OWN(attn_release) struct attn_ops ops = {0};
    struct mask full;
    MUST(random_head(5, NQ, NK, D, causal, 1.5, prec, h, ERR));
    mask_full(&full, NQ, NK, 0, NQ, causal);
    MUST(attn_prepare(&ops, &h->in.x, prec, ERR));
    MUST(attn_rows(&ops, &full, out, lse, ERR));
}

/* Rows [row0, row1) have the bits of the whole pass. */
static void same_lse(struct exact *e, int64_t row0, int64_t row1, const double *want)
{
    const double *lse;
    MUST(exact_lse(e, row0, row1, &lse, ERR));
    ck_assert_mem_eq(lse, want + row0, (size_t)(row1 - row0) * sizeof *lse);
}

static void same_out(struct exact *e, int64_t row0, int64_t row1, const double *want)
{
    const double *out;
    MUST(exact_out(e, row0, row1, &out, ERR));
    ck_assert_mem_eq(out, want + row0 * D, (size_t)(row1 - row0) * D * sizeof *out);
}

TEST_N(rows_have_the_bits_of_the_whole_head, 4)
{
    OWN(sim_head_free) struct sim_head h;
    OWN(free_at) double *out = calloc(NQ * D, sizeof *out), *lse = calloc(NQ, sizeof *lse);
    whole_head(_i % 2, _i / 2 ? PREC_F32 : PREC_F64, &h, out, lse);
    same_lse(&h.exact, 690, 700, lse);
    same_lse(&h.exact, 100, 101, lse);
    same_out(&h.exact, 255, 257, out);
    same_lse(&h.exact, 0, NQ, lse);
    same_out(&h.exact, 0, NQ, out);
    same_out(&h.exact, 600, 600, out);
}

TEST(probabilities_and_masks_are_those_of_core)
{
    OWN(sim_head_free) struct sim_head h;
    OWN(free_at) double *out = calloc(NQ * D, sizeof *out), *lse = calloc(NQ, sizeof *lse);
    OWN(free_at) double *p = calloc(3 * NK, sizeof *p), *want = calloc(3 * NK, sizeof *want);
    double one[D], some[1];
    const struct attn_ops *ops;
    struct mask m;
    whole_head(true, PREC_F64, &h, out, lse);
    MUST(exact_probs(&h.exact, 511, 514, p, ERR));
    MUST(exact_operands(&h.exact, &ops, ERR));
    MUST(attn_probs(ops, 511, 514, lse + 511, want, ERR));
    ck_assert_mem_eq(p, want, 3 * NK * sizeof *p);
    MUST(exact_scores(&h.exact, 511, 514, 3, NK, p, ERR));
    MUST(attn_scores(ops, 511, 514, 3, NK, want, ERR));
    ck_assert_mem_eq(p, want, 3 * (NK - 3) * sizeof *p);
    mask_full(&m, NQ, NK, 9, 10, true);
    MUST(exact_attend(&h.exact, &m, one, some, ERR));
    ck_assert_double_eq_tol(some[0], lse[9], 1e-12);
    ck_assert_double_eq_tol(one[3], out[9 * D + 3], 1e-12);
}

/* ---- who computes --------------------------------------------------------------------------- */

struct source {
    int64_t lse_rows, out_rows;
    bool fails;
};

/* Row i has the log-sum-exp i and the output i + 1/2. */
static int numbers(void *self, int64_t row0, int64_t row1, double *out, double *lse,
                   struct err *err)
{
    struct source *s = self;
    if (s->fails)
        return err_set(err, ERR_NOMEM, "no room");
    s->lse_rows += row1 - row0;
    s->out_rows += out ? row1 - row0 : 0;
    for (int64_t i = row0; i < row1; i++)
        lse[i] = (double)i;
    for (int64_t k = row0 * D; out && k < row1 * D; k++)
        out[k] = (double)(k / D) + 0.5;
    return 0;
}

static void source_head(struct source *s, struct sim_head *h)
{
    MUST(random_head(5, NQ, NK, D, true, 1, PREC_F64, h, ERR));
    *s = (struct source){0};
    exact_dense_from(&h->exact, numbers, s);
}

static double lse_of(struct sim_head *h, int64_t row)
{
    const double *lse;
    MUST(exact_lse(&h->exact, row, row + 1, &lse, ERR));
    return *lse;
}

static double out_of(struct sim_head *h, int64_t row)
{
    const double *out;
    MUST(exact_out(&h->exact, row, row + 1, &out, ERR));
    return out[D - 1];
}

TEST(rows_are_computed_once)
{
    OWN(sim_head_free) struct sim_head h;
    struct source s;
    source_head(&s, &h);
    ck_assert_double_eq(lse_of(&h, 300), 300);
    ck_assert_double_eq(lse_of(&h, 511), 511);
    ck_assert_int_eq(s.lse_rows, 256);
    ck_assert_int_eq(s.out_rows, 0);
    ck_assert_double_eq(lse_of(&h, 699), 699);
    ck_assert_int_eq(s.lse_rows, 256 + 188); /* the last block */
    ck_assert_double_eq(out_of(&h, 0), 0.5);
    ck_assert_double_eq(lse_of(&h, 255), 255); /* came with the outputs */
    ck_assert_int_eq(s.lse_rows, 700);
    ck_assert_int_eq(s.out_rows, 256);
    ck_assert_double_eq(out_of(&h, 699), 699.5);
    ck_assert_double_eq(out_of(&h, 400), 400.5);
    ck_assert_double_eq(out_of(&h, 401), 401.5);
    ck_assert_int_eq(s.out_rows, 700);
}

TEST(expected_outputs_come_in_the_same_pass)
{
    OWN(sim_head_free) struct sim_head h;
    struct source s;
    source_head(&s, &h);
    exact_expect_out(&h.exact);
    for (int64_t i = 0; i < NQ; i++) {
        ck_assert_double_eq(lse_of(&h, i), (double)i);
        ck_assert_double_eq(out_of(&h, i), (double)i + 0.5);
    }
    ck_assert_int_eq(s.lse_rows, NQ);
    ck_assert_int_eq(s.out_rows, NQ);
}

TEST(a_failure_is_reported_and_leaves_nothing)
{
    OWN(sim_head_free) struct sim_head h;
    struct source s;
    const double *lse;
    source_head(&s, &h);
    s.fails = true;
    FAILS(exact_lse(&h.exact, 0, NQ, &lse, ERR), ERR_NOMEM, "no room");
    s.fails = false;
    ck_assert_double_eq(lse_of(&h, 7), 7);
}

/* A head in another token order asks the one it comes from. */
TEST(a_reordered_head_moves_rows)
{
    OWN(sim_head_free) struct sim_head h;
    struct source s = {0};
    struct geometry g = {.t = 4, .h = 6, .w = 5};
    MUST(random_head(5, 120, 120, D, false, 1, PREC_F64, &h, ERR));
    h.in.geom = g;
    exact_dense_from(&h.exact, numbers, &s);
    HEAD(moved, sim_head_reorder, &h.in, "time", 0);
    ck_assert_int_eq(s.lse_rows, 0);
    for (int64_t i = 0; i < 120; i++) {
        ck_assert_double_eq(out_of(&moved, i), (double)moved.perm[i] + 0.5);
        ck_assert_double_eq(lse_of(&moved, i), (double)moved.perm[i]);
    }
    ck_assert_int_ne(moved.perm[1], 1);
    ck_assert_int_eq(s.lse_rows, 120);
}
