/*
 * rowsample.c - see rowsample.h.
 */
#include "core/rowsample.h"

#include "core/intmath.h"
#include "core/mem.h"
#include "core/rng.h"

#include <errno.h>
#include <stdlib.h>

#define STREAM 0x726f7773 /* of the random numbers: "rows" */

struct row_span row_sample_span(const struct row_sample *s, int64_t g)
{
    int64_t first = g * s->group;
    return (struct row_span){first, MIN(s->group, s->n - first), s->at[first]};
}

bool row_sample_has(const struct row_sample *s, int64_t p)
{
    int64_t lo = 0, hi = row_sample_groups(s), start = p / s->group * s->group;
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        if (s->at[mid * s->group] == start)
            return true;
        if (s->at[mid * s->group] < start)
            lo = mid + 1;
        else
            hi = mid;
    }
    return false;
}

int row_sample_check(const struct row_sample *s, int64_t n_k, int code, struct err *err)
{
    if (s->group < ROW_GROUP || s->group % ROW_GROUP != 0)
        return err_set(err, code, "groups of %lld sampled rows; multiples of %d are possible",
                       (long long)s->group, ROW_GROUP);
    for (int64_t i = 0; i < s->n; i++) {
        int64_t p = s->at[i], in = i % s->group;
        bool follows = in ? p == s->at[i - 1] + 1 : p % s->group == 0;
        if (!follows || p < 0 || p >= n_k || (i > 0 && p <= s->at[i - 1]))
            return err_set(err, code,
                           "sampled row %lld stands at position %lld: rows come in ascending "
                           "groups of %lld, each from a multiple of that on, of %lld rows",
                           (long long)i, (long long)p, (long long)s->group, (long long)n_k);
    }
    if (s->n == 0 || (s->n % s->group != 0 && s->at[s->n - 1] != n_k - 1))
        return err_set(err, code, "the last group of sampled rows has %lld of %lld rows",
                       (long long)(s->n % s->group), (long long)s->group);
    return 0;
}

int row_sample_parse(const char *text, const char *option, int64_t *groups, int64_t *group,
                     struct err *err)
{
    char *end = NULL;
    errno = 0;
    *group = ROW_GROUP;
    *groups = strtoll(text, &end, 10);
    bool ok = end != text;
    if (ok && *end == 'x') {
        const char *second = end + 1;
        *group = strtoll(second, &end, 10);
        ok = end != second;
    }
    if (!ok || *end || errno || *groups < 2 || *groups % 2 || *groups > INT32_MAX ||
        *group < ROW_GROUP || *group % ROW_GROUP || *group > INT32_MAX)
        return err_set(err, ERR_USAGE,
                       "%s %s: give an even number of groups, and with x the rows of each, a "
                       "multiple of %d, as in 64 or 64x256",
                       option, text, ROW_GROUP);
    return 0;
}

int row_sample_draw(int64_t n_k, int64_t groups, int64_t group, uint64_t seed, int32_t **at,
                    int64_t *n, struct err *err)
{
    int64_t all = ceil_div(n_k, group);
    *at = NULL;
    *n = 0;
    if (groups >= all)
        return err_set(err, ERR_USAGE,
                       "%lld groups of %lld rows: %lld rows have %lld; leave the sampling out",
                       (long long)groups, (long long)group, (long long)n_k, (long long)all);
    PASS_ON(mem_alloc(at, groups * group, sizeof **at, "sampled rows", err));
    for (int64_t t = 0; t < groups; t++) {
        int64_t lo = t * all / groups, hi = (t + 1) * all / groups;
        int64_t pick = lo + (int64_t)rng_below(seed, STREAM, (uint64_t)t, (uint64_t)(hi - lo));
        pick = t == groups - 1 ? all - 1 : pick;
        for (int64_t p = pick * group; p < MIN((pick + 1) * group, n_k); p++)
            (*at)[(*n)++] = (int32_t)p;
    }
    return 0;
}
