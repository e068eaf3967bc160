/*
 * checkcu.c - every attention kernel, those that skip P V (checkcu_filter.c), values near the ends
 * of float32's range (checkcu_values.c), the metrics (checkcu_metrics.c), tiles made of masks
 * (checkcu_maps.c) and every method's selection (checkcu_select.c), against the CPU reference, on
 * random and edge-biased data.
 *
 * A program of its own and not a Check suite: one CUDA context for all cases, no fork. A check
 * passes when outputs are within 5e-3 (relative L2 against double on sampled rows), LSE within 1e-3
 * (or 2e-6 of the largest score, which is what float scores can carry), and a second launch gives
 * the same bits. Exit code 1 when a check failed or none ran, 4 without a GPU.
 *
 * Only kernels and settings whose name contains TEXT, `metrics` or `maps`, and every N-th of them:
 *   checkcu [--small] [--brief] [--part I/N] [TEXT]
 *     --small  few and short sequences, for compute-sanitizer
 *     --brief  of these a part, launched once, for its racecheck, in which every launch takes 20 ms
 *   checkcu --traces T.h5 ...  every method on heads of these traces (checkcu_traces.c)
 *   checkcu --calls T.h5 ...   every method on whole calls of these traces (checkcu_calls.c)
 *   checkcu --same A.h5 B.h5   two captures of one run (checkcu_traces.c)
 */
#include "core/log.h"
#include "cuda/backend.h"
#include "tests/gpu/checkcu.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int64_t cu_checks, cu_failures;
static struct cu_choice choice = {.only = "", .parts = 1};

static void report(const struct cu_case *c, const char *kernel, const struct cu_errors *e, int rc,
                   const struct err *err)
{
    const struct attn_problem *p = &c->problem;
    double tolerance = 2e-6 * e->lse_ref > 1e-3 ? 2e-6 * e->lse_ref : 1e-3;
    bool ok = rc == 0 && e->l2_rel <= 5e-3 && e->lse_max <= tolerance && e->same;
    cu_checks++;
    if (ok)
        return;
    cu_failures++;
    printf(
        "FAIL %s: %d/%d heads, %lld x %lld%s, data %s, pattern %d bits %d density %g%s: ", kernel,
        p->heads, p->kv_heads, (long long)p->nq, (long long)p->nk, p->causal ? " causal" : "",
        cu_data_names[c->data], c->pattern, c->bits, c->density, c->split ? "" : ", unsplit");
    if (rc)
        printf("%s\n", err->msg);
    else
        printf("output %.2e, lse %.2e of %.1f, repeatable %d\n", e->l2_rel, e->lse_max, e->lse_ref,
               e->same);
}

/* Returns nonzero when the GPU can no longer be used. */
static int check(struct gpu *g, struct cu_case c)
{
    struct cu_run r;
    struct cu_errors e = {0};
    struct err err = {0};

    c.seed = (uint64_t)cu_checks + 1;
    c.once = choice.brief;
    c.problem.scale = 1 / sqrt(c.problem.d);
    int rc = cu_run_init(g, &c, &r, &err);
    if (!rc) {
        rc = cu_run_check(g, &r, &e, &err);
        cu_run_free(g, &r);
    }
    report(&c, c.kernel, &e, rc, &err);
    return rc && cudaGetLastError() != cudaSuccess;
}

static int check_lengths(struct gpu *g, struct cu_case c)
{
    static const int64_t lengths[] = {1,   63,   64,  65,   127,  128,  129,
                                      191, 1000, 200, 2300, 4097, 1024, 256};
    static const struct {
        int heads, kv;
    } groups[] = {{1, 1}, {4, 1}, {8, 2}};
    size_t step = choice.brief ? 6 : choice.small ? 3 : 1; /* in brief 129 and 1024 tokens */
    for (size_t i = choice.brief ? 6 : 0; i < sizeof lengths / sizeof *lengths; i += step)
        for (int causal = 0; causal < 2; causal++) {
            c.problem.nq = c.problem.nk = lengths[i];
            c.problem.causal = causal;
            c.problem.heads = groups[i % 3].heads;
            c.problem.kv_heads = groups[i % 3].kv;
            c.split = i % 2;
            if (check(g, c))
                return 1;
        }
    return 0;
}

