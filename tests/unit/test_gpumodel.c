/*
 * test_gpumodel.c - the cost model: cases worked out by hand, invariants, and lines that its
 * constants were not fitted on. tests/data/model_lines.csv has cycles that hardware counters of an
 * H200 told: of benchmarks ("cycles"), of INT8 and of kernels that skip P V, where nothing is
 * skipped ("filters"), and of calls of two models under all methods; and medians of times, with the
 * product of 8192^3 matrices beside them, which tells the clock: of an H200 ("tables"), another
 * one, an H100.
 */
#include "core/gpumodel.h"
#include "core/intmath.h"
#include "core/sort.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct gpu_model h200;

static struct kernel_model *named(const char *name)
{
    for (int i = 0; i < h200.n; i++)
        if (strcmp(h200.k[i].name, name) == 0)
            return h200.k + i;
    ck_abort_msg("no kernel %s", name);
    return NULL;
}

/* Numbers of the cases by hand, which do not change when kernels are measured again. */
static void begin(void)
{
    static const struct {
        const char *name;
        double s, half;
    } by_hand[] = {{"hd128-dense", 2104, 1},
                   {"hd128-128x128", 2087, 1},
                   {"hd128-64x64", 2516, 1.28},
                   {"hd64-128x128", 2550, 1},
                   {"filter-hd64-128x64", 2546, 1}};
    MUST(gpu_model_load("H200", &h200, ERR));
    h200.start_cycles = 0;
    h200.sustained_clock = 1.392;
    MUST(gpu_model_clock(&h200, "sustained", ERR));
    for (size_t i = 0; i < sizeof by_hand / sizeof *by_hand; i++) {
        named(by_hand[i].name)->s = by_hand[i].s;
        named(by_hand[i].name)->half = by_hand[i].half;
        named(by_hand[i].name)->item = 0.9;
    }
}

FIXTURE(begin, NULL)

static struct gpu_launch launch(const struct gpu_model *g, const char *kernel,
                                const struct work_counts *w, double ghz)
{
    const struct kernel_model *k = named(kernel);
    struct gpu_model at = *g;
    struct gpu_launch l;
    char clock[32];
    snprintf(clock, sizeof clock, "%.17g", ghz);
    if (ghz > 0)
        MUST(gpu_model_clock(&at, clock, ERR));
    MUST(gpu_model_launch(&at, k, w, k->bn, 0, &l, ERR));
    return l;
}

/* By hand. The skewed mask has 64 rows of 256 stages and 960 of
 * 5.12 in the mean; its rows are whole, or cut. */
static const struct golden {
    const char *kernel;
    struct work_counts w;
    double cycles, us; /* at 1.392 GHz; 0: not asked */
    bool whole;
} goldens[] = {{"hd128-dense", {1, 32, 0, 0, 32, 32}, 69221.6, 0, true},
               {"hd128-dense", {512, 512 * 32, 0, 0, 32, 32}, 276886.4, 200.0, false},
               {"hd128-128x128", {4096, 4096 * 26, 0, 0, 26, 26}, 1754572.5, 1263.6, false},
               {"hd128-64x64", {1, 1, 0, 2, 3, 3}, 8000.9, 0, true},
               {"hd128-dense", {2, 3, 2, 0, 2, 1}, 6901.1, 0, true},
               {"hd128-128x128", {1024, 64 * 256 + 4915, 0, 0, 256, 5}, 536150.3, 0, true},
               {"hd128-128x128", {1024, 64 * 256 + 4915, 0, 0, 256, 5}, 363843.1, 0, false},
               {"filter-hd64-128x64", {1, 32, 0, 0, 32, 32}, 2 * 32.9 * 2546, 0, true},
               {"hd128-dense", {0, 0, 0, 0, 0, 0}, 0, 1.1, false}};

TEST_EACH(cases_by_hand, goldens)
{
    const struct golden *c = goldens + _i;
    /* A row alone would be cut where that is faster: ask for whole rows. */
    h200.cut_stages = c->whole ? 1e9 : h200.cut_stages;
    struct gpu_launch l = launch(&h200, c->kernel, &c->w, 1.392);
    ck_assert_double_eq_tol(l.cycles, c->cycles, 0.1);
    if (c->us > 0)
        ck_assert_double_eq_tol(l.ns / 1e3, c->us, 0.06);
}

/* Work of dense attention: 256 causal tokens are rows of 1 and 2 stages, one masked each. */
TEST(work_of_dense_attention)
{
    struct work_counts w = work_of_dense(256, 256, true, 128, 128, 1);
    ck_assert_int_eq(w.rows, 2);
    ck_assert_int_eq(w.stages, 3);
    ck_assert_int_eq(w.masked, 2);
    ck_assert_int_eq(w.longest, 2);
    ck_assert_int_eq(w.shortest, 1);
    w = work_of_dense(4096, 4096, false, 128, 128, 16);
    ck_assert_int_eq(w.stages, 512 * 32);
    ck_assert_int_eq(w.masked, 0);
}

