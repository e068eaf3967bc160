/*
 * explain.c - a cell of a page, from the page's JSON file.
 */
#include "analyze/explain.h"

#include "core/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct cell_name {
    char file[64], row[200], column[200];
};

/* "PAPER:ITEM:ROW:COLUMN"; a column may hold more colons. */
static int split(const char *what, struct cell_name *n, struct err *err)
{
    const char *a = strchr(what, ':'), *b = a ? strchr(a + 1, ':') : NULL;
    const char *c = b ? strchr(b + 1, ':') : NULL;
    if (!c || b - what >= (long)sizeof n->file || c - b > (long)sizeof n->row ||
        strlen(c) > sizeof n->column)
        return err_set(err, ERR_USAGE,
                       "--explain %s: a cell is PAPER:ITEM:ROW:COLUMN, as in "
                       "spargeattn:9:HilbertCurve:Sparsity/video-dit",
                       what);
    snprintf(n->file, sizeof n->file, "%.*s-%.*s", (int)(a - what), what, (int)(b - a - 1), a + 1);
    snprintf(n->row, sizeof n->row, "%.*s", (int)(c - b - 1), b + 1);
    snprintf(n->column, sizeof n->column, "%s", c + 1);
    return 0;
}

static const char *text_of(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_string(v) ? json_string_value(v) : "";
}

static const json_t *find_cell(const json_t *page, const struct cell_name *n, struct err *err)
{
    struct names rows = {0}, columns = {0};
    bool has_row = false;
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(page, "cells"), i, c)
    {
        bool row = strcmp(text_of(c, "row"), n->row) == 0;
        if (row && strcmp(text_of(c, "column"), n->column) == 0)
            return c;
        has_row = has_row || row;
        if (!rows.n || strcmp(rows.items[rows.n - 1], text_of(c, "row")) != 0)
            names_add(&rows, text_of(c, "row"));
        if (row)
            names_add(&columns, text_of(c, "column"));
    }
    if (json_array_size(json_object_get(page, "cells")) == 0) {
        err_set(err, ERR_USAGE, "--explain: %s has no table, and so no cells",
                text_of(page, "title"));
        return NULL;
    }
    names_unknown(has_row ? &columns : &rows, has_row ? "column" : "row",
                  has_row ? n->column : n->row, err);
    return NULL;
}

static void put_list(struct buf *b, const char *head, const json_t *list)
{
    size_t i;
    json_t *v;
    buf_printf(b, "%s\n", head);
    json_array_foreach(list, i, v)
        buf_printf(b, "  %s\n", json_is_string(v) ? json_string_value(v) : "");
}

/* What the number is a mean over: heads, layers, prompts of an eval; or what a search found. */
static void put_sample(const json_t *c, struct buf *b)
{
    long long units = json_integer_value(json_object_get(c, "units"));
    long long calls = json_integer_value(json_object_get(c, "calls"));
    const char *of = text_of(c, "of"), *metric = text_of(c, "metric");
    int one = (int)strlen(of) - 1; /* without its s */
    if (strcmp(of, "prompts of a calibration") == 0) {
        buf_printf(b, ") of %lld search%s over %lld prompts\n", calls, calls == 1 ? "" : "es",
                   units);
        buf_printf(b, "formula    %s, the value that all heads share\n", metric);
        return;
    }
    bool of_calls = strcmp(of, "prompts") != 0;
    const char *stat = text_of(c, "stat"), *parts = of_calls ? "calls" : "records";
    buf_printf(b, ") over %lld %s, %lld %s\n", units, of, calls, parts);
    buf_printf(b, "formula    %s", metric);
    if (text_of(c, "second_metric")[0])
        buf_printf(b, "; then %s (%.6g)", text_of(c, "second_metric"),
                   json_number_value(json_object_get(c, "second")));
    if (strcmp(stat, "calls") == 0)
        buf_printf(b, ", mean over all %s\n", parts);
    else
        buf_printf(b, ", mean of each %.*s's %s first, then %s %s\n", one, of, parts,
                   strcmp(stat, "sum-over-layers") == 0 ? "every metric summed over"
                   : strcmp(stat, "min") == 0           ? "the least of the"
                   : strcmp(stat, "max") == 0           ? "the largest of the"
                                                        : "over",
                   of);
}

/* Which records, in the words of the recipe. */
static void put_filter(const json_t *c, struct buf *b)
{
    const json_t *pairs = json_object_get(c, "pairs"), *cases = json_object_get(pairs, "cases");
    const char *where = text_of(c, "where");
    buf_printf(b, "filter     job %s%s%s\n", text_of(c, "job"), where[0] ? ", " : "", where);
    if (pairs)
        buf_printf(b, "           calls where %s of '%s' and of '%s' differ by more than %.6g\n",
                   text_of(pairs, "metric"), json_string_value(json_array_get(cases, 0)),
                   json_string_value(json_array_get(cases, 1)),
                   json_number_value(json_object_get(pairs, "above")));
}

static void put_cell(const json_t *page, const json_t *c, struct buf *b)
{
    buf_printf(b, "%s, row %s, column %s\n", text_of(page, "title"), text_of(c, "row"),
               text_of(c, "column"));
    buf_printf(b, "printed    %s\n", text_of(c, "printed")[0] ? text_of(c, "printed") : "nothing");
    if (text_of(c, "reason")[0])
        buf_printf(b, "reason     %s\n", text_of(c, "reason"));
    if (text_of(c, "ours")[0]) {
        buf_printf(b, "ours       %s (%.6g", text_of(c, "ours"),
                   json_number_value(json_object_get(c, "value")));
        if (json_is_number(json_object_get(c, "lo")))
            buf_printf(b, ", 95 %% interval %.6g to %.6g",
                       json_number_value(json_object_get(c, "lo")),
                       json_number_value(json_object_get(c, "hi")));
        put_sample(c, b);
        put_filter(c, b);
        buf_printf(b, "model      %s, weights %s\n", text_of(c, "model"), text_of(c, "weights"));
        buf_printf(b, "state      %s%s%s\n", text_of(c, "state"),
                   text_of(c, "letters")[0] ? ", letters " : "", text_of(c, "letters"));
        put_list(b, "folders in DIR/jobs:", json_object_get(c, "folders"));
        put_list(
            b, "commands of this page, in order (in DIR/jobs):", json_object_get(page, "commands"));
    }
}

int explain_print(const struct str_list *dirs, const char *what, bool json, struct err *err)
{
    struct cell_name n;
    struct buf path = {0}, b = {0};
    struct jw w;
    json_t *page = NULL;
    int rc = 0;

    TRY(split(what, &n, err));
    if (dirs->n != 1)
        FAIL(err, ERR_USAGE, "--explain wants one DIR, that of lacuna reproduce -o");
    buf_printf(&path, "%s/pages/%s.json", dirs->items[0], n.file);
    TRY(buf_check(&path, "path", err));
    TRY(json_read_file(buf_str(&path), (size_t)256 << 20, &page, err));
    const json_t *cell = find_cell(page, &n, err);
    if (!cell) {
        rc = err->code;
        goto out;
    }
    if (json) {
        jw_init(&w, &b, 1);
        jw_value(&w, cell);
        buf_puts(&b, "\n");
    } else {
        put_cell(page, cell, &b);
    }
    TRY(buf_check(&b, "explanation", err));
    if (fwrite(b.data, 1, b.len, stdout) != b.len)
        rc = err_sys(err, ERR_IO, "standard output");
out:
    json_decref(page);
    buf_free(&path);
    buf_free(&b);
    return rc;
}
