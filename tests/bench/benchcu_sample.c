/*
 * benchcu_sample.c - samples of launches (benchcu.h): how many launches each has, in which
 * order they are taken, and what is printed raw.
 */
#include "core/clock.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "sim/work.h"
#include "tests/bench/benchcu.h"

#include <math.h>
#include <string.h>

#define SPAN_NS 10e6 /* a sample lasts at least so long */

static void raw(struct bench *b, const char *name, const char *more, const struct series *s,
                double flop)
{
    if (!b->raw)
        return;
    fprintf(b->raw, "{\"name\":\"%s\",%s\"flop\":%.17g,\"timer\":\"%s\",\"launches\":%d,\"%s\":[",
            name, more, flop, timer_name(b->timer), s->launches, b->counters ? "cycles" : "ns");
    for (int i = 0; i < s->n; i++)
        fprintf(b->raw, "%s%.0f", i ? "," : "", s->ns[i]);
    fprintf(b->raw, "]}\n");
    fflush(b->raw);
}

void bench_raw(struct bench *b, const char *name, const struct series *s, double flop)
{
    raw(b, name, "", s, flop);
}

void bench_raw_attn(struct bench *b, const char *name, const char *kernel,
                    const struct work_counts *w, const struct series *s, double flop)
{
    char more[256];
    snprintf(more, sizeof more, "\"kernel\":\"%s\",\"work\":[%.0f,%.0f,%.0f,%.0f,%.0f,%.0f],",
             kernel, w->rows, w->stages, w->half, w->masked, w->longest, w->shortest);
    raw(b, name, more, s, flop);
}

/* Rows of blocks of a head, as a mask. */
static int mask_of_lists(const struct attn_problem *p, const int64_t *ptr, const int32_t *col,
                         struct mask *m, struct err *err)
{
    int bq = attn_block_rows(p->lists, NULL), bk = attn_block_keys(p->lists, NULL);
    PASS_ON(mask_lists_init(m, p->nq, p->nk, 0, p->nq, p->causal, bq, bk, err));
    for (int64_t g = 0; g < m->ngroups; g++)
        PASS_ON(mask_lists_add_all(m, g, col + ptr[g], ptr[g + 1] - ptr[g], err));
    mask_lists_finish(m);
    return 0;
}

int bench_work(const struct attn_problem *p, const struct attn_tile *tile, const int64_t *ptr,
               const int32_t *col, const struct cu_case *bits, struct work_counts *w,
               struct err *err)
{
    static const enum work_lists kinds[][2] = {[ATTN_128x128] = {WORK_128x128, WORK_WIDE_128x128},
                                               [ATTN_128x64] = {WORK_128x64, WORK_WIDE_128x64},
                                               [ATTN_64x64] = {WORK_64x64, WORK_64x64},
                                               [ATTN_64x32] = {WORK_64x32, WORK_64x32},
                                               [ATTN_BITS] = {WORK_BITS, WORK_BITS},
                                               [ATTN_GATHER] = {WORK_GATHER, WORK_GATHER},
                                               [ATTN_64x128] = {WORK_64x64, WORK_64x64}};
    struct mask_work all = {0};
    OWN(mask_free) struct mask m = {0};
    if (p->lists == ATTN_DENSE) {
        *w = work_of_dense(p->nq, p->nk, p->causal, tile->bm, tile->bn, p->heads);
        return 0;
    }
    for (int h = 0; h < p->heads; h++) {
        int64_t groups = ceil_div(p->nq, attn_block_rows(p->lists, NULL));
        if (bits)
            PASS_ON(cu_bits_mask(bits, h, 0, p->nq, &m, err));
        else
            PASS_ON(mask_of_lists(p, ptr + h * groups, col, &m, err));
        PASS_ON(work_add(&all, &m, err));
        mask_free(&m);
    }
    *w = all.of[kinds[p->lists][tile->bn == 192]];
    return 0;
}

int bench_launch_attn(struct gpu *g, const void *job, struct err *err)
{
    return attn_job_launch(g, job, err);
}

static struct work product_of(const struct bench *b)
{
    return (struct work){ceiling_matmul, &b->ceiling, 1};
}

int bench_timed(struct bench *b, const struct work *work, int64_t *id, struct err *err)
{
    PASS_ON(timer_begin(b->timer, &b->gpu, id, err));
    for (int i = 0; i < work->launches; i++)
        PASS_ON(work->launch(&b->gpu, work->job, err));
    return timer_end(b->timer, &b->gpu, err);
}

