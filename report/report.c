/*
 * report.c - the page: tables, definitions and manifests; report_figures.c adds the figures.
 */
#include "report/report.h"

#include "analyze/format.h"
#include "analyze/tables.h"
#include "core/fileio.h"
#include "core/metricdef.h"
#include "core/sealed.h"
#include "core/version.h"
#include "plots/gp.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Rows beyond which a table is written to its files only. */
#define ROWS_ON_PAGE 400

/* Rows up to which a table is open when the page is. */
#define ROWS_OPEN 60

void report_free(struct report *r)
{
    str_list_free(&r->records);
    str_list_free(&r->traces);
    str_list_free(&r->masks);
    recset_free(&r->set);
    buf_free(&r->page);
}

void base64(const void *data, size_t len, struct buf *b)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = data;
    for (size_t i = 0; i < len; i += 3) {
        unsigned n = (unsigned)p[i] << 16;
        n |= i + 1 < len ? (unsigned)p[i + 1] << 8 : 0;
        n |= i + 2 < len ? (unsigned)p[i + 2] : 0;
        char out[4] = {digits[n >> 18], digits[n >> 12 & 63], digits[n >> 6 & 63], digits[n & 63]};
        if (i + 2 >= len)
            out[3] = '=';
        if (i + 1 >= len)
            out[2] = '=';
        buf_put(b, out, 4);
    }
}

/* ---- inputs -------------------------------------------------------------------------------- */

static bool is_manifest(const char *name)
{
    return fnmatch("manifest*.json", name, 0) == 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Paths of the manifests of a directory, sorted; of a records file none. */
static void list_manifests(const char *dir, struct str_list *out)
{
    struct buf path = {0};
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!is_manifest(e->d_name))
            continue;
        buf_reset(&path);
        buf_printf(&path, "%s/%s", dir, e->d_name);
        str_list_add(out, buf_str(&path));
    }
    if (d)
        closedir(d);
    if (out->n)
        qsort(out->items, (size_t)out->n, sizeof *out->items, by_name);
    buf_free(&path);
}

/* A path of a manifest: absolute, or relative to the directory where the command ran; false when
 * nothing is there any more. */
static bool resolve(const char *path, const char *cwd, struct buf *out)
{
    struct stat st;
    buf_reset(out);
    if (path[0] != '/' && cwd)
        buf_printf(out, "%s/", cwd);
    buf_puts(out, path);
    return stat(buf_str(out), &st) == 0 && S_ISREG(st.st_mode);
}

