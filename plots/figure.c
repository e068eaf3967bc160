/*
 * figure.c - what every figure begins with: its file, and the records that it takes.
 */
#include "plots/figure.h"

#include "analyze/group.h"
#include "plots/titles.h"

#include <fnmatch.h>
#include <string.h>

int figure_open(const struct figure_args *a, int width, int height, struct gp *g, struct err *err)
{
    int rc = gp_open(g, a->output, a->width ? a->width : width, a->height ? a->height : height,
                     &a->style, err);
    g->inputs = a->inputs;
    if (!rc && a->made_by)
        buf_puts(&g->made_by, a->made_by);
    return rc;
}

void figure_caption(const struct figure_args *a, const char *title, const char *caption,
                    struct gp *g)
{
    struct buf *b = &g->caption;
    if (a->title)
        buf_printf(b, "%s. ", a->title);
    title_sentence(title, b);
    buf_puts(b, ".");
    if (caption && caption[0])
        buf_printf(b, "%s%s", caption[0] == ' ' ? "" : " ", caption);
}

const char *figure_powers(const char *output)
{
    size_t len = strlen(output);
    bool latex = len > 4 && strcmp(output + len - 4, gp_suffixes[GP_TEX]) == 0;
    return latex ? "$10^{%T}$" : "10^{%T}";
}

bool figure_takes(const struct figure_args *a, const struct record *r)
{
    const char *params = r->params ? r->params : "";
    if (a->method && !name_matches(a->method, r->method))
        return false;
    return !a->params ||
           fnmatch(strcmp(a->params, "defaults") == 0 ? "" : a->params, params, 0) == 0;
}
