/*
 * numlist.c - "a+b+c" (numlist.h).
 */
#include "sim/blocks/numlist.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* One number up to '+' or the end; *end is behind it. */
static bool one_number(const char *s, char **end, double *out)
{
    if (!strchr("0123456789.", *s) || !*s)
        return false;
    errno = 0;
    *out = strtod(s, end);
    return errno == 0 && isfinite(*out) && (**end == '\0' || **end == '+');
}

int num_list_parse(const char *text, const char *what, double above, double *out, int most, int *n,
                   struct err *err)
{
    const char *s = text;
    *n = 0;
    for (;;) {
        char *end;
        double x;
        if (!one_number(s, &end, &x) || !(x > above))
            return err_set(err, ERR_USAGE,
                           "%s: '%s' is not a list of numbers above %g, written a+b+c", what, text,
                           above);
        if (*n == most)
            return err_set(err, ERR_USAGE, "%s: '%s' has more than %d numbers", what, text, most);
        out[(*n)++] = x;
        if (!*end)
            return 0;
        s = end + 1;
    }
}

int int_list_parse(const char *text, const char *what, int64_t above, int64_t *out, int most,
                   int *n, struct err *err)
{
    const char *s = text;
    *n = 0;
    for (;;) {
        char *end;
        long long x = 0;
        bool ok = *s >= '0' && *s <= '9';
        if (ok) {
            errno = 0;
            x = strtoll(s, &end, 10);
            ok = errno == 0 && x > above && (*end == '\0' || *end == '+');
        }
        if (!ok)
            return err_set(err, ERR_USAGE,
                           "%s: '%s' is not a list of integers above %lld, written a+b+c", what,
                           text, (long long)above);
        if (*n == most)
            return err_set(err, ERR_USAGE, "%s: '%s' has more than %d numbers", what, text, most);
        out[(*n)++] = x;
        if (!*end)
            return 0;
        s = end + 1;
    }
}
