/*
 * err.h - errors: a code, a complete message and where it arose.
 *
 * Fallible functions return 0 or a negative enum err_code and take a `struct err *` last. The
 * first error wins: err_set() on an err that already holds one leaves it alone. Callers add
 * context in front with err_prefix() while the error travels upwards ("layer 12: reading k: ...").
 * Nothing outside main.c prints a final message or exits.
 */
#pragma once

/* X(identifier, process exit code, text) */
#define ERR_CODES(X)                                                                               \
    X(ERR_CHECK, 1, "check failed")                                                                \
    X(ERR_USAGE, 2, "usage")                                                                       \
    X(ERR_INPUT, 3, "bad input")                                                                   \
    X(ERR_MACHINE, 4, "the machine lacks something")                                               \
    X(ERR_NOMEM, 4, "out of memory")                                                               \
    X(ERR_IO, 5, "I/O failure")                                                                    \
    X(ERR_RUN, 5, "run-time failure")                                                              \
    X(ERR_INTERRUPTED, 130, "interrupted")                                                         \
    X(ERR_PIPE, 141, "the reader of standard output went away")

enum err_index {
#define X(id, exit_code, text) id##_INDEX,
    ERR_CODES(X)
#undef X
        ERR_COUNT
};

enum err_code {
    ERR_OK = 0,
#define X(id, exit_code, text) id = -(id##_INDEX + 1),
    ERR_CODES(X)
#undef X
};

struct err {
    int code;         /* enum err_code, 0 = no error */
    int sys;          /* errno at the time, 0 if none */
    const char *file; /* origin */
    int line;
    char msg[768]; /* complete sentence without a final full stop */
};

/* Store an error unless one is already stored; returns err's code (negative). err may be NULL. What
 * is unsafe to show (core/utf8.h) becomes '?' in every message: names out of a file must not break
 * it into lines or reach a terminal as commands. */
int err_set_at(struct err *err, const char *file, int line, int code, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
#define err_set(err, code, ...) err_set_at((err), __FILE__, __LINE__, (code), __VA_ARGS__)

/* The code of a failed system call: a full disk (ENOSPC, EDQUOT) and too many open files (EMFILE,
 * ENFILE) are ERR_MACHINE, ENOMEM is ERR_NOMEM, everything else is `code`. */
int err_of_errno(int sys, int code);

/* Like err_set, with ": " and strerror(errno) appended; the code is err_of_errno(errno, code). */
int err_sys_at(struct err *err, const char *file, int line, int code, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
#define err_sys(err, code, ...) err_sys_at((err), __FILE__, __LINE__, (code), __VA_ARGS__)

/* Put "text: " in front of the stored message (nothing happens when no error is stored). Returns
 * the code. */
int err_prefix(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void err_clear(struct err *err);
int err_exit_code(int code);    /* process exit code of an enum err_code; 0 for 0 */
const char *err_text(int code); /* generic text of a code */

/* A static analyser sees one file at a time, so it must be told that err_set never returns 0 for a
 * nonzero code. */
#ifdef __clang_analyzer__
#undef err_set
#undef err_sys
#define err_set(err, code, ...) (err_set_at((err), "", 0, (code), __VA_ARGS__), (code))
#define err_sys(err, code, ...) (err_sys_at((err), "", 0, (code), __VA_ARGS__), (code))
#endif

/* Run a call, and return what it answers to the caller at once unless that is 0: an error or, in a
 * function that may answer it too, METHOD_SKIP. For a function that owns nothing, or by OWN
 * (core/mem.h), which fails with `return err_set(...)`. */
#define PASS_ON(call)                                                                              \
    do {                                                                                           \
        int rc_ = (call);                                                                          \
        if (rc_ != 0)                                                                              \
            return rc_;                                                                            \
    } while (0)

/* The same for a function that has something to release: remember the error in `rc` and go to the
 * function's one `out:` label. Not for calls with a third answer. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((rc = (call)) != 0)                                                                    \
            goto out;                                                                              \
    } while (0)

/* Fail with a message from inside such a function. */
#define FAIL(err, code, ...)                                                                       \
    do {                                                                                           \
        rc = err_set((err), (code), __VA_ARGS__);                                                  \
        goto out;                                                                                  \
    } while (0)
