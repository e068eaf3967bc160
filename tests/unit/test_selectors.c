/* Selectors of serving stacks and video models: masks, recalls and outputs worked out by hand on
 * heads of few distinct tokens. tests/numpy/check_selectors.py has them again on random data. */
#include "tests/harness/methodrun.h"

/* Make a head: every token of q [nq][d] and k [nk][d] `times` times in a row, values like the keys,
 * scale 1. */
static int head_of(const float *q, int64_t nq, const float *k, int64_t nk, int d, int64_t times,
                   bool causal, struct sim_head *h, struct err *err)
{
    OWN(free_at) float *qs = malloc((size_t)(nq * times * d) * sizeof *qs);
    OWN(free_at) float *ks = malloc((size_t)(nk * times * d) * sizeof *ks);
    for (int64_t i = 0; i < nq * times * d; i++)
        qs[i] = q[i / (times * d) * d + i % d];
    for (int64_t i = 0; i < nk * times * d; i++)
        ks[i] = k[i / (times * d) * d + i % d];
    struct head_in in = one_head(qs, ks, ks, nq * times, nk * times, d, causal);
    in.x.scale = 1;
    return head_init(h, &in, PREC_F64, err);
}

/* The units of bk keys that a row keeps whole, as digits; a row that keeps a part of one fails. */
static void assert_units(const char *text, const struct head_in *in, int64_t row, int64_t bk,
                         const char *want)
{
    OWN(free_at) uint8_t *bits = run_bits(text, in);
    const uint8_t *keep = bits + row * in->x.nk;
    char got[64] = {0};
    for (int64_t u = 0, n = 0; u * bk < in->x.nk; u++) {
        for (int64_t j = u * bk; j < (u + 1) * bk && j < in->x.nk; j++)
            ck_assert_int_eq(keep[j], keep[u * bk]);
        if (keep[u * bk])
            n += snprintf(got + n, sizeof got - (size_t)n, "%lld", (long long)u);
    }
    ck_assert_msg(strcmp(got, want) == 0, "%s: row %lld keeps %s, expected %s", text,
                  (long long)row, got, want);
}

/* ---- skip-softmax ---------------------------------------------------------------------------- */

/* A query tile of two rows and four key tiles of two, each token 64 times: 128 x 128. */
static const float skip_q[2][2] = {{1, 0}, {0, 1}};
static const float skip_k[8][2] = {{0, 1},   {1, 0},   {3, -9},    {2, -8},
                                   {-4, -2}, {-3, -5}, {2.9f, -9}, {0, -9}};

static const struct {
    const char *text, *tiles;
    double recall[2];
} skips[] = {
    {"skip-softmax", "0123", {1, 1}},
    {"skip-softmax:lambda=0.05", "013", {0.998650, 0.963204}},
    {"skip-softmax:lambda=0.2", "013", {0.998650, 0.963204}},
    {"skip-softmax:scale_factor=25.6", "013", {0.998650, 0.963204}}, /* 25.6 / 512 = 0.05 */
    {"skip-softmax:lambda=0.05:profile=calib", "013", {0.998650, 0.963204}},
};

TEST_EACH(tiles_far_below_the_maximum_are_skipped, skips)
{
    HEAD(h, head_of, skip_q[0], 2, skip_k[0], 8, 2, 64, false);
    assert_units(skips[_i].text, &h.in, 0, 128, skips[_i].tiles);
    RUN(r, skips[_i].text, &h.in);
    double skipped = 4 - (double)strlen(skips[_i].tiles);
    HAS(&r, 0, "tiles_walked tiles_skipped cost_select_flops", 4, skipped,
        skipped * 128 * 128 * 2 * 2); /* products that nobody else needs */
    HAS(&r, DIGITS(6), "cra_min", skips[_i].recall[1]);
    HAS(&r, 1e-6, "cra_mean", (skips[_i].recall[0] + skips[_i].recall[1]) / 2);
}

/* A tile at the threshold exactly: kernels keep it, the statistics skip it. */
TEST(a_tile_at_the_threshold)
{
    static const float q[] = {1}, k[] = {1, 1, 0, 1};
    HEAD(h, head_of, q, 1, k, 4, 1, 128, false);
    assert_units("skip-softmax:lambda=1", &h.in, 0, 128, "013");
    RUN(r, "skip-softmax:lambda=1:profile=calib", &h.in);
    HAS(&r, 0, "tiles_skipped rows_empty", 4, 128);
}

/* Rows of 64 decide for themselves. */
TEST(a_unit_of_64_rows_skips_more)
{
    HEAD(h, head_of, skip_q[0], 2, skip_k[0], 8, 2, 64, false);
    assert_units("skip-softmax:lambda=0.05:unit=64x128", &h.in, 0, 128, "013");
    assert_units("skip-softmax:lambda=0.05:unit=64x128", &h.in, 64, 128, "0");
}