/* The clock by the tensor cores' share u of the cycles, through kernels that have it. */
static const struct clock_case {
    const char *state;
    double stage, ghz;
} clocks[] = {{"sustained", 2048 / 0.97, 1.392},
              {"sustained", 2048 / 0.667, 1.464},
              {"burst", 2048 / 0.40, 1.886},
              {"burst", 2048 / 0.26, 1.98}, /* no higher than the boost clock */
              {"burst", 2048 / 0.10, 1.98},
              {"1.5", 2104, 1.5}};

TEST_EACH(clock_states, clocks)
{
    const struct clock_case *c = clocks + _i;
    const struct work_counts w = {132, 132 * 100, 0, 0, 100, 100};
    struct kernel_model k = *named("hd128-dense");
    struct gpu_launch l;
    k.item = 0;
    k.s = c->stage;
    MUST(gpu_model_clock(&h200, c->state, ERR));
    MUST(gpu_model_launch(&h200, &k, &w, 128, 0, &l, ERR));
    ck_assert_double_eq_tol(2048.0 * 100 / l.cycles, 2048 / c->stage, 1e-9);
    ck_assert_double_eq_tol(l.ghz, c->ghz, 0.001);
}

static const char *const bad_clocks[] = {"fast", "0", "-1", "1.5x", ""};
TEST_EACH(a_clock_is_a_state_or_ghz, bad_clocks)
{
    struct err err = {0};
    assert_fails(gpu_model_clock(&h200, bad_clocks[_i], &err), &err, ERR_USAGE, "GHz");
}

/* E is between the roofline and what any greedy order needs; more work never takes less. */
TEST_N(bounds, 1000)
{
    struct work_counts w = {0};
    uint64_t x = 88172645463325252ull + (uint64_t)_i;
    int64_t rows = 1 + _i % 700, n[700];
    double s = 2087, item = 0.9 * s, end[132] = {0}, last = 0;
    for (int64_t i = 0; i < rows; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        n[i] = 1 + (int64_t)(x % (1 + (uint64_t)_i % 90));
        w.rows++;
        w.stages += n[i];
        w.longest = MAX(w.longest, n[i]);
        w.shortest = w.shortest ? MIN(w.shortest, n[i]) : n[i];
        int at = 0;
        for (int m = 1; m < 132; m++)
            at = end[m] < end[at] ? m : at;
        end[at] += (double)n[i] * s + item;
        last = fmax(last, end[at]);
    }
    struct gpu_launch l = launch(&h200, "hd128-128x128", &w, 1.4);
    double longest = (double)w.longest * s + item;
    ck_assert_double_ge(l.cycles, 2048.0 * (double)w.stages / 132);
    ck_assert_double_le(l.cycles, last * (1 + 1e-12));
    ck_assert_double_le(last, l.mean * (1 - 1.0 / 132) + longest + 1e-6);
    struct work_counts more = w;
    more.stages++;
    ck_assert_double_ge(launch(&h200, "hd128-128x128", &more, 1.4).cycles, l.cycles);
    more.rows++;
    ck_assert_double_ge(launch(&h200, "hd128-128x128", &more, 1.4).cycles, l.cycles);
    ck_assert_double_le(launch(&h200, "hd128-128x128", &w, 1.5).ns, l.ns);
    struct gpu_model wide = h200;
    MUST(gpu_model_change(&wide, "sms=264", ERR));
    ck_assert_double_le(launch(&wide, "hd128-128x128", &w, 1.4).cycles, l.cycles);
    MUST(gpu_model_change(&wide, "sms=132,exp=1,tensor=1,copy=4290,select=1", ERR));
    ck_assert_double_eq(launch(&wide, "hd128-128x128", &w, 1.4).ns, l.ns);
}

/* Many equal rows wait for nothing, a row alone takes its time. Without anything beside products a
 * launch is the roofline, of the tensor cores or of memory. */
TEST(limits)
{
    const struct work_counts many = {132000, 132000 * 64, 0, 0, 64, 64},
                             one = {1, 64, 0, 0, 64, 64};
    struct kernel_model k = *named("hd128-dense");
    struct gpu_launch l = launch(&h200, k.name, &many, 1.4);
    ck_assert_double_eq_tol(l.cycles / l.mean, 1, 1e-9);
    const struct work_counts endless = {132, 132000000, 0, 0, 1000000, 1000000};
    ck_assert_double_eq_tol(launch(&h200, k.name, &endless, 1.4).cycles, 1e6 * 2104, 2104);
    h200.cut_stages = 1e9;
    ck_assert_double_eq_tol(launch(&h200, k.name, &one, 1.4).cycles, (64 + 0.9) * 2104, 1e-6);
    ck_assert_double_eq(launch(&h200, k.name, &one, 1.4).ns,
                        launch(&h200, k.name, &one, 1.4).cycles / 1.4 + 1100);
    k.s = 2048;
    k.item = k.masked = h200.launch_us = 0;
    MUST(gpu_model_clock(&h200, "1", ERR));
    MUST(gpu_model_launch(&h200, &k, &many, 128, 0, &l, ERR));
    ck_assert_double_eq_tol(l.ns, 132000.0 * 64 * 4 * 128 * 128 * 128 / (132 * 4096), 1e-3);
    ck_assert_int_eq(l.bound, BOUND_TENSOR);
    MUST(gpu_model_launch(&h200, &k, &many, 128, 1e12, &l, ERR));
    ck_assert_double_eq_tol(l.ns, 1e12 / 4290, 1e-3);
    ck_assert_int_eq(l.bound, BOUND_MEMORY);
}

