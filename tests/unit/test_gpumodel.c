/*
 * test_gpumodel.c - the cost model: cases worked out by hand, invariants, and measured lines.
 * tests/data/model_lines.csv has those that its constants were not fitted on, on an H200
 * ("tables"), on another H200 and on an H100, medians of series, with the work of
 * each and the product of 8192^3 matrices beside it, which tells the clock.
 */
#include "core/gpumodel.h"
#include "core/intmath.h"
#include "core/sort.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct kernel_models models;
static struct gpu_model h200;

static void begin(void)
{
    MUST(kernel_models_load(&models, ERR));
    MUST(gpu_model_load("H200", &h200, ERR));
}

static void end(void)
{
    kernel_models_free(&models);
}
FIXTURE(begin, end)

static const struct kernel_model *named(const char *name)
{
    for (int64_t i = 0; i < models.n; i++)
        if (strcmp(models.k[i].name, name) == 0)
            return models.k + i;
    ck_abort_msg("no kernel %s", name);
    return NULL;
}

static struct gpu_launch launch(const struct gpu_model *g, const char *kernel,
                                const struct work_counts *w, double ghz)
{
    const struct kernel_model *k = named(kernel);
    struct gpu_launch l;
    MUST(gpu_model_launch(&models, g, k, w, k->bn, 0, (struct clock_request){false, ghz}, &l, ERR));
    return l;
}

/* By hand, with the constants of kernels.json. */
static const struct golden {
    const char *kernel;
    struct work_counts w;
    double cycles, us; /* at 1.392 GHz; 0: not asked */
} goldens[] = {{"hd128-dense", {1, 32, 0, 0, 32, 32}, 69221.6, 0},
               {"hd128-dense", {512, 512 * 32, 0, 0, 32, 32}, 276886.4, 200.0},
               {"hd128-128x128", {4096, 4096 * 26, 0, 0, 26, 26}, 1754572.5, 1263.6},
               {"hd128-64x64", {1, 1, 2, 0, 3, 3}, 8000.9, 0},
               {"hd128-dense", {2, 3, 0, 2, 2, 1}, 6901.1, 0},
               {"hd128-dense", {0, 0, 0, 0, 0, 0}, 0, 1.1}};

TEST_EACH(cases_by_hand, goldens)
{
    const struct golden *c = goldens + _i;
    struct gpu_launch l = launch(&h200, c->kernel, &c->w, 1.392);
    /* A row alone would be cut where that is faster: ask for whole rows. */
    struct kernel_models whole = models;
    whole.cut_stages = c->w.rows < 10 ? 1e9 : models.cut_stages;
    const struct kernel_model *k = named(c->kernel);
    MUST(gpu_model_launch(&whole, &h200, k, &c->w, k->bn, 0, (struct clock_request){false, 1.392},
                          &l, ERR));
    ck_assert_double_eq_tol(l.cycles, c->cycles, 0.1);
    if (c->us > 0)
        ck_assert_double_eq_tol(l.ns / 1e3, c->us, 0.06);
}

/* Work of dense attention: 256 causal tokens are rows of 1 and 2 stages, one masked each. */
TEST(work_of_dense_attention)
{
    struct work_counts w;
    work_of_dense(256, 256, true, 128, 128, 1, &w);
    ck_assert_int_eq(w.rows, 2);
    ck_assert_int_eq(w.stages, 3);
    ck_assert_int_eq(w.masked, 2);
    ck_assert_int_eq(w.longest, 2);
    ck_assert_int_eq(w.shortest, 1);
    work_of_dense(4096, 4096, false, 128, 128, 16, &w);
    ck_assert_int_eq(w.stages, 512 * 32);
    ck_assert_int_eq(w.masked, 0);
}

/* The clock by the tensor cores' share of the cycles, through launches that have it. */
TEST(clock_states)
{
    struct work_counts w = {13200, 13200 * 100, 0, 0, 100, 100};
    struct gpu_launch l;
    const struct kernel_model *k = named("hd128-dense");
    double u;
    MUST(
        gpu_model_launch(&models, &h200, k, &w, 128, 0, (struct clock_request){false, 0}, &l, ERR));
    u = 2048.0 * 1320000 / (132 * l.cycles);
    ck_assert_double_eq_tol(l.ghz, 1.392 * cbrt((1 + .97 * .85) / (1 + .85 * u)), 1e-9);
    k = named("hd64-gather"); /* 1024 of 2788 cycles: the burst clock is above 1.88 */
    MUST(gpu_model_launch(&models, &h200, k, &w, 128, 0, (struct clock_request){true, 0}, &l, ERR));
    ck_assert_double_eq_tol(l.ghz, 1.9, 0.04);
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
    struct gpu_model wide = h200;
    MUST(gpu_model_change(&wide, "sms=264", ERR));
    ck_assert_double_le(launch(&wide, "hd128-128x128", &w, 1.4).cycles, l.cycles);
    MUST(gpu_model_change(&wide, "sms=132,exp=1x,tensor=1x,copy=4290", ERR));
    ck_assert_double_eq(launch(&wide, "hd128-128x128", &w, 1.4).ns, l.ns);
}

