/*
 * load.c - concatenates the record files of several directories (shards of one job, or different
 * jobs) and drops repeated cells, so that no cell counts twice in a mean. O(n log n) by sorting the
 * identity keys.
 */
#include "analyze/load.h"

#include "analyze/inputs.h"
#include "analyze/keys.h"
#include "analyze/shardset.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/sealed.h"

#include <stdlib.h>
#include <string.h>

struct keyed {
    char *key; /* owned */
    int64_t i;
};

static int by_key(const void *a, const void *b)
{
    const struct keyed *x = a, *y = b;
    int c = strcmp(x->key, y->key);
    return c ? c : (x->i > y->i) - (x->i < y->i);
}

static void free_keys(struct keyed *k, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        free(k[i].key);
    free(k);
}

/* What `text` appends for each of n records, in ascending order; those that it appends nothing for
 * are left out. *out, of *n_keys, goes to free_keys. */
static int sorted_keys(const struct record *r, int64_t n,
                       void (*text)(const struct record *, struct buf *), struct keyed **out,
                       int64_t *n_keys, struct err *err)
{
    struct keyed *k = NULL;
    struct buf b = {0};
    int64_t at = 0;
    int rc = 0;

    TRY(mem_zalloc(&k, n, sizeof *k, "record keys", err));
    for (int64_t i = 0; i < n; i++) {
        buf_reset(&b);
        text(&r[i], &b);
        TRY(buf_check(&b, "record key", err));
        if (b.len == 0)
            continue;
        k[at] = (struct keyed){strdup(buf_str(&b)), i};
        if (!k[at].key)
            FAIL(err, ERR_NOMEM, "record keys: out of memory");
        at++;
    }
    qsort(k, (size_t)at, sizeof *k, by_key);
    *out = k;
    *n_keys = at;
    k = NULL;
out:
    free_keys(k, k ? at : 0);
    buf_free(&b);
    return rc;
}

int records_repeated(const struct record *r, int64_t n, bool *drop, struct err *err)
{
    struct keyed *k = NULL;
    int64_t n_keys = 0;
    int rc = sorted_keys(r, n, record_key, &k, &n_keys, err);
    for (int64_t i = 0; i + 1 < n_keys; i++)
        drop[k[i].i] = strcmp(k[i].key, k[i + 1].key) == 0;
    free_keys(k, n_keys);
    return rc;
}

static int drop_repeated(struct recset *s, struct err *err)
{
    bool *drop = NULL;
    int64_t kept = 0;
    int rc = 0;

    TRY(mem_zalloc(&drop, s->n, sizeof *drop, "repeated cells", err));
    TRY(records_repeated(s->r, s->n, drop, err));
    for (int64_t i = 0; i < s->n; i++) {
        if (drop[i]) {
            record_free(&s->r[i]);
            s->repeated++;
        } else {
            s->r[kept++] = s->r[i];
        }
    }
    s->n = kept;
out:
    free(drop);
    return rc;
}

static void count_status(struct recset *s)
{
    s->n_ok = s->n_skip = s->n_error = s->n_calls_ok = 0;
    for (int64_t i = 0; i < s->n_calls; i++)
        s->n_calls_ok += s->calls[i].status == RECORD_OK;
    for (int64_t i = 0; i < s->n; i++) {
        s->n_ok += s->r[i].status == RECORD_OK;
        s->n_skip += s->r[i].status == RECORD_SKIP;
        s->n_error += s->r[i].status == RECORD_ERROR;
    }
}

/* Is the text of two tasks of one name another one? */
static bool other_text(const struct record *a, const struct record *b)
{
    size_t n = 0, m = 0;
    const char *x = task_hash(a, &n), *y = task_hash(b, &m);
    return x && y && (n != m || memcmp(x, y, n) != 0);
}

static void task_of(const struct record *r, struct buf *b)
{
    if (r->scope == RECORD_OF_MODEL)
        key_text(r, KEY_TASK, b);
}

/* Records of one task whose texts have the same name but not the same content tell them apart. */
static int tell_texts(struct recset *s, struct err *err)
{
    struct keyed *k = NULL;
    int64_t n = 0;
    int rc = sorted_keys(s->r, s->n, task_of, &k, &n, err);
    for (int64_t from = 0, to; from < n; from = to) {
        bool differ = false;
        for (to = from; to < n && strcmp(k[to].key, k[from].key) == 0; to++)
            differ = differ || other_text(&s->r[k[from].i], &s->r[k[to].i]);
        for (int64_t i = from; i < to; i++)
            s->r[k[i].i].tells_text = differ;
    }
    free_keys(k, n);
    return rc;
}

