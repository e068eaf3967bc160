/*
 * report_tables.c - the tables of a report: on the page as a sheet of few columns with the whole
 * table folded below it, and as files.
 */
#include "report/report.h"

#include "analyze/format.h"
#include "analyze/tables.h"
#include "core/fileio.h"
#include "core/mem.h"

#include <string.h>

#define ROWS_OPEN 60     /* of a table that is open when the page is */
#define ROWS_ON_PAGE 400 /* of a table on the page; a longer one is in its file alone */
#define ROWS_IN_FILE                                                                               \
    20000 /* of a table in a file; the command of a longer one stands on the page */

/* Every digit as CSV, and what the page shows as LaTeX. */
static const char *const file_formats[] = {"csv", "tex"};

static int n_files(const struct table *t)
{
    return t->left_out ? 0 : t->n_rows <= ROWS_ON_PAGE ? 2 : 1;
}

static int write_files(const struct report *r, const struct table *t, struct err *err)
{
    static const struct sheet_opts view = {0};
    OWN(buf_free) struct buf b = {0}, path = {0};
    for (int i = 0; i < n_files(t); i++) {
        buf_reset(&b);
        buf_reset(&path);
        format_table(format_find(file_formats[i], err), t, &view, &b);
        buf_printf(&path, "%s/tables/%s.%s", r->dir, t->name, file_formats[i]);
        PASS_ON(buf_check(&b, "table", err));
        PASS_ON(buf_check(&path, "path", err));
        PASS_ON(file_write_atomic(buf_str(&path), b.data, b.len, err));
    }
    return 0;
}

static void put_files(const struct report *r, const struct table *t, struct buf *b)
{
    OWN(buf_free) struct buf cmd = {0};
    buf_puts(b, "<p class=\"notes files\">");
    for (int i = 0; i < n_files(t); i++)
        buf_printf(b, "<a href=\"tables/%s.%s\">%s</a> ", t->name, file_formats[i],
                   file_formats[i]);
    buf_puts(b, "</p>\n<p class=\"notes\"><code>");
    report_command(r, "analyze", &cmd);
    buf_printf(&cmd, " --table %s", t->name);
    html_text(buf_str(&cmd), b);
    buf_puts(b, "</code></p>\n");
    b->failed |= cmd.failed;
}

static void put_table(struct report *r, const struct table *t)
{
    static const struct sheet_opts brief = {0}, whole = {.wide = true};
    struct buf *b = &r->tables;
    bool fold = t->n_rows > ROWS_OPEN;
    buf_printf(b, "<section id=\"table-%s\">\n<h3>%s</h3>\n", t->name, t->name);
    if (n_files(t) == 2) {
        if (fold)
            buf_printf(b, "<details class=\"long\"><summary>%s (%lld rows)</summary>", t->title,
                       (long long)t->n_rows);
        if (html_table(t, &brief, b) < t->n_cols) {
            buf_printf(b, "<details class=\"columns\"><summary>all %lld columns</summary>",
                       (long long)t->n_cols);
            html_table(t, &whole, b);
            buf_puts(b, "</details>\n");
        }
        buf_puts(b, fold ? "</details>\n" : "");
    } else
        buf_printf(b, "<p>%s: %lld rows, %s.</p>\n", t->title, (long long)(t->n_rows + t->left_out),
                   t->left_out ? "too many for a file: the command prints them"
                               : "in the file only");
    put_files(r, t, b);
    buf_puts(b, "</section>\n");
}

static bool worth_showing(const struct table_def *def, const struct report *r)
{
    if (strcmp(def->listed.name, "by-step") == 0 && !recset_varies(&r->set, KEY_STEP))
        return false;
    if (strcmp(def->listed.name, "status") == 0 && r->set.n_skip + r->set.n_error == 0)
        return false;
    return table_has_data(def, &r->set);
}

int report_tables(struct report *r, struct err *err)
{
    const struct table_request req = {.rows_most = ROWS_IN_FILE};
    struct table t;
    OWN(buf_free) struct buf path = {0};
    buf_printf(&path, "%s/tables", r->dir);
    PASS_ON(make_dirs(buf_str(&path), err));
    buf_puts(&r->tables, "<h2 id=\"tables\">Tables</h2>\n");
    for (const struct table_def *def = table_defs; def->build; def++) {
        if (!worth_showing(def, r))
            continue;
        PASS_ON(table_build(def, &r->set, &req, &t, err));
        int rc = write_files(r, &t, err);
        if (!rc)
            put_table(r, &t);
        table_free(&t);
        PASS_ON(rc);
        r->n_tables++;
    }
    return 0;
}
