/*
 * test_static.c - Longformer, BigBird, LongNet and the Sparse Transformer: counts of their masks,
 * rows by hand, and LongNet's multiplicities against mixed branch outputs.
 */
#include "tests/harness/methodrun.h"

#include <stdio.h>

static int64_t kept(const char *text, int64_t n, bool causal)
{
    return shape_counts(text, n, n, causal, 0, 1, 1).pairs_kept;
}

/* The mask of a small head as bits [nq][nk]. */
static uint8_t *bits_of(const char *text, int64_t nq, int64_t nk, bool causal, int head, int heads)
{
    HEAD(h, random_head, 2, nq, nk, 4, causal, 1, PREC_F64);
    h.in.head = h.in.kv_head = head;
    h.in.n_heads = h.in.n_kv_heads = heads;
    return run_bits(text, &h.in);
}

/* ---- longformer ----------------------------------------------------------------------------- */

TEST_N(longformer_counts, 9)
{
    static const struct {
        int64_t n;
        const char *text;
        int64_t pairs;
    } cases[] = {
        {1024, "longformer:window=64", 127936},
        {1024, "longformer:window=64:global=2", 131770},
        {1024, "longformer:window=64:dilation=2", 123776},
        {1000, "longformer:window=64:global=2", 128578},
        {2048, "longformer:window=256", 984832},
        {2048, "longformer:global=1", 988414},
        {4096, "longformer", 2035456},
        {32768, "longformer", 16744192},
        {1024, "longformer:window=64:variant=no-overlap", 188416},
    };
    ck_assert_int_eq(kept(cases[_i].text, cases[_i].n, false), cases[_i].pairs);
}

TEST_N(longformer_follows_its_rule, 3)
{
    static const struct {
        const char *text;
        int window, dilation, globals[4], n_globals;
        bool blocks;
    } cases[] = {
        {"longformer:window=5:dilation=3:global=2", 5, 3, {0, 1}, 2, false},
        {"longformer:window=4:global=7+30-31", 4, 1, {7, 30, 31}, 3, false},
        {"longformer:window=6:variant=no-overlap:global=50+900", 6, 1, {50}, 1, true},
    };
    enum { NK = 61 };
    for (int shape = 0; shape < 4; shape++) {
        bool causal = shape & 1;
        int64_t nq = shape & 2 ? 20 : NK;
        OWN(free_at) uint8_t *bits = bits_of(cases[_i].text, nq, NK, causal, 0, 1);
        for (int64_t i = 0; i < nq; i++)
            for (int64_t j = 0; j < NK; j++) {
                int64_t p = i + NK - nq, w = cases[_i].window, d = llabs(p - j);
                bool want = cases[_i].blocks
                                ? llabs(p / w - j / w) <= 1
                                : d % cases[_i].dilation == 0 && d / cases[_i].dilation <= w;
                for (int k = 0; k < cases[_i].n_globals; k++)
                    want = want || cases[_i].globals[k] == p || cases[_i].globals[k] == j;
                ck_assert_int_eq(bits[i * NK + j], want && (!causal || j <= p));
            }
    }
}

/* ---- bigbird -------------------------------------------------------------------------------- */

/* Random blocks of row a: what the mask holds beside window and global blocks. */
static int64_t random_of(const struct mask *m, int64_t a, int64_t n, int64_t *out)
{
    int64_t count = 0;
    for (int64_t e = m->ptr[a]; e < m->ptr[a + 1]; e++) {
        int64_t b = m->col[e];
        if (b > 0 && b < n - 1 && (b < a - 1 || b > a + 1))
            out[count++] = b;
    }
    return count;
}

static struct mask mask_of(const char *text, int64_t n, bool causal, uint64_t seed)
{
    struct mask m = {0};
    struct head_in in = {.x = {.nq = n, .nk = n, .d = 1, .dv = 1, .scale = 1, .causal = causal},
                         .n_heads = 1};
    PREPARED(p, text, &in, seed, NULL);
    MUST(p.me->select(p.state, 0, n, &m, ERR));
    MUST(mask_check(&m, ERR));
    return m;
}

static const struct {
    int64_t n, blocks, highest;
} bigbird[] = {{512, 62, 6},    {768, 102, 9},   {1024, 142, 15}, {1280, 182, 9},  {2048, 302, 15},
               {3072, 462, 15}, {4096, 622, 15}, {8192, 1262, 9}, {32768, 5102, 9}};

