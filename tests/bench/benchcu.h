/*
 * benchcu.h - what the parts of benchcu (benchcu.c) share: the run, samples that last
 * equally long, and a line for attention.
 */
#pragma once

#include "core/gpumodel.h"
#include "cuda/ops.h"
#include "cuda/session.h"
#include "cuda/timer.h"
#include "tests/gpu/checkcu_case.h"

#include <regex.h>
#include <stdio.h>

enum { MAX_WORKS = 16, MAX_SAMPLES = 256 };

struct series { /* samples of one thing, ns per launch, or cycles */
    double ns[MAX_SAMPLES];
    int n;
    int launches; /* of a sample */
};

struct bench {
    struct gpu gpu;
    struct timer *timer;
    struct counters *counters; /* cycles are counted instead of times; or NULL */
    struct ceiling ceiling;
    struct series product; /* its cycles, the same beside every work; or zeroed */
    int samples;
    double warm_up;   /* 1, or 0 for a profiler */
    const char *only; /* TEXT, or NULL; as a pattern: */
    regex_t wanted;
    const char *masks; /* file of --masks, or NULL */
    FILE *raw;
    int lines;
    bool all;
    bool single;  /* samples are single launches */
    bool apart;   /* nor do works take turns: each has the clock that it leaves itself */
    bool choices; /* lines of selections only */
    bool kernels; /* print the time of every kernel of a choice or plan */
};

/* What is timed. */
struct work {
    int (*launch)(struct gpu *g, const void *job, struct err *err);
    const void *job;
    int launches; /* of a sample; chosen by bench_turns() */
};

int bench_launch_attn(struct gpu *g, const void *job, struct err *err);

/* A series as a line of --raw, of `flop` operations a launch. */
void bench_raw(struct bench *b, const char *name, const struct series *s, double flop);

/* The same of attention, with its kernel's name and work. */
void bench_raw_attn(struct bench *b, const char *name, const char *kernel,
                    const struct work_counts *w, const struct series *s, double flop);

/* Work of a launch, for the cost model: dense attention in tiles, or lists of all heads (struct
 * attn_csr), with `bits` of its masks. */
int bench_work(const struct attn_problem *p, const struct attn_tile *tile, const int64_t *ptr,
               const int32_t *col, const struct cu_case *bits, struct work_counts *w,
               struct err *err);

/* Launches for so long, or once for a profiler. */
int bench_warm_up(struct bench *b, const struct work *work, double for_seconds, struct err *err);

/* The launches of one sample, timed together. */
int bench_timed(struct bench *b, const struct work *work, int64_t *id, struct err *err);

/* Samples of n works in turns, each after one of the product, whose times before works[i] go to
 * product[i]; all of them last equally long. Many works: a round at a time. b->apart: one work
 * after the other. */
int bench_turns(struct bench *b, const struct work *works, int n, struct series *product,
                struct series *times, struct err *err);
int bench_sample(struct bench *b, const struct work *work, struct series *product,
                 struct series *times, struct err *err); /* the same for one */

/* Median over the rounds of one series' rate over another's, for so many operations each. */
double bench_rate_over(const struct series *one, double flop, const struct series *other,
                       double other_flop);

/* Was a line asked for? */
bool bench_is_wanted(const struct bench *b, const char *text, const char *kernel);

/* Is this one of the kernels that this GPU is measured with? */
bool bench_uses(const struct bench *b, const struct attn_kernel *k);

/* q, k, v of n tokens on the device, normal data. */
struct cu_case bench_case(int d, int64_t n, int heads, int kv, bool causal, enum attn_lists lists,
                          const char *kernel);

/* One line of the table; other: attention that is sampled in turns with it, or NULL. */
int bench_line(struct bench *b, const char *text, const struct cu_case *c,
               const struct cu_run *other, struct err *err);

/* The lines of a part. */
int bench_dense(struct bench *b, struct err *err);
int bench_lists(struct bench *b, struct err *err);
int bench_bits(struct bench *b, struct err *err);
int bench_masks(struct bench *b, struct err *err); /* of b->masks */
int bench_filters(struct bench *b, struct err *err);
int bench_selections(struct bench *b, struct err *err);
int bench_plans(struct bench *b, struct err *err);
int bench_own(struct bench *b, struct err *err);
int bench_metrics(struct bench *b, struct err *err);
