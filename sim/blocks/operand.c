/*
 * operand.c - see operand.h.
 */
#include "sim/blocks/operand.h"

#include <math.h>

static int find(struct method_ctx *ctx, const struct head_in *in, int layer, enum trace_aux which,
                struct aux_shape *shape, float **x, struct err *err)
{
    const char *name = trace_aux_name(which);
    *shape = (struct aux_shape){0};
    if (!in->operand)
        return method_skip(ctx,
                           "needs aux/%s of whole sequences, which only a trace holds: it runs "
                           "neither inside of a model nor behind then=",
                           name);
    int rc = in->operand(in, layer, which, shape, x, err);
    if (rc || shape->heads)
        return rc;
    return method_skip(ctx,
                       "the trace has no aux/%s of layer %d: record it with cap.aux(%d, \"%s\", x) "
                       "of the Python package, or import it as %s",
                       name, layer, layer, name, name);
}

int operand_read(struct method_ctx *ctx, const struct head_in *in, int layer, enum trace_aux which,
                 struct operand *o, struct err *err)
{
    PASS_ON(find(ctx, in, layer, which, &o->shape, &o->x, err));
    for (int64_t i = 0; i < o->shape.heads * o->shape.rows * o->shape.dim; i++)
        if (!isfinite(o->x[i]))
            return err_set(err, ERR_INPUT, "aux/%s of layer %d holds NaN or infinity",
                           trace_aux_name(which), layer);
    return 0;
}

int operands_there(struct method_ctx *ctx, const struct head_in *in, int layer,
                   const enum trace_aux *which, int n, struct err *err)
{
    struct aux_shape shape;
    for (int i = 0; i < n; i++)
        PASS_ON(find(ctx, in, layer, which[i], &shape, NULL, err));
    return 0;
}
