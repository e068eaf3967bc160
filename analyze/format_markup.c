/*
 * format_markup.c - tables as JSON and HTML.
 */
#include "analyze/format.h"

#include "analyze/format_impl.h"
#include "analyze/metricfacts.h"
#include "core/json.h"
#include "core/text.h"

#include <stdlib.h>
#include <string.h>

/* ---- JSON ---------------------------------------------------------------------------------- */

static void json_stats(struct jw *w, const struct column *c, const struct stats *s)
{
    double low, high;
    jw_obj(w);
    jw_knum(w, "mean", s->mean);
    jw_knum(w, "sd", s->sd);
    jw_kint(w, "n", s->n);
    jw_knum(w, "min", s->min);
    jw_knum(w, "median", s->median);
    jw_knum(w, "max", s->max);
    if (s->zero_one && metric_yes_no(c->name)) {
        stats_wilson(s, &low, &high);
        jw_knum(w, "low", low);
        jw_knum(w, "high", high);
    }
    if (s->n_bad)
        jw_kint(w, "not_finite", s->n_bad);
    jw_obj_end(w);
}

static void json_cell(struct jw *w, const struct column *c, const struct cell *cell)
{
    jw_key(w, c->name);
    if (!cell->set)
        jw_null(w);
    else if (c->type == COL_TEXT)
        jw_str(w, cell->text);
    else if (c->type == COL_STATS)
        json_stats(w, c, &cell->stats);
    else if (c->type == COL_INT)
        jw_int(w, (int64_t)cell->num);
    else
        jw_num(w, cell->num);
}

static void json_columns(struct jw *w, const struct table *t)
{
    jw_key(w, "columns");
    jw_arr(w);
    for (int64_t c = 0; c < t->n_cols; c++) {
        jw_obj(w);
        jw_kstr(w, "name", t->cols[c].name);
        jw_kstr(w, "title", t->cols[c].title);
        jw_kstr(w, "unit", t->cols[c].unit);
        jw_obj_end(w);
    }
    jw_arr_end(w);
}

void json_write(const struct table *t, struct buf *b)
{
    struct jw w;
    jw_init(&w, b, 1);
    jw_obj(&w);
    jw_kstr(&w, "table", t->name);
    jw_kstr(&w, "title", t->title);
    json_columns(&w, t);
    jw_key(&w, "rows");
    jw_arr(&w);
    for (int64_t r = 0; r < t->n_rows; r++) {
        jw_obj(&w);
        for (int64_t c = 0; c < t->n_cols; c++)
            json_cell(&w, &t->cols[c], table_cell(t, r, c));
        jw_obj_end(&w);
    }
    jw_arr_end(&w);
    jw_key(&w, "notes");
    jw_arr(&w);
    for (int64_t i = 0; i < t->notes.n; i++)
        jw_str(&w, t->notes.items[i]);
    jw_arr_end(&w);
    jw_obj_end(&w);
    buf_puts(b, "\n");
}

/* ---- HTML ---------------------------------------------------------------------------------- */

const char html_style[] =
    "body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1500px;padding:0 1em;"
    "color:#1b1f23;background:#fff}\n"
    "h1,h2,h3{line-height:1.2}h2{margin-top:2em;border-bottom:1px solid #d0d7de}\n"
    "table{border-collapse:collapse;font-size:13px;margin:.6em 0}\n"
    ".wide{overflow-x:auto}\n"
    "caption{text-align:left;font-weight:600;padding:.3em 0}\n"
    "th,td{padding:.2em .7em;border-bottom:1px solid #e4e8ec;vertical-align:top}\n"
    "thead th{border-bottom:2px solid #57606a;text-align:left;vertical-align:bottom}\n"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\n"
    "th.n{white-space:normal}.unit{font-weight:400;color:#57606a}\n"
    "tbody tr:hover{background:#f6f8fa}\n"
    "code,pre{font:12.5px/1.4 ui-monospace,monospace;background:#f6f8fa}\n"
    "pre{padding:.7em;overflow-x:auto}code{padding:.1em .3em}\n"
    ".notes{color:#57606a;font-size:13px}figure{margin:1em 0}\n"
    "figure img,figure svg{max-width:100%;height:auto;border:1px solid #e4e8ec}\n"
    "figcaption{font-size:13px;color:#57606a}\n";

void html_text(const char *s, struct buf *b)
{
    struct buf plain = {0};
    text_escape(&plain, s, "\n\r\t");
    for (const char *p = buf_str(&plain); *p; p++) {
        if (*p == '&')
            buf_puts(b, "&amp;");
        else if (*p == '<')
            buf_puts(b, "&lt;");
        else if (*p == '>')
            buf_puts(b, "&gt;");
        else if (*p == '"')
            buf_puts(b, "&quot;");
        else if (*p == '\'')
            buf_puts(b, "&#39;");
        else
            buf_put(b, p, 1);
    }
    b->failed |= plain.failed;
    buf_free(&plain);
}

static void html_head_cell(const struct column *c, bool quartiles, struct buf *b)
{
    buf_puts(b, c->type == COL_TEXT ? "<th>" : "<th class=\"n\">");
    html_text(c->title, b);
    if (c->unit[0]) {
        buf_puts(b, " <span class=\"unit\">[");
        html_text(c->unit, b);
        buf_puts(b, "]</span>");
    }
    if (quartiles)
        buf_puts(b, " <span class=\"unit\">median (quartiles)</span>");
    buf_puts(b, "</th>");
}

void html_table(const struct table *t, struct buf *b)
{
    struct buf raw = {0};
    struct digits *d = format_all_digits(t, 4, b);
    buf_puts(b, "<div class=\"wide\"><table>\n<caption>");
    html_text(t->title, b);
    buf_puts(b, "</caption>\n<thead><tr>");
    for (int64_t c = 0; d && c < t->n_cols; c++)
        html_head_cell(&t->cols[c], d[c].quartiles, b);
    buf_puts(b, "</tr></thead>\n<tbody>\n");
    for (int64_t r = 0; d && r < t->n_rows; r++) {
        buf_puts(b, "<tr>");
        for (int64_t c = 0; c < t->n_cols; c++) {
            buf_reset(&raw);
            format_cell(t, r, c, d[c], " \u00b1 ", &raw);
            buf_puts(b, t->cols[c].type == COL_TEXT ? "<td>" : "<td class=\"n\">");
            html_text(buf_str(&raw), b);
            buf_puts(b, "</td>");
        }
        buf_puts(b, "</tr>\n");
    }
    buf_puts(b, "</tbody></table></div>\n");
    for (int64_t i = 0; i < t->notes.n; i++) {
        buf_puts(b, i ? "<br>" : "<p class=\"notes\">");
        html_text(t->notes.items[i], b);
    }
    buf_puts(b, t->notes.n ? "</p>\n" : "");
    free(d);
    b->failed |= raw.failed;
    buf_free(&raw);
}

void html_write(const struct table *t, struct buf *b)
{
    buf_puts(b, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>");
    html_text(t->title, b);
    buf_printf(b, "</title>\n<style>%s</style></head><body>\n", html_style);
    html_table(t, b);
    buf_puts(b, "</body></html>\n");
}
