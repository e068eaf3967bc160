/*
 * method.h - the interface of a sparse-attention method.
 *
 * One file sim/methods/<name>.c defines `const struct method method_<id>`, one line in
 * core/methods.def registers it. A method sees one head at a time and selects a mask; the replay
 * computes exact softmax over that mask. The first block of struct method is all that a method
 * needs; every group after it may stay zero. core/method_run.h runs methods.
 */
#pragma once

#include "core/accel.h"
#include "core/attention.h"
#include "core/budget.h"
#include "core/dtype.h"
#include "core/metricdef.h"
#include "core/opt.h"
#include "core/record.h"
#include "core/rowsample.h"
#include "core/trace.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- one query head of one attention call, as methods and metrics see it -------------------- */

struct exact; /* sim/blocks/exact.h */

/* Video geometry of a token sequence; all zero for text. */
struct geometry {
    int64_t t, h, w; /* latent grid in tokens; n_video = t*h*w */
    int64_t text;    /* text tokens in the sequence */
    int text_place;  /* 0 none, 1 front, 2 back */
};

/* All views are contiguous [token][dim] floats, widened from the trace's own type; the caller owns
 * them. */
struct head_in {
    struct attn_in x;     /* q, k, v, scale, causal */
    enum dtype src_dtype; /* type of q, k, v in the trace */
    struct geometry geom;
    int layer, head, kv_head, n_heads, n_kv_heads, n_layers;
    int step;                      /* denoising step index from 0; 0 for text */
    int n_steps;                   /* steps of the run, 0 if unknown */
    double timestep;               /* the sampler's timestep value, NAN for text */
    const char *branch;            /* "main", "cond", "uncond" */
    struct exact *exact;           /* the head's exact map, computed when asked for; never NULL */
    const struct row_sample *rows; /* sampled rows of x.q (x.nq = x.nk, position i is row i); the
                                    * other rows are 0 and are never asked for. NULL: all rows */
    int64_t n_padding;             /* padding tokens of the trace, which x leaves out */
    const char *order;             /* token order of the video (permute.h); NULL: raster */
    const char *moved; /* the order into which the trace's tokens were put; NULL: as stored */
    const char *trace; /* id of the trace, "" where there is none; may be NULL */
    bool some_heads;   /* head numbers are the model's; the trace holds a part of its heads */
    bool nonfinite[3]; /* q, k, v hold NaN or infinity: softmax of their rows has no value */

    /* Queries of the g-th of the n_heads / n_kv_heads heads that share the keys into q [nq][d], in
     * the order of x.q. NULL: they are not at hand. */
    int (*queries)(const struct head_in *in, int g, float *q, struct err *err);

    const void *queries_from; /* for the callback */

    /* An extra operand of a layer at this call (core/trace.h): its shape, heads 0 where there is
     * none, and unless x is NULL the values (owned by the caller), with the rows of x.q or x.k
     * where it has them of all tokens. NULL: operands are not at hand. */
    int (*operand)(const struct head_in *in, int layer, enum trace_aux which,
                   struct aux_shape *shape, float **x, struct err *err);
    const void *operand_from; /* for the callback */
};

/* Which heads a method can take, and what its masks are. */
enum method_flags {
    METHOD_CAUSAL = 1 << 0,        /* causal heads */
    METHOD_BIDIRECTIONAL = 1 << 1, /* bidirectional heads */
    METHOD_NEEDS_STEPS = 1 << 2,   /* keeps state over denoising steps (method_ctx.carry) */
    METHOD_RANDOM = 1 << 3,        /* depends on the seed */
    METHOD_BOUND = 1 << 4,         /* an upper bound: plots leave it out of dominance tests */
    METHOD_KEEPS_ALL = 1 << 5,     /* keeps every pair by design, so no mask is chosen */

    /* Accepts heads that hold only sampled query rows (core/rowsample.h). The mask of a row group
     * may depend only on its own queries, the last group's queries and all keys.
     * METHOD_ROWS_REPORT: numbers of `report` are valid for such heads as well. */
    METHOD_ROWS = 1 << 6,
    METHOD_ROWS_REPORT = 1 << 7,

    /* Terms that a head's attention may have besides scaled dot products and causal masking. A head
     * with a term that the method does not support is skipped with the reason (method_combines). */
    METHOD_REACH = 1 << 8,   /* windows and chunks: the replay clips the mask to them */
    METHOD_SOFTCAP = 1 << 9, /* capped scores */
    METHOD_BIAS = 1 << 10,   /* ALiBi, relative bias */
    METHOD_SINK = 1 << 11,   /* attention sinks: outputs with the sink, mass over keys only */
    METHOD_PREFIX = 1 << 12, /* prefix-LM: every row of a causal head sees the first keys */
    METHOD_ANY_SCORE = METHOD_REACH | METHOD_SOFTCAP | METHOD_BIAS | METHOD_SINK,
};