static int check_rectangles(struct gpu *g, struct cu_case c)
{
    static const int64_t shapes[][2] = {{1, 500}, {77, 1000}, {300, 1111}, {1000, 129}, {640, 200}};
    c.problem.heads = 2;
    c.problem.kv_heads = 1;
    size_t step = choice.brief ? 4 : choice.small ? 2 : 1;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += step)
        for (int causal = 0; causal < 2; causal++) {
            c.problem.nq = shapes[i][0];
            c.problem.nk = shapes[i][1];
            c.problem.causal = causal;
            c.split = true;
            if (check(g, c))
                return 1;
        }
    return 0;
}

/* Shapes of about n tokens: full, causal, and where whole tiles of keys may have a kernel of their
 * own (attn_shape.cuh), full without a ragged last block. */
static int shapes_of(const struct cu_case *c)
{
    return c->problem.lists == ATTN_DENSE || c->problem.lists == ATTN_128x128 ? 3 : 2;
}

static void set_shape(struct cu_case *c, int shape, int64_t n)
{
    c->problem.nq = c->problem.nk = shape == 2 ? (n + 127) / 128 * 128 : n;
    c->problem.causal = shape == 1;
}

static int check_data(struct gpu *g, const struct attn_kernel *k, struct cu_case c)
{
    c.problem.heads = c.problem.kv_heads = 3;
    for (int data = choice.small ? DATA_RISING : 0; data <= DATA_RISING; data++)
        for (int shape = 0; shape < shapes_of(&c); shape++) {
            if (data == DATA_TINY && k->element == ATTN_F16)
                continue; /* outputs of 1e-6 are below what float16 resolves */
            c.data = (enum cu_data)data;
            c.split = shape > 0;
            set_shape(&c, shape, choice.brief ? 260 : choice.small ? 700 : 1500);
            if (check(g, c))
                return 1;
        }
    return 0;
}

/* Many heads, so that a thread block works through many items, split rows among them. In brief
 * short ones, but more than there are multiprocessors. */
static int check_many_items(struct gpu *g, struct cu_case c)
{
    c.problem.kv_heads = choice.brief ? 40 : 12;
    c.problem.heads = 4 * c.problem.kv_heads;
    c.split = true;
    for (int shape = 0; shape < shapes_of(&c); shape++) {
        set_shape(&c, shape, choice.brief ? 100 : choice.small ? 700 : 2500);
        if (check(g, c))
            return 1;
    }
    return 0;
}

static int check_bits(struct gpu *g, const struct attn_kernel *k)
{
    struct cu_case c = {.problem = {.d = k->d, .lists = k->lists}, .kernel = k->name};
    static const double densities[] = {0.3, 0.02};
    for (int i = 0; i < BITS_COUNT * (choice.small ? 1 : 2); i++) {
        c.bits = (enum cu_bits)(i % BITS_COUNT);
        c.density = densities[i / BITS_COUNT];
        c.window = i < BITS_COUNT ? 150 : 1;
        if (i % BITS_COUNT == BITS_STRIPES && i > BITS_COUNT)
            continue;
        bool all = !choice.brief;
        if (((all || i % 3 == 0) && check_lengths(g, c)) ||
            ((all || i % 3 == 1) && check_rectangles(g, c)) ||
            ((all || i % 3 == 2) && check_many_items(g, c)))
            return 1;
        if (i < BITS_COUNT && (!choice.small || c.bits == BITS_MIXED) && check_data(g, k, c))
            return 1;
    }
    return 0;
}