TEST_N(bigbird_counts_and_places, 9)
{
    int64_t n = bigbird[_i].n, blocks = n / 64;
    for (uint64_t seed = 0; seed < 20; seed++) {
        OWN(mask_free) struct mask m = mask_of("bigbird", n, false, seed);
        int64_t list[64], doubled = 0, total = m.ptr[blocks], highest = 0;
        for (int64_t a = 1; a < blocks - 1; a++) {
            int64_t r = random_of(&m, a, blocks, list);
            /* Only at 1024 tokens the last global block can be drawn. */
            ck_assert_int_ge(r, n == 1024 ? 2 : 3);
            doubled += 3 - r;
            for (int64_t k = 0; k < r; k++) {
                ck_assert(list[k] >= 1 && list[k] <= bigbird[_i].highest);
                highest = list[k] > highest ? list[k] : highest;
            }
        }
        ck_assert_int_eq(total + doubled, bigbird[_i].blocks);
        if (n > 1280)
            ck_assert_int_ge(highest, bigbird[_i].highest - 1);
        ck_assert_int_eq(m.ptr[1], blocks);
        ck_assert_int_eq(total - m.ptr[blocks - 1], blocks);
    }
}

TEST(bigbird_gathers_what_it_draws)
{
    HEAD(h, random_head, 4, 1024, 1024, 4, false, 1, PREC_F32);
    RUN(r, "bigbird", &h.in);
    ck_assert_double_eq(record_get(&r, "blocks_gathered"), 142);
    ck_assert_double_le(record_get(&r, "density_tile") * 256, 142);
    ck_assert_double_ge(record_get(&r, "density_tile") * 256, 142 - 14);
}

TEST(bigbird_without_random_blocks)
{
    static const int64_t cases[][2] = {{1024, 100}, {4096, 436}, {8192, 884}, {32768, 3572}};
    for (int k = 0; k < 4; k++) {
        OWN(mask_free) struct mask m = mask_of("bigbird:random=0", cases[k][0], false, 1);
        ck_assert_int_eq(m.ptr[m.ngroups], cases[k][1]);
    }
}

/* Official rows 1 and 2r+3 leave each other's block out; uniform draws reach the whole sequence. */
TEST(bigbird_scopes)
{
    int64_t list[64], far = 0;
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct mask m = mask_of("bigbird", 8192, false, seed);
        for (int64_t k = random_of(&m, 1, 128, list); k-- > 0;)
            ck_assert_int_ne(list[k], 9);
        for (int64_t k = random_of(&m, 9, 128, list); k-- > 0;)
            ck_assert_int_ne(list[k], 1);
        mask_free(&m);
        m = mask_of("bigbird:rand_scope=uniform", 8192, false, seed);
        for (int64_t a = 1; a < 127; a++) {
            int64_t r = random_of(&m, a, 128, list);
            ck_assert_int_eq(r, 3);
            for (int64_t k = 0; k < r; k++)
                far += list[k] > 64;
        }
        mask_free(&m);
    }
    ck_assert_int_gt(far, 40 * 126);
    /* 10 blocks: the code has no plan, every row still gets three. */
    OWN(mask_free) struct mask m = mask_of("bigbird", 640, false, 1);
    for (int64_t a = 1; a < 9; a++)
        ck_assert_int_eq(random_of(&m, a, 10, list), 3);
}

TEST(bigbird_depends_on_seed_and_head)
{
    OWN(mask_free)
    struct mask a = mask_of("bigbird", 4096, false, 1), b = mask_of("bigbird", 4096, false, 2);
    struct mask_counts c = shape_counts("bigbird", 4096, 4096, false, 1, 4, 1);
    ck_assert_int_eq(a.ptr[64], b.ptr[64]);
    ck_assert_int_ne(memcmp(a.col, b.col, (size_t)a.ptr[64] * sizeof *a.col), 0);
    ck_assert_int_eq(c.tiles_kept, 622);
}

