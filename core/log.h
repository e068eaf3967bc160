/*
 * log.h - log lines on stderr: "lacuna: warning: ...". One line per event, never on stdout.
 * Colour only on a terminal and without NO_COLOR.
 */
#pragma once

#include <stdbool.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

void log_set_level(enum log_level level); /* lines of higher levels are dropped; default LOG_INFO */
enum log_level log_get_level(void);
void log_at(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Say whether the terminal shows an unfinished line (progress), which the next log line has to
 * erase first. */
void log_line_pending(bool pending);

#define log_error(...) log_at(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_at(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_at(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_at(LOG_DEBUG, __VA_ARGS__)