static void add_once(struct str_list *l, const char *path)
{
    struct stat a, b;
    for (int64_t i = 0; i < l->n; i++)
        if (stat(l->items[i], &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev &&
            a.st_ino == b.st_ino)
            return;
    str_list_add(l, path);
}

static void inputs_of(const json_t *doc, struct report *r)
{
    const char *cwd = json_string_value(json_object_get(doc, "directory"));
    json_t *list = json_object_get(doc, "inputs"), *argv = json_object_get(doc, "argv");
    struct buf path = {0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *p = json_string_value(json_object_get(json_array_get(list, i), "path"));
        if (p && fnmatch("*.h5", p, 0) == 0 && resolve(p, cwd, &path))
            add_once(&r->traces, buf_str(&path));
    }
    for (size_t i = 0; i < json_array_size(argv); i++) {
        const char *word = json_string_value(json_array_get(argv, i));
        const char *p = !word                                     ? NULL
                        : strncmp(word, "--dump-masks=", 13) == 0 ? word + 13
                        : strcmp(word, "--dump-masks") == 0
                            ? json_string_value(json_array_get(argv, i + 1))
                            : NULL;
        if (p && resolve(p, cwd, &path))
            add_once(&r->masks, buf_str(&path));
    }
    buf_free(&path);
}

int report_find_inputs(struct report *r, struct err *err)
{
    struct str_list files = {0};
    json_t *doc = NULL;
    int rc = 0;
    for (int64_t i = 0; i < r->records.n; i++)
        list_manifests(r->records.items[i], &files);
    for (int64_t i = 0; i < files.n; i++) {
        TRY(seal_json_file(files.items[i], 16 << 20, &doc, err));
        inputs_of(doc, r);
        json_decref(doc);
    }
out:
    str_list_free(&files);
    return rc;
}

/* ---- tables -------------------------------------------------------------------------------- */

static int write_formats(const struct report *r, const struct table *t, struct err *err)
{
    static const struct sheet_opts view = {0};
    struct buf b = {0}, path = {0};
    int rc = 0;
    for (int i = 0; table_formats[i]; i++) {
        buf_reset(&b);
        buf_reset(&path);
        format_table(table_formats[i], t, &view, &b);
        buf_printf(&path, "%s/tables/%s%s", r->dir, t->name, table_formats[i]->suffix);
        TRY(buf_check(&b, "table", err));
        TRY(buf_check(&path, "path", err));
        TRY(file_write_atomic(buf_str(&path), b.data, b.len, err));
    }
out:
    buf_free(&b);
    buf_free(&path);
    return rc;
}

static void command_of_table(const struct report *r, const char *table, struct buf *b)
{
    buf_puts(b, "lacuna analyze");
    for (int64_t i = 0; i < r->records.n; i++) {
        buf_puts(b, " ");
        shell_word(r->records.items[i], b);
    }
    buf_printf(b, " --table %s", table);
}

static void put_table(struct report *r, const struct table *t)
{
    struct buf cmd = {0};
    buf_printf(&r->page, "<section id=\"table-%s\">\n", t->name);
    if (t->n_rows <= ROWS_ON_PAGE) {
        bool fold = t->n_rows > ROWS_OPEN;
        if (fold)
            buf_printf(&r->page, "<details><summary><strong>%s</strong> (%lld rows)</summary>",
                       t->title, (long long)t->n_rows);
        html_table(t, &r->page);
        buf_puts(&r->page, fold ? "</details>\n" : "");
    } else
        buf_printf(&r->page, "<p><strong>%s</strong>: %lld rows, in the files only.</p>\n",
                   t->title, (long long)t->n_rows);
    command_of_table(r, t->name, &cmd);
    buf_puts(&r->page, "<p class=\"notes\">");
    for (int i = 0; table_formats[i]; i++)
        buf_printf(&r->page, "<a href=\"tables/%s%s\">%s</a> ", t->name, table_formats[i]->suffix,
                   table_formats[i]->name);
    buf_puts(&r->page, "&middot; <code>");
    html_text(buf_str(&cmd), &r->page);
    buf_puts(&r->page, "</code></p>\n</section>\n");
    buf_free(&cmd);
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
    struct table t;
    struct buf path = {0};
    int rc = 0;

    buf_printf(&path, "%s/tables", r->dir);
    TRY(make_dirs(buf_str(&path), err));
    buf_puts(&r->page, "<h2 id=\"tables\">Tables</h2>\n");
    for (int i = 0; table_defs[i]; i++) {
        if (!worth_showing(table_defs[i], r))
            continue;
        rc = table_build(table_defs[i], &r->set, NULL, &t, err);
        if (rc == ERR_INPUT && strcmp(table_defs[i]->listed.name, "paper") == 0) {
            buf_puts(&r->page, "<p class=\"notes\">No comparison with printed numbers: ");
            html_text(err->msg, &r->page);
            buf_puts(&r->page, "</p>\n");
            err_clear(err);
            rc = 0;
            continue;
        }
        if (rc)
            goto out;
        rc = write_formats(r, &t, err);
        if (!rc)
            put_table(r, &t);
        table_free(&t);
        if (rc)
            goto out;
        r->n_tables++;
    }
out:
    buf_free(&path);
    return rc;
}

/* ---- definitions --------------------------------------------------------------------------- */

static bool is_used(const struct str_list *names, const struct metric_def *def)
{
    for (int64_t i = 0; i < names->n; i++)
        if (metric_def_find(names->items[i]) == def)
            return true;
    return false;
}

/* Does a record of the method have this number of its own? */
static bool method_used(const struct recset *s, const char *method, const struct metric_def *def)
{
    size_t len = strlen(def->name);
    for (int64_t i = 0; i < s->n; i++)
        for (int64_t k = 0; strcmp(s->r[i].method, method) == 0 && k < s->r[i].n_metrics; k++) {
            const char *name = s->r[i].metrics[k].name;
            if (strncmp(name, def->name, len) == 0 && (!name[len] || name[len] == '@'))
                return true;
        }
    return false;
}

static void put_definition(const char *method, const struct metric_def *def, struct buf *page)
{
    buf_puts(page, "<tr><td><code>");
    html_text(def->name, page);
    buf_puts(page, "</code></td><td>");
    html_text(def->unit, page);
    buf_puts(page, "</td><td>");
    if (method) {
        html_text(method, page);
        buf_puts(page, ": ");
    }
    html_text(def->definition, page);
    buf_puts(page, "</td></tr>\n");
}

int report_definitions(struct report *r, struct err *err)
{
    struct str_list names = {0};
    int rc = 0;
    TRY(recset_metrics(&r->set, "*", &names, err));
    buf_puts(
        &r->page,
        "<h2 id=\"definitions\">What the numbers mean</h2>\n<div class=\"wide\"><table>"
        "<caption>Definitions of the metrics in these records. i, j: query and key; A: allowed "
        "pairs; M: kept pairs; p: exact dense softmax; O, LSE: dense output and log-sum-exp; "
        "O', LSE': the method's; Delta = O' - O</caption>\n<thead><tr><th>metric</th>"
        "<th>unit</th><th>definition</th></tr></thead>\n<tbody>\n");
    for (const struct metric_def *m = metric_defs; m->name; m++)
        if (is_used(&names, m))
            put_definition(NULL, m, &r->page);
    for (const struct method *const *p = r->app->methods; *p; p++)
        for (const struct metric_def *m = (*p)->metrics; m && m->name; m++)
            if (method_used(&r->set, (*p)->name, m))
                put_definition((*p)->name, m, &r->page);
    buf_puts(&r->page,
             "</tbody></table></div>\n<p class=\"notes\">Means over heads, layers, steps, "
             "branches and prompts give every cell the same weight; \u00b1 is the standard "
             "deviation (n - 1).</p>\n");
out:
    str_list_free(&names);
    return rc;
}

/* ---- manifests ----------------------------------------------------------------------------- */

static int put_file(struct report *r, const char *path, bool open, struct err *err)
{
    struct buf b = {0};
    int rc = buf_read_file(&b, path, 16 << 20, err);
    if (!rc) {
        buf_puts(&r->page, open ? "<details open><summary><code>" : "<details><summary><code>");
        html_text(path, &r->page);
        buf_puts(&r->page, "</code></summary><pre>");
        html_text(buf_str(&b), &r->page);
        buf_puts(&r->page, "</pre></details>\n");
    }
    buf_free(&b);
    return rc;
}

int report_manifests(struct report *r, struct err *err)
{
    struct str_list files = {0};
    struct buf own = {0};
    int rc = 0;
    buf_puts(&r->page, "<h2 id=\"manifest\">Where this comes from</h2>\n");
    for (int64_t i = 0; i < r->records.n; i++)
        list_manifests(r->records.items[i], &files);
    for (int64_t i = 0; i < files.n; i++)
        TRY(put_file(r, files.items[i], true, err));
    buf_printf(&own, "%s/manifest.json", r->dir);
    TRY(put_file(r, buf_str(&own), false, err));
out:
    str_list_free(&files);
    buf_free(&own);
    return rc;
}

/* ---- page ---------------------------------------------------------------------------------- */

static void list_values(const struct recset *s, enum group_key key, const char *what, struct buf *b)
{
    struct grouping gs;
    struct buf text = {0};
    if (grouping_make(s, &key, 1, 0, NULL, NULL, &gs, NULL) != 0)
        return;
    for (int64_t i = 0; i < gs.n; i++) {
        buf_puts(&text, i ? ", " : "");
        key_text(gs.g[i].first, key, &text);
    }
    buf_printf(b, "<li>%s: ", what);
    html_text(buf_str(&text), b);
    buf_puts(b, "</li>\n");
    buf_free(&text);
    grouping_free(&gs);
}

static void put_summary(const struct report *r, struct buf *b)
{
    const struct recset *s = &r->set;
    buf_puts(b, "<ul>\n");
    list_values(s, KEY_MODEL, "models", b);
    list_values(s, KEY_N_Q, "query tokens", b);
    list_values(s, KEY_METHOD, "methods", b);
    buf_printf(b, "<li>%lld cells: %lld ok, %lld skipped, %lld failed</li>\n", (long long)s->n,
               (long long)s->n_ok, (long long)s->n_skip, (long long)s->n_error);
    buf_printf(b, "<li>lacuna %s, build ", lacuna_version());
    html_text(lacuna_build_id(), b);
    buf_puts(b, "</li>\n</ul>\n<p><a href=\"#tables\">Tables</a> &middot; ");
    if (r->n_figures)
        buf_puts(b, "<a href=\"#figures\">Figures</a> &middot; ");
    buf_puts(b, "<a href=\"#definitions\">Definitions</a> &middot; "
                "<a href=\"#manifest\">Manifest</a></p>\n");
}

int report_write(struct report *r, struct err *err)
{
    struct buf b = {0}, path = {0};
    int rc = 0;
    /* The policy makes the promise checkable: nothing is fetched, nothing runs. */
    buf_puts(&b, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                 "<meta name=\"viewport\" content=\"width=device-width\">\n"
                 "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                 "img-src data:; style-src 'unsafe-inline'\">\n<title>");
    html_text(r->title, &b);
    buf_printf(&b, "</title>\n<style>%s</style></head><body>\n<h1>", html_style);
    html_text(r->title, &b);
    buf_puts(&b, "</h1>\n");
    put_summary(r, &b);
    buf_put(&b, buf_str(&r->page), r->page.len);
    buf_puts(&b, "</body></html>\n");
    b.failed |= r->page.failed;
    TRY(buf_check(&b, "report", err));
    buf_printf(&path, "%s/index.html", r->dir);
    TRY(buf_check(&path, "path", err));
    TRY(file_write_atomic(buf_str(&path), b.data, b.len, err));
out:
    buf_free(&b);
    buf_free(&path);
    return rc;
}
