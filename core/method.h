/*
 * method.h - the interface of a sparse-attention method (ABI METHOD_ABI).
 *
 * One file sim/methods/<name>.c defines `const struct method method_<id>`, one line in
 * sim/methods.def registers it. A method sees one head at a time; it selects a mask, and exact
 * softmax over that mask is done for it unless it brings its own `attend`.
 */
#ifndef LACUNA_METHOD_H
#define LACUNA_METHOD_H

#include "core/attention.h"
#include "core/dtype.h"
#include "core/err.h"
#include "core/json.h"
#include "core/mask.h"
#include "core/opt.h"
#include "core/record.h"

#include <stdbool.h>
#include <stdint.h>

#define METHOD_ABI 1

/* A normal answer of prepare: the method does not apply here; the reason is set with method_skip.
 */
#define METHOD_SKIP 1

enum method_flags {
    METHOD_CAUSAL = 1,            /* handles causal traces */
    METHOD_BIDIRECTIONAL = 2,     /* handles bidirectional traces */
    METHOD_NEEDS_STEPS = 4,       /* keeps state across denoising steps (carry) */
    METHOD_RANDOM = 8,            /* depends on the seed */
    METHOD_CALIBRATED = 16,       /* has a calibrate callback */
    METHOD_CHANGES_MATH = 32,     /* attend may change the arithmetic on kept pairs */
    METHOD_MONOTONE = 64,         /* has budget parameters: see `budget_full` */
    METHOD_SHARES_BRANCHES = 128, /* may keep state that the guidance branches of a head share */
    METHOD_NO_REFERENCE = 256, /* prepare, select and report never look at head_in.lse and .out */
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
    int step;                   /* denoising step index from 0; 0 for text */
    int n_steps;                /* steps of the run, 0 if unknown */
    double timestep;            /* the sampler's timestep value, NAN for text */
    const char *branch;         /* "main", "cond", "uncond" */
    const struct attn_ops *ops; /* operands prepared for attn_*; never NULL */
    const double *lse;          /* [nq] dense log-sum-exp */
    const double *out;          /* [nq][dv] dense output; both may be NULL in a replay whose
                                 * methods are all METHOD_NO_REFERENCE */
    int64_t n_padding;          /* padding tokens of the sequence that were left out of x */
    const char *order;          /* token order of the video (permute.h); NULL: raster */
};

/* State that a METHOD_NEEDS_STEPS method carries from step to step, one slot per (method,
 * canonical parameters, layer, head, branch). The framework frees it through `free`. */
struct carry {
    void *data;
    void (*free)(void *data);
};

struct accel;
struct accel_filter;
struct accel_session;

/* With a GPU back end: where masks are chosen. auto = on the GPU where the back end can. */
enum select_where { SELECT_AUTO, SELECT_CPU, SELECT_GPU };

struct method_ctx {
    uint64_t seed;
    struct carry *carry;  /* NULL when the method does not need steps */
    struct carry *shared; /* the same slot for all branches of a head, which then come in call
                           * order; NULL without METHOD_SHARES_BRANCHES */
    char skip[256];       /* reason of METHOD_SKIP */

    /* The framework's: attention over the mask on a GPU (core/kernel.h); NULL = on the CPU. */
    const struct accel *accel;
    struct accel_session *session;
    enum select_where select;
    bool accel_metrics; /* metrics are measured there too */
    const double *accel_lse; /* [nq] dense log-sum-exps from there, once a head has been through */
    uint64_t accel_data;     /* and the number of its q, k, v there */
};

