/*
 * decode.h - tokens behind a prompt, one stream of a lockstep run at a time: greedy generation and
 * likelihoods of given ids. The prompt's keys and values stay; what follows is overwritten when the
 * decoding goes back to the prompt.
 *
 * Calls answer METHOD_SKIP where the stream's method does not apply to a row, and the stream is
 * then out.
 */
#ifndef LACUNA_DECODE_H
#define LACUNA_DECODE_H

#include "eval/lockstep.h"

struct decode {
    struct lockstep *l;
    int stream;
    int64_t pos;   /* tokens so far */
    float *first;  /* [vocab]: logits behind the prompt, owned */
    float *logits; /* [vocab]: logits behind the last token, owned */
    float *rows;   /* [cap_rows][hidden], owned */
    int64_t cap_rows;
};

/* Behind the prompt of the last prefill. */
int decode_open(struct decode *d, struct lockstep *l, int stream, struct err *err);
void decode_close(struct decode *d);

/* Back to the end of the prompt. */
void decode_rewind(struct decode *d);

/* The likeliest next id; of equal logits the lowest. */
int32_t decode_likeliest(const struct decode *d);

/* Take the ids [m] as the next ones. */
int decode_push(struct decode *d, const int32_t *ids, int64_t m, struct err *err);

/* nll [m] of the ids [m] as the next ones, each given those before it, and whether each is the
 * likeliest (top1 [m], may be NULL). They are taken. */
int decode_score(struct decode *d, const int32_t *ids, int64_t m, double *nll, bool *top1,
                 struct err *err);

/* nll and top1 of one id under logits [vocab]. */
double logits_nll(const float *logits, int64_t vocab, int32_t id, bool *top1);

#endif
