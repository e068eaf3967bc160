/*
 * report.c - what a report is made from, its definitions, and the commands that made it.
 */
#include "report/report.h"

#include "analyze/format.h"
#include "analyze/group.h"
#include "analyze/inputs.h"
#include "analyze/tables.h"
#include "core/fileio.h"
#include "core/mem.h"
#include "core/metricdef.h"
#include "core/sealed.h"
#include "plots/gp.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void report_free(struct report *r)
{
    str_list_free(&r->records);
    str_list_free(&r->traces);
    str_list_free(&r->masks);
    recset_free(&r->set);
    buf_free(&r->findings);
    buf_free(&r->explorer);
    buf_free(&r->pictures);
    buf_free(&r->tables);
    buf_free(&r->about);
}

/* ---- inputs -------------------------------------------------------------------------------- */

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
    OWN(buf_free) struct buf path = {0};
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
}

int report_find_inputs(struct report *r, struct err *err)
{
    OWN(str_list_free) struct str_list files = {0};
    json_t *doc = NULL;
    for (int64_t i = 0; i < r->records.n; i++)
        PASS_ON(input_files(r->records.items[i], "manifest*.json", &files, err));
    for (int64_t i = 0; i < files.n; i++) {
        PASS_ON(seal_json_file(files.items[i], 16 << 20, &doc, err));
        inputs_of(doc, r);
        json_decref(doc);
    }
    return 0;
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
    struct lists_met met = {0};
    size_t len = strlen(def->name);
    for (int64_t i = 0; i < s->n; i++) {
        const struct record *r = &s->r[i];
        if (strcmp(r->method, method) != 0 || !list_is_new(&met, r))
            continue;
        for (int64_t k = 0; k < record_metrics(r); k++) {
            const char *name = record_metric_name(r, k);
            if (strncmp(name, def->name, len) == 0 && (!name[len] || name[len] == '@'))
                return true;
        }
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
    OWN(str_list_free) struct str_list names = {0};
    PASS_ON(recset_metrics(&r->set, "*", &names, err));
    buf_puts(
        &r->about,
        "<h2 id=\"definitions\">What the numbers mean</h2>\n<div class=\"wide\"><table>"
        "<caption>Definitions of the metrics in these records. i, j: query and key; A: allowed "
        "pairs; M: kept pairs; p: exact dense softmax; O, LSE: dense output and log-sum-exp; "
        "O', LSE': the method's; Delta = O' - O</caption>\n<thead><tr><th>metric</th>"
        "<th>unit</th><th>definition</th></tr></thead>\n<tbody>\n");
    for (const struct metric_def *m = metric_defs; m->name; m++)
        if (is_used(&names, m))
            put_definition(NULL, m, &r->about);
    for (const struct method *const *p = r->app->methods; *p; p++)
        for (const struct metric_def *m = (*p)->metrics; m && m->name; m++)
            if (method_used(&r->set, (*p)->name, m))
                put_definition((*p)->name, m, &r->about);
    buf_puts(&r->about,
             "</tbody></table></div>\n<p class=\"notes\">Means over heads, layers, steps, "
             "branches and prompts give every cell the same weight; \u00b1 is the standard "
             "deviation (n - 1).</p>\n");
    return 0;
}

/* ---- commands and manifests ----------------------------------------------------------------- */

/* The command line of a manifest, to be typed again where it ran. */
static void put_command(const json_t *doc, struct buf *b)
{
    const json_t *argv = json_object_get(doc, "argv");
    OWN(buf_free) struct buf line = {0};
    for (size_t i = 0; i < json_array_size(argv); i++) {
        const char *word = json_string_value(json_array_get(argv, i));
        buf_puts(&line, i ? " " : "");
        shell_word(word ? word : "", &line);
    }
    html_text(buf_str(&line), b);
    buf_puts(b, line.len ? "\n" : "");
    b->failed |= line.failed;
}

static void put_file(const char *path, const struct buf *text, struct buf *b)
{
    buf_puts(b, "<details><summary><code>");
    html_text(path, b);
    buf_puts(b, "</code></summary><pre>");
    html_text(buf_str(text), b);
    buf_puts(b, "</pre></details>\n");
}

int report_manifests(struct report *r, struct err *err)
{
    OWN(str_list_free) struct str_list files = {0};
    OWN(buf_free) struct buf path = {0}, text = {0}, commands = {0}, manifests = {0};
    json_t *doc = NULL;
    for (int64_t i = 0; i < r->records.n; i++)
        PASS_ON(input_files(r->records.items[i], "manifest*.json", &files, err));
    buf_printf(&path, "%s/manifest.json", r->dir);
    str_list_add(&files, buf_str(&path));
    for (int64_t i = 0; i < files.n; i++) {
        buf_reset(&text);
        PASS_ON(buf_read_file(&text, files.items[i], 16 << 20, err));
        PASS_ON(seal_json_file(files.items[i], 16 << 20, &doc, err));
        put_command(doc, &commands);
        json_decref(doc);
        put_file(files.items[i], &text, &manifests);
    }
    buf_puts(&r->about, "<h2 id=\"manifest\">Commands and manifests</h2>\n<p>What made the records "
                        "and this page; every part above has its own command.</p>\n<pre>");
    buf_put(&r->about, buf_str(&commands), commands.len);
    buf_puts(&r->about, "</pre>\n");
    buf_put(&r->about, buf_str(&manifests), manifests.len);
    r->about.failed |= commands.failed || manifests.failed;
    return 0;
}

static int fill(const struct report_scopes *all, const struct recset *set, const struct group *g,
                struct report_scope *out, struct err *err)
{
    OWN(buf_free) struct buf word = {0};
    struct buf name = {0}, where = {0};
    PASS_ON(mem_alloc(&out->set.r, g->n, sizeof *out->set.r, "records of a scope", err));
    for (int64_t i = 0; i < g->n; i++)
        out->set.r[i] = set->r[g->at[i]];
    out->set.n = g->n;
    out->set.n_ok = g->n_ok;
    out->set.n_skip = g->n_skip;
    out->set.n_error = g->n_error;
    for (int k = 0; k < all->n_keys; k++) {
        buf_reset(&word);
        buf_printf(&word, "%s=", key_name(all->keys[k]));
        size_t value = word.len;
        key_text(g->first, all->keys[k], &word);
        buf_printf(&name, "%s%s %s", k ? ", " : "", key_name(all->keys[k]), buf_str(&word) + value);
        buf_puts(&where, " -w ");
        shell_word(buf_str(&word), &where);
    }
    out->name = name;
    out->where = where;
    return buf_check(word.failed ? &word : name.failed ? &name : &where, "name of a scope", err);
}

int report_scopes(const struct recset *set, struct report_scopes *out, struct err *err)
{
    struct report_scopes all = {0};
    struct grouping gs = {0};
    int rc = 0;
    TRY(recset_scope(set, all.keys, &all.n_keys, err));
    TRY(grouping_make(set, all.keys, all.n_keys, 0, NULL, NULL, &gs, err));
    for (int64_t i = 0; i < gs.n; i++) {
        if (all.n == SCOPES_MOST) {
            all.left_out = gs.n - i;
            break;
        }
        TRY(fill(&all, set, &gs.g[i], &all.s[all.n++], err));
    }
out:
    grouping_free(&gs);
    if (rc)
        report_scopes_free(&all);
    else
        *out = all;
    return rc;
}

void report_scopes_free(struct report_scopes *s)
{
    for (int i = 0; i < s->n; i++) {
        free(s->s[i].set.r); /* the records' own memory is the report's */
        buf_free(&s->s[i].name);
        buf_free(&s->s[i].where);
    }
    s->n = 0;
}

static void begin(struct report *r, const char *style)
{
    buf_printf(&r->findings, "<li>%s", style);
}

/* The command below a sentence; `options` is text for a shell. */
static void end(struct report *r, const struct report_scope *scope, const char *options)
{
    OWN(buf_free) struct buf c = {0};
    report_command(r, "analyze", &c);
    buf_printf(&c, "%s%s", buf_str(&scope->where), options);
    buf_puts(&r->findings, " <span class=\"cmd\"><code>");
    html_text(buf_str(&c), &r->findings);
    buf_puts(&r->findings, "</code></span></li>\n");
    r->findings.failed |= c.failed;
}

static void put_sentences(struct report *r, const struct report_scope *scope, const struct sheet *s)
{
    struct buf *b = &r->findings;
    begin(r, "");
    html_text(s->sentences.n
                  ? s->sentences.items[0]
                  : "Which method keeps the fewest pairs at a like recall cannot be said: "
                    "no two methods that keep less than everything have a median recall "
                    "p1 of 0.5 or more.",
              b);
    buf_puts(b, s->sentences.n > 1 ? "<ul>" : "");
    for (int64_t i = 1; i < s->sentences.n; i++) {
        buf_puts(b, "<li>");
        html_text(s->sentences.items[i] + strspn(s->sentences.items[i], " "), b);
        buf_puts(b, "</li>");
    }
    buf_puts(b, s->sentences.n > 1 ? "</ul>" : "");
    end(r, scope, "");
    for (int64_t i = 0; i < s->notes.n; i++)
        if (strncmp(s->notes.items[i], "! ", 2) == 0) {
            begin(r, "<span class=\"warn\">");
            html_text(s->notes.items[i] + 2, b);
            buf_puts(b, "</span>");
            end(r, scope, " --wide");
        }
}

/* Records of a model with a method inside it have tables of their own. */
static void put_inside(struct report *r, const struct report_scope *scope)
{
    int64_t n = 0;
    for (int64_t i = 0; i < scope->set.n; i++)
        n += scope->set.r[i].scope == RECORD_OF_MODEL;
    if (!n)
        return;
    begin(r, "");
    buf_printf(&r->findings,
               "%lld of the records are of a model that ran with a method inside it: the tables "
               "whose names begin with eval are of them.",
               (long long)n);
    end(r, scope, "");
}

static int put_scope(struct report *r, const struct report_scope *scope, struct err *err)
{
    static const struct sheet_opts view = {0};
    const struct table_def *summary = table_def_find("summary", err);
    struct buf *b = &r->findings;
    OWN(table_free) struct table t = {0};
    OWN(sheet_free) struct sheet s = {0};
    if (scope->name.len) {
        buf_puts(b, "<h3>");
        html_text(buf_str(&scope->name), b);
        buf_puts(b, "</h3>\n");
    }
    buf_puts(b, "<ol>\n");
    if (table_of_set(&scope->set) == summary && table_has_data(summary, &scope->set)) {
        PASS_ON(table_build(summary, &scope->set, NULL, &t, err));
        sheet_make(&t, &view, &s);
        put_sentences(r, scope, &s);
        b->failed |= s.failed;
    }
    put_inside(r, scope);
    buf_puts(b, "</ol>\n");
    return 0;
}

int report_findings(struct report *r, struct err *err)
{
    OWN(report_scopes_free) struct report_scopes scopes = {0};
    buf_puts(&r->findings, "<section class=\"findings\">\n<h2 id=\"findings\">Findings</h2>\n");
    PASS_ON(report_scopes(&r->set, &scopes, err));
    for (int i = 0; i < scopes.n; i++)
        PASS_ON(put_scope(r, &scopes.s[i], err));
    if (scopes.left_out)
        buf_printf(&r->findings,
                   "<p class=\"notes\">%lld more combinations of what no mean goes across are in "
                   "the tables only.</p>\n",
                   (long long)scopes.left_out);
    buf_puts(&r->findings, "</section>\n");
    return 0;
}
