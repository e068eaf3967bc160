/*
 * session.h - the state that all GPU work of a replay shares: the device, the timer, the lock that
 * admits one call at a time, warm-up and samples.
 */
#pragma once

#include "core/accel.h"
#include "cuda/attn/mapplan.h"
#include "cuda/device.h"
#include "cuda/metrics/metrics.h"
#include "cuda/select/select.h"
#include "cuda/timer.h"

#include <pthread.h>

#define SESSION_MAX_SAMPLES 1000

/* A plan of static masks that stays on the device (accel_lists.static_id): what its kernels read
 * and the order of the work, for the calls that follow. */
struct session_plan {
    uint64_t id;
    struct attn_problem problem;
    struct attn_plan plan; /* all on the device */
    int64_t *ptr;          /* [heads][groups] + 1 as in struct accel_lists, owned */
    void *memory;          /* device, owned */
    int64_t bytes, used;   /* used: s->plans_used when it was asked for last */
    struct session_plan *next;
};

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
    struct session_plan *plans; /* of static masks */
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

/* struct accel's copies (operands.h): options.copies if set, else 1 if nothing is measured. */
struct accel_heads session_copies(const struct accel_session *s, const struct attn_in *x,
                                  struct accel_heads call);

/* The launches of one sample. They run on the session's stream and can be repeated. */
struct session_work {
    int (*launch)(struct gpu *g, const void *job, struct err *err);
    const void *job;
};

/* Take options.samples samples of n works in turns, after a warm-up, with times[n]: the works [0,
 * chain) of a sample run one after the other, before the other works of that sample or, in every
 * second one, after them. Where `total` is not NULL it is the sum of a sample's times of [0,
 * in_total). */
int session_time(struct accel_session *s, const struct session_work *work, int n, int chain,
                 int in_total, struct accel_time *times, struct accel_time *total, struct err *err);

/* struct accel's put_call, select_call and attend_call (session_call.c). */
int session_bring_call(struct accel_session *s, const struct accel_call *call, struct err *err);
int session_select_call(struct accel_session *s, const struct accel_call *call, struct err *err);
int session_attend_call(struct accel_session *s, const struct accel_call *call,
                        const struct accel_lists *l, struct accel_result *r, struct err *err);

bool session_holds(struct accel_session *s, uint64_t id); /* struct accel's has_cached */

/* Keys of the smallest blocks whose lists a kernel for d channels takes, with 64 rows. */
int session_block_keys(const struct accel_session *s, int d);

/* ---- plans of static masks ------------------------------------------------------------------ */

/* NULL: it is not there. What it returns is valid until the next session_keep_plan. */
const struct session_plan *session_find_plan(struct accel_session *s, uint64_t id);

/* Keep a plan of lists of the host: *plan, which stays the caller's, is on the device afterwards,
 * unless it takes too much memory. groups: rows of blocks of a head in the lists. */
int session_keep_plan(struct accel_session *s, uint64_t id, const struct attn_problem *p,
                      const struct attn_csr *csr, int64_t groups, struct attn_plan *plan,
                      struct err *err);

/* ---- runs of heads -------------------------------------------------------------------------- */

/* Heads of a call that ask for the same thing, in selections and attention. Whole groups, or heads
 * of one group, are heads of one problem, whose keys and values they share. */
struct head_run {
    int first, n, kv; /* heads, and those of keys and values */
};

/* Operands of a run, and its part of x->out and x->lse, which are of the whole call. */
struct attn_tensors run_tensors(const struct session_call *c, const struct attn_tensors *x,
                                struct head_run r);

/* ---- hardware counters ---------------------------------------------------------------------- */

/* Counters of a kernel through CUPTI's Range Profiler (counters.c): how busy the tensor pipe was,
 * and the bytes moved through device memory. Needs one pass, and never runs together with timing.
 */
struct counters;

/* Open the counters of g's GPU. They need libcupti, permission (root, or the driver option
 * NVreg_RestrictProfilingToAdminUsers=0) and that no other profiler runs. Otherwise returns NULL,
 * and `why` names what is missing. */
struct counters *counters_open(struct gpu *g, char why[160]);
void counters_close(struct counters **c);

/* Count what `launch` does on g's stream; runs it once to warm up and once to count. If CUPTI
 * refuses, v->why has the reason and the call succeeds. */
int counters_measure(struct counters *c, struct gpu *g,
                     int (*launch)(struct gpu *g, const void *job, struct err *err),
                     const void *job, struct accel_counters *v, struct err *err);
