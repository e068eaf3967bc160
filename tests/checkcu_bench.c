/*
 * checkcu_bench.c - speed of the attention kernels as a share of a cuBLAS product in the same run.
 *
 * Every sample of a kernel is taken between samples of the 8192^3 bf16 product, on random normal
 * data, after some warm-up; L2 is left as the previous launch leaves it (warm). A sample repeats its
 * launch, and all samples of a line last equally long (SPAN_NS or longer): at its power limit the GPU
 * slows down within milliseconds, and a short launch between long ones would run at the clock that
 * those have left. Printed are medians, per launch: TFLOP/s by the formula of
 * doc/performance.md (dense: 4 N^2 D per head, half when causal; lists: blocks that are multiplied),
 * and their ratio to the product's median. Lists are sampled in turns with dense attention of the
 * same size, skewed ones with as many blocks spread evenly: "of other" is the median over the rounds
 * of their TFLOP/s over its.
 *
 *   benchcu [--samples N] [--raw FILE] [--events] [--cold] [--single] [--all] [TEXT]
 *   benchcu [--samples N] --prefill MODEL PROMPT TOKENS      a language model's run instead
 *
 * Selections stand beside dense attention of the same problem: single launches in turns, no product.
 *
 * --cold: no warm-up and single launches, for a profiler (with --samples 1 --events).
 * --single: single launches as samples.
 * --all also measures the kernels that are no default; TEXT keeps only lines that contain it.
 */
#include "core/clock.h"
#include "core/mem.h"
#include "core/rng.h"
#include "cuda/attn_filter.h"
#include "cuda/ceiling.h"
#include "cuda/metrics.h"
#include "cuda/fill.h"
#include "cuda/select.h"
#include "sim/registry.h"
#include "tests/checkcu_case.h"
#include "tests/checkcu_prefill.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPAN_NS 10e6 /* a sample lasts at least so long */

enum { MAX_WORKS = 16, MAX_SAMPLES = 256 };

struct bench {
    struct gpu      gpu;
    struct timer   *timer;
    struct ceiling *ceiling;
    int             samples;
    double          warm_up; /* 1, or 0 for a profiler */
    const char     *only;
    FILE           *raw;
    int             lines;
    bool            all;
    bool            single; /* samples are single launches */
};

struct series { /* samples of one thing, ns per launch */
    double ns[MAX_SAMPLES];
    int    n;
    int    launches; /* of a sample */
};

static void raw_samples(struct bench *b, const char *name, const struct series *s, double flop)
{
    if (!b->raw)
        return;
    fprintf(b->raw, "{\"name\":\"%s\",\"flop\":%.17g,\"timer\":\"%s\",\"launches\":%d,\"ns\":[",
            name, flop, timer_name(b->timer), s->launches);
    for (int i = 0; i < s->n; i++)
        fprintf(b->raw, "%s%.0f", i ? "," : "", s->ns[i]);
    fprintf(b->raw, "]}\n");
    fflush(b->raw);
}

/* What is timed. */
struct work {
    int (*launch)(struct gpu *g, const void *job, struct err *err);
    const void *job;
    int         launches; /* of a sample; chosen by sample_turns() */
};

static int launch_attn(struct gpu *g, const void *job, struct err *err)
{
    return attn_job_launch(g, job, err);
}

static int launch_product(struct gpu *g, const void *job, struct err *err)
{
    return ceiling_matmul(*(struct ceiling *const *)job, g, err);
}

static struct work product_of(const struct bench *b)
{
    return (struct work){launch_product, &b->ceiling, 1};
}

/* The launches of one sample, timed together. */
static int timed(struct bench *b, const struct work *work, int64_t *id, struct err *err)
{
    int rc = 0;
    TRY(timer_begin(b->timer, &b->gpu, id, err));
    for (int i = 0; i < work->launches; i++)
        TRY(work->launch(&b->gpu, work->job, err));
    TRY(timer_end(b->timer, &b->gpu, err));
out:
    return rc;
}

/* Time of a launch of a sample. */
static double launch_ns(const struct bench *b, const struct work *work, int64_t id)
{
    return timer_span(b->timer, id).kernel_ns / work->launches;
}

/* How far samples of `span` made of whole launches of `ns` miss it, at worst. */
static double misses(const double *ns, int n, double span)
{
    double worst = 0;
    for (int i = 0; i < n; i++)
        worst = fmax(worst, fabs(fmax(1, round(span / ns[i])) * ns[i] / span - 1));
    return worst;
}

/* Let the samples of all works last as long as each other, 5 % more or less where eight launches of
 * the longest are enough for that, and SPAN_NS at least. */
