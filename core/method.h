/*
 * method.h - the interface of a sparse-attention method.
 *
 * One file sim/methods/<name>.c defines `const struct method method_<id>`, one line in
 * sim/methods.def registers it. A method sees one head at a time; it selects a mask, and exact
 * softmax over that mask is done for it unless it brings its own `attend`.
 */
#ifndef LACUNA_METHOD_H
#define LACUNA_METHOD_H

#include "core/attention.h"
#include "core/budget.h"
#include "core/dtype.h"
#include "core/err.h"
#include "core/json.h"
#include "core/mask.h"
#include "core/metricdef.h"
#include "core/opt.h"
#include "core/record.h"
#include "core/rowsample.h"

#include <stdbool.h>
#include <stdint.h>

/* A normal answer of prepare: the method does not apply here; the reason is set with method_skip.
 */
#define METHOD_SKIP 1

struct accel_filter; /* core/accel.h */
struct accel_own;
union method_rule;  /* core/rules.h */
struct own_rule;    /* core/ownrule.h */
struct accel_units; /* core/accel.h */
struct exact;

enum method_flags {
    METHOD_CAUSAL = 1,            /* can run on causal traces */
    METHOD_BIDIRECTIONAL = 2,     /* can run on bidirectional traces */
    METHOD_NEEDS_STEPS = 4,       /* keeps state across denoising steps (carry) */
    METHOD_RANDOM = 8,            /* depends on the seed */
    METHOD_CALIBRATED = 16,       /* has a calibrate callback */
    METHOD_CHANGES_MATH = 32,     /* attend may change the arithmetic on kept pairs */
    METHOD_FULL_ON_SQUARES = 64,  /* budget_full is full for N_q = N_k only */
    METHOD_SHARES_BRANCHES = 128, /* may keep state shared by the guidance branches of a head */
    METHOD_BOUND = 256,           /* a bound that no kernel reaches: no figure lets it dominate */

    /* What of a head beside scaled products and causality the method can combine; without the flag
     * such a head is skipped with the reason (method_combines). */
    METHOD_REACH = 512,    /* windows and chunks: its mask is clipped, its estimates know */
    METHOD_SOFTCAP = 1024, /* capped scores */
    METHOD_BIAS = 2048,    /* ALiBi, relative bias */
    METHOD_SINK = 4096, /* attention sinks: shares of mass are over keys, outputs with the sink */
    METHOD_PREFIX = 65536, /* a causal head whose first keys every row sees: nothing takes rows to
                            * see no key after them */
    METHOD_ANY_SCORE = METHOD_REACH | METHOD_SOFTCAP | METHOD_BIAS | METHOD_SINK,
    METHOD_ROWS = 16384, /* can choose for sampled rows: the mask of a group of rows follows from
                          * their queries, those of the last group, and all keys */
    METHOD_ROWS_REPORT = 32768, /* its own numbers are right for sampled rows too */
    METHOD_KEEPS_ALL = 8192,    /* keeps every pair by design: only the arithmetic differs */
};

/* Video geometry of a token sequence; all zero for text. */
struct geometry {
    int64_t t, h, w; /* latent grid in tokens; n_video = t*h*w */
    int64_t text;    /* text tokens in the sequence */
    int text_place;  /* 0 none, 1 front, 2 back */
};

/* One head of one attention call. All views are contiguous [token][dim] floats widened from the
 * trace's own dtype; owned by the caller. */