static int check_kernel(struct gpu *g, const struct attn_kernel *k)
{
    static const struct {
        enum cu_pattern pattern;
        double density;
    } lists[] = {{KEEP_RANDOM, 0.4},    {KEEP_ALL, 1},      {KEEP_FIRST, 1},    {KEEP_DIAGONAL, 1},
                 {KEEP_SOME_ROWS, 0.3}, {KEEP_SKEWED, 0.1}, {KEEP_RANDOM, 0.05}};
    struct cu_case c = {.problem = {.d = k->d, .lists = k->lists}, .kernel = k->name};
    int n = k->lists == ATTN_DENSE || choice.small ? 1 : (int)(sizeof lists / sizeof *lists);
    int64_t before = cu_checks, failed = cu_failures;

    if (cu_has_bits(k->lists) && check_bits(g, k))
        return 1;
    for (int i = 0; i < n && !cu_has_bits(k->lists); i++) {
        c.pattern = lists[i].pattern;
        c.density = lists[i].density;
        if (check_lengths(g, c) || check_rectangles(g, c) || check_many_items(g, c))
            return 1;
    }
    c.pattern = KEEP_RANDOM;
    c.density = 0.4;
    if (!cu_has_bits(k->lists) && check_data(g, k, c))
        return 1;
    printf("  %-5s %s: %lld checks\n", cu_failures > failed ? "FAIL" : "ok", k->name,
           (long long)(cu_checks - before));
    fflush(stdout);
    return 0;
}

/* ---- metrics -------------------------------------------------------------------------------- */

static int check_metrics_case(struct gpu *g, struct cu_case c, double *worst)
{
    struct cu_run r;
    struct err err = {0};
    char what[200] = "";

    c.seed = (uint64_t)cu_checks + 1;
    c.problem.heads = c.problem.kv_heads = 1;
    c.problem.scale = 1 / sqrt(c.problem.d);
    int rc = cu_run_init(g, &c, &r, &err);
    if (!rc) {
        rc = cu_metrics_check(g, &r, choice.brief, worst, what, &err);
        cu_run_free(g, &r);
    }
    cu_checks++;
    if (rc || what[0]) {
        cu_failures++;
        printf("FAIL metrics hd%d: %lld x %lld%s, data %s, lists %d, pattern %d: %s\n", c.problem.d,
               (long long)c.problem.nq, (long long)c.problem.nk, c.problem.causal ? " causal" : "",
               cu_data_names[c.data], (int)c.problem.lists, c.pattern, rc ? err.msg : what);
    }
    return rc && cudaGetLastError() != cudaSuccess;
}

static int check_metrics(struct gpu *g, int d)
{
    static const int64_t shapes[][2] = {{1, 1},     {17, 17},   {64, 64},    {65, 65},
                                        {127, 127}, {128, 128}, {129, 129},  {200, 200},
                                        {383, 383}, {513, 513}, {1, 300},    {77, 500},
                                        {300, 77},  {260, 131}, {1100, 1100}};
    struct cu_case c = {.problem = {.d = d}, .density = 0.4};
    int64_t before = cu_checks, failed = cu_failures;
    double worst = 0, hard = 0;

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes - choice.small; i += choice.small ? 3 : 1)
        for (int k = 0; k < 2 * 3; k++) {
            c.problem.nq = shapes[i][0];
            c.problem.nk = shapes[i][1];
            c.problem.causal = k % 2;
            c.problem.lists = (enum attn_lists)(ATTN_128x128 + k / 2);
            c.pattern = (enum cu_pattern)((i + (size_t)k) % 6);
            if (check_metrics_case(g, c, &worst))
                return 1;
        }
    for (int k = 0; k < 2 * DATA_COUNT && !choice.small; k++) {
        c.data = (enum cu_data)(k / 2);
        c.problem.causal = k % 2;
        c.problem.nq = c.problem.nk = 700;
        c.problem.lists = (enum attn_lists)(ATTN_128x128 + k % 3);
        c.pattern = KEEP_RANDOM;
        if (check_metrics_case(g, c, &hard))
            return 1;
    }
    printf("  %-5s metrics-hd%d: %lld checks; kept mass within %.1e, of other data %.1e\n",
           cu_failures > failed ? "FAIL" : "ok", d, (long long)(cu_checks - before), worst, hard);
    return 0;
}

