/*
 * XAttention: antidiagonal scores, chunk rule, selection, block masses against plain loops, the
 * golden trace, bidirectional heads, prompt chunks, calibration.
 */
#include "sim/methods/xattention/xattention.h"
#include "tests/harness/methodrun.h"

static struct xattn_config config(enum xattn_profile profile, int64_t nq, int64_t nk, int d,
                                  int stride, double tau)
{
    return (struct xattn_config){.profile = profile,
                                 .nq = nq,
                                 .nk = nk,
                                 .d = d,
                                 .stride = stride,
                                 .tau = tau,
                                 .norm = 1,
                                 .scale = 0.125,
                                 .causal = true,
                                 .chunk = xattn_auto_chunk(nk)};
}

/* ---- parts ------------------------------------------------------------------------------ */

/* The scores of a block where query row q and key row k are the same unit vector, all else 0. */
static void one_pair(int q, int k, float *s)
{
    enum { N = 128, D = 4 };
    float qs[N * D] = {0}, ks[N * D] = {0};
    struct xattn_config c = config(XATTN_CLEAN, N, N, D, 8, 0.9);
    OWN(xattn_free) struct xattn x;
    qs[q * D + 2] = ks[k * D + 2] = 1;
    MUST(xattn_init(&x, &c, qs, ks, ERR));
    xattn_scores(&x, 0);
    memcpy(s, x.s, 16 * 16 * sizeof *s);
}

TEST(antidiagonals_pair_last_query_with_first_key)
{
    const struct {
        int q, k;
        bool hit;
    } c[] = {{13, 2, true}, {13, 3, false}, {8, 7, true}, {15, 0, true}};
    for (int i = 0; i < 4; i++) {
        float s[16 * 16];
        one_pair(c[i].q, c[i].k, s);
        for (int e = 0; e < 16 * 16; e++)
            ck_assert_float_eq(s[e], c[i].hit && e == 16 ? 1 : 0);
    }
}

TEST(automatic_chunks)
{
    const int64_t c[][2] = {{1024, 2048},   {4096, 4096},   {4097, 8192},
                            {16384, 16384}, {16385, 8192},  {32768, 8192},
                            {65536, 4096},  {131072, 2048}, {262144, 2048}};
    for (int i = 0; i < 9; i++)
        ck_assert_int_eq(xattn_auto_chunk(c[i][0]), c[i][1]);
}

/* Kept blocks of six as text "0 1 5". */
static void selected(enum xattn_profile profile, bool causal, double tau, int64_t first, char *text)
{
    const double mass[6] = {1 / 32.0, 12 / 32.0, 8 / 32.0, 5 / 32.0, 2 / 32.0, 4 / 32.0};
    struct xattn_config c = config(profile, 768, 768, 4, 8, tau);
    bool keep[6];
    c.causal = causal;
    MUST(xattn_select(&c, mass, 6, (struct xattn_place){5, 5, first}, keep, ERR));
    for (int j = 0; j < 6; j++)
        if (keep[j])
            *text++ = (char)('0' + j);
    *text = '\0';
}

TEST(selection_of_a_row)
{
    const struct {
        double tau;
        const char *clean, *first, *paper, *both;
    } c[] = {{0, "05", "05", "5", "0"},
             {0.5, "015", "0125", "12", "012"},
             {17.0 / 32, "015", "01235", "12", "012"},
             {0.75, "0125", "01235", "123", "0123"},
             {0.875, "01235", "012345", "1235", "01235"},
             {1, "012345", "012345", "012345", "012345"}};
    char text[8];
    for (int i = 0; i < 6; i++) {
        selected(XATTN_CLEAN, true, c[i].tau, 0, text);
        ck_assert_str_eq(text, c[i].clean);
        selected(XATTN_OFFICIAL, true, c[i].tau, 4, text); /* a later chunk */
        ck_assert_str_eq(text, c[i].clean);
        selected(XATTN_OFFICIAL, true, c[i].tau, 0, text);
        ck_assert_str_eq(text, c[i].first);
        selected(XATTN_PAPER, true, c[i].tau, 0, text);
        ck_assert_str_eq(text, c[i].paper);
        selected(XATTN_OFFICIAL, false, c[i].tau, 0, text);
        ck_assert_str_eq(text, c[i].both);
    }
}

