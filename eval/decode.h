/*
 * decode.h - tokens behind a prompt, one stream of a lockstep run at a time: greedy generation and
 * likelihoods of given ids. The prompt's keys and values stay; what follows is overwritten when the
 * decoding goes back to the prompt.
 *
 * Calls answer METHOD_SKIP where the stream's method does not apply to a row, and the stream is
 * then out.
 */
#pragma once

#include "core/text.h"
#include "eval/evaltask.h"
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

/* ---- answers as text ------------------------------------------------------------------------ */

struct id_list {
    int32_t *v; /* owned */
    int64_t n;
};
void id_list_free(struct id_list *l);

/* Ids of a prompt: the beginning-of-text id where the model has one, the chat text in front, the
 * prompt as plain text, the chat text behind. */
int prompt_ids(const struct eval_model *m, const char *chat, const char *text, size_t len,
               struct id_list *out, struct err *err);

/* Ids of an answer behind a prompt. The prompt and the answer as one text may be cut into other ids
 * at their border: then *prompt keeps the ids that both have in common, and *answer what follows of
 * the whole. *retokenised says so. */
int answer_ids(const struct eval_model *m, const char *chat, const char *prompt_text, size_t len,
               const char *answer_text, struct id_list *prompt, struct id_list *answer,
               bool *retokenised, struct err *err);

/* The likeliest ids [*made] behind a prompt, at most `most`, up to one that ends a text; by exact
 * attention, with the keys and values of the prompt kept. */
int decode_greedy(const char *dir, const struct decoder_accel *on, int jobs, const int32_t *prompt,
                  int64_t n, int64_t most, int32_t *ids, int64_t *made, struct err *err);

/* Generate at most max_new ids, until one that ends a text or until the text has a stop string;
 * *out receives the text without it. */
int generate(struct decode *d, const struct eval_model *m, int64_t max_new,
             const struct str_list *stop, struct buf *out, struct err *err);
