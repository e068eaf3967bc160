/*
 * pagetables.c - blocks of cells, printed numbers and claims as tables of texts.
 */
#include "reproduce/pagetables.h"

#include "core/mem.h"
#include "reproduce/claims.h"
#include "reproduce/pagetext.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- cells ----------------------------------------------------------------------------------- */

/* "printed / ours", or the one that is there; "-": nothing. */
static void cell_text(const struct page_cell *c, struct buf *b)
{
    if (c->printed && c->ours)
        buf_printf(b, "%s / %s", c->printed, c->ours);
    else
        buf_puts(b, c->printed ? c->printed : c->ours ? c->ours : "-");
}

/* Letters that cells share: those of the first one, none when another cell's differ. Returns
 * whether the next cell may still share them. */
static bool share_letters(const struct page_cell *c, bool *first, char letters[16])
{
    if (*first)
        snprintf(letters, 16, "%s", c->letters);
    else if (strcmp(letters, c->letters) != 0) {
        letters[0] = '\0';
        return false;
    }
    *first = false;
    return true;
}

/* The letters that all cells of ours share in a column of ours; "" where they differ. */
static void column_letters(const struct page_block *b, int column, char letters[16])
{
    bool first = true, shared = true;
    letters[0] = '\0';
    if (b->columns.e[column].printed)
        return;
    for (int r = 0; r < b->rows.n && shared; r++) {
        const struct page_cell *c = page_cell_at(b, r, column);
        if (c->ours)
            shared = share_letters(c, &first, letters);
    }
}

/* In a row of ours where it crosses printed columns. */
static void row_letters(const struct page_block *b, int row, char letters[16])
{
    bool first = true, shared = true;
    letters[0] = '\0';
    if (b->rows.e[row].printed)
        return;
    for (int k = 0; k < b->columns.n && shared; k++) {
        const struct page_cell *c = page_cell_at(b, row, k);
        if (c->ours && b->columns.e[k].printed)
            shared = share_letters(c, &first, letters);
    }
}

/* What the cell itself still has to show of its letters. */
static const char *cell_letters(const struct page_block *b, int row, int column)
{
    char shared[16];
    const struct page_cell *c = page_cell_at(b, row, column);
    column_letters(b, column, shared);
    if (!c->ours || shared[0])
        return "";
    row_letters(b, row, shared);
    return shared[0] && b->columns.e[column].printed ? "" : c->letters;
}

static int text_column(struct table *t, const char *title, struct err *err)
{
    return table_column(t, title, title, "", COL_TEXT, 1, err);
}

/* A label's levels in one text; a number of the paper in place of {label}. */
static void label_text(const struct page *p, const struct grid_entry *e, int from, int to,
                       struct buf *out)
{
    const json_t *cell = json_object_get(e->j, "label_cell");
    for (int k = from; k < to && k < e->levels; k++) {
        const char *text = e->level[k], *at = strstr(text, "{label}");
        struct paper_number x;
        buf_puts(out, k > from ? " " : "");
        buf_put(out, text, at ? (size_t)(at - text) : strlen(text));
        if (!at)
            continue;
        bool has = e->printed && paper_number_find(p->data, json_str_or(p->recipe->item, "csv", ""),
                                                   json_str_or(p->recipe->item, "table", ""),
                                                   json_str_or(cell, "row", ""),
                                                   json_str_or(cell, "column", ""), &x);
        buf_printf(out, "%s%s", has ? x.value : "ours", at + 7);
    }
}

static int put_columns(const struct page *p, const struct page_block *b, struct table *t,
                       struct err *err)
{
    const json_t *stub = json_object_get(b->j, "stub"), *v;
    struct buf text = {0};
    size_t i;
    int rc = 0;
    json_array_foreach((json_t *)stub, i, v) TRY(text_column(t, json_string_value(v), err));
    for (int c = 0; c < b->columns.n; c++) {
        const struct grid_entry *e = &b->columns.e[c];
        const char *arrow = json_str_or(e->j, "arrow", "");
        char letters[16];
        buf_reset(&text);
        label_text(p, e, 0, e->levels, &text);
        buf_puts(&text, strcmp(arrow, "up") == 0 ? " \u2191" : arrow[0] ? " \u2193" : "");
        column_letters(b, c, letters);
        if (letters[0])
            buf_printf(&text, " (%s)", letters);
        TRY(text_column(t, buf_str(&text), err));
    }
out:
    buf_free(&text);
    return rc;
}

static int put_row(const struct page *p, const struct page_block *b, int row, struct table *t,
                   struct err *err)
{
    int stubs = (int)json_array_size(json_object_get(b->j, "stub")), rc = 0;
    struct buf text = {0};
    char letters[16];
    TRY(table_row(t, err));
    for (int k = 0; k < stubs; k++) {
        buf_reset(&text);
        label_text(p, &b->rows.e[row], k, k + 1, &text);
        row_letters(b, row, letters);
        if (k == 0 && letters[0])
            buf_printf(&text, " (%s)", letters);
        TRY(table_text(t, k, buf_str(&text), err));
    }
    for (int c = 0; c < b->columns.n; c++) {
        buf_reset(&text);
        cell_text(page_cell_at(b, row, c), &text);
        if (cell_letters(b, row, c)[0])
            buf_printf(&text, " (%s)", cell_letters(b, row, c));
        TRY(table_text(t, stubs + c, buf_str(&text), err));
    }
out:
    buf_free(&text);
    return rc;
}