struct head_in {
    struct attn_in x;     /* q, k, v, scale, causal */
    enum dtype src_dtype; /* dtype of q, k, v in the trace */
    struct geometry geom;
    int layer, head, kv_head, n_heads, n_kv_heads, n_layers;
    int step;            /* denoising step index from 0; 0 for text */
    int n_steps;         /* steps of the run, 0 if unknown */
    double timestep;     /* the sampler's timestep value, NAN for text */
    const char *branch;  /* "main", "cond", "uncond" */
    struct exact *exact; /* the head's exact map (sim/blocks/exact.h), computed when asked for;
                          * never NULL */
    const struct row_sample *rows; /* the rows of x.q that are there (x.nq = x.nk, position i is row
                                    * i); the others are 0 and never asked for. NULL: all */
    int64_t n_padding;             /* padding tokens that the trace has and x leaves out */
    const char *order;             /* token order of the video (permute.h); NULL: raster */
    const char *moved; /* the order into which the trace's tokens were put; NULL: as stored */
    const char *trace; /* id of the trace, "" where there is none; may be NULL */
    bool some_heads;   /* head numbers are the model's, of which the trace holds a part */
    bool nonfinite[3]; /* q, k, v hold NaN or infinity: softmax of their rows has no value */
};

/* State that a METHOD_NEEDS_STEPS method carries from step to step, one slot per (method,
 * canonical parameters, layer, head, branch). The framework frees it through `free`. */
struct carry {
    void *data;
    void (*free)(void *data);
    double choose_ns; /* device time that went into the carried mask; 0: not measured. The
                       * framework's. */
};

/* Where the mask of a call comes from, and so what choosing it costs when it runs. */
enum mask_source {
    SOURCE_OWN,    /* chosen from the call's q and k */
    SOURCE_STATIC, /* follows from parameters and sizes alone; built once */
    SOURCE_REUSED, /* chosen in an earlier call */
};
struct mask_origin {
    enum mask_source source;
    int64_t calls; /* that share one choice; 0 counts as 1 */
};

struct method_ctx {
    uint64_t seed;
    struct carry *carry;  /* NULL when the method does not need steps */
    struct carry *shared; /* the same slot for all branches of a head, which then come in call
                           * order; NULL without METHOD_SHARES_BRANCHES */
    void *session;        /* what `open` of the method gave; NULL: nobody has opened it */
    char skip[256];       /* reason of METHOD_SKIP */
};

/* What a method itself spends on choosing the mask of a head; sim/blocks/selectcost.h has the rules
 * of counting. */
struct select_cost {
    double flops, bytes;
};

/* Of a method whose masks are all static. */
struct mask_origin mask_is_static(const void *state);

/* What heads with a static mask, or with one of a few, have in common. Heads with equal parameters,
 * seeds, sizes, grids and token orders have the same mask iff `which` is the same number.
 * `counted`, `bytes` of the state, are what `select` adds up while it makes the mask, and `report`
 * reads; NULL: nothing. */
struct static_kin {
    uint64_t which;
    void *counted;
    size_t bytes;
    bool any_order; /* select may be called for ranges in any order, by several threads at once */
};

/* Of a method whose static masks are those of every such head, and whose `select` only reads its
 * state. */
void mask_of_all(void *state, struct static_kin *k);

