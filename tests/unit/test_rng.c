/* Counter-based random numbers: fixed values (records depend on them), distribution, independence.
 */
#include "tests/harness/test.h"

#include "core/rng.h"

#include <stdlib.h>

/* The first outputs of SplitMix64 (Steele, Lea, Flood 2014) seeded with 0 and with 1234567. */
TEST(mixer_is_splitmix64)
{
    const uint64_t gamma = 0x9E3779B97F4A7C15ull;
    ck_assert(rng_mix(gamma) == 0xE220A8397B1DCDAFull);
    ck_assert(rng_mix(2 * gamma) == 0x6E789E6AA1B965F4ull);
    ck_assert(rng_mix(3 * gamma) == 0x06C45D188009454Full);
    ck_assert(rng_mix(1234567 + gamma) == 6457827717110365317ull);
    ck_assert(rng_mix(1234567 + 2 * gamma) == 3203168211198807973ull);
}

TEST(values_never_change)
{
    ck_assert(rng_u64(0, 0, 0) == 0x568A9B0B1A2C05ECull);
    ck_assert(rng_u64(1, 2, 3) == 0xB122FE6E54F918BDull);
    ck_assert(rng_u64(~0ull, ~0ull, ~0ull) == 0x5158611307C2D2B9ull);
    ck_assert_double_eq_tol(rng_normal(7, 1, 0), -0.925837884187595, 1e-14);
}

TEST(seed_stream_and_counter_all_matter)
{
    uint64_t seen[512];
    int n = 0;
    for (uint64_t s = 0; s < 8; s++)
        for (uint64_t t = 0; t < 8; t++)
            for (uint64_t c = 0; c < 8; c++)
                seen[n++] = rng_u64(s, t, c);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            ck_assert(seen[i] != seen[j]);
}

TEST(uniform_fills_the_unit_interval_evenly)
{
    enum { N = 200000, BINS = 20 };
    int count[BINS] = {0};
    double sum = 0;
    for (uint64_t i = 0; i < N; i++) {
        double u = rng_uniform(3, 5, i);
        ck_assert(u >= 0 && u < 1);
        count[(int)(u * BINS)]++;
        sum += u;
    }
    /* Standard deviations: 0.2887 / sqrt(N) = 6.5e-4 and sqrt(N 0.05 0.95) = 97; 5 sigma. */
    ck_assert_double_eq_tol(sum / N, 0.5, 3.3e-3);
    for (int b = 0; b < BINS; b++)
        ck_assert_int_le(abs(count[b] - N / BINS), 490);
}

TEST(below_is_in_range_and_reaches_every_value)
{
    int seen[7] = {0};
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t v = rng_below(1, 1, i, 7);
        ck_assert(v < 7);
        seen[v]++;
        ck_assert(rng_below(1, 1, i, 1) == 0);
    }
    for (int v = 0; v < 7; v++)
        ck_assert_int_gt(seen[v], 90);
}

TEST(normal_has_mean_0_and_variance_1)
{
    enum { N = 200000 };
    double sum = 0, sq = 0, cross = 0, last = 0;
    for (uint64_t i = 0; i < N; i++) {
        double x = rng_normal(11, 4, i);
        ck_assert(isfinite(x));
        sum += x;
        sq += x * x;
        cross += x * last;
        last = x;
    }
    /* Standard deviations 1/sqrt(N) = 2.2e-3, sqrt(2/N) = 3.2e-3, 1/sqrt(N); 5 sigma. */
    ck_assert_double_eq_tol(sum / N, 0, 1.1e-2);
    ck_assert_double_eq_tol(sq / N, 1, 1.6e-2);
    ck_assert_double_eq_tol(cross / N, 0, 1.1e-2);
}