static int make_block(const struct page *p, const struct page_block *b, struct table *t,
                      struct err *err)
{
    int rc = 0;
    TRY(put_columns(p, b, t, err));
    for (int r = 0; r < b->rows.n; r++)
        TRY(put_row(p, b, r, t, err));
out:
    return rc;
}

static int put_texts(struct table *t, const char *const *texts, int n, struct err *err)
{
    int rc = 0;
    TRY(table_row(t, err));
    for (int i = 0; i < n; i++)
        TRY(table_text(t, i, texts[i], err));
out:
    return rc;
}

static int make_numbers(const struct page *p, struct table *t, struct err *err)
{
    static const char *const titles[] = {"row", "column", "printed", "unit"};
    struct paper_number x;
    int rc = 0;
    for (int i = 0; i < 4; i++)
        TRY(text_column(t, titles[i], err));
    for (int64_t i = 0; figure_number(p, i, &x); i++) {
        const char *const texts[] = {x.row, x.column, x.value, x.unit};
        TRY(put_texts(t, texts, 4, err));
    }
out:
    return rc;
}

/* ---- claims ---------------------------------------------------------------------------------- */

/* Numbers below 0.01, such as errors, need more digits than shares. */
static int digits_of(const struct claim_row *r)
{
    double a = fabs(r->mean[0]), b = isfinite(r->mean[1]) ? fabs(r->mean[1]) : 0;
    return a < 0.01 && b < 0.01 ? 5 : 3;
}

static void put_side(const char *label, double mean, int digits, struct buf *b)
{
    buf_reset(b);
    buf_puts(b, label);
    if (isfinite(mean))
        buf_printf(b, "%s%.*f", label[0] ? " " : "", digits, mean);
}

static int put_claim(const struct claim_row *r, struct table *t, struct err *err)
{
    struct buf a = {0}, b = {0}, value = {0}, n = {0}, state = {0};
    int digits = digits_of(r), rc = 0;
    put_side(r->a, r->mean[0], digits, &a);
    put_side(r->b, r->mean[1], digits, &b);
    if (isfinite(r->value.value))
        buf_printf(&value, strncmp(r->test, "A - B", 5) == 0 ? "%+.*f" : "%.*f", digits,
                   r->value.value);
    if (isfinite(r->value.lo) && r->value.n > 1)
        buf_printf(&value, " [%.*f, %.*f]", digits, r->value.lo, digits, r->value.hi);
    if (r->value.n)
        buf_printf(&n, "%lld %s", (long long)r->value.n, r->of);
    buf_printf(&state, "%s%s%s", claim_state_names[r->state], r->why[0] ? ": " : "", r->why);
    const char *const texts[] = {r->text,     r->printed,     r->model, r->metric,
                                 buf_str(&a), buf_str(&b),    r->test,  buf_str(&value),
                                 buf_str(&n), buf_str(&state)};
    rc = put_texts(t, texts, 10, err);
    buf_free(&a);
    buf_free(&b);
    buf_free(&value);
    buf_free(&n);
    buf_free(&state);
    return rc;
}

static int make_claims(const struct page *p, struct table *t, struct err *err)
{
    static const char *const titles[] = {"claim", "printed", "model",        "metric", "A",
                                         "B",     "test",    "value [95 %]", "n",      "ours"};
    int rc = 0;
    for (int i = 0; i < 10; i++)
        TRY(text_column(t, titles[i], err));
    for (int64_t i = 0; i < p->n_claims; i++)
        TRY(put_claim(&p->claims[i], t, err));
out:
    return rc;
}

/* ---- all ------------------------------------------------------------------------------------- */

int page_tables_make(const struct page *p, struct page_tables *out, struct err *err)
{
    struct paper_number x;
    int rc = 0;
    TRY(mem_zalloc(&out->t, p->n_blocks + 2, sizeof *out->t, "tables", err));
    for (int i = 0; i < p->n_blocks; i++) {
        struct table *t = &out->t[out->n++];
        table_init(t, "page", "Printed / ours");
        TRY(make_block(p, &p->blocks[i], t, err));
    }
    out->n_blocks = out->n;
    if (figure_number(p, 0, &x)) {
        table_init(&out->t[out->n++], "printed", "Printed numbers");
        TRY(make_numbers(p, &out->t[out->n - 1], err));
    }
    if (p->n_claims) {
        table_init(&out->t[out->n++], "claims", "Claims");
        TRY(make_claims(p, &out->t[out->n - 1], err));
    }
out:
    return rc;
}

void page_tables_free(struct page_tables *t)
{
    for (int i = 0; i < t->n; i++)
        table_free(&t->t[i]);
    free(t->t);
    memset(t, 0, sizeof *t);
}