static int even_out(struct bench *b, struct work *works, int n, struct err *err)
{
    double  ns[MAX_WORKS + 1], longest = SPAN_NS, span;
    int64_t ids[MAX_WORKS + 1];
    int     rc = 0;

    for (int i = 0; i < n; i++)
        works[i].launches = 1;
    if (b->single)
        goto out;
    for (int i = 0; i < n; i++) /* a first launch loads its kernel, which events would count */
        TRY(works[i].launch(&b->gpu, works[i].job, err));
    timer_reset(b->timer);
    for (int i = 0; i < n; i++)
        TRY(timed(b, works + i, ids + i, err));
    TRY(timer_collect(b->timer, &b->gpu, err));
    for (int i = 0; i < n; i++) {
        ns[i] = launch_ns(b, works + i, ids[i]);
        longest = fmax(longest, ns[i]);
    }
    span = longest;
    for (int k = 2; k <= 8 && misses(ns, n, span) > 0.05; k++)
        if (misses(ns, n, k * longest) < misses(ns, n, span))
            span = k * longest;
    for (int i = 0; i < n; i++)
        works[i].launches = (int)fmax(1, round(span / ns[i]));
out:
    return rc;
}

static int warm_up(struct bench *b, const struct work *work, double for_seconds, struct err *err)
{
    double end = clock_s() + for_seconds * b->warm_up;
    int    rc = 0;
    do {
        for (int i = 0; i < 3 && !rc && b->warm_up > 0; i++)
            rc = work->launch(&b->gpu, work->job, err);
        if (!rc)
            rc = gpu_sync(&b->gpu, err);
    } while (!rc && clock_s() < end);
    return rc;
}

/* Rounds [from, to) of sample_turns(), queued without a pause; the product is works[n]. */
static int sample_rounds(struct bench *b, const struct work *works, int n, int from, int to,
                         struct series *product, struct series *times, struct err *err)
{
    int64_t ids[4 * MAX_SAMPLES];
    int     rc = 0, at = 0;

    timer_reset(b->timer);
    for (int k = from; k < to; k++)
        for (int i = 0; i < n; i++) {
            TRY(timed(b, works + n, &ids[at++], err));
            TRY(timed(b, works + i, &ids[at++], err));
        }
    TRY(timer_collect(b->timer, &b->gpu, err));
    at = 0;
    for (int k = from; k < to; k++)
        for (int i = 0; i < n; i++) {
            product[i].ns[k] = launch_ns(b, works + n, ids[at++]);
            times[i].ns[k] = launch_ns(b, works + i, ids[at++]);
        }
out:
    return rc;
}

/* Samples of n works in turns, each after one of the product, whose times before works[i] go to
 * product[i]. Many works: a round at a time. */
static int sample_turns(struct bench *b, const struct work *works, int n, struct series *product,
                        struct series *times, struct err *err)
{
    struct work all[MAX_WORKS + 1];
    int         rc = 0, rounds = n > 2 ? 1 : b->samples;

    memcpy(all, works, (size_t)n * sizeof *works);
    all[n] = product_of(b);
    TRY(even_out(b, all, n + 1, err));
    for (int k = 0; k < b->samples; k += rounds)
        TRY(sample_rounds(b, all, n, k, k + rounds, product, times, err));
    for (int i = 0; i < n; i++) {
        product[i].n = times[i].n = b->samples;
        product[i].launches = all[n].launches;
        times[i].launches = all[i].launches;
    }
out:
    return rc;
}

static int sample(struct bench *b, const struct work *work, struct series *matmul,
                  struct series *kernel, struct err *err)
{
    return sample_turns(b, work, 1, matmul, kernel, err);
}

/* Median over the rounds of one series' rate over another's, for so many operations each. */
static double rate_over(const struct series *one, double flop, const struct series *other,
                        double other_flop)
{
    struct series over = {.n = one->n};
    for (int k = 0; k < over.n; k++)
        over.ns[k] = flop / one->ns[k] / (other_flop / other->ns[k]);
    return quartiles_of(over.ns, over.n).median;
}

/* Was a line asked for? */
static bool is_wanted(const struct bench *b, const char *text, const char *kernel)
{
    return !b->only || strstr(text, b->only) || strstr(kernel, b->only);
}

static double flop_of(const struct cu_run *r)
{
    return r->c.problem.lists == ATTN_DENSE ? cu_flop_dense(&r->c.problem) : cu_flop_blocks(r);
}

