/* Pooled attention maps against sums and maxima of the whole map. */
#include "tests/harness/golden.h"
#include "tests/harness/test.h"

#include "core/attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int64_t pools[] = {1, 7, 32, 64, 100, 5000};

LOOP_TEST(cells_equal_sums_and_maxima_of_the_whole_map, sizeof pools / sizeof *pools)
{
    struct err err = {0};
    struct sim_head h;
    const struct attn_ops *ops;
    int64_t pool = pools[_i], nq = 150, nk = 203;

    for (int causal = 0; causal < 2; causal++) {
        assert_ok(random_head(3, nq, nk, 16, causal, 2, PREC_F64, &h, &err), &err);
        assert_ok(exact_operands(h.in.exact, &ops, &err), &err);
        int64_t rows = (nq + pool - 1) / pool, cells = (nk + pool - 1) / pool;
        float *sum = malloc(sizeof(float) * (size_t)(rows * cells));
        float *max = malloc(sizeof(float) * (size_t)(rows * cells));
        double *p = malloc(sizeof(double) * (size_t)(nq * nk));
        assert_ok(pool_map(ops, head_lse(&h.in), pool, sum, max, &err), &err);
        assert_ok(exact_probs(h.in.exact, 0, nq, p, &err), &err);
        for (int64_t a = 0; a < rows; a++) {
            double row = 0;
            for (int64_t b = 0; b < cells; b++) {
                double s = 0, m = 0;
                for (int64_t i = a * pool; i < nq && i < (a + 1) * pool; i++)
                    for (int64_t j = b * pool; j < nk && j < (b + 1) * pool; j++) {
                        s += p[i * nk + j];
                        m = fmax(m, p[i * nk + j]);
                    }
                ck_assert_float_eq_tol(sum[a * cells + b], (float)s, 1e-6f * (float)s + 1e-30f);
                ck_assert_float_eq(max[a * cells + b], (float)m);
                row += sum[a * cells + b];
            }
            ck_assert_double_eq_tol(row, (double)((a + 1) * pool < nq ? pool : nq - a * pool),
                                    1e-4);
        }
        free(sum);
        free(max);
        free(p);
        sim_head_free(&h);
    }
}

TEST(a_pool_size_of_zero_is_refused)
{
    struct err err = {0};
    struct sim_head h;
    const struct attn_ops *ops;
    assert_ok(random_head(3, 4, 4, 8, true, 1, PREC_F64, &h, &err), &err);
    assert_ok(exact_operands(h.in.exact, &ops, &err), &err);
    assert_fails(pool_map(ops, head_lse(&h.in), 0, NULL, NULL, &err), &err, ERR_USAGE, "pool size");
    sim_head_free(&h);
}
