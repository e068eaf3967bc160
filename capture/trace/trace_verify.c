/*
 * trace_verify.c - every stored checksum against the payload, by several threads: one item is one
 * head of one dataset.
 */
#include "core/trace_internal.h"

#include "core/mem.h"
#include "core/pool.h"
#include "core/progress.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERIFY_BLOCK (4 << 20)

struct item {
    int64_t call; /* -1 = of the run */
    const struct trace_array *array;
    int64_t slice;
};

struct verify {
    const struct trace *t;
    struct item *items; /* owned */
    int64_t n, cap;
    trace_bad_fn *bad;
    void *ctx;
    int64_t n_bad;
    struct progress *progress;
    pthread_mutex_t lock;
};

static int add_items(struct verify *v, int64_t call, const struct trace_array *a, struct err *err)
{
    if (!a->present)
        return 0;
    PASS_ON(mem_grow(&v->items, &v->cap, v->n + a->slices, sizeof *v->items, "objects", err));
    for (int64_t s = 0; s < a->slices; s++)
        v->items[v->n++] = (struct item){call, a, s};
    return 0;
}

static void report(struct verify *v, const char *object, int head, const char *what)
{
    pthread_mutex_lock(&v->lock);
    v->n_bad++;
    if (v->bad)
        v->bad(v->ctx, object, head, what);
    pthread_mutex_unlock(&v->lock);
}

/* Whole chunks at a time, so that a packed one is unpacked once. */
static int64_t block_rows(const struct trace_array *a)
{
    int64_t rows = VERIFY_BLOCK / a->row_bytes + 1;
    if (a->storage != TRACE_CONTIGUOUS)
        rows = rows < a->chunk_rows ? a->chunk_rows : rows / a->chunk_rows * a->chunk_rows;
    return rows < a->rows ? rows : a->rows;
}

static int hash_slice(struct verify *v, const struct item *it, struct hash128 *out, struct err *err)
{
    const struct trace_array *a = it->array;
    int64_t step = block_rows(a);
    OWN(hash_free_at) struct hash_state *h = NULL;
    OWN(free_at) void *buf = NULL;
    PASS_ON(mem_alloc(&buf, step, (size_t)a->row_bytes, "block to verify", err));
    PASS_ON(hash_new(&h, err));
    for (int64_t row = 0; row < a->rows; row += step) {
        int64_t n = a->rows - row < step ? a->rows - row : step;
        PASS_ON(trace_read_rows(v->t, it->call, a, it->slice, row, n, buf, err));
        hash_update(h, buf, (size_t)(n * a->row_bytes));
        progress_add(v->progress, (double)(n * a->row_bytes), row + n == a->rows, a->name);
    }
    *out = hash_digest(h);
    return 0;
}

static int verify_item(void *ctx, int64_t i, int worker, struct err *err)
{
    struct verify *v = ctx;
    const struct item *it = &v->items[i];
    const struct trace_array *a = it->array;
    struct hash128 have = {0};
    struct err why = {0};
    char path[DATASET_PATH_MAX], text[HASH_TEXT_MAX], want[HASH_TEXT_MAX];
    int rc = hash_slice(v, it, &have, &why);
    (void)worker;
    trace_dataset_path(v->t, it->call, a, path);
    if (rc == ERR_INPUT) {
        report(v, path, (int)it->slice, why.msg); /* a chunk that cannot be unpacked */
        return 0;
    }
    if (rc)
        return err_set(err, rc, "%s", why.msg);
    if (!hash_equal(have, a->sums[it->slice])) {
        hash_text(a->sums[it->slice], want);
        hash_text(have, text);
        char what[160];
        snprintf(what, sizeof what, "checksum is %s, stored is %s", text, want);
        report(v, path, (int)it->slice, what);
    }
    return 0;
}

int trace_extent(const struct trace *t, struct trace_extent *out, struct err *err)
{
    *out = (struct trace_extent){.stored = t->file_size};
    for (int64_t i = -1; i < t->n_calls; i++) {
        const struct trace_array *a = i < 0 ? t->run : t->calls[i].arr;
        for (int j = 0; j < (i < 0 ? RUN_ARRAYS : CALL_ARRAYS); j++) {
            if (!a[j].present)
                continue;
            out->objects++;
            if (!add_ok(out->bytes, a[j].bytes, &out->bytes))
                return err_set(err, ERR_INPUT, "%s: total size overflows", t->path);
        }
    }
    return 0;
}

int trace_verify(const struct trace *t, int jobs, trace_bad_fn *bad, void *ctx, int64_t *n_bad,
                 struct err *err)
{
    struct verify v = {.t = t, .bad = bad, .ctx = ctx};
    struct trace_extent extent;
    int rc = 0;
    pthread_mutex_init(&v.lock, NULL);
    if (strcmp(t->id, t->stored_id) != 0)
        report(&v, "/", -1,
               "the content id does not fit metadata and checksums: an attribute or a "
               "checksum was changed");
    TRY(trace_extent(t, &extent, err));
    for (int64_t i = -1; i < t->n_calls; i++)
        for (int j = 0; j < (i < 0 ? RUN_ARRAYS : CALL_ARRAYS); j++)
            TRY(add_items(&v, i, i < 0 ? &t->run[j] : &t->calls[i].arr[j], err));
    v.progress = progress_start("verify", (double)extent.bytes, v.n);
    rc = pool_run(jobs, v.n, verify_item, &v, err);
    *n_bad = v.n_bad;
out:
    progress_end(&v.progress);
    pthread_mutex_destroy(&v.lock);
    free(v.items);
    return rc;
}