/* One line of the table; other: attention that is sampled in turns with it, or NULL. */
static int line(struct bench *b, const char *text, const struct cu_case *c,
                const struct cu_run *other, struct err *err)
{
    struct cu_run r = {0};
    struct series product[2], times[2];
    char          name[160], beside[16] = "";
    int           rc = 0, n = other ? 2 : 1;

    if (!is_wanted(b, text, c->kernel))
        return 0;
    TRY(cu_run_init(&b->gpu, c, &r, err));
    struct work works[2] = {{launch_attn, &r.job, 1}, {launch_attn, other ? &other->job : NULL, 1}};
    TRY(warm_up(b, works, 0.3, err));
    TRY(sample_turns(b, works, n, product, times, err));
    double flop = flop_of(&r);
    snprintf(name, sizeof name, "%s %s", text, r.kernel->name);
    raw_samples(b, "matmul", product, ceiling_matmul_flop(b->ceiling));
    raw_samples(b, name, times, flop);
    if (other) {
        raw_samples(b, "other", times + 1, flop_of(other));
        snprintf(beside, sizeof beside, "%.3f", rate_over(times, flop, times + 1, flop_of(other)));
    }
    struct quartiles m = quartiles_of(product->ns, b->samples);
    struct quartiles k = quartiles_of(times->ns, b->samples);
    double top = ceiling_matmul_flop(b->ceiling) / m.median * 1e-3, got = flop / k.median * 1e-3;
    const char *kernel = r.kernel->name + (strncmp(r.kernel->name, "bf16-", 5) ? 0 : 5);
    printf("%-34s %-22s %10.1f us %5.1f%% %7.1f %7.1f %6.3f %8s  %5.3f %4d %7.0f us\n", text,
           kernel, k.median * 1e-3, 100 * (k.q3 - k.q1) / k.median, got, top, got / top, beside,
           r.plan.balance, r.plan.n_splits, r.plan_ns * 1e-3);
    fflush(stdout);
    b->lines++;
out:
    cu_run_free(&b->gpu, &r);
    return rc < 0 ? err_prefix(err, "%s", text) : rc;
}

static struct cu_case make_case(int d, int64_t n, int heads, int kv, bool causal,
                                enum attn_lists lists, const char *kernel)
{
    return (struct cu_case){.problem = {heads, kv, d, n, n, d == 64 ? 0.125 : 0.08838834764831845,
                                        causal, lists},
                            .kernel = kernel, .split = true, .seed = 1, .on_device = true,
                            .density = 1};
}

static bool is_default(const struct bench *b, const struct attn_problem *p,
                       const struct attn_kernel *k)
{
    const struct attn_kernel *found = NULL;
    struct err e = {0};
    return attn_kernel_find(p, b->gpu.sm, NULL, &found, &e) == 0 && found == k;
}

static int bench_dense(struct bench *b, struct err *err)
{
    static const int64_t lengths[] = {4096, 8192, 16384, 32768, 65536, 131072};
    char text[96];
    int  rc = 0;
    for (int d = 128; d >= 64; d /= 2)
        for (int causal = 0; causal < 2; causal++)
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
                for (const struct attn_kernel *k = attn_kernels; k->name; k++) {
                    struct cu_case c = make_case(d, lengths[i], causal ? 32 : 16, causal ? 8 : 16,
                                                 causal, ATTN_DENSE, k->name);
                    if (k->d != d || k->lists != ATTN_DENSE ||
                        (!b->all && !is_default(b, &c.problem, k)))
                        continue;
                    snprintf(text, sizeof text, "hd%d %lldK %s %d/%d", d,
                             (long long)lengths[i] / 1024, causal ? "causal" : "full",
                             c.problem.heads, c.problem.kv_heads);
                    TRY(line(b, text, &c, NULL, err));
                }
out:
    return rc;
}

/* A list beside dense attention, which is made for the first one that is asked for. */
static int list_line(struct bench *b, const char *text, const struct cu_case *c,
                     struct cu_run *dense, struct err *err)
{
    int rc = 0;
    if (!is_wanted(b, text, c->kernel))
        return 0;
    if (!dense->kernel) {
        struct cu_case of = make_case(c->problem.d, 32768, 16, 16, false, ATTN_DENSE, NULL);
        rc = cu_run_init(&b->gpu, &of, dense, err);
    }
    return rc ? rc : line(b, text, c, dense, err);
}

static int list_lines(struct bench *b, int d, struct cu_run *dense, struct err *err)
{
    static const double densities[] = {1, 0.5, 0.25, 0.1};
    static const char *const geometry[] = {"", "128x128", "128x64", "64x64"};
    char text[96];
    int  rc = 0;
    for (const struct attn_kernel *k = attn_kernels; k->name; k++)
        for (size_t i = 0; i < sizeof densities / sizeof *densities && k->lists; i++) {
            if (k->d != d || cu_has_bits(k->lists) || (k->sm != 90 && !b->all && b->gpu.sm == 90))
                continue;
            struct cu_case c = make_case(d, 32768, 16, 16, false, k->lists, k->name);
            c.density = densities[i];
            c.pattern = KEEP_RANDOM;
            snprintf(text, sizeof text, "hd%d 32K list %s %.0f%%", d, geometry[k->lists],
                     100 * c.density);
            TRY(list_line(b, text, &c, dense, err));
        }
out:
    return rc;
}

