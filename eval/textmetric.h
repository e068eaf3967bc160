/*
 * textmetric.h - how a generated text is graded against known answers, as LongBench, InfiniteBench
 * and RULER do it (doc/eval.md has the definitions).
 */
#ifndef LACUNA_TEXTMETRIC_H
#define LACUNA_TEXTMETRIC_H

#include "core/err.h"
#include "core/text.h"

#include <stdbool.h>

enum text_metric {
    TEXT_EXACT,
    TEXT_CONTAINS,
    TEXT_CONTAINS_ALL,
    TEXT_F1,
    TEXT_ROUGE_L,
    TEXT_EDIT_SIM,
    TEXT_CODE_SIM,
    TEXT_CLASSIFY,
    TEXT_NUMBER,
    TEXT_FIRST_INT,
    TEXT_WORD,
    TEXT_LETTER,
    TEXT_CHOICE, /* by likelihood: nothing is generated */
    TEXT_METRICS
};

extern const char *const text_metric_names[]; /* NULL-terminated, in the order of the enum */

struct text_case {
    enum text_metric metric;
    const struct str_list *answers, *choices; /* choices: classify */
    bool first_line, ignore_case;             /* ignore_case: word */
};

/* Score of a prediction in [0, 1]; ERR_NOMEM. */
int text_score(const struct text_case *c, const char *prediction, double *score, struct err *err);

#endif
