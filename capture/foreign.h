/*
 * foreign.h - models that lacuna does not run, and how their calls become a trace all the same.
 */
#ifndef LACUNA_FOREIGN_H
#define LACUNA_FOREIGN_H

#include "core/err.h"

/* The advice at the end of a refusal. */
#define FOREIGN_ADVICE                                                                             \
    "any other model: save q, k, v in Python where its attention is called, then run lacuna "      \
    "import (doc/trace-format.md, section 6, has the code)"

/* Refuse (ERR_INPUT) a directory of diffusers that capture cannot run, by its _class_name: another
 * transformer than Wan's, or a whole pipeline (model_index.json), of which one folder is wanted. 0
 * for everything else, a language model or no model at all. */
int foreign_refuse(const char *dir, struct err *err);

#endif
