/*
 * testmethods.h - all methods of the simulator, and the example of doc/adding-a-method.md, which no
 * program but the tests has.
 */
#ifndef LACUNA_TESTMETHODS_H
#define LACUNA_TESTMETHODS_H

#include "core/method_run.h"

extern const struct method *const test_methods[]; /* NULL-terminated */
int n_test_methods(void);

/* A method that needs a file or a program has no defaults; its own test gives it one. */
bool has_defaults(const struct method *m);

#endif
