/*
 * environment.h - the environment of a child process.
 */
#ifndef LACUNA_ENVIRONMENT_H
#define LACUNA_ENVIRONMENT_H

#include <stdbool.h>

/* This process's variables ("NAME=value") but for those that drop() names, NULL at the end. The
 * caller frees the list, not its texts; NULL without memory. */
char **environment_without(bool (*drop)(const char *variable));

#endif
