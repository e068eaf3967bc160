/*
 * bpe.h - byte-pair encoding (Sennrich et al., arXiv 1508.07909): the vocabulary and the ranked
 * merges of tokenizer.json, applied to one piece of text at a time.
 */
#ifndef LACUNA_BPE_H
#define LACUNA_BPE_H

#include "core/err.h"
#include "core/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A growing list of token ids; zero it, release v with free(). */
struct ids {
    int32_t *v;
    int64_t n, cap;
};

int ids_add(struct ids *l, int32_t id, struct err *err);

struct bpe;

/* From the value of "model". A missing vocabulary, merges of unknown pieces, dropout and model
 * types other than BPE are ERR_INPUT naming `where`. */
int bpe_read(const json_t *model, const char *where, struct bpe **out, struct err *err);
void bpe_free(struct bpe *b); /* accepts NULL */

/* Append the ids of one piece: its characters are joined by the merge of the lowest rank, the
 * leftmost first, until none applies. O(len log len). A character that the vocabulary cannot spell,
 * and for which it has neither byte tokens nor an unknown token, is ERR_INPUT. */
int bpe_encode(struct bpe *b, const char *piece, size_t len, struct ids *out, struct err *err);

int32_t bpe_id(const struct bpe *b, const char *token); /* -1 if unknown */
const char *bpe_token(const struct bpe *b, int64_t id); /* NULL if there is none */
int64_t bpe_max_id(const struct bpe *b);

/* The byte that the token "<0xNN>" of a byte-fallback vocabulary stands for, else -1. */
int bpe_fallback_byte(const struct bpe *b, int64_t id);

#endif
