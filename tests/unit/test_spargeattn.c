/*
 * SpargeAttn, filter 1: self-similarity, the cut of the coarse map, which blocks are kept.
 */
#include "sim/blocks/blockpool.h"
#include "sim/blocks/gpusum.h"
#include "tests/harness/spargerun.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- self-similarity ------------------------------------------------------------------------ */

TEST(unit_vectors_have_similarity_one_over_n)
{
    OWN(free_at) float *x = calloc(128 * 128, sizeof *x);
    for (int a = 0; a < 64; a++)
        x[a * 64 + a] = 1;
    ck_assert_double_eq(block_cosine(x, 64, 64, NULL), 1.0 / 64);
    memset(x, 0, 128 * 128 * sizeof *x);
    for (int a = 0; a < 128; a++)
        x[a * 128 + a] = 1;
    ck_assert_double_eq(block_cosine(x, 128, 128, NULL), 1.0 / 128);
    memset(x, 0, 128 * 128 * sizeof *x);
    for (int a = 0; a < 128; a++)
        x[a * 64 + a / 2] = 1;
    ck_assert_double_eq(block_cosine(x, 128, 64, NULL), 1.0 / 64);
}

TEST(similarity_of_simple_blocks)
{
    float same[64 * 3], opposite[64 * 2], angle[64 * 2], scaled[64 * 2];
    double c = cos(acos(-1) / 3), s = sin(acos(-1) / 3);
    for (int a = 0; a < 64; a++) {
        const float u[] = {0.3f, -1.7f, 2.2f};
        memcpy(same + a * 3, u, sizeof u);
        opposite[a * 2] = a % 2 ? 1 : -1;
        opposite[a * 2 + 1] = 0;
        angle[a * 2] = a < 32 ? 1 : (float)c;
        angle[a * 2 + 1] = a < 32 ? 0 : (float)s;
        scaled[a * 2] = a < 32 ? 1 : 2;
        scaled[a * 2 + 1] = 0;
    }
    ck_assert_double_eq_tol(block_cosine(same, 64, 3, NULL), 1, 1e-12);
    ck_assert_double_le(block_cosine(same, 64, 3, NULL), 1);
    ck_assert_double_eq(block_cosine(opposite, 64, 2, NULL), 0);
    ck_assert_double_eq_tol(block_cosine(angle, 64, 2, NULL), 0.75, 1e-7);
    ck_assert_double_eq(block_cosine(scaled, 64, 2, NULL), 1);
    ck_assert_double_eq(block_mean_share(scaled, 64, 2), 0.5625);

    struct sparge_rules r = rules_of("theta=-0.1", 64);
    ck_assert(sparge_similar(&r, 0, true));
    r.theta = 0;
    ck_assert(!sparge_similar(&r, 0, true));
    r.paper = true;
    ck_assert(sparge_similar(&r, 0, true));
}

TEST(random_directions)
{
    for (int d = 64; d <= 128; d += 64) {
        double sum = 0, sq = 0;
        OWN(free_at) float *x = normals(5, 100 * 64 * d);
        for (int b = 0; b < 100; b++) {
            double s = block_cosine(x + b * 64 * d, 64, d, NULL);
            sum += s;
            sq += (s - 1.0 / 64) * (s - 1.0 / 64);
        }
        ck_assert_double_eq_tol(sum / 100, 1.0 / 64, 0.001);
        ck_assert_double_eq_tol(sqrt(sq / 100), sqrt(2.0 / d) / 64, 0.0005);
    }
}

TEST(closed_form_is_the_double_sum)
{
    OWN(free_at) float *x = normals(6, 70 * 33);
    double sum = 0;
    for (int i = 0; i < 70 * 33; i++)
        x[i] += 0.5f;
    for (int a = 0; a < 70; a++)
        for (int b = 0; b < 70; b++) {
            double dot = 0, na = 0, nb = 0;
            for (int c = 0; c < 33; c++) {
                dot += (double)x[a * 33 + c] * x[b * 33 + c];
                na += (double)x[a * 33 + c] * x[a * 33 + c];
                nb += (double)x[b * 33 + c] * x[b * 33 + c];
            }
            sum += dot / sqrt(na * nb);
        }
    sum /= 70 * 70;
    ck_assert_double_eq_tol(block_cosine(x, 70, 33, NULL) / sum, 1, 1e-12);
}

