/*
 * numlist.c - "a+b+c" (numlist.h).
 */
#include "sim/blocks/numlist.h"

#include "core/text.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

/* Into d, or with `whole` into w. */
static int parse(const char *text, const char *what, bool whole, double above, double *d,
                 int64_t *w, int most, int *n, struct err *err)
{
    const char *s = text;
    for (*n = 0;; s++) {
        const char *end = NULL;
        char *stop;
        double x = 0;
        long long k = 0;
        errno = 0;
        if (whole && *s >= '0' && *s <= '9') {
            x = (double)(k = strtoll(s, &stop, 10));
            end = stop;
        } else if (!whole && *s != '-' && *s != '+') {
            num_read(s, &x, &end);
        }
        if (!end || errno || (*end && *end != '+') || !(x > above))
            return err_set(err, ERR_USAGE, "%s: '%s' is not a list of %s above %.*g, written a+b+c",
                           what, text, whole ? "integers" : "numbers", whole ? 19 : 6, above);
        if (*n == most)
            return err_set(err, ERR_USAGE, "%s: '%s' has more than %d numbers", what, text, most);
        if (whole)
            w[(*n)++] = k;
        else
            d[(*n)++] = x;
        if (!*end)
            return 0;
        s = end;
    }
}

int num_list_parse(const char *text, const char *what, double above, double *out, int most, int *n,
                   struct err *err)
{
    return parse(text, what, false, above, out, NULL, most, n, err);
}

int int_list_parse(const char *text, const char *what, int64_t above, int64_t *out, int most,
                   int *n, struct err *err)
{
    return parse(text, what, true, (double)above, NULL, out, most, n, err);
}
