/*
 * pagewrite.c - a page in Markdown, HTML, LaTeX, CSV and JSON. Tables are analyze's; around them
 * stand the title, the drawing, the letters and the notes. The JSON has what `lacuna analyze
 * --explain` shows.
 */
#include "reproduce/page.h"

#include "analyze/format.h"
#include "core/mem.h"
#include "core/version.h"
#include "reproduce/claims.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- words ----------------------------------------------------------------------------------- */

void count_text(struct buf *b, int64_t n)
{
    if (n >= 10000) {
        count_text(b, n / 1000);
        buf_printf(b, ",%03d", (int)(n % 1000));
    } else {
        buf_printf(b, "%lld", (long long)n);
    }
}

static const char *caption_of(const struct page *p)
{
    return json_str_or(p->recipe->item, "caption", "");
}

/* Words that repeat the page: "lacuna reproduce ID [--quick] [--backend cuda] [--trace ROLE=T.h5]
 * -o DIR"; models and traces without their folders. */
static void put_command(const struct page *p, struct buf *b)
{
    const struct model_set *set = p->plan->models;
    buf_printf(b, "lacuna reproduce %s%s%s", p->recipe->id, p->plan->quick ? " --quick" : "",
               p->plan->cuda ? " --backend cuda" : "");
    for (int i = 0; i < set->n; i++) {
        const struct model_use *m = &set->m[i];
        const char *path = m->trace ? m->trace : m->dir, *slash = strrchr(path, '/');
        if (m->given && json_object_get(p->recipe->roles, m->role))
            buf_printf(b, " --%s %s=%s", m->trace ? "trace" : "model",
                       m->fills == m->paper ? m->role : json_str_or(m->fills, "id", ""),
                       slash ? slash + 1 : path);
    }
    if (p->plan->lengths)
        buf_printf(b, " --lengths %s", p->plan->lengths);
    buf_puts(b, page_has_files(p) ? " --tasks DIR -o DIR" : " -o DIR");
}

/* Which numbers of ours are tested for agreement; nothing where there is none. */
static void put_agreement(const struct page *p, struct buf *b)
{
    int n[CELL_STATES] = {0};
    for (const struct page_cell *c = NULL; (c = next_cell(p, c));)
        n[c->state]++;
    if (n[CELL_AGREES] + n[CELL_DIFFERS])
        buf_printf(b, "Where everything is the paper's, %d cells agree and %d differ. ",
                   n[CELL_AGREES], n[CELL_DIFFERS]);
    if (n[CELL_BESIDE] + n[CELL_OURS])
        buf_puts(b, "A number of ours with letters is not tested for agreement with the paper's.");
}

/* "CAPTION Ours: video-dit, 1,536 tokens (quick)." */
static void lead_text(const struct page *p, struct buf *b)
{
    buf_puts(b, caption_of(p));
    if (p->ours.len)
        buf_printf(b, "%sOurs: %s%s.",
                   !b->len                      ? ""
                   : b->data[b->len - 1] == '.' ? " "
                                                : ". ",
                   buf_str(&p->ours), p->quick ? " (quick)" : "");
}