TEST(zero_rows_and_partial_blocks_are_never_similar)
{
    bool zero;
    float x[4] = {1, 0, 0, 0};
    block_cosine(x, 2, 2, &zero);
    ck_assert(zero);
    x[3] = 1;
    block_cosine(x, 2, 2, &zero);
    ck_assert(!zero);
    struct sparge_rules bare = rules_of("theta=0.4:judge=0", 64);
    ck_assert_double_eq(bare.theta, -1);
    struct sparge_rules r = rules_of("theta=-1", 64), paper = rules_of("profile=paper:theta=0", 64);
    ck_assert(!sparge_similar(&r, 1, false));
    ck_assert(sparge_similar(&paper, 1, false));
    float none[4] = {0};
    ck_assert_double_eq(block_mean_share(none, 2, 2), 1);
}

/* ---- cut and map ---------------------------------------------------------------------------- */

TEST(cut_keeps_at_most_tau)
{
    static const float p[] = {0.5f, 0.25f, 0.125f, 0.125f}, three[] = {0.5f, 0.3f, 0.2f};
    static const struct {
        double tau;
        int n;
    } c[] = {{0.3, 1}, {0.5, 1}, {0.7499, 1}, {0.75, 2}, {0.875, 3}, {0.9, 3}, {1, 4}};
    struct sparge_rules r = rules_of("", 64);
    double mass;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        r.tau = c[i].tau;
        ck_assert_int_eq(sparge_cut(&r, p, 4, &mass), c[i].n);
        ck_assert(mass <= c[i].tau || c[i].n == 1);
    }
    r.tau = 0.79;
    ck_assert_int_eq(sparge_cut(&r, three, 3, NULL), 1);
    r.tau = 0.81;
    ck_assert_int_eq(sparge_cut(&r, three, 3, NULL), 2);
    r.paper = true;
    r.tau = 0.3;
    ck_assert_int_eq(sparge_cut(&r, p, 4, NULL), 0);
    r.tau = 0.5;
    ck_assert_int_eq(sparge_cut(&r, p, 4, NULL), 1);
}

TEST(equal_probabilities_go_to_the_lower_block)
{
    struct sparge_entry e[] = {{0.125f, 3}, {0.5f, 0}, {0.125f, 2}, {0.25f, 1}};
    sparge_sort(e, 4);
    for (int j = 0; j < 4; j++)
        ck_assert_int_eq(e[j].j, j);
}

TEST(topk_truncates_a_float_product)
{
    static const struct {
        double share;
        int n, kept;
    } c[] = {{0.5, 5, 2}, {0.1, 5, 1}, {0.3, 10, 3}, {0.7, 10, 7}};
    float p[10] = {0};
    struct sparge_rules r = rules_of("select=topk", 64);
    ck_assert_double_eq(r.theta, -0.1);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        r.topk = c[i].share;
        ck_assert_int_eq(sparge_cut(&r, p, c[i].n, NULL), c[i].kept);
    }
}

static int64_t admissible_count(const struct sparge_rules *r, int64_t i)
{
    int64_t j = 0;
    while (sparge_admissible(r, true, i, j))
        j++;
    return j;
}

