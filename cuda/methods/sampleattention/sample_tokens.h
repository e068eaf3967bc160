/*
 * sample_tokens.h - the earlier algorithm of SampleAttention (profile=v2) on the GPU.
 */
#ifndef LACUNA_SAMPLE_TOKENS_H
#define LACUNA_SAMPLE_TOKENS_H

#include "cuda/select/select.h"

#define SAMPLE_MOST_TOKENS (1 << 24)

/* With sample_rule.tokens init and launch of the job, whose lists are of single keys. */
int sample_tokens_init(struct gpu *g, struct select_job *job, struct err *err);
int sample_tokens_launch(struct gpu *g, const struct select_job *job, struct err *err);

#endif
