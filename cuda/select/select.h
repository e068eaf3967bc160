/*
 * select.h - a method's selection on the GPU: from q and k to maps of kept units, all heads at
 * once.
 *
 * A method's GPU side is one file cuda/methods/<name>.cu that defines `const struct select_method
 * select_<id>`, and METHOD_GPU in core/methods.def. It must choose what the method's CPU side
 * chooses. The two sides are connected only by the method's name and its rule (core/rules.h).
 */
#pragma once

#include "cuda/linkage.h"

BEGIN_C

#include "core/accel.h"
#include "core/mask.h"
#include "core/rules.h"
#include "cuda/device.h"

#include <stdbool.h>
#include <stdint.h>

struct select_problem {
    int heads, kv_heads, d;
    int of_heads; /* of the call of which these are a part; 0: these are all */
    int64_t nq, nk;
    double scale;
    bool causal;                        /* key j is seen by row i iff j <= i + nk - nq */
    const void *q, *k, *v;              /* on the device, bf16 [heads][nq][d], [kv_heads][nk][d] */
    const struct accel_choice *choices; /* [n_choices], head h is the choice h % n_choices, whose
                                         * `rule` and `given` are valid until init returns */
    int n_choices;
    const int *v_exp; /* see select_v_exp. Valid until init returns; NULL: 0 */
    bool no_mask;     /* the choice is only to be timed (select_job_choose) */
};

struct select_job;
typedef int own_make_fn(struct gpu *g, const struct select_job *job, struct err *err);

/* The result of a selection. Row r = head * groups + group of the map has a bit for each unit of bk
 * keys. Lists of blocks and tiles with bits are made of maps: there (cuda/attn/mapplan.h), or on
 * the host of a fetched one. */
struct select_lists {
    int64_t bq, bk, groups, units; /* groups = ceil(nq / bq), units = ceil(nk / bk), per head */
    int64_t rows, words;           /* heads * groups; 32-bit words of a row of the map */
    uint32_t *map;                 /* [rows][words], on the device as all below */
    void *own; /* [heads][own_bytes] what comes beside the mask (core/rules.h), or NULL */
    int64_t own_bytes;
    own_make_fn *own_make; /* fills `own` when somebody asks for it; NULL: `launch` has */
};

struct select_job {
    const struct select_method *method;
    struct select_problem problem;
    struct select_lists lists;
    void *state; /* host, from calloc, owned by the job */

    /* For a method whose own attention (cuda/own/) does not read the mask, set by init: what of
     * `launch` is its choice. The mask beside it is for counts and recall, and no part of a time:
     * with no_mask the lists have no memory. NULL: all is. */
    int (*choose)(struct gpu *g, const struct select_job *job, struct err *err);
};

struct select_method {
    const char *name; /* of the method */

    /* Is there a GPU side for this rule and these shapes? If not, why. */
    bool (*fits)(const struct select_problem *p, char why[160]);

    /* Take memory from the arena, fill job->state and job->lists. */
    int (*init)(struct gpu *g, struct select_job *job, struct err *err);

    /* Launch everything from q and k to the map. */
    int (*launch)(struct gpu *g, const struct select_job *job, struct err *err);

    /* Do rule and sizes alone make the mask full, so that there is nothing to choose? Asked before
     * fits. NULL: never. */
    bool (*dense)(const struct select_problem *p);

    /* Release what job->state holds on the host, without job->state itself. NULL: nothing. */
    void (*release)(struct select_job *job);

    bool values; /* it reads v as well; else v may be NULL */

    /* May heads with these rules be chosen for in one launch? Then init asks for the rule of each.
     * NULL: only heads with equal rules. */
    bool (*together)(const union method_rule *a, const union method_rule *b);
};

/* Every GPU side, in the order of core/methods.def, then NULL. */
extern const struct select_method *const select_methods[];

const struct select_method *select_find(const char *name); /* NULL: none */

/* Device memory comes from the arena and lives until its release; select_job_free frees host
 * memory. */
int select_job_init(struct gpu *g, const struct select_method *method,
                    const struct select_problem *p, struct select_job *job, struct err *err);
void select_job_free(struct select_job *job);

/* Launch what is timed as the choice, of a struct select_job. */
int select_job_choose(struct gpu *g, const void *job, struct err *err);

/* The head's rule, valid until init returns. */
const union method_rule *select_rule(const struct select_problem *p, int head);

/* May the heads of two choices be chosen for in one launch? */
bool select_together(const struct accel_choice *a, const struct accel_choice *b);

/* What the head's choice was given, NULL: nothing. */
const void *select_given(const struct select_problem *p, int head);

/* The values of kv head `kv` are divided by 2^(this), also where all are copies of one head. */
int select_v_exp(const struct select_problem *p, int kv);

/* Fetch what comes beside the mask of a head; *own is the caller's. */
int select_fetch_own(struct gpu *g, const struct select_job *job, int head, struct accel_own *own,
                     struct err *err);

/* Set geometry and take memory of the lists of a job whose unit is bq x bk. */
int select_lists_init(struct gpu *g, struct select_job *job, int64_t bq, int64_t bk,
                      struct err *err);

/* Fetch the lists of rows [row0, row1) to the host, also for single keys: ptr [row1 - row0 + 1],
 * from 0, and col, owned by the caller. */
int select_fetch_rows(struct gpu *g, const struct select_job *job, int64_t row0, int64_t row1,
                      int64_t **ptr, int32_t **col, struct err *err);

END_C