/* Every 16th row of blocks full, 2 % of the others, whole and with long rows cut, beside as many
 * blocks spread evenly. */
static int skewed_lines(struct bench *b, struct err *err)
{
    static const char *const names[] = {"hd128 32K list skewed, whole",
                                        "hd128 32K list skewed, split"};
    struct cu_case c = make_case(128, 32768, 4, 4, false, ATTN_128x128, "bf16-hd128-128x128");
    struct cu_run  even = {0};
    int            rc = 0;

    if (!is_wanted(b, names[0], c.kernel) && !is_wanted(b, names[1], c.kernel))
        return 0;
    c.pattern = KEEP_RANDOM;
    c.density = (1 + 15 * 0.02) / 16;
    TRY(cu_run_init(&b->gpu, &c, &even, err));
    c.pattern = KEEP_SKEWED;
    c.density = 0.02;
    for (int split = 0; split < 2; split++) {
        c.split = split;
        TRY(line(b, names[split], &c, &even, err));
    }
out:
    cu_run_free(&b->gpu, &even);
    return rc;
}

static int bench_lists(struct bench *b, struct err *err)
{
    int rc = 0;
    for (int d = 128; d >= 64 && !rc; d /= 2) {
        struct cu_run dense = {0};
        rc = list_lines(b, d, &dense, err);
        if (dense.kernel)
            cu_run_free(&b->gpu, &dense);
    }
    return rc ? rc : skewed_lines(b, err);
}

/* Masks of pairs, by computed tile. */
static int bench_bits(struct bench *b, struct err *err)
{
    static const struct {
        enum cu_bits bits;
        const char  *name;
        double       density;
        bool         causal;
    } masks[] = {{BITS_BAND, "window 4096, sink", 1, true},
                 {BITS_BAND, "window 4096, sink", 1, false},
                 {BITS_SLICES, "slices 128x1 25%", 0.25, false},
                 {BITS_FINE, "64x32 25%", 0.25, false},
                 {BITS_STRIPES, "columns, diagonals", 1, true}};
    char text[96];
    int  rc = 0;
    for (const struct attn_kernel *k = attn_kernels; k->name; k++)
        for (size_t i = 0; i < sizeof masks / sizeof *masks && cu_has_bits(k->lists); i++) {
            if (k->sm != 90 && !b->all && b->gpu.sm == 90)
                continue;
            bool           band = masks[i].bits == BITS_BAND;
            int            heads = band ? 16 : 2;
            struct cu_case c = make_case(k->d, 32768, heads, heads, masks[i].causal, k->lists,
                                         k->name);
            c.bits = masks[i].bits;
            c.density = masks[i].density;
            c.window = 4096;
            snprintf(text, sizeof text, "hd%d 32K %s%s", k->d, masks[i].name,
                     masks[i].causal ? " causal" : "");
            TRY(line(b, text, &c, NULL, err));
        }
out:
    return rc;
}

/* ---- filter on P V --------------------------------------------------------------------------- */

/* Random lists of all heads, in blocks of bq x bk. */
static int random_lists(const struct attn_problem *p, double density, int64_t **ptr, int32_t **col,
                        struct err *err)
{
    int64_t rows = p->heads * (p->nq / attn_block_rows(p->lists, NULL)), at = 0;
    int64_t blocks = p->nk / attn_block_keys(p->lists, NULL);
    int     rc = 0;
    TRY(mem_alloc(ptr, rows + 1, sizeof **ptr, "lists", err));
    TRY(mem_alloc(col, rows * blocks, sizeof **col, "lists", err));
    for (int64_t r = 0; r < rows; r++) {
        (*ptr)[r] = at;
        for (int64_t j = 0; j < blocks; j++)
            if (rng_uniform(3, (uint64_t)r, (uint64_t)j) < density)
                (*col)[at++] = (int32_t)j;
    }
    (*ptr)[rows] = at;
out:
    return rc;
}

/* Random data: no score stands out, so that a row's maximum settles, and at a distance of 0 more and
 * more tiles are skipped as a list goes on; at 16 none is, but every one is asked about. */
static int filter_line(struct bench *b, const struct filter_kernel *k, double density, double pv,
                       struct err *err)
{
    struct cu_case  c = make_case(k->kernel.d, 32768, 16, 16, false, ATTN_DENSE, NULL);
    struct cu_run   r = {0};
    struct attn_job job = {0};
    struct series   matmul, kernel;
    struct attn_plan plan = {0};
    int64_t        *ptr = NULL;
    int32_t        *col = NULL;
    double          tiles[16], pv_tiles = 0;
    char            text[96];
    int             rc = 0;

