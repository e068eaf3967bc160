/*
 * caption.h - what the records of a table are of, in a line; and the methods in the user's order.
 */
#ifndef LACUNA_CAPTION_H
#define LACUNA_CAPTION_H

#include "analyze/load.h"
#include "core/buf.h"
#include "core/method.h"

/* "code-lm, 4096 tokens, 48 heads (6 layers x 8), causal; against dense attention in float64". What
 * differs between records is counted ("3 models") or left out. */
void recset_caption(const struct recset *set, struct buf *b);

/* Names of the methods in the order of their first records, dense first, bounds last; n_bounds
 * receives the number of bounds. `methods` (NULL-terminated, or NULL) knows which are bounds. */
void recset_methods(const struct recset *set, const struct method *const *methods,
                    struct str_list *out, int64_t *n_bounds);

#endif
