/*
 * checkcu_checkpoint.c - see checkcu.h.
 */
#include "tests/gpu/checkcu.h"

#include "core/mem.h"
#include "core/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cu_checkpoint_add(struct cu_checkpoint *c, const char *name, int ndim, const int64_t *shape,
                      double mean, double scale, struct err *err)
{
    struct st_out *t = c->t + c->n;
    int64_t count = 1;
    void *data = NULL;

    if (c->n == CU_TENSORS)
        return err_set(err, ERR_RUN, "more than %d tensors", CU_TENSORS);
    for (int i = 0; i < ndim; i++)
        count *= shape[i];
    PASS_ON(mem_alloc(&data, count, dtype_size(c->dtype), name, err));
    for (int64_t i = 0; i < count; i++) {
        float x = (float)(mean + scale * rng_normal(7, (uint64_t)c->n, (uint64_t)i));
        if (c->dtype == DT_F32)
            ((float *)data)[i] = x;
        else
            ((uint16_t *)data)[i] = c->dtype == DT_BF16 ? f32_to_bf16(x) : f32_to_f16(x);
    }
    snprintf(c->names[c->n], sizeof c->names[c->n], "%s", name);
    *t = (struct st_out){.name = c->names[c->n], .dtype = c->dtype, .ndim = ndim, .data = data};
    memcpy(t->shape, shape, (size_t)ndim * sizeof *shape);
    c->n++;
    return 0;
}

void cu_checkpoint_free(struct cu_checkpoint *c)
{
    for (int i = 0; i < c->n; i++)
        free((void *)(uintptr_t)c->t[i].data);
    c->n = 0;
}

double cu_relative(const float *x, const float *ref, int64_t n)
{
    double delta = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        delta += ((double)x[i] - ref[i]) * ((double)x[i] - ref[i]);
        norm += (double)ref[i] * ref[i];
    }
    return sqrt(delta / norm);
}
