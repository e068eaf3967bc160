/*
 * paper.c - each printed number that a rule of paper.def knows is looked up in the records. The
 * verdict never claims more than the data (paper_verdict.h): otherwise the two numbers stand side
 * by side.
 */
#include "analyze/paper.h"

#include "analyze/csv.h"
#include "core/datadir.h"
#include "analyze/paper_verdict.h"
#include "analyze/metricfacts.h"
#include "core/metricdef.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the table ----------------------------------------------------------------------------- */

enum {
    C_PAPER,
    C_TABLE,
    C_ROW,
    C_COLUMN,
    C_PRINTED,
    C_UNIT,
    C_OURS,
    C_DIFF,
    C_METRIC,
    C_METHOD,
    C_MODEL,
    C_N,
    C_ORDER,
    C_BACKEND,
    C_VERDICT,
    C_REMARK
};

static int add_columns(struct table *t, struct err *err)
{
    static const struct {
        const char *name, *title, *unit;
        enum column_type type;
    } cols[] = {
        {"paper", "paper", "", COL_TEXT},
        {"table", "table", "", COL_TEXT},
        {"row", "row", "", COL_TEXT},
        {"column", "column", "", COL_TEXT},
        {"printed", "printed", "", COL_TEXT},
        {"unit", "unit of printed and ours", "", COL_TEXT},
        {"ours", "ours", "", COL_STATS},
        {"difference", "ours - printed", "", COL_REAL},
        {"metric", "our metric", "", COL_TEXT},
        {"method", "our method", "", COL_TEXT},
        {"model", "our model", "", COL_TEXT},
        {"n_q", "our N_q", "tokens", COL_INT},
        {"order", "our token order", "", COL_TEXT},
        {"backend", "our arithmetic", "", COL_TEXT},
        {"verdict", "verdict", "", COL_TEXT},
        {"remark", "needs / remark", "", COL_TEXT},
    };
    int rc = 0;
    for (size_t i = 0; !rc && i < sizeof cols / sizeof *cols; i++)
        rc = table_column(t, cols[i].name, cols[i].title, cols[i].unit, cols[i].type, 1, err);
    for (int64_t i = 0; !rc && i < t->n_cols; i++)
        t->cols[i].mixed = true;
    return rc;
}

static int put_printed(struct table *t, const struct printed *p, struct err *err)
{
    int rc = 0;
    TRY(table_row(t, err));
    TRY(table_text(t, C_PAPER, p->paper, err));
    TRY(table_text(t, C_TABLE, p->table, err));
    TRY(table_text(t, C_ROW, p->row, err));
    TRY(table_text(t, C_COLUMN, p->column, err));
    TRY(table_text(t, C_PRINTED, p->value, err));
    TRY(table_text(t, C_UNIT, p->unit, err));
out:
    return rc;
}

static void scale_stats(struct stats *s, double f)
{
    s->mean *= f;
    s->sd *= f;
    s->min *= f;
    s->median *= f;
    s->max *= f;
    s->q1 *= f;
    s->q3 *= f;
}

/* Under which our number was measured. */
static int put_conditions(struct table *t, const struct record *r, struct err *err)
{
    char text[64];
    size_t len;
    const char *order = paper_order(r, &len);
    int rc = 0;
    snprintf(text, sizeof text, "%.*s", (int)len, order);
    TRY(table_text(t, C_ORDER, text, err));
    snprintf(text, sizeof text, "%s %s", r->backend, r->precision);
    TRY(table_text(t, C_BACKEND, text, err));
out:
    return rc;
}

/* One group of records beside the printed number. */
static int put_ours(struct table *t, const struct printed *p, const struct wanted *w,
                    const struct grouping *gs, const struct group *g, struct err *err)
{
    struct stats s;
    struct buf b = {0};
    int rc = 0;

    TRY(put_printed(t, p, err));
    TRY(group_stats(gs, g, w->rule->metric, &s, NULL, err));
    scale_stats(&s, strcmp(p->unit, "%") == 0 ? 100 : 1);
    if (w->rule->spread != SPREAD_MEAN) {
        double x = w->rule->spread == SPREAD_MIN ? s.min : s.max;
        s = (struct stats){1, 0, x, NAN, x, x, x, x, x, false};
    }
    char *end;
    double printed = strtod(p->value, &end);
    table_stats(t, C_OURS, &s);
    if (end != p->value)
        table_num(t, C_DIFF, s.mean - printed);
    TRY(table_text(t, C_METRIC, w->rule->metric, err));
    buf_puts(&b, g->first->method);
    if (g->first->params && g->first->params[0])
        buf_printf(&b, ":%s", g->first->params);
    TRY(buf_check(&b, "method", err));
    TRY(table_text(t, C_METHOD, buf_str(&b), err));
    TRY(table_text(t, C_MODEL, g->first->model, err));
    table_num(t, C_N, (double)g->first->n_q);
    TRY(put_conditions(t, g->first, err));
    buf_reset(&b);
    TRY(paper_verdict(p, w, gs, g, s.mean, end != p->value ? printed : NAN, &b, err));
    TRY(table_text(t, C_VERDICT, buf_str(&b), err));
    TRY(table_text(t, C_REMARK, p->note, err));
out:
    buf_free(&b);
    return rc;
}