    snprintf(text, sizeof text, "%s 32K %.0f%% pv=%g", k->kernel.name, 100 * density, pv);
    if (b->only && !strstr(text, b->only))
        return 0;
    TRY(cu_run_init(&b->gpu, &c, &r, err));
    c.problem.lists = k->kernel.lists;
    struct accel_filter f = {attn_block_rows(c.problem.lists, NULL),
                             attn_block_keys(c.problem.lists, NULL), pv, k->scope, 1, false};
    TRY(random_lists(&c.problem, density, &ptr, &col, err));
    struct attn_csr csr = {.ptr = ptr, .col = col};
    TRY(attn_plan_filtered(&c.problem, &k->kernel.tile, &csr, f.tail, b->gpu.sms, &plan, err));
    TRY(filter_job_init(&b->gpu, &c.problem, k, &plan, &f, &r.job.x, &job, err));
    struct work work = {launch_attn, &job, 1};
    TRY(warm_up(b, &work, 0.3, err));
    TRY(sample(b, &work, &matmul, &kernel, err));
    TRY(filter_tiles(&b->gpu, &job, k, tiles, err));
    for (int h = 0; h < 16; h++)
        pv_tiles += tiles[h];
    double flop = 2.0 * k->kernel.d * (double)(f.bq * f.bk) * ((double)plan.blocks + pv_tiles);
    raw_samples(b, text, &kernel, flop);
    struct quartiles m = quartiles_of(matmul.ns, matmul.n), q = quartiles_of(kernel.ns, kernel.n);
    double top = ceiling_matmul_flop(b->ceiling) / m.median * 1e-3, got = flop / q.median * 1e-3;
    printf("%-44s P V %5.1f%% %10.1f us %5.1f%% %7.1f %7.1f %6.3f\n", text,
           100 * pv_tiles / (double)plan.blocks, q.median * 1e-3, 100 * (q.q3 - q.q1) / q.median, got,
           top, got / top);
    fflush(stdout);
    b->lines++;
out:
    attn_job_free(&job);
    attn_plan_free(&plan);
    cu_run_free(&b->gpu, &r);
    free(ptr);
    free(col);
    return rc < 0 ? err_prefix(err, "%s", text) : rc;
}

static int bench_filters(struct bench *b, struct err *err)
{
    static const double densities[] = {1, 0.25}, distances[] = {INFINITY, 16, 0};
    int rc = 0;
    for (const struct filter_kernel *k = filter_kernels; k->kernel.name; k++)
        for (int i = 0; i < 6 && (k->scope >= 64 || b->all); i++)
            TRY(filter_line(b, k, densities[i / 3], distances[i % 3], err));
out:
    return rc;
}

/* ---- selection ------------------------------------------------------------------------------ */

typedef int select_launch(struct gpu *g, const struct select_job *job, struct err *err);

/* Samples of a selection between samples of dense attention on the same q and k. */
static int sample_select(struct bench *b, const struct attn_job *dense,
                         const struct select_job *job, select_launch *launch,
                         struct series *times, struct err *err)
{
    int64_t ids[2 * MAX_SAMPLES];
    int     rc = 0;

    timer_reset(b->timer);
    for (int i = 0; i < b->samples; i++) {
        TRY(timed(b, &(struct work){launch_attn, dense, 1}, &ids[2 * i], err));
        TRY(timer_begin(b->timer, &b->gpu, &ids[2 * i + 1], err));
        TRY(launch(&b->gpu, job, err));
        TRY(timer_end(b->timer, &b->gpu, err));
    }
    TRY(timer_collect(b->timer, &b->gpu, err));
    for (int i = 0; i < 2 * b->samples; i++)
        times[i % 2].ns[i / 2] = timer_span(b->timer, ids[i]).kernel_ns;
    times[0].n = times[1].n = b->samples;
    times[0].launches = times[1].launches = 1;
out:
    return rc;
}

static int select_line(struct bench *b, const char *text, const char *phase,
                       const struct attn_job *dense, const struct select_job *job,
                       select_launch *launch, struct err *err)
{
    struct series times[2];
    char          name[160];
    int32_t      *count = NULL;
    int64_t       kept = 0, rows = job->lists.rows;
    int           rc = 0;

    snprintf(name, sizeof name, "%s: %s", text, phase);
    TRY(warm_up(b, &(struct work){launch_attn, dense, 1}, 0.2, err));
    for (int i = 0; i < 3; i++)
        TRY(launch(&b->gpu, job, err));
    TRY(sample_select(b, dense, job, launch, times, err));
    TRY(mem_alloc(&count, rows, sizeof *count, "kept units", err));
    TRY(gpu_get(&b->gpu, count, job->lists.count, rows * 4, err));
    for (int64_t r = 0; r < rows; r++)
        kept += count[r];
    raw_samples(b, "dense", &times[0], cu_flop_dense(&dense->problem));
    raw_samples(b, name, &times[1], 0);
    struct quartiles d = quartiles_of(times[0].ns, b->samples);
    struct quartiles k = quartiles_of(times[1].ns, b->samples);
    printf("%-70s %9.1f us %5.1f%% dense %9.1f us %6.4f of it, %4.1f%% of units kept\n", name,
           k.median * 1e-3, 100 * (k.q3 - k.q1) / k.median, d.median * 1e-3, k.median / d.median,
           100.0 * (double)kept / (double)(rows * job->lists.units));
    fflush(stdout);
    b->lines++;
out:
    free(count);
    return rc;
}

