/*
 * cmdman.h - the manual page and the completion script, both made from the command, option and
 * method tables.
 */
#ifndef LACUNA_CMDMAN_H
#define LACUNA_CMDMAN_H

#include "core/buf.h"
#include "core/cmd.h"

/* man(7) source. The date is SOURCE_DATE_EPOCH's if set, else today. Returns 0. */
int man_page(const struct app *app, struct buf *b);

/* Completion script for bash. Completes commands, options, values of enumerations, method names
 * after -m and the topics of `list`; anything else as a file name. Returns 0. */
int bash_completion(const struct app *app, struct buf *b);

#endif
