/*
 * findings.c - what the records say, in sentences that stand first in a report: the setting that
 * keeps the fewest pairs at a like recall, the cheapest setting of every head within an error, the
 * settings that no other beats, the fastest one, and those that say nothing because they keep
 * everything. Every sentence has its n and the command that shows the same numbers.
 *
 * The first and the last are those below the table summary (analyze/sheet_say.c), the second is
 * `lacuna choose`, the third the figure pareto: a report computes nothing of its own that these
 * would say differently.
 */
#include "report/report.h"

#include "analyze/choose.h"
#include "analyze/format.h"
#include "analyze/metricfacts.h"
#include "analyze/tables.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One setting of a scope: a row of the table summary. */
struct row {
    const char *method, *params;
    const struct stats *kept, *error, *speedup; /* NULL: no such column or value */
    bool bound, full;                           /* of no kernel; keeps every pair of every cell */
};

struct findings {
    struct report *r;
    const struct report_scope *scope;
    struct buf *b;
    struct row *rows; /* owned */
    int64_t n_rows;
    int n;
};

/* ---- sentences ------------------------------------------------------------------------------ */

static void begin(struct findings *f)
{
    buf_puts(f->b, "<li>");
    f->n++;
}

/* The command below a sentence; `options` is text for a shell. */
static void end(struct findings *f, const char *command, const char *options)
{
    struct buf c = {0};
    report_command(f->r, command, &c);
    buf_printf(&c, "%s%s", f->scope->where, options);
    buf_puts(f->b, " <span class=\"cmd\"><code>");
    html_text(buf_str(&c), f->b);
    buf_puts(f->b, "</code></span></li>\n");
    f->b->failed |= c.failed;
    buf_free(&c);
}

static void put_setting(const struct row *x, struct buf *b)
{
    buf_puts(b, "<b>");
    html_text(x->method, b);
    buf_puts(b, "</b>");
    if (x->params[0]) {
        buf_puts(b, " (");
        html_text(x->params, b);
        buf_puts(b, ")");
    }
}

/* A share as people say it; none that is not the whole is written 100 %. */
static void put_percent(double x, struct buf *b)
{
    char text[32];
    snprintf(text, sizeof text, "%.3g", 100 * x);
    buf_printf(b, "%s%s %%", x < 1 && strcmp(text, "100") == 0 ? "more than 99." : "",
               x < 1 && strcmp(text, "100") == 0 ? "9" : text);
}

/* ---- rows ----------------------------------------------------------------------------------- */

static const struct stats *stats_at(const struct table *t, int64_t row, const char *column)
{
    int64_t c = table_find(t, column);
    return c >= 0 && table_cell(t, row, c)->set ? &table_cell(t, row, c)->stats : NULL;
}

static const char *text_at(const struct table *t, int64_t row, const char *column)
{
    int64_t c = table_find(t, column);
    const char *text = c >= 0 && table_cell(t, row, c)->set ? table_cell(t, row, c)->text : NULL;
    return text ? text : "";
}

/* The rows of a table summary. Of a method that ran some steps dense by its own schedule the row of
 * the sparse steps stands for it, as in the figure pareto. */
static int read_rows(struct findings *f, const struct table *t, struct err *err)
{
    int rc = mem_alloc(&f->rows, t->n_rows, sizeof *f->rows, "settings", err);
    for (int64_t i = 0; !rc && i < t->n_rows; i++) {
        struct row x = {text_at(t, i, "method"),
                        text_at(t, i, "params"),
                        stats_at(t, i, "density_elem"),
                        stats_at(t, i, "err_l1_rel"),
                        stats_at(t, i, "speedup"),
                        false,
                        false};
        x.bound = strcmp(x.method, "dense") == 0 || sheet_is_bound(t, x.method);
        x.full = x.kept && sheet_keeps_all(x.kept);
        if (strcmp(text_at(t, i, "steps"), "sparse") == 0 && f->n_rows)
            f->n_rows--;
        f->rows[f->n_rows++] = x;
    }
    return rc;
}

/* ---- the fewest pairs at a like recall ------------------------------------------------------ */