/* Time of a launch of a sample. */
static double launch_ns(const struct bench *b, const struct work *work, int64_t id)
{
    return timer_ns(b->timer, id) / work->launches;
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
    double ns[MAX_WORKS + 1], longest = SPAN_NS, span;
    int64_t ids[MAX_WORKS + 1];

    for (int i = 0; i < n; i++)
        works[i].launches = 1;
    if (b->single)
        return 0;
    for (int i = 0; i < n; i++) /* a first launch loads its kernel, which events would count */
        PASS_ON(works[i].launch(&b->gpu, works[i].job, err));
    timer_reset(b->timer);
    for (int i = 0; i < n; i++)
        PASS_ON(bench_timed(b, works + i, ids + i, err));
    PASS_ON(timer_collect(b->timer, &b->gpu, err));
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
    return 0;
}

int bench_warm_up(struct bench *b, const struct work *work, double for_seconds, struct err *err)
{
    double end = clock_s() + for_seconds * b->warm_up;
    int rc = 0;
    do {
        for (int i = 0; i < 3 && !rc && b->warm_up > 0; i++)
            rc = work->launch(&b->gpu, work->job, err);
        if (!rc)
            rc = gpu_sync(&b->gpu, err);
    } while (!rc && clock_s() < end);
    return rc;
}

/* Rounds [from, to) of bench_turns(), queued without a pause; the product is works[n]. */
static int bench_rounds(struct bench *b, const struct work *works, int n, int from, int to,
                        struct series *product, struct series *times, struct err *err)
{
    int64_t ids[4 * MAX_SAMPLES];
    int at = 0;

    timer_reset(b->timer);
    for (int k = from; k < to; k++)
        for (int i = 0; i < n; i++) {
            PASS_ON(bench_timed(b, works + n, &ids[at++], err));
            PASS_ON(bench_timed(b, works + i, &ids[at++], err));
        }
    PASS_ON(timer_collect(b->timer, &b->gpu, err));
    at = 0;
    for (int k = from; k < to; k++)
        for (int i = 0; i < n; i++) {
            product[i].ns[k] = launch_ns(b, works + n, ids[at++]);
            times[i].ns[k] = launch_ns(b, works + i, ids[at++]);
        }
    return 0;
}

static int count_cycles(struct bench *b, const struct work *work, struct series *cycles,
                        struct err *err)
{
    struct accel_counters v = {0};
    *cycles = (struct series){.n = b->samples, .launches = 1};
    for (int k = 0; k < b->samples; k++) {
        PASS_ON(counters_measure(b->counters, &b->gpu, work->launch, work->job, &v, err));
        cycles->ns[k] = v.cycles;
        if (isnan(v.tensor_pipe_pct))
            return err_set(err, ERR_MACHINE, "--cycles: %s", v.why);
    }
    return 0;
}

static int take_turns(struct bench *b, const struct work *works, int n, struct series *product,
                      struct series *times, struct err *err)
{
    struct work all[MAX_WORKS + 1];
    int rounds = n > 2 ? 1 : b->samples;

    memcpy(all, works, (size_t)n * sizeof *works);
    all[n] = product_of(b);
    for (int i = 0; i < n && b->counters; i++) {
        if (b->product.n == 0)
            PASS_ON(count_cycles(b, all + n, &b->product, err));
        product[i] = b->product;
        PASS_ON(count_cycles(b, all + i, times + i, err));
    }
    if (b->counters)
        return 0;
    PASS_ON(even_out(b, all, n + 1, err));
    for (int k = 0; k < b->samples; k += rounds)
        PASS_ON(bench_rounds(b, all, n, k, k + rounds, product, times, err));
    for (int i = 0; i < n; i++) {
        product[i].n = times[i].n = b->samples;
        product[i].launches = all[n].launches;
        times[i].launches = all[i].launches;
    }
    return 0;
}

int bench_turns(struct bench *b, const struct work *works, int n, struct series *product,
                struct series *times, struct err *err)
{
    if (!b->apart)
        return take_turns(b, works, n, product, times, err);
    for (int i = 0; i < n; i++) {
        PASS_ON(bench_warm_up(b, works + i, 1, err));
        PASS_ON(take_turns(b, works + i, 1, product + i, times + i, err));
    }
    return 0;
}

int bench_sample(struct bench *b, const struct work *work, struct series *matmul,
                 struct series *kernel, struct err *err)
{
    return bench_turns(b, work, 1, matmul, kernel, err);
}

double bench_rate_over(const struct series *one, double flop, const struct series *other,
                       double other_flop)
{
    struct series over = {.n = one->n};
    for (int k = 0; k < over.n; k++)
        over.ns[k] = flop / one->ns[k] / (other_flop / other->ns[k]);
    return quartiles_of(over.ns, over.n).median;
}
