/*
 * session.h - what everything that runs on the GPU of a replay shares: the device, the timer, the
 * lock that lets one head at a time onto it, warm-up and samples.
 */
#ifndef LACUNA_SESSION_H
#define LACUNA_SESSION_H

#include "core/kernel.h"
#include "cuda/counters.h"
#include "cuda/timer.h"

#include <pthread.h>

#define SESSION_MAX_SAMPLES 1000

struct accel_session {
    struct accel_options options;
    struct gpu gpu;
    struct timer *timer;
    struct counters *counters; /* NULL: not asked for, or not to be had */
    char no_counters[160];
    pthread_mutex_t lock; /* held while a head's memory is in the arena */
    bool warm;
    void *flush;                    /* twice the L2, overwritten with l2_cold */
    struct gpu_mark base;           /* the arena below the head */
    struct session_head {
        uint64_t data;             /* 0: no head is there */
        struct accel_heads copies; /* one after the other */
        const void *q, *k, *v;     /* bf16; v NULL until it is asked for */
    } head;
    double matmul_tflops, copy_tbs; /* NAN until measured */
};

/* struct accel's open and close. */
int session_open(const struct accel_options *o, struct accel_session **out, struct err *err);
void session_close(struct accel_session **s);

/* q and k of a head, and with `values` v, on the device, `copies` times or more: where the call
 * before had the same `data`, not 0, they are there already. They lie at the bottom of the arena, so
 * nothing else may be in it; valid until the next call. After an error the arena is to be released
 * to s->base. */
int session_put_head(struct accel_session *s, const struct attn_in *x, uint64_t data,
                     struct accel_heads copies, bool values, struct err *err);

/* How often a launch holds a head of such a call (copies.h); once where nothing is measured, unless
 * options.copies says otherwise. */
struct accel_heads session_copies(const struct accel_session *s, struct accel_heads call,
                                  const struct attn_in *x);

/* Launches that make one sample: on the session's stream, repeatable. */
struct session_work {
    int (*launch)(struct gpu *g, const void *job, struct err *err);
    const void *job;
};

/* options.samples samples of each of n works in turns, after a warm-up
 * with the same works; times[n]. */
int session_time(struct accel_session *s, const struct session_work *work, int n,
                 struct accel_time *times, struct err *err);

/* rc; out of memory, the message says how many copies there were to be. */
int session_blame(int rc, int copies, struct err *err);

/* The share of one copy in a launch of so many. */
void session_share(struct accel_time *t, int copies);

/* struct accel's map, and the metrics of `attend` (metrics_session.c): r->rows, r->mass and
 * r->dense_lse of the outputs in t->out, with `spare` for what the dense kernel would write.
 * r->mass comes from r->lse, which has to be there, or where that is not the LSE of the whole mask
 * (a filter that leaves skipped tiles out of it) from `whole`, attention that has it: the caller's.
 * session_metrics_launch is what a sample launches; valid until session_metrics_free. */
struct attn_job;
struct session_metrics {
    struct metrics_ref *ref;
    const struct attn_job *whole; /* NULL: r->lse */
    bool all;                     /* everything is kept */
    struct accel_row *rows;
    const void *out;
    int64_t nq;
    int d;
};
struct attn_tensors;
int session_metrics_init(struct accel_session *s, const struct accel_head *h,
                         const struct attn_tensors *t, const struct attn_tensors *spare,
                         const struct attn_job *whole, struct session_metrics *m, struct err *err);
int session_metrics_launch(struct gpu *g, const void *metrics, struct err *err);
int session_metrics_fetch(struct accel_session *s, const struct session_metrics *m,
                          struct accel_result *r, struct err *err);
void session_metrics_free(struct session_metrics *m);
int session_map(struct accel_session *s, const struct attn_in *x, struct accel_map *m,
                struct err *err);

/* struct accel's select (select_session.c). */
int session_select(struct accel_session *s, const struct accel_choice *c, struct mask *m,
                   struct accel_time *time, char why[160], struct err *err);

#endif
