/*
 * test_golden.c - the golden heads are what golden.h says.
 */
#include "tests/harness/suite.h"
#include "tests/harness/golden.h"

#include <math.h>
#include <string.h>

static struct err err;

TEST(sample_trace_has_its_known_first_values)
{
    static const float q0[] = {-6.4375f, 3.4375f, -6.8125f}, q3000[] = {1.8125f, 9.3125f, -5.9375f},
                       k0[] = {-0.9375f, 0.6875f, -0.5625f};
    OWN(sim_head_free) struct sim_head h = {0};
    assert_ok(golden_sample(3001, PREC_F32, &h, &err), &err);
    ck_assert(!memcmp(h.q, q0, sizeof q0));
    ck_assert(!memcmp(h.q + 3000 * 64, q3000, sizeof q3000));
    ck_assert(!memcmp(h.k, k0, sizeof k0));
    ck_assert(h.in.x.causal && h.in.x.scale == 0.125);
}

/* Row 0 of a causal head sees only itself: its output is v[0]. */
TEST(code_lm_heads_use_the_right_key_and_value_head)
{
    struct sim_head h[2] = {0};
    assert_ok(golden_code_lm(5, 0, PREC_F64, &h[0], &err), &err);
    assert_ok(golden_code_lm(5, 7, PREC_F64, &h[1], &err), &err);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(h[i].in.kv_head, i);
        ck_assert_int_eq(h[i].in.x.nq, 770);
        for (int c = 0; c < 64; c++)
            ck_assert_double_eq_tol(head_out(&h[i].in)[c], (double)h[i].v[c], 1e-12);
    }
    ck_assert(memcmp(h[0].k, h[1].k, 64 * sizeof(float)) != 0);
    sim_head_free(&h[0]);
    sim_head_free(&h[1]);
    assert_fails(golden_code_lm(2, 0, PREC_F64, &h[0], &err), &err, ERR_RUN, "no layer 2");
}

TEST(video_heads_fill_their_grid)
{
    struct sim_head h = {0};
    assert_ok(golden_video(3, 5, 1, PREC_F32, &h, &err), &err);
    ck_assert_int_eq(h.in.geom.t * h.in.geom.h * h.in.geom.w, h.in.x.nq);
    ck_assert(!h.in.x.causal && h.in.x.d == 128 && h.in.x.dv == 128);
    ck_assert_double_eq_tol(h.in.x.scale, 1 / sqrt(128), 1e-15);
    /* shift 5 at u = 1/4: s = 1.25 / 2 */
    ck_assert_double_eq_tol(h.in.timestep, 625, 1e-4);
    sim_head_free(&h);
    assert_fails(golden_video(1, 5, 1, PREC_F32, &h, &err), &err, ERR_RUN, "no step 1");
}

TEST(random_heads_depend_on_the_seed_alone)
{
    OWN(sim_head_free) struct sim_head a = {0}, b = {0}, c = {0};
    assert_ok(random_head(1, 65, 130, 16, true, 2.0, PREC_F64, &a, &err), &err);
    assert_ok(random_head(1, 65, 130, 16, true, 2.0, PREC_F64, &b, &err), &err);
    assert_ok(random_head(2, 65, 130, 16, true, 2.0, PREC_F64, &c, &err), &err);
    ck_assert(!memcmp(a.k, b.k, 130 * 16 * sizeof *a.k));
    ck_assert(memcmp(a.k, c.k, 130 * 16 * sizeof *a.k) != 0);
    double sum = 0;
    for (int i = 0; i < 130 * 16; i++)
        sum += (double)a.k[i] * a.k[i];
    ck_assert_double_eq_tol(sqrt(sum / (130 * 16)), 2.0, 0.15);
}
