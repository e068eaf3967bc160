/*
 * fuzz_records.c - records.jsonl: load, write again, resume.
 */
#include "tests/fuzz/fuzz.h"
#include "core/mem.h"
#include "core/record.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    static const char *const notes[] = {"a=1;b=2", "fallback=dense", ""};
    OWN(buf_free) struct buf all = {0};
    int rc = 0;
    for (int i = 0; i < 6 && !rc; i++) {
        OWN(record_free) struct record r;
        record_init(&r);
        snprintf(r.trace, sizeof r.trace, "xxh3:%032x", i);
        record_text(&r, &r.model, "code-lm");
        snprintf(r.method, sizeof r.method, i % 2 ? "dense" : "sale");
        r.params = strdup(i % 2 ? "" : "tau=0.004:window=64");
        r.layer = i / 2;
        r.n_q = r.n_k = 770;
        r.d = 64;
        r.causal = true;
        r.status = (enum record_status)(i % 3);
        if (i % 3)
            record_text(&r, &r.reason, "because \"%d\"", i);
        rc = record_metric(&r, "density_elem", 0.125 * i, err);
        rc = rc ? rc : record_metric(&r, "err_rel", i == 2 ? INFINITY : NAN, err);
        record_note(&r, "%s", notes[i % 3]);
        record_json(&r, &all);
        OWN(buf_free) struct buf one = {0};
        record_json(&r, &one);
        if (i == 0)
            fuzz_add(c, one.data, one.len);
        fuzz_unseal(&one);
        fuzz_add(c, one.data, one.len);
    }
    fuzz_add(c, all.data, all.len);
    fuzz_unseal(&all);
    fuzz_add(c, all.data, all.len);
    return rc;
}

/* A loaded record is written and parsed again: the cell and its metrics stay what they were. */
static int check_round_trip(const struct record *r, struct err *err)
{
    struct buf line = {0}, key = {0}, again = {0};
    struct record copy;
    record_json(r, &line);
    int rc = record_parse(buf_str(&line), line.len, "copy", &copy, err);
    if (rc)
        goto out;
    record_key(r, &key);
    record_key(&copy, &again);
    if (strcmp(buf_str(&key), buf_str(&again)) != 0 || record_metrics(r) != record_metrics(&copy))
        fuzz_wild("record '%s' became '%s'", buf_str(&key), buf_str(&again));
    for (int64_t i = 0; i < record_metrics(&copy); i++) {
        double x = r->values[i], y = record_get(&copy, r->names->name[i]);
        if (x != y && !(isnan(y) && !(x > -INFINITY && x < INFINITY)))
            fuzz_wild("metric %s: %g became %g", r->names->name[i], x, y);
    }
    record_free(&copy);
out:
    if (rc)
        fuzz_wild("its own line is refused: %s", err->msg);
    buf_free(&line);
    buf_free(&key);
    buf_free(&again);
    return rc;
}

static int run(const void *data, size_t len, struct err *err)
{
    int rc = 0;
    struct record *list = NULL;
    int64_t n = 0, n2 = 0;
    struct record_file *f = NULL;
    const char *path = fuzz_file("records.jsonl", data, len);
    TRY(records_load(path, &list, &n, err));
    for (int64_t i = 0; i < n; i++) {
        struct buf text = {0};
        buf_printf(&text, "%s:%s", list[i].method, list[i].params ? list[i].params : "");
        fuzz_check_data(buf_str(&text)); /* `choose` and `eval --found` take it from here */
        buf_free(&text);
        TRY(check_round_trip(&list[i], err));
    }
    /* Resuming cuts off a torn line; one more record follows it. */
    TRY(record_file_open(path, &f, err));
    if (n > 0)
        TRY(record_file_append(f, &list[n - 1], err));
    record_file_close(&f);
    records_free(list, n);
    list = NULL;
    n2 = n;
    TRY(records_load(path, &list, &n, err));
    if (n != n2)
        fuzz_wild("%lld records became %lld", (long long)n2, (long long)n);
out:
    record_file_close(&f);
    records_free(list, n);
    return rc;
}

const struct fuzz_target fuzz_records = {"records", seeds, NULL, true, run};