static void legend_text(const struct page *p, struct buf *b)
{
    for (const char *l = p->letters; *l; l++)
        buf_printf(b, "%s%c %s", l == p->letters ? "" : ", ", *l, letter_text(*l));
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* The blocks and the claims. */
struct page_tables {
    struct table *t; /* owned */
    int n;
};

/* Text columns of these titles. */
static int add_columns(struct table *t, const char *const *titles, int n, struct err *err)
{
    for (int i = 0; i < n; i++)
        PASS_ON(table_column(t, titles[i], titles[i], "", COL_TEXT, 1, err));
    return 0;
}

static int add_row(struct table *t, const char *const *texts, int n, struct err *err)
{
    PASS_ON(table_row(t, err));
    for (int i = 0; i < n; i++)
        PASS_ON(table_text(t, i, texts[i] ? texts[i] : "", err));
    return 0;
}

/* The letters that all cells of ours share in a column of ours, or in a row of ours where it
 * crosses printed columns; "" where they differ. */
static const char *shared_letters(const struct page_block *b, const struct grid_entry *e)
{
    const char *letters = NULL;
    for (int k = 0; k < b->rows.n * b->columns.n && !e->printed; k++) {
        const struct page_cell *c = &b->cell[k];
        if (!c->ours || (c->column != e && (c->row != e || !c->column->printed)))
            continue;
        if (letters && strcmp(letters, c->letters) != 0)
            return "";
        letters = c->letters;
    }
    return letters ? letters : "";
}

/* What the cell itself still has to show of its letters. */
static const char *cell_letters(const struct page_cell *c)
{
    bool shared = shared_letters(c->block, c->column)[0] ||
                  (c->column->printed && shared_letters(c->block, c->row)[0]);
    return c->ours && !shared ? c->letters : "";
}

/* " (abq)", of letters where there are any. */
static void put_letters(const char *letters, struct buf *b)
{
    if (letters[0])
        buf_printf(b, " (%s)", letters);
}

/* A label's levels in one text, `between` them; a number of the paper in place of {label}. */
static void label_text(const struct page *p, const struct grid_entry *e, int from, int to,
                       const char *between, struct buf *out)
{
    const json_t *cell = json_object_get(e->j, "label_cell");
    for (int k = from; k < to && k < e->levels; k++) {
        const char *text = e->level[k], *at = strstr(text, "{label}");
        struct paper_number x;
        buf_puts(out, k > from ? between : "");
        buf_put(out, text, at ? (size_t)(at - text) : strlen(text));
        if (!at)
            continue;
        bool has =
            e->printed && paper_number_find(p->data, p->recipe->item, json_str_or(cell, "row", ""),
                                            json_str_or(cell, "column", ""), &x);
        buf_printf(out, "%s%s", has ? x.value : "ours", at + 7);
    }
}

/* A column of ours without a number, such as one of a range of lengths that was not asked for. */
static bool is_empty(const struct page_block *b, const struct grid_entry *column)
{
    bool empty = !column->printed;
    for (int k = 0; k < b->rows.n * b->columns.n; k++)
        empty = empty && (b->cell[k].column != column || !b->cell[k].ours);
    return empty;
}

static int put_columns(const struct page *p, const struct page_block *b, struct table *t,
                       struct err *err)
{
    const json_t *stub = json_object_get(b->j, "stub"), *v;
    OWN(buf_free) struct buf text = {0};
    const char *title;
    size_t i;
    json_array_foreach((json_t *)stub, i, v)
    {
        title = json_string_value(v);
        PASS_ON(add_columns(t, &title, 1, err));
    }
    for (int c = 0; c < b->columns.n; c++) {
        const struct grid_entry *e = &b->columns.e[c];
        const char *arrow = json_str_or(e->j, "arrow", "");
        if (is_empty(b, e))
            continue;
        buf_reset(&text);
        label_text(p, e, 0, e->levels, " ", &text);
        buf_puts(&text, strcmp(arrow, "up") == 0 ? " \u2191" : arrow[0] ? " \u2193" : "");
        put_letters(shared_letters(b, e), &text);
        title = buf_str(&text);
        PASS_ON(add_columns(t, &title, 1, err));
    }
    title = "no number of ours here, because";
    if (p->recipe->figure)
        return add_columns(t, &title, 1, err);
    return 0;
}

/* Why a printed number of a list has none of ours beside it; "": it has. */
static const char *reason_here(const struct page_block *b, int row)
{
    const struct page_cell *c = page_cell_at(b, row, 0);
    bool has = c->state != CELL_PRINTED || !c->reason;
    for (int k = 0; k < b->columns.n; k++)
        has = has || page_cell_at(b, row, k)->ours;
    return has ? "" : c->reason;
}

static int put_row(const struct page *p, const struct page_block *b, int row, struct table *t,
                   struct err *err)
{
    int stubs = (int)json_array_size(json_object_get(b->j, "stub")), at = stubs;
    OWN(buf_free) struct buf text = {0};
    PASS_ON(table_row(t, err));
    for (int k = 0; k < stubs; k++) {
        buf_reset(&text);
        label_text(p, &b->rows.e[row], k, k + 1, " ", &text);
        if (k == 0)
            put_letters(shared_letters(b, &b->rows.e[row]), &text);
        PASS_ON(table_text(t, k, buf_str(&text), err));
    }
    for (int k = 0; k < b->columns.n; k++) {
        const struct page_cell *c = page_cell_at(b, row, k);
        if (is_empty(b, c->column))
            continue;
        buf_reset(&text);
        buf_printf(&text, "%s%s%s", c->printed ? c->printed : "",
                   c->printed && c->ours ? " / " : "", c->ours ? c->ours : "");
        buf_puts(&text, c->printed || c->ours ? "" : "-");
        put_letters(cell_letters(c), &text);
        PASS_ON(table_text(t, at++, buf_str(&text), err));
    }
    if (p->recipe->figure)
        return table_text(t, at, reason_here(b, row), err);
    return 0;
}

static int make_block(const struct page *p, const struct page_block *b, struct table *t,
                      struct err *err)
{
    PASS_ON(put_columns(p, b, t, err));
    for (int r = 0; r < b->rows.n; r++)
        PASS_ON(put_row(p, b, r, t, err));
    return 0;
}

/* Numbers below 0.01, such as errors, need more digits than shares, and so do small differences. */
static int digits_of(const struct claim_row *r)
{
    double a = fabs(r->mean[0]), b = isfinite(r->mean[1]) ? fabs(r->mean[1]) : 0;
    double x = fabs(r->value.value);
    return (a < 0.01 && b < 0.01) || (x > 0 && x < 0.001) ? 5 : 3;
}

static int put_claim(const struct claim_row *r, struct table *t, struct err *err)
{
    const char *const labels[] = {r->a, r->b};
    char sides[2][200], value[120] = "", range[80] = "", n[60] = "", state[240];
    int digits = digits_of(r);
    for (int i = 0; i < 2; i++) {
        int len = snprintf(sides[i], sizeof sides[i], "%s", labels[i]);
        if (isfinite(r->mean[i]))
            snprintf(sides[i] + len, sizeof sides[i] - (size_t)len, "%s%.*f", len ? " " : "",
                     digits, r->mean[i]);
    }
    if (isfinite(r->value.lo) && r->value.n > 1)
        snprintf(range, sizeof range, " [%.*f, %.*f]", digits, r->value.lo, digits, r->value.hi);
    if (isfinite(r->value.value))
        snprintf(value, sizeof value, strncmp(r->test, "A - B", 5) == 0 ? "%+.*f%s" : "%.*f%s",
                 digits, r->value.value, range);
    if (r->value.n)
        snprintf(n, sizeof n, "%lld %s", (long long)r->value.n, r->of);
    snprintf(state, sizeof state, "%s%s%s", claim_state_names[r->state], r->why[0] ? ": " : "",
             r->why);
    return add_row(t,
                   (const char *const[]){r->text, r->printed, r->model, r->metric, sides[0],
                                         sides[1], r->test, value, n, state},
                   10, err);
}

static int make_claims(const struct page *p, struct table *t, struct err *err)
{
    static const char *const titles[] = {"claim", "printed", "model",        "metric", "A",
                                         "B",     "test",    "value [95 %]", "n",      "ours"};
    PASS_ON(add_columns(t, titles, 10, err));
    for (int64_t i = 0; i < p->n_claims; i++)
        PASS_ON(put_claim(&p->claims[i], t, err));
    return 0;
}

/* Free `out` also after a failure. */
static int make_tables(const struct page *p, struct page_tables *out, struct err *err)
{
    PASS_ON(mem_zalloc(&out->t, p->n_blocks + 1, sizeof *out->t, "tables", err));
    for (int i = 0; i < p->n_blocks; i++) {
        table_init(&out->t[out->n++], "page", "Printed / ours");
        PASS_ON(make_block(p, &p->blocks[i], &out->t[i], err));
    }
    if (p->n_claims) {
        table_init(&out->t[out->n++], "claims", "Claims");
        return make_claims(p, &out->t[out->n - 1], err);
    }
    return 0;
}

static void free_tables(struct page_tables *t)
{
    for (int i = 0; i < t->n; i++)
        table_free(&t->t[i]);
    free(t->t);
}

/* ---- Markdown and HTML ----------------------------------------------------------------------- */

enum part { TITLE, PARAGRAPH, NOTE, COMMAND, PARTS };

static bool has_given(const struct page *p)
{
    for (int i = 0; i < p->plan->models->n; i++)
        if (p->plan->models->m[i].given && page_uses(p, -1, i))
            return true;
    return false;
}

/* What stands before and behind a text. */
static const char *const marks[2][PARTS][2] = {
    {{"## ", "\n\n"}, {"", "\n\n"}, {"- ", "\n"}, {"- Made by: `", "`\n"}},
    {{"<h1>", "</h1>\n"},
     {"<p>", "</p>\n"},
     {"<li>", "</li>\n"},
     {"<li>Made by: <code>", "</code></li>\n"}}};

/* An empty text leaves no part. */
static void put_part(bool html, enum part part, struct buf *text, struct buf *b)
{
    if (text->len) {
        buf_puts(b, marks[html][part][0]);
        if (html)
            html_text(buf_str(text), b);
        else if (part == COMMAND) /* code ends at the next of its quotes, and at nothing else */
            for (const char *s = buf_str(text); *s; s++)
                buf_put(b, *s == '`' ? "'" : s, 1);
        else
            md_text(buf_str(text), b);
        buf_puts(b, marks[html][part][1]);
    }
    b->failed |= text->failed;
    buf_reset(text);
}

static int put_tables(const struct page *p, bool html, struct buf *b, struct err *err)
{
    const struct table_format *f = format_find("md", err);
    const struct sheet_opts all = {.wide = true};
    struct page_tables t = {0};
    int rc = make_tables(p, &t, err);
    for (int i = 0; i < t.n && !rc; i++) {
        if (html)
            html_table(&t.t[i], &all, b);
        else
            format_table(f, &t.t[i], &all, b);
        buf_puts(b, "\n");
    }
    free_tables(&t);
    return rc;
}

static int put_page(const struct page *p, bool html, struct buf *b, struct err *err)
{
    OWN(buf_free) struct buf text = {0};
    buf_puts(&text, buf_str(&p->title));
    put_part(html, TITLE, &text, b);
    lead_text(p, &text);
    put_part(html, PARAGRAPH, &text, b);
    if (next_drawing(p->plan, p->at, NULL)) {
        item_file(p->recipe->id, &text);
        buf_printf(b,
                   html ? "<p><img src=\"../figures/%s.png\" alt=\"\"></p>\n"
                        : "![](../figures/%s.png)\n\n",
                   buf_str(&text));
        buf_reset(&text);
    }
    PASS_ON(put_tables(p, html, b, err));
    legend_text(p, &text);
    put_part(html, PARAGRAPH, &text, b);
    buf_puts(b, html ? "<ul>\n" : "");
    for (int64_t i = 0; i < p->notes.n; i++) {
        size_t n = strlen(p->notes.items[i]);
        buf_printf(&text, "%s%s", p->notes.items[i],
                   n && p->notes.items[i][n - 1] == '.' ? "" : ".");
        put_part(html, NOTE, &text, b);
    }
    put_agreement(p, &text);
    put_part(html, NOTE, &text, b);
    put_command(p, &text);
    put_part(html, COMMAND, &text, b);
    if (p->recipe->n_jobs && !has_given(p)) {
        buf_puts(&text, "For a model of your own: ");
        PASS_ON(own_model_text(p->plan, p->at, p->data, &text, err));
        buf_puts(&text, ".");
        put_part(html, NOTE, &text, b);
    }
    buf_puts(b, html ? "</ul>\n" : "");
    return buf_check(b, "page", err);
}

int page_md(const struct page *p, struct buf *b, struct err *err)
{
    return put_page(p, false, b, err);
}

int page_html(const struct page *p, struct buf *b, struct err *err)
{
    buf_puts(b, "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<title>");
    html_text(buf_str(&p->title), b);
    buf_printf(b, "</title>\n<style>%s</style>\n", html_style);
    return put_page(p, true, b, err);
}

/* ---- LaTeX ----------------------------------------------------------------------------------- */

/* Signs that fonts without Unicode lack. */
static void put_signs(const char *s, struct buf *b)
{
    static const char *const signs[][2] = {
        {"\u00d7", "$\\times$"}, {"\u2191", "$\\uparrow$"}, {"\u2193", "$\\downarrow$"}};
    while (*s) {
        size_t k = 0, n = sizeof signs / sizeof *signs;
        while (k < n && strncmp(s, signs[k][0], strlen(signs[k][0])) != 0)
            k++;
        if (k == n)
            buf_put(b, s++, 1);
        else {
            buf_puts(b, signs[k][1]);
            s += strlen(signs[k][0]);
        }
    }
}

/* The blocks as floats. Columns of labels are repeated where a table is parted. */
static int put_floats(const struct page *p, struct buf *b, struct err *err)
{
    const struct table_format *f = format_find("tex", err);
    OWN(free_tables) struct page_tables t = {0};
    OWN(buf_free) struct buf text = {0}, note = {0};
    PASS_ON(make_tables(p, &t, err));
    lead_text(p, &note);
    buf_puts(&note, p->letters[0] ? " Letters: " : "");
    legend_text(p, &note);
    for (int i = 0; i < p->n_blocks; i++) {
        int64_t stubs = (int64_t)json_array_size(json_object_get(p->blocks[i].j, "stub"));
        struct table *own = &t.t[i];
        struct sheet s;
        snprintf(own->name, sizeof own->name, "%.27s-%hhu", p->recipe->id, (unsigned char)(i + 1));
        snprintf(own->title, sizeof own->title, "%s", buf_str(&p->title));
        table_note(own, "%s", buf_str(&note));
        sheet_make(own, &(struct sheet_opts){.wide = true}, &s);
        for (int64_t k = 0; k < s.n_cols; k++) {
            s.cols[k].key = k < stubs;
            s.cols[k].right = k >= stubs;
        }
        f->show(&s, &text);
        text.failed |= s.failed;
        sheet_free(&s);
    }
    put_signs(buf_str(&text), b);
    b->failed |= text.failed || note.failed;
    return 0;
}

int page_tex(const struct page *p, struct buf *b, struct err *err)
{
    OWN(buf_free) struct buf text = {0}, file = {0};
    item_file(p->recipe->id, &file);
    buf_printf(b, "%% %s\n", buf_str(&p->title));
    PASS_ON(put_floats(p, b, err));
    if (next_drawing(p->plan, p->at, NULL)) {
        lead_text(p, &text);
        buf_printf(b,
                   "%% graphicx, and where the drawings lie: \\graphicspath{{figures/}}\n"
                   "\\begin{figure}[t]\\centering\n\\includegraphics[width=\\linewidth]{%s.pdf}\n"
                   "\\caption{",
                   buf_str(&file));
        tex_text(buf_str(&p->title), b);
        buf_puts(b, ". ");
        tex_text(buf_str(&text), b);
        buf_puts(b, "}\n\\end{figure}\n");
    }
    return buf_check(b, "page", err);
}

/* ---- CSV and JSON ---------------------------------------------------------------------------- */

/* What programs read: cells with a number, or a reason why there is none. */
static bool has_line(const struct page_cell *c)
{
    return c->state != CELL_EMPTY || c->reason;
}

static int put_line(const struct page *p, const struct page_cell *c, struct table *t,
                    struct err *err)
{
    const double numbers[] = {c->stats.sd, c->stats.lo, c->stats.hi, (double)c->stats.units,
                              (double)c->stats.calls};
    struct paper_number x;
    char block[32], text[5][32] = {{0}};
    OWN(buf_free) struct buf row = {0};
    bool has = cell_printed(p, c, 0, &x);
    label_text(p, c->row, 0, c->row->levels, "/", &row);
    snprintf(block, sizeof block, "%td", c->block - p->blocks + 1);
    for (int i = 0; i < 5; i++)
        if (c->ours && isfinite(numbers[i]))
            snprintf(text[i], sizeof text[i], "%.6g", numbers[i]);
    const char *const texts[] = {p->recipe->id,
                                 block,
                                 buf_str(&row),
                                 c->column->path,
                                 c->printed,
                                 has ? x.unit : "",
                                 c->ours,
                                 text[0],
                                 text[1],
                                 text[2],
                                 text[3],
                                 text[4],
                                 cell_state_names[c->state],
                                 c->letters,
                                 c->ours ? p->plan->models->m[c->model].name : "",
                                 c->n_jobs ? c->jobs[0] : "",
                                 c->reason};
    PASS_ON(add_row(t, texts, 17, err));
    return buf_check(&row, "page", err);
}

int page_csv(const struct page *p, struct buf *b, struct err *err)
{
    static const char *const titles[] = {
        "id", "block",   "row",     "column", "printed", "printed_unit", "ours", "sd",    "lo",
        "hi", "n_units", "n_calls", "state",  "letters", "model",        "job",  "reason"};
    struct table t;
    int rc = 0;
    table_init(&t, "cells", "");
    TRY(add_columns(&t, titles, 17, err));
    for (const struct page_cell *c = NULL; (c = next_cell(p, c));)
        if (has_line(c))
            TRY(put_line(p, c, &t, err));
    format_find("csv", err)->write(&t, b);
    rc = buf_check(b, "page", err);
out:
    table_free(&t);
    return rc;
}

static void put_list(struct jw *w, const char *key, const char *const *items, int64_t n)
{
    jw_karr(w, key);
    for (int64_t i = 0; i < n; i++)
        jw_str(w, items[i]);
    jw_arr_end(w);
}

static void put_texts(struct jw *w, const char *key, const struct str_list *l)
{
    put_list(w, key, (const char *const *)l->items, l->n);
}

/* How the number was made, in the words of the recipe. */
static void json_source(const struct page *p, const struct page_cell *c, struct jw *w)
{
    const json_t *pairs = cell_choice(c).pairs;
    OWN(buf_free) struct buf where = {0};
    struct jw text;
    jw_init(&text, &where, 0);
    jw_value(&text, c->where);
    jw_kstr(w, "metric", c->metric[0]);
    if (c->stat)
        jw_kstr(w, "stat", c->stat);
    if (c->metric[1] && isfinite(c->value[1]))
        jw_members(w, JW_NUM("second", c->value[1]), JW_STR("second_metric", c->metric[1]));
    if (pairs) {
        jw_key(w, "pairs");
        jw_value(w, pairs);
    }
    jw_members(w, JW_STR("job", p->recipe->jobs[c->job].name),
               JW_STR("where", c->stat ? buf_str(&where) : NULL));
    put_list(w, "folders", c->jobs, c->n_jobs);
    w->b->failed |= where.failed;
}

static void json_cell(const struct page *p, const struct page_cell *c, struct jw *w)
{
    jw_obj(w);
    jw_members(w, JW_STR("row", c->row->path), JW_STR("column", c->column->path),
               JW_STR("printed", c->printed), JW_STR("ours", c->ours),
               JW_STR("state", cell_state_names[c->state]));
    if (c->reason)
        jw_kstr(w, "reason", c->reason);
    if (c->ours) {
        jw_members(w, JW_NUM("value", c->value[0]), JW_NUM("sd", c->stats.sd),
                   JW_NUM("lo", c->stats.lo), JW_NUM("hi", c->stats.hi),
                   JW_INT("units", c->stats.units), JW_INT("calls", c->stats.calls),
                   JW_STR("of", c->stats.of), JW_STR("letters", c->letters),
                   JW_STR("model", p->plan->models->m[c->model].name),
                   JW_STR("weights", p->plan->models->m[c->model].id));
        json_source(p, c, w);
    }
    jw_obj_end(w);
}

static void json_claim(const struct claim_row *r, struct jw *w)
{
    jw_row(w, JW_STR("id", r->id), JW_STR("text", r->text), JW_STR("model", r->model),
           JW_STR("printed", r->printed), JW_STR("metric", r->metric), JW_STR("a", r->a),
           JW_NUM("a_mean", r->mean[0]), JW_STR("b", r->b), JW_NUM("b_mean", r->mean[1]),
           JW_STR("test", r->test), JW_NUM("value", r->value.value), JW_NUM("lo", r->value.lo),
           JW_NUM("hi", r->value.hi), JW_INT("n", r->value.n), JW_STR("of", r->of),
           JW_STR("answer", claim_state_names[r->state]), JW_STR("why", r->why));
}

int page_json(const struct page *p, struct buf *b, struct err *err)
{
    struct jw w;
    OWN(buf_free) struct buf command = {0};
    put_command(p, &command);
    jw_init(&w, b, 1);
    jw_obj(&w);
    jw_members(&w, JW_INT("page", 1), JW_STR("id", p->recipe->id),
               JW_STR("title", buf_str(&p->title)), JW_STR("caption", caption_of(p)),
               JW_BOOL("quick", p->quick), JW_BOOL("failed", p->failed),
               JW_STR("version", lacuna_version()), JW_STR("command", buf_str(&command)));
    jw_karr(&w, "claims");
    for (int64_t i = 0; i < p->n_claims; i++)
        json_claim(&p->claims[i], &w);
    jw_arr_end(&w);
    put_texts(&w, "notes", &p->notes);
    put_texts(&w, "commands", &p->made_by);
    jw_karr(&w, "cells");
    for (const struct page_cell *c = NULL; (c = next_cell(p, c));)
        if (has_line(c))
            json_cell(p, c, &w);
    jw_arr_end(&w);
    jw_obj_end(&w);
    buf_puts(b, "\n");
    return buf_check(b, "page", err);
}
