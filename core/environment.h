/*
 * environment.h - the environment of a child process, whether PATH has a program, and where the
 * data is.
 */
#pragma once

#include "core/buf.h"
#include "core/err.h"

#include <stdbool.h>

/* This process's variables ("NAME=value") but for those that drop() names, NULL at the end. The
 * caller frees the list, not its texts; NULL without memory. */
char **environment_without(bool (*drop)(const char *variable));

/* Does a folder of PATH hold a program of that name? */
bool program_found(const char *name);

/* ---- data ----------------------------------------------------------------------------------- */

/* Path of a file or folder below the datasets folder ("paper"): from $LACUNA_DATA when set, else
 * beside the executable (../datasets, datasets, ../share/lacuna), else ./datasets. Not found:
 * ERR_INPUT with the places looked at. */
int datadir_find(const char *below, struct buf *path, struct err *err);
