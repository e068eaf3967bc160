/*
 * evalcmd.h - `lacuna` as a process, and what it leaves behind. The program is $LACUNA (default
 * build/lacuna). Whatever goes wrong fails the test.
 */
#pragma once

#include "core/buf.h"
#include "core/record.h"

#include <sys/types.h>

/* A path in the test's directory that no other test or row has; one per name. */
const char *evalcmd_own_path(const char *name);

/* Start `lacuna` with words (argv[0] counts) or a line of words separated by spaces, its output in
 * the file "log"; its exit code. */
pid_t evalcmd_exec(const char *const argv[]);
pid_t evalcmd_start(const char *line);
int evalcmd_finish(pid_t pid);

/* Both with a line as of printf, and exit code 0. */
__attribute__((format(printf, 1, 2))) void evalcmd_run_ok(const char *fmt, ...);

struct evalcmd_records {
    struct record *r; /* records_free */
    int64_t n;
};
struct evalcmd_records evalcmd_load(const char *dir);
const struct record *evalcmd_find(const struct evalcmd_records *x, const char *method,
                                  const char *params);

/* [rows][n] of --dump-nll; the caller frees it. */
float *evalcmd_read_nll(const char *path, int64_t *rows, int64_t *n);

/* Lines of DIR/FILE, so that doubled records show; 0 without it. */
int64_t evalcmd_count_lines(const char *dir, const char *file);