TEST(causal_tiles)
{
    static const struct {
        int64_t n, causal, all;
    } c[] = {{1024, 72, 128},
             {4096, 1056, 2048},
             {8192, 4160, 8192},
             {17776, 19460, 38642},
             {131072, 1049600, 2097152}};
    struct sparge_rules a = rules_of("", 64), b = rules_of("arch=sm90", 64);
    ck_assert_int_eq(admissible_count(&a, 0), 2);
    ck_assert_int_eq(admissible_count(&a, 1), 4);
    ck_assert_int_eq(admissible_count(&b, 0), 1);
    ck_assert_int_eq(admissible_count(&b, 1), 1);
    ck_assert_int_eq(admissible_count(&b, 2), 2);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        int64_t n64 = (c[i].n + 63) / 64, n128 = (c[i].n + 127) / 128;
        ck_assert_int_eq(sparge_tiles(n128, n64, &a, true), c[i].causal);
        ck_assert_int_eq(sparge_tiles(n64, n128, &b, true), c[i].causal);
        ck_assert_int_eq(sparge_tiles(n128, n64, &a, false), c[i].all);
        ck_assert_int_eq(sparge_native_tiles(n128, n64, true), n128 * ((n64 + 2) / 2));
    }
    /* What the official count says of a dense causal run with 64 x 128 tiles. */
    double dense = 1 - 72.0 / (double)sparge_native_tiles(16, 8, true);
    ck_assert_double_eq_tol(dense, 0.1, 1e-15);
    dense = 1 - 72.0 / (double)sparge_native_tiles(8, 16, true);
    ck_assert_double_eq(dense, 0);
}

/* Kept tiles of all query blocks. */
static int64_t kept_tiles(struct sparge *s)
{
    int64_t kept = 0;
    OWN(free_at) int32_t *col = malloc((size_t)s->nk_blocks * sizeof *col);
    double mass;
    for (int64_t i = 0; i < s->nq_blocks; i++)
        kept += sparge_list(s, s->row, i, col, &mass);
    return kept;
}

TEST(causal_topk_counts)
{
    static const struct {
        const char *topk;
        int64_t kept;
        double sparsity;
    } c[] = {{"0.5", 3104, 0.2538}, {"0.25", 1808, 0.5654}, {"0.1", 738, 0.8226}};
    OWN(free_at) float *q = normals(1, 8192 * 16), *k = normals(2, 8192 * 16);
    struct head_in in = plain_head(q, k, 8192, 16, true);
    for (int arch = 0; arch < 2; arch++)
        for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
            char text[64];
            snprintf(text, sizeof text, "select=topk:topk=%s:arch=%s", c[i].topk,
                     arch ? "sm90" : "sm80");
            OWN(sparge_end) struct sparge *s = sparge_on(text, &in);
            int64_t kept = kept_tiles(s);
            ck_assert_int_eq(kept, c[i].kept);
            ck_assert_double_eq_tol(1 - (double)kept / 4160, c[i].sparsity, 5e-5);
            int64_t native = sparge_native_tiles(s->nq_blocks, s->nk_blocks, true);
            if (arch && i == 0)
                ck_assert_double_eq_tol(1 - (double)kept / (double)native, 0.2652, 5e-5);
        }
}

TEST(partial_blocks_are_kept)
{
    OWN(free_at) float *q = normals(1, 200 * 64), *k = normals(2, 200 * 64);
    struct head_in in = plain_head(q, k, 200, 64, false);
    OWN(sparge_end) struct sparge *s = sparge_on("theta=-1:tau=0", &in);
    int32_t col[4];
    double mass;
    ck_assert_int_eq(s->nq_blocks, 2);
    ck_assert_int_eq(s->nk_blocks, 4);
    ck_assert_int_eq(sparge_list(s, s->row, 1, col, &mass), 4);
    ck_assert_double_eq(mass, -1);
    ck_assert_int_eq(sparge_list(s, s->row, 0, col, &mass), 2);
    ck_assert_int_eq(col[1], 3);
    ck_assert_double_gt(mass, 0);
}