TEST_N(bigbird_causal_baseline, 4)
{
    static const struct {
        int64_t n, pairs;
        double of_triangle;
    } cases[] = {{16384, 39522717, 0.294449},
                 {32768, 158088246, 0.294453},
                 {65536, 632237641, 0.294404},
                 {131072, 2528940078, 0.294405}};
    struct mask_counts c =
        shape_counts("bigbird:preset=sample", cases[_i].n, cases[_i].n, true, 0, 1, 1);
    ck_assert_int_eq(c.pairs_kept, cases[_i].pairs);
    assert_printed((double)c.pairs_kept / (double)c.pairs_allowed, cases[_i].of_triangle, 6);
}

TEST(bigbird_causal_with_random_blocks)
{
    enum { N = 1200, W = 96 };
    OWN(free_at)
    uint8_t *bits = bits_of("bigbird:preset=sample:random=2:block=16", N, N, true, 0, 1);
    for (int64_t i = 0; i < N; i++) {
        int64_t other = 0;
        for (int64_t j = 0; j <= i; j++) {
            bool fixed = i - j < W || j < W;
            ck_assert(!fixed || bits[i * N + j]);
            other += bits[i * N + j] && !fixed;
        }
        ck_assert_int_le(other, 2 * 16);
    }
}

/* ---- longnet -------------------------------------------------------------------------------- */

static const struct {
    int64_t n;
    const char *text;
    int heads, first, last;
    int64_t sum, pairs, most, sum_causal, pairs_causal, most_causal;
} longnet[] = {
    {4096, "longnet:segments=2048+4096:ratios=1+2", 8, 0, 7, 12582912, 10485760, 2, 6294528,
     5244928, 2},
    {1024, "longnet:segments=128+256+512+1024:ratios=1+2+4+8", 8, 0, 7, 245760, 188416, 4, 123840,
     94720, 4},
    {1000, "longnet:segments=256+512:ratios=1+2", 4, 0, 3, 375504, 312896, 2, 188502, 156948, 2},
    {1024, "longnet:segments=256+1024:ratios=1+4", 12, 0, 11, 327680, 311296, 2, 164480, 156160, 2},
};

/* sum of W, distinct pairs, largest W. */
static void longnet_counts(const char *text, int64_t n, bool causal, int head, int heads,
                           double *sum, double *pairs, double *most)
{
    HEAD(h, random_head, 5, n, n, 2, causal, 1, PREC_F32);
    h.in.head = h.in.kv_head = head;
    h.in.n_heads = h.in.n_kv_heads = heads;
    RUN(r, text, &h.in);
    *sum = record_get(&r, "pairs_exec");
    *pairs = record_get(&r, "pairs_kept");
    *most = record_get(&r, "weight_max");
}

TEST_N(longnet_multiplicities, 4)
{
    for (int k = 0; k < 4; k++) {
        bool causal = k & 1;
        double sum, pairs, most;
        longnet_counts(longnet[_i].text, longnet[_i].n, causal,
                       k & 2 ? longnet[_i].last : longnet[_i].first, longnet[_i].heads, &sum,
                       &pairs, &most);
        ck_assert_double_eq(sum, (double)(causal ? longnet[_i].sum_causal : longnet[_i].sum));
        ck_assert_double_eq(pairs, (double)(causal ? longnet[_i].pairs_causal : longnet[_i].pairs));
        ck_assert_double_eq(most, (double)(causal ? longnet[_i].most_causal : longnet[_i].most));
    }
}

TEST(longnet_rows_that_no_branch_selects)
{
    HEAD(h, random_head, 5, 1024, 1024, 8, false, 1, PREC_F64);
    h.in.head = h.in.kv_head = 3;
    h.in.n_heads = h.in.n_kv_heads = 8;
    RUN(r, "longnet:segments=256+512:ratios=2+4", &h.in);
    HAS(&r, 0, "pairs_exec pairs_kept weight_max rows_empty", 98304, 98304, 1, 256);
}

/* Phases with H = 12: the first selected key of the last row of a long segment tells the phase. */
TEST(longnet_phases_of_heads)
{
    static const int ratios[] = {4, 6, 12, 16};
    for (int k = 0; k < 4; k++)
        for (int head = 0; head < 12; head++) {
            int r = ratios[k], want = k == 0 ? head / 3 : k == 1 ? head / 2 : head;
            char text[64];
            int64_t found = -1;
            snprintf(text, sizeof text, "longnet:segments=48:ratios=%d", r);
            OWN(free_at) uint8_t *bits = bits_of(text, 48, 48, false, head, 12);
            for (int64_t i = 0; i < 48 && found < 0; i++)
                if (bits[i * 48 + i])
                    found = i;
            ck_assert_int_eq(found, want);
            for (int64_t i = 0; i < 48; i++)
                for (int64_t j = 0; j < 48; j++)
                    ck_assert_int_eq(bits[i * 48 + j], i % r == want && j % r == want);
        }
}

