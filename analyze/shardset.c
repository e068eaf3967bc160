/*
 * shardset.c - see shardset.h. Manifests are named after their shards (core/shard.h).
 */
#include "analyze/shardset.h"

#include "analyze/inputs.h"
#include "core/log.h"

#include <stdio.h>
#include <string.h>

/* The shard in the name of a manifest, such as 1 and 3 of DIR/manifest.1-of-3.json. */
static bool shard_of(const char *path, int64_t *index, int64_t *count)
{
    const char *name = strrchr(path, '/');
    long long i, n;
    int end = 0;
    if (sscanf(name ? name + 1 : path, "manifest.%lld-of-%lld.json%n", &i, &n, &end) != 2 || !end)
        return false;
    *index = i;
    *count = n;
    return i >= 0 && i < n;
}

static bool is_there(const struct str_list *manifests, int64_t index, int64_t count)
{
    int64_t i, n;
    for (int64_t k = 0; k < manifests->n; k++)
        if (shard_of(manifests->items[k], &i, &n) && i == index && n == count)
            return true;
    return false;
}

/* Of `count` shards those that have a manifest. */
static int64_t count_there(const struct str_list *manifests, int64_t count)
{
    int64_t there = 0, i, n;
    for (int64_t k = 0; k < manifests->n; k++) {
        if (!shard_of(manifests->items[k], &i, &n) || n != count)
            continue;
        bool seen = false; /* in a directory before this one */
        for (int64_t j = 0; j < k && !seen; j++) {
            int64_t other, of;
            seen = shard_of(manifests->items[j], &other, &of) && other == i && of == count;
        }
        there += !seen;
    }
    return there;
}

/* What these manifests lack, by the number of shards that lacks fewest. */
static struct absent_shards lacking(const struct str_list *manifests)
{
    struct absent_shards least = {0};
    for (int64_t k = 0; k < manifests->n; k++) {
        int64_t i, n;
        if (!shard_of(manifests->items[k], &i, &n))
            return (struct absent_shards){0};
        int64_t absent = n - count_there(manifests, n);
        if (k == 0 || absent < least.n)
            least = (struct absent_shards){.n = absent, .of = n};
    }
    while (least.n && is_there(manifests, least.first, least.of))
        least.first++;
    return least;
}

int shards_absent(const struct str_list *dirs, struct absent_shards *out, struct err *err)
{
    struct str_list open = {0}, found = {0};
    const char *dir = NULL;
    int rc = 0;
    for (int64_t d = 0; d < dirs->n && !rc; d++) {
        str_list_free(&found);
        rc = input_files(dirs->items[d], "manifest*.json", &found, err);
        if (rc || lacking(&found).n == 0)
            continue;
        dir = dir ? dir : dirs->items[d];
        for (int64_t k = 0; k < found.n; k++)
            str_list_add(&open, found.items[k]);
    }
    if (!rc && open.failed)
        rc = err_set(err, ERR_NOMEM, "list of shards: out of memory");
    *out = lacking(&open);
    out->dir = dir;
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
