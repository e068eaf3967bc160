/*
 * page_tex.c - a page in LaTeX: booktabs alone (figures: graphicx), a table per block, in one
 * column of text where it fits, else across both, and parted by columns where even that is too
 * narrow.
 */
#include "reproduce/pagetext.h"

#include "analyze/format.h"

#include <string.h>

/* Symbols that fonts without Unicode lack. */
static void put(struct buf *b, const char *s)
{
    static const struct {
        const char *from, *to;
    } symbols[] = {{"\u00d7", "$\\times$"}, {"\u2191", "$\\uparrow$"}, {"\u2193", "$\\downarrow$"}};
    while (*s) {
        size_t plain = 0, k = 0, n = sizeof symbols / sizeof *symbols;
        for (k = 0; k < n; k++)
            if (strncmp(s, symbols[k].from, strlen(symbols[k].from)) == 0)
                break;
        if (k < n) {
            buf_puts(b, symbols[k].to);
            s += strlen(symbols[k].from);
            continue;
        }
        while (s[plain] && !(s[plain] & 0x80))
            plain++;
        plain = plain ? plain : 1;
        char text[512];
        plain = plain < sizeof text ? plain : sizeof text - 1;
        memcpy(text, s, plain);
        text[plain] = '\0';
        tex_text(text, b);
        s += plain;
    }
}

static void put_label(const struct page *p, const struct page_block *b, const struct grid_entry *e,
                      int level, struct buf *out)
{
    struct buf t = {0};
    label_text(p, b, e, level, &t);
    put(out, buf_str(&t));
    buf_free(&t);
}

/* How many columns from c on, before `end`, share the first label. */
static int group_size(const struct page_block *b, int c, int end)
{
    int n = 1;
    while (c + n < end && b->columns.e[c].levels > 1 && b->columns.e[c + n].levels > 1 &&
           strcmp(b->columns.e[c].level[0], b->columns.e[c + n].level[0]) == 0)
        n++;
    return n;
}

/* Columns that stand side by side in one tabular. */
struct part {
    int from, to;
};

static void put_groups(const struct page *p, const struct page_block *b, int stubs, struct part in,
                       struct buf *out)
{
    bool any = false;
    for (int c = in.from; c < in.to; c++)
        any = any || b->columns.e[c].levels > 1;
    if (!any)
        return;
    for (int i = 1; i < stubs; i++)
        buf_puts(out, " & ");
    for (int c = in.from; c < in.to; c += group_size(b, c, in.to)) {
        const struct grid_entry *e = &b->columns.e[c];
        buf_printf(out, " & \\multicolumn{%d}{c}{", group_size(b, c, in.to));
        if (e->levels > 1) {
            put_label(p, b, e, 0, out);
            buf_printf(out, "%s", arrow_text(e, " $\\uparrow$", " $\\downarrow$"));
        }
        buf_puts(out, "}");
    }
    buf_puts(out, "\\\\\n");
    for (int c = in.from; c < in.to; c += group_size(b, c, in.to))
        buf_printf(out, "\\cmidrule(lr){%d-%d}", stubs + c - in.from + 1,
                   stubs + c - in.from + group_size(b, c, in.to));
    buf_puts(out, "\n");
}

static void put_heads(const struct page *p, const struct page_block *b, const json_t *stub,
                      struct part in, struct buf *out)
{
    for (size_t i = 0; i < json_array_size(stub); i++) {
        buf_puts(out, i ? " & " : "");
        put(out, json_string_value(json_array_get(stub, i)));
    }
    for (int c = in.from; c < in.to; c++) {
        const struct grid_entry *e = &b->columns.e[c];
        char shared[16];
        buf_puts(out, " & ");
        put_label(p, b, e, e->levels - 1, out);
        if (e->levels == 1)
            buf_printf(out, "%s", arrow_text(e, " $\\uparrow$", " $\\downarrow$"));
        column_letters(b, c, shared);
        if (shared[0])
            buf_printf(out, "$^{%s}$", shared);
    }
    buf_puts(out, "\\\\\\midrule\n");
}

static void put_rows(const struct page *p, const struct page_block *b, int stubs, struct part in,
                     struct buf *out)
{
    for (int r = 0; r < b->rows.n; r++) {
        char shared[16];
        for (int k = 0; k < stubs; k++) {
            buf_puts(out, k ? " & " : "");
            put_label(p, b, &b->rows.e[r], k, out);
            row_letters(b, r, shared);
            if (k == 0 && shared[0])
                buf_printf(out, "$^{%s}$", shared);
        }
        for (int c = in.from; c < in.to; c++) {
            const struct page_cell *cell = page_cell_at(b, r, c);
            struct buf t = {0};
            buf_puts(out, " & ");
            cell_text(cell, &t);
            put(out, buf_str(&t));
            if (cell_letters(b, r, c)[0])
                buf_printf(out, "$^{%s}$", cell_letters(b, r, c));
            buf_free(&t);
        }
        buf_puts(out, "\\\\\n");
    }
}

/* ---- widths -----------------------------------------------------------------------------------
 * In points at \footnotesize of a 10 pt document: a character is 4.5 wide at most on average, a
 * letter of a superscript 3.2. */

#define TEXT_WIDTH 470.0   /* of 174 mm, less a margin for what the averages miss */
#define COLUMN_WIDTH 225.0 /* of 84 mm */

