/*
 * format.c - the table formats. CSV and JSON carry every digit, and of a group mean, standard
 * deviation, n, minimum, median and maximum on their own; what people see is a sheet (sheet.h).
 *
 * Numbers for people: four significant digits of the largest value of a column, the same number of
 * decimals in its rows, but what is too small for them with four digits of its own (a deviation
 * with two), and never 1 for less than 1. A deviation that is rounding of the values is 0. A column
 * in which some mean with its deviation leaves the values that the metric can take shows medians
 * and quartiles.
 *
 * Text: where a line is too long, texts and heads wrap in their cells; columns that still do not
 * fit stand in parts below, with the keys of the rows. LaTeX (booktabs): a float that is no wider
 * than the text, its notes part of the caption, or grids one below the other.
 */
#include "analyze/format.h"

#include "analyze/metricfacts.h"
#include "core/json.h"
#include "core/mem.h"

#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers -------------------------------------------------------------------------------- */

static double shown_value(const struct column *c, const struct cell *cell)
{
    return (c->type == COL_STATS ? cell->stats.mean : cell->num) * c->scale;
}

/* Values that differ in their last bits, such as sums in another order, agree: a deviation of 1e-16
 * beside 0.3 says nothing. It is judged by the values, so that the deviation of values that are
 * small themselves stays. */
static double shown_sd(const struct stats *s)
{
    double largest = fmax(fabs(s->min), fabs(s->max));
    return s->sd <= 64 * DBL_EPSILON * largest ? 0 : s->sd;
}

/* Would "mean +- deviation" claim values that the metric cannot take? */
static bool leaves_range(const struct column *c, const struct stats *s)
{
    if (s->n < 2 || c->axis == AXIS_PLAIN || shown_sd(s) == 0 || metric_of_model(c->name))
        return false;
    return s->mean - s->sd < 0 || (c->axis == AXIS_SHARE && s->mean + s->sd > 1);
}

static bool has_quartiles(const struct table *t, int64_t col)
{
    for (int64_t i = 0; i < t->n_rows && t->cols[col].type == COL_STATS; i++)
        if (table_cell(t, i, col)->set &&
            leaves_range(&t->cols[col], &table_cell(t, i, col)->stats))
            return true;
    return false;
}

static struct digits format_digits(const struct table *t, int64_t col, int digits)
{
    const struct column *c = &t->cols[col];
    double largest = 0;
    bool quartiles = has_quartiles(t, col);
    if (c->mixed && c->type != COL_INT)
        return (struct digits){true, false, 0, quartiles};
    for (int64_t i = 0; i < t->n_rows; i++) {
        const struct cell *cell = table_cell(t, i, col);
        double x = fabs(shown_value(c, cell));
        if (cell->set && isfinite(x))
            largest = fmax(largest, x);
    }
    if (c->type == COL_INT || largest == 0)
        return (struct digits){false, false, c->type == COL_INT ? 0 : digits, quartiles};
    if (largest >= 1e7 || largest < 1e-3)
        return (struct digits){false, true, digits - 1, quartiles};
    int decimals = largest >= 0.1 && largest < (digits < 4 ? 1.0005 : 10)
                       ? digits
                       : digits - 1 - (int)floor(log10(largest));
    return (struct digits){false, false, decimals < 0 ? 0 : decimals, quartiles};
}

struct digits *format_all_digits(const struct table *t, int digits, struct buf *b)
{
    struct digits *d = calloc((size_t)t->n_cols + 1, sizeof *d);
    if (!d)
        b->failed = true;
    for (int64_t c = 0; d && c < t->n_cols; c++)
        d[c] = format_digits(t, c, digits);
    return d;
}

/* A share just below 1 must not read as 1, unless it is the rounding of a sum. */
static int decimals_below_one(double x, int decimals)
{
    double rest = 1 - fabs(x);
    if (rest < 1e-9 || rest > 0.5 * pow(10, -decimals))
        return decimals;
    return (int)ceil(-log10(rest));
}

/* digits: of what is too small for the column's decimals. */
static void put_finite(double x, struct digits d, int digits, struct buf *b)
{
    int usual = d.mixed ? 4 : d.decimals, decimals = decimals_below_one(x, usual);
    bool small = fabs(x) < pow(10, 1 - usual); /* two digits would not be left of it */
    if (x == 0)
        buf_printf(b, "%.*f", d.mixed || d.scientific ? 0 : d.decimals, 0.0);
    else if (d.scientific)
        buf_printf(b, "%.*e", d.decimals, x);
    else if (decimals == usual && (d.mixed || small))
        buf_printf(b, "%.*g", d.mixed ? 4 : digits, x);
    else
        buf_printf(b, "%.*f", decimals, x);
}

