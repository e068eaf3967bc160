/*
 * lists.h - from block maps to CSR lists, on the GPU. O(rows + entries).
 */
#ifndef LACUNA_LISTS_H
#define LACUNA_LISTS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "cuda/select/select.h"

/* Fill l->ptr and l->col from l->map and l->count, where there are lists. */
int lists_make(struct gpu *g, const struct select_lists *l, struct err *err);

#ifdef __cplusplus
}
#endif

#endif