TEST(extreme_budgets_keep_everything)
{
    static const char *const text[] = {"theta=1", "theta=-1:tau=1", "profile=paper:theta=0:tau=1",
                                       "theta=-1:tau=1:arch=sm90", "dense=1:tau=0"};
    OWN(free_at) float *q = normals(1, 1920 * 8), *k = normals(2, 1920 * 8);
    for (int causal = 0; causal < 2; causal++)
        for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
            struct head_in in = plain_head(q, k, 1920, 8, causal);
            OWN(sparge_end) struct sparge *s = sparge_on(text[i], &in);
            ck_assert_int_eq(kept_tiles(s),
                             sparge_tiles(s->nq_blocks, s->nk_blocks, &s->rules, causal));
        }
}

TEST(map_rules_by_brute_force)
{
    HEAD(h, golden_code_lm, 5, 0, PREC_F32);
    OWN(sparge_end) struct sparge *s = sparge_on("theta=0.3:tau=0.8:sink=1", &h.in);
    ck_assert_int_eq(s->nq_blocks, 7);
    int32_t col[16];
    double mass;
    for (int64_t i = 0; i < 7; i++) {
        int64_t n = sparge_list(s, s->row, i, col, &mass);
        double P[13], sum = 0, taken = 0;
        bool judged_row = s->qb.s[i] > 0.3 && i < 6;
        for (int64_t j = 0; j < 13; j++) {
            double dot = 0;
            for (int c = 0; c < 64; c++)
                dot += (double)s->qb.mean[i * 64 + c] * s->kb.mean[j * 64 + c];
            bool judged = s->kb.s[j] > 0.3 && j < 12 && j * 64 < (i + 1) * 128;
            P[j] = judged ? exp(dot / 8) : 0;
            sum += P[j];
        }
        /* A judged block is kept iff the mass of all blocks up to it fits below tau (or it leads).
         */
        int64_t e = 0;
        for (int64_t j = 0; j < 13 && j * 64 < (i + 1) * 128; j++) {
            double before = 0;
            for (int64_t k = 0; k < 13; k++)
                before += P[k] > P[j] ? P[k] / sum : 0;
            bool keep =
                !judged_row || P[j] == 0 || j == 0 || before == 0 || before + P[j] / sum <= 0.8;
            if (keep && judged_row && P[j] > 0 && (before == 0 || before + P[j] / sum <= 0.8))
                taken += P[j] / sum;
            ck_assert_int_eq(e < n && col[e] == j, keep);
            e += keep;
        }
        ck_assert_int_eq(e, n);
        if (mass >= 0)
            ck_assert_double_eq_tol(mass, taken, 1e-6);
    }
}

/* x_i = 1 / (4 (i + 20)). Counts of sums on a GPU, from tests/data/gpu_sums.py; rows = rows of the
 * map of all heads. A sequential bf16 sum stands still at 0.5 and keeps everything above it. */
TEST(sixteen_bit_running_sums_are_those_of_a_gpu)
{
    enum { N = 1000 };
    static const double tau[] = {0.3, 0.5, 0.7, 0.8, 0.9, 0.95};
    static const struct {
        int64_t rows;
        enum dtype type;
        int64_t kept[6];
    } c[] = {
        {1, DT_BF16, {45, 126, 299, 453, 690, 847}},
        {1, DT_F16, {45, 124, 301, 459, 694, 852}},
        {100, DT_BF16, {45, 126, 310, 474, 721, 911}},
        {1000, DT_BF16, {45, 124, 316, 500, 846, 1000}},
        {100000, DT_BF16, {45, 124, 316, 500, 846, 1000}},
        {100000, DT_F16, {45, 124, 301, 459, 688, 840}},
        {100000, DT_F32, {45, 124, 301, 458, 694, 852}},
    };
    struct sparge_rules r = rules_of("", 64);
    float x[N];
    for (int i = 0; i < N; i++)
        x[i] = 1 / ((float)i + 20) / 4;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        for (int t = 0; t < 6; t++) {
            r.cdf = c[i].type;
            r.chunk = gpusum_chunk(N, c[i].rows);
            r.tau = tau[t];
            ck_assert_int_eq(sparge_cut(&r, x, N, NULL), c[i].kept[t]);
        }
}