void format_number(double x, struct digits d, int digits, struct buf *b)
{
    if (isnan(x))
        buf_puts(b, "nan");
    else if (isinf(x))
        buf_puts(b, x < 0 ? "-inf" : "inf");
    else
        put_finite(x, d, digits, b);
}

void format_interval(const struct column *c, const struct stats *s, struct buf *b)
{
    double low, high;
    if (!s->zero_one || !metric_yes_no(c->name))
        return;
    stats_wilson(s, &low, &high);
    buf_printf(b, " [%.2f, %.2f]", low, high);
}

static void put_stats(const struct table *t, int64_t row, int64_t col, struct digits d,
                      const char *pm, struct buf *b)
{
    const struct stats *s = &table_cell(t, row, col)->stats;
    double scale = t->cols[col].scale;
    int64_t n_col = table_find(t, "n");
    if (s->all_inf) {
        buf_puts(b, "inf");
        return;
    }
    if (s->n == 0) {
        buf_printf(b, "no finite value (%lld)", (long long)s->n_bad);
        return;
    }
    format_number((d.quartiles ? s->median : s->mean) * scale, d, 4, b);
    if (d.quartiles && s->n > 1) {
        buf_puts(b, " (");
        format_number(s->q1 * scale, d, 4, b);
        buf_puts(b, " to ");
        format_number(s->q3 * scale, d, 4, b);
        buf_puts(b, ")");
    } else if (s->zero_one && metric_yes_no(t->cols[col].name)) {
        format_interval(t->cols + col, s, b);
    } else if (!isnan(s->sd)) {
        buf_puts(b, pm);
        format_number(shown_sd(s) * scale, d, 2, b);
    }
    if (n_col >= 0 && table_cell(t, row, n_col)->num != (double)s->n)
        buf_printf(b, " (n=%lld)", (long long)s->n);
}

void format_cell(const struct table *t, int64_t row, int64_t col, struct digits d, const char *pm,
                 struct buf *b)
{
    const struct cell *cell = table_cell(t, row, col);
    if (!cell->set)
        buf_puts(b, "-");
    else if (t->cols[col].type == COL_TEXT)
        buf_puts(b, !cell->text[0] && table_has_params(t, col) ? "(defaults)" : cell->text);
    else if (t->cols[col].type == COL_STATS)
        put_stats(t, row, col, d, pm, b);
    else
        format_number(shown_value(&t->cols[col], cell), d, 4, b);
}

/* ---- CSV (RFC 4180) ------------------------------------------------------------------------- */

/* Would a spreadsheet compute this text? Numbers may begin with a sign. */
static bool is_formula(const char *s)
{
    char *end;
    if (!*s || !strchr("=+-@\t\r", *s) || !s[1])
        return false;
    strtod(s, &end);
    return end == s || *end || strpbrk(s, "xX(");
}

/* One field by RFC 4180: quoted when it holds a comma, a quote or a line break. A text that a
 * spreadsheet would take for a formula gets an apostrophe in front, which keeps it a text there. */
static void csv_field(const char *s, struct buf *b)
{
    bool formula = is_formula(s);
    if (!formula && !strpbrk(s, ",\"\r\n")) {
        buf_puts(b, s);
        return;
    }
    buf_puts(b, formula ? "\"'" : "\"");
    for (; *s; s++) {
        if (*s == '"')
            buf_puts(b, "\"");
        buf_put(b, s, 1);
    }
    buf_puts(b, "\"");
}

static void csv_number(double x, struct buf *b)
{
    char text[32];
    if (isnan(x))
        return; /* no value: an empty field */
    if (isinf(x)) {
        buf_puts(b, x < 0 ? "-inf" : "inf");
        return;
    }
    num_text(x, text);
    buf_puts(b, text);
}

/* What a column of statistics has in CSV, and how many of these parts. */
static const char *const stats_parts[] = {"",        "_sd",  "_n",   "_min",
                                          "_median", "_max", "_low", "_high"};

static int csv_parts(const struct column *c)
{
    return metric_yes_no(c->name) ? 8 : 6;
}

static void csv_stats(const struct column *c, const struct cell *cell, struct buf *b)
{
    const struct stats *s = &cell->stats;
    double x[8] = {s->mean, s->sd, NAN, s->min, s->median, s->max, NAN, NAN};
    if (s->zero_one)
        stats_wilson(s, x + 6, x + 7);
    for (int i = 0; i < csv_parts(c); i++) {
        buf_puts(b, i ? "," : "");
        if (cell->set && i == 2)
            buf_printf(b, "%lld", (long long)s->n);
        else if (cell->set)
            csv_number(x[i], b);
    }
}