/* Mass of every block of row block i by the definition, one reduced row at a time. */
static void mass_by_loops(const struct xattn_config *c, const float *q, const float *k, int64_t i,
                          int64_t cols, double *mass)
{
    int s = c->stride, b = 128 / s;
    int64_t pad_keys = c->profile == XATTN_OFFICIAL ? cols * b : (c->nk + s - 1) / s;
    double f = c->scale / (c->profile == XATTN_PAPER ? sqrt(s) : s);
    OWN(free_at) double *w = calloc((size_t)(cols * b), sizeof *w);
    memset(mass, 0, (size_t)cols * sizeof *mass);
    for (int64_t r = i * b; r < (i + 1) * b && r * s < c->nq; r++) {
        int64_t n = c->causal && r + 1 < pad_keys ? r + 1 : pad_keys;
        double sum = 0;
        for (int64_t j = 0; j < n; j++) {
            double dot = 0;
            for (int t = 0; t < s; t++)
                for (int e = 0; e < c->d; e++) {
                    int64_t qr = r * s + s - 1 - t, kr = j * s + t;
                    if (qr < c->nq && kr < c->nk)
                        dot += (double)q[qr * c->d + e] * k[kr * c->d + e];
                }
            sum += w[j] = exp(f * dot);
        }
        for (int64_t j = 0; j < n; j++)
            mass[j / b] += w[j] / sum;
    }
}

TEST(masses_equal_plain_loops)
{
    enum { N = 603 };
    for (int profile = XATTN_OFFICIAL; profile <= XATTN_PAPER; profile++)
        for (int causal = 0; causal < 2; causal++) {
            OWN(xattn_free) struct xattn x;
            double got[32], want[32];
            HEAD(h, random_head, 1, N, N, 8, causal, 1, PREC_F32);
            struct xattn_config c = config((enum xattn_profile)profile, N, N, 8, 16, 0.9);
            c.causal = causal;
            MUST(xattn_init(&x, &c, h.q, h.k, ERR));
            ck_assert_int_eq(x.cols, profile == XATTN_OFFICIAL ? 16 : 5);
            for (int64_t i = 0; i < 5; i++) {
                xattn_row(&x, i, got);
                mass_by_loops(&c, h.q, h.k, i, x.cols, want);
                for (int64_t j = 0; j < x.cols; j++)
                    ck_assert_double_eq_tol(got[j], want[j], 1e-5);
            }
        }
}

/* ---- heads ------------------------------------------------------------------------------ */

static int64_t head_blocks(const struct sim_head *h, const struct xattn_config *c, int *per_row)
{
    OWN(xattn_free) struct xattn x;
    double mass[64];
    bool keep[64];
    int64_t total = 0;
    MUST(xattn_init(&x, c, h->q, h->k, ERR));
    for (int64_t i = 0; i < x.row_blocks; i++) {
        int n = 0;
        MUST(xattn_keep(&x, i, mass, keep, ERR));
        for (int64_t j = 0; j < xattn_limit(&x, i); j++)
            n += keep[j];
        if (per_row)
            per_row[i] = n;
        total += n;
    }
    return total;
}

TEST(uniform_scores)
{
    const int clean[] = {1, 2, 3, 4, 5, 5, 6, 7}, paper[] = {1, 2, 2, 3, 4, 5, 6, 7};
    struct xattn x;
    double m[16];
    int rows[8];
    HEAD(h, random_head, 1, 1024, 1024, 16, true, 0, PREC_F32);
    struct xattn_config c = config(XATTN_CLEAN, 1024, 1024, 16, 8, 0.8);
    MUST(xattn_init(&x, &c, h.q, h.k, ERR));
    xattn_row(&x, 0, m);
    ck_assert_double_eq_tol(m[0], 16, 1e-9);
    xattn_row(&x, 1, m);
    ck_assert_double_eq_tol(m[0], 10.844259, 1e-6);
    ck_assert_double_eq_tol(m[1], 5.155741, 1e-6);
    xattn_row(&x, 7, m);
    for (int j = 0; j < 8; j++)
        ck_assert_double_eq_tol(m[j], j < 7 ? 2.127599 : 1.106810, 1e-6);
    xattn_free(&x);
    c.stride = 16;
    MUST(xattn_init(&x, &c, h.q, h.k, ERR));
    xattn_row(&x, 7, m);
    for (int j = 0; j < 8; j++)
        ck_assert_double_eq_tol(m[j], j < 7 ? 1.059372 : 0.584393, 1e-6);
    xattn_free(&x);

    c.stride = 8;
    ck_assert_int_eq(head_blocks(&h, &c, rows), 33);
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(rows[i], clean[i]);
    c.profile = XATTN_PAPER;
    ck_assert_int_eq(head_blocks(&h, &c, rows), 30);
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(rows[i], paper[i]);
    c.profile = XATTN_OFFICIAL;
    ck_assert_int_eq(head_blocks(&h, &c, NULL), 36);
    c.chunk = 256;
    ck_assert_int_eq(head_blocks(&h, &c, NULL), 33);
}