/* Scores by cuBLAS, one case per head dim. */
static void check_scores(struct gpu *g)
{
    for (int d = 64; d <= 128; d *= 2) {
        struct cu_case c = {.problem = {4, 2, d, 700, 900, 1 / sqrt(d), false, ATTN_DENSE},
                            .split = true,
                            .seed = 77};
        struct cu_errors e = {0};
        struct err err = {0};
        int64_t failed = cu_failures;
        e.same = true;
        int rc = cu_check_scores(g, &c, &e, &err);
        report(&c, "cublas-scores", &e, rc, &err);
        printf("  %-5s cublas-scores hd%d: output %.1e, lse %.1e\n",
               cu_failures > failed ? "FAIL" : "ok", d, e.l2_rel, e.lse_max);
    }
}

static int summary(void)
{
    printf("%lld passed, %lld failed\n", (long long)(cu_checks - cu_failures),
           (long long)cu_failures);
    return cu_checks == 0 || cu_failures ? 1 : 0;
}

static int check_all(struct gpu *g)
{
    static const struct {
        int d;
        const char *name;
    } dims[] = {{128, "metrics-hd128"},
                {64, "metrics-hd64"},
                {96, "metrics-hd96"},
                {192, "metrics-hd192"},
                {256, "metrics-hd256"}};
    bool lost = false;
    for (const struct attn_kernel *k = attn_kernels; k->name && !lost; k++)
        lost = k->element < ATTN_INT8 && cu_chosen(&choice, k->name) && check_kernel(g, k);
    if (!lost)
        lost = check_filters(g, &choice);
    if (!lost && cu_chosen(&choice, "cublas-scores"))
        check_scores(g);
    if (!lost)
        check_decoder(&cuda_decoder, &choice);
    if (!lost)
        check_denoiser(&cuda_denoiser, &choice);
    if (!lost && cu_chosen(&choice, "values"))
        check_values(&cuda_accel, &choice);
    if (!lost)
        check_own(&cuda_accel, g, &choice);
    for (size_t i = 0; i < sizeof dims / sizeof *dims && !lost; i++)
        lost = cu_chosen(&choice, dims[i].name) && check_metrics(g, dims[i].d);
    if (!lost && cu_chosen(&choice, "maps"))
        lost = check_maps(g, &choice);
    if (!lost)
        lost = check_selections(g, &choice);
    if (lost) {
        printf("the GPU is lost after this failure; the rest did not run\n");
        cu_failures++;
    }
    return summary();
}

/* [--small] [--brief] [--part I/N] [TEXT] */
static bool parse_choice(int argc, char **argv)
{
    char rest;
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++)
        if (strcmp(argv[i], "--small") == 0)
            choice.small = true;
        else if (strcmp(argv[i], "--brief") == 0)
            choice.small = choice.brief = true;
        else if (strcmp(argv[i], "--part") != 0 || ++i == argc ||
                 sscanf(argv[i], "%d/%d%c", &choice.part, &choice.parts, &rest) != 2 ||
                 choice.part < 0 || choice.part >= choice.parts)
            return false;
    if (i < argc)
        choice.only = argv[i++];
    return i == argc;
}

int main(int argc, char **argv)
{
    struct gpu g = {0};
    struct err err = {0};

    alarm(480);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 4 && strcmp(argv[1], "--same") == 0) {
        check_same(argv[2], argv[3]);
        return summary();
    }
    bool traces = argc > 1 && strcmp(argv[1], "--traces") == 0;
    bool calls = argc > 1 && strcmp(argv[1], "--calls") == 0;
    if (!traces && !calls && !parse_choice(argc, argv)) {
        fprintf(stderr,
                "checkcu: [--small] [--brief] [--part I/N] [TEXT] | --traces T.h5 ... | "
                "--calls T.h5 ... | --same A.h5 B.h5; found '%s'\n",
                argv[1]);
        return 2;
    }
    if (gpu_open(0, &g, &err)) {
        fprintf(stderr, "checkcu: %s\n", err.msg);
        return err_exit_code(err.code);
    }
    printf("%s, sm_%d\n", g.name, g.sm);
    if (traces) {
        gpu_close(&g); /* the back end opens its own */
        check_traces(argc - 2, argv + 2);
        return summary();
    }
    if (calls) {
        gpu_close(&g);
        check_calls(argc - 2, argv + 2);
        return summary();
    }
    int rc = check_all(&g);
    gpu_close(&g);
    return rc;
}
