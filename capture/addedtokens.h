/*
 * addedtokens.h - the tokens that are cut out of a text before anything else happens to it: special
 * tokens and those added to a vocabulary later ("added_tokens" of tokenizer.json).
 */
#ifndef LACUNA_ADDEDTOKENS_H
#define LACUNA_ADDEDTOKENS_H

#include "capture/bpe.h"
#include "capture/pretokenize.h"

struct added_tokens;

/* From the value of "added_tokens" (NULL or null: none). Tokens that the vocabulary has keep its
 * id. Those that are matched in normalised text are normalised here. */
int added_read(const json_t *list, const char *where, const struct bpe *bpe,
               const struct normalizer *norm, struct added_tokens **out, struct err *err);
void added_free(struct added_tokens *a); /* accepts NULL */

/* Id of an added token by its text, -1 if there is none; text of an id, NULL if there is none. */
int32_t added_id(const struct added_tokens *a, const char *text);
const char *added_text(const struct added_tokens *a, int64_t id);
int64_t added_max_id(const struct added_tokens *a);

/* A stretch of text: an added token (id >= 0) or what lies between two. */
struct stretch {
    size_t lo, hi;
    int32_t id;
};

struct stretches {
    struct stretch *v; /* owned: free() */
    int64_t n, cap;
};

/* Cut text (valid UTF-8) at the added tokens: the leftmost first, of those the longest.
 * `normalized` picks the tokens that are looked for in raw or in normalised text. out is started
 * anew. */
int added_split(const struct added_tokens *a, bool normalized, const char *text, size_t len,
                struct stretches *out, struct err *err);

#endif
