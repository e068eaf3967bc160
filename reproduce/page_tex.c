/*
 * page_tex.c - a page in LaTeX: booktabs alone, a table per block; up to 6 columns in one column of
 * text, more across both.
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

/* How many columns from c on share the first label. */
static int group_size(const struct page_block *b, int c)
{
    int n = 1;
    while (c + n < b->columns.n && b->columns.e[c].levels > 1 && b->columns.e[c + n].levels > 1 &&
           strcmp(b->columns.e[c].level[0], b->columns.e[c + n].level[0]) == 0)
        n++;
    return n;
}

static void put_groups(const struct page *p, const struct page_block *b, int stubs, struct buf *out)
{
    bool any = false;
    for (int c = 0; c < b->columns.n; c++)
        any = any || b->columns.e[c].levels > 1;
    if (!any)
        return;
    for (int i = 1; i < stubs; i++)
        buf_puts(out, " & ");
    for (int c = 0; c < b->columns.n; c += group_size(b, c)) {
        const struct grid_entry *e = &b->columns.e[c];
        buf_printf(out, " & \\multicolumn{%d}{c}{", group_size(b, c));
        if (e->levels > 1) {
            put_label(p, b, e, 0, out);
            buf_printf(out, "%s", arrow_text(e, " $\\uparrow$", " $\\downarrow$"));
        }
        buf_puts(out, "}");
    }
    buf_puts(out, "\\\\\n");
    for (int c = 0; c < b->columns.n; c += group_size(b, c))
        buf_printf(out, "\\cmidrule(lr){%d-%d}", stubs + c + 1, stubs + c + group_size(b, c));
    buf_puts(out, "\n");
}

static void put_heads(const struct page *p, const struct page_block *b, const json_t *stub,
                      struct buf *out)
{
    for (size_t i = 0; i < json_array_size(stub); i++) {
        buf_puts(out, i ? " & " : "");
        put(out, json_string_value(json_array_get(stub, i)));
    }
    for (int c = 0; c < b->columns.n; c++) {
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

static void put_rows(const struct page *p, const struct page_block *b, int stubs, struct buf *out)
{
    for (int r = 0; r < b->rows.n; r++) {
        for (int k = 0; k < stubs; k++) {
            buf_puts(out, k ? " & " : "");
            put_label(p, b, &b->rows.e[r], k, out);
        }
        for (int c = 0; c < b->columns.n; c++) {
            const struct page_cell *cell = page_cell_at(b, r, c);
            char shared[16];
            struct buf t = {0};
            buf_puts(out, " & ");
            cell_text(cell, &t);
            put(out, buf_str(&t));
            column_letters(b, c, shared);
            if (cell->ours && !shared[0] && cell->letters[0])
                buf_printf(out, "$^{%s}$", cell->letters);
            buf_free(&t);
        }
        buf_puts(out, "\\\\\n");
    }
}

static void put_block(const struct page *p, const struct page_block *b, struct buf *out)
{
    const json_t *stub = json_object_get(b->j, "stub");
    int stubs = (int)json_array_size(stub);
    const char *star = stubs + b->columns.n > 6 ? "*" : "";
    buf_printf(out, "\\begin{table%s}[t]\\centering\\footnotesize\\setlength{\\tabcolsep}{3pt}\n",
               star);
    buf_puts(out, "\\caption{");
    put(out, page_caption(p));
    buf_puts(out, " (");
    put(out, buf_str(&p->title));
    buf_puts(out, ").");
    if (p->ours.len) {
        buf_puts(out, " Ours: ");
        put(out, buf_str(&p->ours));
        buf_puts(out, p->quick ? ", quick." : ".");
    }
    for (const char *l = p->letters; *l; l++)
        buf_printf(out, "%s%c: %s", l == p->letters ? " " : ", ", *l, letter_text(*l));
    buf_puts(out, p->letters[0] ? ".}\n" : "}\n");
    buf_puts(out, "\\begin{tabular}{@{}");
    for (int i = 0; i < stubs; i++)
        buf_puts(out, "l");
    for (int c = 0; c < b->columns.n; c++)
        buf_puts(out, "r");
    buf_puts(out, "@{}}\\toprule\n");
    put_groups(p, b, stubs, out);
    put_heads(p, b, stub, out);
    put_rows(p, b, stubs, out);
    buf_printf(out, "\\bottomrule\\end{tabular}\\end{table%s}\n", star);
}

void page_tex(const struct page *p, struct buf *b)
{
    struct buf file = {0};
    for (int i = 0; i < p->n_blocks; i++)
        put_block(p, &p->blocks[i], b);
    if (page_has_figure(p)) {
        page_file(p->recipe, &file);
        buf_printf(b,
                   "\\begin{figure}[t]\\centering\n\\includegraphics[width=\\linewidth]{%s.pdf}\n",
                   buf_str(&file));
        buf_puts(b, "\\caption{");
        put(b, buf_str(&p->title));
        buf_puts(b, p->ours.len ? ". Ours: " : ".");
        put(b, buf_str(&p->ours));
        buf_puts(b, "}\\end{figure}\n");
    }
    if (!p->n_blocks && !page_has_figure(p))
        buf_puts(b, "% nothing of ours can be drawn here; see the page's reasons\n");
    buf_free(&file);
}