/* State that a METHOD_NEEDS_STEPS method carries from step to step: one slot per (method,
 * parameters, layer, head, guidance branch). The replay frees `data` through `free`. */
struct carry {
    void *data;
    void (*free)(void *data);
    double choose_ns; /* set by the replay: ns that choosing the mask took; 0: not measured */
};

/* Context of one run over one head. */
struct method_ctx {
    uint64_t seed;
    struct carry *carry;  /* NULL without METHOD_NEEDS_STEPS */
    struct carry *shared; /* one slot for all branches of a head, whose calls then come in order;
                           * NULL without reuse.shares_branches */
    void *session;        /* what session.open returned; NULL: it was not called */
    int64_t unit_rows; /* set by prepare: query rows that share one list of kept keys; `select` is
                        * called for ranges that start at a multiple of it. Default 1 */
    char skip[256];    /* set by method_skip */
};

/* prepare returns METHOD_SKIP if the method does not apply to this head; that is no error.
 * method_skip sets the reason and returns it. The others return it, or 0: method_all_rows if the
 * head holds sampled rows only, method_whole_prompt if it has fewer queries than keys. */
#define METHOD_SKIP 1
int method_skip(struct method_ctx *ctx, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int method_all_rows(struct method_ctx *ctx, const struct head_in *in, const char *what);
int method_whole_prompt(struct method_ctx *ctx, const struct head_in *in);

/* What a method spends on choosing a head's mask (sim/blocks/selectcost.h has the rules). */
struct select_cost {
    double flops, bytes;
};

/* `params` (separated by spaces) have an effect only if an OPT_ENUM parameter has one of the values
 * in `only`: {"alpha window", "profile=v2"}, {"v s", "pattern=vs|table"}. */
struct param_scope {
    const char *params, *only;
};

/* The parameters of a method. Callbacks may be NULL. */
struct method_params {
    const struct opt *table; /* over the parameter struct */
    size_t size;             /* of the parameter struct */

    /* Parameters that take effect only with certain values of another parameter. A run that sets
     * one without effect is refused. Ends with an empty entry. */
    const struct param_scope *scopes;

    /* The parameters that decide how much is kept, for targets such as @density_elem=0.3; the first
     * that applies is searched. Ends with an empty entry. */
    const struct budget_param *budget;

    /* Check parameters against each other. May be called again on the same struct. */
    int (*validate)(void *params, struct err *err);

    /* Fill in parameters that follow from a file which another parameter names (its checksum), so
     * that changed content changes the run's identity. Called once per run. */
    int (*identify)(void *params, struct err *err);

    /* The token order (permute.h) that the method needs for a video head; NULL or "none": as
     * stored. Masks, outputs and the rows of `prepare` and `select` are then in that order. */
    const char *(*order)(const void *params);

    /* Can the mask leave a row without keys? NULL: never. */
    bool (*may_be_empty)(const void *params);
};

/* What a device chose for a head. */
struct device_choice {
    const struct mask *lists; /* over the whole head, in blocks of the rule's size. NULL: the mask
                               * stays on the device, and `counts` describes it */
    const struct accel_units *counts; /* set if and only if lists is NULL */
    struct mask *exec; /* with counts: `take` sets exec, exec_bq, exec_bk of it as `select`
                        * would */
    const struct accel_own *own; /* extra results of this method's rule, listed in core/rules.h */
};

/* A GPU that chooses the masks. `prepare` must then not choose; the first `select` does, unless
 * `take` was called. */
struct method_device {
    /* How to choose the mask of this head, into *rule, which is zero; or false with the reason.
     * rule->data stays valid until `release`: the device chooses again, after `take`, to time it.
     * NULL: the method alone chooses. */
    bool (*rule)(const void *state, struct rule *rule, char why[160]);

    /* Accept the device's choice. Called before the first `select`; if the mask stays on the
     * device, `select` is not called. */
    int (*take)(void *state, const struct device_choice *c, struct err *err);

    /* Does `take` need only counts for this head? NULL: no, it needs the lists. */
    bool (*keep_on_device)(const void *state);

    /* The method reports how a reused mask differs from a fresh choice. For SOURCE_REUSED the
     * replay then calls `rule` and `take` as well; they handle the fresh mask, not the reused one.
     */
    bool compares;
};
bool method_always(const void *state); /* a ready-made keep_on_device, or may_be_empty */

/* Write the reason why a GPU cannot do what the head's method wants; returns false. */
bool method_refuses(char why[160], const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* How a head's output is computed from its mask. */
struct arithmetic {
    enum arith_kind {
        ARITH_SOFTMAX, /* exact softmax over the mask; `attend` is not called */
        ARITH_FILTER,  /* softmax as `filter` has it, which may skip P V of tiles. An ARITH_SOFTMAX
                        * head in the same call sets the filter's unit, bq and bk */
        ARITH_KERNEL,  /* what a GPU has kernels for: `own` */
        ARITH_ADDED,   /* exact softmax, and `added` is added to its output */
        ARITH_CPU,     /* only `attend` implements it */
    } kind;
    struct accel_filter filter; /* bq 0: none */
    struct own_rule own;
    const float *added; /* [nq][dv] */
    bool whole;         /* as in struct accel_head */
};

/* Other arithmetic than exact softmax over the mask. */
struct method_arith {
    enum arith_kind kind; /* the kind besides ARITH_SOFTMAX, shown where methods are listed */

    /* Fill *a, which is zero, for this head. `why` comes with a default reason for ARITH_CPU; the
     * callback may replace it. Called after prepare. NULL: ARITH_CPU. */
    void (*how)(const void *state, struct arithmetic *a, char why[160]);

    /* The reference on the CPU. out [row1-row0][dv], lse [row1-row0] of the rows of *m. *tiles_pv
     * is -1; a filter adds units of the mask whose P V it computed, in fractions by warp. */
    int (*attend)(void *state, const struct mask *m, double *out, double *lse, double *tiles_pv,
                  struct err *err);

    /* Called after a GPU computed the outputs: tiles_pv of ARITH_FILTER (accel_result), lse [nq] of
     * ARITH_KERNEL. NULL: not needed. */
    int (*done)(void *state, double tiles_pv, const double *lse, struct err *err);
};

/* Where a head's mask comes from; this decides how the cost of choosing it is counted. */
enum mask_source {
    SOURCE_OWN,    /* chosen from the call's q and k */
    SOURCE_STATIC, /* follows from parameters and sizes alone */
    SOURCE_REUSED, /* chosen in an earlier call */
};
struct mask_origin {
    enum mask_source source;
    int64_t calls; /* number of calls that use one choice, to amortise its cost; 0 means 1 */

    /* true: among heads with equal parameters, seed, sizes, grid and token order, equal `which`
     * means equal masks, and the replay makes each mask once. false: every head makes its own. May
     * be true with SOURCE_STATIC, and after `take` if the choice is one of a few masks. */
    bool same_mask;
    uint64_t which;
    bool any_order; /* `select` may be called for ranges in any order, by several threads */
    void *counted;  /* counters in the state, `bytes` long: `select` updates, `report` reads them */
    size_t bytes;
};
struct method_reuse {
    bool always_static;   /* every head's mask is SOURCE_STATIC */
    bool shares_branches; /* may keep state that the guidance branches share (method_ctx.shared) */

    /* NULL: SOURCE_OWN, or with always_static one mask for all heads of a shape, in any order. With
     * always_static the caller ignores source and same_mask. */
    struct mask_origin (*of)(void *state);
};

/* The search for parameters of a head (`lacuna calibrate`). Its options are in the table. */
struct method_search {
    /* samples[0..n): one (layer, head) in n captured inputs, sorted by trace, then by call, in
     * the method's token order. Write parameter names and values into the open object of w. */
    int (*calibrate)(struct method_ctx *ctx, const void *params, const struct head_in *samples,
                     int n, struct jw *w, struct err *err);
    double passes; /* approximate cost, in dense attention passes over the samples; 0: not known */

    /* Can a GPU evaluate the candidate masks (sim/blocks/judge.h)? else `why`; NULL: never. */
    bool (*on_device)(const void *params, char why[160]);
};

struct method_run; /* core/method_run.h */

/* What all heads of a run share: a file, a child process. Several threads use it at once. */
struct method_session {
    /* The setting that a head runs in the decode phase, where the method stands for several. NULL:
     * its own. */
    const struct method_run *(*entry)(const void *session, const struct head_in *in);

    int (*open)(const void *params, void **session, struct err *err);
    void (*close)(void *session);
    /* ERR_INPUT if the parameters were made for another model or token order. */
    int (*fits)(const void *params, const char *model, const char *permute, struct err *err);
    /* Can the file be of use to a head of this shape, whose q, k and v are NULL? 0, or as prepare.
     * NULL: to every one. A run of which no head can use it is refused before it starts. */
    int (*takes)(struct method_ctx *ctx, const void *params, const struct head_in *in,
                 struct err *err);
};

/* Settings of one parameter in ascending budget: density and mean recall must not decrease. */
struct method_budget {
    const char *form, *values[8]; /* the %s of the form; the values end with a NULL */
};

/* ---- the decode phase: the rows of generated tokens, one by one ------------------------------ */

/* The keys that a cache holds: positions, ascending. */
struct kv_cache {
    int32_t *at; /* [n] */
    int64_t n;
    bool *drop; /* [n]: a method sets what it evicts; all false when it is called */
};

/* The query heads of a layer, `share` of them in a row over one cache. Their first `from` rows are
 * the last ones of the prompt, every later row is a step. */
struct decode_layer {
    const struct head_in *const *heads; /* [n] */
    const void *const *params;          /* [n]: of the method; NULL: another one has the head */
    const float *const *col_sum; /* [n]: what each key of the prompt gets of the exact softmax of
                                  * all rows of the prompt; NULL: not known */
    int n, share;
    int64_t from, prompt;    /* `prompt` keys are there before the first step */
    struct kv_cache *caches; /* [n / share] */
};

/* A method that evicts keys or carries state from step to step has `begin`. Others choose each row
 * by `prepare` and `select`, as the only query over the keys up to its own. */
struct method_decode {
    /* Without `begin`: does the mask of a row depend on its query and the keys up to its own alone,
     * so that one `prepare` is enough for all steps? NULL: no. */
    bool (*each_row)(const void *params);

    double (*step_bytes)(const void *state); /* that the choices of all rows so far read, of what is
                                              * kept beside the cache; NULL: those of `cost` */

    bool (*applies)(const void *params);     /* NULL: with all parameters */
    bool (*own_caches)(const void *params);  /* a cache for every query head; NULL: per KV head */
    const char *(*then)(const void *params); /* method that selects among the keys of a cache, as
                                              * "quest+budget=64"; NULL or "": all are read */

    /* The end of the prompt; the state is zeroed, and `release` frees what it points to. Returns 0,
     * METHOD_SKIP or an error. */
    int (*begin)(struct method_ctx *ctx, const struct decode_layer *layer, void *state,
                 struct err *err);

    /* After the attention of a row, whose key is the last one of every cache. score [n]: scaled
     * scores of its positions 0 .. p in each head, -inf where the model does not look. NULL:
     * nothing is evicted after the prompt. */
    int (*step)(void *state, const struct decode_layer *layer, int64_t row,
                const double *const *score, struct err *err);
};

/* What the conformance suite runs besides the defaults. */
struct method_tests {
    const char *full;                    /* parameters that make the mask full, "alpha_c=1" */
    const char *const *variants;         /* parameter texts worth a run; NULL-terminated */
    const struct method_budget *budgets; /* ends with an empty entry */
    const char *calibrate_short;         /* parameters with which 300 tokens can be calibrated */
};

/* Tables of a method, written where its initialiser wants them. A row BUDGET_BY(BUDGET_LOG, "tau",
 * .lo = 1e-6) may have more members behind the parameter. */
#define TEXTS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define PARAM_SCOPES(...) ((const struct param_scope[]){__VA_ARGS__, {0}})
#define BUDGET_BY(in, ...)                                                                         \
    {                                                                                              \
        .scale = in, .params = __VA_ARGS__                                                         \
    }
#define BUDGET_PARAMS(...) ((const struct budget_param[]){__VA_ARGS__, {0}})
#define METHOD_BUDGETS(...) ((const struct method_budget[]){__VA_ARGS__, {0}})

struct method {
    const char *name, *summary, *paper; /* public name; one line; citation with arXiv id */
    unsigned flags;                     /* enum method_flags */
    struct method_params params;
    size_t state_size; /* of what the method keeps for a head */

    /* The work done once per head, into a zeroed state. Returns 0, METHOD_SKIP or an error. */
    int (*prepare)(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err);

    /* Mask of the query rows [row0, row1) into *out (zeroed; the caller frees it with mask_free).
     * Ranges ascend and cover every row once; the mask must not depend on their boundaries. */
    int (*select)(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err);

    /* Numbers and notes of the method, after the last range. May be NULL. */
    int (*report)(void *state, struct record *r, struct err *err);
    void (*release)(void *state); /* frees what it points to, also of a failed prepare; or NULL */

    const char *alias;                /* another name accepted on input, or NULL */
    const struct metric_def *metrics; /* that only this method reports; ends with an empty entry */

    /* Cost of choosing the mask, for SOURCE_OWN after the last range; false: not known. Or NULL. */
    bool (*cost)(const void *state, struct select_cost *cost);

    /* Why the mask keeps every pair, and what would change that. The text follows "NAME keeps
     * 100 %: " and has no ";". false: not known. May be NULL. */
    bool (*why_full)(const void *state, char why[160]);

    struct method_device device;
    struct method_arith arith;
    struct method_reuse reuse;
    struct method_search search;
    struct method_session session;
    struct method_decode decode;
    struct method_tests tests;
};