/* Tiles of weights between the 20 trials: trial k skips k of 20, 2560 keys. The curves through the
 * trials from a tenth to nine tenths, by Gauss-Newton in NumPy: 30.8615 e^(5.02242 S), and by the
 * line through the logarithms 0.0328544 e^(14.469 S). */
TEST(a_scale_factor_is_calibrated)
{
    static const float weight[20] = {1,     2e-6f, 8e-6f, 3e-5f, 8e-5f, 3e-4f, 8e-4f,
                                     3e-3f, 8e-3f, .015f, .03f,  .07f,  .15f,  .25f,
                                     .4f,   .6f,   .75f,  .85f,  .92f,  .97f};
    static const float q[] = {1};
    float k[20];
    for (int i = 0; i < 20; i++)
        k[i] = logf(weight[i]);
    HEAD(h, head_of, q, 1, k, 20, 1, 128, false);
    const struct head_in two[] = {h.in, h.in}; /* heads of one pass: their mean */
    ck_assert_double_eq_tol(calibrated("skip-softmax", two, 2, "scale_factor"), 380.208657, 1e-5);
    ck_assert_double_eq_tol(calibrated("skip-softmax:target=0.8", two, 1, "scale_factor"),
                            1715.476981, 1e-5);
    ck_assert_double_eq_tol(calibrated("skip-softmax:fit=log", two, 1, "scale_factor"), 45.549768,
                            1e-5);
    HEAD(small, head_of, q, 1, k, 1, 1, 128, false);
    OWN(run_free) struct method_run *run = run_of("skip-softmax");
    struct method_ctx ctx = {.seed = 1};
    struct err e = {0};
    ck_assert_int_eq(run->method->search.calibrate(&ctx, run->params, &small.in, 1, NULL, &e),
                     METHOD_SKIP);
    ck_assert_ptr_nonnull(strstr(ctx.skip, "0 of 20 trials skip"));
}

/* ---- nm -------------------------------------------------------------------------------------- */

static const struct {
    const char *text, *keys;
} groups[] = {
    {"nm:recent=0", "0145"},           {"nm:recent=0:n=1", "04"},       {"nm:recent=1:n=1", "047"},
    {"nm:recent=0:n=1:sink=2", "014"}, {"nm:recent=0:n=3:m=8", "0134"}, {"nm:n=4:m=8", "01234567"},
};

/* Scores of the last of eight queries 3 3 1 3 | 4 2 2 1: four keys of 3 tie. */
TEST_EACH(the_best_of_every_group, groups)
{
    static const float q[] = {1, 1, 1, 1, 1, 1, 1, 1}, k[] = {3, 3, 1, 3, 4, 2, 2, 1};
    HEAD(h, head_of, q, 8, k, 8, 1, 1, true);
    assert_units(groups[_i].text, &h.in, 7, 1, groups[_i].keys);
    HEAD(even, head_of, q, 8, q, 8, 1, 1, true);
    assert_units("nm:recent=0:n=1", &even.in, 7, 1, "04");
}

/* ---- pooled blocks --------------------------------------------------------------------------- */

/* Blocks of 64 keys that the first block of queries keeps of n, and the number that a share of them
 * comes to in binary. */
static const struct {
    const char *text;
    int64_t n, kept;
} numbers[] = {
    {"vsa:sparsity=0.9", 10, 1},
    {"vsa:sparsity=0.85", 10, 2},
    {"vsa:sparsity=0.9", 468, 47},
    {"vsa:sparsity=0.8", 5, 1},
    {"vsa:sparsity=0.5", 7, 4},
    {"vsa:sparsity=0.7", 10, 4}, /* 0.3 times 10 is above 3 */
    {"vsa:sparsity=0.45", 100, 56},
    {"sla:topk=0.1", 3, 0},
    {"sla:topk=0.34", 3, 1},
    {"sla:topk=0.5", 3, 1},
    {"sla:topk=0.7", 3, 2},
    {"subblock:skip_first_steps=0:min_seq=0", 512, 128},
    {"subblock:skip_first_steps=0:min_seq=0", 100, 32},
    {"subblock:skip_first_steps=0:min_seq=0", 5, 5},
    {"subblock:skip_first_steps=0:min_seq=0:sparsity=0.9", 1000, 104},
};