static void fewest_pairs(struct findings *f, const struct sheet *s)
{
    const struct row *best = NULL;
    for (int64_t i = 0; i < f->n_rows; i++)
        if (!f->rows[i].bound && !f->rows[i].full && f->rows[i].kept)
            best = &f->rows[i];
    if (!best)
        return;
    begin(f);
    if (s->sentences.n) {
        html_text(s->sentences.items[0], f->b);
        buf_puts(f->b, "<ul>");
        for (int64_t i = 1; i < s->sentences.n; i++) {
            buf_puts(f->b, "<li>");
            html_text(s->sentences.items[i] + 2, f->b);
            buf_puts(f->b, "</li>");
        }
        buf_puts(f->b, "</ul>");
    } else
        buf_puts(f->b,
                 "Which method keeps the fewest pairs at a like recall cannot be said: no two "
                 "methods that keep less than everything have a median recall p1 of 0.5 or "
                 "more.");
    end(f, "analyze", "");
}

/* ---- the cheapest setting of every head ----------------------------------------------------- */

struct winner {
    const char *method;
    int64_t heads;
};

struct winners {
    json_t *plan;
    struct choose_summary sum;
    double limit;
    struct winner w[64];
    int n;
};

static int plan_of(const struct recset *set, double limit, enum choose_per per, json_t **plan,
                   struct choose_summary *sum, struct err *err)
{
    struct choose_request req = {.limits = {{.metric = "err_l1_rel", .value = limit}},
                                 .n_limits = 1,
                                 .cost = "density_elem",
                                 .per = per,
                                 .quantile = 1};
    struct buf b = {0};
    struct jw w;
    int rc = 0;
    jw_init(&w, &b, 0);
    TRY(choose_plan(set, &req, &w, sum, err));
    TRY(buf_check(&b, "plan", err));
    *plan = json_loadb(b.data, b.len, 0, NULL);
    if (!*plan)
        FAIL(err, ERR_NOMEM, "plan: out of memory");
out:
    buf_free(&b);
    return rc;
}

static int by_heads(const void *a, const void *b)
{
    const struct winner *x = a, *y = b;
    if (x->heads != y->heads)
        return x->heads < y->heads ? 1 : -1;
    return strcmp(x->method, y->method);
}

static void count_winners(struct winners *w)
{
    const json_t *entries = json_object_get(w->plan, "entries");
    for (size_t i = 0; i < json_array_size(entries); i++) {
        const char *m = json_string_value(json_object_get(json_array_get(entries, i), "method"));
        int k = 0;
        if (!m || strcmp(m, "dense") == 0)
            continue;
        while (k < w->n && strcmp(w->w[k].method, m) != 0)
            k++;
        if (k == (int)(sizeof w->w / sizeof *w->w))
            continue;
        w->w[k].method = m;
        w->w[k].heads++;
        w->n += k == w->n;
    }
    qsort(w->w, (size_t)w->n, sizeof *w->w, by_heads);
}

/* The smallest error within which half of the heads have a setting, else the largest. */
static int find_winners(const struct recset *set, struct winners *w, struct err *err)
{
    static const double limits[] = {0.01, 0.02, 0.05, 0.1, 0.2};
    int rc = 0;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        json_decref(w->plan);
        w->plan = NULL;
        w->limit = limits[i];
        TRY(plan_of(set, w->limit, CHOOSE_HEAD, &w->plan, &w->sum, err));
        if (2 * w->sum.dense <= w->sum.heads)
            break;
    }
    count_winners(w);
out:
    return rc;
}

static int put_uniform(struct findings *f, double limit, struct err *err)
{
    struct choose_summary sum;
    json_t *plan = NULL;
    int rc = plan_of(&f->scope->set, limit, CHOOSE_MODEL, &plan, &sum, err);
    if (rc)
        return rc;
    const json_t *first = json_array_get(json_object_get(plan, "entries"), 0);
    const char *method = json_string_value(json_object_get(first, "method"));
    const char *params = json_string_value(json_object_get(first, "params"));
    if (sum.dense || !method)
        buf_puts(f->b, "No single setting stays within this error on every head.");
    else {
        struct row x = {.method = method, .params = params ? params : ""};
        buf_puts(f->b, "The cheapest single setting for all heads, ");
        put_setting(&x, f->b);
        buf_puts(f->b, ", keeps ");
        put_percent(sum.cost, f->b);
        buf_puts(f->b, ".");
    }
    json_decref(plan);
    return 0;
}

