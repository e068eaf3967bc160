/*
 * headattn.h - one head of a layer through its method, or through exact attention (layerattn.h).
 */
#ifndef LACUNA_HEADATTN_H
#define LACUNA_HEADATTN_H

#include "eval/layerattn.h"
#include "sim/budgetsearch.h"

/* What a head leaves to the sums of its layer. */
struct head_sum {
    double err, ref, kept; /* sums of squares; kept pairs of the rows that are the method's */
    char skip[256];        /* why the method does not apply; "": it does */
    bool searched, lacks_calib;
    struct budget_answer found; /* with `searched` */
};

/* The heads of a layer, or of a part of its rows. */
struct layer_job {
    struct layer_attn *a;
    int layer;
    const float
        *q; /* [nq][heads * d]; with a->there of the whole prefill, [heads][there_tokens][d] */
    int64_t nq, nk;
    int64_t row0;       /* of the rows in the prefill */
    int64_t dense_rows; /* last of them that attend exactly */
    double share;       /* of the prefill's pairs */
    const struct nn_kv *kv;
    float *out;
    bool stays;            /* outputs go to a->there->out, and not to out */
    struct head_sum *sums; /* [heads] */
};

/* Does the head attend exactly whatever the method is? */
static inline bool head_is_dense(const struct layer_job *j, int head)
{
    return j->a->how->dense_head[(int64_t)j->layer * j->a->shape.heads + head];
}

/* May the outputs of all rows and heads stay on the device, where q, k, v are? */
bool layer_may_stay(const struct layer_job *j);

/* An item of pool_run: ctx is a struct layer_job. */
int head_attend(void *ctx, int64_t head, int worker, struct err *err);

#endif