static int bench_select(struct bench *b, const char *setting, bool causal, int kv, struct err *err)
{
    struct cu_case     c = make_case(128, 32768, 32, kv, causal, ATTN_DENSE, NULL);
    struct cu_run      r = {0};
    struct method_run *runs = NULL;
    struct select_job  job = {0};
    int64_t            n = 0;
    char               text[160];
    int                rc = 0;

    snprintf(text, sizeof text, "hd128 32K %s 32/%d %s", causal ? "causal" : "full", kv, setting);
    if (b->only && !strstr(text, b->only))
        return 0;
    TRY(method_runs_parse(sim_methods, setting, &runs, &n, err));
    const struct select_method *me = select_find(runs->method->name);
    TRY(cu_run_init(&b->gpu, &c, &r, err));
    struct select_problem p = {32, kv, 128, 32768, 32768, c.problem.scale, causal, r.job.x.q,
                               r.job.x.k, r.job.x.v, 1, runs->method->params, runs->params, NULL};
    TRY(select_job_init(&b->gpu, me, &p, &job, err));
    TRY(select_line(b, text, "select", &r.job, &job, me->launch, err));
    if (me->launch_quantised)
        TRY(select_line(b, text, "select + quantise", &r.job, &job, me->launch_quantised, err));
out:
    select_job_free(&job);
    cu_run_free(&b->gpu, &r);
    method_runs_free(runs, n);
    return rc < 0 ? err_prefix(err, "%s", text) : rc;
}

static int bench_selections(struct bench *b, struct err *err)
{
    static const struct {
        const char *setting;
        bool        full, causal;
        int         kv;
    } cases[] = {
        {"spargeattn:arch=sm90:theta=-0.1:tau=0.5", true, true, 32},
        {"sampleattention", false, true, 32},
        {"sampleattention", false, true, 8},
        {"sampleattention:chunks=4", false, true, 8},
        {"xattention", false, true, 8},
        {"xattention:stride=8", false, true, 8},
        {"flexprefill", false, true, 8},
        {"minference", false, true, 8},
        {"minference:v=100:s=800", false, true, 8},
        {"minference:pattern=block", false, true, 8},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].full)
            TRY(bench_select(b, cases[i].setting, false, cases[i].kv, err));
        if (cases[i].causal)
            TRY(bench_select(b, cases[i].setting, true, cases[i].kv, err));
    }
out:
    return rc;
}

/* ---- metrics -------------------------------------------------------------------------------- */

/* What a replay measures of a head, or a part of it. */
struct metrics_job {
    const char               *name;
    bool                      reference; /* and the errors against it */
    const struct metrics_ask *ask;       /* NULL: no pass */
    struct metrics_pass       pass;
    const struct metrics_ref *ref;
    const void               *out;
    struct accel_row         *rows;
};

static int launch_metrics(struct gpu *g, const void *job, struct err *err)
{
    const struct metrics_job *m = job;
    int rc = 0;
    if (m->reference)
        TRY(metrics_ref_launch(g, m->ref, m->out, m->rows, err));
    if (m->ask)
        TRY(metrics_pass_launch(g, &m->pass, err));
out:
    return rc;
}

/* Samples of all works in turns, each after one of the product; ratios to the first. */
static int metrics_lines(struct bench *b, const char *text, const struct work *works,
                         const char *const *names, int n, double flop, struct err *err)
{
    static struct series product[MAX_WORKS], series[MAX_WORKS];
    char                 name[160];
    int                  rc = 0;

    for (int i = n - 1; i >= 0; i--)
        TRY(warm_up(b, works + i, 0.1, err));
    TRY(sample_turns(b, works, n, product, series, err));
    double product_ns = quartiles_of(product->ns, b->samples).median, dense_ns = 0;
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s: %s", text, names[i]);
        raw_samples(b, name, series + i, flop);
        struct quartiles k = quartiles_of(series[i].ns, b->samples); /* sorts them */
        dense_ns = i == 0 ? k.median : dense_ns;
        printf("%-70s %9.1f us %5.1f%% %6.3f of dense, product %5.1f TFLOP/s\n", name,
               k.median * 1e-3, 100 * (k.q3 - k.q1) / k.median, k.median / dense_ns,
               ceiling_matmul_flop(b->ceiling) / product_ns * 1e-3);
        b->lines++;
    }
    fflush(stdout);