static void row_sums(int64_t n, int stride)
{
    OWN(xattn_free) struct xattn x;
    HEAD(h, golden_sample, n, PREC_F32);
    struct xattn_config c = config(XATTN_CLEAN, n, n, 64, stride, 0.9);
    double m[32];
    MUST(xattn_init(&x, &c, h.q, h.k, ERR));
    for (int64_t i = 0; i < 32; i++) {
        double sum = 0;
        xattn_row(&x, i, m);
        for (int j = 0; j < 32; j++)
            sum += m[j];
        ck_assert_double_eq_tol(sum, (i + 1) * 128 <= n ? 128.0 / stride : 32.0 / stride, 1e-5);
    }
    if (n == 4096 && stride == 8) {
        ck_assert_double_eq_tol(m[0], 0.588333, 1e-5);
        ck_assert_double_eq_tol(m[1], 0.569747, 1e-5);
        ck_assert_double_eq_tol(m[2], 0.481135, 1e-5);
        ck_assert_double_eq_tol(m[31], 0.422954, 1e-5);
    }
}

TEST(rows_sum_to_their_reduced_rows)
{
    row_sums(4096, 8);
    row_sums(4000, 8);
    row_sums(4000, 16);
}

TEST(golden_trace)
{
    const struct {
        int64_t n;
        int stride;
        double clean, one_chunk, chunk1024, paper, density, min, p1, mean;
        double paper_density, paper_mean;
    } c[] = {
        {4096, 8, 464, 488, 464, 339, 0.875031, 0.010000, 0.407862, 0.977466, 0.632887, 0.930416},
        {4000, 8, 464, 488, 464, 334, 0.876639, 0.010000, 0.407862, 0.977270, 0.632906, 0.928629},
        {4000, 16, 460, 486, 462, 261, 0.868449, 0.004203, 0.256269, 0.971375, 0.496196, 0.803634}};
    for (int i = 0; i < 3; i++) {
        char text[128];
        OWN(record_free) struct record r;
        HEAD(h, golden_sample, c[i].n, PREC_F32);
        snprintf(text, sizeof text, "xattention:profile=clean:stride=%d", c[i].stride);
        ck_assert_double_eq_tol(run_p1(text, &h.in, &r), c[i].p1, 1e-4);
        HAS(&r, 1e-6, "pairs_exec density_native density_elem", c[i].clean * 128 * 128,
            c[i].clean / 528, c[i].density);
        HAS(&r, 1e-4, "cra_min cra_mean", c[i].min, c[i].mean);
        if (i == 0)
            HAS(&r, 1e-4, "err_l2_rel", 0.149017);
        snprintf(text, sizeof text, "xattention:profile=paper:stride=%d", c[i].stride);
        RUN(paper, text, &h.in);
        HAS(&paper, 1e-6, "pairs_exec density_elem rows_empty", c[i].paper * 128 * 128,
            c[i].paper_density, 0);
        HAS(&paper, 1e-4, "cra_mean", c[i].paper_mean);
        snprintf(text, sizeof text, "xattention:stride=%d", c[i].stride);
        RUN_HAS(text, &h.in, 0, "pairs_exec", c[i].one_chunk * 128 * 128);
        strcat(text, ":chunk=1024");
        RUN_HAS(text, &h.in, 0, "pairs_exec", c[i].chunk1024 * 128 * 128);
    }
}

