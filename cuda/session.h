/*
 * session.h - the state that all GPU work of a replay shares: the device, the timer, the lock that
 * admits one head or call at a time, warm-up and samples.
 */
#ifndef LACUNA_SESSION_H
#define LACUNA_SESSION_H

#include "core/accel.h"
#include "cuda/attn/maplists.h"
#include "cuda/attn/maptiles.h"
#include "cuda/counters.h"
#include "cuda/metrics/metrics.h"
#include "cuda/select/select.h"
#include "cuda/timer.h"

#include <pthread.h>

#define SESSION_MAX_SAMPLES 1000

struct accel_session {
    struct accel_options options;
    struct gpu gpu;
    struct timer *timer;
    struct counters *counters; /* NULL: not requested or not available */
    char no_counters[160];
    pthread_mutex_t lock; /* held while a head's memory is in the arena */
    bool warm;
    void *flush;          /* twice the L2, overwritten with l2_cold */
    struct gpu_mark base; /* top of the arena below the head */
    struct session_head {
        uint64_t data;             /* 0: no head is on the device */
        struct accel_heads copies; /* copies, one after the other */
        const void *q, *k, *v;     /* bf16; v NULL until someone needs it */
        int v_exp;                 /* v is divided by 2^v_exp (values.h), and so are outputs */
    } head;
    struct session_call { /* the call that is on the device, below everything else */
        uint64_t data;    /* 0: none */
        struct attn_problem problem;
        struct attn_tensors x;      /* q, k, v; out and lse: scratch of dense attention */
        int *v_exp;                 /* [kv heads], owned; of v and of the group's outputs */
        struct metrics_dense dense; /* out NULL: not asked for yet */
    } call;
    struct session_kept { /* masks of its heads that stay there, above it (accel_choice.stays) */
        struct select_job *jobs; /* [n], owned: who chose them */
        int n;
        struct gpu_mark mark;   /* below them */
        struct tile_rows rows;  /* of units that become tiles; heads 0: none are there */
        struct map_lists lists; /* of units that become lists of blocks, the same */
        bool dense;             /* call.dense lies above them, and goes with them */
    } kept;
    struct session_plan *plans; /* of static masks (session_plans.h) */
    int64_t plans_used;         /* how often one was asked for */
    double used_since;          /* guarded by `lock`: see session_lock */
    _Atomic double used_ns;
};

/* struct accel's open and close. */
int session_open(const struct accel_options *o, struct accel_session **out, struct err *err);
void session_close(struct accel_session **s);

/* Take and leave the device. The time in between is what session_used tells. */
void session_lock(struct accel_session *s);
void session_unlock(struct accel_session *s);
double session_used(struct accel_session *s); /* struct accel's used_s */

/* Put q and k of a head, and with `values` v, onto the device, at least `copies` times. If the call
 * before had the same nonzero `data`, or one copy is wanted of a head of the call that is there,
 * they are on the device already. They lie at the bottom of the arena, so the arena must be empty;
 * they are valid until the next call. After an error the caller releases the arena to s->base. */
int session_put_head(struct accel_session *s, const struct attn_in *x, uint64_t data,
                     struct accel_heads copies, bool values, struct err *err);

/* Put a call onto the device, in place of the head or call that is there, unless it is that one.
 * After an error neither is there. */
int session_put_call(struct accel_session *s, const struct accel_call *c, struct err *err);

/* Release the masks that stay on the device, if there are any. */
void session_drop_kept(struct accel_session *s);

/* Index of a head of the call on the device, by its number; -1: of no such head. */
int session_call_head(const struct accel_session *s, uint64_t data);

/* Dense attention of the call on the device, computed when it is first asked for. It stays with the
 * call, or with the masks that stay there already: nothing else may lie above the call in the arena
 * when it is. */
int session_call_dense(struct accel_session *s, struct err *err);

/* How many copies of a head of such a call a launch holds (copies.h): options.copies if set, else 1
 * if nothing is measured. */
struct accel_heads session_copies(const struct accel_session *s, struct accel_heads call,
                                  const struct attn_in *x);

/* The launches of one sample. They run on the session's stream and can be repeated. */
struct session_work {
    int (*launch)(struct gpu *g, const void *job, struct err *err);
    const void *job;
};

/* Take options.samples samples of each of n works, in turns, after a warm-up with the same works.
 * Results in times[n]. */
int session_time(struct accel_session *s, const struct session_work *work, int n,
                 struct accel_time *times, struct err *err);

/* The same in chains: the works [0, chain) of a sample run one after the other, before the other
 * works of that sample or, in every second one, after them. Where `total` is not NULL it is the sum
 * of a sample's times of [0, in_total). */
int session_time_chain(struct accel_session *s, const struct session_work *work, int n, int chain,
                       int in_total, struct accel_time *times, struct accel_time *total,
                       struct err *err);

/* Returns rc. If that is ERR_NOMEM, adds to the message how many copies were requested. */
int session_blame(int rc, int copies, struct err *err);

/* Divide a launch's time by its number of copies. */
void session_share(struct accel_time *t, int copies);

/* struct accel's map, and the metrics of `attend` (metrics_session.c): r->rows, r->mass and
 * r->dense_lse for the outputs in t->out. The dense kernel writes to `spare`. r->mass is computed
 * from r->lse, which must be filled. With a filter that leaves skipped tiles out of its normaliser,
 * r->lse is not the LSE of the whole mask; then it comes from `whole`, the caller's job that
 * computes it. A sample launches session_metrics_launch. Valid until session_metrics_free. */
struct session_metrics {
    struct metrics_ref *ref;
    const struct attn_job *whole; /* NULL: r->lse */
    bool all;                     /* the mask keeps every allowed pair */
    struct accel_row *rows;
    const void *out;
    int64_t nq;
    int d;
};
int session_metrics_init(struct accel_session *s, const struct accel_head *h,
                         const struct attn_tensors *t, const struct attn_tensors *spare,
                         const struct attn_job *whole, struct session_metrics *m, struct err *err);
int session_metrics_launch(struct gpu *g, const void *metrics, struct err *err);
int session_metrics_fetch(struct accel_session *s, const struct session_metrics *m,
                          struct accel_result *r, struct err *err);
void session_metrics_free(struct session_metrics *m);
int session_map(struct accel_session *s, const struct attn_in *x, struct accel_map *m,
                struct err *err);
int session_reference(struct accel_session *s, const struct attn_in *x, uint64_t data, double *out,
                      double *lse, struct err *err);

/* struct accel's put_call and select_call (session_call.c), and attend_call (session_attend.c). */
int session_bring_call(struct accel_session *s, const struct accel_call *call, struct err *err);
int session_select_call(struct accel_session *s, const struct accel_call *call,
                        const struct accel_choice *choices, struct mask *masks, int *answers,
                        char (*why)[160], struct err *err);
int session_attend_call(struct accel_session *s, const struct accel_call_work *w,
                        struct accel_call_result *r, struct err *err);

/* struct accel's select (select_session.c). */
int session_select(struct accel_session *s, const struct accel_choice *c, struct mask *m,
                   struct accel_time *time, char why[160], struct err *err);

#endif
