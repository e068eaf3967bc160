/*
 * safetensors_open.c - a checkpoint from one file, or from several: <stem>.safetensors.index.json
 * names for every tensor the file that holds it.
 *
 * The file names come from outside, so only plain names of files beside the index are followed.
 * metadata.total_size is advice, not a rule.
 */
#include "core/safetensors_impl.h"
#include "core/buf.h"
#include "core/fileio.h"
#include "core/log.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

#define INDEX_MAX (64 << 20) /* bytes */
#define SHARDS_MAX 4096

/* A shard lies beside its index: a plain file name that ends in .safetensors. */
static int check_shard_name(const char *index, const char *tensor, const json_t *v, struct err *err)
{
    if (!json_is_string(v))
        return err_set(err, ERR_INPUT, "%s: weight_map of '%s' must be a file name (a string)",
                       index, tensor);
    const char *s = json_string_value(v);
    size_t len = json_string_length(v);
    if (strlen(s) != len || strchr(s, '/') || strchr(s, '\\') || strstr(s, ".."))
        return err_set(err, ERR_INPUT,
                       "%s: weight_map of '%s': '%s' must be a file name without a path", index,
                       tensor, s);
    if (len <= 12 || strcmp(s + len - 12, ".safetensors") != 0)
        return err_set(err, ERR_INPUT, "%s: weight_map of '%s': '%s' must end in .safetensors",
                       index, tensor, s);
    return 0;
}

