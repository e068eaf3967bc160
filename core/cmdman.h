/*
 * cmdman.h - the manual page and the completion script, both made from the command, option and
 * method tables.
 */
#ifndef LACUNA_CMDMAN_H
#define LACUNA_CMDMAN_H

#include "core/buf.h"
#include "core/cmd.h"

/* man(7) source: of one command, or (NULL) of the program with all of them. The date is
 * SOURCE_DATE_EPOCH's if set, else today. Returns 0. */
int man_page(const struct app *app, const struct command *command, struct buf *b);

/* Completion script for a shell (cmdcomplete.c): commands, options, values of enumerations, methods
 * and their parameters after -m, tables, figures, metrics; anything else as a file name. ERR_USAGE:
 * no such shell. */
int completion_script(const struct app *app, const char *shell, struct buf *b, struct err *err);

#endif