static double text_width(const char *s)
{
    double n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return 4.5 * n;
}

static double label_width(const struct page *p, const struct page_block *b,
                          const struct grid_entry *e, int level)
{
    struct buf t = {0};
    label_text(p, b, e, level, &t);
    double w = text_width(buf_str(&t));
    buf_free(&t);
    return w;
}

static double column_width(const struct page *p, const struct page_block *b, int c)
{
    const struct grid_entry *e = &b->columns.e[c];
    char shared[16];
    column_letters(b, c, shared);
    double most = label_width(p, b, e, e->levels - 1) + 3.2 * (double)strlen(shared) +
                  (e->levels == 1 && arrow_text(e, "u", "d")[0] ? 9 : 0);
    if (e->levels > 1) { /* a group's head above as many columns as it has */
        double head = (label_width(p, b, e, 0) + 9) / group_size(b, c, b->columns.n);
        most = head > most ? head : most;
    }
    for (int r = 0; r < b->rows.n; r++) {
        struct buf t = {0};
        cell_text(page_cell_at(b, r, c), &t);
        double w = text_width(buf_str(&t)) + 3.2 * (double)strlen(cell_letters(b, r, c));
        most = w > most ? w : most;
        buf_free(&t);
    }
    return most + 6;
}

static double stub_width(const struct page *p, const struct page_block *b, const json_t *stub)
{
    double sum = 0;
    for (size_t k = 0; k < json_array_size(stub); k++) {
        double most = text_width(json_string_value(json_array_get(stub, k)));
        for (int r = 0; r < b->rows.n; r++) {
            char shared[16];
            row_letters(b, r, shared);
            double w =
                label_width(p, b, &b->rows.e[r], (int)k) + (k ? 0 : 3.2 * (double)strlen(shared));
            most = w > most ? w : most;
        }
        sum += most + 6;
    }
    return sum;
}

/* As many columns from `from` on as fit beside the stub; a group is parted only where it alone is
 * too wide. */
static int part_end(const struct page *p, const struct page_block *b, int from, double room)
{
    int c = from;
    while (c < b->columns.n) {
        int end = c + group_size(b, c, b->columns.n);
        double w = 0;
        for (int k = c; k < end; k++)
            w += column_width(p, b, k);
        if (w > room && c > from)
            break;
        if (w > room) {
            while (c < end && (c == from || room > column_width(p, b, c)))
                room -= column_width(p, b, c++);
            return c;
        }
        room -= w;
        c = end;
    }
    return c;
}

static void put_caption(const struct page *p, struct buf *out)
{
    bool has = page_caption(p)[0];
    buf_puts(out, "\\caption{");
    put(out, page_caption(p));
    buf_puts(out, has ? " (" : "");
    put(out, buf_str(&p->title));
    buf_puts(out, has ? ")." : ".");
    if (p->ours.len) {
        buf_puts(out, " Ours: ");
        put(out, buf_str(&p->ours));
        buf_puts(out, p->quick ? ", quick." : ".");
    }
    for (const char *l = p->letters; *l; l++)
        buf_printf(out, "%s%c: %s", l == p->letters ? " " : ", ", *l, letter_text(*l));
    buf_puts(out, p->letters[0] ? ".}\n" : "}\n");
}

static void put_block(const struct page *p, const struct page_block *b, struct buf *out)
{
    const json_t *stub = json_object_get(b->j, "stub");
    int stubs = (int)json_array_size(stub);
    double own = stub_width(p, b, stub);
    const char *star = part_end(p, b, 0, COLUMN_WIDTH - own) < b->columns.n ? "*" : "";
    buf_printf(out, "\\begin{table%s}[t]\\centering\\footnotesize\\setlength{\\tabcolsep}{3pt}\n",
               star);
    put_caption(p, out);
    struct part in = {0, 0};
    while (in.to < b->columns.n) {
        in.from = in.to;
        in.to = part_end(p, b, in.from, (*star ? TEXT_WIDTH : COLUMN_WIDTH) - own);
        buf_puts(out, in.from ? "\\par\\smallskip\n" : "");
        buf_puts(out, "\\begin{tabular}{@{}");
        for (int i = 0; i < stubs; i++)
            buf_puts(out, "l");
        for (int c = in.from; c < in.to; c++)
            buf_puts(out, "r");
        buf_puts(out, "@{}}\\toprule\n");
        put_groups(p, b, stubs, in, out);
        put_heads(p, b, stub, in, out);
        put_rows(p, b, stubs, in, out);
        buf_puts(out, "\\bottomrule\\end{tabular}\n");
    }
    buf_printf(out, "\\end{table%s}\n", star);
}

void page_tex(const struct page *p, struct buf *b)
{
    struct buf file = {0};
    for (int i = 0; i < p->n_blocks; i++)
        put_block(p, &p->blocks[i], b);
    if (page_has_figure(p)) {
        page_file(p->recipe, &file);
        buf_printf(b,
                   "%% graphicx, and where the drawings lie: \\graphicspath{{figures/}}\n"
                   "\\begin{figure}[t]\\centering\n\\includegraphics[width=\\linewidth]{%s.pdf}\n",
                   buf_str(&file));
        put_caption(p, b);
        buf_puts(b, "\\end{figure}\n");
    }
    if (!p->n_blocks && !page_has_figure(p))
        buf_puts(b, "% nothing of ours can be drawn here; see the page's reasons\n");
    buf_free(&file);
}
