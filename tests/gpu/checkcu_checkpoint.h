/*
 * checkcu_checkpoint.h - random checkpoints for runs on both sides.
 */
#ifndef LACUNA_CHECKCU_CHECKPOINT_H
#define LACUNA_CHECKCU_CHECKPOINT_H

#include "core/safetensors.h"

#define CU_TENSORS 128

struct cu_checkpoint {
    enum dtype dtype; /* F32, BF16 or F16, of all tensors */
    struct st_out t[CU_TENSORS];
    char names[CU_TENSORS][96];
    int n;
};

/* Add a tensor of normal values around `mean`. */
int cu_checkpoint_add(struct cu_checkpoint *c, const char *name, int ndim, const int64_t *shape,
                      double mean, double scale, struct err *err);
void cu_checkpoint_free(struct cu_checkpoint *c);

/* ||x - ref|| / ||ref|| of n values. */
double cu_relative(const float *x, const float *ref, int64_t n);

#endif
