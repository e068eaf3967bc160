/*
 * generate.h - greedy answers as text, and the ids of a prompt with its answer.
 */
#ifndef LACUNA_GENERATE_H
#define LACUNA_GENERATE_H

#include "core/text.h"
#include "eval/decode.h"
#include "eval/evaltask.h"

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

/* Generate at most max_new ids, until one that ends a text or until the text has a stop string;
 * *out receives the text without it. */
int generate(struct decode *d, const struct eval_model *m, int64_t max_new,
             const struct str_list *stop, struct buf *out, struct err *err);

#endif
