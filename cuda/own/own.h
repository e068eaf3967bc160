/*
 * own.h - attention in a method's own arithmetic (core/ownrule.h) of all heads of a problem. The
 * references are the methods' `attend`.
 */
#ifndef LACUNA_OWN_H
#define LACUNA_OWN_H

#include "cuda/linkage.h"

BEGIN_C

#include "core/ownrule.h"
#include "cuda/attn/attn.h"

/* Ready to be launched any number of times. Device memory comes from the arena and lives until its
 * release. */
struct own_job {
    struct attn_problem problem;
    struct attn_tensors x;
    char name[64];
    int launches;            /* of attention kernels */
    int64_t *pairs;          /* [heads] that the kernels multiply, owned */
    double plan_ns, balance; /* wall time of planning on the host; as in struct attn_plan */
    bool has_quant;
    const struct own_kind *kind;
    void *state; /* of the kind, owned */
};

/* What a kind of arithmetic brings. `fits`: false with the reason for what it cannot do; NULL: it
 * can do everything. `init` takes rules [heads] and fills name, pairs, plan_ns, balance and state
 * of a job whose other members are set; the launches may be repeated. */
struct own_kind {
    bool (*fits)(const struct attn_problem *p, const struct own_rule *r, char why[160]);
    int (*init)(struct gpu *g, struct own_job *job, const struct own_rule *rules, struct err *err);
    int (*quant)(struct gpu *g, const struct own_job *job, struct err *err); /* NULL: nothing */
    int (*attend)(struct gpu *g, const struct own_job *job, struct err *err);
    void (*release)(void *state); /* accepts NULL */
};
extern const struct own_kind own_kind_dilated, own_kind_quantised, own_kind_hashed;

/* Are there kernels for such heads? If not, why. */
bool own_fits(int sm, const struct attn_problem *p, const struct own_rule *r, char why[160]);

/* rules [heads], valid until this returns; heads of one launch may differ in phases and numbers of
 * heads alone. */
int own_job_init(struct gpu *g, const struct attn_problem *p, const struct own_rule *rules,
                 const struct attn_tensors *x, struct own_job *job, struct err *err);
void own_job_free(struct own_job *job); /* also of a zeroed one */

/* Launches, of a struct own_job: operands from q, k, v; attention over them. */
int own_job_quant(struct gpu *g, const void *job, struct err *err);
int own_job_attend(struct gpu *g, const void *job, struct err *err);

END_C

#endif