TEST_N(longnet_one_branch_is_dense_and_two_equal_ones_weigh_double, 2)
{
    HEAD(h, random_head, 6, 90, 90, 16, _i, 1.3, PREC_F64);
    RUN_HAS("longnet:segments=90:ratios=1", &h.in, 1e-12, "density_elem err_max mass_est_mean", 1,
            0, 1);
    RUN_HAS("longnet:segments=90+90:ratios=1+1", &h.in, 1e-12,
            "density_elem density_tile density_exec err_max err_lse_mean mass_est_mean mass_est_sd "
            "cra_min",
            1, 1, 2, 0, log(2), 2, 0, 1);
}

struct outputs {
    double *out, *lse;
};

static void outputs_free(struct outputs *o)
{
    free(o->out);
    free(o->lse);
}

static int keep_outputs(void *ctx, const struct mask *m, const double *out, const double *lse,
                        struct err *err)
{
    struct outputs *o = ctx;
    int64_t n = m->row1 - m->row0;
    memcpy(o->out + m->row0 * 16, out, (size_t)(n * 16) * sizeof *out);
    memcpy(o->lse + m->row0, lse, (size_t)n * sizeof *lse);
    return 0;
}

static struct outputs outputs_of(const char *text, const struct head_in *in)
{
    struct outputs o = {calloc((size_t)(in->x.nq * 16), sizeof(double)),
                        calloc((size_t)in->x.nq, sizeof(double))};
    OWN(record_free) struct record r;
    run_text_carry(text, in, NULL, 1, keep_outputs, &o, &r);
    return o;
}

/* W form = branch outputs mixed by softmax over their LSE; with official_pad the zero keys of a
 * branch's padding belong to its own LSE. */
TEST_N(longnet_mixes_branches_by_their_normalisers, 4)
{
    enum { N = 100 };
    bool causal = _i & 1;
    const char *pad = _i & 2 ? ":official_pad=1" : "";
    char text[96];
    HEAD(h, random_head, 7, N, N, 16, causal, 1.2, PREC_F64);
    h.in.head = h.in.kv_head = 1;
    h.in.n_heads = h.in.n_kv_heads = 4;
    snprintf(text, sizeof text, "longnet:segments=24+70:ratios=1+3%s", pad);
    OWN(outputs_free) struct outputs all = outputs_of(text, &h.in);
    snprintf(text, sizeof text, "longnet:segments=24:ratios=1%s", pad);
    OWN(outputs_free) struct outputs one = outputs_of(text, &h.in);
    snprintf(text, sizeof text, "longnet:segments=70:ratios=3%s", pad);
    OWN(outputs_free) struct outputs three = outputs_of(text, &h.in);
    for (int64_t i = 0; i < N; i++) {
        double top = fmax(one.lse[i], three.lse[i]);
        double w = exp(one.lse[i] - top), v = exp(three.lse[i] - top);
        ck_assert_double_eq_tol(all.lse[i], top + log(w + v), 1e-12);
        for (int64_t c = 16 * i; c < 16 * i + 16; c++)
            ck_assert_double_eq_tol(all.out[c], (w * one.out[c] + v * three.out[c]) / (w + v),
                                    1e-12);
    }
}

/* Number of branches (w, r) in which positions i and j meet, phases of head 3 of 4. */
static int multiplicity(const int64_t (*branch)[2], int64_t n, int64_t i, int64_t j)
{
    int count = 0;
    for (int b = 0; b < 2; b++) {
        int64_t w = branch[b][0] < n ? branch[b][0] : n, r = branch[b][1];
        int64_t phase = 3 / ((4 + r - 1) / r);
        count += i / w == j / w && i % w % r == phase && j % w % r == phase;
    }
    return count;
}

