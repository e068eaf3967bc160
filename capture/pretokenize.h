/*
 * pretokenize.h - the text-to-text half of a tokenizer: normalisers and pre-tokenizers, as
 * described in tokenizer.json.
 *
 * Normalisers: Sequence, NFC, NFD, NFKC, NFKD, Prepend, Replace.
 * Pre-tokenizers: Sequence, Split (all behaviours), ByteLevel, Digits, Metaspace.
 * Any other type is refused by name: leaving one out would give other tokens without a word.
 */
#pragma once

#include "core/buf.h"
#include "core/mem.h"
#include "core/json.h"

#include <stdbool.h>
#include <stdint.h>

/* A text cut into pieces: piece i is text[end[i-1], end[i]). No piece is empty. */
struct pieces {
    struct buf text;
    int64_t *end; /* owned */
    int64_t n, cap;
    bool at_start; /* piece 0 begins at the start of the input */
};

int pieces_add(struct pieces *p, const char *s, size_t len, struct err *err); /* "" is left out */
void pieces_reset(struct pieces *p);
void pieces_free(struct pieces *p);

static inline const char *piece(const struct pieces *p, int64_t i, size_t *len)
{
    int64_t from = i ? p->end[i - 1] : 0;
    *len = (size_t)(p->end[i] - from);
    return p->text.data + from;
}

struct normalizer;
struct pretokenizer;

/* From the value of "normalizer" / "pre_tokenizer"; NULL or null gives one that does nothing.
 * `where` names the file. */
int normalizer_read(const json_t *v, const char *where, struct normalizer **out, struct err *err);
void normalizer_free(struct normalizer *n);
OWN_AT(normalizer_free, struct normalizer *)
int pretokenizer_read(const json_t *v, const char *where, struct pretokenizer **out,
                      struct err *err);
void pretokenizer_free(struct pretokenizer *p);
OWN_AT(pretokenizer_free, struct pretokenizer *)

/* out (reset first) = normal form of text. */
int normalizer_run(const struct normalizer *n, const char *text, size_t len, struct buf *out,
                   struct err *err);

/* Cut p's pieces further, in place. ByteLevel leaves bytes as they are: see pretokenizer_bytes. */
int pretokenizer_run(const struct pretokenizer *t, struct pieces *p, struct err *err);

/* Warn once of a text (valid UTF-8) with a character that the Unicode tables of the expressions do
 * not know. */
void pretokenizer_doubt(struct pretokenizer *t, const char *text, size_t len);

/* Does it end in ByteLevel, so that the vocabulary holds bytes written as printable characters? */
bool pretokenizer_bytes(const struct pretokenizer *t);

/* UTF-8 of the character that stands for a byte in a byte-level vocabulary (1 or 2 bytes, and a
 * NUL): printable Latin-1 bytes are themselves, the 68 others are U+0100 and up in order. */
void byte_char(uint8_t byte, char out[3]);

/* The byte that character `c` stands for, -1 if none. */
int char_byte(int32_t c);

/* Offset of the first byte that is not part of valid UTF-8, or -1. */
int64_t utf8_invalid(const char *s, size_t len);
