/*
 * benchcu_attn.c - lines of benchcu for attention: dense, block lists, masks of pairs.
 */
#include "tests/bench/benchcu.h"

#include <math.h>
#include <string.h>

bool bench_is_wanted(const struct bench *b, const char *text, const char *kernel)
{
    return !b->only || !regexec(&b->wanted, text, 0, NULL, 0) ||
           !regexec(&b->wanted, kernel, 0, NULL, 0);
}

bool bench_uses(const struct bench *b, const struct attn_kernel *k)
{
    return b->gpu.sm == 90 ? k->sm == 90 || b->all : k->sm != 90;
}

static double flop_of(const struct cu_run *r)
{
    return r->c.problem.lists == ATTN_DENSE ? cu_flop_dense(&r->c.problem) : cu_flop_blocks(r);
}

/* What attention beside a list multiplies; of causal attention tiles on the diagonal in full. */
static double flop_beside(const struct cu_run *r)
{
    return r->c.problem.causal ? cu_flop_blocks(r) : flop_of(r);
}

int bench_line(struct bench *b, const char *text, const struct cu_case *c,
               const struct cu_run *other, struct err *err)
{
    struct cu_run r = {0};
    struct series product[2], times[2];
    struct work_counts w;
    char name[320], beside[16] = "";
    int rc = 0, n = other ? 2 : 1;

    if (!bench_is_wanted(b, text, c->kernel))
        return 0;
    TRY(cu_run_init(&b->gpu, c, &r, err));
    struct work works[2] = {{bench_launch_attn, &r.job, 1},
                            {bench_launch_attn, other ? &other->job : NULL, 1}};
    TRY(bench_warm_up(b, works, 0.3, err));
    TRY(bench_turns(b, works, n, product, times, err));
    double flop = flop_of(&r);
    snprintf(name, sizeof name, "%s %s", text, r.kernel->name);
    bench_raw(b, "matmul", product, CEILING_FLOP);
    TRY(bench_work(&c->problem, &r.kernel->tile, c->given ? c->given->ptr : r.ptr,
                   c->given ? c->given->col : r.col, r.tiles.ptr ? c : NULL, &w, err));
    bench_raw_attn(b, name, r.kernel->name, &w, times, flop);
    if (other) {
        double other_flop = flop_beside(other);
        bench_raw(b, "other", times + 1, other_flop);
        snprintf(beside, sizeof beside, "%.3f",
                 bench_rate_over(times, flop, times + 1, other_flop));
    }
    struct quartiles m = quartiles_of(product->ns, b->samples);
    struct quartiles k = quartiles_of(times->ns, b->samples);
    double top = CEILING_FLOP / m.median * 1e-3, got = flop / k.median * 1e-3;
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

struct cu_case bench_case(int d, int64_t n, int heads, int kv, bool causal, enum attn_lists lists,
                          const char *kernel)
{
    return (struct cu_case){.problem = {heads, kv, d, n, n, 1 / sqrt(d), causal, lists},
                            .kernel = kernel,
                            .split = true,
                            .seed = 1,
                            .on_device = true,
                            .density = 1};
}

static bool is_default(const struct bench *b, const struct attn_problem *p,
                       const struct attn_kernel *k)
{
    const struct attn_kernel *found = NULL;
    struct err e = {0};
    return attn_kernel_find(p, b->gpu.sm, NULL, &found, &e) == 0 && found == k;
}

static const int dims[] = {128, 64, 96, 192, 256};
#define N_DIMS (sizeof dims / sizeof *dims)

int bench_dense(struct bench *b, struct err *err)
{
    static const int64_t lengths[] = {4096, 8192, 16384, 32768, 65536, 131072};
    char text[96];
    for (size_t n = 0; n < N_DIMS; n++)
        for (int causal = 0; causal < 2; causal++)
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
                for (const struct attn_kernel *k = attn_kernels; k->name; k++) {
                    int d = dims[n];
                    struct cu_case c = bench_case(d, lengths[i], causal ? 32 : 16, causal ? 8 : 16,
                                                  causal, ATTN_DENSE, k->name);
                    if (k->d != d || k->lists != ATTN_DENSE || k->element >= ATTN_INT8 ||
                        (!b->all && !is_default(b, &c.problem, k)))
                        continue;
                    snprintf(text, sizeof text, "hd%d %lldK %s %d/%d", d,
                             (long long)lengths[i] / 1024, causal ? "causal" : "full",
                             c.problem.heads, c.problem.kv_heads);
                    PASS_ON(bench_line(b, text, &c, NULL, err));
                }
    return 0;
}

/* A list beside dense attention, which is made for the first one that is asked for. */
static int list_line(struct bench *b, const char *text, const struct cu_case *c,
                     struct cu_run *dense, struct err *err)
{
    if (!bench_is_wanted(b, text, c->kernel))
        return 0;
    if (!dense->kernel) {
        struct cu_case of = bench_case(c->problem.d, 32768, 16, 16, false, ATTN_DENSE, NULL);
        PASS_ON(cu_run_init(&b->gpu, &of, dense, err));
    }
    return bench_line(b, text, c, dense, err);
}

static int list_lines(struct bench *b, int d, struct cu_run *dense, struct err *err)
{
    static const double densities[] = {1, 0.5, 0.25, 0.1, 0.02};
    static const char *const geometry[] = {"", "128x128", "128x64", "64x64", "64x32"};
    char text[96];
    for (const struct attn_kernel *k = attn_kernels; k->name; k++)
        for (size_t i = 0; i < sizeof densities / sizeof *densities && k->lists; i++) {
            if (k->d != d || cu_has_bits(k->lists) || !bench_uses(b, k))
                continue;
            struct cu_case c = bench_case(d, 32768, 16, 16, false, k->lists, k->name);
            c.density = densities[i];
            c.pattern = KEEP_RANDOM;
            snprintf(text, sizeof text, "hd%d 32K list %s %.0f%%", d, geometry[k->lists],
                     100 * c.density);
            PASS_ON(list_line(b, text, &c, dense, err));
        }
    return 0;
}

/* Every 16th row of blocks full, 2 % of the others, beside as many blocks spread evenly. */
static int skewed_line(struct bench *b, struct err *err)
{
    static const char name[] = "hd128 32K list skewed";
    struct cu_case c = bench_case(128, 32768, 4, 4, false, ATTN_128x128, "bf16-hd128-128x128");
    struct cu_run even = {0};
    int rc = 0;

    if (!bench_is_wanted(b, name, c.kernel))
        return 0;
    c.pattern = KEEP_RANDOM;
    c.density = (1 + 15 * 0.02) / 16;
    TRY(cu_run_init(&b->gpu, &c, &even, err));
    c.pattern = KEEP_SKEWED;
    c.density = 0.02;
    TRY(bench_line(b, name, &c, &even, err));
out:
    cu_run_free(&b->gpu, &even);
    return rc;
}

int bench_lists(struct bench *b, struct err *err)
{
    int rc = 0;
    for (size_t n = 0; n < N_DIMS && !rc; n++) {
        struct cu_run dense = {0};
        rc = list_lines(b, dims[n], &dense, err);
        if (dense.kernel)
            cu_run_free(&b->gpu, &dense);
    }
    return rc ? rc : skewed_line(b, err);
}

/* Masks of pairs, by computed tile. */
int bench_bits(struct bench *b, struct err *err)
{
    static const struct {
        enum cu_bits bits;
        const char *name;
        double density;
        bool causal;
    } masks[] = {{BITS_BAND, "window 4096, sink", 1, true},
                 {BITS_BAND, "window 4096, sink", 1, false},
                 {BITS_SLICES, "slices 128x1 25%", 0.25, false},
                 {BITS_FINE, "64x32 25%", 0.25, false},
                 {BITS_STRIPES, "columns, diagonals", 1, true}};
    char text[96];
    for (const struct attn_kernel *k = attn_kernels; k->name; k++)
        for (size_t i = 0; i < sizeof masks / sizeof *masks && cu_has_bits(k->lists); i++) {
            if (!bench_uses(b, k))
                continue;
            bool band = masks[i].bits == BITS_BAND;
            int heads = band ? 16 : 2;
            struct cu_case c =
                bench_case(k->d, 32768, heads, heads, masks[i].causal, k->lists, k->name);
            c.bits = masks[i].bits;
            c.density = masks[i].density;
            c.window = 4096;
            snprintf(text, sizeof text, "hd%d 32K %s%s", k->d, masks[i].name,
                     masks[i].causal ? " causal" : "");
            PASS_ON(bench_line(b, text, &c, NULL, err));
        }
    return 0;
}