static int winner_per_head(struct findings *f, struct err *err)
{
    struct winners w = {0};
    char options[96];
    int rc = find_winners(&f->scope->set, &w, err);
    if (rc == ERR_INPUT) { /* several token orders, no parameters that a plan can name, ... */
        begin(f);
        buf_puts(f->b, "A winner per head cannot be named: ");
        html_text(err->msg, f->b);
        buf_puts(f->b, "</li>\n");
        err_clear(err);
        json_decref(w.plan);
        return 0;
    }
    if (rc)
        goto out;
    begin(f);
    buf_printf(f->b, "With error L1 of at most %g %%, the cheapest setting is one ", 100 * w.limit);
    for (int i = 0; i < w.n; i++) {
        buf_puts(f->b, i ? ", " : "of ");
        struct row x = {.method = w.w[i].method, .params = ""};
        put_setting(&x, f->b);
        buf_printf(f->b, " on %lld%s", (long long)w.w[i].heads, i ? "" : " heads");
    }
    buf_printf(f->b, "%s%lld of %lld heads stay dense. ",
               w.n ? "; " : "of no method: ", (long long)w.sum.dense, (long long)w.sum.heads);
    if (w.n) {
        buf_puts(f->b, "A setting per head keeps ");
        put_percent(w.sum.cost, f->b);
        buf_puts(f->b, " of the pairs (mean over heads). ");
        TRY(put_uniform(f, w.limit, err));
    }
    snprintf(options, sizeof options, " --limit 'err_l1_rel<=%g' --cost density_elem -o plan.json",
             w.limit);
    end(f, "choose", options);
out:
    json_decref(w.plan);
    return rc;
}

/* ---- settings that no other beats ----------------------------------------------------------- */

/* As in the figure pareto: means over cells; sums of floats differ by rounding. */
static bool beaten_by(const struct row *a, const struct row *b)
{
    double x = b->kept->mean - a->kept->mean, y = b->error->mean - a->error->mean;
    const double least = 1e-12, rounding = 1e-6;
    return x <= least && y <= rounding && (x < -least || y < -rounding);
}

static bool competes(const struct row *x)
{
    return !x->bound && !x->full && x->kept && x->error && x->kept->n && x->error->n;
}

static bool is_beaten(const struct findings *f, const struct row *x)
{
    for (int64_t i = 0; i < f->n_rows; i++)
        if (competes(&f->rows[i]) && beaten_by(x, &f->rows[i]))
            return true;
    return false;
}

#define UNBEATEN_SHOWN 8

static int by_kept(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    double p = x->kept ? x->kept->mean : INFINITY, q = y->kept ? y->kept->mean : INFINITY;
    return (p > q) - (p < q);
}

static void unbeaten(struct findings *f)
{
    int64_t n_in = 0, n = 0, cells = 0;
    for (int64_t i = 0; i < f->n_rows; i++)
        if (competes(&f->rows[i])) {
            n_in++;
            n += !is_beaten(f, &f->rows[i]);
            cells = f->rows[i].kept->n > cells ? f->rows[i].kept->n : cells;
        }
    if (n_in < 2)
        return;
    begin(f);
    buf_printf(f->b,
               "%lld of %lld settings that keep less than everything are on the Pareto front: no "
               "other keeps fewer pairs at no larger error L1 (means over %lld cells).<ul>",
               (long long)n, (long long)n_in, (long long)cells);
    int64_t shown = 0;
    qsort(f->rows, (size_t)f->n_rows, sizeof *f->rows, by_kept);
    for (int64_t i = 0; i < f->n_rows && shown < UNBEATEN_SHOWN; i++) {
        const struct row *x = &f->rows[i];
        if (!competes(x) || is_beaten(f, x))
            continue;
        buf_puts(f->b, "<li>");
        put_setting(x, f->b);
        buf_puts(f->b, ": keeps ");
        put_percent(x->kept->mean, f->b);
        buf_puts(f->b, ", error L1 ");
        put_percent(x->error->mean, f->b);
        buf_puts(f->b, "</li>");
        shown++;
    }
    if (n > shown)
        buf_printf(f->b, "<li>and %lld more</li>", (long long)(n - shown));
    buf_puts(f->b, "</ul>");
    end(f, "plot pareto", " -o pareto.png");
}

