/*
 * log.c - log lines, each one write() so that threads and ranks do not interleave within a line.
 */
#include "core/log.h"

#include "core/utf8.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Atomic int level_now = LOG_INFO;
static _Atomic bool line_pending;

void log_set_level(enum log_level level)
{
    atomic_store(&level_now, (int)level);
}

enum log_level log_get_level(void)
{
    return (enum log_level)atomic_load(&level_now);
}

void log_line_pending(bool pending)
{
    atomic_store(&line_pending, pending);
}

static const char *prefix_of(enum log_level level, bool colour)
{
    static const char *const plain[] = {"error: ", "warning: ", "", "debug: "};
    static const char *const colours[] = {"\033[1;31merror:\033[0m ", "\033[1;33mwarning:\033[0m ",
                                          "", "\033[2mdebug:\033[0m "};
    return colour ? colours[level] : plain[level];
}

void log_at(enum log_level level, const char *fmt, ...)
{
    if (level > log_get_level())
        return;
    bool tty = isatty(STDERR_FILENO);
    const char *no_color = getenv("NO_COLOR");
    char line[2048];
    size_t cap = sizeof line - 1;
    int n =
        snprintf(line, cap, "%slacuna: %s", atomic_exchange(&line_pending, false) ? "\r\033[K" : "",
                 prefix_of(level, tty && !(no_color && no_color[0])));
    size_t used = (size_t)n;
    va_list ap;
    va_start(ap, fmt);
    if (vsnprintf(line + used, cap - used, fmt, ap) < 0)
        line[used] = '\0';
    va_end(ap);
    utf8_make_plain(line + used);
    used += strlen(line + used);
    line[used++] = '\n';
    /* Nothing can be done about a closed stderr. */
    if (write(STDERR_FILENO, line, used) < 0)
        return;
}
