/*
 * report_findings.c - what the records say, first on the page: the sentences and warnings of the
 * table summary (analyze/findings.c) of each scope, with the command that shows the same.
 */
#include "report/report.h"

#include "analyze/format.h"
#include "analyze/tables.h"

#include <string.h>

static void begin(struct report *r, const char *style)
{
    buf_printf(&r->findings, "<li>%s", style);
    r->n_findings++;
}

/* The command below a sentence; `options` is text for a shell. */
static void end(struct report *r, const struct report_scope *scope, const char *options)
{
    struct buf c = {0};
    report_command(r, "analyze", &c);
    buf_printf(&c, "%s%s", scope->where, options);
    buf_puts(&r->findings, " <span class=\"cmd\"><code>");
    html_text(buf_str(&c), &r->findings);
    buf_puts(&r->findings, "</code></span></li>\n");
    r->findings.failed |= c.failed;
    buf_free(&c);
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
    const struct table_request req = {.methods = r->app->methods};
    struct buf *b = &r->findings;
    struct table t = {0};
    struct sheet s = {0};
    int rc = 0;
    if (scope->name[0]) {
        buf_puts(b, "<h3>");
        html_text(scope->name, b);
        buf_puts(b, "</h3>\n");
    }
    buf_puts(b, "<ol>\n");
    if (table_of_set(&scope->set) == summary && table_has_data(summary, &scope->set)) {
        TRY(table_build(summary, &scope->set, &req, &t, err));
        sheet_make(&t, &view, &s);
        put_sentences(r, scope, &s);
        b->failed |= s.failed;
    }
    put_inside(r, scope);
    buf_puts(b, "</ol>\n");
out:
    sheet_free(&s);
    table_free(&t);
    return rc;
}

int report_findings(struct report *r, struct err *err)
{
    struct report_scopes scopes = {0};
    int rc = 0;
    buf_puts(&r->findings, "<section class=\"findings\">\n<h2 id=\"findings\">Findings</h2>\n");
    TRY(report_scopes(&r->set, &scopes, err));
    for (int i = 0; i < scopes.n; i++)
        TRY(put_scope(r, &scopes.s[i], err));
    if (scopes.left_out)
        buf_printf(&r->findings,
                   "<p class=\"notes\">%lld more combinations of what no mean goes across are in "
                   "the tables only.</p>\n",
                   (long long)scopes.left_out);
    buf_puts(&r->findings, "</section>\n");
out:
    report_scopes_free(&scopes);
    return rc;
}
