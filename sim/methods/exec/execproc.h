/*
 * execproc.h - a program that lacuna started and talks to over pipes: requests on its standard
 * input, answers on its standard output, arrays in the file behind its descriptor 3. Lines of its
 * standard error go to the log.
 *
 * No call waits beyond a deadline, and each ends when the user interrupts (ERR_INTERRUPTED). What
 * the program does wrong is ERR_RUN; a machine without memory or processes is ERR_MACHINE. SIGPIPE
 * is ignored, as interrupt_install has it.
 */
#ifndef LACUNA_EXECPROC_H
#define LACUNA_EXECPROC_H

#include "core/err.h"

#include <stddef.h>
#include <stdint.h>

struct execproc;

/* Start argv (found as a shell finds it) in a process group of its own. ERR_USAGE if there is no
 * such program. */
int execproc_start(char *const *argv, struct execproc **out, struct err *err);

/* Close its input and wait a moment for its end; then kill it with everything it started. Accepts
 * NULL. */
void execproc_end(struct execproc **p);

/* Kill it at once. Accepts NULL. */
void execproc_kill(struct execproc **p);

/* Memory of at least n bytes that the program sees in its descriptor 3; valid until the next call.
 */
int execproc_memory(struct execproc *p, int64_t n, void **out, struct err *err);

/* From here on calls have `seconds`; `cell` names lines of its standard error. It must not have
 * written anything before. */
int execproc_begin(struct execproc *p, double seconds, const char *cell, struct err *err);

int execproc_write(struct execproc *p, const void *data, size_t n, struct err *err);

/* The next line without its newline into text; longer than cap - 1 is ERR_RUN. */
int execproc_line(struct execproc *p, char *text, size_t cap, struct err *err);

/* Exactly n bytes. */
int execproc_read(struct execproc *p, void *dst, int64_t n, struct err *err);

#endif
