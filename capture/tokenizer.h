/*
 * tokenizer.h - text to token ids by a checkpoint's tokenizer.json.
 *
 * In order: added tokens are cut out, the rest is normalised, cut into pieces by the
 * pre-tokenizers, and every piece is spelled by byte-pair encoding. Special tokens of the whole
 * text (its beginning and, rarely, its end) come from post_processor's template alone, as in
 * transformers 5; a warning says where add_bos_token or add_eos_token of tokenizer_config.json
 * disagree. Added tokens come from tokenizer.json, tokenizer_config.json (added_tokens_decoder,
 * bos_token and its kin, extra_special_tokens, additional_special_tokens), and where there is no
 * added_tokens_decoder from special_tokens_map.json and added_tokens.json.
 *
 * Whatever would give other ids than the checkpoint's own tokenizer is refused by name: models
 * other than BPE, and normalisers, pre-tokenizers and post-processors that pretokenize.h does not
 * list.
 */
#pragma once

#include "core/buf.h"
#include "core/err.h"
#include "core/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* Read tokenizer.json of a checkpoint (core/checkpoint.h) and what is there of the files above. */
int tokenizer_open(const char *model, struct tokenizer **out, struct err *err);
void tokenizer_close(struct tokenizer **t);

/* Ids of a text, special tokens included: malloc'd *ids of *n. *added_bos (may be
 * NULL) says whether ids[0] is a special token that the text did not contain. Text that is not
 * UTF-8 is ERR_INPUT with the offset of the first bad byte. One thread at a time. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, bool *added_bos,
                     int32_t **ids, int64_t *n, struct err *err);

/* Ids of a part of a text: no special tokens around it, and added tokens in it are plain text. The
 * rest as tokenizer_encode. */
int tokenizer_encode_plain(const struct tokenizer *t, const char *text, size_t len, int32_t **ids,
                           int64_t *n, struct err *err);

/* Largest id that encoding can give. */
int64_t tokenizer_max_id(const struct tokenizer *t);

/* Append the text of n ids for people to read: bytes that are no complete character, and ids that
 * the tokenizer does not know, become U+FFFD. */
void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int64_t n, struct buf *out);

/* Append the bytes of n ids, which need not be whole characters; nothing for an id that the
 * tokenizer does not know. */
void tokenizer_decode_bytes(const struct tokenizer *t, const int32_t *ids, int64_t n,
                            struct buf *out);

/* Text of each of n ids by the tokenizer of DIR, as tokenizer_decode has it. The caller frees *out.
 */
int tokenizer_texts(const char *dir, const int32_t *ids, int64_t n, struct str_list *out,
                    struct err *err);