/* Set ctx->skip and return METHOD_SKIP. */
int method_skip(struct method_ctx *ctx, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* What a method's own attend returns beside the output. */
struct attend_stats {
    double tiles_pv; /* mask units whose P.V was computed (fractions with per-warp filters) */
    int64_t rows_empty;
};

/* Parameters, separated by spaces, that change nothing unless an OPT_ENUM parameter has one of some
 * values: {"alpha window", "profile=v2"}, {"v s", "pattern=vs|table"}. */
struct param_scope {
    const char *params, *only;
};

struct method {
    const char *name, *summary, *paper; /* public name; one line; citation with arXiv id */
    const char *alias;                  /* other name accepted on input, or NULL */
    int abi;                            /* METHOD_ABI */
    unsigned flags;
    size_t params_size;
    const struct opt *params; /* table over the parameter struct */

    /* Parameter text that makes the mask full ("alpha_c=1"), for the conformance suite; NULL when
     * the method has no such setting. */
    const char *budget_full;

    /* Where parameters count only beside another; ends with an empty one, NULL = everywhere. A run
     * that sets one elsewhere is refused: it would show a setting that was not applied. */
    const struct param_scope *scopes;

    /* Check parameters against each other (ranges are in the table). May be NULL. */
    int (*validate)(void *params, struct err *err);

    /* Token order (permute.h) in which the method wants its head, NULL or "none" = as stored. The
     * head is reordered before prepare, so masks, outputs and the sink's rows are in that order;
     * metrics do not depend on it. May be NULL. */
    const char *(*order)(const void *params);

    /* Everything that is done once per head: means, quantised copies, pooled maps. *state is owned
     * by the method and released by `release`. Returns 0, METHOD_SKIP or a negative error. */
    int (*prepare)(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void **state, struct err *err);

    /* Height of the mask's row groups: select is called on ranges that start at a multiple of it.
     * NULL = 1. */
    int64_t (*unit_rows)(const void *state);

    /* Mask of the query rows [row0, row1) into *out (zeroed on entry, released by the caller with
     * mask_free). Calls come with ascending, disjoint ranges that cover all rows once. */
    int (*select)(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err);

    /* Own arithmetic; NULL = exact softmax over the mask. Or set `attends` to decide per head:
     * when it returns false the exact path is taken. out [row1-row0][dv], lse [row1-row0]. */
    bool (*attends)(const void *state);
    int (*attend)(void *state, const struct mask *m, double *out, double *lse,
                  struct attend_stats *stats, struct err *err);

    /* Where `attend` is exact softmax but for a filter on P V, what a GPU back end needs to do the
     * same; false with the reason where it is something else. `filtered` is told what was computed
     * there (accel_result.tiles_pv). Both or neither may be NULL. */
    bool (*filter)(const void *state, struct accel_filter *f, char why[160]);
    void (*filtered)(void *state, double tiles_pv);

    /* After the last range: numbers of the method's own (density_native, ...) and notes. May be
     * NULL. */
    int (*report)(void *state, struct record *r, struct err *err);

    /* Search parameters per head. samples[0..n) are the same (layer, head) in n captured inputs, by
     * trace, then in call order, already in the method's token order.
     * Writes key/value pairs (parameter names) into the open JSON object w; the replay applies them
     * as per-head overrides. NULL when not METHOD_CALIBRATED. */
    int (*calibrate)(struct method_ctx *ctx, const void *params, const struct head_in *samples,
                     int n, struct jw *w, struct err *err);

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
};

/* ERR_USAGE naming a parameter that is not at its default outside of its scope. */
int param_scopes_check(const struct method *m, const void *params, struct err *err);

/* Parse "name:key=v1,v2:key=value" and append the Cartesian product of its lists to *runs. A range
 * "a..b/logN" or "a..b/linN" is N values. */
int method_runs_parse(const struct method *const *methods, const char *text,
                      struct method_run **runs, int64_t *n, struct err *err);
void method_runs_free(struct method_run *runs, int64_t n);

/* Is the calibration of the run, if it has one, of this model and token order ("none" = as stored)?
 * ERR_INPUT naming both where the file says otherwise. */
int method_calib_fits(const struct method_run *run, const char *model, const char *permute,
                      struct err *err);

/* Does it leave this head with the parameters that the run gives for all? */
bool method_calib_lacks(const struct method_run *run, int layer, int head);

/* Parameters of one head: a copy of run->params with the calibration file's overrides for (layer,
 * head) applied. Free with opt_free(method->params, *out) and free(*out). */
int method_params_for_head(const struct method_run *run, int layer, int head, void **out,
                           struct err *err);

#endif
