/*
 * likelihood.h - next-token likelihoods of all streams of a lockstep run, and how far their
 * distributions are from the exact run's. Logits never exist for all tokens together: rows in
 * blocks, the vocabulary in slices.
 */
#pragma once

#include "core/record.h"
#include "eval/lockstep.h"

/* A token that was predicted. */
struct scored {
    double nll;   /* -ln q(token | those before it), nat */
    double kl;    /* sum over the vocabulary of p (ln p - ln q): p exact attention, q the stream */
    double p;     /* q(token) */
    int64_t pos;  /* its position in the sequence */
    bool agree;   /* the likeliest token of p and q is the same (ties: lowest id) */
    bool correct; /* the likeliest token of q is the token */
};

/* The scored tokens of one stream, over sequences. */
struct scores {
    struct scored *v; /* owned */
    int64_t n, cap;
};
void scores_free(struct scores *s);

/* Score the tokens [from, n) of the sequence that the last prefill took: scores [n_streams]. A
 * stream that is out gets none. */
int likelihood_add(struct lockstep *l, const int32_t *tokens, int64_t from, struct scores *scores,
                   struct err *err);

/* Write nll_*, ppl*, kl_*, top1_*, p_rms and their values by position; `dense` are those of exact
 * attention over the same tokens, which are `s` itself for the exact run. */
int likelihood_record(const struct scores *s, const struct scores *dense, struct record *r,
                      struct err *err);