TEST_EACH(shares_of_blocks, numbers)
{
    int64_t n = 64 * numbers[_i].n;
    OWN(free_at) float *x = calloc((size_t)n, sizeof *x);
    struct head_in in = one_head(x, x, x, n, n, 1, false);
    OWN(sim_head_free) struct sim_head h;
    OWN(mask_free) struct mask m = {0};
    in.geom = (struct geometry){.t = 4, .h = 4, .w = n / 16};
    MUST(head_init(&h, &in, PREC_F64, ERR));
    PREPARED(p, numbers[_i].text, &h.in, 1, NULL);
    MUST(p.me->select(p.state, 0, 64, &m, ERR));
    ck_assert_int_eq(m.bk, 64);
    ck_assert_int_eq(m.ptr[1], numbers[_i].kept);
}

/* Keys without their mean, which is 0 here: scores 6, 2 and -8. */
TEST(the_best_blocks_of_sla)
{
    static const float q[6][2] = {{2, 1}, {2, 1}, {2, 1}, {2, 1}, {2, 1}, {2, 1}};
    static const float k[6][2] = {{4, 0}, {2, 0}, {0, 3}, {0, 1}, {-3, -1}, {-3, -3}};
    HEAD(h, head_of, q[0], 6, k[0], 6, 2, 32, false);
    assert_units("sla:topk=0.34", &h.in, 0, 64, "0");
    assert_units("sla:topk=0.7", &h.in, 100, 64, "01");
}

/* A frame is a patch; the map of their means is .25 .75 | .8 .2. */
static const struct {
    const char *text, *rows[2];
} drafts[] = {
    {"draft:sparsity=0", {"01", "01"}},  {"draft:sparsity=0.25", {"01", "01"}},
    {"draft:sparsity=0.5", {"01", "0"}}, {"draft:sparsity=0.75", {"1", "0"}},
    {"draft:sparsity=1", {"", ""}},
};

TEST_EACH(one_threshold_for_the_map, drafts)
{
    static const float q[2][2] = {{1, 0}, {0, 1}};
    const float k[2][2] = {{logf(0.25f), logf(0.8f)}, {logf(0.75f), logf(0.2f)}};
    HEAD(h, head_of, q[0], 2, k[0], 2, 2, 128, false);
    h.in.geom = (struct geometry){.t = 2, .h = 8, .w = 16};
    for (int i = 0; i < 2; i++)
        assert_units(drafts[_i].text, &h.in, 128 * i, 128, drafts[_i].rows[i]);
}

/* No block of equal ones is below the threshold. */
TEST(an_even_map_stays)
{
    static const float x[] = {1, 1, 1};
    HEAD(h, head_of, x, 3, x, 3, 1, 128, false);
    h.in.geom = (struct geometry){.t = 3, .h = 8, .w = 16};
    assert_units("draft:sparsity=0.9", &h.in, 0, 128, "012");
}

/* Blocks 0 to 3 score 2.006409, 2.695623, 2.006409 and 1.886294 in natural units; those behind them
 * more. Eight stay: the best of the four is the one with the lowest mean. */
TEST(log_sum_exp_of_cells)
{
    static const char *const kept[] = {"0124567", "014567", "14567"};
    float q[44], k[44] = {0, 2, 1, -1, 2, 2, -4, -4, 1, 1, 0, 0, .5f, .5f, .5f, .5f};
    for (int i = 0; i < 44; i++) {
        q[i] = (float[]){1, 1, 0, 2}[i % 4];
        k[i] = i < 16 ? k[i] : 9;
    }
    for (int more = 5; more <= 7; more++) {
        char want[32];
        HEAD(h, head_of, q, 16 + 4 * more, k, 16 + 4 * more, 1, 16, false);
        snprintf(want, sizeof want, "%s%s", kept[more - 5],
                 (const char *[]){"8", "89", "8910"}[more - 5]);
        assert_units("subblock:nq=2:nk=2:skip_first_steps=0:min_seq=0", &h.in, 0, 64, want);
    }
    HEAD(h, head_of, q, 44, k, 44, 1, 16, false);
    RUN(r, "subblock", &h.in);
    HAS(&r, 0, "density_elem", 1);
}

/* ---- moba ------------------------------------------------------------------------------------ */

/* Chunks of two, two of them kept, scale 1 / sqrt(2); in row 6 chunks 0 and 1 tie. */
static const struct {
    int64_t row;
    const char *keys;
    double recall;
} mixtures[] = {
    {0, "0", 1},           {3, "0123", 1},       {4, "234", 0.837024},
    {5, "0145", 0.760662}, {6, "016", 0.429866}, {7, "0167", 0.620699},
};