/* Calls into an array of their own. */
static int part_calls(struct recset *s, struct err *err)
{
    int64_t n = 0, kept = 0;
    for (int64_t i = 0; i < s->n; i++)
        n += s->r[i].scope == RECORD_OF_CALL;
    if (n == 0)
        return 0;
    int rc = mem_alloc(&s->calls, n, sizeof *s->calls, "records of calls", err);
    if (rc)
        return rc;
    for (int64_t i = 0; i < s->n; i++)
        if (s->r[i].scope == RECORD_OF_CALL)
            s->calls[s->n_calls++] = s->r[i];
        else
            s->r[kept++] = s->r[i];
    s->n = kept;
    return 0;
}

void recset_settle(struct recset *s)
{
    if (s->n == 0 && s->n_calls) {
        free(s->r);
        s->r = s->calls;
        s->n = s->cap = s->n_calls;
        s->calls = NULL;
        s->n_calls = 0;
    }
    count_status(s);
}

struct recset recset_calls(const struct recset *s)
{
    struct recset calls = {.r = s->calls, .n = s->n_calls};
    count_status(&calls);
    return calls;
}

int recset_all(const struct recset *s, struct recset *out, struct err *err)
{
    int rc = mem_alloc(&out->r, s->n + s->n_calls, sizeof *out->r, "records", err);
    if (rc)
        return rc;
    if (s->n)
        memcpy(out->r, s->r, (size_t)s->n * sizeof *s->r);
    if (s->n_calls)
        memcpy(out->r + s->n, s->calls, (size_t)s->n_calls * sizeof *s->r);
    out->n = s->n + s->n_calls;
    out->repeated = s->repeated;
    count_status(out);
    return 0;
}

int recset_from(struct record *r, int64_t n, struct recset *out, struct err *err)
{
    struct recset s = {.r = r, .n = n, .cap = n};
    int rc = drop_repeated(&s, err);
    rc = rc ? rc : part_calls(&s, err);
    rc = rc ? rc : tell_texts(&s, err);
    if (rc) {
        recset_free(&s);
        return rc;
    }
    recset_settle(&s);
    *out = s;
    return 0;
}

/* Append the records of one path. */
static int append(const char *path, struct recset *s, struct err *err)
{
    struct record *r = NULL;
    int64_t n = 0;
    int rc = input_check(path, WANT_RECORDS, err);
    if (!rc)
        rc = records_load(path, &r, &n, err);
    if (rc)
        return rc;
    rc = mem_grow(&s->r, &s->cap, s->n + n, sizeof *s->r, "records", err);
    if (rc) {
        records_free(r, n);
        return rc;
    }
    if (n)
        memcpy(s->r + s->n, r, (size_t)n * sizeof *r);
    s->n += n;
    free(r); /* the records themselves have moved */
    return 0;
}

/* Numbers of a replay that has not ended are of the cells so far, which look like all of them. */
static void warn_unfinished(const char *dir)
{
    struct str_list found = {0};
    struct err ignored = {0};
    int rc = input_files(dir, "manifest*.json", &found, &ignored);
    for (int64_t i = 0; !rc && i < found.n; i++) {
        json_t *m = NULL;
        const char *status = NULL;
        if (seal_json_file(found.items[i], (size_t)64 << 20, &m, &ignored) == 0)
            status = json_string_value(json_object_get(m, "status"));
        if (status && strcmp(status, "ok") != 0) {
            log_warn("%s: its run %s, so cells may be missing (`lacuna status` counts them)", dir,
                     strcmp(status, "running") == 0  ? "is at work or was killed"
                     : strcmp(status, "failed") == 0 ? "failed"
                                                     : "was interrupted");
            i = found.n;
        }
        json_decref(m);
    }
    str_list_free(&found);
}

int recset_load(const struct str_list *paths, struct recset *out, struct err *err)
{
    struct recset s = {0};
    int rc = 0;

    if (paths->n == 0)
        FAIL(err, ERR_USAGE, "no directory with records given: pass the -o directory of a replay");
    for (int64_t i = 0; i < paths->n; i++)
        TRY(append(paths->items[i], &s, err));
    for (int64_t i = 0; i < paths->n; i++)
        warn_unfinished(paths->items[i]);
    TRY(shards_warn_absent(paths, ", so cells are missing", err));
    if (s.n == 0)
        FAIL(err, ERR_INPUT, "%s: no records%s", paths->items[0],
             paths->n > 1 ? ", and none in the other directories" : "");
    struct record *r = s.r;
    int64_t n = s.n;
    s = (struct recset){0};
    return recset_from(r, n, out, err);
out:
    recset_free(&s);
    return rc;
}

void recset_free(struct recset *s)
{
    records_free(s->r, s->n);
    records_free(s->calls, s->n_calls);
    *s = (struct recset){0};
}
