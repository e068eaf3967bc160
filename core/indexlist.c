/* indexlist.c - "0,4-7" and "all" (indexlist.h). */
#include "core/indexlist.h"

#include "core/mem.h"
#include "core/sort.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_index(const char **p, int64_t *out)
{
    char *end;
    if (!isdigit((unsigned char)**p))
        return false;
    errno = 0;
    long long v = strtoll(*p, &end, 10);
    if (errno)
        return false;
    *p = end;
    *out = v;
    return true;
}

/* "a" or "a-b" at *p. */
static int read_span(const char **p, int64_t n, const char *what, const char *text, int64_t *lo,
                     int64_t *hi, struct err *err)
{
    bool ok = read_index(p, lo);
    *hi = *lo;
    if (ok && **p == '-') {
        (*p)++;
        ok = read_index(p, hi) && *hi >= *lo;
    }
    if (!ok || (**p && **p != ','))
        return err_set(err, ERR_USAGE, "%s: '%s' is not a list such as 0,4-7 or all", what, text);
    if (n >= 0 && *hi >= n)
        return err_set(err, ERR_USAGE, "%s: %lld is out of range, there are %lld (0..%lld)", what,
                       (long long)*hi, (long long)n, (long long)n - 1);
    return 0;
}

int index_list_parse(const char *text, int64_t n, const char *what, int64_t **out, int64_t *count,
                     struct err *err)
{
    enum { MOST = 1 << 24 };
    OWN(free_at) int64_t *list = NULL;
    int64_t used = 0, cap = 0, kept = 0;
    char all[32];
    if (strcmp(text, "all") == 0 && n < 0) {
        *out = NULL;
        *count = -1;
        return 0;
    }
    snprintf(all, sizeof all, "0-%lld", (long long)n - 1);
    const char *p = strcmp(text, "all") == 0 && n > 0 ? all : text;
    for (;;) {
        int64_t lo = 0, hi = 0;
        if (n == 0 && strcmp(text, "all") == 0)
            break;
        PASS_ON(read_span(&p, n, what, text, &lo, &hi, err));
        if (hi - lo >= MOST - used)
            return err_set(err, ERR_USAGE, "%s: '%s' names more than %d indices", what, text, MOST);
        PASS_ON(mem_grow(&list, &cap, used + hi - lo + 1, sizeof *list, what, err));
        for (int64_t i = lo; i <= hi; i++)
            list[used++] = i;
        if (!*p)
            break;
        p++;
    }
    PASS_ON(mem_grow(&list, &cap, 1, sizeof *list, what, err));
    qsort(list, (size_t)used, sizeof *list, compare_i64);
    for (int64_t i = 0; i < used; i++)
        if (kept == 0 || list[kept - 1] != list[i])
            list[kept++] = list[i];
    *out = list;
    *count = kept;
    list = NULL;
    return 0;
}

bool index_list_has(const int64_t *list, int64_t n, int64_t x)
{
    for (int64_t i = 0; i < n; i++)
        if (list[i] == x)
            return true;
    return n < 0;
}
