/*
 * gengrade.h - grades of one generated prompt: what each stream generates, and how likely it finds
 * the right answer.
 */
#ifndef LACUNA_GENGRADE_H
#define LACUNA_GENGRADE_H

#include "eval/evaltask.h"
#include "eval/generate.h"
#include "eval/prompt.h"

/* Tokens behind N that grading may need: a chain's links and answers that are longer than what may
 * be generated. */
#define GRADE_ROOM 256

struct grade {
    const struct prompt_spec *spec;
    const struct eval_model *m;
    const struct prompt *prompt;
    const char *chat;      /* NULL: none */
    struct id_list ids;    /* of the prompt */
    struct id_list answer; /* of answers[0], not of chain and track */
    struct id_list *wrong; /* [n_wrong] of the others' answers */
    int64_t n_wrong;
    size_t overhang;           /* bytes of the prompt that its ids leave to the answer */
    int64_t first_at, first_n; /* copy: where the answer's ids stand first, and from which on */
    int64_t first_skip;
    bool retokenised;
};

/* spec, m, prompt and chat are set. */
int grade_open(struct grade *g, struct err *err);
void grade_close(struct grade *g);

/* After the prefill of g->ids: metrics, notes and the generated text of a stream. A stream whose
 * method does not apply to a decode row is out afterwards. */
int grade_stream(const struct grade *g, struct cell_run *c, int stream, struct err *err);

#endif
