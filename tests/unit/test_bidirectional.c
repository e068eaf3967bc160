/*
 * test_bidirectional.c - MInference and FlexPrefill on heads without a causal limit, against
 * tests/data/bidirectional.py, and the sizes that they search for a sparsity.
 */
#include "tests/harness/conform.h"

#define MINF "minference:v=24:s=16:force_cols=4:force_dists=3:min_v=1:min_s=1"
#define FEW "minference:v=3:s=1:force_cols=0:force_dists=0:min_v=1:min_s=1"
#define OFFICIAL "flexprefill:block=64:min_budget=0"
#define PAPER "flexprefill:block=32:min_budget=64:profile=paper"

/* Pairs, mean recall; blocks and columns of lists, or the distance of the pattern test; -1: none.
 */
struct golden {
    const char *text;
    double pairs, mean, first, second;
};

static const struct golden deep[] = {
    {MINF ":mask=requested", 16426, 0.667230549, -1, -1},
    {MINF, 145728, 0.997941936, 36, 4},
    {"minference:pattern=block:top=2", 49152, 0.441762731, -1, -1},
    {OFFICIAL ":gamma=0.7:tau=0", 45056, 0.478560634, 0.234326008, -1},
    {OFFICIAL ":gamma=0.8:tau=0.8326", 90112, 0.723500532, 0.234326008, -1},
    {PAPER ":gamma=0.7:tau=0", 147456, 1, 0.297427821, -1},
    {PAPER ":gamma=0.8:tau=0.8326", 40960, 0.737989583, 0.297427821, -1},
};
static const struct golden shallow[] = {
    {MINF ":mask=requested", 15282, 0.139158689, -1, -1},
    {MINF, 71680, 0.498169333, 18, 77},
    {"minference:pattern=block:top=2", 49152, 0.409863316, -1, -1},
    {OFFICIAL ":gamma=0.7:tau=0", 73728, 0.518044105, 0.002568826, -1},
    {OFFICIAL ":gamma=0.8:tau=0.8326", 118784, 0.847506715, 0.002568826, -1},
    {PAPER ":gamma=0.7:tau=0", 147456, 1, 0.003716801, -1},
    {PAPER ":gamma=0.8:tau=0.8326", 107520, 0.812889048, 0.003716801, -1},
};
enum { N_GOLDEN = sizeof deep / sizeof *deep };

TEST_N(masks_of_the_video_model, 2 * N_GOLDEN)
{
    const struct golden *g = _i < N_GOLDEN ? &deep[_i] : &shallow[_i - N_GOLDEN];
    bool first = _i < N_GOLDEN, lists = g->second >= 0;
    HEAD(h, golden_video, first ? 3 : 0, first ? 5 : 0, first ? 0 : 1, PREC_F64);
    RUN(r, g->text, &h.in);
    ck_assert_double_eq(record_get(&r, "pairs_kept"), g->pairs);
    ck_assert_double_eq_tol(record_get(&r, "cra_mean"), g->mean, 2e-8);
    if (lists) {
        ck_assert_double_eq(record_get(&r, "list_blocks"), g->first);
        ck_assert_double_eq(record_get(&r, "list_columns"), g->second);
        ck_assert_double_eq(record_get(&r, "pairs_exec"), 4096 * g->first + 64 * g->second);
    } else if (g->first >= 0) {
        ck_assert_double_eq_tol(record_get(&r, "js_distance"), g->first, 2e-7);
        ck_assert_double_eq_tol(record_get(&r, "density_native"), g->pairs / 147456, 1e-12);
    }
}

/* What is asked for is also what is counted. */
TEST(requested_pairs_are_counted)
{
    static const char *const texts[] = {MINF ":mask=requested", FEW ":mask=requested",
                                        "minference:v=300:s=200:mask=requested"};
    for (int k = 0; k < 3; k++)
        for (int n = 1; n < 200; n += 61) {
            OWN(sim_head_free) struct sim_head h;
            conform_head(NORMAL, n, n, false, PREC_F64, &h);
            RUN(r, texts[k], &h.in);
            ck_assert_double_eq_tol(record_get(&r, "density_requested"),
                                    record_get(&r, "density_elem"), 1e-12);
        }
}

TEST(shapes)
{
    OWN(sim_head_free) struct sim_head h;
    conform_head(NORMAL, 100, 100, false, PREC_F64, &h);
    RUN(r, "minference:pattern=ashape:init=3:local=10", &h.in);
    int64_t kept = 0;
    for (int i = 0; i < 100; i++)
        for (int j = 0; j < 100; j++)
            kept += j < 3 || abs(i - j) < 10;
    ck_assert_double_eq(record_get(&r, "pairs_kept"), (double)kept);
}

/* ---- sparsity= ------------------------------------------------------------------------------ */

static const struct {
    const char *text;
    double sparsity, within;
} targets[] = {
    {"minference:sparsity=0.5", 0.5, 0.03},
    {"minference:sparsity=0.7", 0.7, 0.03},
    {"minference:pattern=block:sparsity=0.5", 0.5, 0.03},
    {"flexprefill:min_budget=0:sparsity=0.35", 0.35, 0.12},
    {"flexprefill:block=32:min_budget=0:profile=paper:sparsity=0.6", 0.6, 0.05},
};

TEST_N(a_sparsity_is_reached, 5)
{
    for (int causal = 0; causal < 2; causal++) {
        HEAD(h, random_head, 8, 2048, 2048, 32, causal, 1.5, PREC_F32);
        RUN(r, targets[_i].text, &h.in);
        double reached = record_get(&r, "sparsity_reached");
        double block = strstr(targets[_i].text, "block=32") ? 32
                       : strstr(targets[_i].text, "flex")   ? 128
                                                            : 64;
        double all = 2048 / block;
        double dense = block * block * (causal ? all * (all + 1) / 2 : all * all);
        ck_assert_msg(fabs(reached - targets[_i].sparsity) <= targets[_i].within, "%s: %g",
                      targets[_i].text, reached);
        /* It is the share that the record's own counts give. */
        ck_assert_double_eq_tol(1 - record_get(&r, "pairs_exec") / dense, reached, 1e-9);
    }
}

/* What cannot be reached says how far it came: 100 distances are forced. */
TEST(a_sparsity_that_cannot_be_reached)
{
    HEAD(h, random_head, 8, 300, 300, 32, true, 1, PREC_F32);
    RUN(r, "flexprefill:sparsity=0.5", &h.in);
    ck_assert_double_eq(record_get(&r, "sparsity_reached"), 0); /* too short: dense */
    assert_refused("minference:sparsity=0.5:v=100", "leave v out");
    assert_refused("minference:sparsity=0.5:pattern=ashape", "sparsity");
    assert_refused("minference:sparsity=0.5:preset=light", "leave preset out");
    assert_refused("flexprefill:sparsity=0.5:gamma=0.9", "leave gamma out");
    assert_refused("flexprefill:sparsity=1", "sparsity");
}