/* Rows in several chunks, rectangles either way, both precisions. */
TEST_N(longnet_is_softmax_with_multiplicities, 5)
{
    static const struct {
        int64_t nq, nk, branch[2][2];
        bool causal;
        enum precision prec;
    } cases[] = {{2200, 2200, {{600, 1}, {3000, 3}}, true, PREC_F32},
                 {2200, 2200, {{600, 2}, {1500, 3}}, false, PREC_F64},
                 {150, 210, {{24, 1}, {70, 7}}, true, PREC_F64},
                 {150, 210, {{24, 2}, {70, 3}}, false, PREC_F64},
                 {210, 150, {{24, 1}, {70, 3}}, true, PREC_F64}};
    int64_t nq = cases[_i].nq, nk = cases[_i].nk;
    const int64_t(*branch)[2] = cases[_i].branch;
    double tol = cases[_i].prec == PREC_F64 ? 1e-12 : 2e-5;
    char text[96];
    HEAD(h, random_head, 9, nq, nk, 16, cases[_i].causal, 1.2, cases[_i].prec);
    h.in.head = h.in.kv_head = 3;
    h.in.n_heads = h.in.n_kv_heads = 4;
    snprintf(text, sizeof text, "longnet:segments=%d+%d:ratios=%d+%d", (int)branch[0][0],
             (int)branch[1][0], (int)branch[0][1], (int)branch[1][1]);
    OWN(outputs_free) struct outputs got = outputs_of(text, &h.in);
    OWN(free_at) double *w = calloc((size_t)nk, sizeof *w);
    for (int64_t i = 0; i < nq; i++) {
        double out[16];
        int64_t p = i + nk - nq;
        for (int64_t j = 0; j < nk; j++)
            w[j] = p >= 0 && (j <= p || !cases[_i].causal) ? multiplicity(branch, nk, p, j) : 0;
        double lse = weighted_row(&h.in.x, i, w, 0, out);
        ck_assert(isinf(lse) ? isinf(got.lse[i]) : fabs(got.lse[i] - lse) <= tol);
        for (int c = 0; c < 16; c++)
            ck_assert_double_eq_tol(got.out[i * 16 + c], out[c], tol);
    }
}

/* Pairs of all branches and the largest weight, from the masks or, where those stay on a device,
 * from the branches. */
static void longnet_weights(const char *text, const struct head_in *in, bool device, double *sum,
                            double *most)
{
    OWN(mask_free) struct mask m = {0};
    OWN(record_free) struct record r;
    PREPARED(p, text, in, 0, NULL);
    if (device)
        MUST(p.me->device.take(p.state, &(struct device_choice){.exec = &m}, ERR));
    else
        MUST(p.me->select(p.state, 0, in->x.nq, &m, ERR));
    ck_assert(m.exec_bq == 1 && m.exec_bk == 1);
    record_init(&r);
    MUST(p.me->report(p.state, &r, ERR));
    *sum = record_get(&r, "pairs_exec");
    *most = record_get(&r, "weight_max");
}

TEST_N(longnet_weighs_masks_that_stay_on_a_device, 36)
{
    static const char *const texts[] = {"longnet:segments=32+100:ratios=1+3",
                                        "longnet:segments=70+300:ratios=2+5",
                                        "longnet:segments=48:ratios=4"};
    static const int64_t sizes[][2] = {{300, 300}, {200, 333}, {333, 200}};
    int64_t nq = sizes[_i / 3 % 3][0], nk = sizes[_i / 3 % 3][1];
    struct head_in in = {
        .x = {.nq = nq, .nk = nk, .d = 1, .dv = 1, .scale = 1, .causal = _i / 9 % 2},
        .head = _i / 18 * 5,
        .n_heads = 6};
    double sum[2], most[2];
    for (int device = 0; device < 2; device++)
        longnet_weights(texts[_i % 3], &in, device, sum + device, most + device);
    ck_assert_msg(sum[0] == sum[1] && most[0] == most[1], "%g, %g and %g, %g", sum[0], most[0],
                  sum[1], most[1]);
}

/* 10 tokens in segments of 8 with ratio 3, one head: phase 0. The second segment holds tokens 8, 9
 * and six padded ones; every segment is padded to 9. Selected places 0, 3, 6. */