TEST_EACH(the_chunks_that_fit_a_query, mixtures)
{
    static const float k[8][2] = {{1, 0}, {1, 2}, {-1, 0}, {3, 0}, {0, -2}, {0, 0}, {2, 2}, {0, 1}};
    static const float q[8][2] = {{1, 0},  {0, 1}, {1, 1}, {-1, 0},
                                  {1, -1}, {0, 1}, {1, 0}, {-1, 1}};
    HEAD(h, head_of, q[0], 8, k[0], 8, 2, 1, true);
    h.in.x.scale = h.in.exact->x.scale = sqrt(0.5);
    assert_units("moba:chunk=2:topk=2:dense_last=0", &h.in, mixtures[_i].row, 1, mixtures[_i].keys);
    OWN(free_at) double *keep = calloc(8, sizeof *keep);
    struct recalls rows = {keep, head_lse(&h.in)};
    OWN(record_free) struct record r;
    run_text_carry("moba:chunk=2:topk=2:dense_last=0", &h.in, NULL, 1, sink_recalls, &rows, &r);
    ck_assert_double_eq_tol(keep[mixtures[_i].row], mixtures[_i].recall, 5e-7);
    HAS(&r, 0, "pairs_kept", 24);
    HAS(&r, 1e-15, "density_native", 14.0 / 20);
}

/* ---- sol ------------------------------------------------------------------------------------- */

/* Blocks of two tokens, each 32 times; query block 3. Dense output: 1.911060 and 2.491235. */
static const struct {
    const char *text, *blocks;
    int64_t row;
    double recall, compensated, dropped;
} stand_ins[] = {
    {"tau=1", "023", 192, 0.777860, 1.903517, 1.885661},
    {"tau=1.3", "23", 192, 0.174022, 2.522966, 4.131570},
    {"tau=1.3", "23", 224, 0.321436, 2.743527, 4.135493},
};

static int sink_out(void *ctx, const struct mask *m, const double *out, const double *lse,
                    struct err *err)
{
    memcpy((double *)ctx + m->row0, out, (size_t)(m->row1 - m->row0) * sizeof *out);
    return 0;
}

TEST_EACH(mean_keys_stand_for_blocks, stand_ins)
{
    static const float q[8] = {0, 0, 0, 0, 0, 0, 1, 0.5f}, k[8] = {2, 0, 1, -1, -3, -1, 0, 0};
    static const float v[8] = {1, 3, 2, 2, 3, 5, 4, 4};
    HEAD(h, head_of, q, 8, k, 8, 1, 32, false);
    for (int i = 0; i < 256; i++)
        h.v[i] = v[i / 32];
    for (int on = 0; on < 2; on++) {
        char text[80];
        double out[256], keep[256];
        struct recalls rows = {keep, head_lse(&h.in)};
        snprintf(text, sizeof text, "sol:%s:compensate=%d:dense_layers=0:dense_steps=0",
                 stand_ins[_i].text, on);
        assert_units(text, &h.in, stand_ins[_i].row, 64, stand_ins[_i].blocks);
        OWN(record_free) struct record r, again;
        run_text_carry(text, &h.in, NULL, 1, sink_out, out, &r);
        ck_assert_double_eq_tol(out[stand_ins[_i].row],
                                on ? stand_ins[_i].compensated : stand_ins[_i].dropped, 5e-7);
        run_text_carry(text, &h.in, NULL, 1, sink_recalls, &rows, &again);
        ck_assert_double_eq_tol(keep[stand_ins[_i].row], stand_ins[_i].recall, 5e-7);
        record_free(&again);
    }
}

/* ---- nsa ------------------------------------------------------------------------------------- */

static const float nsa_q[2][8] = {{0, 1, 1, 1, 2, 1, 1, 1}, {0, 0, 1, -1, 1, -1, 1, -1}};

static int two_heads(const struct head_in *in, int g, float *q, struct err *err)
{
    memcpy(q, nsa_q[g], sizeof nsa_q[g]);
    return 0;
}

static const struct {
    int64_t row;
    const char *keys;
} ranked[] = {{0, "0"}, {3, "0123"}, {5, "0145"}, {6, "016"}, {7, "4567"}};

/* Blocks of two, two of them kept by the sum over both heads; in row 5 blocks 0 and 1 tie. */
TEST_EACH(heads_of_a_group_choose_together, ranked)
{
    static const float k[] = {1, 1, 0, 2, -1, 1, 3, 0};
    for (int g = 0; g < 2; g++) {
        HEAD(h, head_of, nsa_q[g], 8, k, 8, 1, 1, true);
        h.in.n_heads = 2;
        h.in.n_kv_heads = 1;
        h.in.head = g;
        assert_skips("nsa:profile=fla:block=2:top=2", &h.in, "the queries of the 2 heads");
        h.in.queries = two_heads;
        assert_units("nsa:profile=fla:block=2:top=2", &h.in, ranked[_i].row, 1, ranked[_i].keys);
    }
}