static void csv_header(const struct table *t, struct buf *b)
{
    OWN(buf_free) struct buf name = {0};
    for (int64_t c = 0; c < t->n_cols; c++) {
        int n = t->cols[c].type == COL_STATS ? csv_parts(t->cols + c) : 1;
        for (int i = 0; i < n; i++) {
            buf_reset(&name);
            buf_printf(&name, "%s%s", t->cols[c].name, stats_parts[i]);
            buf_puts(b, c || i ? "," : "");
            csv_field(buf_str(&name), b);
        }
    }
    buf_puts(b, "\r\n");
}

static void csv_write(const struct table *t, struct buf *b)
{
    csv_header(t, b);
    for (int64_t r = 0; r < t->n_rows; r++) {
        for (int64_t c = 0; c < t->n_cols; c++) {
            const struct cell *cell = table_cell(t, r, c);
            buf_puts(b, c ? "," : "");
            if (t->cols[c].type == COL_STATS)
                csv_stats(t->cols + c, cell, b);
            else if (cell->set && t->cols[c].type == COL_TEXT)
                csv_field(cell->text, b);
            else if (cell->set)
                csv_number(cell->num, b);
        }
        buf_puts(b, "\r\n");
    }
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static void json_stats(struct jw *w, const struct column *c, const struct stats *s)
{
    double low, high;
    jw_obj(w);
    jw_members(w, JW_NUM("mean", s->mean), JW_NUM("sd", s->sd), JW_INT("n", s->n),
               JW_NUM("min", s->min), JW_NUM("median", s->median), JW_NUM("max", s->max));
    if (s->zero_one && metric_yes_no(c->name)) {
        stats_wilson(s, &low, &high);
        jw_members(w, JW_NUM("low", low), JW_NUM("high", high));
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
    jw_karr(w, "columns");
    for (int64_t c = 0; c < t->n_cols; c++)
        jw_row(w, JW_STR("name", t->cols[c].name), JW_STR("title", t->cols[c].title),
               JW_STR("unit", t->cols[c].unit));
    jw_arr_end(w);
}

static void json_write(const struct table *t, struct buf *b)
{
    struct jw w;
    jw_init(&w, b, 1);
    jw_obj(&w);
    jw_members(&w, JW_STR("table", t->name), JW_STR("title", t->title));
    json_columns(&w, t);
    jw_karr(&w, "rows");
    for (int64_t r = 0; r < t->n_rows; r++) {
        jw_obj(&w);
        for (int64_t c = 0; c < t->n_cols; c++)
            json_cell(&w, &t->cols[c], table_cell(t, r, c));
        jw_obj_end(&w);
    }
    jw_arr_end(&w);
    jw_karr(&w, "notes");
    for (int64_t i = 0; i < t->notes.n; i++)
        jw_str(&w, t->notes.items[i]);
    jw_arr_end(&w);
    jw_obj_end(&w);
    buf_puts(b, "\n");
}

/* ---- parts of text and Markdown ------------------------------------------------------------- */

#define GAP 2        /* characters between two columns of text */
#define NARROWEST 12 /* characters of a column whose words are cut */

enum line { LINE_HEAD = -2, LINE_UNIT = -1 }; /* rows from 0 on */

static void put_padded(const char *text, int len, int width, bool right, struct buf *b)
{
    char piece[512];
    snprintf(piece, sizeof piece, "%.*s", len, text);
    int pad = width - utf8_count(piece);
    buf_printf(b, "%*s", right && pad > 0 ? pad : 0, "");
    buf_put(b, text, (size_t)len);
    buf_printf(b, "%*s", !right && pad > 0 ? pad : 0, "");
}

/* Without the spaces that pad the last column. */
static void end_line(struct buf *b)
{
    while (b->len && b->data[b->len - 1] == ' ')
        b->data[--b->len] = '\0';
    buf_puts(b, "\n");
}

/* Would s[0] begin HTML, a character reference or an escape, or end the text of a link? A sign
 * between blanks does not, and stays as people write it. */
static bool md_special(const char *s)
{
    bool letter = isalpha((unsigned char)s[1]);
    switch (*s) {
    case '|':
        return true;
    case '<':
        return letter || (s[1] && strchr("/!?", s[1]));
    case '&':
        return letter || s[1] == '#';
    case '\\':
        return ispunct((unsigned char)s[1]);
    case ']':
        return s[1] == '(';
    default:
        return false;
    }
}

void md_text(const char *s, struct buf *b)
{
    for (; *s; s++) {
        bool special = md_special(s);
        if (special && *s == '<') {
            buf_puts(b, "&lt;"); /* a backslash does not hide it from every reader */
            continue;
        }
        buf_puts(b, special ? "\\" : "");
        buf_put(b, *s == '\n' || *s == '\r' ? " " : s, 1);
    }
}

static void put_list(const struct str_list *items, int64_t from, int64_t to, bool md, int width,
                     struct buf *b)
{
    OWN(buf_free) struct buf text = {0};
    for (int64_t i = from; i < to; i++) {
        int indent = (int)strspn(items->items[i], " ");
        buf_reset(&text);
        if (md)
            md_text(items->items[i] + indent, &text);
        else
            buf_puts(&text, items->items[i] + indent);
        buf_printf(b, "%*s%s", indent, "", md ? "- " : "");
        if (md)
            buf_printf(b, "%s\n", buf_str(&text));
        else
            text_wrap(b, buf_str(&text), indent, indent + 2, width);
    }
    b->failed |= text.failed;
}

/* Notes, hints and sentences, as lines or as a list. */
static void put_tail(const struct sheet *s, bool md, struct buf *b)
{
    buf_puts(b, s->notes.n + s->hints.n ? "\n" : "");
    put_list(&s->notes, 0, s->n_own, md, s->width, b);
    put_list(&s->hints, 0, s->hints.n, md, s->width, b);
    put_list(&s->notes, s->n_own, s->notes.n, md, s->width, b);
    buf_puts(b, s->sentences.n ? "\n" : "");
    put_list(&s->sentences, 0, s->sentences.n, md, s->width, b);
}

/* ---- text ----------------------------------------------------------------------------------- */

/* Columns of text: their widths, what they may shrink to, and room for a star right of numbers. */
struct layout {
    const struct sheet *s;
    int *width, *least; /* owned */
    bool *star;         /* owned: the column has a best number */
};

static const char *text_at(const struct sheet *s, int64_t row, int64_t col)
{
    const char *text = row == LINE_HEAD   ? s->cols[col].head
                       : row == LINE_UNIT ? s->cols[col].unit
                                          : sheet_cell(s, row, col)->text;
    return text ? text : "";
}

/* May a line break behind this character? Numbers and names with a hyphen stay whole. */
static bool may_break(const char *s)
{
    return strchr(" :,;=/_@+", *s) != NULL || (*s == '.' && !isdigit((unsigned char)s[1]));
}

/* Characters of the longest piece that does not break. */
static int longest_piece(const char *text)
{
    int longest = 0, chars = 0;
    for (; *text; text++) {
        chars += ((unsigned char)*text & 0xc0) != 0x80 && *text != ' ';
        longest = chars > longest ? chars : longest;
        if (may_break(text))
            chars = 0;
    }
    return longest;
}

/* Texts and heads wrap between their words, longer words down to a width that one can read. */
static void measure(struct layout *l, int64_t c)
{
    const struct sheet *s = l->s;
    bool right = s->cols[c].right;
    for (int64_t r = LINE_HEAD; r < s->n_rows; r++) {
        const char *text = text_at(s, r, c);
        int w = utf8_count(text), least = right && r != LINE_HEAD ? w : longest_piece(text);
        l->width[c] = w > l->width[c] ? w : l->width[c];
        l->least[c] = least > l->least[c] ? least : l->least[c];
        l->star[c] |= r >= 0 && sheet_cell(s, r, c)->best;
    }
    l->width[c] += l->star[c];
    l->least[c] += l->star[c];
    if (!right && l->least[c] > NARROWEST)
        l->least[c] = NARROWEST;
}

/* Take a character off the widest column that can give one. */
static bool narrow(struct layout *l)
{
    int64_t at = -1;
    for (int64_t c = 0; c < l->s->n_cols; c++)
        if (l->width[c] > l->least[c] && (at < 0 || l->width[c] > l->width[at]))
            at = c;
    if (at >= 0)
        l->width[at]--;
    return at >= 0;
}

static bool layout_make(const struct sheet *s, struct layout *l)
{
    int total = -GAP;
    *l = (struct layout){s, calloc((size_t)s->n_cols + 1, sizeof(int)),
                         calloc((size_t)s->n_cols + 1, sizeof(int)),
                         calloc((size_t)s->n_cols + 1, sizeof(bool))};
    if (!l->width || !l->least || !l->star)
        return false;
    for (int64_t c = 0; c < s->n_cols; c++) {
        measure(l, c);
        total += l->width[c] + GAP;
    }
    for (; total > s->width && narrow(l); total--)
        ;
    return true;
}

/* The end of the columns from `from` on that fit beside the keys. */
static int64_t part_end(const struct layout *l, int64_t from)
{
    int total = -GAP;
    int64_t c = from;
    for (int64_t k = 0; k < l->s->n_cols; k++)
        total += l->s->cols[k].key ? l->width[k] + GAP : 0;
    for (bool any = false; c < l->s->n_cols; c++) {
        int own = l->s->cols[c].key ? 0 : l->width[c] + GAP;
        if (any && total + own > l->s->width)
            break;
        any |= own > 0;
        total += own;
    }
    return c;
}

/* Bytes of the text that fit into `width` characters, up to a sign where it may break; a blank at
 * the end needs no room. */
static size_t piece_of(const char *text, int width)
{
    size_t fits = 0, sign = 0;
    int chars = 0;
    while (text[fits]) {
        size_t next = fits + 1;
        while (((unsigned char)text[next] & 0xc0) == 0x80)
            next++;
        if (++chars > width)
            return text[fits] == ' ' ? next : sign ? sign : fits;
        fits = next;
        if (may_break(&text[fits - 1]))
            sign = fits;
    }
    return fits;
}

/* Line `number` of a row whose texts wrap, of keys and columns [from, to); false: no cell has so
 * many lines. */
static bool put_line(const struct layout *l, int64_t row, int number, int64_t from, int64_t to,
                     struct buf *b)
{
    const struct sheet *s = l->s;
    bool any = false;
    size_t start = b->len;
    for (int64_t c = 0; c < s->n_cols; c++) {
        if (!s->cols[c].key && (c < from || c >= to))
            continue;
        const char *text = text_at(s, row, c);
        int width = l->width[c] - l->star[c];
        size_t len = piece_of(text, width);
        for (int i = 0; i < number; i++) {
            text += len;
            len = piece_of(text, width);
        }
        any |= len > 0;
        len -= len && text[len - 1] == ' ';
        buf_printf(b, "%*s", b->len > start ? GAP : 0, "");
        put_padded(text, (int)len, width, s->cols[c].right, b);
        if (l->star[c])
            buf_puts(b, row >= 0 && number == 0 && sheet_cell(s, row, c)->best ? "*" : " ");
    }
    if (any || number == 0)
        end_line(b);
    else if (!b->failed)
        b->data[b->len = start] = '\0';
    return any;
}

static bool has_units(const struct sheet *s)
{
    for (int64_t c = 0; c < s->n_cols; c++)
        if (s->cols[c].unit[0])
            return true;
    return false;
}

static void text_show(const struct sheet *s, struct buf *b)
{
    struct layout l;
    text_wrap(b, s->title, 0, 0, s->width);
    if (s->caption[0])
        text_wrap(b, s->caption, 0, 0, s->width);
    b->failed |= !layout_make(s, &l);
    buf_puts(b, s->n_rows ? "\n" : "");
    for (int64_t from = 0, to; from < s->n_cols && s->n_rows && !b->failed; from = to) {
        to = part_end(&l, from);
        buf_puts(b, from ? "\n" : "");
        for (int64_t r = LINE_HEAD; r < s->n_rows; r++)
            for (int i = 0; (r != LINE_UNIT || has_units(s)) && put_line(&l, r, i, from, to, b);
                 i++)
                ;
    }
    put_tail(s, false, b);
    free(l.width);
    free(l.least);
    free(l.star);
}

/* ---- Markdown ------------------------------------------------------------------------------- */

/* Text of a cell, or of the head with its unit (row -1). */
static void md_cell(const struct sheet *s, int64_t row, int64_t c, struct buf *b)
{
    const char *star = row >= 0 && sheet_cell(s, row, c)->best ? "**" : "";
    buf_reset(b);
    buf_puts(b, star);
    md_text(text_at(s, row < 0 ? LINE_HEAD : row, c), b);
    buf_puts(b, star);
    if (row < 0 && s->cols[c].unit[0]) {
        buf_puts(b, " [");
        md_text(s->cols[c].unit, b);
        buf_puts(b, "]");
    }
}

static void md_grid(const struct sheet *s, int *width, struct buf *b)
{
    OWN(buf_free) struct buf text = {0};
    for (int64_t c = 0; c < s->n_cols; c++) {
        width[c] = 2; /* the rule below the head is at least "-:" */
        for (int64_t r = -1; r < s->n_rows; r++) {
            md_cell(s, r, c, &text);
            int own = utf8_count(buf_str(&text));
            width[c] = own > width[c] ? own : width[c];
        }
    }
    for (int64_t r = -1; r < s->n_rows; r++) {
        buf_puts(b, "|");
        for (int64_t c = 0; c < s->n_cols; c++) {
            md_cell(s, r, c, &text);
            int pad = width[c] - utf8_count(buf_str(&text)), right = s->cols[c].right;
            buf_printf(b, " %*s%s%*s |", right ? pad : 0, "", buf_str(&text), right ? 0 : pad, "");
        }
        buf_puts(b, r < 0 ? "\n|" : "\n");
        for (int64_t c = 0; c < s->n_cols && r < 0; c++) {
            buf_puts(b, s->cols[c].right ? " " : " :");
            for (int i = 1; i < width[c]; i++)
                buf_puts(b, "-");
            buf_puts(b, s->cols[c].right ? ": |" : " |");
        }
        buf_puts(b, r < 0 ? "\n" : "");
    }
    b->failed |= text.failed;
}

static void md_show(const struct sheet *s, struct buf *b)
{
    OWN(free_at) int *width = calloc((size_t)s->n_cols + 1, sizeof *width);
    b->failed |= !width;
    buf_puts(b, "**");
    md_text(s->title, b);
    buf_puts(b, "**\n");
    if (s->caption[0]) {
        OWN(buf_free) struct buf text = {0};
        buf_puts(b, "\n");
        md_text(s->caption, &text);
        text_wrap(b, buf_str(&text), 0, 0, s->width);
        b->failed |= text.failed;
    }
    buf_puts(b, s->n_rows ? "\n" : "");
    if (width && s->n_rows)
        md_grid(s, width, b);
    put_tail(s, true, b);
}

/* ---- LaTeX ---------------------------------------------------------------------------------- */

#define TEX_GRID_ROWS 40 /* that fit on a page, so that a longer table is no float */

void tex_text(const char *s, struct buf *b)
{
    for (; *s; s++) {
        if (*s == '\\')
            buf_puts(b, "\\textbackslash{}");
        else if (*s == '~' || *s == '^')
            buf_puts(b, *s == '~' ? "\\textasciitilde{}" : "\\textasciicircum{}");
        else if (*s == '<' || *s == '>')
            buf_puts(b, *s == '<' ? "\\textless{}" : "\\textgreater{}");
        else if (*s == '|' || *s == '[') /* a bracket after the end of a row would be its option */
            buf_puts(b, *s == '|' ? "\\textbar{}" : "{[}");
        else if (strchr("{}$&#_%", *s))
            buf_printf(b, "\\%c", *s);
        else if (s[0] == '-' && s[1] == '-')
            buf_puts(b, "-{}");
        else if (strncmp(s, "\u00b1", 2) == 0) {
            buf_puts(b, "$\\pm$");
            s++;
        } else
            buf_put(b, *s == '\n' || *s == '\r' ? " " : s, 1);
    }
}

/* "1.5e-07 +- ..." with a product in place of the exponent, a thin space before %. */
static void tex_number(const char *s, struct buf *b)
{
    for (; *s; s++) {
        if (*s == 'e' && (s[1] == '-' || s[1] == '+')) {
            char *end;
            buf_printf(b, "$\\times10^{%ld}$", strtol(s + 1, &end, 10));
            s = end - 1;
        } else if (strncmp(s, " %", 2) == 0) {
            buf_puts(b, "\\,\\%");
            s++;
        } else if (strncmp(s, " \u00b1 ", 4) == 0) {
            buf_puts(b, "$\\pm$");
            s += 3;
        } else {
            const char one[2] = {*s, '\0'};
            tex_text(one, b);
        }
    }
}

static void tex_cell(const struct sheet *s, int64_t row, int64_t c, struct buf *b)
{
    const struct sheet_cell *cell = sheet_cell(s, row, c);
    buf_puts(b, cell->best ? "\\textbf{" : "");
    if (s->cols[c].right)
        tex_number(cell->text, b);
    else
        tex_text(cell->text, b);
    buf_puts(b, cell->best ? "}" : "");
}

static void tex_line(const struct sheet *s, int64_t row, struct buf *b)
{
    for (int64_t c = 0; c < s->n_cols; c++) {
        buf_puts(b, c ? " & " : "");
        if (row >= 0)
            tex_cell(s, row, c, b);
        else
            tex_text(row == LINE_HEAD ? s->cols[c].head : s->cols[c].unit, b);
    }
    buf_puts(b, " \\\\\n");
}

static void tex_head(const struct sheet *s, struct buf *b)
{
    buf_puts(b, "\\toprule\n");
    tex_line(s, LINE_HEAD, b);
    if (has_units(s))
        tex_line(s, LINE_UNIT, b);
    buf_puts(b, "\\midrule\n");
}

/* No space outside of the outer columns. */
static void tex_columns(const struct sheet *s, struct buf *b)
{
    buf_puts(b, "{@{}");
    for (int64_t c = 0; c < s->n_cols; c++)
        buf_puts(b, s->cols[c].right ? "r" : "l");
    buf_puts(b, "@{}}\n");
}

/* Text of a paragraph: names and settings may break behind their signs. */
static void tex_paragraph(const char *s, struct buf *b)
{
    for (; *s; s++) {
        size_t n = strcspn(s, ",:/=_+");
        char part[256];
        n += s[n] != '\0';
        n = n < sizeof part ? n : sizeof part - 1;
        snprintf(part, sizeof part, "%.*s", (int)n, s);
        tex_text(part, b);
        s += n - 1;
        if (s[1] && s[1] != ' ' && strchr(",:/=_+", *s))
            buf_puts(b, "\\allowbreak{}");
    }
}

static void tex_notes(const struct sheet *s, const char *before, struct buf *b)
{
    for (int64_t i = 0; i < s->notes.n; i++) {
        const char *note = s->notes.items[i];
        bool stop = note[0] && strchr(".:", note[strlen(note) - 1]);
        buf_puts(b, before);
        if (strncmp(note, "*: ", 3) == 0) {
            buf_puts(b, "Bold: ");
            note += 3;
        }
        tex_paragraph(note, b);
        buf_puts(b, stop ? "" : ".");
    }
}

/* A float has its notes in the caption, for want of a better place. */
static void tex_caption(const struct sheet *s, bool notes, struct buf *b)
{
    buf_printf(b, "\\caption[");
    tex_text(s->title, b);
    buf_puts(b, "]{\\sloppy ");
    tex_text(s->title, b);
    buf_puts(b, ".");
    if (s->caption[0]) {
        buf_puts(b, " ");
        tex_paragraph(s->caption, b);
        buf_puts(b, ".");
    }
    if (notes)
        tex_notes(s, "\n", b);
    buf_printf(b, "}\\label{tab:%s}\n", s->name);
}

/* Rows [from, to), scaled down to the width of the text where they are wider. */
static void tex_grid(const struct sheet *s, int64_t from, int64_t to, struct buf *b)
{
    buf_puts(b, "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%\n"
                "\\begin{tabular}");
    tex_columns(s, b);
    tex_head(s, b);
    for (int64_t r = from; r < to; r++)
        tex_line(s, r, b);
    buf_puts(b, "\\bottomrule\n\\end{tabular}}\n");
}

static void tex_float(const struct sheet *s, struct buf *b)
{
    buf_puts(b, "% needs \\usepackage{booktabs,graphicx}\n\\begin{table}\n\\centering\n");
    tex_caption(s, true, b);
    buf_puts(b, "\\setlength{\\tabcolsep}{3pt}\\footnotesize\n");
    if (s->n_rows)
        tex_grid(s, 0, s->n_rows, b);
    buf_puts(b, "\\end{table}\n");
}

/* No float, whose number LaTeX limits. */
static void tex_long(const struct sheet *s, struct buf *b)
{
    buf_puts(b, "% needs \\usepackage{booktabs,graphicx}\n{\\makeatletter\\def\\@captype{table}"
                "\\makeatother\n");
    tex_caption(s, false, b);
    buf_puts(b, "\\setlength{\\tabcolsep}{3pt}\\footnotesize\\sloppy\n");
    for (int64_t from = 0; from < s->n_rows; from += TEX_GRID_ROWS) {
        int64_t to = from + TEX_GRID_ROWS;
        buf_puts(b, "\\par\\medskip\\noindent\n");
        tex_grid(s, from, to < s->n_rows ? to : s->n_rows, b);
    }
    tex_notes(s, "\\par\n", b);
    buf_puts(b, "\\par}\n");
}

static void tex_comments(const struct str_list *items, struct buf *b)
{
    for (int64_t i = 0; i < items->n; i++)
        buf_printf(b, "%% %s\n", items->items[i]);
}

static void tex_show(const struct sheet *s, struct buf *b)
{
    if (s->n_rows > TEX_GRID_ROWS)
        tex_long(s, b);
    else
        tex_float(s, b);
    tex_comments(&s->hints, b);
    tex_comments(&s->sentences, b);
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
    ".n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\n"
    "th.n{white-space:normal}.unit{font-weight:400;color:#57606a}\n"
    "tbody tr:hover{background:#f6f8fa}\n"
    "code,pre{font:12.5px/1.4 ui-monospace,monospace;background:#f6f8fa}\n"
    "pre{padding:.7em;overflow-x:auto}code{padding:.1em .3em}\n"
    ".best{font-weight:700}.notes{color:#57606a;font-size:13px}figure{margin:1em 0}\n"
    "figure img,figure svg{max-width:100%;height:auto;border:1px solid #e4e8ec}\n"
    "figcaption{font-size:13px;color:#57606a}\n";

void html_text(const char *s, struct buf *b)
{
    OWN(buf_free) struct buf plain = {0};
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
}

static const char *html_class(const struct sheet_column *c, bool best)
{
    return c->key ? " class=\"k\"" : !c->right ? "" : best ? " class=\"n best\"" : " class=\"n\"";
}

/* A text in an element, or nothing. */
static void html_part(const char *open, const char *text, const char *close, struct buf *b)
{
    if (!text || !text[0])
        return;
    buf_puts(b, open);
    html_text(text, b);
    buf_puts(b, close);
}

static void html_rows(const struct sheet *s, struct buf *b)
{
    for (int64_t r = 0; r < s->n_rows; r++) {
        buf_puts(b, "<tr>");
        for (int64_t c = 0; c < s->n_cols; c++) {
            const struct sheet_cell *cell = sheet_cell(s, r, c);
            buf_printf(b, "<td%s>", html_class(&s->cols[c], cell->best));
            html_text(cell->text, b);
            buf_puts(b, "</td>");
        }
        buf_puts(b, "</tr>\n");
    }
}

static void html_notes(const struct str_list *notes, struct buf *b)
{
    for (int64_t i = 0; i < notes->n; i++) {
        const char *text = notes->items[i];
        bool warning = strncmp(text, "! ", 2) == 0, best = strncmp(text, "*: ", 3) == 0;
        buf_puts(b, i ? "<br>" : "<p class=\"notes\">");
        buf_puts(b, warning ? "<span class=\"warn\">" : "");
        buf_puts(b, best ? "Bold: " : "");
        html_text(text + (best ? 3 : warning ? 2 : 0), b);
        buf_puts(b, warning ? "</span>" : "");
    }
    buf_puts(b, notes->n ? "</p>\n" : "");
}

static void html_sheet(const struct sheet *s, struct buf *b)
{
    buf_puts(b, "<div class=\"wide\"><table>\n<caption>");
    html_text(s->title, b);
    html_part(" <span class=\"unit\">", s->caption, "</span>", b);
    buf_puts(b, "</caption>\n<thead><tr>");
    for (int64_t c = 0; c < s->n_cols; c++) {
        buf_printf(b, "<th%s", html_class(&s->cols[c], false));
        html_part(" title=\"", s->cols[c].definition, "\"", b);
        buf_puts(b, ">");
        html_text(s->cols[c].head, b);
        html_part(" <span class=\"unit\">", s->cols[c].unit, "</span>", b);
        buf_puts(b, "</th>");
    }
    buf_puts(b, "</tr></thead>\n<tbody>\n");
    html_rows(s, b);
    buf_puts(b, "</tbody></table></div>\n");
    html_notes(&s->notes, b);
}

int64_t html_table(const struct table *t, const struct sheet_opts *o, struct buf *b)
{
    OWN(sheet_free) struct sheet s = {0};
    sheet_make(t, o, &s);
    int64_t n_cols = s.n_cols;
    if (!s.failed) /* else it lacks texts */
        html_sheet(&s, b);
    b->failed |= s.failed;
    return n_cols;
}

static void html_show(const struct sheet *s, struct buf *b)
{
    buf_puts(b, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>");
    html_text(s->title, b);
    buf_printf(b, "</title>\n<style>%s</style></head><body>\n", html_style);
    html_sheet(s, b);
    buf_puts(b, "</body></html>\n");
}

/* ---- registry ------------------------------------------------------------------------------- */

const struct table_format table_formats[] = {
    {"text", ".txt", "aligned columns", NULL, text_show},
    {"md", ".md", "Markdown, aligned", NULL, md_show},
    {"csv", ".csv", "RFC 4180, full precision", csv_write, NULL},
    {"tex", ".tex", "LaTeX with booktabs", NULL, tex_show},
    {"json", ".json", "JSON, full precision", json_write, NULL},
    {"html", ".html", "one HTML page", NULL, html_show},
    {0},
};

void format_table(const struct table_format *f, const struct table *t, const struct sheet_opts *o,
                  struct buf *b)
{
    struct sheet s;
    if (f->write) {
        f->write(t, b);
        return;
    }
    sheet_make(t, o, &s);
    /* A sheet that failed lacks texts. */
    if (!s.failed)
        f->show(&s, b);
    b->failed |= s.failed;
    sheet_free(&s);
}

const struct table_format *format_find(const char *name, struct err *err)
{
    OWN(buf_free) struct buf all = {0};
    const struct table_format *f = table_formats;
    for (; f->name && strcmp(f->name, name) != 0; f++)
        buf_printf(&all, "%s%s", all.len ? ", " : "", f->name);
    if (!f->name)
        err_set(err, ERR_USAGE, "unknown table format '%s': the formats are %s", name,
                buf_str(&all));
    return f->name ? f : NULL;
}
