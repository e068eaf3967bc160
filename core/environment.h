/*
 * environment.h - the environment of a child process, and which programs there are.
 */
#ifndef LACUNA_ENVIRONMENT_H
#define LACUNA_ENVIRONMENT_H

#include <stdbool.h>

/* This process's variables ("NAME=value") but for those that drop() names, NULL at the end. The
 * caller frees the list, not its texts; NULL without memory. */
char **environment_without(bool (*drop)(const char *variable));

/* Does a folder of PATH hold a program of that name? */
bool program_found(const char *name);

#endif
