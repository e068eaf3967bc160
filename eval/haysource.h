/*
 * haysource.h - generated C source files as a kernel's tree has them, one after another: a path, a
 * comment, includes, a structure, functions. Names are English words, as in source that models are
 * trained on.
 */
#ifndef LACUNA_HAYSOURCE_H
#define LACUNA_HAYSOURCE_H

#include "eval/haystack.h"

/* Add the lines of one more file. */
int haystack_add_source(struct haystack *h, struct err *err);

#endif
