/*
 * load.c - the records of several directories (shards of one job, or different jobs) without
 * repeated cells, so that no cell counts twice in a mean. O(n) by a map of the identity keys.
 *
 * A record in a set takes some 600 bytes: texts and names of metrics are the pool's.
 */
#include "analyze/load.h"

#include "analyze/inputs.h"
#include "analyze/keys.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/sealed.h"
#include "core/strmap.h"

#include <stdlib.h>
#include <string.h>

/* ---- cells ---------------------------------------------------------------------------------- */

struct loader {
    struct recset s;
    int *source; /* owned, one for each record: the path it is from, GONE for one that is dropped */
    int64_t cap;
    struct strmap index;
    struct buf key;
    int at; /* the path that is read */
};

#define GONE (-1)

static void loader_free(struct loader *l)
{
    recset_free(&l->s);
    strmap_free(&l->index);
    buf_free(&l->key);
    free(l->source);
}

/* Within a path the last record of a cell takes the place of the one before; one of an earlier path
 * is dropped. Takes the record over. */
static int add_record(void *ctx, struct record *r, struct err *err)
{
    struct loader *l = ctx;
    struct recset *s = &l->s;
    int rc = 0;
    buf_reset(&l->key);
    record_key(r, &l->key);
    TRY(buf_check(&l->key, "record key", err));
    int64_t at = strmap_get(&l->index, buf_str(&l->key));
    if (at >= 0) {
        record_free(&s->r[at]);
        if (l->source[at] == l->at) {
            s->r[at] = *r;
            return 0;
        }
        l->source[at] = GONE;
        s->repeated++;
    }
    TRY(mem_grow(&s->r, &s->cap, s->n + 1, sizeof *s->r, "records", err));
    TRY(mem_grow(&l->source, &l->cap, s->n + 1, sizeof *l->source, "records", err));
    TRY(strmap_put(&l->index, buf_str(&l->key), s->n, err));
    l->source[s->n] = l->at;
    s->r[s->n++] = *r;
    return 0;
out:
    record_free(r);
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

/* Records of one task whose texts have the same name but not the same content tell them apart. */
static int tell_texts(struct recset *s, struct err *err)
{
    OWN(strmap_free) struct strmap tasks = {0}; /* to the first record of each */
    OWN(buf_free) struct buf task = {0};
    OWN(free_at) bool *differ = NULL;
    PASS_ON(mem_zalloc(&differ, s->n, sizeof *differ, "texts of tasks", err));
    for (int set = 0; set < 2; set++)
        for (int64_t i = 0; i < s->n; i++) {
            if (s->r[i].scope != RECORD_OF_MODEL)
                continue;
            buf_reset(&task);
            key_text(&s->r[i], KEY_TASK, &task);
            PASS_ON(buf_check(&task, "task", err));
            int64_t first = strmap_get(&tasks, buf_str(&task));
            if (first < 0)
                PASS_ON(strmap_put(&tasks, buf_str(&task), first = i, err));
            if (set)
                differ[i] = differ[first];
            else
                differ[first] = differ[first] || other_text(&s->r[first], &s->r[i]);
        }
    for (int64_t i = 0; i < s->n; i++)
        s->r[i].tells_text = differ[i];
    return 0;
}

/* Calls into an array of their own. */
static int part_calls(struct recset *s, struct err *err)
{
    int64_t n = 0, kept = 0;
    for (int64_t i = 0; i < s->n; i++)
        n += s->r[i].scope == RECORD_OF_CALL;
    if (n == 0)
        return 0;
    PASS_ON(mem_alloc(&s->calls, n, sizeof *s->calls, "records of calls", err));
    for (int64_t i = 0; i < s->n; i++)
        if (s->r[i].scope == RECORD_OF_CALL)
            s->calls[s->n_calls++] = s->r[i];
        else
            s->r[kept++] = s->r[i];
    s->n = kept;
    return 0;
}

static void find_varying(struct recset *s)
{
    s->varying = 0;
    for (int64_t i = 1; i < s->n; i++)
        for (int k = 0; k < KEY_COUNT; k++)
            if (!(s->varying >> k & 1) && key_compare(&s->r[0], &s->r[i], (enum group_key)k) != 0)
                s->varying |= (uint64_t)1 << k;
    s->keys_known = true;
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
    find_varying(s);
}

struct recset recset_calls(const struct recset *s)
{
    struct recset calls = {.r = s->calls, .n = s->n_calls};
    count_status(&calls);
    return calls;
}

int recset_all(const struct recset *s, struct recset *out, struct err *err)
{
    PASS_ON(mem_alloc(&out->r, s->n + s->n_calls, sizeof *out->r, "records", err));
    if (s->n)
        memcpy(out->r, s->r, (size_t)s->n * sizeof *s->r);
    if (s->n_calls)
        memcpy(out->r + s->n, s->calls, (size_t)s->n_calls * sizeof *s->r);
    out->n = s->n + s->n_calls;
    out->repeated = s->repeated;
    count_status(out);
    return 0;
}

/* *out takes over what was loaded. */
static int finish(struct loader *l, struct recset *out, struct err *err)
{
    struct recset *s = &l->s;
    int64_t kept = 0;
    for (int64_t i = 0; i < s->n; i++)
        if (l->source[i] != GONE)
            s->r[kept++] = s->r[i];
    s->n = kept;
    PASS_ON(part_calls(s, err));
    PASS_ON(tell_texts(s, err));
    recset_settle(s);
    *out = *s;
    *s = (struct recset){0};
    return 0;
}

int recset_from(struct record *r, int64_t n, struct recset *out, struct err *err)
{
    OWN(loader_free) struct loader l = {0};
    int rc = 0;
    for (int64_t i = 0; i < n; i++, l.at++)
        if (rc)
            record_free(&r[i]);
        else
            rc = add_record(&l, &r[i], err);
    free(r);
    rc = rc ? rc : finish(&l, out, err);
    return rc;
}

/* Numbers of a replay that has not ended are of the cells so far, which look like all of them. */
static void warn_unfinished(const char *dir)
{
    OWN(str_list_free) struct str_list found = {0};
    struct err ignored = {0};
    int rc = input_files(dir, "manifest*.json", &found, &ignored);
    for (int64_t i = 0; !rc && i < found.n; i++) {
        OWN(json_decrefp) json_t *m = NULL;
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
    }
}

int recset_load(const struct str_list *paths, struct recset *out, struct err *err)
{
    OWN(loader_free) struct loader l = {0};
    if (paths->n == 0)
        return err_set(err, ERR_USAGE,
                       "no directory with records given: pass the -o directory of a replay");
    PASS_ON(record_pool_new(&l.s.pool, err));
    for (int64_t i = 0; i < paths->n; i++, l.at++) {
        PASS_ON(input_check(paths->items[i], WANT_RECORDS, err));
        PASS_ON(records_read(paths->items[i], l.s.pool, add_record, &l, err));
    }
    for (int64_t i = 0; i < paths->n; i++)
        warn_unfinished(paths->items[i]);
    PASS_ON(shards_warn_absent(paths, ", so cells are missing", err));
    if (l.s.n == 0)
        return err_set(err, ERR_INPUT, "%s: no records%s", paths->items[0],
                       paths->n > 1 ? ", and none in the other directories" : "");
    return finish(&l, out, err);
}

void recset_free(struct recset *s)
{
    records_free(s->r, s->n);
    records_free(s->calls, s->n_calls);
    record_pool_free(&s->pool);
    *s = (struct recset){0};
}
