/*
 * session.h - the state that all GPU work of a replay shares: the device, the timer, the lock that
 * admits one call at a time, warm-up and samples.
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
    pthread_mutex_t lock; /* held while somebody works with the arena */
    bool warm;
    void *flush;          /* twice the L2, overwritten with l2_cold */
    struct gpu_mark base; /* top of the arena below the call */
    struct session_call { /* the call that is on the device, below everything else */
        uint64_t data;    /* 0: none */
        int copies;       /* as in struct accel_call */
        struct attn_problem problem;
        struct attn_tensors x;      /* q, k, v; out and lse: scratch of dense attention */
        int *v_exp;                 /* [kv heads], owned; of v and of the group's outputs */
        struct metrics_dense dense; /* of the heads that are no copies; out NULL: not asked for
                                     * yet */
    } call;
    struct session_kept {        /* masks of its heads that stay there, above it
                                    (accel_choice.keep_on_device) */
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

/* Put a call onto the device, in place of the call that is there, unless it is that one. After an
 * error neither is there. */
int session_put_call(struct accel_session *s, const struct accel_call *c, struct err *err);

/* Release the masks that stay on the device, if there are any. */
void session_drop_kept(struct accel_session *s);

/* Dense attention of the call on the device, but for its copies, computed when it is first asked
 * for. It stays with the call, or with the masks that stay there already: nothing else may lie
 * above the call in the arena when it is. */
int session_call_dense(struct accel_session *s, struct err *err);

/* Put the head with this number onto the device, unless it is of the call there, as a call of one:
 * its index. */
int session_put_head(struct accel_session *s, const struct attn_in *x, uint64_t data, int *index,
                     struct err *err);

/* struct accel's copies (operands.h): options.copies if set, else 1 if nothing is measured. */
struct accel_heads session_copies(const struct accel_session *s, const struct attn_in *x,
                                  struct accel_heads call);

/* The launches of one sample. They run on the session's stream and can be repeated. */
struct session_work {
    int (*launch)(struct gpu *g, const void *job, struct err *err);
    const void *job;
};

/* Take options.samples samples of a work, after a warm-up. */
int session_time(struct accel_session *s, const struct session_work *work, struct accel_time *time,
                 struct err *err);

/* The same of n works in turns, with times[n]: the works [0, chain) of a sample run one after the
 * other, before the other works of that sample or, in every second one, after them. Where `total`
 * is not NULL it is the sum of a sample's times of [0, in_total). */
int session_time_chain(struct accel_session *s, const struct session_work *work, int n, int chain,
                       int in_total, struct accel_time *times, struct accel_time *total,
                       struct err *err);

/* struct accel's reference and map (cuda/metrics/metrics_session.c). */
int session_reference(struct accel_session *s, const struct attn_in *x, uint64_t data, double *out,
                      double *lse, struct err *err);
int session_map(struct accel_session *s, const struct attn_in *x, uint64_t data,
                struct accel_map *m, struct err *err);

/* struct accel's put_call and select_call (session_call.c), and attend_call (session_attend.c). */
int session_bring_call(struct accel_session *s, const struct accel_call *call, struct err *err);
int session_select_call(struct accel_session *s, const struct accel_call *call, struct err *err);
int session_attend_call(struct accel_session *s, const struct accel_call *call,
                        const struct accel_lists *l, struct accel_result *r, struct err *err);

#endif