TEST(longnet_counts_the_padding_of_the_code)
{
    OWN(sim_head_free) struct sim_head h;
    float zero[10 * 16] = {0}, v[10 * 16];
    for (int k = 0; k < 160; k++)
        v[k] = 1;
    struct head_in in = one_head(zero, zero, v, 10, 10, 16, false);
    MUST(head_init(&h, &in, PREC_F64, ERR));
    OWN(outputs_free)
    struct outputs o = outputs_of("longnet:segments=8:ratios=3:official_pad=1", &h.in);
    ck_assert_double_eq_tol(o.lse[0], log(3), 1e-12); /* 0, 3, 6 */
    ck_assert_double_eq_tol(o.out[0], 1, 1e-12);
    ck_assert_double_eq_tol(o.lse[8], log(3), 1e-12); /* 8, and two zero keys */
    ck_assert_double_eq_tol(o.out[8 * 16], 1.0 / 3, 1e-12);
    ck_assert(isinf(o.lse[1]) && o.out[16] == 0);
}

/* ---- sparse transformer --------------------------------------------------------------------- */

TEST_N(sparse_transformer_counts, 4)
{
    static const int64_t cases[][5] = {{1000, 32, 31504, 16128, 46632},
                                       {1024, 32, 32272, 16896, 48144},
                                       {4096, 64, 260128, 133120, 389152},
                                       {16384, 128, 2089024, 1056768, 3129408}};
    static const char *const patterns[] = {"local", "strided", "merged"};
    for (int k = 0; k < 3; k++) {
        char text[80];
        snprintf(text, sizeof text, "sparse-transformer:pattern=%s:stride=%lld", patterns[k],
                 (long long)cases[_i][1]);
        ck_assert_int_eq(kept(text, cases[_i][0], true), cases[_i][2 + k]);
    }
}

TEST(sparse_transformer_fixed_blocks)
{
    for (int head = 0; head < 5; head++) {
        struct mask_counts c =
            shape_counts("sparse-transformer:pattern=fixed", 1024, 1024, true, head, 8, 1);
        ck_assert_int_eq(c.tiles_kept, 192);
        ck_assert_int_eq(c.pairs_kept, 180736);
    }
    struct mask_counts c =
        shape_counts("sparse-transformer:pattern=fixed:verts=1", 1024, 1024, true, 3, 8, 1);
    ck_assert_int_eq(c.tiles_kept, 192);
    ck_assert_int_eq(c.pairs_kept, 180736);
}

/* Summary blocks by hand: 4 blocks of 8 per chunk, head 1 of two positions of one block. */
TEST(sparse_transformer_fixed_by_hand)
{
    enum { N = 96, B = 8 };
    OWN(free_at)
    uint8_t *bits =
        bits_of("sparse-transformer:pattern=fixed:stride=32:block=8:verts=2", N, N, true, 1, 2);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            int a = i / B, b = j / B;
            ck_assert_int_eq(bits[i * N + j], j <= i && (a / 4 == b / 4 || b % 4 == 2));
        }
}

TEST(sparse_transformer_local_block_layout)
{
    static const struct {
        const char *text;
        int64_t tiles;
    } cases[] = {{"sparse-transformer:pattern=local:stride=32", 63},
                 {"sparse-transformer:pattern=local:stride=128", 150}};
    for (int k = 0; k < 2; k++) {
        OWN(mask_free) struct mask m = mask_of(cases[k].text, 1024, true, 0);
        int64_t tiles, allowed;
        MUST(mask_tiles_kept(&m, 32, 32, &tiles, &allowed, ERR));
        ck_assert_int_eq(tiles, cases[k].tiles);
    }
}

TEST(sparse_transformer_counts_from_absolute_positions)
{
    enum { NQ = 10, NK = 45, L = 7 };
    static const char *const texts[] = {"sparse-transformer:pattern=local:stride=7",
                                        "sparse-transformer:stride=7",
                                        "sparse-transformer:pattern=merged:stride=7"};
    for (int k = 0; k < 3; k++) {
        OWN(free_at) uint8_t *bits = bits_of(texts[k], NQ, NK, true, 0, 1);
        for (int i = 0; i < NQ; i++)
            for (int j = 0; j < NK; j++) {
                int d = i + NK - NQ - j;
                bool local = d >= 0 && d < L, strided = d >= 0 && d % L == 0;
                ck_assert_int_eq(bits[i * NK + j], k == 0   ? local
                                                   : k == 1 ? strided
                                                            : local || strided);
            }
    }
}