/* Share of blocks kept at tau 0.9, mean over rows of softmax of 1.2 normal: .53 in float whatever
 * the length; bf16 loses sparsity from about 1024 key blocks on, fp16 does not. */
TEST_N(bf16_sums_lose_sparsity_in_long_rows, 3)
{
    enum { MOST = 2048, ROWS = 32 };
    static const struct {
        int64_t n;
        double f32, bf16, f16;
    } c[] = {{512, 0.534, 0.547, 0.534}, {1024, 0.533, 0.617, 0.534}, {2048, 0.532, 0.962, 0.528}};
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    int64_t n = c[_i].n;
    struct sparge_rules r = rules_of("tau=0.9", 64);
    double kept[3] = {0};
    r.chunk = gpusum_chunk(n, 32 * n / 2);
    for (uint64_t row = 0; row < ROWS; row++) {
        static struct sparge_entry e[MOST];
        static float p[MOST];
        double sum = 0;
        for (int64_t j = 0; j < n; j++)
            sum += exp(1.2 * rng_normal(9, row, (uint64_t)j));
        for (int64_t j = 0; j < n; j++)
            e[j].p = (float)(exp(1.2 * rng_normal(9, row, (uint64_t)j)) / sum), e[j].j = (int)j;
        sparge_sort(e, n);
        for (int64_t j = 0; j < n; j++)
            p[j] = e[j].p;
        for (int t = 0; t < 3; t++) {
            r.cdf = types[t];
            kept[t] += (double)sparge_cut(&r, p, n, NULL) / (double)n / ROWS;
        }
    }
    ck_assert_double_eq_tol(kept[0], c[_i].f32, 0.01);
    ck_assert_double_eq_tol(kept[1], c[_i].bf16, 0.02);
    ck_assert_double_eq_tol(kept[2], c[_i].f16, 0.01);
}

/* The sum's tree depends on how many rows the maps of all heads have. */
TEST(chunks_of_the_running_sum)
{
    static const int64_t c[][3] = {{1, 1, 32},         {1000, 1000, 32}, {1000, 500, 64},
                                   {1000, 256, 64},    {1000, 64, 128},  {2048, 1, 1024},
                                   {1 << 20, 1, 1024}, {512, 128, 64},   {2048, 1 << 20, 32}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        ck_assert_int_eq(gpusum_chunk(c[i][0], c[i][1]), c[i][2]);
    OWN(free_at) float *x = normals(3, 64 * 128 * 8);
    struct head_in in = plain_head(x, x, 64 * 128, 8, false);
    for (int heads = 1; heads <= 8; heads *= 8) {
        in.n_heads = heads; /* 64 query and 128 key blocks */
        OWN(sparge_end) struct sparge *s = sparge_on("", &in);
        ck_assert_int_eq(s->rules.chunk, heads == 1 ? 64 : 32);
    }
}

TEST(input_grid_rounds_the_map)
{
    HEAD(h, golden_code_lm, 5, 7, PREC_F32);
    h.in.src_dtype = DT_BF16;
    OWN(sparge_end) struct sparge *bf16 = sparge_on("map_dtype=input", &h.in);
    for (int64_t i = 0; i < bf16->nk_blocks * 64; i++)
        ck_assert_float_eq(bf16->kb.mean[i], dtype_round(DT_BF16, bf16->kb.mean[i]));
    for (int64_t i = 0; i < 770 * 64; i++)
        ck_assert_float_eq(bf16->k[i], dtype_round(DT_BF16, bf16->k[i]));
    h.in.src_dtype = DT_F32; /* becomes fp16, as in the official code */
    OWN(sparge_end) struct sparge *f16 = sparge_on("map_dtype=input", &h.in);
    for (int64_t i = 0; i < 770 * 64; i++)
        ck_assert_float_eq(f16->q[i], dtype_round(DT_F16, h.q[i]));
}
