/*
 * taskfile.h - questions with answers from a file of JSON lines: lacuna's own keys, and those of
 * LongBench, InfiniteBench and RULER files.
 */
#pragma once

#include "core/buf.h"
#include "core/err.h"
#include "core/text.h"

#include <stdbool.h>

/* How a generated text is graded against known answers, as LongBench, InfiniteBench and RULER do it
 * (doc/eval.md has the definitions). */
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

struct question {
    struct buf prompt;
    struct str_list answers, choices, stop;
    enum text_metric metric;
    bool first_line, ignore_case;
    int64_t max_new, line;
    char group[64];
};

struct taskfile {
    char hash[40];
    struct question *q; /* owned */
    int64_t n, cap;
};
void taskfile_free(struct taskfile *f);

/* What holds for lines that do not say it themselves. */
struct line_defaults {
    const char *template; /* text with {key} for texts of the line and {OPTION_A}.. for its options;
                           * NULL: the line's prompt, or its input and answer_prefix */
    int metric;           /* enum text_metric, -1: every line names its own */
    int64_t max_new;      /* ids of an answer */
};

/* Read and check a whole file. ERR_INPUT with file and line for a line that is not
 * JSON, or whose prompt, answers, metric or choices are missing or wrong. */
int taskfile_read(struct taskfile *f, const char *path, const struct line_defaults *d,
                  struct err *err);
