/*
 * operand.h - what a trained selector multiplies beside q and k: arrays aux/NAME of a call.
 */
#pragma once

#include "core/method.h"

struct operand {
    float *x; /* [heads][rows][dim], owned */
    struct aux_shape shape;
};

/* The operand of a layer. METHOD_SKIP, which names it and how to record it, where it is not at
 * hand. */
int operand_read(struct method_ctx *ctx, const struct head_in *in, int layer, enum trace_aux which,
                 struct operand *o, struct err *err);

/* Are these operands there? The same without their values. */
int operands_there(struct method_ctx *ctx, const struct head_in *in, int layer,
                   const enum trace_aux *which, int n, struct err *err);

static inline const float *operand_row(const struct operand *o, int64_t head, int64_t row)
{
    return o->x + (head * o->shape.rows + row) * o->shape.dim;
}