/* Set ctx->skip and return METHOD_SKIP. */
int method_skip(struct method_ctx *ctx, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* 0, or METHOD_SKIP where the head holds a sample of its query rows: `what` needs all of them. */
int method_all_rows(struct method_ctx *ctx, const struct head_in *in, const char *what);

/* Can the method do what the head's attention adds? False: `why` names what it cannot combine. */
struct method;
bool method_combines(const struct method *m, const struct attn_in *x, char why[128]);

/* What a method's own attend returns beside the output. */
struct attend_stats {
    double tiles_pv; /* mask units whose P.V was computed (fractions with per-warp filters) */
    int64_t rows_empty;
};

/* `params` (separated by spaces) have an effect only if an OPT_ENUM parameter has one of the values
 * in `only`: {"alpha window", "profile=v2"}, {"v s", "pattern=vs|table"}. */
struct param_scope {
    const char *params, *only;
};

/* Budgets from small to large for the %s of a parameter text: density and mean recall must not
 * fall along them. */
struct method_budget {
    const char *form, *values[8]; /* the values end with a NULL */
};

struct method {
    const char *name, *summary, *paper; /* public name; one line; citation with arXiv id */
    const char *alias;                  /* other name accepted on input, or NULL */
    unsigned flags;
    size_t params_size;
    const struct opt *params; /* table over the parameter struct */

    /* Numbers that `report` records and core/metrics.def does not define; ends with an empty one,
     * NULL = none. `section` and `method` are left out. */
    const struct metric_def *metrics;

    /* The parameters that decide how much is kept, for targets such as @density_elem=0.3; of those
     * that apply under a run's parameters the first. Ends with an empty entry; NULL = none. */
    const struct budget_param *budget;

    /* Parameter text that makes the mask full ("alpha_c=1"), for the conformance suite; NULL when
     * the method has no such setting. */
    const char *budget_full;

    /* For the conformance suite, too; each may be NULL. */
    const char *const *variants;         /* parameter texts worth a run; NULL-terminated */
    const struct method_budget *budgets; /* ends with an empty one */
    const char *calibrate_short;         /* parameters with which 300 tokens can be calibrated */

    /* May a row lose all its keys under these parameters? NULL = never. */
    bool (*may_be_empty)(const void *params);

    /* Parameters that have an effect only beside some values of another; ends with an empty entry;
     * NULL = all parameters always count. A run that sets such a parameter elsewhere is refused,
     * because its records would show a setting that was not applied. */
    const struct param_scope *scopes;

    /* Fill in parameters that follow from a file which another parameter names (its checksum), so
     * that records made with another content have another identity. Called once per run, before
     * the canonical text is made. May be NULL. */
    int (*identify)(void *params, struct err *err);

    /* What all heads of a run use together: an open file, a program. `open` is called before the
     * first head, `close` after the last one; several threads use the session at once. prepare
     * finds it in ctx->session and, where that is NULL, does without or opens its own. May be NULL.
     */
    int (*open)(const void *params, void **session, struct err *err);
    void (*close)(void *session);

    /* May the parameters be used on traces of this model, replayed in this token order? ERR_INPUT
     * that says why not. May be NULL. */
    int (*fits)(const void *params, const char *model, const char *permute, struct err *err);

    /* Check parameters against each other (ranges are in the table). May be NULL. */
    int (*validate)(void *params, struct err *err);

    /* Token order (permute.h) in which the method wants its head, NULL or "none" = as stored. The
     * head is reordered before prepare, so masks, outputs and the sink's rows are in that order;
     * metrics do not depend on it. May be NULL. */
    const char *(*order)(const void *params);

    /* The work done once per head: means, quantised copies, pooled maps. The method owns *state and
     * frees it in `release`. Returns 0, METHOD_SKIP or a negative error. */
    int (*prepare)(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void **state, struct err *err);

    /* Height of the mask's row groups: select is called on ranges that start at a multiple of it.
     * NULL = 1. */
    int64_t (*unit_rows)(const void *state);

    /* Mask of the query rows [row0, row1) into *out (zeroed on entry, released by the caller with
     * mask_free). Calls come with ascending, disjoint ranges that cover all rows once. */
    int (*select)(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err);

    /* Where the mask of this head comes from. NULL: SOURCE_OWN. */
    struct mask_origin (*origin)(const void *state);

    /* With SOURCE_STATIC, or after `adopt` where the choice is one of a few masks: whose masks are
     * the same, so that a replay makes each of them once and does not call `select` for the others.
     * NULL: it is called for every head. */
    void (*kin)(void *state, struct static_kin *k);

    /* What choosing this head's mask costs by the method's own loops, from sizes and counts of the
     * head: adds to *cost, or returns false where that is not known. Called after the last `select`
     * for masks of SOURCE_OWN alone; the others cost their call nothing. NULL: not known. */
    bool (*cost)(const void *state, struct select_cost *cost);

    /* For a device that chooses: how this head's mask is to be chosen, or false with the reason.
     * `adopt` receives the choice, lists over the whole head in the rule's unit, before the first
     * `select`, which then does not choose; `own` is what the device's side gives beside the mask,
     * NULL where core/rules.h has nothing. `prepare` leaves the choosing to the first `select`.
     * *rule is zeroed before. `rule` NULL: the method alone chooses. `given`: data of this head
     * that the rule needs beside its numbers, so that heads with equal numbers are chosen for
     * together; NULL: none. */
    bool (*rule)(const void *state, union method_rule *rule, char why[160]);
    const void *(*given)(const void *state);
    int (*adopt)(void *state, const struct mask *m, const struct accel_own *own, struct err *err);

    /* A choice by `rule` of which the method needs no more than counts (core/accel.h) can stay on
     * the device: `adopt_units` receives them in place of `adopt`, `select` is not called, and
     * exec, exec_bq and exec_bk of *lists, which has the choice's unit and no entries, are set as
     * `select` sets them. `stays` NULL: always; adopt_units NULL: never. */
    bool (*stays)(const void *state);
    int (*adopt_units)(void *state, const struct accel_units *u, const struct accel_own *own,
                       struct mask *lists, struct err *err);

    /* For a method that reuses a mask and may compare it with the one that it would make now: how a
     * device chooses that one, or false where this head wants no comparison. `take_fresh` receives
     * it, lists over the whole head, before `report`, which makes it where no device did. Set both
     * or neither. */
    bool (*fresh_rule)(const void *state, union method_rule *rule);
    int (*take_fresh)(void *state, const struct mask *m, struct err *err);

    /* The method's own arithmetic; NULL = exact softmax over the mask. If `attends` is set it
     * decides per head: false takes the exact path. out [row1-row0][dv], lse [row1-row0]. */
    bool (*attends)(const void *state);
    int (*attend)(void *state, const struct mask *m, double *out, double *lse,
                  struct attend_stats *stats, struct err *err);

    /* For a method whose `attend` is exact softmax with a filter on P V. `filter` describes it to a
     * GPU back end, or returns false with the reason when this head's arithmetic is something else.
     * `filtered` receives the tiles that the back end computed (accel_result.tiles_pv). Set both or
     * neither. */
    bool (*filter)(const void *state, struct accel_filter *f, char why[160]);
    void (*filtered)(void *state, double tiles_pv);

    /* For a method whose `attend` is other arithmetic that a GPU back end may have kernels for:
     * `own` describes it, or returns false with the reason. `attended` receives the log-sum-exps
     * [nq] that the back end found, for what `attend` would have counted; it may be NULL. */
    bool (*own)(const void *state, struct own_rule *r, char why[160]);
    int (*attended)(void *state, const double *lse, struct err *err);

    /* For a method whose `attend` is exact softmax over the mask plus numbers that it has stored:
     * those of this head [nq][dv], or NULL where it is something else. */
    const float *(*added)(const void *state);

    /* Where the mask keeps every pair although the method could leave some out: why, and what would
     * change that, in words that follow "NAME keeps 100 %: " and have no ";": the record's note
     * `full`. false: the method cannot tell. Asked after the last range. NULL: never. */
    bool (*why_full)(const void *state, char why[160]);

    /* After the last range: numbers of the method (density_native, its own `metrics`) and notes.
     * May be NULL. */
    int (*report)(void *state, struct record *r, struct err *err);

    /* Search parameters for one head. samples[0..n) are the same (layer, head) in n captured
     * inputs, by trace, then in call order, already in the method's token order. Writes parameter
     * names and values into the open JSON object w; a replay applies them to this head. NULL when
     * not METHOD_CALIBRATED. */
    int (*calibrate)(struct method_ctx *ctx, const void *params, const struct head_in *samples,
                     int n, struct jw *w, struct err *err);

    /* What `calibrate` costs, in dense attention passes over its samples: for estimates of time,
     * right within a factor of two or so. 0 = not known. */
    double calibrate_passes;

    /* With these parameters `calibrate` leaves what it judges to whoever judges for the head
     * (sim/blocks/judge.h), a GPU where one is at hand; false with the reason where it must compute
     * on the CPU. NULL: the search has no GPU side. */
    bool (*judges)(const void *params, char why[160]);

    /* Settings that `calibrate` has judged per sample, about: for estimates of time. */
    double calibrate_trials;

    /* Options of `lacuna calibrate` that belong to this method live in the same table. */

    void (*release)(void *state); /* accepts NULL */
};

/* Registry: NULL-terminated array in the order of methods.def (filled by sim/registry.c, passed to
 * commands through struct app). Finds by name or alias; unknown: ERR_USAGE with the nearest. */
const struct method *method_find(const struct method *const *methods, const char *name,
                                 struct err *err);

/* A method with one concrete set of parameters. */
struct method_run {
    const struct method *method;
    void *params;      /* owned */
    char *canonical;   /* owned; "" when all defaults */
    char *calib;       /* owned path of calib=FILE or NULL */
    json_t *calib_doc; /* owned or NULL */
    void *session;     /* owned: what the method's `open` gave, or NULL */
    bool *given; /* owned, per entry of method->params, NULL without calib: given beside it and
                  * other than the file has it, so that it wins over the values of heads */
    struct budget_target *target; /* owned: what to search for; NULL: run as it is */
};

/* ERR_USAGE naming a parameter that is not at its default outside of its scope. */
int param_scopes_check(const struct method *m, const void *params, struct err *err);

/* Parse "name:key=v1,v2:key=value", or the same with a target behind it as in
 * "name:key=value@density_elem=0.2,0.3" (budget.h), and append the Cartesian product of its lists
 * to *runs. A range "a..b/logN" or "a..b/linN" is N values. With calib=FILE the settings of the
 * file stand in for the defaults, and what the text gives wins over these and over the values per
 * head. */
int method_runs_parse(const struct method *const *methods, const char *text,
                      struct method_run **runs, int64_t *n, struct err *err);

/* The same for every one of n_texts texts, in time that grows with their number. */
int method_runs_parse_all(const struct method *const *methods, char *const *texts, int64_t n_texts,
                          struct method_run **runs, int64_t *n, struct err *err);
void method_runs_free(struct method_run *runs, int64_t n);

/* What stands between name and canonical text: ":", or "" before a target or nothing. */
const char *method_run_colon(const struct method_run *run);

/* Open the session of a run whose method has one, unless it is open. */
int method_run_open(struct method_run *run, struct err *err);

/* Are the calibration of the run, if it has one, and what else its method reads from a file
 * (`fits`) of this model and token order ("none" = as stored; a method's own order counts before
 * it)? ERR_INPUT naming both where the file says otherwise. */
int method_calib_fits(const struct method_run *run, const char *model, const char *permute,
                      struct err *err);

/* True if the run has a calibration without parameters for this head of so many keys, which then
 * uses those that the run gives for all heads. */
bool method_calib_lacks(const struct method_run *run, int layer, int head, int64_t tokens);

/* Note in a record how the calibration of its run was made, if it has one: calib_search (options of
 * the search), calib_per ("head" unless the file says otherwise), calib_inputs (traces) and
 * calib_own (1 = the record's trace, whose id this is, is one of them), as far as the file tells.
 */
int method_calib_note(const struct method_run *run, const char *trace_id, struct record *rec,
                      struct err *err);

/* Parameters of one head: a copy of run->params (the settings of the calibration file and what was
 * given beside it) with the file's values for (layer, head), but for the given ones. A file that
 * was calibrated per length has several entries for a head: `tokens`, its keys, says which counts.
 * Free with opt_free(method->params, *out) and free(*out). */
int method_params_for_head(const struct method_run *run, int layer, int head, int64_t tokens,
                           void **out, struct err *err);

#endif
