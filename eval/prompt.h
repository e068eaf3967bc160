/*
 * prompt.h - generated prompts with known answers: needle, multi, kv, chain, copy, track. A prompt
 * is a function of task, domain, length in tokens, depth, sample and seed; nothing of it depends on
 * jobs, method or device.
 *
 * N tokens are the ids of the whole prompt and room for the answer (max_new); the haystack has as
 * many lines as fit.
 */
#ifndef LACUNA_PROMPT_H
#define LACUNA_PROMPT_H

#include "core/text.h"
#include "eval/haystack.h"

#include <stdbool.h>

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
int64_t prompt_max_new(const struct prompt_spec *s);

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

#endif
