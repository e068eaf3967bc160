/*
 * utf8.h - UTF-8, and the characters in it that no terminal, page or name should get from a file.
 */
#pragma once

#include <stddef.h>

/* Length of the valid UTF-8 sequence at s (RFC 3629: no overlong forms, no surrogates), 0 if there
 * is none. */
int utf8_length(const unsigned char *s);

/* The character at s, which begins a valid sequence. */
unsigned utf8_code_point(const unsigned char *s);

/* Copies text into a field of `cap` bytes that will be written as JSON later. Invalid bytes become
 * '?', so that the text does not grow. Text that does not fit is cut between two characters. */
void utf8_copy(char *dst, size_t cap, const char *src);

/* Number of characters of UTF-8 text. It equals columns of a terminal if no character has double
 * width. */
int utf8_count(const char *s);

/* Number of bytes at s that are unsafe to show: a control character (C0, DEL, C1), a mark that
 * changes the direction of the text behind it (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to
 * U+2069), a line or paragraph separator (U+2028, U+2029), or one byte that is not UTF-8. 0: the
 * character at s is safe, or s is at its end. */
int utf8_unsafe(const unsigned char *s);

/* What of a text is unsafe to show, in words ("control character U+001B"); NULL: nothing. The words
 * are static or in `text`. */
#define UTF8_FAULT_MAX 48
const char *utf8_fault(const char *s, char text[UTF8_FAULT_MAX]);

/* Makes text safe to show, in place: each unsafe character and byte becomes '?'. */
void utf8_make_plain(char *s);