out:
    return rc;
}

/* Largest |sum of p - 1| of the rows; every row of these cases sees a key. */
static int print_sums(struct bench *b, const char *text, const struct metrics_job *m,
                      struct err *err)
{
    int64_t n = m->pass.problem.nq;
    double *sum = NULL, worst = 0;
    int     rc = 0;
    TRY(mem_alloc(&sum, n, sizeof *sum, "sums of rows", err));
    TRY(metrics_pass_sums(&b->gpu, &m->pass, sum, err));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(sum[i] - 1) <= worst))
            worst = fabs(sum[i] - 1);
    printf("%s: %s: sum of p within %.1e of 1 in every row\n", text, m->name, worst);
out:
    free(sum);
    return rc;
}

/* Dense attention of one head, then the metrics of it in their parts and together. The mass that a
 * mask keeps is a quotient of the method's and the reference's row sums: it needs no pass. */
static int metrics_case(struct bench *b, const char *text, const struct cu_run *r, struct err *err)
{
    static const double levels[METRICS_C] = {0.02, 0.1, 0.25, 0.5, 1, 2, 4, 8};
    static const struct metrics_ask
        one = {.c = levels + 3, .n_c = 1},
        one_sums = {.c = levels + 3, .n_c = 1, .sums = true},
        tops = {.c = levels, .n_c = METRICS_C},
        eight = {.c = levels, .n_c = METRICS_C, .cells = true, .sums = true},
        maps = {.cells = true, .sums = true};
    struct metrics_job jobs[] = {
        {.name = "reference, errors", .reference = true},
        {.name = "1 threshold", .ask = &one},
        {.name = "8 thresholds", .ask = &tops},
        {.name = "1 threshold, sums of p", .ask = &one_sums},
        {.name = "maps, sums of p", .ask = &maps},
        {.name = "8 thresholds, maps, sums of p", .ask = &eight},
        {.name = "all: 1 threshold", .reference = true, .ask = &one},
        {.name = "all: 8 thresholds", .reference = true, .ask = &tops},
        {.name = "all: 1 threshold, sums of p", .reference = true, .ask = &one_sums},
        {.name = "all: 8 thresholds, maps, sums of p", .reference = true, .ask = &eight},
    };
    enum { N = sizeof jobs / sizeof *jobs };
    struct work       works[N + 1] = {{launch_attn, &r->job, 1}};
    const char       *names[N + 1] = {"dense attention"};
    struct metrics_ref ref = {0};
    struct accel_row *rows = NULL;
    int               rc = 0;

    TRY(metrics_ref_init(&b->gpu, &r->c.problem, &r->job.x, false, &ref, err));
    TRY(gpu_alloc(&b->gpu, r->c.problem.nq * (int64_t)sizeof *rows, &rows, err));
    for (int i = 0; i < N; i++) {
        jobs[i].ref = &ref;
        jobs[i].out = r->job.x.out;
        jobs[i].rows = rows;
        if (jobs[i].ask)
            TRY(metrics_pass_init(&b->gpu, &r->c.problem, &r->job.x, ref.norm, jobs[i].ask,
                                  &jobs[i].pass, err));
        works[i + 1] = (struct work){launch_metrics, jobs + i, 1};
        names[i + 1] = jobs[i].name;
    }
    TRY(metrics_lines(b, text, works, names, N + 1, cu_flop_dense(&r->c.problem), err));
    for (int i = 0; i < N; i++)
        if (jobs[i].reference && jobs[i].pass.sums)
            TRY(print_sums(b, text, jobs + i, err));
out:
    for (int i = 0; i < N; i++)
        metrics_pass_free(&jobs[i].pass);
    metrics_ref_free(&ref);
    return rc;
}

static int bench_metrics_case(struct bench *b, const char *text, const struct cu_case *c,
                              struct err *err)
{
    struct cu_run r = {0};
    int           rc = 0;

    if (b->only && !strstr(text, b->only))
        return 0;
    TRY(cu_run_init(&b->gpu, c, &r, err));
    TRY(metrics_case(b, text, &r, err));
out:
    cu_run_free(&b->gpu, &r);
    return rc;
}

static int bench_metrics(struct bench *b, struct err *err)
{
    static const int64_t lengths[] = {32768, 131072};
    char text[96];
    int  rc = 0;
    for (int d = 128; d >= 64; d /= 2)
        for (int causal = 0; causal < 2; causal++)
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
                struct cu_case c = make_case(d, lengths[i], 1, 1, causal, ATTN_DENSE, NULL);
                if (d == 64 && !b->all)
                    continue;
                snprintf(text, sizeof text, "metrics hd%d %lldK %s", d,
                         (long long)lengths[i] / 1024, causal ? "causal" : "full");
                TRY(bench_metrics_case(b, text, &c, err));
            }