static int put_matches(struct table *t, const struct printed *p, const struct paper_rule *rule,
                       const struct recset *set, int64_t *n, struct err *err)
{
    static const enum group_key keys[] = {KEY_MODEL,     KEY_N_Q,    KEY_PERMUTE, KEY_BACKEND,
                                          KEY_PRECISION, KEY_METHOD, KEY_PARAMS};
    static const enum group_key map_keys[] = {KEY_MODEL, KEY_N_Q, KEY_PERMUTE, KEY_BACKEND,
                                              KEY_PRECISION};
    struct grouping gs = {0};
    struct wanted w = paper_want(p, rule);
    struct recset calls = recset_calls(set);
    int rc = 0;

    if (calls.n && metric_timed(rule->metric)) /* a call is what the papers time */
        set = &calls;

    if (rule->flags & MAP)
        TRY(grouping_make(set, map_keys, 5, GROUP_PER_HEAD, paper_wants, &w, &gs, err));
    else
        TRY(grouping_make(set, keys, 7, 0, paper_wants, &w, &gs, err));
    for (int64_t i = 0; i < gs.n; i++)
        TRY(put_ours(t, p, &w, &gs, &gs.g[i], err));
    *n = gs.n;
out:
    grouping_free(&gs);
    return rc;
}

/* ---- numbers without records --------------------------------------------------------------- */

/* Why a printed number has no partner here: verdict and what it would take. */
static void explain(const struct printed *p, const struct paper_rule *rule,
                    const char **verdict_text, struct buf *needs)
{
    if (strcmp(p->needs, "none") == 0) {
        *verdict_text = "not a result";
        buf_puts(needs, "a setting, a definition or an end-to-end time");
    } else if (strcmp(p->needs, "model") == 0) {
        *verdict_text = "not measurable here";
        buf_puts(needs, "the full model and its evaluation (quality, end-to-end time)");
    } else if (!rule) {
        *verdict_text = "not comparable";
        buf_puts(needs, strcmp(p->needs, "kernel") == 0
                            ? "times on the paper's machine or of another program"
                            : "conditions that the paper does not state or no method here has");
    } else {
        *verdict_text = "no records";
        const struct metric_def *def = metric_def_find(rule->metric);
        bool kernel = strcmp(p->needs, "kernel") == 0;
        if (kernel)
            buf_puts(needs, "measured times");
        else
            buf_printf(needs, "records of the method %s",
                       strcmp(rule->method, "*") != 0 ? rule->method
                       : def && def->method           ? def->method
                                                      : "dense");
        buf_puts(needs, rule->params[0] ? " with these parameters" : "");
        buf_puts(needs, rule->flags & LENGTH ? " at this length" : "");
        buf_puts(needs, rule->flags & PERMUTE ? " in this token order" : "");
    }
}

/* The row that counts numbers of this table without records for this reason; -1 = none yet. */
static int64_t find_count(const struct table *t, int64_t from, const struct printed *p,
                          const char *needs)
{
    for (int64_t i = from; i < t->n_rows; i++)
        if (strcmp(table_cell(t, i, C_PAPER)->text, p->paper) == 0 &&
            strcmp(table_cell(t, i, C_TABLE)->text, p->table) == 0 &&
            strcmp(table_cell(t, i, C_COLUMN)->text, p->title) == 0 &&
            strcmp(table_cell(t, i, C_REMARK)->text, needs) == 0)
            return i;
    return -1;
}

static int set_count(struct cell *cell, int64_t n, struct err *err)
{
    char text[48];
    snprintf(text, sizeof text, "%lld number%s", (long long)n, n == 1 ? "" : "s");
    free(cell->text);
    cell->text = strdup(text);
    return cell->text ? 0 : err_set(err, ERR_NOMEM, "table cell: out of memory");
}

