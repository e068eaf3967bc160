#include "core/err.h"

#include "core/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    int exit_code;
    const char *text;
} table[ERR_COUNT] = {
#define X(id, exit_code, text) {exit_code, text},
    ERR_CODES(X)
#undef X
};

static int store(struct err *err, const char *file, int line, int code, int sys, const char *fmt,
                 va_list ap)
{
    if (!err)
        return code;
    if (err->code)
        return err->code;
    err->code = code;
    err->sys = sys;
    err->file = file;
    err->line = line;
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    utf8_make_plain(err->msg);
    return code;
}

/* ": text" at the end, cut to what fits. */
static void append(struct err *err, const char *text)
{
    const char *parts[] = {": ", text};
    size_t used = strlen(err->msg), room = sizeof err->msg - 1 - used;
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(parts[i]) < room ? strlen(parts[i]) : room;
        memcpy(err->msg + used, parts[i], n);
        used += n;
        room -= n;
    }
    err->msg[used] = '\0';
    utf8_make_plain(err->msg); /* the end may have cut a character */
}

int err_set_at(struct err *err, const char *file, int line, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int rc = store(err, file, line, code, 0, fmt, ap);
    va_end(ap);
    return rc;
}

int err_of_errno(int sys, int code)
{
    switch (sys) {
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
        return ERR_MACHINE;
    case ENOMEM:
        return ERR_NOMEM;
    default:
        return code;
    }
}

int err_sys_at(struct err *err, const char *file, int line, int code, const char *fmt, ...)
{
    int sys = errno;
    code = err_of_errno(sys, code);
    va_list ap;
    va_start(ap, fmt);
    int fresh = err && !err->code;
    int rc = store(err, file, line, code, sys, fmt, ap);
    va_end(ap);
    if (fresh && sys)
        append(err, strerror(sys));
    return rc;
}

int err_prefix(struct err *err, const char *fmt, ...)
{
    if (!err || !err->code)
        return err ? err->code : 0;
    char old[sizeof err->msg];
    va_list ap;
    memcpy(old, err->msg, sizeof old);
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    utf8_make_plain(err->msg);
    if (n >= 0 && (size_t)n < sizeof err->msg)
        append(err, old);
    return err->code;
}

void err_clear(struct err *err)
{
    memset(err, 0, sizeof *err);
}

int err_exit_code(int code)
{
    int i = -code - 1;
    return code == 0 ? 0 : i >= 0 && i < ERR_COUNT ? table[i].exit_code : 5;
}

const char *err_text(int code)
{
    int i = -code - 1;
    return code == 0 ? "ok" : i >= 0 && i < ERR_COUNT ? table[i].text : "unknown error";
}
