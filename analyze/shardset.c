/*
 * shardset.c - see shardset.h. Manifests are named after their shards (core/shard.h).
 */
#include "analyze/shardset.h"

#include "analyze/inputs.h"
#include "core/log.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct shard_number {
    int64_t count, index;
};

/* The shard in the name of a manifest, such as 1 of 3 in DIR/manifest.1-of-3.json. */
static bool shard_of(const char *path, struct shard_number *out)
{
    const char *name = strrchr(path, '/');
    long long i, n;
    int end = 0;
    if (sscanf(name ? name + 1 : path, "manifest.%lld-of-%lld.json%n", &i, &n, &end) != 2 || !end)
        return false;
    *out = (struct shard_number){n, i};
    return i >= 0 && i < n;
}

static int by_number(const void *a, const void *b)
{
    const struct shard_number *x = a, *y = b;
    if (x->count != y->count)
        return x->count < y->count ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* What lacks of the run of x[0].count shards, whose numbers are ascending; *end is the first of
 * another run. */
static struct absent_shards lacking_of(const struct shard_number *x, int64_t n, int64_t *end)
{
    struct absent_shards a = {.n = x->count, .of = x->count};
    int64_t i = 0;
    for (; i < n && x[i].count == x->count; i++) {
        a.n -= i == 0 || x[i].index != x[i - 1].index; /* several directories may have it */
        a.first += x[i].index == a.first;
    }
    *end = i;
    return a;
}

/* What these manifests lack, by the number of shards that lacks fewest. */
static int lacking(const struct str_list *manifests, struct absent_shards *least, struct err *err)
{
    struct shard_number *x = NULL;
    int64_t n = manifests->n, length;
    int rc = mem_alloc(&x, n, sizeof *x, "numbers of shards", err);
    *least = (struct absent_shards){0};
    for (int64_t k = 0; k < n && !rc; k++)
        if (!shard_of(manifests->items[k], x + k))
            n = 0; /* of an undivided run */
    if (!rc)
        qsort(x, (size_t)n, sizeof *x, by_number);
    for (int64_t i = 0; i < n && !rc; i += length) {
        struct absent_shards a = lacking_of(x + i, n - i, &length);
        if (i == 0 || a.n < least->n)
            *least = a;
    }
    free(x);
    return rc;
}

int shards_absent(const struct str_list *dirs, struct absent_shards *out, struct err *err)
{
    struct str_list open = {0}, found = {0};
    const char *dir = NULL;
    int rc = 0;
    for (int64_t d = 0; d < dirs->n; d++) {
        str_list_free(&found);
        TRY(input_files(dirs->items[d], "manifest*.json", &found, err));
        TRY(lacking(&found, out, err));
        if (out->n == 0)
            continue;
        dir = dir ? dir : dirs->items[d];
        for (int64_t k = 0; k < found.n; k++)
            str_list_add(&open, found.items[k]);
    }
    if (open.failed)
        FAIL(err, ERR_NOMEM, "list of shards: out of memory");
    TRY(lacking(&open, out, err));
    out->dir = dir;
out:
    str_list_free(&found);
    str_list_free(&open);
    return rc;
}

int shards_warn_absent(const struct str_list *dirs, const char *so, struct err *err)
{
    struct absent_shards a;
    int rc = shards_absent(dirs, &a, err);
    if (rc || a.n == 0)
        return rc;
    if (a.n == 1)
        log_warn("%s: shard %lld of %lld has not been started there%s", a.dir, (long long)a.first,
                 (long long)a.of, so);
    else
        log_warn("%s: %lld of %lld shards, such as %lld, have not been started there%s", a.dir,
                 (long long)a.n, (long long)a.of, (long long)a.first, so);
    return 0;
}