static int by_string(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorted unique file names of the map; *names is malloc'd, the strings are borrowed from it. */
static int shard_names(const char *index, const json_t *map, const char ***names, int64_t *n,
                       struct err *err)
{
    int rc = 0;
    const char **list = NULL;
    int64_t total = (int64_t)json_object_size(map), kept = 0, i = 0;

    TRY(mem_alloc(&list, total, sizeof *list, index, err));
    for (void *it = json_object_iter((json_t *)map); it;
         it = json_object_iter_next((json_t *)map, it)) {
        TRY(check_shard_name(index, json_object_iter_key(it), json_object_iter_value(it), err));
        list[i++] = json_string_value(json_object_iter_value(it));
    }
    if (total > 1)
        qsort(list, (size_t)total, sizeof *list, by_string);
    for (i = 0; i < total; i++)
        if (i == 0 || strcmp(list[i], list[kept - 1]) != 0)
            list[kept++] = list[i];
    if (kept == 0)
        FAIL(err, ERR_INPUT, "%s: weight_map names no tensor", index);
    if (kept > SHARDS_MAX)
        FAIL(err, ERR_INPUT, "%s: %lld shards, at most %d are read", index, (long long)kept,
             SHARDS_MAX);
    *names = list;
    *n = kept;
    list = NULL;
out:
    free(list);
    return rc;
}

/* Every tensor of the map is in the shard that the map names. */
static int check_map(const struct st_file *f, const char *index, const json_t *map, struct err *err)
{
    for (void *it = json_object_iter((json_t *)map); it;
         it = json_object_iter_next((json_t *)map, it)) {
        const char *name = json_object_iter_key(it);
        const char *shard = json_string_value(json_object_iter_value(it));
        const struct st_tensor *t = st_find(f, name);
        if (!t)
            return err_set(err, ERR_INPUT, "%s: tensor '%s' is not in its shard %s", index, name,
                           shard);
        const char *path = f->shards[t->shard].path, *base = strrchr(path, '/');
        if (strcmp(base ? base + 1 : path, shard) != 0)
            return err_set(err, ERR_INPUT, "%s: tensor '%s' is in %s, not in its shard %s", index,
                           name, path, shard);
    }
    if (f->n != (int64_t)json_object_size(map))
        log_warn("%s: lists %zu tensors, its shards hold %lld", index, json_object_size(map),
                 (long long)f->n);
    return 0;
}

/* Writers disagree about what total_size counts (tensors or whole files): a difference from both is
 * worth a warning, no more. */
static void check_total_size(const struct st_file *f, const char *index, const json_t *doc)
{
    const json_t *size = json_object_get(json_object_get(doc, "metadata"), "total_size");
    double data = 0, files = 0;
    if (!json_is_number(size))
        return;
    for (int64_t i = 0; i < f->n; i++)
        data += (double)f->tensors[i].bytes;
    for (int64_t i = 0; i < f->n_shards; i++)
        files += (double)f->shards[i].size;
    if (json_number_value(size) != data && json_number_value(size) != files)
        log_warn("%s: metadata.total_size is %.17g, the tensors have %.0f bytes", index,
                 json_number_value(size), data);
}

static int open_index(const char *dir, const char *index, struct st_file **out, struct err *err)
{
    int rc = 0;
    struct st_file *f = NULL;
    json_t *doc = NULL;
    const char **names = NULL;
    int64_t n = 0;
    struct buf path = {0};

    TRY(json_read_file(index, INDEX_MAX, &doc, err));
    const json_t *map = json_object_get(doc, "weight_map");
    if (!json_is_object(map))
        FAIL(err, ERR_INPUT, "%s: 'weight_map' must be an object (tensor name -> file name)",
             index);
    TRY(shard_names(index, map, &names, &n, err));
    TRY(st_new(dir, n, &f, err));
    for (int64_t i = 0; i < n; i++) {
        buf_reset(&path);
        buf_printf(&path, "%s/%s", dir, names[i]);
        TRY(buf_check(&path, index, err));
        rc = st_add_file(f, buf_str(&path), err);
        if (rc) {
            err_prefix(err, "%s: shard %s", index, names[i]);
            goto out;
        }
    }
    TRY(st_sort(f, err));
    TRY(check_map(f, index, map, err));
    check_total_size(f, index, doc);
    *out = f;
    f = NULL;
out:
    st_close(&f);
    free(names);
    json_decref(doc);
    buf_free(&path);
    return rc;
}

int st_open(const char *path, struct st_file **out, struct err *err)
{
    int rc = 0;
    struct st_file *f = NULL;
    TRY(st_new(path, 1, &f, err));
    TRY(st_add_file(f, path, err));
    TRY(st_sort(f, err));
    *out = f;
    f = NULL;
out:
    st_close(&f);
    return rc;
}

static bool is_index(const char *path)
{
    size_t len = strlen(path);
    return len > 11 && strcmp(path + len - 11, ".index.json") == 0;
}

static int open_index_path(const char *index, struct st_file **out, struct err *err)
{
    const char *slash = strrchr(index, '/');
    char *dir = slash ? strndup(index, (size_t)(slash - index)) : strdup(".");
    int rc = dir ? open_index(dir, index, out, err) : err_set(err, ERR_NOMEM, "%s", index);
    free(dir);
    return rc;
}

int st_open_all(const char *const *paths, int64_t n, struct st_file **out, struct err *err)
{
    struct st_file *f = NULL;
    int rc = 0;

    if (n == 1 && is_index(paths[0]))
        return open_index_path(paths[0], out, err);
    if (n > SHARDS_MAX)
        return err_set(err, ERR_USAGE, "%lld files, at most %d are read", (long long)n, SHARDS_MAX);
    TRY(st_new(paths[0], n, &f, err));
    for (int64_t i = 0; i < n; i++) {
        if (is_index(paths[i]))
            FAIL(err, ERR_USAGE, "%s: an index stands alone; it names its files", paths[i]);
        TRY(st_add_file(f, paths[i], err));
    }
    TRY(st_sort(f, err));
    *out = f;
    f = NULL;
out:
    st_close(&f);
    return rc;
}

int st_open_dir(const char *dir, const char *stem, struct st_file **out, struct err *err)
{
    int rc = 0;
    struct buf index = {0}, single = {0};
    bool sharded, whole;

    buf_printf(&index, "%s/%s.safetensors.index.json", dir, stem);
    buf_printf(&single, "%s/%s.safetensors", dir, stem);
    TRY(buf_check(&index, dir, err));
    TRY(buf_check(&single, dir, err));
    TRY(io_exists(buf_str(&index), &sharded, err));
    TRY(io_exists(buf_str(&single), &whole, err));
    if (sharded)
        TRY(open_index(dir, buf_str(&index), out, err));
    else if (whole)
        TRY(st_open(buf_str(&single), out, err));
    else
        FAIL(err, ERR_INPUT, "%s: neither %s.safetensors.index.json nor %s.safetensors is there",
             dir, stem, stem);
out:
    buf_free(&index);
    buf_free(&single);
    return rc;
}
