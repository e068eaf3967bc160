/*
 * haystack.h - text in which things are hidden: lines that are a function of (seed, sample) alone,
 * so that a shorter haystack is the beginning of a longer one, and all cells of a grid share it.
 */
#ifndef LACUNA_HAYSTACK_H
#define LACUNA_HAYSTACK_H

#include "core/buf.h"
#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

enum domain { DOMAIN_C, DOMAIN_EN, DOMAIN_SOURCE };

/* What is hidden in it are comments of C. */
static inline bool domain_is_c(enum domain d)
{
    return d != DOMAIN_EN;
}

/* Random numbers of one purpose of one sample: stream = task 2^48 + purpose 2^40 + sample. */
struct draws {
    uint64_t seed, stream, count;
};

enum draw_task {
    DRAW_HAYSTACK,
    DRAW_NEEDLE,
    DRAW_MULTI,
    DRAW_KV,
    DRAW_CHAIN,
    DRAW_COPY,
    DRAW_TRACK
};

/* Purposes with DRAW_HAYSTACK. */
enum { DRAW_C = 1, DRAW_EN = 2, DRAW_START = 3, DRAW_SOURCE = 4 };
/* Purposes with the other tasks. */
enum { DRAW_KEYS = 2, DRAW_PLACES = 3, DRAW_DISTRACTORS = 4 };

struct draws draws_of(uint64_t seed, enum draw_task task, int purpose, int64_t sample);

uint64_t draw(struct draws *d, uint64_t n); /* uniform in 0..n-1 */
int64_t draw_number(struct draws *d, int digits);
double draw_place(struct draws *d); /* in [0, 1) */

/* A word of `syllables` syllables; 0: of two or three, as drawn. */
void draw_word(struct draws *d, int syllables, char word[16]);

/* Lines, each with its newline. */
struct lines {
    struct buf text;
    int64_t *start; /* [n + 1], owned */
    int64_t n, cap;
};
void lines_free(struct lines *l);
int lines_add(struct lines *l, const char *text, size_t len, struct err *err);
static inline const char *line_at(const struct lines *l, int64_t i, size_t *len)
{
    *len = (size_t)(l->start[i + 1] - l->start[i]);
    return l->text.data + l->start[i];
}

/* A source of lines. */
struct haystack {
    enum domain domain;
    struct draws d;
    const struct lines *file; /* lines of a file, borrowed; NULL: generated */
    int64_t next;             /* line of the file */
    struct lines lines;       /* so far, owned */
};

void haystack_init(struct haystack *h, enum domain domain, const struct lines *file, uint64_t seed,
                   int64_t sample);
void haystack_free(struct haystack *h);

/* At least n lines are there. */
int haystack_need(struct haystack *h, int64_t n, struct err *err);

/* The lines of a text file; ERR_INPUT for a file without any. */
int lines_read(struct lines *l, const char *path, char hash[40], struct err *err);

#endif