TEST(what_if)
{
    struct gpu_model g = h200;
    struct work_counts w = {2, 64, 0, 0, 50, 14};
    struct gpu_launch l;
    const struct kernel_model *chain = named("hd64-128x128");
    MUST(gpu_model_change(&g, "balance=1", ERR));
    ck_assert_double_eq(launch(&g, "hd128-dense", &w, 1).cycles,
                        launch(&g, "hd128-dense", &w, 1).mean);
    MUST(gpu_model_change(&g, "exp=2x", ERR));
    struct err err = {0};
    assert_fails(
        gpu_model_launch(&models, &g, chain, &w, 192, 0, (struct clock_request){0}, &l, &err), &err,
        ERR_USAGE, "not known");
}

static const char *const wrong[] = {"l2=2x", "exp=2", "sms=0", "select=1", "tile=64x64", "clock="};
TEST_EACH(what_if_refused, wrong)
{
    struct gpu_model g = h200;
    struct err err = {0};
    assert_fails(gpu_model_change(&g, wrong[_i], &err), &err, ERR_USAGE, "known are");
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
    ck_assert_double_eq_tol(g.tensor * g.sms * g.rated * 1e-3 / g.peak, 1, 0.005);
}

TEST(a_number_without_a_source)
{
    struct err err = {0};
    struct gpu_model g;
    FILE *f = fopen("no-source.json", "w");
    fputs("{\"name\": \"x\", \"architecture\": {\"value\": 90, \"unit\": \"sm\"}}", f);
    fclose(f);
    assert_fails(gpu_model_load("./no-source.json", &g, &err), &err, ERR_INPUT, "source");
    remove("no-source.json");
    assert_fails(gpu_model_load("H20", &g, &err), &err, ERR_USAGE, "H200");
}

/* FlashAttention-2's 225 TFLOP/s at 16K, full, on an A100. */
TEST(structure_alone)
{
    struct gpu_model g;
    struct work_counts w;
    MUST(gpu_model_load("A100-80", &g, ERR));
    work_of_dense(16384, 16384, false, 128, 64, 16, &w);
    struct gpu_launch l = launch(&g, "structure-hd128", &w, 1.41);
    ck_assert_double_eq_tol(4.0 * 16384 * 16384 * 128 * 16 / l.ns * 1e-3, 225, 5);
}

/* ---- measured lines ------------------------------------------------------------------------- */

static const struct bounds {
    const char *set;
    int n;
    double median, p90;
} sets[] = {{"tables", 96, 0.015, 0.06}, {"h200", 65, 0.03, 0.07}, {"h100", 65, 0.03, 0.08}};

TEST_EACH(measured_lines, sets)
{
    char set[16], kernel[24], line[256];
    long long c[6];
    double product, ms, errors[200];
    int n = 0;
    FILE *f = fopen("tests/data/model_lines.csv", "r");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%15[^,],%23[^,],%lld,%lld,%lld,%lld,%lld,%lld,%lf,%lf", set, kernel, c,
                   c + 1, c + 2, c + 3, c + 4, c + 5, &product, &ms) != 10 ||
            strcmp(set, sets[_i].set) != 0)
            continue;
        const struct work_counts w = {c[0], c[1], c[2], c[3], c[4], c[5]};
        double ghz =
            product / (132 * 4.096 * 0.8995); /* the product keeps 90 % of the units busy */
        errors[n++] = fabs(launch(&h200, kernel, &w, ghz).ns * 1e-6 / ms - 1);
    }
    fclose(f);
    ck_assert_int_eq(n, sets[_i].n);
    sort_f64(errors, n);
    ck_assert_double_le(errors[n / 2], sets[_i].median);
    ck_assert_double_le(errors[(int)ceil(.9 * n) - 1], sets[_i].p90);
}