/* Count a number without records; rows from `from` on are such counts. */
static int put_missing(struct table *t, int64_t from, const struct printed *p,
                       const struct paper_rule *rule, struct err *err)
{
    const char *verdict_text;
    struct buf needs = {0};
    int rc = 0;

    explain(p, rule, &verdict_text, &needs);
    TRY(buf_check(&needs, "remark", err));
    int64_t at = find_count(t, from, p, buf_str(&needs)), n = 1;
    if (at >= 0) {
        n += atoll(table_cell(t, at, C_ROW)->text);
    } else {
        TRY(put_printed(t, p, err));
        TRY(table_text(t, C_COLUMN, p->title, err));
        TRY(table_text(t, C_PRINTED, "", err));
        TRY(table_text(t, C_UNIT, "", err));
        TRY(table_text(t, C_VERDICT, verdict_text, err));
        TRY(table_text(t, C_REMARK, buf_str(&needs), err));
        at = t->n_rows - 1;
    }
    TRY(set_count(table_cell(t, at, C_ROW), n, err));
out:
    buf_free(&needs);
    return rc;
}

/* ---- files --------------------------------------------------------------------------------- */

static int read_columns(const struct csv *c, const char *path, int64_t at[9], struct err *err)
{
    static const char *const names[] = {"paper", "table", "title", "row", "column",
                                        "value", "unit",  "needs", "note"};
    int rc = 0;
    for (int i = 0; i < 9; i++)
        TRY(csv_column(c, names[i], path, &at[i], err));
out:
    return rc;
}

static struct printed printed_row(char *const *f, const int64_t at[9])
{
    return (struct printed){f[at[0]], f[at[1]], f[at[2]], f[at[3]], f[at[4]],
                            f[at[5]], f[at[6]], f[at[7]], f[at[8]]};
}

/* First the numbers with a partner, then a count of the others. */
static int add_paper(struct table *t, const char *path, const struct recset *set, struct err *err)
{
    struct csv c = {0};
    int64_t at[9], from, n;
    bool *found = NULL;
    int rc = 0;

    TRY(csv_read(path, &c, err));
    TRY(read_columns(&c, path, at, err));
    found = calloc((size_t)c.n, sizeof *found);
    if (!found)
        FAIL(err, ERR_NOMEM, "%s: out of memory", path);
    for (int64_t i = 1; i < c.n; i++) {
        struct printed p = printed_row(c.row[i], at);
        const struct paper_rule *rule = paper_rule_find(&p);
        n = 0;
        if (rule)
            TRY(put_matches(t, &p, rule, set, &n, err));
        found[i] = n > 0;
    }
    from = t->n_rows;
    for (int64_t i = 1; i < c.n; i++) {
        struct printed p = printed_row(c.row[i], at);
        if (!found[i])
            TRY(put_missing(t, from, &p, paper_rule_find(&p), err));
    }
out:
    free(found);
    csv_free(&c);
    return rc;
}

int build_paper(const struct table_def *def, const struct recset *set,
                const struct table_request *req, struct table *out, struct err *err)
{
    static const char *const files[] = {"fg-attn.csv", "sale.csv", "sampleattention.csv",
                                        "spargeattn.csv"};
    struct buf dir = {0}, path = {0};
    int rc = 0;

    if (req->group || req->columns || req->pivot)
        FAIL(err, ERR_USAGE, "--group, --columns and --pivot do not apply to this table");
    TRY(datadir_find("paper", &dir, err));
    TRY(add_columns(out, err));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        buf_reset(&path);
        buf_printf(&path, "%s/%s", buf_str(&dir), files[i]);
        TRY(buf_check(&path, "path", err));
        TRY(add_paper(out, buf_str(&path), set, err));
    }
    table_note(
        out,
        "agrees / differs: within %g of a printed share or cosine, within %g %% of a printed "
        "error, or not; only where model, length, token order, settings, calibration and "
        "unit are the paper's",
        PAPER_TOL_SHARE, 100 * PAPER_TOL_L1);
    table_note(out,
               "a model is known by name, head dimension, layers and heads, not by its weights; "
               "prompts and denoising steps are not compared");
    table_note(out, "not comparable, cannot be tested: the difference is no verdict on either "
                    "number");
out:
    buf_free(&dir);
    buf_free(&path);
    return rc;
}