TEST(what_if)
{
    const struct work_counts w = {2, 64, 0, 0, 50, 14}, pair = {1, 1, 0, 2, 3, 3};
    const struct kernel_model *chain = named("hd64-128x128");
    struct gpu_launch l;
    struct err err = {0};
    MUST(gpu_model_change(&h200, "balance=1", ERR));
    ck_assert_double_eq_tol(launch(&h200, "hd128-dense", &w, 1).cycles, (64 + 2 * 0.9) * 2104 / 132,
                            1e-6);
    MUST(gpu_model_change(&h200, "sms=1", ERR));
    ck_assert_double_eq_tol(launch(&h200, "hd128-64x64", &pair, 1).cycles, (1 + 1.28 + 0.9) * 2516,
                            1e-6);
    /* Half of the products' time; the softmax of 128 x 128 scores then binds. */
    MUST(gpu_model_change(&h200, "tensor=2", ERR));
    ck_assert_double_eq_tol(launch(&h200, "hd128-dense", &w, 1).cycles,
                            (64 + 2 * 0.9) * 128 * 128 * (1 / 16.0 + 3.5 / 128), 1e-6);
    assert_fails(gpu_model_launch(&h200, chain, &w, 192, 0, &l, &err), &err, ERR_USAGE,
                 "not known");
}

static const char *const wrong[] = {"l2=2", "half=1",     "exp=2x", "sms=0",    "select=-1",
                                    "copy", "tile=64x64", "sms=",   "balance=2"};
TEST_EACH(what_if_refused, wrong)
{
    struct err err = {0};
    assert_fails(gpu_model_change(&h200, wrong[_i], &err), &err, ERR_USAGE, "--what-if");
}

/* Every number of every GPU has a source, and rate x multiprocessors x clock is the printed peak.
 */
static const char *const gpus[] = {"A100-40",  "A100-80",   "RTX4090", "L40", "L40S",
                                   "H100-SXM", "H100-PCIe", "H200",    "B200"};
TEST_EACH(gpu_files, gpus)
{
    struct gpu_model g;
    MUST(gpu_model_load(gpus[_i], &g, ERR));
    ck_assert_str_eq(g.name, gpus[_i]);
    ck_assert_double_eq_tol(g.tensor_bf16 * g.multiprocessors * g.clock_rated * 1e-3 / g.peak_bf16,
                            1, 0.005);
}

TEST(a_number_without_a_source)
{
    struct err err = {0};
    struct gpu_model g;
    FILE *f = fopen("no-source.json", "w");
    fputs("{\"name\": \"x\", \"architecture\": {\"value\": 90, \"unit\": \"sm\"}}", f);
    fclose(f);
    assert_fails(gpu_model_load("./no-source.json", &g, &err), &err, ERR_INPUT,
                 "architecture: it wants a value above 0, a unit and a source");
    remove("no-source.json");
    assert_fails(gpu_model_load("H20", &g, &err), &err, ERR_USAGE, "list gpus");
}

/* ---- measured lines ------------------------------------------------------------------------- */

static const struct bounds {
    const char *set;
    int n;
    double median, p90;
} sets[] = {{"cycles", 21, 0.015, 0.06}, {"code-lm", 30, 0.03, 0.08}, {"smollm2", 30, 0.04, 0.08},
            {"tables", 88, 0.015, 0.06}, {"h200", 59, 0.03, 0.07},    {"h100", 59, 0.03, 0.08},
            {"filters", 60, 0.03, 0.07}};

TEST_EACH(measured_lines, sets)
{
    char set[16], kernel[MODEL_NAME], line[256];
    double c[6];
    double product, ms, errors[200];
    int n = 0;
    FILE *f = fopen("tests/data/model_lines.csv", "r");
    MUST(gpu_model_load("H200", &h200, ERR)); /* as measured */
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%15[^,],%39[^,],%lf,%lf,%lf,%lf,%lf,%lf,%lf,%lf", set, kernel, c, c + 1,
                   c + 2, c + 3, c + 4, c + 5, &product, &ms) != 10 ||
            strcmp(set, sets[_i].set) != 0)
            continue;
        const struct work_counts w = {c[0], c[1], c[3], c[2], c[4], c[5]};
        /* The product keeps 92 % of the units busy. */
        struct gpu_launch l = launch(&h200, kernel, &w, product / (132 * 4.096 * 0.9215));
        errors[n++] = fabs((product > 0 ? l.ns * 1e-6 / ms : l.cycles / ms) - 1);
    }
    fclose(f);
    ck_assert_int_eq(n, sets[_i].n);
    sort_f64(errors, n);
    ck_assert_double_le(errors[n / 2], sets[_i].median);
    ck_assert_double_le(errors[(int)ceil(.9 * n) - 1], sets[_i].p90);
}