/* ---- measured times, warnings, models ------------------------------------------------------- */

static void fastest(struct findings *f)
{
    const struct row *best = NULL;
    for (int64_t i = 0; i < f->n_rows; i++) {
        const struct row *x = &f->rows[i];
        if (x->bound || !x->speedup || !x->speedup->n)
            continue;
        best = !best || x->speedup->median > best->speedup->median ? x : best;
    }
    if (!best)
        return;
    begin(f);
    buf_puts(f->b, "The fastest measured setting is ");
    put_setting(best, f->b);
    buf_printf(f->b,
               ": %.3g times as fast as dense attention on the same GPU (median of %lld cells)",
               best->speedup->median, (long long)best->speedup->n);
    if (best->error && best->error->n) {
        buf_puts(f->b, ", error L1 ");
        put_percent(best->error->median, f->b);
    }
    buf_puts(f->b,
             best->speedup->median < 1 ? ". Nothing here is faster than dense attention." : ".");
    end(f, "analyze", " --table time");
}

static void warnings(struct findings *f, const struct sheet *s)
{
    for (int64_t i = 0; i < s->notes.n; i++)
        if (strncmp(s->notes.items[i], "! ", 2) == 0) {
            begin(f);
            buf_puts(f->b, "<span class=\"warn\">");
            html_text(s->notes.items[i] + 2, f->b);
            buf_puts(f->b, "</span>");
            end(f, "analyze", " --wide");
        }
}

/* Records of a model with a method inside it have tables of their own. */
static void inside(struct findings *f)
{
    int64_t n = 0;
    for (int64_t i = 0; i < f->scope->set.n; i++)
        n += f->scope->set.r[i].scope == RECORD_OF_MODEL;
    if (!n)
        return;
    begin(f);
    buf_printf(f->b,
               "%lld of the records are of a model that ran with a method inside it: see the "
               "tables whose names begin with eval.",
               (long long)n);
    end(f, "analyze", " --table eval");
}

/* ---- all ------------------------------------------------------------------------------------ */

static int of_scope(struct findings *f, const struct table *t, struct err *err)
{
    static const struct sheet_opts view = {0};
    struct sheet s;
    int rc = 0;
    sheet_make(t, &view, &s);
    TRY(read_rows(f, t, err));
    fewest_pairs(f, &s);
    for (int64_t i = 0; i < f->n_rows; i++)
        if (competes(&f->rows[i])) {
            TRY(winner_per_head(f, err));
            break;
        }
    unbeaten(f);
    fastest(f);
    warnings(f, &s);
    inside(f);
    f->b->failed |= s.failed;
out:
    sheet_free(&s);
    free(f->rows);
    f->rows = NULL;
    return rc;
}

static int put_scope(struct report *r, const struct report_scope *scope, struct err *err)
{
    const struct table_def *summary = table_def_find("summary", err);
    const struct table_request req = {.methods = r->app->methods};
    struct findings f = {.r = r, .scope = scope, .b = &r->findings};
    struct table t = {0};
    int rc = 0;
    if (scope->name[0]) {
        buf_puts(f.b, "<h3>");
        html_text(scope->name, f.b);
        buf_puts(f.b, "</h3>\n");
    }
    buf_puts(f.b, "<ol>\n");
    if (table_has_data(summary, &scope->set)) {
        TRY(table_build(summary, &scope->set, &req, &t, err));
        TRY(of_scope(&f, &t, err));
    } else
        inside(&f);
    if (f.n == 0)
        buf_puts(f.b, "<li>No setting here keeps less than everything and has been measured: there "
                      "is nothing to compare.</li>\n");
    buf_puts(f.b, "</ol>\n");
    r->n_findings += f.n;
out:
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
