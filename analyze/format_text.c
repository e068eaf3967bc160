/*
 * format_text.c - sheets as aligned text for a terminal, and as Markdown. Where a line of text is
 * too long, texts and heads wrap in their cells.
 */
#include "analyze/format_impl.h"

#include "core/text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

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

static void md_escape(const char *s, struct buf *b)
{
    for (; *s; s++) {
        buf_puts(b, md_special(s) ? "\\" : "");
        buf_put(b, *s == '\n' || *s == '\r' ? " " : s, 1);
    }
}

static void put_list(const struct str_list *items, int64_t from, int64_t to, bool md, int width,
                     struct buf *b)
{
    struct buf text = {0};
    for (int64_t i = from; i < to; i++) {
        int indent = (int)strspn(items->items[i], " ");
        buf_reset(&text);
        if (md)
            md_escape(items->items[i] + indent, &text);
        else
            buf_puts(&text, items->items[i] + indent);
        buf_printf(b, "%*s%s", indent, "", md ? "- " : "");
        if (md)
            buf_printf(b, "%s\n", buf_str(&text));
        else
            text_wrap(b, buf_str(&text), indent, indent + 2, width);
    }
    b->failed |= text.failed;
    buf_free(&text);
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
static void narrow(struct layout *l)
{
    int64_t at = -1;
    for (int64_t c = 0; c < l->s->n_cols; c++)
        if (l->width[c] > l->least[c] && (at < 0 || l->width[c] > l->width[at]))
            at = c;
    if (at >= 0)
        l->width[at]--;
}

static bool layout_make(const struct sheet *s, struct layout *l)
{
    int total = -GAP, spare = 0;
    *l = (struct layout){s, calloc((size_t)s->n_cols + 1, sizeof(int)),
                         calloc((size_t)s->n_cols + 1, sizeof(int)),
                         calloc((size_t)s->n_cols + 1, sizeof(bool))};
    if (!l->width || !l->least || !l->star)
        return false;
    for (int64_t c = 0; c < s->n_cols; c++) {
        measure(l, c);
        total += l->width[c] + GAP;
        spare += l->width[c] - l->least[c];
    }
    /* A table that stays too wide keeps its widths. */
    for (bool fits = total - s->width <= spare; fits && total > s->width; total--)
        narrow(l);
    return true;
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

/* Line `number` of a row whose texts wrap; false: no cell has so many lines. */
static bool put_line(const struct layout *l, int64_t row, int number, struct buf *b)
{
    const struct sheet *s = l->s;
    bool any = false;
    size_t start = b->len;
    for (int64_t c = 0; c < s->n_cols; c++) {
        const char *text = text_at(s, row, c);
        int width = l->width[c] - l->star[c];
        size_t len = piece_of(text, width);
        for (int i = 0; i < number; i++) {
            text += len;
            len = piece_of(text, width);
        }
        any |= len > 0;
        len -= len && text[len - 1] == ' ';
        buf_printf(b, "%*s", c ? GAP : 0, "");
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

void text_show(const struct sheet *s, struct buf *b)
{
    struct layout l;
    text_wrap(b, s->title, 0, 0, s->width);
    if (s->caption[0])
        text_wrap(b, s->caption, 0, 0, s->width);
    b->failed |= !layout_make(s, &l);
    buf_puts(b, s->n_rows ? "\n" : "");
    for (int64_t r = LINE_HEAD; r < s->n_rows && s->n_rows && !b->failed; r++)
        for (int i = 0; (r != LINE_UNIT || has_units(s)) && put_line(&l, r, i, b); i++)
            ;
    put_tail(s, false, b);
    free(l.width);
    free(l.least);
    free(l.star);
}

/* ---- Markdown ------------------------------------------------------------------------------- */

/* Text of a cell, or of the head with its unit (row -1). */
static void md_text(const struct sheet *s, int64_t row, int64_t c, struct buf *b)
{
    const char *star = row >= 0 && sheet_cell(s, row, c)->best ? "**" : "";
    buf_reset(b);
    buf_puts(b, star);
    md_escape(text_at(s, row < 0 ? LINE_HEAD : row, c), b);
    buf_puts(b, star);
    if (row < 0 && s->cols[c].unit[0]) {
        buf_puts(b, " [");
        md_escape(s->cols[c].unit, b);
        buf_puts(b, "]");
    }
}

static void md_grid(const struct sheet *s, int *width, struct buf *b)
{
    struct buf text = {0};
    for (int64_t c = 0; c < s->n_cols; c++) {
        width[c] = 2; /* the rule below the head is at least "-:" */
        for (int64_t r = -1; r < s->n_rows; r++) {
            md_text(s, r, c, &text);
            int own = utf8_count(buf_str(&text));
            width[c] = own > width[c] ? own : width[c];
        }
    }
    for (int64_t r = -1; r < s->n_rows; r++) {
        buf_puts(b, "|");
        for (int64_t c = 0; c < s->n_cols; c++) {
            md_text(s, r, c, &text);
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
    buf_free(&text);
}

void md_show(const struct sheet *s, struct buf *b)
{
    int *width = calloc((size_t)s->n_cols + 1, sizeof *width);
    b->failed |= !width;
    buf_puts(b, "**");
    md_escape(s->title, b);
    buf_puts(b, "**\n");
    if (s->caption[0]) {
        buf_puts(b, "\n");
        text_wrap(b, s->caption, 0, 0, s->width);
    }
    buf_puts(b, s->n_rows ? "\n" : "");
    if (width && s->n_rows)
        md_grid(s, width, b);
    put_tail(s, true, b);
    free(width);
}
