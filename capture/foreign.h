/*
 * foreign.h - models that lacuna does not run, and how their calls become a trace all the same.
 */
#ifndef LACUNA_FOREIGN_H
#define LACUNA_FOREIGN_H

#include "core/err.h"

/* The advice at the end of a refusal, of a language model and of a model of diffusers. */
#define FOREIGN_ADVICE                                                                             \
    "any other model: capture it in Python, where it runs: pip install './capture/torch[hf]' and " \
    "python -m lacuna_trace --hf DIR --prompt FILE -o T.h5 (doc/capture-from-python.md)"
#define FOREIGN_ADVICE_DIFFUSERS                                                                   \
    "any other model: capture it in Python, where it runs: pip install './capture/torch[video]' "  \
    "and python -m lacuna_trace --diffusers DIR --prompt TEXT -o T.h5 "                            \
    "(doc/capture-from-python.md)"

/* Refuse (ERR_INPUT) a directory of diffusers that capture cannot run, by its _class_name: another
 * transformer than Wan's, or a whole pipeline (model_index.json), of which one folder is wanted. 0
 * for everything else, a language model or no model at all. */
int foreign_refuse(const char *dir, struct err *err);

#endif
