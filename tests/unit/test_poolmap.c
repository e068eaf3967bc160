/* Pooled attention maps against sums and maxima of the whole map. */
#include "tests/harness/golden.h"
#include "tests/harness/suite.h"

#include "core/attention.h"

#include <math.h>
#include <stdlib.h>

static const int64_t pools[] = {1, 7, 32, 64, 100, 5000};

TEST_EACH(cells_equal_sums_and_maxima_of_the_whole_map, pools)
{
    struct sim_head h;
    const struct attn_ops *ops;
    int64_t pool = pools[_i], nq = 150, nk = 203;
    for (int causal = 0; causal < 2; causal++) {
        MUST(random_head(3, nq, nk, 16, causal, 2, PREC_F64, &h, ERR));
        MUST(exact_operands(h.in.exact, &ops, ERR));
        int64_t rows = (nq + pool - 1) / pool, cells = (nk + pool - 1) / pool;
        OWN(free_at) float *sum = malloc(sizeof(float) * (size_t)(rows * cells));
        OWN(free_at) float *max = malloc(sizeof(float) * (size_t)(rows * cells));
        OWN(free_at) double *p = malloc(sizeof(double) * (size_t)(nq * nk));
        MUST(pool_map(ops, head_lse(&h.in), pool, sum, max, ERR));
        MUST(exact_probs(h.in.exact, 0, nq, p, ERR));
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
        sim_head_free(&h);
    }
}

TEST(a_pool_size_of_zero_is_refused)
{
    const struct attn_ops *ops;
    HEAD(h, random_head, 3, 4, 4, 8, true, 1, PREC_F64);
    MUST(exact_operands(h.in.exact, &ops, ERR));
    FAILS(pool_map(ops, head_lse(&h.in), 0, NULL, NULL, ERR), ERR_USAGE, "pool size");
}
