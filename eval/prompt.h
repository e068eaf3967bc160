/*
 * prompt.h - generated prompts with known answers: needle, multi, kv, chain, copy, track. A prompt
 * is a function of task, domain, length in tokens, depth, sample and seed; nothing of it depends on
 * jobs, method or device.
 *
 * N tokens are the ids of the whole prompt and room for the answer (max_new); the haystack has as
 * many lines as fit.
 */
#pragma once

#include "core/buf.h"
#include "core/err.h"
#include "core/text.h"

#include <stdbool.h>
#include <stdint.h>

/* A haystack is text in which things are hidden: lines that are a function of (seed, sample) alone,
 * so that a shorter one is the beginning of a longer one, and all cells of a grid share it. */

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

/* ---- prompts -------------------------------------------------------------------------------- */

enum prompt_kind {
    PROMPT_NEEDLE,
    PROMPT_MULTI,
    PROMPT_KV,
    PROMPT_CHAIN,
    PROMPT_COPY,
    PROMPT_TRACK,
    PROMPT_KINDS
};

/* What is asked: a kind with its parameters. */
struct prompt_spec {
    enum prompt_kind kind;
    enum domain domain;
    int64_t items;      /* multi: needles; chain, track: hops */
    int64_t lines, cue; /* copy */
};

/* "needle", "multi:n=8", "chain:h=4", "copy:lines=12:cue=3", each with domain=c|en|source; unset:
 * as `domain`. ERR_USAGE for unknown tasks, keys and values, and domains that a task does not have.
 */
int prompt_spec_parse(const char *text, const char *domain, struct prompt_spec *out,
                      struct err *err);

/* Does the text begin with the name of a generated task? */
bool prompt_is_task(const char *text);

const char *prompt_name(const struct prompt_spec *s);
void prompt_spec_text(const struct prompt_spec *s, struct buf *b); /* canonical */
bool prompt_has_depth(const struct prompt_spec *s);

struct prompt {
    struct buf text;
    size_t question;         /* where in the text the question begins, behind the haystack */
    struct str_list answers; /* needle, multi, kv: " VALUE"; chain: values; track: names; copy: the
                              * lines that follow */
    struct str_list keys;    /* chain: K_0.. */
    struct str_list wrong;   /* " VALUE" of others, for the margin */
    struct str_list stop;    /* generation ends at these */
    int64_t max_new, lines;  /* ids that may be generated; lines of the haystack */
};
void prompt_free(struct prompt *p);

/* Number of ids of a text as a whole prompt. */
typedef int prompt_count_fn(void *ctx, const char *text, size_t len, int64_t *ids, struct err *err);

/* Generate. file: the haystack's lines, or NULL. ERR_USAGE when N tokens have no room for what the
 * task needs. *out is zeroed or freed. */
int prompt_make(const struct prompt_spec *s, const struct lines *file, int64_t tokens, double depth,
                int64_t sample, uint64_t seed, prompt_count_fn *count, void *ctx,
                struct prompt *out, struct err *err);
