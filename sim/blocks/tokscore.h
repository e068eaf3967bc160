/*
 * tokscore.h - mass per key token and per query-key distance, summed over the last rows of a
 * prompt. Vertical-slash methods estimate a head from it (MInference, arXiv:2407.02490;
 * FlexPrefill, arXiv:2502.20766).
 */
#ifndef LACUNA_TOKSCORE_H
#define LACUNA_TOKSCORE_H

#include "core/method.h"

#include <stdint.h>

/* How the logits of the sampled rows are formed. */
enum tok_logits {
    TOK_EXACT,      /* in the precision of in->exact, probabilities rounded to float */
    TOK_BF16_QUERY, /* bf16(scale q) . k, rounded to bf16 */
    TOK_BF16_DOT,   /* bf16(bf16(q . k) * scale) */
};

/* Over the last `rows` query rows of a head with nq = nk:
 *   col[k]   = sum_q p[q][k]        slash[d] = sum_q p[q][q - d]        both [nk]
 * In a bidirectional head slash[d] has the keys at q - d and at q + d.
 * p_dtype: probabilities are rounded to it before they are summed (DT_F32: not further). */
int token_scores(const struct head_in *in, int64_t rows, enum tok_logits logits, enum dtype p_dtype,
                 double *col, double *slash, struct err *err);

/* Add one causal row p[0..pos] of the query at position pos. */
void token_scores_add(const double *p, int64_t pos, double *col, double *slash);

/* order = indices of v[0..n) by (value descending, index ascending). */
int order_descending(const double *v, int64_t n, int32_t *order, struct err *err);

#endif
