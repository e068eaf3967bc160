/* utf8.c - valid sequences, and what is unsafe to show (utf8.h). */
#include "core/utf8.h"

#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

int utf8_length(const unsigned char *s)
{
    utf8proc_int32_t c;
    int n = (int)utf8proc_iterate(s, -1, &c);
    return n > 0 ? n : 0;
}

unsigned utf8_code_point(const unsigned char *s)
{
    utf8proc_int32_t c;
    utf8proc_iterate(s, -1, &c);
    return (unsigned)c;
}

void utf8_copy(char *dst, size_t cap, const char *src)
{
    size_t used = 0;
    for (const unsigned char *p = (const unsigned char *)src; *p;) {
        int n = utf8_length(p), put = n ? n : 1;
        if (used + (size_t)put >= cap)
            break;
        memcpy(dst + used, n ? (const void *)p : "?", (size_t)put);
        used += (size_t)put;
        p += put;
    }
    dst[used] = '\0';
}

int utf8_count(const char *s)
{
    int n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

/* ---- unsafe characters ---------------------------------------------------------------------- */

static bool is_control(unsigned c)
{
    return c < 0x20 || (c >= 0x7F && c <= 0x9F);
}

static bool is_direction(unsigned c)
{
    return c == 0x061C || c == 0x200E || c == 0x200F || (c >= 0x202A && c <= 0x202E) ||
           (c >= 0x2066 && c <= 0x2069);
}

static bool is_separator(unsigned c)
{
    return c == 0x2028 || c == 0x2029;
}

int utf8_unsafe(const unsigned char *s)
{
    int n = utf8_length(s);
    if (!*s)
        return 0;
    if (n == 0)
        return 1;
    unsigned c = utf8_code_point(s);
    return is_control(c) || is_direction(c) || is_separator(c) ? n : 0;
}

const char *utf8_fault(const char *s, char text[UTF8_FAULT_MAX])
{
    const unsigned char *p = (const unsigned char *)s;
    while (*p && !utf8_unsafe(p))
        p += utf8_length(p);
    if (!*p)
        return NULL;
    int n = utf8_length(p);
    if (n == 0) {
        snprintf(text, UTF8_FAULT_MAX, "byte 0x%02X, which is not UTF-8", *p);
        return text;
    }
    unsigned c = utf8_code_point(p);
    snprintf(text, UTF8_FAULT_MAX, "%s U+%04X",
             is_control(c)     ? "control character"
             : is_direction(c) ? "direction mark"
                               : "line separator",
             c);
    return text;
}

void utf8_make_plain(char *s)
{
    unsigned char *to = (unsigned char *)s;
    for (const unsigned char *p = to; *p;) {
        int bad = utf8_unsafe(p), n = bad ? bad : utf8_length(p);
        if (bad)
            *to++ = '?';
        for (int i = 0; !bad && i < n; i++)
            *to++ = p[i];
        p += n;
    }
    *to = '\0';
}