TEST(larger_tau_keeps_a_superset)
{
    HEAD(h, random_head, 3, 1500, 1500, 16, true, 2, PREC_F32);
    for (int profile = XATTN_CLEAN; profile <= XATTN_PAPER; profile++) {
        struct xattn_config c = config((enum xattn_profile)profile, 1500, 1500, 16, 8, 0);
        OWN(xattn_free) struct xattn x;
        double m[32];
        bool keep[32], last[32];
        c.scale = 0.25;
        MUST(xattn_init(&x, &c, h.q, h.k, ERR));
        for (int64_t i = 0; i < x.row_blocks; i++)
            for (x.c.tau = 0; x.c.tau <= 1; x.c.tau += 0.125) {
                MUST(xattn_keep(&x, i, m, keep, ERR));
                for (int64_t j = 0; x.c.tau > 0 && j <= i; j++)
                    ck_assert(keep[j] || !last[j] || (profile == XATTN_PAPER && x.c.tau == 0.125));
                for (int64_t j = 0; j <= i; j++)
                    ck_assert(x.c.tau < 1 || keep[j]);
                memcpy(last, keep, sizeof last);
            }
    }
}

/* OFFICIAL pads to 2048 keys: half of what is taken lies in padding. */
TEST_N(bidirectional_heads, 2)
{
    int64_t cols = _i ? 16 : 4;
    HEAD(h, random_head, 1, 512, 512, 16, false, 0, PREC_F32);
    struct xattn_config c = config(_i ? XATTN_OFFICIAL : XATTN_CLEAN, 512, 512, 16, 8, 0.5);
    OWN(xattn_free) struct xattn x;
    c.causal = false;
    MUST(xattn_init(&x, &c, h.q, h.k, ERR));
    ck_assert_int_eq(x.cols, cols);
    for (int64_t i = 0; i < 4; i++) {
        double m[16];
        bool keep[16];
        MUST(xattn_keep(&x, i, m, keep, ERR));
        for (int j = 0; j < cols; j++)
            ck_assert_double_eq_tol(m[j], 16 / (double)cols, 1e-9);
        for (int j = 0; j < 4; j++)
            ck_assert_int_eq(keep[j], j < 2 || _i);
    }
}

TEST(bidirectional_runs)
{
    HEAD(h, random_head, 1, 512, 512, 16, false, 0, PREC_F32);
    RUN_HAS("xattention:tau=0.5:stride=8", &h.in, 0, "density_elem", 1);
    RUN_HAS("xattention:tau=0.5:stride=8:profile=clean", &h.in, 0, "density_native", 0.5);
    RUN_HAS("xattention:tau=0:profile=paper", &h.in, 0, "density_native", 0.25);
    HEAD(video, golden_video, 3, 5, 1, PREC_F32);
    RUN_HAS("xattention:tau=1:profile=clean", &video.in, 0, "density_elem", 1);
    RUN(part, "xattention:tau=0.7:profile=clean:stride=8", &video.in);
    ck_assert_double_lt(record_get(&part, "density_elem"), 1);
}

/* The last rows as a prompt chunk of their own keep what they keep in the whole prompt when the cut
 * lies between blocks; elsewhere every row still sees its own key. */
TEST(prompt_chunks)
{
    const int64_t cuts[] = {384, 500, 1299};
    HEAD(whole, random_head, 4, 1300, 1300, 16, true, 3, PREC_F64);
    for (int i = 0; i < 3; i++)
        assert_chunk_keeps("xattention:profile=clean:tau=0.5", &whole, cuts[i], i ? NAN : 1e-9);
}

TEST(bf16_changes_little)
{
    OWN(xattn_free) struct xattn a, b;
    double ma[32], mb[32], off = 0;
    HEAD(h, golden_code_lm, 5, 7, PREC_F32);
    struct xattn_config c = config(XATTN_OFFICIAL, 770, 770, 64, 16, 0.9);
    MUST(xattn_init(&a, &c, h.q, h.k, ERR));
    c.bf16 = true;
    MUST(xattn_init(&b, &c, h.q, h.k, ERR));
    for (int64_t i = 0; i < a.row_blocks; i++) {
        xattn_row(&a, i, ma);
        xattn_row(&b, i, mb);
        for (int64_t j = 0; j <= i; j++) {
            off = fmax(off, fabs(ma[j] - mb[j]));
            ck_assert_double_eq(mb[j], dtype_round(DT_BF16, (float)mb[j]));
        }
    }
    ck_assert(off > 0 && off < 0.1);
}

