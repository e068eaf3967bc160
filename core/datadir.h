/*
 * datadir.h - where the data files that ship with the program are.
 */
#ifndef LACUNA_DATADIR_H
#define LACUNA_DATADIR_H

#include "core/buf.h"
#include "core/err.h"

/* Path of a file or folder below the datasets folder ("paper"): from $LACUNA_DATA when set, else
 * beside the executable (../datasets, datasets, ../share/lacuna), else ./datasets. Not found:
 * ERR_INPUT with the places looked at. */
int datadir_find(const char *below, struct buf *path, struct err *err);

#endif