out:
    return rc;
}

static int copy_speed(struct bench *b, struct err *err)
{
    struct series s = {.n = 10, .launches = 1};
    int64_t       ids[10];
    int           rc = 0;
    timer_reset(b->timer);
    for (int i = 0; i < s.n; i++) {
        TRY(timer_begin(b->timer, &b->gpu, &ids[i], err));
        TRY(ceiling_copy(b->ceiling, &b->gpu, err));
        TRY(timer_end(b->timer, &b->gpu, err));
    }
    TRY(timer_collect(b->timer, &b->gpu, err));
    for (int i = 0; i < s.n; i++)
        s.ns[i] = timer_span(b->timer, ids[i]).kernel_ns;
    raw_samples(b, "copy", &s, 0);
    printf("copy %.2f TB/s (read + written), timer %s%s%s\n\n",
           ceiling_copy_bytes(b->ceiling) / quartiles_of(s.ns, s.n).median * 1e-3,
           timer_name(b->timer), *timer_reason(b->timer) ? ": " : "", timer_reason(b->timer));
out:
    return rc;
}

static int run(struct bench *b, bool cupti, struct err *err)
{
    int rc = 0;
    TRY(timer_open(cupti, &b->timer, err));
    TRY(gpu_open(0, &b->gpu, err));
    TRY(ceiling_open(&b->gpu, 8192, 4LL << 30, &b->ceiling, err));
    printf("%s, driver CUDA %d.%d, %d multiprocessors\n", b->gpu.name, b->gpu.driver / 1000,
           b->gpu.driver % 1000 / 10, b->gpu.sms);
    TRY(copy_speed(b, err));
    printf("%-34s %-22s %13s %6s %7s %7s %6s %8s  %5s %4s %10s\n", "case", "kernel", "median",
           "iqr", "TFLOP/s", "matmul", "ratio", "of other", "plan", "cut", "plan, host");
    TRY(bench_dense(b, err));
    TRY(bench_lists(b, err));
    TRY(bench_bits(b, err));
    TRY(bench_filters(b, err));
    TRY(bench_selections(b, err));
    TRY(bench_metrics(b, err));
    if (!b->lines)
        FAIL(err, ERR_USAGE, "no line contains '%s'", b->only);
out:
    ceiling_close(&b->ceiling);
    timer_close(&b->timer);
    gpu_close(&b->gpu);
    return rc;
}

/* What is no option and no text is refused: a misspelt option must not become a filter. */
static int parse_args(int argc, char **argv, struct bench *b, bool *cupti, char ***prefill,
                      struct err *err)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--samples") == 0 && i + 1 < argc) {
            b->samples = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--raw") == 0 && i + 1 < argc) {
            if (!(b->raw = fopen(argv[++i], "w")))
                return err_set(err, ERR_IO, "%s: cannot be written", argv[i]);
        } else if (strcmp(argv[i], "--prefill") == 0 && i + 3 < argc) {
            *prefill = argv + i + 1, i += 3;
        } else if (strcmp(argv[i], "--events") == 0) {
            *cupti = false;
        } else if (strcmp(argv[i], "--cold") == 0) {
            b->warm_up = 0;
            b->single = true;
        } else if (strcmp(argv[i], "--single") == 0) {
            b->single = true;
        } else if (strcmp(argv[i], "--all") == 0) {
            b->all = true;
        } else if (argv[i][0] == '-') {
            return err_set(err, ERR_USAGE,
                           "'%s' is no option, or lacks a value; there are --samples N, "
                           "--raw FILE, --prefill MODEL PROMPT TOKENS, --events, --cold, --single "
                           "and --all",
                           argv[i]);
        } else {
            b->only = argv[i];
        }
    }
    b->samples = b->samples < 1 ? 1 : b->samples > MAX_SAMPLES ? MAX_SAMPLES : b->samples;
    return 0;
}

int main(int argc, char **argv)
{
    struct bench b = {.samples = 20, .warm_up = 1};
    struct err   err = {0};
    bool         cupti = true;
    char       **prefill = NULL;

    setvbuf(stdout, NULL, _IOLBF, 0);
    int rc = parse_args(argc, argv, &b, &cupti, &prefill, &err);
    if (!rc)
        rc = prefill ? bench_prefill(prefill[0], prefill[1], atoll(prefill[2]), b.samples, &err)
                     : run(&b, cupti, &err);
    if (rc)
        fprintf(stderr, "benchcu: %s\n", err.msg);
    if (b.raw)
        fclose(b.raw);
    return err_exit_code(rc);
}