/* Keys that repeat block by block: all blocks of a row have the same mass to the last bit, whatever
 * order BLAS adds them in. */
TEST_N(equal_blocks_have_equal_masses, 5)
{
    enum { N = 128 * 11, D = 20 };
    static const int strides[] = {4, 8, 16, 32, 64};
    OWN(xattn_free) struct xattn x;
    double mass[11];
    HEAD(h, random_head, 3, N, N, D, false, 1, PREC_F32);
    for (int64_t i = 128 * D; i < N * D; i++)
        h.k[i] = h.k[i - 128 * D];
    struct xattn_config c = config(XATTN_CLEAN, N, N, D, strides[_i], 0.5);
    c.causal = false;
    MUST(xattn_init(&x, &c, h.q, h.k, ERR));
    for (int64_t i = 0; i < x.row_blocks; i++) {
        bool keep[11];
        MUST(xattn_keep(&x, i, mass, keep, ERR));
        for (int j = 0; j < 11; j++) {
            ck_assert_msg(mass[j] == mass[0], "row %d block %d: %a, block 0: %a", (int)i, j,
                          mass[j], mass[0]);
            ck_assert_int_eq(keep[j], j < 6);
        }
    }
}

/* ---- calibration ------------------------------------------------------------------------ */

/* With the exact masses as estimates the rule's threshold is at least 0.9; the written threshold
 * keeps, per row block, at least what the rule asked for on the trace. */
TEST(repository_rule_by_loops)
{
    enum { N = 770, BLOCKS = 7 };
    OWN(xattn_free) struct xattn x;
    double tau, above = 0, total = 0, est[BLOCKS];
    OWN(free_at) double *p = malloc(N * sizeof *p);
    HEAD(h, golden_code_lm, 5, 0, PREC_F64);
    struct xattn_config base = config(XATTN_CLEAN, 0, 0, 0, 8, 0);
    base.chunk = 0;
    struct xattn_config c = xattn_config_of(&base, &h.in.x);
    ck_assert_int_eq(c.nk, N);
    MUST(xattn_search_repo(&base, &h.in, 1, &tau, ERR));
    MUST(xattn_init(&x, &c, h.q, h.k, ERR));
    for (int64_t i = 0; i < BLOCKS; i++) {
        double exact[BLOCKS] = {0}, rows = 0, taken = 0, low = INFINITY;
        bool used[BLOCKS] = {false};
        for (int64_t q = i * 128; q < (i + 1) * 128 && q < N; q++, rows++) {
            MUST(exact_probs(h.in.exact, q, q + 1, p, ERR));
            for (int64_t k = 0; k <= q; k++)
                exact[k / 128] += p[k];
        }
        xattn_row(&x, i, est);
        while (taken < 0.9 * rows) { /* rows of softmax sum to their number */
            int64_t best = -1;
            for (int64_t j = 0; j <= i; j++)
                if (!used[j] && (best < 0 || exact[j] > exact[best]))
                    best = j;
            used[best] = true;
            taken += exact[best];
            low = fmin(low, est[best]);
        }
        for (int64_t j = 0; j <= i; j++) {
            total += est[j];
            above += est[j] >= low ? est[j] : 0;
        }
    }
    ck_assert_double_eq_tol(tau, above / total, 1e-9);
    ck_assert(tau > 0.5 && tau <= 1);
    double twice;
    struct head_in two[2] = {h.in, h.in};
    MUST(xattn_search_repo(&base, two, 2, &twice, ERR));
    ck_assert_double_eq(twice, tau);
}

TEST(steps_stop_at_the_error_bound)
{
    char text[128];
    HEAD(h, golden_code_lm, 5, 0, PREC_F64);
    double tau = calibrated("xattention:rule=dp:target_err=0.3:profile=clean", &h.in, 1, "tau");
    ck_assert(tau > 0 && tau < 0.9);
    snprintf(text, sizeof text, "xattention:profile=clean:tau=%.17g", tau);
    ck_assert_double_le(metric_of(text, &h.in, "err_l2_rel"), 0.3);
    tau = calibrated("xattention:rule=dp:target_err=0:profile=clean", &h.in, 1, "tau");
    ck_assert_double_eq(tau, 0.9);
    ck_assert_double_gt(calibrated("xattention:profile=clean", &h.in, 1, "tau"), 0);
}
